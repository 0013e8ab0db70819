"""Time, as a seam: everything with a guarantee asks a `Clock`, never the `time` module.

`SystemClock` is the real one. `TestClock` stands still until a test moves it. `StopEvent` is what a program
that signals end waits for.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue
from typing import Protocol

NS_PER_S = 1_000_000_000
NS_PER_DAY = 86_400 * NS_PER_S


class StopEvent(threading.Event):
    """An event that a signal handler may set while its own thread waits for it; it stays set.

    `threading.Event` blocks for good there: the handler waits for the lock that its thread holds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._tokens: SimpleQueue[None] = SimpleQueue()  # its `put` may interrupt its `get`, or another `put`

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Wake all that wait, now and later."""
        self._is_set = True
        self._tokens.put(None)

    def clear(self) -> None:
        """Not possible."""
        raise TypeError("a StopEvent stays set; make a new one")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; whether it is."""
        if not self._is_set:
            try:
                self._tokens.get(timeout=None if timeout is None else max(0.0, timeout))
            except Empty:
                return self._is_set
            self._tokens.put(None)  # for the next thread that waits
        return True


class Clock(Protocol):
    """Two time lines and the two ways to let time pass."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump in either direction."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start; never goes back."""
        ...

    def sleep_ns(self, duration_ns: int) -> None:
        """Let `duration_ns` pass."""
        ...

    def wait(self, event: threading.Event, timeout_ns: int) -> bool:
        """Wait until `event` is set (True) or `timeout_ns` has passed (False)."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump in either direction."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start; never goes back."""
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        """Let `duration_ns` pass."""
        time.sleep(duration_ns / NS_PER_S)

    def wait(self, event: threading.Event, timeout_ns: int) -> bool:
        """Wait until `event` is set (True) or `timeout_ns` has passed (False)."""
        return event.wait(timeout_ns / NS_PER_S)


class AnchoredClock(SystemClock):
    """Wall time that never goes back: the monotonic clock plus an offset taken once."""

    def __init__(self) -> None:
        self.offset_ns = time.time_ns() - time.monotonic_ns()

    def wall_ns(self) -> int:
        """Wall time as of construction plus the monotonic time since."""
        return time.monotonic_ns() + self.offset_ns


class TestClock:
    """A clock that moves only when told to.

    `advance_ns` moves both time lines; `set_wall_ns` makes the wall clock jump, backwards
    too. `sleep_ns` advances by itself, so single-threaded simulations never block; `wait`
    blocks the calling thread until the event is set or another thread advances far enough.
    """

    __test__ = False  # not a test case, although its name begins like one

    def __init__(self, wall_ns: int = 1_700_000_000 * NS_PER_S, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._moved = threading.Condition()

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump in either direction."""
        return self._wall_ns

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start; never goes back."""
        return self._monotonic_ns

    def advance_ns(self, duration_ns: int) -> None:
        """Move both time lines forward and wake every `wait` whose time has come."""
        if duration_ns < 0:
            raise ValueError(f"time cannot advance by {duration_ns} ns; use set_wall_ns to jump back")
        with self._moved:
            self._wall_ns += duration_ns
            self._monotonic_ns += duration_ns
            self._moved.notify_all()

    def set_wall_ns(self, wall_ns: int) -> None:
        """Make the wall clock jump; the monotonic clock does not notice."""
        self._wall_ns = wall_ns

    def sleep_ns(self, duration_ns: int) -> None:
        """Advance by `duration_ns` at once."""
        self.advance_ns(max(0, duration_ns))

    def wait(self, event: threading.Event, timeout_ns: int) -> bool:
        """See `Clock.wait`; the event is looked at every few real milliseconds."""
        deadline_ns = self._monotonic_ns + timeout_ns
        with self._moved:
            while not event.is_set() and self._monotonic_ns < deadline_ns:
                self._moved.wait(0.002)
        return event.is_set()
