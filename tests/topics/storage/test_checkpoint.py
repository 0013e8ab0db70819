"""Checkpoints: what is where afterwards, what is trimmed and kept, and what failures leave behind."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from everlog.errors import Io, StorageFailed
from everlog.native.topics.log import read_segment_frame
from everlog.topics import record_of
from everlog.topics.storage import checkpoint, layout
from tests.support.engines import EngineHarness, files_below, records, sized

FILE_BYTES = 8192


@pytest.fixture
def stage(tmp_path: Path) -> EngineHarness:
    """Small log files and segments of four records."""
    return EngineHarness(tmp_path, file_bytes=FILE_BYTES, segment_max_events=4)


def log_files(stage: EngineHarness) -> list[str]:
    """The names of the log files."""
    return files_below(stage.data_dir / "wal", "*.log")


def snapshots(stage: EngineHarness) -> list[str]:
    """The names of the snapshots."""
    return files_below(stage.data_dir / "meta", "*")


def segments(stage: EngineHarness) -> list[int]:
    """The first seqs of the hot segments of all topics."""
    return [int(name[4:20]) for name in files_below(stage.data_dir / "topics", "seg-*.data")]


def step(stage: EngineHarness) -> None:
    """Start a checkpoint and leave it running."""
    checkpointer = stage.engine._checkpointer
    assert checkpointer is not None
    checkpointer.wait_idle()
    checkpointer.start()


def finish(stage: EngineHarness) -> None:
    """Let a checkpoint that was started end."""
    checkpointer = stage.engine._checkpointer
    assert checkpointer is not None
    checkpointer.wait_idle()


def makes_snapshot(stage: EngineHarness) -> bool:
    """Poll once, let what that starts end, and tell whether there is a new snapshot."""
    before = snapshots(stage)
    stage.engine.poll()
    finish(stage)
    return snapshots(stage)[-1:] != before[-1:]


# --- What it does ----------------------------------------------------------------------------------------


def test_committed_records_are_in_segments_and_read_from_there(stage: EngineHarness) -> None:
    stage.append_each("t", range(10))
    stage.checkpoint()
    assert segments(stage) == [1, 5, 9]
    assert stage.values("t") == list(range(10))
    stage.append_each("t", range(10, 13))
    stage.checkpoint()
    assert segments(stage) == [1, 5, 9, 13]
    assert stage.values("t") == list(range(13))


def test_the_log_is_kept_for_two_snapshots_and_trimmed_behind_them(stage: EngineHarness) -> None:
    for _ in range(6):
        stage.append_each("t", [sized(500)] * 30)
        stage.checkpoint()
    assert len(snapshots(stage)) == 2
    kept = sum(path.stat().st_size for path in (stage.data_dir / "wal").rglob("*.log"))
    assert kept < 6 * 30 * 500 / 2
    stage.crash()
    assert stage.state("t").count == 180
    assert stage.engine.recovery is not None
    assert stage.engine.recovery.records_from_log <= 60


def test_a_checkpoint_starts_by_itself_after_enough_log_or_enough_time(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path, snapshot_log_bytes=5000, snapshot_interval_ms=60_000)
    stage.append("t", sized(1000))
    assert not makes_snapshot(stage)
    stage.append_each("t", [sized(1000)] * 5)
    assert makes_snapshot(stage)
    stage.append("t", 1)
    stage.advance_ms(59_000)
    assert not makes_snapshot(stage)
    stage.advance_ms(2_000)
    assert makes_snapshot(stage)


def test_an_idle_engine_makes_no_snapshots(stage: EngineHarness) -> None:
    stage.append("t", 1)
    stage.checkpoint()
    for _ in range(3):
        stage.advance_ms(120_000)
        assert not makes_snapshot(stage)


def test_a_clean_stop_leaves_one_snapshot_and_no_log(stage: EngineHarness) -> None:
    stage.append_each("t", range(10))
    stage.checkpoint(2)
    stage.append("t", "last")
    stage.engine.close()
    assert len(snapshots(stage)) == 1
    assert log_files(stage) == []
    stage.open_with()
    assert stage.values("t") == [*range(10), "last"]
    assert stage.engine.recovery is not None
    assert stage.engine.recovery.records_from_log == 0


def test_records_that_are_not_committed_yet_are_not_in_the_snapshot_but_in_the_log(
    stage: EngineHarness,
) -> None:
    stage.put("t", durability="fsync")
    stage.append("t", 1)
    pending = stage.engine.append("t", records([2]))
    stage.engine.write()
    step(stage)
    assert not pending.commit.done
    finish(stage)
    stage.wait_for(pending.commit)
    stage.checkpoint()
    stage.crash()
    assert stage.values("t") == [1, 2]


def test_writes_go_on_while_a_checkpoint_is_running(stage: EngineHarness) -> None:
    stage.put("t", durability="memory", cap_records=6)
    stage.append_each("t", [record_of(number, tag="x" if number % 2 else None) for number in range(6)])
    step(stage)
    for number in (6, 7):  # evicts 0 and 1 before they are copied
        stage.engine.append("t", records([number]))
        stage.engine.write()
    stage.engine.delete_records("t", match="x")
    finish(stage)
    assert stage.values("t") == [2, 4, 6, 7]
    gap = stage.gap("t")
    for times in (0, 1, 2):
        stage.checkpoint(times)
        stage.crash(file_bytes=FILE_BYTES, segment_max_events=4)
        assert (stage.values("t"), stage.gap("t")) == ([2, 4, 6, 7], gap)


def test_a_record_that_is_deleted_after_it_was_copied_is_marked_by_the_next_checkpoint(
    stage: EngineHarness,
) -> None:
    stage.put("t", durability="fsync")
    stage.append("t", *[record_of(number, tag="x" if number == 1 else None) for number in range(3)])
    step(stage)
    store, syncs = stage.engine._store, stage.engine._syncs
    assert store is not None
    syncs.drain(store.checkpoint_lane)  # the copy is made, but not taken over yet
    stage.engine.delete_records("t", match="x")
    finish(stage)
    stage.restart(file_bytes=FILE_BYTES, segment_max_events=4)
    assert stage.values("t") == [0, 2]
    stage.crash()
    assert stage.values("t") == [0, 2]


@pytest.mark.parametrize("seed", range(12))
def test_anything_may_happen_while_what_was_copied_is_taken_over_turn_by_turn(
    stage: EngineHarness, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(checkpoint, "_RECORDS_A_TURN", 1)
    rng = random.Random(seed)
    kept: dict[str, list[tuple[int, str]]] = {"a": [], "b": []}

    def happen() -> None:
        name = rng.choice(sorted(kept))
        what = rng.choice(["append", "append", "delete", "replace"])
        if what == "append":
            added = [(rng.randrange(1000), rng.choice("xy")) for _ in range(rng.randrange(1, 9))]
            stage.append(name, *[record_of(value, tag=tag) for value, tag in added])
            kept[name] += added
        elif what == "delete":
            stage.delete(name, match="x")
            kept[name] = [entry for entry in kept[name] if entry[1] != "x"]
        elif rng.random() < 0.3:
            stage.delete_topic(name)
            stage.put(name)
            kept[name] = []

    for name in kept:
        stage.put(name)
        stage.append(name, *[record_of(number, tag="xy"[number % 2]) for number in range(30)])
        kept[name] = [(number, "xy"[number % 2]) for number in range(30)]
    turns = 0
    for _ in range(3):
        step(stage)
        while stage.engine._checkpointer._busy:  # type: ignore[union-attr]
            stage.engine.poll()
            turns += 1
            if rng.random() < 0.5:
                happen()
        assert {name: stage.values(name) for name in kept} == live_values(kept)
    assert turns > 12
    for end in (stage.crash, stage.restart):
        end(file_bytes=FILE_BYTES, segment_max_events=4)
        assert {name: stage.values(name) for name in kept} == live_values(kept)


def live_values(kept: dict[str, list[tuple[int, str]]]) -> dict[str, list[int]]:
    """The values without their tags."""
    return {name: [value for value, _ in entries] for name, entries in kept.items()}


# --- Deleted records -------------------------------------------------------------------------------------


def test_a_deleted_record_of_a_segment_gets_its_flag_in_both_files(stage: EngineHarness) -> None:
    stage.append("t", *[record_of(number, tag="x" if number == 1 else None) for number in range(3)])
    stage.checkpoint()
    (data_path,) = (stage.data_dir / "topics").rglob("*.data")
    before = data_path.read_bytes()
    stage.delete("t", match="x")
    assert data_path.read_bytes() == before, "the flag waits for the checkpoint; the log has the delete"
    stage.checkpoint()
    after = data_path.read_bytes()
    frames = [read_segment_frame(after, 0)]
    while (end := sum(frame.size for frame in frames)) < len(after):
        frames.append(read_segment_frame(after, end))
    assert [frame.deleted for frame in frames] == [False, True, False]
    changed = [position for position in range(len(before)) if before[position] != after[position]]
    flag = frames[0].size + frames[1].size - 1
    assert (changed, after[flag]) == ([flag], 0xD5)
    index = data_path.with_suffix(".idx").read_bytes()
    flags = index[layout.INDEX_FLAGS :: layout.INDEX_ENTRY_SIZE]
    assert [bool(each & layout.INDEX_FLAG_DELETED) for each in flags] == [False, True, False]


def test_the_flags_alone_keep_a_record_deleted_when_its_log_is_gone(stage: EngineHarness) -> None:
    stage.append("t", *[record_of(number, tag="x" if number % 2 else None) for number in range(8)])
    stage.checkpoint()
    stage.delete("t", match="x")
    stage.restart()
    assert log_files(stage) != []
    assert stage.values("t") == [0, 2, 4, 6]
    assert stage.delete("t", match="x").deleted == 0


def test_records_deleted_before_they_were_saved_never_reach_a_segment(stage: EngineHarness) -> None:
    stage.append("t", record_of("needle", tag="x"), record_of(2))
    stage.delete("t", match="x")
    stage.checkpoint()
    assert all(b"needle" not in path.read_bytes() for path in (stage.data_dir / "topics").rglob("*.data"))
    stage.restart()
    assert stage.seqs("t") == [2]


@pytest.mark.parametrize("way", ["before_seq", "match", "cap", "ttl"])
def test_a_segment_in_which_nothing_is_live_is_removed_whole(stage: EngineHarness, way: str) -> None:
    limits = {"cap": {"cap_records": 7}, "ttl": {"ttl_ms": 100}}.get(way, {})
    stage.put("t", durability="fsync", **limits)
    stage.append("t", *[record_of(number, tag="x") for number in range(4)])
    stage.append("t", record_of(4, tag="x"))
    stage.checkpoint()
    stage.advance_ms(101)
    stage.append("t", *range(5, 12))
    if way in ("before_seq", "match"):
        stage.delete("t", **{way: "x" if way == "match" else 6})
    assert stage.values("t") == list(range(5, 12))
    stage.checkpoint(4)
    assert segments(stage) == [5, 9]
    stage.crash()
    assert stage.values("t") == list(range(5, 12))


def test_an_interior_segment_goes_too_and_leaves_a_silent_hole(stage: EngineHarness) -> None:
    stage.append("t", *[record_of(number, tag="x" if 4 <= number < 8 else None) for number in range(12)])
    stage.checkpoint()
    stage.delete("t", match="x")
    stage.checkpoint(4)
    assert segments(stage) == [1, 9]
    for again in (stage.crash, stage.restart):
        again()
        assert stage.seqs("t") == [1, 2, 3, 4, 9, 10, 11, 12]
        assert stage.gap("t") is None
    assert stage.append("t", "next").first_seq > 12


def test_a_segment_is_kept_as_long_as_a_snapshot_lists_it(stage: EngineHarness) -> None:
    stage.append_each("t", range(8))
    stage.checkpoint()
    stage.delete("t", before_seq=5)
    stage.checkpoint()
    assert segments(stage) == [1, 5]
    newest = max((stage.data_dir / "meta").glob("*.bin"))
    stage.engine.abandon()
    newest.write_bytes(b"damaged")
    stage.open_with()
    assert stage.seqs("t") == [5, 6, 7, 8]


# --- Failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["seg-", "snapshot-"])
@pytest.mark.parametrize(
    "operation", ["open", "pwrite", "fsync", "fdatasync", "rename", "unlink", "fsync_dir"]
)
def test_a_checkpoint_that_fails_loses_nothing_and_the_next_one_works(
    stage: EngineHarness, operation: str, path: str
) -> None:
    stage.put("t", durability="fsync", cap_records=20)
    for start in range(0, 40, 8):
        stage.append("t", *[record_of(start + n, tag="x" if n == 3 else None) for n in range(8)])
        if start:
            stage.delete("t", match="x", before_seq=start)
        stage.disk.fail_when(lambda call: call.name == operation and path in call.path, errno.EIO)
        try:
            stage.engine.checkpoint()
        except Io:
            stage.checkpoint()
        expected = stage.seqs("t")
        stage.disk._conditions.clear()
        stage.crash(file_bytes=FILE_BYTES, segment_max_events=4)
        assert stage.seqs("t") == expected
    assert stage.append("t", "next").first_seq == 41


def test_a_failure_of_a_background_checkpoint_is_told_and_the_log_stays(stage: EngineHarness) -> None:
    stage.append_each("t", range(5))
    stage.disk.fail_when("rename", errno.ENOSPC, path="snapshot-")
    with pytest.raises(Io):
        stage.checkpoint()
    assert log_files(stage)
    stage.crash()
    assert stage.values("t") == list(range(5))


# --- A snapshot holds what is kept, and only that ---------------------------------------------------------


def test_a_topic_is_in_the_snapshot_until_its_deletion_is_kept(stage: EngineHarness) -> None:
    stage.put("t", durability="fsync")
    stage.append("t", 1)
    stage.checkpoint(2)
    stage.append("t", 2)
    step(stage)
    deleted = stage.engine.delete_topic("t")
    finish(stage)
    stage.disk.fail_when("pwrite", errno.EIO)
    stage.engine.write()
    assert isinstance(deleted.commit.error, StorageFailed)
    assert stage.values("t") == [1, 2]
    stage.crash()
    assert stage.values("t") == [1, 2]


def test_a_topic_is_not_in_the_snapshot_before_its_creation_is_kept(stage: EngineHarness) -> None:
    stage.append("other", 1)
    step(stage)
    created = stage.engine.put_topic("t")
    finish(stage)
    stage.disk.fail_when("pwrite", errno.EIO)
    stage.engine.write()
    assert isinstance(created.commit.error, StorageFailed)
    stage.crash()
    assert [state.topic for state in stage.engine.topics()] == ["other"]


def test_a_name_that_changed_hands_around_a_snapshot_belongs_to_the_newest_topic(
    stage: EngineHarness,
) -> None:
    stage.append("other", 1)
    stage.engine.put_topic("t")
    stage.engine.delete_topic("t")
    stage.engine.write()
    step(stage)
    created = stage.engine.put_topic("t")
    stage.wait_for(created.commit)
    finish(stage)
    stage.append("t", "new")
    stage.crash()
    assert stage.values("t") == ["new"]
