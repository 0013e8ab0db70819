"""The time seam: the system clocks pass through, the test clock moves only when told to."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog import clock as clock_module
from everlog.clock import NS_PER_S, AnchoredClock, Clock, StopEvent, SystemClock, TestClock

# How long a thread may take to do what it was told to; only a failing test waits so long.
PATIENCE_S = 30.0

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(0, 10**12)),
        st.tuples(st.just("sleep"), st.integers(-(10**6), 10**12)),
        st.tuples(st.just("jump"), st.integers(0, 2**63)),
    )
)


class InBackground:
    """A call in a thread of its own, with its result."""

    def __init__(self, function: Callable[[], bool]) -> None:
        self.result: bool | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], bool]) -> None:
        self.result = function()

    def finish(self) -> bool | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"the call did not return within {PATIENCE_S} s"
        return self.result


class WatchedEvent(threading.Event):
    """An event that counts how often it is checked, so that a test can tell that a thread waits."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = threading.Semaphore(0)

    def is_set(self) -> bool:
        self._looks.release()
        return super().is_set()

    def is_being_watched(self) -> bool:
        """Tell whether more looks come from now on than the two of a `wait` that is about to return."""
        while self._looks.acquire(blocking=False):
            pass
        return all(self._looks.acquire(timeout=PATIENCE_S) for _ in range(3))


@given(moves=MOVES)
def test_the_test_clock_is_where_its_moves_have_put_it(moves: list[tuple[str, int]]) -> None:
    clock = TestClock(wall_ns=500, monotonic_ns=7)
    wall_ns, monotonic_ns = 500, 7
    for move, amount_ns in moves:
        if move == "jump":
            clock.set_wall_ns(amount_ns)
            wall_ns = amount_ns
        else:
            (clock.advance_ns if move == "advance" else clock.sleep_ns)(amount_ns)
            wall_ns += max(0, amount_ns)
            monotonic_ns += max(0, amount_ns)
        assert (clock.wall_ns(), clock.monotonic_ns()) == (wall_ns, monotonic_ns)


def test_the_test_clock_stands_still_by_itself() -> None:
    clock = TestClock()
    before = clock.wall_ns(), clock.monotonic_ns()
    real_ns = time.monotonic_ns(), time.time_ns()
    while time.monotonic_ns() == real_ns[0] or time.time_ns() == real_ns[1]:
        pass
    assert (clock.wall_ns(), clock.monotonic_ns()) == before


def test_the_wall_clock_jumps_back_and_the_monotonic_clock_does_not_notice() -> None:
    clock = TestClock(wall_ns=1_000, monotonic_ns=50)
    clock.set_wall_ns(400)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (400, 50)
    clock.advance_ns(10)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (410, 60)


def test_the_test_clock_refuses_to_advance_backwards() -> None:
    clock = TestClock(wall_ns=1_000)
    with pytest.raises(ValueError, match="-1 ns"):
        clock.advance_ns(-1)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (1_000, 0)


def test_a_sleep_of_an_hour_returns_at_once_and_has_passed() -> None:
    clock = TestClock(wall_ns=0)
    started_s = time.monotonic()
    clock.sleep_ns(3_600 * NS_PER_S)
    assert time.monotonic() - started_s < PATIENCE_S
    assert (clock.wall_ns(), clock.monotonic_ns()) == (3_600 * NS_PER_S, 3_600 * NS_PER_S)


def test_wait_returns_true_at_once_for_an_event_that_is_set() -> None:
    event = threading.Event()
    event.set()
    assert TestClock().wait(event, NS_PER_S) is True


@pytest.mark.parametrize("timeout_ns", [0, -5])
def test_wait_without_time_left_returns_false_at_once(timeout_ns: int) -> None:
    assert TestClock().wait(threading.Event(), timeout_ns) is False


def test_wait_returns_true_when_another_thread_sets_the_event() -> None:
    clock = TestClock()
    event = WatchedEvent()
    waiting = InBackground(lambda: clock.wait(event, NS_PER_S))
    assert event.is_being_watched()
    event.set()
    assert waiting.finish() is True
    assert clock.monotonic_ns() == 0


def test_wait_returns_false_when_another_thread_advances_far_enough_and_not_before() -> None:
    clock = TestClock()
    event = WatchedEvent()
    waiting = InBackground(lambda: clock.wait(event, 1_000))
    assert event.is_being_watched()
    clock.advance_ns(999)
    assert event.is_being_watched()
    clock.advance_ns(1)
    assert waiting.finish() is False


def test_a_wall_clock_jump_does_not_end_a_wait() -> None:
    clock = TestClock()
    event = WatchedEvent()
    waiting = InBackground(lambda: clock.wait(event, NS_PER_S))
    assert event.is_being_watched()
    clock.set_wall_ns(clock.wall_ns() + 10 * NS_PER_S)
    assert event.is_being_watched()
    event.set()
    assert waiting.finish() is True


@pytest.mark.parametrize("clock", [SystemClock(), AnchoredClock()], ids=["system", "anchored"])
def test_the_system_clocks_tell_the_time_of_the_operating_system(clock: Clock) -> None:
    wall_before_ns, monotonic_before_ns = time.time_ns(), time.monotonic_ns()
    wall_ns, monotonic_ns = clock.wall_ns(), clock.monotonic_ns()
    assert monotonic_before_ns <= monotonic_ns <= time.monotonic_ns()
    # Generous, because the anchored clock does not follow when the host adjusts its own.
    assert abs(wall_ns - wall_before_ns) < PATIENCE_S * NS_PER_S


def test_the_system_clock_sleeps_at_least_as_long_as_asked() -> None:
    clock = SystemClock()
    before_ns = clock.monotonic_ns()
    clock.sleep_ns(3_000_000)
    assert clock.monotonic_ns() - before_ns >= 3_000_000


def test_the_system_clock_waits_for_the_event_or_the_timeout() -> None:
    clock = SystemClock()
    event = threading.Event()
    before_ns = clock.monotonic_ns()
    assert clock.wait(event, 3_000_000) is False
    assert clock.monotonic_ns() - before_ns >= 3_000_000
    waiting = InBackground(lambda: clock.wait(event, int(PATIENCE_S * NS_PER_S)))
    event.set()
    assert waiting.finish() is True


def test_the_anchored_clock_does_not_follow_a_wall_clock_that_jumps_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = AnchoredClock()
    system = SystemClock()
    before_ns = clock.wall_ns()
    monkeypatch.setattr(time, "time_ns", lambda: before_ns - 3_600 * NS_PER_S)
    assert system.wall_ns() < before_ns  # the wall clock really jumped
    assert clock.wall_ns() >= before_ns


SHORT_S = 0.001


def is_interrupted(event: threading.Event, line: int, step: Callable[[], object]) -> bool:
    """Do something with an event that is set before this line of it, as by the handler of a signal."""
    left = line

    def count(frame: FrameType, what: str, _: object) -> Callable[..., object] | None:
        nonlocal left
        if what == "line" and frame.f_code.co_filename in (threading.__file__, clock_module.__file__):
            left -= 1
            if not left:
                sys.settrace(None)
                event.set()
        return count

    def run() -> bool:
        sys.settrace(count)
        try:
            step()
        finally:
            sys.settrace(None)
        return left <= 0

    return bool(InBackground(run).finish())


@pytest.mark.parametrize("step", [lambda event: event.wait(SHORT_S), lambda event: event.set()])
def test_a_stop_event_may_be_set_in_the_middle_of_a_wait_or_a_set(
    step: Callable[[StopEvent], object],
) -> None:
    lines = 0
    while True:
        event = StopEvent()
        if not is_interrupted(event, lines + 1, lambda event=event: step(event)):  # type: ignore[misc]
            break
        lines += 1
        assert event.wait(0)
    assert lines >= 2


def test_a_signal_ends_a_wait_for_a_stop_event_of_its_own_thread() -> None:
    event = StopEvent()
    previous = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    try:
        for _ in range(300):
            event = StopEvent()
            sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1))
            sender.start()
            assert event.wait(PATIENCE_S)
            sender.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_a_stop_event_wakes_all_who_wait_and_stays_set() -> None:
    event = StopEvent()
    waiting = [InBackground(event.wait) for _ in range(3)]
    assert not event.wait(0.001)
    event.set()
    assert [each.finish() for each in waiting] == [True] * 3
    assert event.wait(0)
    with pytest.raises(TypeError, match="stays set"):
        event.clear()
