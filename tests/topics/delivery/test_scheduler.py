"""Who is served next: shares by weight, age, first come first served, windows and pauses."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from everlog.clock import NS_PER_S, TestClock
from everlog.topics.delivery.scheduler import (
    BANDS,
    LOOKS_MAX,
    TICK_NS,
    WEIGHTS,
    Scheduler,
    age_boost,
    band_of,
)
from tests.support.effort import effort
from tests.topics.delivery.scheduler_model import MS, Item, SchedulerModel, band_by_table

OF_BAND = (-1, 0, 250, 500, 750)
PRIORITIES = st.one_of(
    st.sampled_from([-1000, -500, -1, 0, 249, 250, 499, 500, 749, 750, 1000]), st.integers(-1000, 1000)
)


class SchedulerHarness:
    """A scheduler and a clock."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.reset()

    def reset(self) -> None:
        """Begin again with an empty set."""
        self.scheduler = Scheduler()

    def mark(self, *items: Item, window_ns: int = 0, is_lowered: bool = False) -> None:
        now_ns, now_ms = self.clock.monotonic_ns(), self.clock.wall_ns() // MS
        for item in items:
            self.scheduler.mark(item, now_ns, now_ms, window_ns, is_lowered=is_lowered)

    def take(self) -> Item | None:
        item = self.scheduler.take()
        if item is None:
            return None
        assert isinstance(item, Item)
        item.served_ns = self.clock.monotonic_ns()
        return item

    def take_all(self) -> list[Item]:
        taken = []
        while (item := self.take()) is not None:
            taken.append(item)
        return taken

    def advance(self, duration_ns: int) -> None:
        self.clock.advance_ns(duration_ns)
        now_ns, now_ms = self.clock.monotonic_ns(), self.clock.wall_ns() // MS
        self.scheduler.release(now_ns, now_ms)
        self.scheduler.age(now_ns, now_ms)


def items(count: int, priority: int = 0, name: str = "c") -> list[Item]:
    """So many pieces of work of one priority."""
    return [Item(f"{name}{number}", priority) for number in range(count)]


@given(PRIORITIES)
def test_bands_are_those_of_the_table(priority: int) -> None:
    assert band_of(priority) == band_by_table(priority)


@pytest.mark.parametrize(
    ("waited_ms", "boost"),
    [(-5, 0), (0, 0), (9, 0), (10, 1), (1000, 100), (9999, 999), (10_000, 1000), (60_000, 1000)],
)
def test_a_second_of_waiting_is_worth_100_up_to_1000(waited_ms: int, boost: int) -> None:
    assert age_boost(waited_ms * MS) == boost


def test_shares_are_the_weights_while_every_band_has_enough_to_do() -> None:
    harness = SchedulerHarness()
    for band, priority in enumerate(OF_BAND):
        harness.mark(*items(200, priority, f"b{band}-"))
    rounds = 10
    taken = Counter(band_of(harness.take().priority) for _ in range(rounds * sum(WEIGHTS)))  # type: ignore[union-attr]
    assert taken == {band: rounds * weight for band, weight in enumerate(WEIGHTS)}


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_everything_is_served_once_and_first_come_first_served_inside_a_band(bands: list[int]) -> None:
    harness = SchedulerHarness()
    work = [Item(str(number), OF_BAND[band]) for number, band in enumerate(bands)]
    harness.mark(*work)
    taken = harness.take_all()
    assert len(taken) == len(set(taken)) == len(work)
    for priority in OF_BAND:
        in_band = [int(item.name) for item in taken if item.priority == priority]
        assert in_band == sorted(in_band)
    assert harness.scheduler.count == harness.scheduler.ready == 0


def test_work_that_is_waiting_is_not_put_in_twice() -> None:
    harness = SchedulerHarness()
    (item,) = items(1)
    harness.mark(item, item)
    harness.mark(item)
    assert harness.scheduler.count == 1
    assert harness.take_all() == [item]
    harness.mark(item)
    assert harness.take_all() == [item]


def test_the_lowest_band_is_served_in_every_round_under_sustained_load_of_the_top_band() -> None:
    harness = SchedulerHarness()
    top = items(50, 1000, "top")
    low = Item("low", -1000)
    harness.mark(*top, low)
    served = 0
    while low.is_waiting:
        served += 1
        item = harness.take()
        assert item is not None
        harness.mark(*[item] if item is not low else [])
    assert served <= WEIGHTS[4] + 1


def test_no_topic_waits_more_than_ten_seconds_for_the_top_band() -> None:
    """One service each 100 ms, and all of them are asked for by the top bands: the worst that can be."""
    harness = SchedulerHarness()
    busy = items(40, 1000, "top") + items(40, 500, "high") + items(40, 250, "middle")
    low = Item("low", 0)
    harness.mark(*items(40, 0, "others"), low)
    harness.mark(*busy)
    while 0 <= low.band < 4:
        item = harness.take()
        assert item is not None
        harness.mark(item)
        harness.advance(100 * MS)
        assert harness.clock.monotonic_ns() <= 10 * NS_PER_S
    for _ in range(200):
        if not low.is_waiting:
            break
        item = harness.take()
        assert item is not None
        harness.mark(*[item] if item is not low else [])
        harness.advance(MS)
    assert not low.is_waiting, "in the top band it is the oldest, and that band is served in every round"


def test_a_topic_that_is_written_to_all_the_time_ages_all_the_same() -> None:
    harness = SchedulerHarness()
    (item,) = items(1)
    harness.mark(item)
    for _ in range(80):
        harness.advance(100 * MS)
        harness.mark(item)
    assert harness.scheduler.depths == [0, 0, 0, 0, 1]
    assert harness.take() is item
    harness.mark(item)
    assert harness.scheduler.depths == [0, 1, 0, 0, 0], "its age begins again when it was served"


def test_age_is_looked_at_every_50_ms() -> None:
    harness = SchedulerHarness()
    (item,) = items(1, 249)
    harness.mark(item)
    harness.advance(TICK_NS - 1)
    assert harness.scheduler.depths[1] == 1
    harness.advance(1)
    assert harness.scheduler.depths[2] == 1


def test_who_was_promoted_is_before_those_who_came_later() -> None:
    harness = SchedulerHarness()
    old = Item("old", 200)
    harness.mark(old)
    harness.advance(400 * MS)
    harness.mark(Item("young", 250))
    harness.advance(100 * MS)
    assert harness.scheduler.depths[2] == 2
    assert [item.name for item in harness.take_all()] == ["old", "young"]


def test_a_slot_that_was_left_by_a_promotion_is_skipped() -> None:
    harness = SchedulerHarness()
    promoted, other = Item("promoted", 200), Item("other", 200)
    harness.mark(promoted)
    harness.advance(500 * MS)
    assert harness.take() is promoted
    harness.mark(other, promoted)
    assert harness.take_all() == [other, promoted]


def test_many_that_get_older_at_once_are_moved_a_few_at_a_time() -> None:
    harness = SchedulerHarness()
    harness.mark(*items(3 * LOOKS_MAX, 200))
    calls = 0
    harness.advance(500 * MS)
    while harness.scheduler.depths[1]:
        harness.advance(0)
        calls += 1
        assert calls < 20
    assert calls >= 2
    assert harness.scheduler.depths[2] == 3 * LOOKS_MAX


def test_a_window_keeps_two_services_of_a_topic_apart() -> None:
    harness = SchedulerHarness()
    (item,) = items(1)
    harness.advance(NS_PER_S)
    harness.mark(item, window_ns=20 * MS)
    assert harness.take() is item, "it was not served just before"
    harness.advance(5 * MS)
    harness.mark(item, window_ns=20 * MS)
    assert harness.take() is None and harness.scheduler.held == 1
    assert harness.scheduler.next_release_ns() == NS_PER_S + 20 * MS
    harness.advance(14 * MS)
    assert harness.take() is None
    harness.advance(MS)
    assert harness.take() is item
    assert harness.scheduler.next_release_ns() is None


def test_a_paused_band_gets_nothing_and_is_as_old_as_it_is_afterwards() -> None:
    harness = SchedulerHarness()
    low, normal = Item("low", -1), Item("normal", 0)
    harness.mark(low)
    harness.scheduler.pause(True)
    harness.mark(normal)
    assert harness.take_all() == [normal]
    harness.advance(3 * NS_PER_S)
    assert harness.take() is None, "age does not end a pause"
    assert (harness.scheduler.paused, harness.scheduler.ready) == (1, 0)
    assert harness.scheduler.oldest_ns(harness.clock.monotonic_ns()) == 0
    harness.scheduler.pause(False)
    harness.advance(TICK_NS)
    assert harness.scheduler.depths == [0, 0, 1, 0, 0]
    assert harness.take() is low


def test_a_lowered_one_is_one_band_below_but_never_paused_for_that() -> None:
    harness = SchedulerHarness()
    for band, priority in enumerate(OF_BAND):
        harness.mark(Item(str(band), priority), is_lowered=True)
    assert harness.scheduler.depths == [1, 2, 1, 1, 0]


def test_a_new_priority_counts_at_once_also_for_what_is_waiting() -> None:
    harness = SchedulerHarness()
    near, far = items(2, -500)
    harness.mark(near, far)
    harness.advance(TICK_NS)
    near.priority, far.priority = -5, 800
    for item in (near, far):
        harness.scheduler.reconsider(item, harness.clock.monotonic_ns(), 0)
    assert harness.scheduler.depths == [0, 1, 0, 0, 1]
    harness.scheduler.forget(near)
    near.priority = -500
    harness.mark(near)
    harness.advance(TICK_NS)
    near.priority = -30
    harness.scheduler.reconsider(near, harness.clock.monotonic_ns(), 0)
    harness.advance(5 * TICK_NS)
    assert harness.scheduler.depths == [0, 1, 0, 0, 1], "the time of its next band is known anew"


def test_what_is_forgotten_is_not_served() -> None:
    harness = SchedulerHarness()
    first, second, held = items(3)
    harness.mark(first, second)
    held.served_ns = harness.clock.monotonic_ns()
    harness.mark(held, window_ns=MS)
    for item in (first, held):
        harness.scheduler.forget(item)
        harness.scheduler.forget(item)
    assert harness.scheduler.next_release_ns() is None
    harness.advance(MS)
    assert harness.take_all() == [second]
    assert harness.scheduler.count == 0


def test_an_item_that_is_asked_for_its_priority_may_forget_and_mark_others() -> None:
    harness = SchedulerHarness()
    victims = items(6, 200)

    class Meddler(Item):
        """Forgets all others, and then itself or not, when it is asked."""

        is_suicidal = False

        def priority_at(self, now_ms: int) -> int:
            for victim in victims:
                harness.scheduler.forget(victim)
            if self.is_suicidal:
                harness.scheduler.forget(self)
            return self.priority

    for is_suicidal in (False, True):
        meddler = Meddler("meddler", 200)
        harness.mark(*victims[:3])
        harness.mark(meddler)
        harness.mark(*victims)
        meddler.is_suicidal = is_suicidal
        harness.advance(500 * MS)
        assert harness.take_all() == ([] if is_suicidal else [meddler])
        assert harness.scheduler.count == 0 and harness.scheduler.depths == [0] * BANDS


@pytest.mark.parametrize("ends", [lambda harness: harness.scheduler.drain(), lambda harness: harness.reset()])
def test_what_waits_is_kept_alive_and_let_go_with_the_set(ends: Callable[[SchedulerHarness], None]) -> None:
    harness = SchedulerHarness()
    work = [*items(3, 200), *items(3, 800)]
    harness.mark(*work[:2])
    harness.advance(600 * MS)
    harness.mark(*work[2:5])
    harness.mark(work[5], window_ns=2 * 10**12)
    alive = [weakref.ref(item) for item in work]
    del work
    gc.collect()
    assert all(item() is not None for item in alive)
    ends(harness)
    assert not any(item() is not None for item in alive)


class SchedulerMachine(RuleBasedStateMachine):
    """Everything that can happen to the scheduler, beside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = SchedulerHarness()
        self.model = SchedulerModel()
        self.items = items(12)

    @property
    def now_ns(self) -> int:
        return self.harness.clock.monotonic_ns()

    @rule(
        number=st.integers(0, 11),
        priority=PRIORITIES,
        window_ms=st.sampled_from([0, 0, 20, 70]),
        lowered=st.booleans(),
    )
    def mark(self, number: int, priority: int, window_ms: int, lowered: bool) -> None:
        item = self.items[number]
        if not item.is_waiting:
            item.priority = priority
        self.model.mark(item, self.now_ns, window_ms * MS, lowered)
        self.harness.mark(item, window_ns=window_ms * MS, is_lowered=lowered)

    @rule(times=st.integers(1, 6))
    def take(self, times: int) -> None:
        for _ in range(times):
            expected = self.model.take()
            assert self.harness.take() is expected

    @rule(ticks=st.one_of(st.integers(1, 3), st.integers(1, 300), st.integers(300, 2000)))
    def advance(self, ticks: int) -> None:
        self.harness.advance(ticks * TICK_NS)
        self.model.pass_time(self.now_ns)

    @rule(number=st.integers(0, 11), priority=PRIORITIES)
    def reconsider(self, number: int, priority: int) -> None:
        item = self.items[number]
        item.priority = priority
        self.model.reconsider(item, self.now_ns)
        self.harness.scheduler.reconsider(item, self.now_ns, 0)

    @rule(number=st.integers(0, 11))
    def forget(self, number: int) -> None:
        self.model.waits.pop(self.items[number].name, None)
        self.harness.scheduler.forget(self.items[number])

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:
        self.model.is_paused = is_paused
        self.harness.scheduler.pause(is_paused)

    @invariant()
    def the_same_wait_in_the_same_bands(self) -> None:
        scheduler = self.harness.scheduler
        assert scheduler.depths == self.model.depths()
        assert scheduler.count == len(self.model.waits)
        for band in range(BANDS):
            assert set(scheduler.waiting(band)) == {
                wait.item for wait in self.model.waits.values() if wait.band == band
            }


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=effort(60), stateful_step_count=40, deadline=None)
