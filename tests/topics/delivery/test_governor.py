"""From signals to pressure, and from pressure to the rungs of the ladder and back."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.topics.delivery.governor import (
    COALESCE_MAX_NS,
    COMMIT_MAX_NS,
    COMMIT_MIN_NS,
    DEPTH_CEILING,
    FULL,
    LADDER,
    LATENCY_CEILING_NS,
    SAMPLE_NS,
    Governor,
    Rung,
    Signals,
)

SIGNALS = st.builds(
    Signals,
    depth=st.integers(0, 3 * DEPTH_CEILING),
    latency_total_ns=st.integers(0, 100 * LATENCY_CEILING_NS),
    served=st.integers(0, 50),
    oldest_ns=st.integers(0, 3 * LATENCY_CEILING_NS),
    ingest=st.integers(0, 1200),
    busy_ns=st.integers(0, 2 * SAMPLE_NS),
    elapsed_ns=st.integers(1, 20 * SAMPLE_NS),
)


def steady(pressure: int) -> Signals:
    """What leads to this pressure if it lasts: the loop is as busy as work is waiting."""
    return Signals(ingest=pressure, busy_ns=pressure, elapsed_ns=FULL)


def settled(pressure: int, governor: Governor | None = None) -> Governor:
    """A governor that has seen this for long enough."""
    governor = governor or Governor()
    for _ in range(20):
        governor.sample(steady(pressure))
    assert governor.pressure == pressure
    return governor


@given(st.lists(SIGNALS, max_size=40))
def test_pressure_is_between_0_and_1_whatever_is_seen(seen: list[Signals]) -> None:
    governor = Governor()
    for signals in seen:
        governor.sample(signals)
        assert 0 <= governor.pressure <= FULL
        assert 0 <= governor.coalesce_ns <= COALESCE_MAX_NS
        assert COMMIT_MIN_NS <= governor.commit_floor_ns <= COMMIT_MAX_NS
        assert 100 <= governor.retry_after_ms <= 1000


@given(SIGNALS)
def test_a_lasting_load_gives_the_pressure_of_the_formula(signals: Signals) -> None:
    governor = Governor()
    for _ in range(80):
        governor.sample(signals)
    latency = Fraction(signals.latency_total_ns, max(signals.served, 1)) if signals.served else Fraction()
    waiting = max(
        Fraction(signals.depth, DEPTH_CEILING),
        max(latency, Fraction(signals.oldest_ns)) / LATENCY_CEILING_NS,
        Fraction(signals.ingest, FULL),
    )
    busy = min(Fraction(1), Fraction(signals.busy_ns, signals.elapsed_ns))
    expected = Fraction(8, 10) * min(Fraction(1), waiting) + Fraction(2, 10) * busy
    assert abs(Fraction(governor.pressure, FULL) - expected) < Fraction(3, FULL)


@pytest.mark.parametrize(
    ("signals", "pressure"),
    [
        (Signals(busy_ns=1, elapsed_ns=1), 200),
        (Signals(depth=DEPTH_CEILING, elapsed_ns=1), 800),
        (Signals(latency_total_ns=10 * LATENCY_CEILING_NS, served=10, elapsed_ns=1), 799),
        (Signals(oldest_ns=LATENCY_CEILING_NS, elapsed_ns=1), 799),
        (Signals(ingest=FULL, elapsed_ns=1), 800),
        (Signals(depth=DEPTH_CEILING, busy_ns=1, elapsed_ns=1), 1000),
    ],
    ids=["busy alone", "depth", "latency", "a reader waits", "a full queue", "depth and busy"],
)
def test_a_busy_loop_alone_takes_no_rung_and_waiting_work_alone_not_all(
    signals: Signals, pressure: int
) -> None:
    governor = Governor()
    for _ in range(40):
        governor.sample(signals)
    assert governor.pressure == pressure
    assert governor.engaged == [pressure > step.engage_above for step in LADDER]


@pytest.mark.parametrize("rung", Rung)
def test_each_rung_is_taken_above_its_mark_and_left_below_another(rung: Rung) -> None:
    step = LADDER[rung]
    assert not settled(step.engage_above).engaged[rung]
    governor = settled(step.engage_above + 1)
    assert governor.engaged[rung] and governor.engagements[rung] == 1
    settled(step.release_below, governor)
    assert governor.engaged[rung], "what was taken is kept down to the lower mark"
    settled(step.release_below - 1, governor)
    assert not governor.engaged[rung]
    settled(step.engage_above, governor)
    assert not governor.engaged[rung], "what was left is not taken again below the upper mark"
    assert governor.engagements[rung] == 1


def test_a_short_peak_pauses_no_topic() -> None:
    governor = settled(800)
    for _ in range(LADDER[Rung.DEFER].samples - 1):
        governor.sample(steady(FULL))
        assert governor.pressure > 800 and not governor.is_deferring
    governor.sample(steady(FULL))
    assert governor.is_deferring
    settled(0, governor)
    for signals in (FULL, FULL, 0, FULL, FULL):
        governor.sample(steady(signals))
    assert not governor.is_deferring


def test_the_windows_grow_with_the_pressure() -> None:
    windows = [
        (settled(pressure).coalesce_ns, settled(pressure).commit_floor_ns) for pressure in range(0, 1001, 50)
    ]
    assert windows == sorted(windows)
    assert settled(200).coalesce_ns == 0 and settled(600).coalesce_ns == COALESCE_MAX_NS // 2
    assert settled(400).commit_floor_ns == COMMIT_MIN_NS
    assert settled(500).commit_floor_ns == (COMMIT_MIN_NS + COMMIT_MAX_NS) // 2
    assert windows[-1] == (COALESCE_MAX_NS, COMMIT_MAX_NS)


def test_the_longer_it_lasts_the_later_a_refused_writer_should_come_back() -> None:
    governor = Governor()
    waits = []
    for _ in range(20):
        governor.sample(steady(FULL))
        if governor.is_refusing:
            waits.append(governor.retry_after_ms)
    assert waits[0] == 100 and waits[-1] == 1000
    assert waits == sorted(waits)


@given(st.lists(SIGNALS, max_size=20))
def test_it_is_calm_again_when_nothing_happens(seen: list[Signals]) -> None:
    governor = Governor()
    for signals in seen:
        governor.sample(signals)
    for _ in range(60):
        if governor.is_calm:
            break
        governor.sample(Signals(elapsed_ns=SAMPLE_NS))
    assert governor.is_calm
    before = governor.pressure, governor.engaged
    governor.sample(Signals(elapsed_ns=SAMPLE_NS))
    assert (governor.pressure, governor.engaged) == before
