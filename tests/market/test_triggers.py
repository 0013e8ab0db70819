"""When a row of features is written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidConfig
from everlog.market.triggers import Always, AnyOf, Events, EventTypes, MarketBars, TimeBar, Trigger

TIMES = st.one_of(st.integers(0, 100), st.integers(0, 2**63 - 1))


def events(*timestamps: int, types: tuple[int, ...] = ()) -> Events:
    """Return events with these ingest times, the exchange 1000 ns later, of type 2 unless said."""
    ingest = np.array(timestamps, dtype=np.uint64)
    kinds = np.array(types or (2,) * len(timestamps), dtype=np.uint8)
    return Events(ingest, ingest + np.uint64(1000), kinds)


def fired(trigger: Trigger, *timestamps: int, types: tuple[int, ...] = ()) -> list[bool]:
    """Return where a trigger fires."""
    return [bool(one) for one in trigger.fires(events(*timestamps, types=types))]


def test_always_fires_at_every_event() -> None:
    assert fired(Always(), 1, 2, 3) == [True] * 3


def test_a_time_bar_fires_at_the_first_event_and_at_the_first_of_each_later_bucket() -> None:
    assert fired(TimeBar(10), 5, 9, 10, 19, 35, 36) == [True, False, True, False, True, False]


@given(
    st.sampled_from([1, 10, 10**9]),
    st.lists(st.dictionaries(st.integers(0, 4), st.lists(TIMES, min_size=0, max_size=5), min_size=1)),
)
def test_bars_of_many_markets_fire_as_a_time_bar_of_each(
    interval: int, batches: list[dict[int, list[int]]]
) -> None:
    bars, each = MarketBars(interval), [TimeBar(interval) for _ in range(5)]
    for batch in batches:
        counts = np.array([len(times) for times in batch.values()], dtype=np.int64)
        times_ns = np.array([time for times in batch.values() for time in times], dtype=np.uint64)
        expected = [one for market, times in batch.items() for one in fired(each[market], *times)]
        assert bars.fires([(1, market) for market in batch], counts, times_ns).tolist() == expected


def test_a_time_bar_never_fires_for_a_timestamp_of_zero() -> None:
    assert fired(TimeBar(10), 0, 0, 5, 0, 12) == [False, False, True, False, True]


def test_a_time_bar_does_not_fire_again_for_an_earlier_bucket() -> None:
    assert fired(TimeBar(10), 25, 5, 26, 31) == [True, False, False, True]


def test_a_time_bar_goes_by_the_clock_that_was_chosen() -> None:
    by_exchange = TimeBar(1000, "exchange")
    assert fired(by_exchange, 500, 900, 1100) == [True, False, True]


def test_a_trigger_by_type_fires_at_those_types() -> None:
    assert fired(EventTypes(1, 3), 1, 2, 3, 4, types=(1, 2, 3, 4)) == [True, False, True, False]


def test_every_member_of_a_choice_sees_every_event() -> None:
    choice = AnyOf([EventTypes(1), TimeBar(10)])
    # The bar is opened by the first event although the other trigger fires there as well.
    assert fired(choice, 11, 12, 21, types=(1, 2, 2)) == [True, False, True]


def test_senseless_triggers_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="more than 0"):
        TimeBar(0)
    with pytest.raises(InvalidConfig, match="'ingest' or 'exchange'"):
        TimeBar(1, "wall")
    with pytest.raises(InvalidConfig, match="at least one"):
        EventTypes()
    with pytest.raises(InvalidConfig, match="at least one"):
        AnyOf([])


@given(st.lists(st.integers(0, 100)), st.integers(1, 30), st.data())
def test_cutting_events_into_batches_changes_no_firing(
    timestamps: list[int], interval: int, data: st.DataObject
) -> None:
    """Two batches fire where one would, which is where a plain loop does."""
    cut = data.draw(st.integers(0, len(timestamps)))
    trigger = TimeBar(interval)
    got = fired(trigger, *timestamps[:cut]) + fired(trigger, *timestamps[cut:])
    latest, expected = -1, []
    for timestamp in timestamps:
        expected.append(timestamp > 0 and timestamp // interval > latest)
        latest = timestamp // interval if expected[-1] else latest
    assert got == expected
