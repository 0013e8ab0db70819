"""A topics server inside the process of a test: nothing on disk, any free port, gone with the test.

Owns a thread with an event loop for each server. `pytest_plugins = ["everlog.testing"]` in a `conftest.py`
gives the fixture `everlog_server`, the URL of a server that is new for each test.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from everlog.server.auth import KeyRing
from everlog.server.serve import TopicsServer
from everlog.server.settings import ServerSettings

TIMEOUT_S: Final = 10.0


@contextmanager
def server(*, keys: str = "", **settings: Any) -> Iterator[str]:
    """A server that runs for as long as the block; its URL is what the block gets.

    `keys` are written as in `TOPICS_API_KEYS`; `settings` are those of `everlog.server.settings`.
    """
    wanted = ServerSettings(**{"port": 0, "wal_shards": 1, **settings}, api_keys=KeyRing.parse(keys))
    running = TopicsServer(wanted, memory=True)
    loop = _new_loop()
    thread = threading.Thread(target=loop.run_forever, name="everlog-test-server", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(running.start(), loop).result(TIMEOUT_S)
        host, port = running.address
        yield f"http://{host}:{port}"
    finally:
        # Open connections are closed at once: the test is over.
        asyncio.run_coroutine_threadsafe(running.stop(0), loop).result(TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT_S)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        make = uvloop.new_event_loop
    return make()


if "pytest" in sys.modules:
    # Loaded as a plugin; a program that only needs a server does not import pytest.
    import pytest

    @pytest.fixture
    def everlog_server() -> Iterator[str]:
        """The URL of a topics server that is new for this test."""
        with server() as url:
            yield url
