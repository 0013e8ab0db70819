"""A server in this process for all tests of a file, and a topic of its own for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everlog.client import Client
from everlog.testing import server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where a server is."""
    with server() as where:
        yield where


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client of it."""
    with Client(url) as made:
        yield made


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """A topic that only this test uses, and whose server forgets keys at once."""
    name = f"t{abs(hash(request.node.nodeid)):x}"
    client.put_topic(name, {"idempotency_window_ms": 1})
    return name
