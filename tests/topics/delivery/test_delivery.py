"""Delivery inside an engine: when waiters are called, in which order, and what pressure changes about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.errors import LimitReached
from everlog.topics import Engine, NewRecord, TopicConfig
from everlog.topics.core import QUEUE_MAX
from everlog.topics.delivery.delivery import BUDGET_NS, LATENCY_BUCKETS, SERVICES_MAX
from everlog.topics.delivery.governor import COMMIT_MIN_NS, SAMPLE_NS, Rung
from everlog.topics.routing.definitions import RouterConfig
from tests.support.engines import open_engine
from tests.topics.delivery.scheduler_model import MS, Item

RAM = TopicConfig(durability="ephemeral")  # type: ignore[arg-type]


class DeliveryHarness:
    """An engine whose time stands still, and what was called."""

    def __init__(self, engine: Engine, clock: TestClock) -> None:
        self.engine = engine
        self.clock = clock
        self.busy_ns = 0
        self.called: list[str] = []
        engine.delivery.measure_busy(lambda: self.busy_ns)

    def watch(self, name: str, **config: object) -> None:
        """Note every change of a topic, which is made if need be."""
        if not self.engine.has_topic(name):
            self.engine.put_topic(name, TopicConfig(durability="ephemeral", **config))  # type: ignore[arg-type]
        self.engine.on_change(name, self._caller(name))

    def _caller(self, name: str) -> Callable[[], None]:
        def called() -> None:
            self.called.append(name)
            if self.engine.has_topic(name):
                self.engine.on_change(name, called)

        return called

    def append(self, *names: str) -> None:
        for name in names:
            self.engine.append(name, [NewRecord(b"1")])

    def poll(self) -> list[str]:
        """Take a turn; what was called in it."""
        self.called.clear()
        self.engine.write()
        self.engine.poll()
        return list(self.called)

    def press(self, samples: int = 20) -> None:
        """Let pressure rise to the top: a topic is ready and is not served, and the loop is busy."""
        stuck = Item("stuck", -1000)
        self.engine.delivery.mark(stuck, 0)
        for _ in range(samples):
            self.clock.advance_ns(SAMPLE_NS)
            self.busy_ns += SAMPLE_NS
            self.engine.delivery._sample(self.clock.monotonic_ns(), 10_000)
        self.engine.delivery.forget(stuck)

    def relax(self) -> None:
        """Let time pass until nothing is wrong any more."""
        for _ in range(100):
            self.clock.advance_ns(SAMPLE_NS)
            self.engine.poll()


@pytest.fixture
def harness() -> Iterator[DeliveryHarness]:
    clock = TestClock()
    with Engine.open(None, clock=clock) as engine:
        yield DeliveryHarness(engine, clock)


@pytest.fixture
def disk_harness(tmp_path: Path) -> Iterator[DeliveryHarness]:
    clock = TestClock()
    with open_engine(tmp_path, clock=clock) as engine:
        yield DeliveryHarness(engine, clock)


def test_a_commit_is_delivered_by_the_next_poll_and_not_inside_of_it(harness: DeliveryHarness) -> None:
    harness.watch("a")
    harness.append("a")
    assert harness.called == []
    assert harness.engine.due_ns() == harness.clock.monotonic_ns()
    assert harness.poll() == ["a"]
    assert harness.poll() == []


def test_a_burst_of_writes_is_one_call(harness: DeliveryHarness) -> None:
    harness.watch("a")
    harness.append("a", "a", "a")
    assert harness.poll() == ["a"]


def test_a_topic_without_waiters_is_not_marked(harness: DeliveryHarness) -> None:
    harness.watch("a")
    harness.engine.put_topic("b", RAM)
    harness.append("a", "b")
    assert harness.engine.delivery.scheduler.count == 1


def test_topics_are_served_by_priority_and_a_read_makes_them_more_important(harness: DeliveryHarness) -> None:
    for name, priority in (("low", -1), ("normal", 0), ("high", 900)):
        harness.watch(name, priority=priority)
    harness.append("low", "normal", "high")
    assert harness.poll() == ["high", "normal", "low"]
    harness.watch("read")
    harness.append("low", "read", "normal", "high")
    harness.engine.diff("read")
    assert harness.poll() == ["high", "read", "normal", "low"], "it was read while it waited"
    harness.append("low", "normal", "high")
    harness.engine.put_topic("normal", TopicConfig(durability="ephemeral", priority=1000))  # type: ignore[arg-type]
    assert harness.poll() == ["normal", "high", "low"], "its priority was changed while it waited"


def test_a_topic_that_is_deleted_wakes_at_once_and_is_not_served_any_more(harness: DeliveryHarness) -> None:
    harness.watch("a")
    harness.append("a")
    harness.engine.delete_topic("a")
    assert harness.called == ["a"]
    assert harness.engine.delivery.scheduler.count == 0
    assert harness.poll() == []


def test_a_turn_ends_with_its_time_and_the_next_one_goes_on(harness: DeliveryHarness) -> None:
    names = [f"t{number}" for number in range(10)]
    for name in names:
        harness.engine.put_topic(name, RAM)
        harness.engine.on_change(name, lambda: harness.clock.advance_ns(BUDGET_NS // 4))
    harness.append(*names)
    turns = 0
    while harness.engine.delivery.has_ready:
        assert harness.engine.due_ns() == harness.clock.monotonic_ns()
        harness.poll()
        turns += 1
    assert turns == 3
    assert harness.engine.delivery.counts().served == 10


def test_work_that_makes_news_by_being_served_does_not_keep_a_turn(harness: DeliveryHarness) -> None:
    calls: list[int] = []

    def again() -> None:
        calls.append(1)
        harness.engine.on_change("a", again)
        harness.append("a")

    harness.engine.put_topic("a", RAM)
    harness.engine.on_change("a", again)
    harness.append("a")
    harness.engine.poll()
    assert len(calls) == SERVICES_MAX


def test_no_other_topic_is_served_before_one_is_drained(harness: DeliveryHarness) -> None:
    for name in ("a", "b"):
        harness.watch(name)
    harness.append("a", "b")
    answers = iter([False, False, True, True])
    drained: list[list[str]] = []

    def drain(end_ns: int) -> bool:
        assert end_ns == harness.clock.monotonic_ns() + BUDGET_NS
        drained.append(list(harness.called))
        return next(answers)

    for expected in (["a"], ["a"], ["a", "b"]):
        harness.engine.poll(drain)
        assert harness.called == expected
        assert harness.engine.delivery.has_ready == (expected == ["a"])
    assert drained == [["a"], ["a"], ["a"], ["a", "b"]]


def test_one_that_fails_does_not_stop_the_others(harness: DeliveryHarness) -> None:
    harness.engine.put_topic("bad", RAM)
    harness.engine.on_change("bad", lambda: 1 // 0)  # type: ignore[arg-type]
    harness.watch("good")
    harness.append("bad", "good")
    with pytest.raises(ZeroDivisionError):
        harness.engine.poll()
    assert harness.called == ["good"]
    assert not harness.engine.delivery.is_serving


def test_a_drain_that_fails_is_tried_again(harness: DeliveryHarness) -> None:
    for name in ("a", "b"):
        harness.watch(name)
    harness.append("a", "b")
    outcomes = iter([ZeroDivisionError, True, True])

    def drain(_: int) -> bool:
        outcome = next(outcomes)
        if outcome is not True:
            raise ZeroDivisionError
        return True

    with pytest.raises(ZeroDivisionError):
        harness.engine.poll(drain)
    assert harness.called == ["a"] and harness.engine.delivery.has_ready
    harness.engine.poll(drain)
    assert harness.called == ["a", "b"] and not harness.engine.delivery.has_ready


def test_a_topic_that_is_being_served_may_take_a_turn(harness: DeliveryHarness) -> None:
    harness.engine.put_topic("a", RAM)
    harness.engine.on_change("a", harness.engine.poll)
    harness.watch("b")
    harness.append("a", "b")
    assert harness.poll() == ["b"]


def test_latency_is_counted_from_news_to_service(harness: DeliveryHarness) -> None:
    harness.watch("a")
    for waited_us in (0, 3, 1000, 10**9):
        harness.append("a")
        harness.clock.advance_ns(waited_us * 1000)
        harness.poll()
    counts = harness.engine.delivery.counts()
    assert (counts.served, counts.latency_us_total) == (4, 10**9 + 1003)
    buckets = dict(counts.cumulative_buckets())
    assert (buckets["1"], buckets["2"], buckets["4"], buckets["1024"], buckets["+Inf"]) == (1, 1, 2, 3, 4)
    assert len(buckets) == LATENCY_BUCKETS


# --- Under pressure --------------------------------------------------------------------------------------


def test_every_rung_is_taken_in_turn_and_left_again(harness: DeliveryHarness) -> None:
    taken: list[tuple[bool, ...]] = []
    governor = harness.engine.delivery.governor
    for _ in range(12):
        harness.press(1)
        taken.append(tuple(governor.engaged))
    order = [taken.index(next(seen for seen in taken if seen[rung])) for rung in Rung]
    assert order == sorted(order) and taken[-1] == (True,) * 4
    assert decisions(harness) == (True, True)
    harness.relax()
    assert not any(governor.engaged)
    assert harness.engine.delivery.counts().rungs_taken == (1, 1, 1, 1)
    assert decisions(harness) == (False, False)


def decisions(harness: DeliveryHarness) -> tuple[bool, bool]:
    """Whether writes may be refused, and whether anything is later than it could be."""
    return harness.engine.delivery.is_refusing, harness.engine.delivery.is_throttling


def test_under_pressure_a_topic_is_served_once_in_a_window(harness: DeliveryHarness) -> None:
    harness.watch("a")
    harness.press()
    served = []
    for now_ms in range(100):
        harness.append("a")
        if harness.poll():
            served.append(now_ms)
        harness.clock.advance_ns(MS)
        harness.busy_ns += MS
    gaps = [later - earlier for earlier, later in pairwise(served)]
    assert min(gaps) >= 15 and max(gaps) <= 21
    harness.relax()
    harness.append("a")
    assert harness.poll() == ["a"]
    harness.append("a")
    assert harness.poll() == ["a"], "without pressure there is no window"


def test_the_window_is_not_counted_as_latency(harness: DeliveryHarness) -> None:
    harness.watch("a")
    harness.press()
    harness.append("a")
    harness.poll()
    before = harness.engine.delivery.counts().latency_us_total
    harness.append("a")
    due_ns = harness.engine.due_ns()
    assert due_ns is not None and due_ns > harness.clock.monotonic_ns()
    harness.clock.advance_ns(due_ns - harness.clock.monotonic_ns())
    assert harness.poll() == ["a"]
    assert harness.engine.delivery.counts().latency_us_total == before


def test_negative_topics_are_paused_but_readable_and_come_back(harness: DeliveryHarness) -> None:
    harness.watch("low", priority=-5)
    harness.watch("normal")
    harness.press()
    harness.append("low", "normal")
    assert harness.poll() == ["normal"]
    assert harness.engine.paused_topics() == ["low"]
    assert harness.engine.diff("low").delivered == 1
    assert harness.engine.delivery.counts().paused == 1
    harness.called.clear()
    harness.relax()
    assert harness.called == ["low"]
    assert harness.engine.paused_topics() == []


def test_routers_give_way_only_under_pressure(harness: DeliveryHarness) -> None:
    delivery = harness.engine.delivery
    router = Item("router", 500)
    delivery.mark_router(router, 0)
    assert delivery.scheduler.depths[3] == 1
    harness.engine.poll()
    assert router.served == 1
    harness.press()
    delivery.mark_router(router, 0)
    assert delivery.scheduler.depths[2] == 1


def test_routers_copy_in_the_turn_of_their_source_and_their_readers_are_called_with_it(
    harness: DeliveryHarness,
) -> None:
    harness.watch("copies")
    harness.engine.put_topic("source", RAM)
    harness.engine.put_router("r", RouterConfig(source="source", dest="copies"))
    harness.append("source")
    assert harness.poll() == ["copies"]
    harness.press()
    harness.clock.advance_ns(NS_PER_S)
    harness.append("source")
    assert harness.poll() == ["copies"], "lowered, but not paused"
    assert harness.engine.diff("copies").delivered == 2


def test_syncs_are_further_apart_under_pressure(disk_harness: DeliveryHarness) -> None:
    window = disk_harness.engine._core.shards[0].wal.window
    assert window.floor_ns == COMMIT_MIN_NS
    disk_harness.press()
    disk_harness.poll()
    assert window.floor_ns == disk_harness.engine.delivery.commit_floor_ns > 9 * MS
    assert disk_harness.engine.delivery.sync_wait_ns(NS_PER_S) > 8 * MS
    assert disk_harness.engine.delivery.sync_wait_ns(MS) == MS
    disk_harness.relax()
    assert window.floor_ns == COMMIT_MIN_NS
    assert disk_harness.engine.delivery.sync_wait_ns(NS_PER_S) == 0


def test_a_lone_write_is_committed_at_once_under_pressure_too(disk_harness: DeliveryHarness) -> None:
    """One append at a time, each waiting for its sync: time stands still, so none of them waits for it."""
    engine = disk_harness.engine
    engine.put_topic("t", TopicConfig(durability="fsync"))  # type: ignore[arg-type]
    engine.wait_for(engine.append("t", [NewRecord(b"0")]).commit)
    disk_harness.press()
    disk_harness.poll()
    started_ns = disk_harness.clock.monotonic_ns()
    for _ in range(20):
        engine.wait_for(engine.append("t", [NewRecord(b"1")]).commit)
    assert engine.delivery.commit_floor_ns > 9 * MS and disk_harness.clock.monotonic_ns() == started_ns
    # Two at once share their sync, and that one keeps its distance from the last.
    pair = [engine.append("t", [NewRecord(b"2")]).commit for _ in range(2)]
    disk_harness.poll()
    assert not any(commit.done for commit in pair)
    assert not engine.holds_sync, "nor does it start sooner without other writers"
    for _ in range(2):
        disk_harness.clock.advance_ns(10 * MS)
        disk_harness.poll()
    assert all(commit.done for commit in pair)


def fill_queue(engine: Engine, depth: int) -> None:
    """Append until so many writes wait."""
    while engine.counts().queue_depth < depth:
        engine.append("t", [NewRecord(b"1")])


def test_a_write_is_refused_only_under_pressure_and_with_a_queue_that_is_nearly_full(
    disk_harness: DeliveryHarness,
) -> None:
    engine = disk_harness.engine
    engine.wait_for(engine.append("t", [NewRecord(b"0")]).commit)
    fill_queue(engine, QUEUE_MAX * 3 // 4)
    engine.append("t", [NewRecord(b"1")], idempotency_key="known")
    head_seq = engine._core.topics["t"].log.next_seq - 1
    disk_harness.press()
    with pytest.raises(LimitReached) as refusal:
        engine.append("t", [NewRecord(b"2")])
    assert 100 <= refusal.value.retry_after_ms <= 1000
    assert engine.append("t", [NewRecord(b"1")], idempotency_key="known").deduped
    kept = engine.append("t", [NewRecord(b"2")], disable_backpressure=True)
    assert kept.first_seq == head_seq + 1, "what was refused has used no seq"
    assert engine.append("ram", [NewRecord(b"2")], config=RAM).first_seq == 1, (
        "it needs no place in the queue"
    )
    assert engine.delivery.counts().refused == 1
    engine.wait_for(kept.commit)
    assert engine.append("t", [NewRecord(b"3")]).first_seq == kept.last_seq + 1, "the queue is empty again"


def test_a_full_queue_refuses_without_pressure_too_and_nothing_gets_around_that(
    disk_harness: DeliveryHarness,
) -> None:
    engine = disk_harness.engine
    engine.wait_for(engine.append("t", [NewRecord(b"0")]).commit)
    fill_queue(engine, QUEUE_MAX)
    with pytest.raises(LimitReached) as refusal:
        engine.append("t", [NewRecord(b"2")], disable_backpressure=True)
    assert (refusal.value.limit, refusal.value.retry_after_ms) == ("wal_queue", 0)


def test_a_calm_engine_needs_no_timer(harness: DeliveryHarness) -> None:
    harness.watch("a")
    harness.append("a")
    harness.poll()
    harness.relax()
    assert harness.engine.due_ns() is None
