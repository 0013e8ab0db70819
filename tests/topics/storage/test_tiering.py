"""The cold tier: what moves, reading from there, deleting there, and a cache that stays small."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import EverlogError
from everlog.topics import record_of
from tests.support.engines import EngineHarness, sized
from tests.support.files import names_below

PER_SEGMENT = 4


def open_stage(root: Path, **settings: Any) -> EngineHarness:
    """Segments of four records, of which the two newest sealed ones stay hot."""
    chosen = {
        "segment_max_events": PER_SEGMENT,
        "hot_retain_segments": 2,
        "cold_dir": str(root / "cold"),
        **settings,
    }
    return EngineHarness(root, **chosen)


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """Six segments of a topic, the last one not full, in the hot tier."""
    harness = open_stage(tmp_path)
    harness.append("t", *[record_of(number, tag=f"x{number % 4}") for number in range(22)])
    harness.checkpoint()
    return harness


def segments(harness: EngineHarness, tier: str) -> list[int]:
    """The first seqs of the segments in one tier."""
    assert harness.root is not None
    return [int(name[4:20]) for name in names_below(harness.root / tier / "topics", "seg-*.data")]


def test_old_sealed_segments_move_and_the_newest_stay(harness: EngineHarness) -> None:
    assert harness.engine.relocate() == 3
    assert segments(harness, "cold") == [1, 5, 9]
    assert segments(harness, "data") == [13, 17, 21]
    assert harness.engine.relocate() == 0
    assert names_below(harness.data_dir.parent / "cold", "*.idx") == names_below(
        harness.data_dir.parent / "cold", "*.idx"
    )


def test_without_a_cold_directory_nothing_moves(tmp_path: Path) -> None:
    harness = open_stage(tmp_path, cold_dir=None)
    harness.append("t", *range(30))
    harness.checkpoint()
    assert harness.engine.relocate() == 0


def test_the_byte_limit_moves_more_if_it_is_stricter(tmp_path: Path) -> None:
    harness = open_stage(tmp_path, hot_retain_segments=5, hot_retain_bytes=10_000)
    harness.append("t", *[sized(1000)] * 22)
    harness.checkpoint()
    assert harness.engine.relocate() == 3


def test_moved_records_are_read_as_before_and_the_answer_tells_where_from(harness: EngineHarness) -> None:
    before = harness.items("t", include_tags=True)
    harness.engine.relocate()
    page = harness.diff("t")
    assert page.cold_segments_read >= 1
    assert harness.items("t", include_tags=True) == before
    assert harness.diff("t", 12).cold_segments_read == 0
    assert harness.diff("t", 1).cold_segments_read == 0, "it is in the cache by now"


@pytest.mark.parametrize("again", ["crash", "restart"])
def test_moved_records_are_there_after_a_restart(harness: EngineHarness, again: str) -> None:
    harness.engine.relocate()
    for _ in range(2):
        getattr(harness, again)()
        assert harness.values("t") == list(range(22))
        assert segments(harness, "cold") == [1, 5, 9]
    harness.append("t", *range(22, 30))
    harness.checkpoint()
    assert harness.engine.relocate() >= 1
    assert harness.values("t") == list(range(30))


def test_a_deletion_reaches_moved_records_and_survives(harness: EngineHarness) -> None:
    harness.engine.relocate()
    harness.delete("t", match="x1")
    expected = [number for number in range(22) if number % 4 != 1]
    assert harness.values("t") == expected
    harness.checkpoint(2)
    for again in (harness.crash, harness.restart):
        again()
        assert harness.values("t") == expected


def test_a_cold_segment_in_which_nothing_is_live_is_removed(harness: EngineHarness) -> None:
    harness.engine.relocate()
    harness.delete("t", before_seq=10)
    harness.checkpoint(3)
    assert segments(harness, "cold") == [9]
    harness.crash()
    assert harness.seqs("t") == list(range(10, 23))


def test_a_deleted_topic_leaves_nothing_in_the_cold_directory(harness: EngineHarness) -> None:
    harness.engine.relocate()
    harness.delete_topic("t")
    harness.checkpoint(3)
    assert (segments(harness, "cold"), segments(harness, "data")) == ([], [])


def test_only_so_many_bytes_of_cold_segments_stay_in_memory(tmp_path: Path) -> None:
    harness = open_stage(tmp_path, cold_cache_bytes=30_000)
    harness.append("t", *[sized(2000)] * 82)
    harness.checkpoint()
    assert harness.engine.relocate() >= 15
    store = harness.engine._store
    assert store is not None
    cursor = 0
    while cursor < 82:
        cursor = harness.diff("t", cursor, limit=3).next_from_seq
        assert store.loaded.fetched_bytes <= 30_000
    assert len(harness.items("t")) == 82


@pytest.mark.parametrize("path", ["cold", "data/topics"])
@pytest.mark.parametrize("operation", ["open", "pwrite", "fsync", "rename", "unlink", "fsync_dir"])
def test_a_move_that_fails_loses_nothing_and_works_the_next_time(
    harness: EngineHarness, operation: str, path: str
) -> None:
    harness.disk.fail_when(lambda call: call.name == operation and f"/{path}" in call.path, errno.EIO)
    try:
        harness.engine.relocate()
    except (EverlogError, OSError):
        assert harness.values("t") == list(range(22))
    harness.crash()
    assert harness.values("t") == list(range(22))
    harness.engine.relocate()
    assert harness.values("t") == list(range(22))
    assert segments(harness, "cold") == [1, 5, 9]
    assert 1 not in segments(harness, "data")


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_a_cold_directory_that_fails_is_tried_again_every_few_seconds_and_is_no_checkpoint(
    harness: EngineHarness, number: int
) -> None:
    broken = ["/cold"]
    harness.disk.fail_when(lambda call: any(part in call.path for part in broken), number, times=1000)
    engine = harness.engine
    for attempts in (1, 2):
        harness.advance_ms(5000)
        for _ in range(20):
            engine.poll()
        health = engine.storage_health()
        assert health.errors == {"relocation": attempts}, "polls of the loop are no reason to try again"
        assert health.failing == {"relocation": errno.errorcode[number]}
        assert health.status == "degraded"
    store = engine._store
    assert store is not None
    assert not store.reserve.is_short, "the cold directory may be on another disk than the log"
    broken.clear()
    assert engine.relocate() == 3
    assert engine.storage_health().failing == {}


def test_an_unreadable_cold_segment_fails_the_read_and_nothing_else(harness: EngineHarness) -> None:
    harness.engine.relocate()
    harness.disk.fail_when("open", errno.EIO, path="/cold/")
    with pytest.raises((EverlogError, OSError)):
        harness.diff("t")
    assert harness.append("t", 22).commit.done
    assert harness.values("t") == list(range(23))
