"""One process per connection: starts them, starts them again when they die, and ends them together.

Owns processes and signals. A connection that dies is started again after a pause; its queues go on where they
are, with a gap.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Final

from everlog.clock import StopEvent
from everlog.feeds.config import FeedConfig
from everlog.feeds.connection import FeedRunner

RESTART_S: Final = 1.0
LOOK_S: Final = 0.2
END_S: Final = 10.0


def capture(feed: FeedConfig, root: str) -> None:
    """Run one connection in this process until SIGTERM or SIGINT."""
    asyncio.run(_captured(feed, root))


async def _captured(feed: FeedConfig, root: str) -> None:
    runner = FeedRunner(feed, root)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runner.stop.set)
    await runner.run()


class Supervisor:
    """The processes of all connections."""

    def __init__(self, feeds: Sequence[FeedConfig], root: str) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._feeds = feeds
        self._root = root
        self.processes: dict[str, BaseProcess] = {}
        self.restarts = 0
        self.stop = StopEvent()

    def run(self) -> None:
        """Keep every connection running until `stop` is set."""
        due_s = dict.fromkeys((feed.name for feed in self._feeds), 0.0)
        try:
            while not self.stop.is_set():
                for feed in self._feeds:
                    known = self.processes.get(feed.name)
                    if known is not None and known.is_alive():
                        continue
                    if known is not None:
                        known.close()
                        del self.processes[feed.name]
                        self.restarts += 1
                        due_s[feed.name] = time.monotonic() + RESTART_S
                    if time.monotonic() >= due_s[feed.name]:
                        self.processes[feed.name] = self._started(feed)
                self.stop.wait(LOOK_S)
        finally:
            self._end()

    def _started(self, feed: FeedConfig) -> BaseProcess:
        process = self._context.Process(target=capture, args=(feed, self._root), name=f"everlog-{feed.name}")
        process.start()
        return process

    def _end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(END_S)
            if process.is_alive():
                process.kill()
                process.join()
