"""Idempotency keys are bounded in number, and none is forgotten before its window is over."""

import time
from pathlib import Path

import pytest

from everlog.clock import TestClock
from everlog.errors import LimitReached
from everlog.topics.config import TopicConfig
from everlog.topics.engine import Engine
from everlog.topics.records import NewRecord
from everlog.topics.topic import KEYS_A_STEP
from tests.support.engines import open_engine

WINDOW_MS = 1000
NS_PER_MS = 1_000_000


def keyed(engine: Engine, topic: str, key: str) -> bool:
    """Append with a key; whether it was known."""
    config = TopicConfig(idempotency_window_ms=WINDOW_MS)
    appended = engine.append(topic, [NewRecord(b"1")], idempotency_key=key, create=True, config=config)
    engine.wait_for(appended.commit)
    return appended.deduped


def test_a_key_too_many_is_refused_until_the_window_of_another_is_over(tmp_path: Path) -> None:
    clock = TestClock(1_700_000_000 * 1000 * NS_PER_MS)
    with open_engine(tmp_path, clock=clock, max_idempotency_keys=3) as engine:
        for number in range(3):
            assert not keyed(engine, f"t{number}", "k")
        with pytest.raises(LimitReached, match="3 idempotency keys") as refused:
            keyed(engine, "t0", "other")
        assert (refused.value.limit, refused.value.maximum) == ("max_idempotency_keys", 3)
        assert keyed(engine, "t1", "k")  # known ones are answered
        engine.append("t0", [NewRecord(b"1")])  # and appends without a key are taken
        clock.advance_ns((WINDOW_MS + 1) * NS_PER_MS)
        assert not keyed(engine, "t3", "other")  # also of topics that nothing is appended to
        assert engine.key_count == 1


def test_the_count_follows_deletes_failures_and_restarts(tmp_path: Path) -> None:
    clock = TestClock(1_700_000_000 * 1000 * NS_PER_MS)
    engine = open_engine(tmp_path, clock=clock)
    for number in range(4):
        keyed(engine, f"t{number % 2}", f"k{number}")
    assert engine.key_count == 4
    engine.wait_for(engine.delete_topic("t0").commit)
    assert engine.key_count == 2
    engine.abandon()
    with open_engine(tmp_path, clock=clock) as engine:
        assert engine.key_count == 2
        assert keyed(engine, "t1", "k1")


def test_one_append_drops_a_bounded_number_of_keys() -> None:
    clock = TestClock(1_700_000_000 * 1000 * NS_PER_MS)
    with open_engine(None, clock=clock) as engine:
        count = 3 * KEYS_A_STEP
        for number in range(count):
            keyed(engine, "t", f"k{number}")
        clock.advance_ns((WINDOW_MS + 1) * NS_PER_MS)
        assert not keyed(engine, "t", f"k{count - 1}")  # its window is over, though it was not dropped
        assert engine.key_count == count - KEYS_A_STEP
        for number in range(3):
            keyed(engine, "t", f"new{number}")
        assert engine.key_count == 4


def test_old_keys_are_forgotten_as_fast_however_many_are_gone_already() -> None:
    clock = TestClock(1_700_000_000 * 1000 * NS_PER_MS)
    with open_engine(None, clock=clock) as engine:
        count = 60 * KEYS_A_STEP
        config = TopicConfig(idempotency_window_ms=WINDOW_MS)
        for number in range(count):
            engine.append("t", [NewRecord(b"1")], idempotency_key=f"{number}", create=True, config=config)
        clock.advance_ns((WINDOW_MS + 1) * NS_PER_MS)
        steps = []
        for _ in range(count // KEYS_A_STEP):
            started_ns = time.thread_time_ns()
            engine.append("t", [NewRecord(b"1")])
            steps.append(time.thread_time_ns() - started_ns)
        assert engine.key_count == 0
        assert sorted(steps)[-6] < 10 * sorted(steps)[5]


def test_a_key_that_is_used_again_after_its_window_counts_from_then(tmp_path: Path) -> None:
    clock = TestClock(1_700_000_000 * 1000 * NS_PER_MS)
    engine = open_engine(tmp_path, clock=clock)
    for key in ("again", "other"):
        assert not keyed(engine, "t", key)
    clock.advance_ns((WINDOW_MS + 1) * NS_PER_MS)
    assert not keyed(engine, "t", "again")
    for _ in range(2):
        clock.advance_ns(WINDOW_MS // 3 * NS_PER_MS)
        assert keyed(engine, "t", "again")
        assert engine.key_count == 1
        engine.abandon()
        engine = open_engine(tmp_path, clock=clock)
    engine.abandon()
