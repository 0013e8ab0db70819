"""The conformance cases of the server, through both clients.

The cases are those of `tests/conformance`; what they call goes out through `Client` or `AsyncClient`, and
every success must be readable as the typed value that programs get. Cases that need a hand on the socket are
left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest

from tests.conformance import (
    test_addition_scopes,
    test_append,
    test_consumer_rules,
    test_consumers,
    test_delete,
    test_diff,
    test_filters,
    test_idempotency,
    test_job_rules,
    test_jobs,
    test_queue,
    test_routers,
    test_schedules,
    test_summaries,
    test_topics,
)
from tests.conformance.conftest import api, nothing_goes_wrong_inside, server
from tests.conformance.test_addition_scopes import beside_foreign, guarded
from tests.conformance.test_queue import queue, restarted
from tests.support.client_faces import ClientOfCases
from tests.support.http_cases import RunningServer

MODULES = (
    *(test_append, test_consumers, test_delete, test_diff, test_idempotency, test_queue, test_routers),
    *(test_jobs, test_job_rules, test_schedules, test_summaries, test_topics, test_addition_scopes),
    *(test_consumer_rules, test_filters),
)
NEEDS_THE_SOCKET = ".http."
FIXTURES = (api, beside_foreign, guarded, nothing_goes_wrong_inside, queue, restarted, server)


def cases_of(module: ModuleType) -> dict[str, Callable[..., None]]:
    """The cases of a module that any client can run, by a name that tells the module."""
    about = module.__name__.rpartition("test_")[2]
    return {
        f"test_{about}_{name.removeprefix('test_')}": case
        for name, case in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("test_") and NEEDS_THE_SOCKET not in inspect.getsource(case)
    }


CASES = {name: case for module in MODULES for name, case in cases_of(module).items()}
globals().update(CASES)


@pytest.fixture(params=["sync", "async"], autouse=True)
def through(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cases talk through this client."""
    monkeypatch.setattr(RunningServer, "client_kind", partial(ClientOfCases, request.param))


def test_nearly_all_cases_are_run() -> None:
    assert len(CASES) > 150
