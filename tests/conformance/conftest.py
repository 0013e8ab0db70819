"""Servers for the conformance cases: in memory and without keys unless a case needs more."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.http_cases import Api, RunningServer, running


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server that keeps everything in memory and wants no keys."""
    with running() as started:
        yield started


@pytest.fixture
def api(server: RunningServer) -> Api:
    """A client of that server."""
    return server.api()


@pytest.fixture(autouse=True)
def nothing_goes_wrong_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever clients do, it is no mistake of the server: it logs no error."""
    yield
    records = [record for when in ("setup", "call", "teardown") for record in caplog.get_records(when)]
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []
