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
from tests.topics.delivery.scheduler_model import MS, Chore, SchedulerModel, band_by_table

OF_BAND = (-1, 0, 250, 500, 750)
PRIORITIES = st.one_of(
    st.sampled_from([-1000, -500, -1, 0, 249, 250, 499, 500, 749, 750, 1000]), st.integers(-1000, 1000)
)


class Stage:
    """A scheduler and a clock."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.reset()

    def reset(self) -> None:
        """Begin again with an empty set."""
        self.scheduler = Scheduler()

    def mark(self, *chores: Chore, window_ns: int = 0, is_lowered: bool = False) -> None:
        now_ns, now_ms = self.clock.monotonic_ns(), self.clock.wall_ns() // MS
        for chore in chores:
            self.scheduler.mark(chore, now_ns, now_ms, window_ns, is_lowered=is_lowered)

    def take(self) -> Chore | None:
        chore = self.scheduler.take()
        if chore is None:
            return None
        assert isinstance(chore, Chore)
        chore.served_ns = self.clock.monotonic_ns()
        return chore

    def take_all(self) -> list[Chore]:
        taken = []
        while (chore := self.take()) is not None:
            taken.append(chore)
        return taken

    def advance(self, duration_ns: int) -> None:
        self.clock.advance_ns(duration_ns)
        now_ns, now_ms = self.clock.monotonic_ns(), self.clock.wall_ns() // MS
        self.scheduler.release(now_ns, now_ms)
        self.scheduler.age(now_ns, now_ms)


def chores(count: int, priority: int = 0, name: str = "c") -> list[Chore]:
    """So many pieces of work of one priority."""
    return [Chore(f"{name}{number}", priority) for number in range(count)]


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
    stage = Stage()
    for band, priority in enumerate(OF_BAND):
        stage.mark(*chores(200, priority, f"b{band}-"))
    rounds = 10
    taken = Counter(band_of(stage.take().priority) for _ in range(rounds * sum(WEIGHTS)))  # type: ignore[union-attr]
    assert taken == {band: rounds * weight for band, weight in enumerate(WEIGHTS)}


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_everything_is_served_once_and_first_come_first_served_inside_a_band(bands: list[int]) -> None:
    stage = Stage()
    work = [Chore(str(number), OF_BAND[band]) for number, band in enumerate(bands)]
    stage.mark(*work)
    taken = stage.take_all()
    assert len(taken) == len(set(taken)) == len(work)
    for priority in OF_BAND:
        in_band = [int(chore.name) for chore in taken if chore.priority == priority]
        assert in_band == sorted(in_band)
    assert stage.scheduler.count == stage.scheduler.ready == 0


def test_work_that_is_waiting_is_not_put_in_twice() -> None:
    stage = Stage()
    (chore,) = chores(1)
    stage.mark(chore, chore)
    stage.mark(chore)
    assert stage.scheduler.count == 1
    assert stage.take_all() == [chore]
    stage.mark(chore)
    assert stage.take_all() == [chore]


def test_the_lowest_band_is_served_in_every_round_under_sustained_load_of_the_top_band() -> None:
    stage = Stage()
    top = chores(50, 1000, "top")
    low = Chore("low", -1000)
    stage.mark(*top, low)
    served = 0
    while low.is_waiting:
        served += 1
        chore = stage.take()
        assert chore is not None
        stage.mark(*[chore] if chore is not low else [])
    assert served <= WEIGHTS[4] + 1


def test_no_topic_waits_more_than_ten_seconds_for_the_top_band() -> None:
    """One service each 100 ms, and all of them are asked for by the top bands: the worst that can be."""
    stage = Stage()
    busy = chores(40, 1000, "top") + chores(40, 500, "high") + chores(40, 250, "middle")
    low = Chore("low", 0)
    stage.mark(*chores(40, 0, "others"), low)
    stage.mark(*busy)
    while 0 <= low.band < 4:
        chore = stage.take()
        assert chore is not None
        stage.mark(chore)
        stage.advance(100 * MS)
        assert stage.clock.monotonic_ns() <= 10 * NS_PER_S
    for _ in range(200):
        if not low.is_waiting:
            break
        chore = stage.take()
        assert chore is not None
        stage.mark(*[chore] if chore is not low else [])
        stage.advance(MS)
    assert not low.is_waiting, "in the top band it is the oldest, and that band is served in every round"


def test_a_topic_that_is_written_to_all_the_time_ages_all_the_same() -> None:
    stage = Stage()
    (chore,) = chores(1)
    stage.mark(chore)
    for _ in range(80):
        stage.advance(100 * MS)
        stage.mark(chore)
    assert stage.scheduler.depths == [0, 0, 0, 0, 1]
    assert stage.take() is chore
    stage.mark(chore)
    assert stage.scheduler.depths == [0, 1, 0, 0, 0], "its age begins again when it was served"


def test_age_is_looked_at_every_50_ms() -> None:
    stage = Stage()
    (chore,) = chores(1, 249)
    stage.mark(chore)
    stage.advance(TICK_NS - 1)
    assert stage.scheduler.depths[1] == 1
    stage.advance(1)
    assert stage.scheduler.depths[2] == 1


def test_who_was_promoted_is_before_those_who_came_later() -> None:
    stage = Stage()
    old = Chore("old", 200)
    stage.mark(old)
    stage.advance(400 * MS)
    stage.mark(Chore("young", 250))
    stage.advance(100 * MS)
    assert stage.scheduler.depths[2] == 2
    assert [chore.name for chore in stage.take_all()] == ["old", "young"]


def test_a_place_that_was_left_by_a_promotion_is_nobodys_place() -> None:
    stage = Stage()
    promoted, other = Chore("promoted", 200), Chore("other", 200)
    stage.mark(promoted)
    stage.advance(500 * MS)
    assert stage.take() is promoted
    stage.mark(other, promoted)
    assert stage.take_all() == [other, promoted]


def test_many_that_get_older_at_once_are_moved_a_few_at_a_time() -> None:
    stage = Stage()
    stage.mark(*chores(3 * LOOKS_MAX, 200))
    calls = 0
    stage.advance(500 * MS)
    while stage.scheduler.depths[1]:
        stage.advance(0)
        calls += 1
        assert calls < 20
    assert calls >= 2
    assert stage.scheduler.depths[2] == 3 * LOOKS_MAX


def test_a_window_keeps_two_services_of_a_topic_apart() -> None:
    stage = Stage()
    (chore,) = chores(1)
    stage.advance(NS_PER_S)
    stage.mark(chore, window_ns=20 * MS)
    assert stage.take() is chore, "it was not served just before"
    stage.advance(5 * MS)
    stage.mark(chore, window_ns=20 * MS)
    assert stage.take() is None and stage.scheduler.held == 1
    assert stage.scheduler.next_release_ns() == NS_PER_S + 20 * MS
    stage.advance(14 * MS)
    assert stage.take() is None
    stage.advance(MS)
    assert stage.take() is chore
    assert stage.scheduler.next_release_ns() is None


def test_a_paused_band_gets_nothing_and_is_as_old_as_it_is_afterwards() -> None:
    stage = Stage()
    low, normal = Chore("low", -1), Chore("normal", 0)
    stage.mark(low)
    stage.scheduler.pause(True)
    stage.mark(normal)
    assert stage.take_all() == [normal]
    stage.advance(3 * NS_PER_S)
    assert stage.take() is None, "age does not end a pause"
    assert (stage.scheduler.paused, stage.scheduler.ready) == (1, 0)
    assert stage.scheduler.oldest_ns(stage.clock.monotonic_ns()) == 0
    stage.scheduler.pause(False)
    stage.advance(TICK_NS)
    assert stage.scheduler.depths == [0, 0, 1, 0, 0]
    assert stage.take() is low


def test_a_lowered_one_is_one_band_below_but_never_paused_for_that() -> None:
    stage = Stage()
    for band, priority in enumerate(OF_BAND):
        stage.mark(Chore(str(band), priority), is_lowered=True)
    assert stage.scheduler.depths == [1, 2, 1, 1, 0]


def test_a_new_priority_counts_at_once_also_for_what_is_waiting() -> None:
    stage = Stage()
    near, far = chores(2, -500)
    stage.mark(near, far)
    stage.advance(TICK_NS)
    near.priority, far.priority = -5, 800
    for chore in (near, far):
        stage.scheduler.reconsider(chore, stage.clock.monotonic_ns(), 0)
    assert stage.scheduler.depths == [0, 1, 0, 0, 1]
    stage.scheduler.forget(near)
    near.priority = -500
    stage.mark(near)
    stage.advance(TICK_NS)
    near.priority = -30
    stage.scheduler.reconsider(near, stage.clock.monotonic_ns(), 0)
    stage.advance(5 * TICK_NS)
    assert stage.scheduler.depths == [0, 1, 0, 0, 1], "the time of its next band is known anew"


def test_what_is_forgotten_is_not_served() -> None:
    stage = Stage()
    first, second, held = chores(3)
    stage.mark(first, second)
    held.served_ns = stage.clock.monotonic_ns()
    stage.mark(held, window_ns=MS)
    for chore in (first, held):
        stage.scheduler.forget(chore)
        stage.scheduler.forget(chore)
    assert stage.scheduler.next_release_ns() is None
    stage.advance(MS)
    assert stage.take_all() == [second]
    assert stage.scheduler.count == 0


def test_whoever_is_asked_for_a_priority_may_forget_and_mark_others() -> None:
    stage = Stage()
    victims = chores(6, 200)

    class Meddler(Chore):
        """Forgets all others, and then itself or not, when it is asked."""

        is_suicidal = False

        def priority_at(self, now_ms: int) -> int:
            for victim in victims:
                stage.scheduler.forget(victim)
            if self.is_suicidal:
                stage.scheduler.forget(self)
            return self.priority

    for is_suicidal in (False, True):
        meddler = Meddler("meddler", 200)
        stage.mark(*victims[:3])
        stage.mark(meddler)
        stage.mark(*victims)
        meddler.is_suicidal = is_suicidal
        stage.advance(500 * MS)
        assert stage.take_all() == ([] if is_suicidal else [meddler])
        assert stage.scheduler.count == 0 and stage.scheduler.depths == [0] * BANDS


@pytest.mark.parametrize("ends", [lambda stage: stage.scheduler.drain(), lambda stage: stage.reset()])
def test_what_waits_is_kept_alive_and_let_go_with_the_set(ends: Callable[[Stage], None]) -> None:
    stage = Stage()
    work = [*chores(3, 200), *chores(3, 800)]
    stage.mark(*work[:2])
    stage.advance(600 * MS)
    stage.mark(*work[2:5])
    stage.mark(work[5], window_ns=2 * 10**12)
    alive = [weakref.ref(chore) for chore in work]
    del work
    gc.collect()
    assert all(chore() is not None for chore in alive)
    ends(stage)
    assert not any(chore() is not None for chore in alive)


class SchedulerMachine(RuleBasedStateMachine):
    """Everything that can happen to the scheduler, beside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.model = SchedulerModel()
        self.chores = chores(12)

    @property
    def now_ns(self) -> int:
        return self.stage.clock.monotonic_ns()

    @rule(
        number=st.integers(0, 11),
        priority=PRIORITIES,
        window_ms=st.sampled_from([0, 0, 20, 70]),
        lowered=st.booleans(),
    )
    def mark(self, number: int, priority: int, window_ms: int, lowered: bool) -> None:
        chore = self.chores[number]
        if not chore.is_waiting:
            chore.priority = priority
        self.model.mark(chore, self.now_ns, window_ms * MS, lowered)
        self.stage.mark(chore, window_ns=window_ms * MS, is_lowered=lowered)

    @rule(times=st.integers(1, 6))
    def take(self, times: int) -> None:
        for _ in range(times):
            expected = self.model.take()
            assert self.stage.take() is expected

    @rule(ticks=st.one_of(st.integers(1, 3), st.integers(1, 300), st.integers(300, 2000)))
    def advance(self, ticks: int) -> None:
        self.stage.advance(ticks * TICK_NS)
        self.model.pass_time(self.now_ns)

    @rule(number=st.integers(0, 11), priority=PRIORITIES)
    def reconsider(self, number: int, priority: int) -> None:
        chore = self.chores[number]
        chore.priority = priority
        self.model.reconsider(chore, self.now_ns)
        self.stage.scheduler.reconsider(chore, self.now_ns, 0)

    @rule(number=st.integers(0, 11))
    def forget(self, number: int) -> None:
        self.model.waits.pop(self.chores[number].name, None)
        self.stage.scheduler.forget(self.chores[number])

    @rule(is_paused=st.booleans())
    def pause(self, is_paused: bool) -> None:
        self.model.is_paused = is_paused
        self.stage.scheduler.pause(is_paused)

    @invariant()
    def the_same_wait_in_the_same_bands(self) -> None:
        scheduler = self.stage.scheduler
        assert scheduler.depths == self.model.depths()
        assert scheduler.count == len(self.model.waits)
        for band in range(BANDS):
            assert set(scheduler.waiting(band)) == {
                wait.chore for wait in self.model.waits.values() if wait.band == band
            }


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
