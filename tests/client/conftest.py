"""A server in this process, and both clients of it: every case that takes `client` runs through both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from everlog.client import Client
from everlog.testing import server
from tests.support.client_faces import face


@pytest.fixture
def url() -> Iterator[str]:
    """Where a server is that has nothing in it."""
    with server() as where:
        yield where


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    """A client of it."""
    with face(request.param, url) as made:
        yield made


@pytest.fixture
def plain(url: str) -> Iterator[Client]:
    """A client of it for looking at what another one did."""
    with Client(url) as made:
        yield made
