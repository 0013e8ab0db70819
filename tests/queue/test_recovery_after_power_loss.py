"""What a power loss may leave behind: old control blocks, lost seals, lost records, half-made queues.

Most images are made by hand, so that they are the worst ones; a few are drawn by `FaultFs`.
"""

import errno
import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest

from everlog.clock import TestClock
from everlog.errors import Corrupt, CorruptMetadata, Io
from everlog.fault_fs import Call, FaultFs, PowerLoss
from everlog.queue import Queue, QueueReader, layout, recovery
from everlog.queue.layout import CTRL_INIT_STATE
from everlog.queue.reader_meta import ReaderMetaFile
from tests.support import ring_twin
from tests.support.files import UnsyncedFs, hooked_fs, tree
from tests.support.processes import eventually
from tests.support.queues import (
    SMALL,
    control_u32,
    open_reader,
    open_writer,
    overwrite,
    payloads,
    read_all,
    sealed,
    segment_file,
    segment_ids,
    stored_records,
)

RECORD = 128
"""What a small payload takes."""
PER_SEGMENT = 7


def seqs(reader: QueueReader) -> list[int]:
    """Read what is there."""
    return [view.seq for view in reader]


def write_small(path: Path, count: int, **settings: Any) -> int:
    """Append so many small records and close; returns the segment the writer was in."""
    with open_writer(path, retention=False, **settings) as writer:
        for _ in range(count):
            writer.append(1, f"record {writer.next_seq}".encode())
        return writer.segment_id


def lose_seal(path: Path, segment_id: int) -> None:
    """Put the header of a segment back to what it was before the seal."""
    overwrite(segment_file(path, segment_id), layout.SEG_FLAGS, bytes(4))


def lose_tail(path: Path, segment_id: int, records: int) -> None:
    """Leave the first `records` of a segment; everything behind them never reached the disk."""
    start = layout.SEG_DATA_OFFSET + records * RECORD
    overwrite(segment_file(path, segment_id), start, bytes(SMALL - start))


# -- a stale control block -------------------------------------------------------------------


@pytest.mark.parametrize("seals", ["kept", "lost"])
@pytest.mark.parametrize("deleted", [False, True], ids=["all segments there", "old segments deleted"])
def test_segments_after_the_one_a_stale_control_block_names_are_found(
    tmp_path: Path, deleted: bool, seals: str
) -> None:
    path = tmp_path / "q"
    images = []
    with open_writer(path, retention=False) as writer:
        for _ in range(4 * PER_SEGMENT + 3):
            images.append((path / layout.CONTROL_FILE).read_bytes())
            writer.append(1, b"x")
        head, count = writer.segment_id, writer.next_seq
    files = {name: content for name, content in tree(path).items() if content is not None}
    for number, image in enumerate(images[::3]):
        copy = tmp_path / str(number)
        copy.mkdir()
        for name, content in files.items():
            (copy / name).write_bytes(content)
        (copy / layout.CONTROL_FILE).write_bytes(image)
        if seals == "lost":
            lose_seal(copy, head - 1)
        oldest = head - 1 if deleted else 0
        for segment_id in range(oldest):
            segment_file(copy, segment_id).unlink()
        with open_writer(copy, retention=False) as writer:
            assert (writer.segment_id, writer.next_seq) == (head, count), f"control block {number}"
            assert writer.append(1, b"new") == count
            assert segment_ids(copy)[0] == oldest, "a segment that was deleted must not come back"
        assert [message.seq for message in read_all(copy)] == list(range(oldest * PER_SEGMENT, count + 1))


def test_records_missing_from_two_segments_are_reported_to_readers(tmp_path: Path) -> None:
    """Its records were lost, as was the control block's knowledge of the later one."""
    path = tmp_path / "q"
    with open_writer(path, retention=False) as writer:
        control = (path / layout.CONTROL_FILE).read_bytes()
    write_small(path, 2 * PER_SEGMENT + 2)
    (path / layout.CONTROL_FILE).write_bytes(control)
    for segment_id in (0, 1):
        lose_seal(path, segment_id)
    lose_tail(path, 0, 3)
    lose_tail(path, 1, 0)
    with open_writer(path, retention=False) as writer:
        assert (writer.segment_id, writer.next_seq) == (2, 2 * PER_SEGMENT + 2)
        assert writer.recovery.sealed_segments == [0, 1]
        assert [damage.segment_id for damage in writer.recovery.damage] == [0, 1]
        writer.append(1, b"new")
    with open_reader(path, None) as reader:
        assert seqs_until_damage(reader) == [0, 1, 2]
        assert read_over_damage(reader) == [14, 15, 16]


def test_a_damaged_segment_below_the_flushed_position_stops_no_writer_behind_a_stale_control_block(
    tmp_path: Path,
) -> None:
    path = tmp_path / "q"
    write_small(path, PER_SEGMENT + 1)
    control = (path / layout.CONTROL_FILE).read_bytes()
    with open_writer(path, retention=False) as writer:
        for _ in range(3 * PER_SEGMENT):
            writer.append(1, b"x")
        writer.flush_sync()
        head, count = writer.segment_id, writer.next_seq
    (path / layout.CONTROL_FILE).write_bytes(control)
    overwrite(segment_file(path, 2), 0, b"JUNK")
    with open_writer(path, retention=False) as writer:
        assert (writer.segment_id, writer.next_seq) == (head, count)
        assert [damage.segment_id for damage in writer.recovery.damage] == [2]


def seqs_until_damage(reader: QueueReader) -> list[int]:
    """Read up to the damage that must be there."""
    found: list[int] = []
    with pytest.raises(Corrupt):
        found.extend(view.seq for view in reader)
    return found


@pytest.mark.parametrize("content", ["a record", "only a seal", "torn bytes"])
def test_a_roll_refuses_a_segment_that_already_holds_something(tmp_path: Path, content: str) -> None:
    path = tmp_path / "q"
    with open_writer(path, retention=False) as writer, open_reader(path) as reader:
        writer.append(1, b"first")
        foreign = bytearray(SMALL)
        flags = layout.SEG_FLAG_SEALED if content == "only a seal" else 0
        foreign[:64] = layout.SEGMENT_HEADER.pack(layout.SEG_MAGIC, layout.SEG_VERSION, 1, flags)
        if content == "a record":
            ring_twin.append(foreign, 64, 7, 7, 7, b"precious")
        elif content == "torn bytes":
            foreign[80] = 1
        segment_file(path, 1).write_bytes(foreign)
        for _ in range(2):
            with pytest.raises(Corrupt, match=r"000000001\.q already holds records"):
                writer.append(1, bytes(850))
            assert (writer.segment_id, writer.next_seq) == (0, 1)
        assert segment_file(path, 1).read_bytes() == foreign, "not a byte of it was changed"
        segment_file(path, 1).rename(tmp_path / "moved away")
        assert writer.append(1, bytes(850)) == 1
        assert seqs(reader) == [0, 1]


# -- lost seals ------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["kept", "lost"])
@pytest.mark.parametrize(
    "unsealed", [c for n in range(4) for c in itertools.combinations(range(3), n)], ids=str
)
def test_every_unsealed_segment_below_the_head_is_padded_and_sealed(
    tmp_path: Path, unsealed: tuple[int, ...], padding: str
) -> None:
    path = tmp_path / "q"
    with open_reader_of_new_queue(path) as reader:
        head = write_small(path, 3 * PER_SEGMENT + 2, defer_seal_sync=True)
        assert head == 3
        for segment_id in unsealed:
            lose_seal(path, segment_id)
            if padding == "lost":
                lose_tail(path, segment_id, PER_SEGMENT)
        with open_writer(path, retention=False) as writer:
            assert writer.recovery.sealed_segments == list(unsealed)
            assert (writer.segment_id, writer.next_seq) == (head, 3 * PER_SEGMENT + 2)
            writer.append(1, b"new")
        for segment_id in range(head):
            assert sealed(path, segment_id)
            last = stored_records(path, segment_id)[-1]
            assert last.header.type_id == ring_twin.PAD_TYPE
            assert last.offset + 64 + len(last.payload) == SMALL
        assert seqs(reader) == list(range(3 * PER_SEGMENT + 3))
        assert reader.wait(0) is False


def open_reader_of_new_queue(path: Path) -> QueueReader:
    """A reader that was there from the beginning and lives through everything."""
    open_writer(path).close()
    return open_reader(path)


def lay_out(image: dict[str, bytes | None], root: Path) -> Path:
    """Make a directory of a power loss image; the queue that it was drawn from may still be open."""
    root.mkdir()
    for name, content in image.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)
    return root


@pytest.mark.parametrize("seed", range(12))
def test_after_a_power_loss_before_deferred_syncs_no_reader_is_stuck_below_the_head(
    tmp_path: Path, seed: int
) -> None:
    (tmp_path / "disk").mkdir()
    fs = FaultFs(tmp_path / "disk", seed=seed, inner=UnsyncedFs(), page_size=256)
    with open_writer(tmp_path / "disk/q", fs=fs, retention=False, defer_seal_sync=True) as writer:
        fs.fail_when(lambda call: call.name == "fsync" and call.path.endswith(".q"), errno.EIO, times=100)
        for _ in range(20):
            writer.append(1, b"x")
        path = lay_out(fs.power_loss_image(), tmp_path / "after") / "q"
    with open_writer(path, retention=False) as writer, open_reader(path, None) as reader:
        assert all(sealed(path, segment_id) for segment_id in range(writer.segment_id))
        writer.append(1, b"last")
        found = read_over_damage(reader)
        assert found == sorted(set(found))
        assert found[-1] == writer.next_seq - 1


def read_over_damage(reader: QueueReader) -> list[int]:
    """Read on behind every damaged record and every gap, as the errors advise."""
    found: list[int] = []
    for _ in range(100):
        try:
            while (view := reader.next()) is not None:
                found.append(view.seq)
            return found
        except Corrupt as error:
            if "skip_corrupt()" in str(error):
                reader.skip_corrupt()
            else:
                behind = re.search(r"seek_seq\((\d+)\)", str(error))
                assert behind is not None, error
                assert reader.seek_seq(int(behind[1])) is True
    raise AssertionError("the damage does not end")


# -- a reader beyond what survived -----------------------------------------------------------


def commit_at(path: Path, segment_id: int, offset: int, name: str = "alpha") -> None:
    """Let a reader have committed a position, as its synced meta file says."""
    meta = ReaderMetaFile.open(UnsyncedFs(), str(path), name)
    meta.store(segment_id, offset, 1, durable=True)
    meta.close()


@pytest.mark.parametrize("survived", [0, 1, 4])
def test_a_reader_that_committed_records_which_did_not_survive_gets_every_new_one(
    tmp_path: Path, survived: int
) -> None:
    path = tmp_path / "q"
    write_small(path, 5)
    with open_reader(path) as reader:
        assert seqs(reader) == [0, 1, 2, 3, 4]
        reader.commit()
    lose_tail(path, 0, survived)
    with open_writer(path, retention=False) as writer, open_reader(path) as reader:
        first = writer.next_seq
        assert (writer.segment_id, first) == (1, survived + (SMALL - 64 - survived * RECORD) // 64)
        for _ in range(12):
            writer.append(1, b"new")
        assert seqs(reader) == list(range(first, first + 12))
    with open_reader(path, None) as other:
        assert read_over_damage(other) == [*range(survived), *range(first, first + 12)]


def test_a_reader_exactly_at_the_last_record_that_survived_makes_no_new_segment(tmp_path: Path) -> None:
    path = tmp_path / "q"
    write_small(path, 5)
    commit_at(path, 0, 64 + 3 * RECORD)
    overwrite(path / layout.CONTROL_FILE, layout.CTRL_WRITE_OFFSET, (64).to_bytes(8, "little"))
    lose_tail(path, 0, 3)
    with open_writer(path, retention=False) as writer, open_reader(path) as reader:
        assert (writer.segment_id, writer.offset) == (0, 64 + 3 * RECORD)
        writer.append(1, b"new")
        assert seqs(reader) == [3]


@pytest.mark.parametrize("files", ["all empty", "all gone"])
@pytest.mark.parametrize("offset", [64, 64 + RECORD, SMALL])
def test_a_reader_several_segments_beyond_what_survived_gets_every_new_record(
    tmp_path: Path, offset: int, files: str
) -> None:
    path = tmp_path / "q"
    with open_writer(path):
        control = (path / layout.CONTROL_FILE).read_bytes()
    write_small(path, 4 * PER_SEGMENT + 2)
    (path / layout.CONTROL_FILE).write_bytes(control)
    commit_at(path, 4, offset)
    lose_seal(path, 0)
    lose_tail(path, 0, 3)
    for segment_id in segment_ids(path)[1:]:
        if files == "all gone":
            segment_file(path, segment_id).unlink()
        else:
            lose_seal(path, segment_id)
            lose_tail(path, segment_id, 0)
    with open_writer(path, retention=False) as writer, open_reader(path) as reader:
        first = writer.next_seq
        assert writer.segment_id == (4 if offset == 64 else 5)
        assert first >= 3 * PER_SEGMENT, "seqs that the reader has seen"
        for _ in range(10):
            writer.append(1, b"new")
        assert seqs(reader) == list(range(first, first + 10))
    with open_reader(path, None) as other:
        assert read_over_damage(other) == [*range(3), *range(first, first + 10)]


def test_a_reader_more_than_1024_segments_beyond_what_survived_is_damaged_metadata(tmp_path: Path) -> None:
    path = tmp_path / "q"
    write_small(path, 2)
    commit_at(path, 1025, 64, "lost")
    before = segment_ids(path)
    for _ in range(2):
        with pytest.raises(CorruptMetadata, match=r"'lost'.*segment 1025.*delete its meta file"):
            open_writer(path)
        assert segment_ids(path) == before
    (path / "readers/lost.meta").unlink()
    with open_writer(path) as writer:
        assert writer.append(1, b"x") == 2


@pytest.mark.parametrize(("ahead", "allowed"), [(3, True), (4, False)])
def test_the_allowed_distance_of_a_reader_is_allowed_and_one_more_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, allowed: bool
) -> None:
    monkeypatch.setattr(recovery, "READER_AHEAD_SEGMENTS_MAX", 3)
    path = tmp_path / "q"
    write_small(path, 2)
    commit_at(path, ahead, 64)
    if not allowed:
        with pytest.raises(CorruptMetadata, match="'alpha'"):
            open_writer(path)
        return
    with open_writer(path) as writer, open_reader(path) as reader:
        first = writer.append(1, b"new")
        assert first > 2
        assert seqs(reader) == [first]


@pytest.mark.parametrize("seed", range(10))
def test_whatever_a_power_loss_takes_a_reader_with_a_durable_commit_gets_every_new_record(
    tmp_path: Path, seed: int
) -> None:
    fs = FaultFs(tmp_path, seed=seed, inner=UnsyncedFs(), page_size=256)
    path = tmp_path / "q"
    with (
        open_writer(path, fs=fs, segment_size=4096, retention=False) as writer,
        open_reader(path, fs=fs) as reader,
    ):
        for _ in range(25):
            writer.append(1, b"old")
        assert len(seqs(reader)) == 25
        reader.commit(durable=True)
    fs.restore()
    with open_writer(path, fs=fs, retention=False) as writer, open_reader(path, fs=fs) as reader:
        first = writer.next_seq
        for _ in range(50):
            writer.append(1, b"new")
        assert seqs(reader) == list(range(first, first + 50))


# -- seq after retention ---------------------------------------------------------------------


def fill_and_delete(root: Path, fs: FaultFs) -> tuple[Path, int]:
    """Write until retention has left one segment, and lose power; nothing was ever flushed.

    Returns the queue as it is then, and the first seq of that segment.
    """
    path = root / "disk/q"
    with (
        open_writer(path, fs=fs, retention_check_interval_s=0.001) as writer,
        open_reader(path, fs=fs) as reader,
    ):
        for _ in range(5 * PER_SEGMENT + 2):
            writer.append(1, b"x")
        head = writer.segment_id
        assert len(seqs(reader)) == writer.next_seq
        reader.commit()
        writer._retention.wake()
        eventually("retention to delete what was read", lambda: segment_ids(path)[0] == head)
        return lay_out(fs.power_loss_image(), root / "after") / "q", head * PER_SEGMENT


def disk(root: Path, seed: int = 0) -> FaultFs:
    """A disk that loses single cells."""
    (root / "disk").mkdir()
    return FaultFs(root / "disk", seed=seed, inner=UnsyncedFs(), page_size=64)


@pytest.mark.parametrize("seed", range(10))
def test_seq_continues_after_a_power_loss_although_all_older_segments_were_deleted(
    tmp_path: Path, seed: int
) -> None:
    path, first = fill_and_delete(tmp_path, disk(tmp_path, seed))
    with open_writer(path) as writer:
        assert first < writer.next_seq <= first + 2


def test_retention_deletes_nothing_before_a_record_of_a_newer_segment_is_on_disk(tmp_path: Path) -> None:
    fs = disk(tmp_path)
    fill_and_delete(tmp_path, fs)
    first_delete = next(c for c in fs.log if c.name == "unlink" and c.path.endswith("000000000.q"))
    synced = [c for c in fs.log if c.name == "msync" and c.path.endswith(".q")]
    assert synced
    assert synced[0].number < first_delete.number


def test_while_the_newer_segment_cannot_be_synced_the_older_ones_stay_and_flush_sync_says_why(
    tmp_path: Path,
) -> None:
    def fails(call: Call) -> bool:
        return call.name == "msync" and call.path.endswith(".q") and not call.path.endswith("000000000.q")

    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    path = tmp_path / "q"
    with (
        open_writer(path, fs=fs, retention_check_interval_s=0.001) as writer,
        open_reader(path) as reader,
    ):
        fs.fail_when(fails, errno.EIO, times=10_000)
        for _ in range(3 * PER_SEGMENT + 2):
            writer.append(1, b"x")
        assert len(seqs(reader)) == writer.next_seq
        reader.commit()
        eventually("retention to try the sync", lambda: any(fails(call) for call in fs.log))
        writer._retention.run_pass()
        assert segment_ids(path)[0] == 0
        with pytest.raises(Io, match="Input/output error"):
            writer.flush_sync()


# -- leftovers -------------------------------------------------------------------------------


def test_opening_removes_what_an_interrupted_writer_left_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "q"
    head = write_small(path, 10)
    leftovers = ["000000009.q.tmp", "000000000.q.tmp", "000000000.idx.tmp", "000000777.idx"]
    others = ["1.q.tmp", "notes.tmp", "000000777.idx.bak", "0000000001.idx", "READY"]
    for name in leftovers + others:
        (path / name).write_bytes(b"left over")
    with open_writer(path, retention=False) as writer:
        assert (writer.segment_id, writer.next_seq) == (head, 10)
        names = os.listdir(path)
        assert [name for name in leftovers if name in names] == []
        assert [name for name in others if name not in names] == []
        assert layout.seek_index_name(0) in names, "the index of a segment that is there stays"
    assert len(payloads(path)) == 10


# -- a new queue -----------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["q", "a/b/q"])
def test_a_new_queue_directory_survives_a_power_loss_after_flush_sync(tmp_path: Path, below: str) -> None:
    for seed in range(10):
        root = tmp_path / str(seed)
        root.mkdir()
        fs = FaultFs(root, seed=seed, inner=UnsyncedFs())
        with open_writer(root / below, fs=fs) as writer:
            writer.append(1, b"flushed")
            writer.flush_sync()
        fs.restore()
        assert payloads(root / below) == [b"flushed"], f"seed {seed}"
        with open_writer(root / below, fs=fs) as writer:
            assert writer.next_seq == 1


def test_subscribers_are_not_let_in_before_the_first_segment_exists(tmp_path: Path) -> None:
    path = tmp_path / "q"
    looks: list[bool] = []

    def look(*_: object) -> None:
        early = Queue.try_open_subscriber(path, None)
        if early is not None:
            assert segment_file(path, 0).exists()
            early.close()
        elif (path / layout.CONTROL_FILE).exists():
            assert control_u32(path, CTRL_INIT_STATE) == layout.INIT_STATE_INITIALIZING
        looks.append(early is not None)

    with open_writer(path, fs=hooked_fs(look)):
        look()
    assert looks == sorted(looks), "once let in, always let in"
    assert looks.count(False) > 10


def test_a_writer_finishes_a_queue_whose_first_segment_could_not_be_made(tmp_path: Path) -> None:
    path = tmp_path / "q"
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    fs.fail_when("allocate", errno.ENOSPC, path=".q.tmp")
    with pytest.raises(Io, match="disk is full"):
        open_writer(path, fs=fs)
    assert control_u32(path, CTRL_INIT_STATE) == layout.INIT_STATE_INITIALIZING
    assert Queue.try_open_subscriber(path, "alpha") is None
    with pytest.raises(CorruptMetadata, match="open a publisher to finish it"):
        Queue.open_subscriber(path, "alpha", clock=TestClock())
    assert not (path / "readers").exists()
    with open_writer(path, fs=fs) as writer, open_reader(path) as reader:
        assert control_u32(path, CTRL_INIT_STATE) == layout.INIT_STATE_READY
        writer.append(1, b"x")
        assert seqs(reader) == [0]


def test_a_writer_finishes_a_queue_whose_creator_lost_power_at_any_call(tmp_path: Path) -> None:
    for call in itertools.count(1):
        root = tmp_path / str(call)
        root.mkdir()
        fs = FaultFs(root, seed=call, inner=UnsyncedFs())
        fs.lose_power_at(call)
        died = False
        try:
            open_writer(root / "q", fs=fs).close()
        except PowerLoss:
            died = True
        fs.restore()
        early = Queue.try_open_subscriber(root / "q", None)
        with open_writer(root / "q") as writer:
            writer.append(1, b"x")
            for reader in (early or open_reader(root / "q", None), open_reader(root / "q")):
                assert seqs(reader) == [0], f"power lost at call {call}"
                reader.close()
        if not died:
            break
    assert call > 20
