"""The conformance cases of the server, through the JavaScript client in Node."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.client.test_conformance import CASES
from tests.conformance.conftest import api, nothing_goes_wrong_inside, server
from tests.conformance.test_addition_scopes import beside_foreign, guarded
from tests.conformance.test_queue import queue, restarted
from tests.js.node_programs import NodeClient, NodeProgram, find_node
from tests.support.http_cases import RunningServer

globals().update(CASES)
FIXTURES = (api, beside_foreign, guarded, nothing_goes_wrong_inside, queue, restarted, server)


@pytest.fixture(scope="module")
def program() -> Iterator[NodeProgram]:
    started = NodeProgram(find_node())
    yield started
    started.close()


@pytest.fixture(autouse=True)
def through_node(program: NodeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cases talk through the JavaScript client."""
    monkeypatch.setattr(RunningServer, "client_kind", partial(NodeClient, program))


def test_nearly_all_cases_are_run() -> None:
    assert len(CASES) > 150
