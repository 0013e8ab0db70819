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
from tests.support.engines import EngineHarness, records, sized
from tests.support.files import names_below

FILE_BYTES = 8192


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """Small log files and segments of four records."""
    return EngineHarness(tmp_path, file_bytes=FILE_BYTES, segment_max_events=4)


def log_files(harness: EngineHarness) -> list[str]:
    """The names of the log files."""
    return names_below(harness.data_dir / "wal", "*.log")


def snapshots(harness: EngineHarness) -> list[str]:
    """The names of the snapshots."""
    return names_below(harness.data_dir / "meta", "*")


def segments(harness: EngineHarness) -> list[int]:
    """The first seqs of the hot segments of all topics."""
    return [int(name[4:20]) for name in names_below(harness.data_dir / "topics", "seg-*.data")]


def step(harness: EngineHarness) -> None:
    """Start a checkpoint and leave it running."""
    checkpointer = harness.engine._checkpointer
    assert checkpointer is not None
    checkpointer.wait_idle()
    checkpointer.start()


def copy_only(harness: EngineHarness) -> None:
    """Start a checkpoint and let it copy what is new into segments, but not take that over."""
    step(harness)
    store, syncs = harness.engine._store, harness.engine._syncs
    assert store is not None
    while not segments(harness):
        for shard in harness.engine._core.shards:
            shard.wal.sync_now()
        syncs.drain(store.checkpoint_lane)
        if not segments(harness):
            assert syncs.poll()


def finish(harness: EngineHarness) -> None:
    """Let a checkpoint that was started end."""
    checkpointer = harness.engine._checkpointer
    assert checkpointer is not None
    checkpointer.wait_idle()


def makes_snapshot(harness: EngineHarness) -> bool:
    """Poll once, let what that starts end, and tell whether there is a new snapshot."""
    before = snapshots(harness)
    harness.engine.poll()
    finish(harness)
    return snapshots(harness)[-1:] != before[-1:]


# --- What it does ----------------------------------------------------------------------------------------


def test_committed_records_are_in_segments_and_read_from_there(harness: EngineHarness) -> None:
    harness.append_each("t", range(10))
    harness.checkpoint()
    assert segments(harness) == [1, 5, 9]
    assert harness.values("t") == list(range(10))
    harness.append_each("t", range(10, 13))
    harness.checkpoint()
    assert segments(harness) == [1, 5, 9, 13]
    assert harness.values("t") == list(range(13))


def test_the_log_is_kept_for_two_snapshots_and_trimmed_behind_them(harness: EngineHarness) -> None:
    for _ in range(6):
        harness.append_each("t", [sized(500)] * 30)
        harness.checkpoint()
    assert len(snapshots(harness)) == 2
    kept = sum(path.stat().st_size for path in (harness.data_dir / "wal").rglob("*.log"))
    assert kept < 6 * 30 * 500 / 2
    harness.crash()
    assert harness.state("t").count == 180
    assert harness.engine.recovery is not None
    assert harness.engine.recovery.records_from_log <= 60


def test_a_checkpoint_starts_by_itself_after_enough_log_or_enough_time(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, snapshot_log_bytes=5000, snapshot_interval_ms=60_000)
    harness.append("t", sized(1000))
    assert not makes_snapshot(harness)
    harness.append_each("t", [sized(1000)] * 5)
    assert makes_snapshot(harness)
    harness.append("t", 1)
    harness.advance_ms(59_000)
    assert not makes_snapshot(harness)
    harness.advance_ms(2_000)
    assert makes_snapshot(harness)


def test_an_idle_engine_makes_no_snapshots(harness: EngineHarness) -> None:
    harness.append("t", 1)
    harness.checkpoint()
    for _ in range(3):
        harness.advance_ms(120_000)
        assert not makes_snapshot(harness)


def test_a_clean_stop_leaves_one_snapshot_and_no_log(harness: EngineHarness) -> None:
    harness.append_each("t", range(10))
    harness.checkpoint(2)
    harness.append("t", "last")
    harness.engine.close()
    assert len(snapshots(harness)) == 1
    assert log_files(harness) == []
    harness.open_with()
    assert harness.values("t") == [*range(10), "last"]
    assert harness.engine.recovery is not None
    assert harness.engine.recovery.records_from_log == 0


def test_records_that_are_not_committed_yet_are_not_in_the_snapshot_but_in_the_log(
    harness: EngineHarness,
) -> None:
    harness.put("t", durability="fsync")
    harness.append("t", 1)
    pending = harness.engine.append("t", records([2]))
    harness.engine.write()
    step(harness)
    assert not pending.commit.done
    finish(harness)
    harness.wait_for(pending.commit)
    harness.checkpoint()
    harness.crash()
    assert harness.values("t") == [1, 2]


def test_writes_go_on_while_a_checkpoint_is_running(harness: EngineHarness) -> None:
    harness.put("t", durability="memory", cap_records=6)
    harness.append_each("t", [record_of(number, tag="x" if number % 2 else None) for number in range(6)])
    step(harness)
    for number in (6, 7):  # evicts 0 and 1 before they are copied
        harness.engine.append("t", records([number]))
        harness.engine.write()
    harness.engine.delete_records("t", match="x")
    finish(harness)
    assert harness.values("t") == [2, 4, 6, 7]
    gap = harness.gap("t")
    for times in (0, 1, 2):
        harness.checkpoint(times)
        harness.crash(file_bytes=FILE_BYTES, segment_max_events=4)
        assert (harness.values("t"), harness.gap("t")) == ([2, 4, 6, 7], gap)


def test_a_record_that_is_deleted_after_it_was_copied_is_marked_by_the_next_checkpoint(
    harness: EngineHarness,
) -> None:
    harness.put("t", durability="fsync")
    harness.append("t", *[record_of(number, tag="x" if number == 1 else None) for number in range(3)])
    copy_only(harness)
    harness.engine.delete_records("t", match="x")
    finish(harness)
    harness.restart(file_bytes=FILE_BYTES, segment_max_events=4)
    assert harness.values("t") == [0, 2]
    harness.crash()
    assert harness.values("t") == [0, 2]


def test_a_job_that_is_acked_after_it_was_copied_is_marked_by_the_next_checkpoint(
    harness: EngineHarness,
) -> None:
    harness.put("t", durability="disk", type="queue")
    harness.append("t", 0, 1, 2)
    claimed = harness.engine.claim("t", "worker", 3)
    harness.wait_for(claimed.commit)
    copy_only(harness)
    assert harness.engine.ack("t", "worker", [2]).done == [2]
    harness.engine.write()
    finish(harness)
    for _ in range(2):
        harness.restart(file_bytes=FILE_BYTES, segment_max_events=4)
        assert harness.values("t") == [0, 2]


@pytest.mark.parametrize("seed", range(12))
def test_anything_may_happen_while_what_was_copied_is_taken_over_turn_by_turn(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(checkpoint, "_RECORDS_A_TURN", 1)
    rng = random.Random(seed)
    kept: dict[str, list[tuple[int, str]]] = {"a": [], "b": []}

    def happen() -> None:
        name = rng.choice(sorted(kept))
        what = rng.choice(["append", "append", "delete", "replace"])
        if what == "append":
            added = [(rng.randrange(1000), rng.choice("xy")) for _ in range(rng.randrange(1, 9))]
            harness.append(name, *[record_of(value, tag=tag) for value, tag in added])
            kept[name] += added
        elif what == "delete":
            harness.delete(name, match="x")
            kept[name] = [entry for entry in kept[name] if entry[1] != "x"]
        elif rng.random() < 0.3:
            harness.delete_topic(name)
            harness.put(name)
            kept[name] = []

    for name in kept:
        harness.put(name)
        harness.append(name, *[record_of(number, tag="xy"[number % 2]) for number in range(30)])
        kept[name] = [(number, "xy"[number % 2]) for number in range(30)]
    turns = 0
    for _ in range(3):
        step(harness)
        while harness.engine._checkpointer._busy:  # type: ignore[union-attr]
            harness.engine.poll()
            turns += 1
            if rng.random() < 0.5:
                happen()
        assert {name: harness.values(name) for name in kept} == live_values(kept)
    assert turns > 12
    for end in (harness.crash, harness.restart):
        end(file_bytes=FILE_BYTES, segment_max_events=4)
        assert {name: harness.values(name) for name in kept} == live_values(kept)


def live_values(kept: dict[str, list[tuple[int, str]]]) -> dict[str, list[int]]:
    """The values without their tags."""
    return {name: [value for value, _ in entries] for name, entries in kept.items()}


# --- Deleted records -------------------------------------------------------------------------------------


def test_a_deleted_record_of_a_segment_gets_its_flag_in_both_files(harness: EngineHarness) -> None:
    harness.append("t", *[record_of(number, tag="x" if number == 1 else None) for number in range(3)])
    harness.checkpoint()
    (data_path,) = (harness.data_dir / "topics").rglob("*.data")
    before = data_path.read_bytes()
    harness.delete("t", match="x")
    assert data_path.read_bytes() == before, "the flag waits for the checkpoint; the log has the delete"
    harness.checkpoint()
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


def test_the_flags_alone_keep_a_record_deleted_when_its_log_is_gone(harness: EngineHarness) -> None:
    harness.append("t", *[record_of(number, tag="x" if number % 2 else None) for number in range(8)])
    harness.checkpoint()
    harness.delete("t", match="x")
    harness.restart()
    assert log_files(harness) != []
    assert harness.values("t") == [0, 2, 4, 6]
    assert harness.delete("t", match="x").deleted == 0


def test_records_deleted_before_they_were_saved_never_reach_a_segment(harness: EngineHarness) -> None:
    harness.append("t", record_of("needle", tag="x"), record_of(2))
    harness.delete("t", match="x")
    harness.checkpoint()
    assert all(b"needle" not in path.read_bytes() for path in (harness.data_dir / "topics").rglob("*.data"))
    harness.restart()
    assert harness.seqs("t") == [2]


@pytest.mark.parametrize("way", ["before_seq", "match", "cap", "ttl"])
def test_a_segment_in_which_nothing_is_live_is_removed_whole(harness: EngineHarness, way: str) -> None:
    limits = {"cap": {"cap_records": 7}, "ttl": {"ttl_ms": 100}}.get(way, {})
    harness.put("t", durability="fsync", **limits)
    harness.append("t", *[record_of(number, tag="x") for number in range(4)])
    harness.append("t", record_of(4, tag="x"))
    harness.checkpoint()
    harness.advance_ms(101)
    harness.append("t", *range(5, 12))
    if way in ("before_seq", "match"):
        harness.delete("t", **{way: "x" if way == "match" else 6})
    assert harness.values("t") == list(range(5, 12))
    harness.checkpoint(4)
    assert segments(harness) == [5, 9]
    harness.crash()
    assert harness.values("t") == list(range(5, 12))


def test_an_interior_segment_goes_too_and_leaves_a_silent_hole(harness: EngineHarness) -> None:
    harness.append("t", *[record_of(number, tag="x" if 4 <= number < 8 else None) for number in range(12)])
    harness.checkpoint()
    harness.delete("t", match="x")
    harness.checkpoint(4)
    assert segments(harness) == [1, 9]
    for again in (harness.crash, harness.restart):
        again()
        assert harness.seqs("t") == [1, 2, 3, 4, 9, 10, 11, 12]
        assert harness.gap("t") is None
    assert harness.append("t", "next").first_seq > 12


def test_a_segment_is_kept_as_long_as_a_snapshot_lists_it(harness: EngineHarness) -> None:
    harness.append_each("t", range(8))
    harness.checkpoint()
    harness.delete("t", before_seq=5)
    harness.checkpoint()
    assert segments(harness) == [1, 5]
    newest = max((harness.data_dir / "meta").glob("*.bin"))
    harness.engine.abandon()
    newest.write_bytes(b"damaged")
    harness.open_with()
    assert harness.seqs("t") == [5, 6, 7, 8]


# --- Failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["seg-", "snapshot-"])
@pytest.mark.parametrize(
    "operation", ["open", "pwrite", "fsync", "fdatasync", "rename", "unlink", "fsync_dir"]
)
def test_a_checkpoint_that_fails_loses_nothing_and_the_next_one_works(
    harness: EngineHarness, operation: str, path: str
) -> None:
    harness.put("t", durability="fsync", cap_records=20)
    for start in range(0, 40, 8):
        harness.append("t", *[record_of(start + n, tag="x" if n == 3 else None) for n in range(8)])
        if start:
            harness.delete("t", match="x", before_seq=start)
        harness.disk.fail_when(lambda call: call.name == operation and path in call.path, errno.EIO)
        try:
            harness.engine.checkpoint()
        except Io:
            harness.checkpoint()
        expected = harness.seqs("t")
        harness.disk._conditions.clear()
        harness.crash(file_bytes=FILE_BYTES, segment_max_events=4)
        assert harness.seqs("t") == expected
    assert harness.append("t", "next").first_seq == 41


def test_a_failure_of_a_background_checkpoint_is_told_and_the_log_stays(harness: EngineHarness) -> None:
    harness.append_each("t", range(5))
    harness.disk.fail_when("rename", errno.ENOSPC, path="snapshot-")
    with pytest.raises(Io):
        harness.checkpoint()
    assert log_files(harness)
    harness.crash()
    assert harness.values("t") == list(range(5))


# --- A snapshot holds what is kept, and only that ---------------------------------------------------------


def test_a_topic_is_in_the_snapshot_until_its_deletion_is_kept(harness: EngineHarness) -> None:
    harness.put("t", durability="fsync")
    harness.append("t", 1)
    harness.checkpoint(2)
    harness.append("t", 2)
    step(harness)
    deleted = harness.engine.delete_topic("t")
    finish(harness)
    harness.disk.fail_when("pwrite", errno.EIO)
    harness.engine.write()
    assert isinstance(deleted.commit.error, StorageFailed)
    assert harness.values("t") == [1, 2]
    harness.crash()
    assert harness.values("t") == [1, 2]


def test_a_topic_is_not_in_the_snapshot_before_its_creation_is_kept(harness: EngineHarness) -> None:
    harness.append("other", 1)
    step(harness)
    created = harness.engine.put_topic("t")
    finish(harness)
    harness.disk.fail_when("pwrite", errno.EIO)
    harness.engine.write()
    assert isinstance(created.commit.error, StorageFailed)
    harness.crash()
    assert [state.topic for state in harness.engine.topics()] == ["other"]


def test_a_name_that_changed_hands_around_a_snapshot_belongs_to_the_newest_topic(
    harness: EngineHarness,
) -> None:
    harness.append("other", 1)
    harness.engine.put_topic("t")
    harness.engine.delete_topic("t")
    harness.engine.write()
    step(harness)
    created = harness.engine.put_topic("t")
    harness.wait_for(created.commit)
    finish(harness)
    harness.append("t", "new")
    harness.crash()
    assert harness.values("t") == ["new"]
