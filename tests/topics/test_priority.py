"""Effective priority: the decay table, the operator's number, and what counts as consuming."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.topics.delivery.scheduler import TopicSchedule, recency
from tests.support.engines import EngineHarness
from tests.topics.delivery.scheduler_model import effective_priority


def ranked(priority: int | None, is_auto: bool, read_ms: int | None) -> TopicSchedule:
    """The schedule of a topic with this configuration that was consumed then."""
    topic = TopicSchedule()
    topic.configure(priority, is_auto)
    topic.last_read_ts = read_ms
    return topic


@pytest.mark.parametrize(
    ("idle_s", "bonus"),
    [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (299, 0), (300, 0), (10**6, 0)],
)
def test_the_bonus_of_a_consumed_topic_halves_every_half_minute(idle_s: int, bonus: int) -> None:
    assert recency(idle_s * 1000) == pytest.approx(bonus, abs=1 if idle_s == 299 else 0)


def test_the_bonus_never_grows_with_time() -> None:
    bonuses = [recency(idle_ms) for idle_ms in range(0, 310_000, 97)]
    assert bonuses == sorted(bonuses, reverse=True)
    assert all(
        abs(recency(idle_ms) - 500 * 2 ** (-idle_ms / 30_000)) <= 6 for idle_ms in range(0, 300_000, 97)
    )


def test_a_clock_that_went_back_counts_as_consumed_just_now() -> None:
    assert recency(-5000) == 500


@pytest.mark.parametrize(
    ("priority", "effective"),
    [(0, 0), (1000, 1000), (1001, 1000), (-1001, -1000), (-7, -7), (2**31 - 1, 1000)],
)
def test_the_operators_number_is_clamped_and_shuts_recency_out(priority: int, effective: int) -> None:
    assert ranked(priority, True, 0).priority_at(0) == effective
    harness = EngineHarness(None)
    harness.put("t", priority=priority)
    state = harness.engine.state("t")
    assert (state.effective_priority, state.config.priority) == (effective, priority)


def test_a_topic_that_was_never_read_or_that_has_no_automatic_priority_has_none() -> None:
    assert ranked(None, True, None).priority_at(0) == 0
    assert ranked(None, False, 0).priority_at(0) == 0


@given(
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.booleans(),
    st.none() | st.integers(0, 2**42),
    st.integers(-(10**6), 10**6),
)
def test_priorities_are_those_of_the_plain_formula(
    priority: int | None, is_auto: bool, read_ms: int | None, idle_ms: int
) -> None:
    topic = ranked(priority, is_auto, read_ms)
    now_ms = (read_ms or 0) + idle_ms
    assert topic.last_read_ts == read_ms
    assert topic.priority_at(now_ms) == effective_priority(
        priority, is_auto, None if read_ms is None else now_ms - read_ms
    )


def test_state_and_diff_refresh_recency_unless_told_not_to() -> None:
    harness = EngineHarness(None)
    harness.put("t")

    def priority_now() -> int:
        return harness.engine.state("t", touch=False).effective_priority

    assert priority_now() == 0
    assert harness.engine.state("t").effective_priority == 500
    harness.advance_ms(30_000)
    assert priority_now() == 250
    harness.engine.diff("t", touch=False)
    assert priority_now() == 250
    harness.engine.diff("t")
    assert priority_now() == 500
    harness.append("t", 1)
    harness.advance_ms(60_000)
    assert priority_now() == 125
    assert harness.engine.topics()[0].effective_priority == 125
