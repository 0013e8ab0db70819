"""Spec 2.4: what open_publisher does to a queue that was not closed, step by step."""

import os
import struct
from pathlib import Path

import pytest

from everlog.errors import Corrupt, CorruptMetadata, UnsupportedVersion
from everlog.fs import OsFs
from everlog.queue import QueueWriter
from everlog.queue.reader_meta import ReaderMetaFile
from tests.support import ring_twin
from tests.support.files import tree
from tests.support.queues import (
    SMALL,
    control_u32,
    control_u64,
    flip,
    kill_image,
    open_reader,
    open_writer,
    overwrite,
    read_all,
    sealed,
    segment_file,
    segment_ids,
    stored_records,
)

PER_SEGMENT = 7
CURRENT_SEGMENT, WRITE_OFFSET = 132, 256


def fill(path: Path, count: int, image: Path) -> Path:
    """Append so many records of 128 bytes and return what a kill of the writer would leave."""
    with open_writer(path, retention=False) as writer:
        for seq in range(count):
            writer.append(1, f"{seq}".encode(), 1000 + seq)
        kill_image(path, image)
    for segment_id in segment_ids(image):
        if not stored_records(image, segment_id) and segment_id > 0:
            segment_file(image, segment_id).unlink()  # merely prepared, which may or may not have happened
    return image


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A queue of two full segments and three records, whose writer was killed."""
    return fill(tmp_path / "q", 2 * PER_SEGMENT + 3, tmp_path / "image")


COUNT = 2 * PER_SEGMENT + 3
END = 64 + 3 * 128
"""Where the records of `killed` end in segment 2."""


def seqs(path: Path) -> list[int]:
    return [message.seq for message in read_all(path)]


def check(path: Path, writer: QueueWriter, place: tuple[int, int], next_seq: int = COUNT) -> None:
    """The writer stands there, goes on counting, and nothing is missing."""
    assert (writer.segment_id, writer.offset, writer.next_seq) == (*place, next_seq)
    assert (control_u32(path, CURRENT_SEGMENT), control_u64(path, WRITE_OFFSET)) == place
    assert writer.append(1, b"next") == next_seq
    assert seqs(path) == list(range(next_seq + 1))


def head_of(path: Path, segment_id: int, offset: int) -> None:
    """Let the control block say something else."""
    overwrite(path / "control.meta", CURRENT_SEGMENT, struct.pack("<I", segment_id))
    overwrite(path / "control.meta", WRITE_OFFSET, struct.pack("<Q", offset))


def checkpoint(path: Path, segment_id: int, offset: int) -> None:
    (path / "index.meta").write_bytes(struct.pack("<QQ", segment_id, offset))


# -- step 1: lock, control block, leftovers --------------------------------------------------------


def test_step_1_a_control_block_missing_beside_segments_is_an_error(killed: Path) -> None:
    (killed / "control.meta").unlink()
    before = {name: data for name, data in tree(killed).items() if name != "writer.lock"}
    with pytest.raises(CorruptMetadata, match=r"3 segments but no control\.meta"):
        open_writer(killed)
    assert {name: data for name, data in tree(killed).items() if name != "writer.lock"} == before


def test_step_1_a_control_block_that_was_never_finished_is_finished(tmp_path: Path) -> None:
    """A writer died after the control block had appeared and before the first segment had."""
    open_writer(tmp_path / "q").close()
    segment_file(tmp_path / "q", 0).unlink()
    overwrite(tmp_path / "q/control.meta", 8, struct.pack("<I", 1))
    with open_writer(tmp_path / "q") as writer:
        check(tmp_path / "q", writer, (0, 64), 0)


def test_step_1_segments_that_were_being_prepared_are_deleted(killed: Path) -> None:
    for name in ("000000003.q.tmp", "000000009.q.tmp"):
        (killed / name).write_bytes(b"half")
    for name in ("notes.tmp", "12.q.tmp", "0000000010.q", "000000004.qq", "x00000004.q"):
        (killed / name).write_bytes(b"another program's")
    with open_writer(killed, retention=False) as writer:
        check(killed, writer, (2, END))
    assert not list(killed.glob("00000000?.q.tmp"))
    for name in ("notes.tmp", "12.q.tmp", "0000000010.q", "000000004.qq", "x00000004.q"):
        assert (killed / name).read_bytes() == b"another program's", "anything else is ignored"


def test_step_1_nothing_is_touched_without_the_lock(killed: Path) -> None:
    (killed / "000000003.q.tmp").write_bytes(b"half")
    with open_writer(killed, retention=False):
        (killed / "000000007.q.tmp").write_bytes(b"half")
        with pytest.raises(Exception, match="held by the live process"):
            open_writer(killed)
        assert (killed / "000000007.q.tmp").exists()


# -- step 2: which segment, and its predecessor ----------------------------------------------------


@pytest.mark.parametrize("control", [0, 1, 2])
@pytest.mark.parametrize("index", [None, (0, 64), (1, 64), (2, 64), (2, END)])
def test_step_2_the_newer_of_control_and_index_meta_is_where_it_starts(
    killed: Path, control: int, index: tuple[int, int] | None
) -> None:
    """However old either of them is, step 6 finds the end."""
    head_of(killed, control, 64)
    if index is not None:
        checkpoint(killed, *index)
    with open_writer(killed, retention=False) as writer:
        check(killed, writer, (2, END))


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<QQ", 2, 65), struct.pack("<QQ", 2**40, 64)])
def test_step_2_an_index_meta_that_makes_no_sense_is_ignored(killed: Path, content: bytes) -> None:
    (killed / "index.meta").write_bytes(content)
    with open_writer(killed, retention=False) as writer:
        check(killed, writer, (2, END))


def test_step_2_an_index_meta_of_a_segment_that_is_gone_is_ignored(killed: Path) -> None:
    checkpoint(killed, 9, 64)
    with open_writer(killed, retention=False) as writer:
        check(killed, writer, (2, END))


def test_step_2_an_unsealed_predecessor_is_padded_and_sealed(killed: Path) -> None:
    """The writer died between publishing segment 2 and sealing segment 1; its padding may be missing too."""
    end = 64 + PER_SEGMENT * 128
    overwrite(segment_file(killed, 1), 12, bytes(4))
    overwrite(segment_file(killed, 1), end, bytes(SMALL - end))
    with open_reader(killed, None) as reader:
        assert len(reader.drain(100)) == 2 * PER_SEGMENT, "a reader cannot leave it"
        with open_writer(killed, retention=False) as writer:
            assert writer.recovery.sealed_segments == [1]
            assert sealed(killed, 1)
            assert stored_records(killed, 1)[-1].header.type_id == 0xFFFF
            assert [message.seq for message in reader.drain(100)] == [14, 15, 16]
            check(killed, writer, (2, END))


def test_step_2_a_predecessor_that_has_lost_its_last_record_is_sealed_as_it_is(killed: Path) -> None:
    end = 64 + PER_SEGMENT * 128
    overwrite(segment_file(killed, 1), 12, bytes(4))
    overwrite(segment_file(killed, 1), end, bytes(SMALL - end))
    flip(segment_file(killed, 1), 64 + 6 * 128 + 64)
    with open_writer(killed, retention=False) as writer:
        assert [(damage.segment_id, damage.first_offset) for damage in writer.recovery.damage] == [(1, 832)]
        assert writer.recovery.torn_tails == []
        assert writer.recovery.sealed_segments == [1]
        assert writer.next_seq == COUNT
    with open_reader(killed, None) as reader:
        assert [message.seq for message in reader.drain(100)] == list(range(13))
        with pytest.raises(Corrupt, match="offset 832 of segment 1 fails its checksum"):
            reader.next()
        assert reader.seek_seq(14) is True
        assert [message.seq for message in reader.drain(100)] == [14, 15, 16]


def test_step_2_a_sealed_predecessor_is_left_alone(killed: Path) -> None:
    before = segment_file(killed, 1).read_bytes()
    with open_writer(killed, retention=False) as writer:
        assert writer.recovery.sealed_segments == []
    assert segment_file(killed, 1).read_bytes() == before


# -- step 3: where the scan begins -----------------------------------------------------------------


@pytest.mark.parametrize("index", [(1, 64 + 2 * 128), (2, 64), (2, 64 + 64), (2, 64 + 2 * 128)])
def test_step_3_the_whole_segment_is_scanned_whatever_index_meta_says(
    killed: Path, index: tuple[int, int]
) -> None:
    """Damage to what was flushed must be found, and a damaged `index.meta` may point into a record."""
    checkpoint(killed, *index)
    with open_writer(killed, retention=False) as writer:
        assert writer.recovery.records_scanned == 3
        check(killed, writer, (2, END))


@pytest.mark.parametrize("offset", [64, 64 + 128, 2**60])
def test_step_3_the_offset_of_the_control_block_does_not_say_what_there_is(killed: Path, offset: int) -> None:
    head_of(killed, 2, offset)
    with open_writer(killed, retention=False) as writer:
        check(killed, writer, (2, END))


@pytest.mark.parametrize("source", ["control block", "index.meta", "a reader"])
@pytest.mark.parametrize("offset", [END + 64, END + 128, SMALL])
def test_step_3_no_seq_that_was_published_is_given_out_again(killed: Path, offset: int, source: str) -> None:
    """A power loss has taken records that the control block, `index.meta` or a reader has seen."""
    head_of(killed, 2, offset if source == "control block" else 64)
    if source == "index.meta":
        checkpoint(killed, 2, offset)
    if source == "a reader":
        meta = ReaderMetaFile.open(OsFs(), str(killed), "alpha")
        meta.store(2, offset, 1, durable=True)
        meta.close()
    for _ in range(2):
        with open_writer(killed, retention=False) as writer:
            assert [(damage.segment_id, damage.first_offset) for damage in writer.recovery.damage] == [
                (2, END)
            ]
            assert (writer.segment_id, writer.offset) == (3, 64)
            assert writer.next_seq == COUNT + (SMALL - END) // 64, "every cell may have been a record"
    with open_writer(killed, retention=False) as writer:
        assert writer.append(1, b"next") >= COUNT + (offset - END) // 64
    with open_reader(killed, None) as reader:
        assert [message.seq for message in reader.drain(100)] == list(range(COUNT))
        with pytest.raises(Corrupt, match=rf"records {COUNT} to {COUNT + 8} are missing; seek_seq"):
            reader.next()


# -- step 4: where the scan stops ------------------------------------------------------------------


def test_step_4_it_stops_at_a_length_that_leaves_the_segment(killed: Path) -> None:
    overwrite(segment_file(killed, 2), END, struct.pack("<I", SMALL))
    with open_writer(killed, retention=False) as writer:
        assert writer.recovery.torn_tails == [(2, END)]
        check(killed, writer, (3, 64))


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_step_4_bad_records_at_the_end_that_were_never_published_are_a_dirty_tail(
    killed: Path, bad: int
) -> None:
    head_of(killed, 2, 64)
    for place in range(3 - bad, 3):
        flip(segment_file(killed, 2), 64 + place * 128 + 64)
    left = COUNT - bad
    with open_writer(killed, retention=False) as writer:
        assert writer.recovery.torn_tails == [(2, 64 + (3 - bad) * 128)]
        assert writer.recovery.damage == []
        check(killed, writer, (3, 64), left)


@pytest.mark.parametrize("bad", [[0], [1], [0, 1]])
def test_step_4_bad_records_followed_by_good_ones_are_left_and_reported(killed: Path, bad: list[int]) -> None:
    for place in bad:
        flip(segment_file(killed, 2), 64 + place * 128 + 64)
    before = segment_file(killed, 2).read_bytes()
    with open_writer(killed, retention=False) as writer:
        (damage,) = writer.recovery.damage
        assert (damage.segment_id, damage.first_offset, damage.records) == (2, 64 + bad[0] * 128, len(bad))
        assert writer.recovery.torn_tails == []
        assert (writer.segment_id, writer.offset, writer.next_seq) == (2, END, COUNT)
    assert segment_file(killed, 2).read_bytes() == before
    with open_reader(killed, None) as reader:
        assert len([reader.next() for _ in range(14 + bad[0])]) == 14 + bad[0]
        for _ in bad:
            with pytest.raises(Corrupt):
                reader.next()
            reader.skip_corrupt()
        assert [message.seq for message in reader.drain(9)] == list(range(14 + bad[-1] + 1, COUNT))


def test_step_4_a_record_of_a_later_version_is_refused_and_not_touched(killed: Path) -> None:
    data = bytearray(segment_file(killed, 2).read_bytes())
    ring_twin.append(data, 64 + 128, 15, 1015, 1, b"15", version=7)
    segment_file(killed, 2).write_bytes(data)
    before = segment_file(killed, 2).read_bytes()
    with pytest.raises(UnsupportedVersion, match="message version 7 at offset 192") as raised:
        open_writer(killed)
    assert raised.value.version == 7
    assert segment_file(killed, 2).read_bytes() == before


# -- step 5: what is done about it -----------------------------------------------------------------


def test_step_5_a_clean_tail_is_appended_to_in_place(killed: Path) -> None:
    with open_writer(killed, retention=False) as writer:
        assert writer.recovery.torn_tails == []
        assert writer.recovery.sealed_segments == []
        check(killed, writer, (2, END))
    assert [record.header.seq for record in stored_records(killed, 2)] == [14, 15, 16, 17]


@pytest.mark.parametrize("place", [4, 8, 24, 63])
def test_step_5_a_dirty_tail_is_padded_to_the_end_sealed_and_left(killed: Path, place: int) -> None:
    """The writer died while it wrote a header: any byte of the slot but the commit word may be set."""
    overwrite(segment_file(killed, 2), END + place, b"\x01")
    with open_writer(killed, retention=False) as writer:
        assert writer.recovery.torn_tails == [(2, END)]
        assert writer.recovery.sealed_segments == [2]
        check(killed, writer, (3, 64))
    padding = stored_records(killed, 2)[-1]
    assert (padding.offset, padding.header.type_id, padding.header.commit_len) == (
        END,
        0xFFFF,
        SMALL - END - 63,
    )
    assert not any(padding.payload)
    assert sealed(killed, 2)


def test_step_5_a_payload_without_a_header_is_a_clean_tail(killed: Path) -> None:
    """The payload is written before the header; the record is not visible yet."""
    overwrite(segment_file(killed, 2), END + 64, b"\xff" * 128)
    with open_writer(killed, retention=False) as writer:
        assert writer.recovery.torn_tails == []
        check(killed, writer, (2, END))


def test_step_5_a_full_segment_is_sealed_and_left(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, bytes(SMALL - 128))
    with open_writer(tmp_path / "q", retention=False) as writer:
        assert writer.recovery.sealed_segments == [0]
        assert writer.recovery.torn_tails == []
        check(tmp_path / "q", writer, (1, 64), 1)


def test_step_5_a_padded_segment_is_sealed_and_left(killed: Path) -> None:
    """The writer died within a roll, after the padding and before it published the next segment."""
    data = bytearray(segment_file(killed, 2).read_bytes())
    ring_twin.pad(data, END)
    segment_file(killed, 2).write_bytes(data)
    with open_writer(killed, retention=False) as writer:
        assert writer.recovery.sealed_segments == [2]
        assert writer.recovery.torn_tails == []
        check(killed, writer, (3, 64))


def test_step_5_a_sealed_segment_is_left(killed: Path) -> None:
    data = bytearray(segment_file(killed, 2).read_bytes())
    ring_twin.pad(data, END)
    ring_twin.seal(data)
    segment_file(killed, 2).write_bytes(data)
    with open_writer(killed, retention=False) as writer:
        assert writer.recovery.sealed_segments == []
        check(killed, writer, (3, 64))


def test_step_5_one_header_left_is_room_for_an_empty_record(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, bytes(SMALL - 192))
    with open_writer(tmp_path / "q", retention=False) as writer:
        assert (writer.segment_id, writer.offset) == (0, SMALL - 64)
        writer.append(1, b"")
        assert writer.segment_id == 0
    assert seqs(tmp_path / "q") == [0, 1]


# -- step 6: a successor that the control block does not know --------------------------------------


@pytest.mark.parametrize("known", [0, 1])
def test_step_6_records_hidden_by_a_stale_control_block_are_kept(killed: Path, known: int) -> None:
    head_of(killed, known, 64)
    before = [segment_file(killed, segment_id).read_bytes() for segment_id in range(3)]
    with open_writer(killed, retention=False) as writer:
        assert [segment_file(killed, segment_id).read_bytes() for segment_id in range(3)] == before
        check(killed, writer, (2, END))


def test_step_6_a_segment_that_has_lost_its_end_before_a_hidden_one_is_sealed_and_reported(
    killed: Path,
) -> None:
    """A power loss has taken the end of segment 1 and the announcement of segment 2."""
    head_of(killed, 1, 64)
    end = 64 + 4 * 128
    overwrite(segment_file(killed, 1), 12, bytes(4))
    overwrite(segment_file(killed, 1), end, bytes(SMALL - end))
    with open_writer(killed, retention=False) as writer:
        assert (writer.segment_id, writer.offset, writer.next_seq) == (2, END, COUNT)
        assert sealed(killed, 1)
        assert [(damage.segment_id, damage.first_offset) for damage in writer.recovery.damage] == [(1, end)]
    with open_reader(killed, None) as reader:
        assert [message.seq for message in reader.drain(100)] == list(range(11))
        with pytest.raises(Corrupt, match=r"records 11 to 13 are missing; seek_seq\(14\)"):
            reader.next()


def test_step_6_an_empty_successor_is_merely_prepared(killed: Path) -> None:
    data = struct.pack("<IIII", 0x53454730, 2, 3, 0) + bytes(SMALL - 16)
    segment_file(killed, 3).write_bytes(data)
    with open_writer(killed, retention=False) as writer:
        check(killed, writer, (2, END))


def test_step_6_old_segments_deleted_and_the_control_block_stale(killed: Path) -> None:
    """Retention had deleted what the control block, as old as before the power loss, calls current."""
    head_of(killed, 0, 64)
    segment_file(killed, 0).unlink()
    with open_writer(killed, retention=False) as writer:
        assert (writer.segment_id, writer.offset, writer.next_seq) == (2, END, COUNT)
    assert segment_ids(killed)[0] == 1, "the deleted segment must not come back"
    assert seqs(killed) == list(range(PER_SEGMENT, COUNT))


def test_step_6_everything_but_the_last_segment_deleted_and_the_control_block_stale(killed: Path) -> None:
    head_of(killed, 0, 64)
    for segment_id in (0, 1):
        segment_file(killed, segment_id).unlink()
    with open_writer(killed, retention=False) as writer:
        assert (writer.segment_id, writer.offset, writer.next_seq) == (2, END, COUNT)
    assert seqs(killed) == [14, 15, 16]


# -- step 7: seq -----------------------------------------------------------------------------------


def test_step_7_seq_continues_after_the_last_committed_record(killed: Path) -> None:
    with open_writer(killed, retention=False) as writer:
        assert writer.next_seq == COUNT


def test_step_7_an_empty_segment_looks_back(tmp_path: Path) -> None:
    image = fill(tmp_path / "q", PER_SEGMENT, tmp_path / "image")
    overwrite(segment_file(image, 0), 64 + PER_SEGMENT * 128 + 8, b"\x01")  # dirty: it must be left
    with open_writer(image, retention=False) as writer:
        check(image, writer, (1, 64), PER_SEGMENT)


@pytest.mark.parametrize(
    ("place", "lost", "records"),
    [(64 + 2 * 128 + 64, b"\xff", 1), (64 + 6 * 128 + 64, b"\xff", 1), (64 + 4 * 128, bytes(128), 0)],
    ids=["a record", "the last record", "the end"],
)
def test_step_7_what_the_last_sealed_segment_has_lost_is_reported(
    tmp_path: Path, place: int, lost: bytes, records: int
) -> None:
    image = fill(tmp_path / "q", 2 * PER_SEGMENT + 1, tmp_path / "image")
    segment_file(image, 2).unlink()
    head_of(image, 1, 64)
    overwrite(segment_file(image, 1), place, lost)
    with open_writer(image, retention=False) as writer:
        (damage,) = writer.recovery.damage
        assert (damage.segment_id, damage.records) == (1, records)
        assert damage.first_offset == place - place % 64 - (64 if records else 0)


def test_step_7_segments_of_nothing_but_padding_are_looked_through(killed: Path) -> None:
    for segment_id in (1, 2):
        data = bytearray(segment_file(killed, segment_id).read_bytes())
        ring_twin.pad(data, 64)
        ring_twin.seal(data)
        segment_file(killed, segment_id).write_bytes(data)
    with open_writer(killed, retention=False) as writer:
        assert (writer.segment_id, writer.next_seq) == (3, PER_SEGMENT)


@pytest.mark.parametrize("count", [1, PER_SEGMENT, 2 * PER_SEGMENT + 3])
def test_step_7_no_seq_is_given_out_again_if_all_segments_with_records_are_lost(
    tmp_path: Path, count: int
) -> None:
    path = tmp_path / "q"
    with open_writer(path, retention=False) as writer:
        for _ in range(count):
            writer.append(1, b"x")
        writer.roll()
    *lost, _ = [segment_id for segment_id in segment_ids(path) if segment_id <= control_u32(path, 132)]
    for segment_id in lost:
        segment_file(path, segment_id).unlink()
    with open_writer(path, retention=False) as writer:
        assert [damage.reason for damage in writer.recovery.damage] == [
            f"segments 0 to {lost[-1]} are missing, and no other has a record"
        ]
        assert writer.append(1, b"next") >= count


def test_step_7_the_first_record_of_all_has_seq_0(tmp_path: Path) -> None:
    open_writer(tmp_path / "q").close()
    with open_writer(tmp_path / "q") as writer:
        assert writer.append(1, b"x") == 0


def test_step_7_a_reader_that_was_beyond_the_surviving_records_misses_no_new_one(killed: Path) -> None:
    """It had committed records which a power loss took: new ones must not go where it has already been."""
    with open_reader(killed) as reader:
        reader.drain(100)
        reader.commit()
        assert reader.committed_position == (2, END)
    overwrite(segment_file(killed, 2), 64 + 128, bytes(SMALL - 64 - 128))
    with open_writer(killed, retention=False) as writer:
        new = [writer.append(1, b"new") for _ in range(12)]
        with open_reader(killed) as reader:
            assert [message.seq for message in reader.drain(100)] == new


# -- step 8: publish, and go on --------------------------------------------------------------------


def test_step_8_place_epoch_heartbeat_and_notification_are_published(killed: Path) -> None:
    head_of(killed, 1, 64)
    overwrite(killed / "control.meta", 264, bytes(8))
    notified = control_u32(killed, 384)
    with open_writer(killed, retention=False) as writer:
        assert (control_u32(killed, CURRENT_SEGMENT), control_u64(killed, WRITE_OFFSET)) == (2, END)
        assert control_u64(killed, 16) == writer.epoch == 2
        assert control_u64(killed, 264) > 0
        assert control_u32(killed, 384) > notified
        assert control_u32(killed, 128) % 2 == 0


def test_step_8_an_odd_generation_left_by_a_dead_writer_is_repaired(killed: Path) -> None:
    overwrite(killed / "control.meta", 128, struct.pack("<I", control_u32(killed, 128) | 1))
    with open_reader(killed, None) as reader:
        assert [message.seq for message in reader.drain(100)] == list(range(COUNT))
    with open_writer(killed, retention=False) as writer:
        assert control_u32(killed, 128) % 2 == 0
        check(killed, writer, (2, END))


def test_step_8_the_workers_run(killed: Path) -> None:
    with open_writer(killed) as writer:
        for _ in range(20):
            writer.append(1, bytes(SMALL - 128))
        assert writer.metrics.rolls >= 19


def test_recovering_twice_is_the_same_as_once(killed: Path) -> None:
    overwrite(segment_file(killed, 2), END + 8, b"\x01")
    open_writer(killed, retention=False).close()
    segments = {name: data for name, data in tree(killed).items() if name.endswith(".q")}
    for _ in range(3):
        with open_writer(killed, retention=False) as writer:
            assert (writer.segment_id, writer.offset, writer.next_seq) == (3, 64, COUNT)
    assert {name: data for name, data in tree(killed).items() if name.endswith(".q")} == segments


def test_a_recovery_that_fails_lets_go_of_the_lock(killed: Path) -> None:
    original = segment_file(killed, 2).read_bytes()
    overwrite(segment_file(killed, 2), 0, b"JUNK")
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(Corrupt):
            open_writer(killed)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    segment_file(killed, 2).write_bytes(original)
    with open_writer(killed, retention=False) as writer:
        check(killed, writer, (2, END))


def test_a_removed_head_segment_is_reported_and_not_replaced(killed: Path) -> None:
    """Retention never deletes it, so records are missing; a new empty one would hide that."""
    segment_file(killed, 2).unlink()
    with pytest.raises(Corrupt):
        open_writer(killed, retention=False)


def test_all_segments_removed_is_not_an_empty_queue(killed: Path) -> None:
    for segment_id in segment_ids(killed):
        segment_file(killed, segment_id).unlink()
    with pytest.raises(Corrupt):
        open_writer(killed, retention=False)
