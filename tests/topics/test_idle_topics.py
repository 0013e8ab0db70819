"""Idle topics: time alone expires their records, seals their segments and frees the space."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from everlog.errors import LimitReached
from everlog.topics import TopicConfig
from everlog.topics.core import QUEUE_MAX
from everlog.topics.due_topics import DueTopics
from everlog.topics.due_work import TOPICS_PER_TURN, run_due
from tests.support.engines import EngineHarness, records, sized
from tests.support.files import names_below

CLASSES = ("ephemeral", "memory", "disk", "fsync")
MINUTE_MS = 60_000


def idle(harness: EngineHarness, duration_ms: int, step_ms: int = 1000) -> None:
    """Let the loop turn while time passes, and ask nothing of any topic."""
    for _ in range(duration_ms // step_ms):
        harness.advance_ms(step_ms)
        for _ in range(3):
            harness.engine.write()
            harness.engine.poll()


def disk_bytes(harness: EngineHarness, pattern: str) -> int:
    """How much the files that match take."""
    return sum(path.stat().st_size for path in harness.data_dir.rglob(pattern))


# --- Expiry ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
def test_records_of_an_idle_topic_expire_without_a_read(tmp_path: Path, durability: str) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability=durability, ttl_ms=5000)
    harness.append("t", sized(100), sized(100))
    harness.append("other", 1)
    assert harness.engine.counts().records_live == 3
    idle(harness, 5000)
    assert harness.engine.counts().records_live == 3  # expired is what is older than the limit
    idle(harness, 1000)
    counts = harness.engine.counts()
    assert (counts.records_live, counts.bytes_live) == (1, 1)
    assert harness.gap("t") == (1, 2, "ttl")
    harness.crash()
    assert (harness.gap("t"), harness.state("t").count) == (
        (1, 2, "ttl") if durability != "ephemeral" else None,
        0,
    )


def test_records_expire_one_after_the_other_while_nothing_is_read(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", ttl_ms=5000)
    found = []
    for _ in range(4):
        harness.append("t", 1)
        idle(harness, 2000)
    for _ in range(4):
        found.append(harness.engine.counts().records_live)
        idle(harness, 2000)
    assert found == [2, 1, 0, 0]


def test_expired_records_of_an_idle_topic_refuse_no_other_writer(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, max_total_bytes=1000)
    harness.put("idle", ttl_ms=5000)
    harness.append("idle", sized(900))
    with pytest.raises(LimitReached, match="max_total_bytes"):
        harness.append("busy", sized(900))
    harness.advance_ms(5001)
    harness.append("busy", sized(900))  # although the loop has not turned in the meantime
    assert harness.engine.counts().bytes_live == 900


def test_a_limit_that_becomes_tighter_or_wider_counts_for_idle_records(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    for name, first_ms, then_ms in (("tighter", 60_000, 3000), ("wider", 3000, 60_000), ("new", 0, 3000)):
        harness.put(name, ttl_ms=first_ms)
        harness.append(name, 1)
        harness.put(name, ttl_ms=then_ms)
    idle(harness, 5000)
    assert {name: harness.engine._core.topics[name].count for name in ("tighter", "wider", "new")} == {
        "tighter": 0,
        "wider": 1,
        "new": 0,
    }


def test_idle_records_expire_after_a_restart(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", ttl_ms=5000)
    harness.append("t", 1)
    harness.restart()
    assert harness.engine.counts().records_live == 1
    idle(harness, 6000)
    assert harness.engine.counts().records_live == 0


def test_a_turn_expires_a_bounded_number_of_topics_and_leaves_the_log_to_writers(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    count = 3 * TOPICS_PER_TURN
    for number in range(count):
        harness.put(f"t{number}", ttl_ms=100, durability="ephemeral")
        harness.append(f"t{number}", 1)
    harness.advance_ms(101)
    left = []
    for _ in range(4):
        left.append(harness.engine.counts().records_live)
        run_due(harness.engine._core, harness.now_ms())
    assert left == [count, count - TOPICS_PER_TURN, count - 2 * TOPICS_PER_TURN, 0]


def test_a_turn_costs_next_to_nothing_however_many_topics_are_idle() -> None:
    harness = EngineHarness(None)
    for number in range(20_000):
        harness.engine.append(f"t{number}", records([1]), config=TopicConfig(ttl_ms=1_000_000))
    assert len(harness.engine._core.totals.due) == 20_000
    started = time.perf_counter()
    for _ in range(1000):
        harness.engine.poll()
    assert time.perf_counter() - started < 1.0  # a look at every topic would take several seconds


def test_an_entry_that_was_replaced_by_an_earlier_one_is_passed_over(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t")
    topic, due = harness.engine._core.topics["t"], DueTopics()
    for due_ms in (300, 500, 200, 100):
        due.add(topic, due_ms)
    assert (due.first_ms, len(due)) == (100, 1)
    assert (due.pop(99), due.pop(100), due.pop(1000), len(due)) == (None, topic, None, 0)


# --- Segments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["expired", "deleted", "deleted by tag"])
def test_the_space_of_an_idle_topic_comes_back_once_nothing_in_it_is_live(tmp_path: Path, gone: str) -> None:
    harness = EngineHarness(tmp_path, segment_max_events=10)
    harness.put("t", ttl_ms=10 * MINUTE_MS if gone == "expired" else 0)
    for number in range(25):
        harness.append("t", sized(500, tag=f"x{number}"))
    idle(harness, 2 * MINUTE_MS)
    assert len(names_below(harness.data_dir, "*.data")) == 3
    if gone == "deleted":
        harness.delete("t", before_seq=99)
    elif gone == "deleted by tag":
        harness.delete("t", match="x*")
    idle(harness, 14 * MINUTE_MS, MINUTE_MS // 2)
    assert names_below(harness.data_dir, "*.data") == []
    harness.crash()
    assert (harness.state("t").head_seq, harness.append("t", 1).first_seq) == (25, 26)


def test_expired_records_do_not_stay_on_disk_through_restarts(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", ttl_ms=MINUTE_MS)
    harness.append("t", *(sized(500) for _ in range(50)))
    harness.crash()
    idle(harness, 5 * MINUTE_MS, MINUTE_MS // 2)
    assert names_below(harness.data_dir, "*.data") == []
    harness.crash()
    assert disk_bytes(harness, "*.data") == 0
    assert harness.state("t").head_seq == 50


def test_an_idle_server_keeps_one_log_file_a_shard(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, file_bytes=16384)
    harness.append("t", *(sized(500) for _ in range(20)))
    harness.append("t", *(sized(500) for _ in range(20)))
    harness.append("t", *(sized(500) for _ in range(20)))
    harness.crash(file_bytes=16384)
    assert len(names_below(harness.data_dir / "wal", "*")) > 1
    idle(harness, 5 * MINUTE_MS, MINUTE_MS // 2)
    assert len(names_below(harness.data_dir / "wal", "*")) == 1
    number = harness.engine._store.snapshot_number if harness.engine._store else 0
    idle(harness, 5 * MINUTE_MS, MINUTE_MS // 2)
    assert harness.engine._store is not None
    assert harness.engine._store.snapshot_number == number  # once all is freed, no more are made


def test_age_alone_seals_the_last_segment_so_that_it_moves_to_the_cold_directory(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    harness = EngineHarness(
        tmp_path, segment_max_age_ms=10 * MINUTE_MS, hot_retain_segments=0, cold_dir=str(cold)
    )
    harness.append("t", 1, 2, 3)
    idle(harness, 5 * MINUTE_MS, MINUTE_MS // 2)
    assert (len(names_below(harness.data_dir, "*.data")), len(names_below(cold, "*.data"))) == (1, 0)
    idle(harness, 8 * MINUTE_MS, MINUTE_MS // 2)
    assert (len(names_below(harness.data_dir, "*.data")), len(names_below(cold, "*.data"))) == (0, 1)
    assert harness.values("t") == [1, 2, 3]
    harness.append("t", 4)
    harness.crash(segment_max_age_ms=10 * MINUTE_MS, hot_retain_segments=0, cold_dir=str(cold))
    assert harness.values("t") == [1, 2, 3, 4]


def test_a_start_with_more_expired_topics_than_the_log_queues_is_no_error(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, file_bytes=1 << 22)
    for number in range(QUEUE_MAX + 10):
        harness.engine.append(f"t{number}", records([1]), config=TopicConfig(ttl_ms=100, durable=True))
        if number % 1000 == 0:
            idle(harness, 1, 1)
    idle(harness, 10, 1)
    harness.advance_ms(1000)
    harness.crash(file_bytes=1 << 22)
    idle(harness, 2000, 10)
    assert harness.engine.counts().records_live == 0
