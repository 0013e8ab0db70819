"""Where syncs run and when: the order of jobs, what their `done` is told, the window of a group commit."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.clock import NS_PER_S
from everlog.errors import Closed
from everlog.fault_fs import PowerLoss
from everlog.topics.storage.syncs import (
    LANE_JOBS_MAX,
    WINDOW_MAX_NS,
    WINDOW_MIN_NS,
    CommitWindow,
    InlineSyncs,
    SyncRunner,
    ThreadSyncs,
)

LONG_NS = 60 * NS_PER_S
LANES = 3

runners = pytest.mark.parametrize(
    "make", [InlineSyncs, lambda: ThreadSyncs(LANES)], ids=["inline", "threads"]
)


def poll_until(syncs: SyncRunner, expected: int) -> None:
    """Poll until so many were told."""
    told = 0
    while told < expected:
        syncs.wait(LONG_NS)
        told += syncs.poll()
    assert told == expected


def raising(error: BaseException) -> Callable[[], None]:
    def job() -> None:
        raise error

    return job


@runners
@given(lanes=st.lists(st.integers(0, LANES - 1), max_size=30))
def test_jobs_of_one_lane_run_and_are_told_in_order(make: Callable[[], SyncRunner], lanes: list[int]) -> None:
    syncs = make()
    ran: list[list[int]] = [[] for _ in range(LANES)]
    told: list[list[int]] = [[] for _ in range(LANES)]
    for number, lane in enumerate(lanes):
        syncs.start(
            lane,
            lambda lane=lane, number=number: ran[lane].append(number),  # type: ignore[misc]
            lambda error, lane=lane, number=number: told[lane].append(number),  # type: ignore[misc]
        )
    poll_until(syncs, len(lanes))
    syncs.close()
    expected = [[number for number, lane in enumerate(lanes) if lane == mine] for mine in range(LANES)]
    assert ran == told == expected


@runners
def test_done_is_called_by_poll_on_the_owners_thread_only(make: Callable[[], SyncRunner]) -> None:
    syncs = make()
    told: list[threading.Thread] = []
    syncs.start(0, lambda: None, lambda error: told.append(threading.current_thread()))
    syncs.drain(0)
    assert told == []
    poll_until(syncs, 1)
    assert told == [threading.current_thread()]
    syncs.close()


@runners
def test_what_a_job_raises_is_told_and_the_lane_goes_on(make: Callable[[], SyncRunner]) -> None:
    syncs = make()
    told: list[BaseException | None] = []
    error = OSError(5, "gone")
    syncs.start(0, raising(error), told.append)
    syncs.start(0, lambda: None, told.append)
    poll_until(syncs, 2)
    assert told == [error, None]
    syncs.close()


@runners
def test_drain_runs_the_lane_and_leaves_the_telling_to_poll(make: Callable[[], SyncRunner]) -> None:
    syncs = make()
    ran: list[int] = []
    told: list[int] = []
    for number in range(5):
        syncs.start(1, lambda number=number: ran.append(number), lambda error, n=number: told.append(n))  # type: ignore[misc]
    syncs.drain(1)
    assert ran == list(range(5))
    assert told == []
    assert syncs.poll() == 5
    assert told == ran
    syncs.close()


@runners
def test_a_done_may_start_drain_and_poll(make: Callable[[], SyncRunner]) -> None:
    syncs = make()
    told: list[str] = []

    def first(error: BaseException | None) -> None:
        told.append("first")
        syncs.start(0, lambda: None, lambda error: told.append("third"))
        syncs.drain(0)
        syncs.poll()

    syncs.start(0, lambda: None, first)
    syncs.start(0, lambda: None, lambda error: told.append("second"))
    while len(told) < 3:
        syncs.wait(LONG_NS)
        syncs.poll()
    assert told == ["first", "second", "third"]
    syncs.close()


@runners
def test_closing_runs_what_was_started_and_refuses_more(make: Callable[[], SyncRunner]) -> None:
    syncs = make()
    ran: list[int] = []
    told: list[BaseException | None] = []
    syncs.start(0, lambda: ran.append(1), told.append)
    syncs.close()
    syncs.close()
    assert ran == [1]
    assert syncs.poll() == 1
    assert told == [None]
    with pytest.raises(Closed):
        syncs.start(0, lambda: None, told.append)


def test_inline_jobs_run_only_when_polled_or_drained() -> None:
    syncs = InlineSyncs()
    ran: list[int] = []
    syncs.start(0, lambda: ran.append(0), lambda error: None)
    syncs.start(1, lambda: ran.append(1), lambda error: None)
    syncs.wait(LONG_NS)
    assert ran == []
    syncs.drain(1)
    assert ran == [1]
    assert syncs.poll() == 2
    assert ran == [1, 0]


def test_a_poll_does_not_run_jobs_that_its_own_calls_start() -> None:
    syncs = InlineSyncs()

    def again(error: BaseException | None) -> None:
        syncs.start(0, lambda: None, again)

    syncs.start(0, lambda: None, again)
    assert [syncs.poll() for _ in range(3)] == [1, 1, 1]


def test_a_power_loss_in_an_inline_job_stops_the_owner() -> None:
    syncs = InlineSyncs()
    syncs.start(0, raising(PowerLoss("now")), lambda error: None)
    with pytest.raises(PowerLoss):
        syncs.poll()
    syncs.start(0, raising(PowerLoss("again")), lambda error: None)
    with pytest.raises(PowerLoss):
        syncs.drain(0)


def test_a_power_loss_in_a_thread_is_handed_to_the_owner() -> None:
    syncs = ThreadSyncs(1)
    told: list[BaseException | None] = []
    loss = PowerLoss("now")
    syncs.start(0, raising(loss), told.append)
    poll_until(syncs, 1)
    assert told == [loss]
    syncs.close()


def test_lanes_do_not_wait_for_each_other() -> None:
    syncs = ThreadSyncs(2)
    release = threading.Event()
    told: list[str] = []
    syncs.start(0, lambda: assert_set(release), lambda error: told.append("slow"))
    syncs.start(1, lambda: None, lambda error: told.append("fast"))
    poll_until(syncs, 1)
    assert told == ["fast"]
    release.set()
    poll_until(syncs, 1)
    assert told == ["fast", "slow"]
    syncs.close()


def assert_set(event: threading.Event) -> None:
    """Wait for an event that must come."""
    assert event.wait(60)


def test_a_job_never_overlaps_the_one_before_it() -> None:
    syncs = ThreadSyncs(1)
    inside = threading.Lock()
    overlaps: list[bool] = []

    def job() -> None:
        overlaps.append(not inside.acquire(blocking=False))
        inside.release()

    for _ in range(50):
        syncs.start(0, job, lambda error: None)
    poll_until(syncs, 50)
    assert overlaps == [False] * 50
    syncs.close()


def test_a_full_lane_makes_the_owner_wait() -> None:
    syncs = ThreadSyncs(1)
    release = threading.Event()
    syncs.start(0, lambda: assert_set(release), lambda error: None)
    for _ in range(LANE_JOBS_MAX - 1):
        syncs.start(0, lambda: None, lambda error: None)
    entered = threading.Event()
    started = threading.Event()

    def start_one_more() -> None:
        entered.set()
        syncs.start(0, lambda: None, lambda error: None)
        started.set()

    thread = threading.Thread(target=start_one_more)
    thread.start()
    assert_set(entered)
    assert not started.wait(0.1)
    release.set()
    thread.join()
    poll_until(syncs, LANE_JOBS_MAX + 1)
    syncs.close()


def test_the_owner_is_woken_after_a_job_even_if_the_waking_fails() -> None:
    woken = threading.Semaphore(0)

    def wake() -> None:
        woken.release()
        raise RuntimeError("the loop is closed")

    syncs = ThreadSyncs(1, wake)
    for _ in range(2):
        syncs.start(0, lambda: None, lambda error: None)
        assert woken.acquire(timeout=60)
        assert syncs.poll() == 1
    syncs.close()


def test_waiting_ends_with_the_timeout_if_nothing_happens() -> None:
    syncs = ThreadSyncs(1)
    syncs.wait(1_000)
    assert syncs.poll() == 0
    syncs.close()


# --- The window of a group commit ------------------------------------------------------------------------


def test_a_lone_write_is_synced_at_once_however_often_it_comes() -> None:
    window = CommitWindow()
    now_ns = 0
    for _ in range(20):
        assert window.next_start_ns(now_ns, 1) == now_ns
        window.started(now_ns, 1)
        now_ns += 60_000
        window.finished(now_ns)
    assert window.window_ns == WINDOW_MIN_NS


def test_writers_that_arrive_during_a_sync_share_the_next_one() -> None:
    window = CommitWindow()
    window.started(0, 1)
    window.finished(100_000)
    assert window.next_start_ns(100_000, 5) == WINDOW_MIN_NS
    window.started(WINDOW_MIN_NS, 5)
    window.finished(WINDOW_MIN_NS + 100_000)
    # One is left over of a busy moment; the others are about to come back.
    assert window.next_start_ns(WINDOW_MIN_NS + 100_000, 1) == 2 * WINDOW_MIN_NS


def test_expensive_syncs_under_load_widen_the_window_and_quiet_narrows_it() -> None:
    window = CommitWindow()
    now_ns = 0
    seen = []
    for _ in range(8):
        now_ns = window.next_start_ns(now_ns, 20)
        window.started(now_ns, 20)
        now_ns += 9_000_000
        window.finished(now_ns)
        seen.append(window.window_ns)
    assert seen == [min(WINDOW_MIN_NS << step, WINDOW_MAX_NS) for step in range(8)]
    for _ in range(6):
        now_ns += NS_PER_S
        assert window.next_start_ns(now_ns, 1) == now_ns
        window.started(now_ns, 1)
        window.finished(now_ns + 100_000)
    assert window.window_ns == WINDOW_MIN_NS


def test_cheap_syncs_under_load_keep_the_window_short() -> None:
    window = CommitWindow()
    now_ns = 0
    for cost_ns in (50_000, 9_000_000, 50_000):
        for _ in range(20):
            now_ns = window.next_start_ns(now_ns, 20)
            window.started(now_ns, 20)
            now_ns += cost_ns
            window.finished(now_ns)
        assert (window.window_ns > WINDOW_MIN_NS) == (cost_ns > WINDOW_MIN_NS)


def test_a_raised_floor_keeps_shared_syncs_apart_but_not_those_of_a_lone_writer() -> None:
    window = CommitWindow()
    window.floor_ns = 4_000_000
    window.started(0, 1)
    window.finished(50_000)
    assert window.next_start_ns(50_000, 1) == 50_000
    assert window.next_start_ns(50_000, 2) == 4_000_000
    window.floor_ns = 10 * WINDOW_MAX_NS
    assert window.floor_ns == WINDOW_MAX_NS
    window.floor_ns = 0
    assert window.floor_ns == WINDOW_MIN_NS


steps = st.lists(
    st.tuples(
        st.integers(0, 50_000_000),  # until the first waiter comes
        st.integers(0, 50),  # how many wait
        st.integers(0, 30_000_000),  # what the sync costs
        st.sampled_from([0, 0, 0, 1_000_000, 8_000_000, 20_000_000]),  # the floor
    ),
    max_size=40,
)


@given(steps=steps)
def test_no_waiter_waits_longer_than_the_window_for_an_idle_disk(
    steps: list[tuple[int, int, int, int]],
) -> None:
    window = CommitWindow()
    now_ns = 0
    for pause_ns, waiting, cost_ns, floor_ns in steps:
        window.floor_ns = floor_ns
        now_ns += pause_ns
        start_ns = window.next_start_ns(now_ns, waiting)
        assert now_ns <= start_ns <= now_ns + window.window_ns
        assert WINDOW_MIN_NS <= window.floor_ns <= window.window_ns <= WINDOW_MAX_NS
        if pause_ns > WINDOW_MAX_NS:
            assert start_ns == now_ns, "a write after a pause does not wait"
        window.started(start_ns, waiting)
        now_ns = start_ns + cost_ns
        window.finished(now_ns)
