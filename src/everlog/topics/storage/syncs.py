"""When and where the log is synced: runners that execute the jobs, and the window of a group commit.

Owns its threads and the order of jobs; knows nothing of files, frames or topics. What a job does, and
what its end means, is decided by its caller.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from everlog.clock import NS_PER_S
from everlog.errors import Closed

Job = Callable[[], None]
Done = Callable[[BaseException | None], None]

WINDOW_MIN_NS: Final = 500_000
WINDOW_MAX_NS: Final = 10_000_000
LANE_JOBS_MAX: Final = 64
"""Jobs that may wait in one lane of `ThreadSyncs`; a caller that starts more waits for room."""


class SyncRunner(Protocol):
    """Where syncs run. Jobs of one lane run in order, one at a time; lanes do not know each other.

    One thread, the owner, calls these methods.
    """

    def start(self, lane: int, job: Job, done: Done) -> None:
        """Run `job` some time; `poll` then calls `done` with what it raised, or None."""
        ...

    def poll(self) -> int:
        """Call `done` of the finished jobs on this thread; return how many."""
        ...

    def wait(self, timeout_ns: int) -> None:
        """Block until `poll` has something to do, at most `timeout_ns`."""
        ...

    def drain(self, lane: int) -> None:
        """Return when every job started in `lane` has run; their `done` is still left to `poll`."""
        ...

    def close(self) -> None:
        """Run what was started and stop; `poll` still works, `start` does not."""
        ...

    def abandon(self) -> None:
        """Forget what was started and is not running yet, and stop; no `done` is called any more."""
        ...


class InlineSyncs:
    """Jobs queue up and run on the owner's thread, in `poll` or `drain`: the same order every time."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[int, Job, Done]] = deque()
        self._finished: deque[tuple[Done, BaseException | None]] = deque()
        self._closed = False

    def start(self, lane: int, job: Job, done: Done) -> None:
        """Run `job` some time; `poll` then calls `done` with what it raised, or None."""
        if self._closed:
            raise Closed("these syncs are closed; start no more of them")
        self._jobs.append((lane, job, done))

    def poll(self) -> int:
        """Run the jobs started before this call and call their `done`; see `SyncRunner.poll`."""
        jobs_left = len(self._jobs)
        called = self._call_finished()
        # A `done` may start more or drain a lane, so the length is looked at every time.
        while jobs_left > 0 and self._jobs:
            jobs_left -= 1
            self._run(*self._jobs.popleft())
            called += self._call_finished()
        return called

    def wait(self, timeout_ns: int) -> None:
        """Return at once: `poll` runs the jobs, so nothing is gained by waiting."""

    def drain(self, lane: int) -> None:
        """Return when every job started in `lane` has run; their `done` is still left to `poll`."""
        mine = [entry for entry in self._jobs if entry[0] == lane]
        self._jobs = deque(entry for entry in self._jobs if entry[0] != lane)
        for entry in mine:
            self._run(*entry)

    def abandon(self) -> None:
        """Forget what was started and is not running yet, and stop; no `done` is called any more."""
        self._closed = True
        self._jobs.clear()
        self._finished.clear()

    def close(self) -> None:
        """Run what was started and stop; `poll` still works, `start` does not."""
        self._closed = True
        while self._jobs:
            self._run(*self._jobs.popleft())

    def _run(self, lane: int, job: Job, done: Done) -> None:
        error: BaseException | None = None
        try:
            job()
        except Exception as raised:  # anything worse than an error stops the owner, whose thread this is
            error = raised
        self._finished.append((done, error))

    def _call_finished(self) -> int:
        called = 0
        while self._finished:
            done, error = self._finished.popleft()
            called += 1
            done(error)
        return called


class _Lane:
    """The jobs of one lane, and its thread once there was a first job."""

    def __init__(self, mutex: threading.Lock) -> None:
        self.jobs: deque[tuple[Job, Done]] = deque()
        """The first one is running; it leaves when it has run."""
        self.changed = threading.Condition(mutex)
        self.thread: threading.Thread | None = None


class ThreadSyncs:
    """One daemon thread per lane, started with the first job of the lane.

    `wake` is called on such a thread whenever a job has finished, so that the owner's loop can `poll`.
    """

    def __init__(self, lanes: int, wake: Callable[[], None] | None = None) -> None:
        self._wake = wake
        self._mutex = threading.Lock()
        self._finished: deque[tuple[Done, BaseException | None]] = deque()
        self._any_finished = threading.Condition(self._mutex)
        self._lanes = [_Lane(self._mutex) for _ in range(lanes)]
        self._closed = False

    def start(self, lane: int, job: Job, done: Done) -> None:
        """See `SyncRunner.start`; waits while the lane is full."""
        target = self._lanes[lane]
        with self._mutex:
            if self._closed:
                raise Closed("these syncs are closed; start no more of them")
            target.changed.wait_for(lambda: len(target.jobs) < LANE_JOBS_MAX)
            target.jobs.append((job, done))
            if target.thread is None:
                target.thread = threading.Thread(
                    target=self._run, args=(target,), name=f"everlog-sync-{lane}", daemon=True
                )
                target.thread.start()
            target.changed.notify_all()

    def poll(self) -> int:
        """Call `done` of the finished jobs on this thread; return how many."""
        called = 0
        for _ in range(len(self._finished)):
            if not self._finished:  # a `done` may poll too
                break
            done, error = self._finished.popleft()
            called += 1
            done(error)
        return called

    def wait(self, timeout_ns: int) -> None:
        """Block until `poll` has something to do, at most `timeout_ns`."""
        with self._mutex:
            self._any_finished.wait_for(lambda: bool(self._finished), timeout_ns / NS_PER_S)

    def drain(self, lane: int) -> None:
        """Return when every job started in `lane` has run; their `done` is still left to `poll`."""
        target = self._lanes[lane]
        with self._mutex:
            target.changed.wait_for(lambda: not target.jobs)

    def abandon(self) -> None:
        """Forget what was started and is not running yet, and stop; no `done` is called any more."""
        with self._mutex:
            for lane in self._lanes:
                while len(lane.jobs) > 1:  # the first one is running
                    lane.jobs.pop()
        self.close()
        self._finished.clear()

    def close(self) -> None:
        """Run what was started and stop; `poll` still works, `start` does not."""
        with self._mutex:
            self._closed = True
            for lane in self._lanes:
                lane.changed.notify_all()
        for lane in self._lanes:
            if lane.thread is not None:
                lane.thread.join()

    def _run(self, lane: _Lane) -> None:
        while True:
            with self._mutex:
                lane.changed.wait_for(lambda: bool(lane.jobs) or self._closed)
                if not lane.jobs:
                    return
                job, done = lane.jobs[0]
            error: BaseException | None = None
            try:
                job()
            except BaseException as raised:  # any error goes to the owner; the lane goes on
                error = raised
            with self._mutex:
                # First, so that a thread that sees the lane empty also finds the job among the finished.
                self._finished.append((done, error))
                lane.jobs.popleft()
                lane.changed.notify_all()
                self._any_finished.notify_all()
            # Neither may outlive its time: an idle lane would keep alive what the last job refers to.
            del job, done, error
            if self._wake is not None:
                # The owner's loop may be closed already; the lane must not end for that.
                with contextlib.suppress(Exception):
                    self._wake()


class CommitWindow:
    """When the next group commit may start. Pure arithmetic on the times it is given.

    A lone writer never waits. Under load a sync starts at the earliest one window after the start of
    the one before, so that more writers share it. The window doubles while syncs with several waiters
    follow each other and cost more than half of it, and halves when it is quiet or syncs are cheap.
    """

    def __init__(self) -> None:
        self._floor_ns = WINDOW_MIN_NS
        self._window_ns = WINDOW_MIN_NS
        self._started_ns: int | None = None
        self._waiting = 0
        self._cost_ns = 0

    @property
    def window_ns(self) -> int:
        """The present distance between the starts of two syncs under load."""
        return self._window_ns

    @property
    def floor_ns(self) -> int:
        """The shortest window; raised, it lets more writers share a sync. A lone one never waits."""
        return self._floor_ns

    @floor_ns.setter
    def floor_ns(self, floor_ns: int) -> None:
        self._floor_ns = min(max(floor_ns, WINDOW_MIN_NS), WINDOW_MAX_NS)
        self._window_ns = max(self._window_ns, self._floor_ns)

    def next_start_ns(self, now_ns: int, waiting: int = 1) -> int:
        """Return when a sync with so many waiters may start: now, or within one window from now."""
        if self._started_ns is None:
            return now_ns
        if waiting <= 1 and self._waiting <= 1:
            return now_ns  # a lone writer that always awaits its sync: no other could join it
        return max(now_ns, self._started_ns + self._window_ns)

    def started(self, now_ns: int, waiting: int) -> None:
        """A sync starts now, and so many wait for it; adapts the window."""
        follows = self._started_ns is not None and now_ns - self._started_ns <= 2 * max(
            self._window_ns, self._cost_ns
        )
        window_ns = self._window_ns
        if follows and waiting > 1:
            if 2 * self._cost_ns > window_ns:
                window_ns *= 2
            elif 8 * self._cost_ns < window_ns:
                window_ns //= 2
        else:
            window_ns //= 2
        self._window_ns = min(max(window_ns, self._floor_ns), WINDOW_MAX_NS)
        self._started_ns = now_ns
        self._waiting = waiting

    def finished(self, now_ns: int) -> None:
        """The sync that started last is over."""
        if self._started_ns is not None:
            self._cost_ns = now_ns - self._started_ns
