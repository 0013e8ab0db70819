"""The cold tier: what moves, reading from there, deleting there, and a cache that stays small."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import EverlogError
from everlog.topics import record_of
from tests.support.engines import EngineHarness, files_below, sized

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
def stage(tmp_path: Path) -> EngineHarness:
    """Six segments of a topic, the last one not full, in the hot tier."""
    stage = open_stage(tmp_path)
    stage.append("t", *[record_of(number, tag=f"x{number % 4}") for number in range(22)])
    stage.checkpoint()
    return stage


def segments(stage: EngineHarness, tier: str) -> list[int]:
    """The first seqs of the segments in one tier."""
    assert stage.root is not None
    return [int(name[4:20]) for name in files_below(stage.root / tier / "topics", "seg-*.data")]


def test_old_sealed_segments_move_and_the_newest_stay(stage: EngineHarness) -> None:
    assert stage.engine.relocate() == 3
    assert segments(stage, "cold") == [1, 5, 9]
    assert segments(stage, "data") == [13, 17, 21]
    assert stage.engine.relocate() == 0
    assert files_below(stage.data_dir.parent / "cold", "*.idx") == files_below(
        stage.data_dir.parent / "cold", "*.idx"
    )


def test_without_a_cold_directory_nothing_moves(tmp_path: Path) -> None:
    stage = open_stage(tmp_path, cold_dir=None)
    stage.append("t", *range(30))
    stage.checkpoint()
    assert stage.engine.relocate() == 0


def test_the_byte_limit_moves_more_if_it_is_stricter(tmp_path: Path) -> None:
    stage = open_stage(tmp_path, hot_retain_segments=5, hot_retain_bytes=10_000)
    stage.append("t", *[sized(1000)] * 22)
    stage.checkpoint()
    assert stage.engine.relocate() == 3


def test_moved_records_are_read_as_before_and_the_answer_tells_where_from(stage: EngineHarness) -> None:
    before = stage.items("t", include_tags=True)
    stage.engine.relocate()
    page = stage.diff("t")
    assert page.cold_segments_read >= 1
    assert stage.items("t", include_tags=True) == before
    assert stage.diff("t", 12).cold_segments_read == 0
    assert stage.diff("t", 1).cold_segments_read == 0, "it is in the cache by now"


@pytest.mark.parametrize("again", ["crash", "restart"])
def test_moved_records_are_there_after_a_restart(stage: EngineHarness, again: str) -> None:
    stage.engine.relocate()
    for _ in range(2):
        getattr(stage, again)()
        assert stage.values("t") == list(range(22))
        assert segments(stage, "cold") == [1, 5, 9]
    stage.append("t", *range(22, 30))
    stage.checkpoint()
    assert stage.engine.relocate() >= 1
    assert stage.values("t") == list(range(30))


def test_a_deletion_reaches_moved_records_and_survives(stage: EngineHarness) -> None:
    stage.engine.relocate()
    stage.delete("t", match="x1")
    expected = [number for number in range(22) if number % 4 != 1]
    assert stage.values("t") == expected
    stage.checkpoint(2)
    for again in (stage.crash, stage.restart):
        again()
        assert stage.values("t") == expected


def test_a_cold_segment_in_which_nothing_is_live_is_removed(stage: EngineHarness) -> None:
    stage.engine.relocate()
    stage.delete("t", before_seq=10)
    stage.checkpoint(3)
    assert segments(stage, "cold") == [9]
    stage.crash()
    assert stage.seqs("t") == list(range(10, 23))


def test_a_deleted_topic_leaves_nothing_in_the_cold_directory(stage: EngineHarness) -> None:
    stage.engine.relocate()
    stage.delete_topic("t")
    stage.checkpoint(3)
    assert (segments(stage, "cold"), segments(stage, "data")) == ([], [])


def test_only_so_many_bytes_of_cold_segments_stay_in_memory(tmp_path: Path) -> None:
    stage = open_stage(tmp_path, cold_cache_bytes=30_000)
    stage.append("t", *[sized(2000)] * 82)
    stage.checkpoint()
    assert stage.engine.relocate() >= 15
    store = stage.engine._store
    assert store is not None
    cursor = 0
    while cursor < 82:
        cursor = stage.diff("t", cursor, limit=3).next_from_seq
        assert store.loaded.fetched_bytes <= 30_000
    assert len(stage.items("t")) == 82


@pytest.mark.parametrize("path", ["cold", "data/topics"])
@pytest.mark.parametrize("operation", ["open", "pwrite", "fsync", "rename", "unlink", "fsync_dir"])
def test_a_move_that_fails_loses_nothing_and_works_the_next_time(
    stage: EngineHarness, operation: str, path: str
) -> None:
    stage.disk.fail_when(lambda call: call.name == operation and f"/{path}" in call.path, errno.EIO)
    try:
        stage.engine.relocate()
    except (EverlogError, OSError):
        assert stage.values("t") == list(range(22))
    stage.crash()
    assert stage.values("t") == list(range(22))
    stage.engine.relocate()
    assert stage.values("t") == list(range(22))
    assert segments(stage, "cold") == [1, 5, 9]
    assert 1 not in segments(stage, "data")


def test_an_unreadable_cold_segment_fails_the_read_and_nothing_else(stage: EngineHarness) -> None:
    stage.engine.relocate()
    stage.disk.fail_when("open", errno.EIO, path="/cold/")
    with pytest.raises((EverlogError, OSError)):
        stage.diff("t")
    assert stage.append("t", 22).commit.done
    assert stage.values("t") == list(range(23))
