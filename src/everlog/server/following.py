"""The server of a standby: it follows the shipments of a primary, and shows the newest view of them.

Owns the rounds. A round runs on another thread; on the loop the application gets the new engine, and the
watchers go over to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from everlog.server.app import App
from everlog.topics.replica import Replica

SHARE: Final = 4
"""A round is followed by a pause of so many times its duration: the rest is for requests."""
log = logging.getLogger("everlog.server")


class Follower:
    """Follows for as long as the server runs."""

    def __init__(self, app: App, replica: Replica, interval_s: float) -> None:
        self._app = app
        self._replica = replica
        self._interval_s = interval_s
        self._stopping = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """End after the round that is under way."""
        self._stopping.set()
        await self._task
        self._replica.close()

    async def _run(self) -> None:
        pause_s = self._interval_s
        while not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            except TimeoutError:
                began_s = time.monotonic()
                await self._round()
                pause_s = max(self._interval_s, SHARE * (time.monotonic() - began_s))

    async def _round(self) -> None:
        app = self._app
        try:
            engine = await app.loop.run_in_executor(None, self._replica.refresh)
        except Exception:
            log.exception("a round of the standby failed")
            return
        if engine is not None and app.engine is not None:
            app.engine = engine
            self._replica.move_watchers()
            app.turn_soon()
