"""Starts the processes of the demonstration, kills one of them half way and starts it again.

Owns the processes: whatever happens, none outlives `Supervisor.close`. Reads the queues only to
count; what was lost or not is for the audit to say.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from everlog.bus import IpcLayout, is_ready
from everlog.queue import Queue, QueueReader
from examples.demo.records import COMMIT_EVERY, STRATEGIES, ticks_dir

VICTIM = STRATEGIES[0]
START_LIMIT_S = 30.0
DRAIN_LIMIT_S = 30.0
POLL_S = 0.02
REPOSITORY = Path(__file__).resolve().parents[2]


class DemoFailed(Exception):
    """The processes did not do what the demonstration needs; the message says which and why."""


@dataclass(frozen=True)
class Counts:
    """How many messages the queues hold so far."""

    ticks: int = 0
    orders: int = 0
    fills: int = 0


@dataclass(frozen=True)
class Kill:
    """One SIGKILL: who, and the tick at the position that was committed by then."""

    strategy: str
    pid: int
    committed_seq: int


class Watcher(Protocol):
    """Wants to know how the run goes on."""

    def note(self, text: str) -> None:
        """Something happened."""

    def progress(self, counts: Counts) -> None:
        """Some more messages were written."""


class Tally:
    """Counts the messages of one queue as an anonymous reader: nobody notices it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: QueueReader | None = None
        self.count = 0

    def update(self) -> int:
        """Count what is new and return the sum; 0 while there is no queue."""
        if self._reader is None:
            self._reader = Queue.try_open_subscriber(self._path, None, verify=False)
        while self._reader is not None and (new := len(self._reader.read_batch())):
            self.count += new
        return self.count

    def close(self) -> None:
        """Stop counting."""
        if self._reader is not None:
            self._reader.close()


class Supervisor:
    """One run, from the first process to the last."""

    def __init__(self, root: Path, ticks: int, rate_per_s: int, watcher: Watcher) -> None:
        self._layout = IpcLayout(root)
        self._ticks = ticks
        self._rate_per_s = rate_per_s
        self._watcher = watcher
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        endpoints = [self._layout.orders().strategy_endpoints(name) for name in STRATEGIES]
        self._tick_tally = Tally(ticks_dir(self._layout))
        self._order_tallies = [Tally(endpoint.orders_out) for endpoint in endpoints]
        self._fill_tallies = [Tally(endpoint.orders_in) for endpoint in endpoints]
        self._inboxes = [endpoint.orders_in for endpoint in endpoints]

    def run(self) -> Kill:
        """Run the whole session and return what is to be known about the kill."""
        self._start("router", "router", len(STRATEGIES))
        for name in STRATEGIES:
            self._start(name, "strategy", name)
        self._until(lambda: all(map(is_ready, self._inboxes)), START_LIMIT_S, "meet the router")
        self._watcher.note("the router has found " + " and ".join(STRATEGIES))
        self._start("feed", "feed", self._ticks, self._rate_per_s)
        session_s = self._ticks / self._rate_per_s
        half = self._ticks // 2 + COMMIT_EVERY // 2  # between two commits, so that some ticks come again
        self._until(lambda: self._counts().ticks >= half, session_s + START_LIMIT_S, "trade")
        kill = self._kill_and_restart(VICTIM)
        self._until(lambda: not self._running(), session_s + DRAIN_LIMIT_S, "finish")
        self._watcher.progress(self._counts())
        return kill

    def _start(self, name: str, module: str, *arguments: object) -> None:
        program = [sys.executable, "-m", f"examples.demo.{module}"]
        command = [*program, str(self._layout.root), *map(str, arguments)]
        # A session of its own: Ctrl-C reaches only the supervisor, which then ends the others.
        self._processes[name] = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)

    def _kill_and_restart(self, name: str) -> Kill:
        process = self._processes[name]
        if process.poll() is not None:
            raise DemoFailed(f"{name} had ended before it could be killed; let the session last longer")
        process.kill()
        process.wait()
        # Under the dead strategy's name, and without a commit: just a look where it will resume.
        with Queue.open_subscriber(ticks_dir(self._layout), name) as reader:
            message = reader.next()
        if message is None:
            raise DemoFailed(f"{name} had committed everything when it was killed; raise the rate")
        self._watcher.note(
            f"killed {name} (pid {process.pid}, SIGKILL); its position is tick {message.seq:,}"
        )
        self._start(name, "strategy", name)
        self._watcher.note(f"started {name} again (pid {self._processes[name].pid})")
        return Kill(name, process.pid, message.seq)

    def _until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Wait for `condition`; a process that fails, or time running out, ends the run."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            self._check_failures()
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"{', '.join(self._running())} did not {what} within {limit_s:.0f} s")
            self._watcher.progress(self._counts())
            time.sleep(POLL_S)
        self._check_failures()

    def _check_failures(self) -> None:
        for name, process in self._processes.items():
            if process.poll():  # neither None (runs) nor 0 (went well)
                raise DemoFailed(f"{name} failed with exit code {process.returncode}")

    def _running(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.poll() is None]

    def _counts(self) -> Counts:
        return Counts(
            min(self._ticks, self._tick_tally.update()),  # without the end of the session
            sum(tally.update() for tally in self._order_tallies),
            sum(tally.update() for tally in self._fill_tallies),
        )

    def close(self) -> None:
        """End what still runs, and wait until it has ended."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        for tally in (self._tick_tally, *self._order_tallies, *self._fill_tallies):
            tally.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
