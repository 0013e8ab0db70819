"""Spec 2.3: how a reader steps, what it returns, and what it makes of damage."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from everlog.clock import NS_PER_S, TestClock
from everlog.errors import (
    Closed,
    Corrupt,
    InvalidConfig,
    Io,
    ReaderAlreadyActive,
    SegmentMissing,
    Unsupported,
    UnsupportedVersion,
)
from everlog.fault_fs import FaultFs
from everlog.fs import OsFs
from everlog.queue import Message, MessageView, QueueReader
from everlog.queue.reader_meta import ReaderPosition, list_readers
from tests.support.files import UnsyncedFs, tree
from tests.support.queues import (
    SMALL,
    flip,
    open_reader,
    open_writer,
    overwrite,
    payloads,
    segment_file,
    stored_records,
)


def fill(path: Path, count: int = 20) -> Path:
    """A closed queue of records of 128 bytes, seven to a segment."""
    with open_writer(path, retention=False) as writer:
        for seq in range(count):
            writer.append(seq % 5, f"{seq}".encode(), 1000 + seq)
    return path


def saved(path: Path, name: str = "alpha") -> ReaderPosition:
    """What the meta file of a reader says."""
    readers = list_readers(OsFs(), str(path))
    assert readers is not None
    position = readers[name]
    assert isinstance(position, ReaderPosition)
    return position


def texts(views: list[MessageView]) -> list[int]:
    return [int(bytes(view)) for view in views]


# -- the ways to read ----------------------------------------------------------------------------


def test_next_returns_every_message_once_in_order_and_then_none(tmp_path: Path) -> None:
    with open_reader(fill(tmp_path / "q")) as reader:
        for seq in range(20):
            view = reader.next()
            assert view is not None
            assert (view.seq, view.timestamp_ns, view.type_id, view.flags) == (seq, 1000 + seq, seq % 5, 0)
            assert bytes(view) == bytes(view.payload) == f"{seq}".encode()
            assert len(view) == len(view.payload) == len(f"{seq}")
            assert (view.segment_id, view.offset) == (seq // 7, 64 + seq % 7 * 128)
            assert view.end_offset == view.offset + 128
            assert reader.position == (view.segment_id, view.end_offset)
        assert reader.next() is None
        assert reader.next() is None


def test_iterating_yields_what_is_available_and_stops(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        assert list(reader) == []
        writer.append_many(1, [b"0", b"1"])
        assert texts(list(reader)) == [0, 1]
        assert list(reader) == []
        writer.append(1, b"2")
        assert texts(list(reader)) == [2]


def test_a_payload_is_read_only_and_zero_copy(tmp_path: Path) -> None:
    path = fill(tmp_path / "q", 1)
    with open_reader(path) as reader:
        view = reader.next()
        assert view is not None
        assert view.payload.readonly
        assert memoryview(view).readonly
        overwrite(segment_file(path, 0), 128, b"9")
        assert bytes(view) == b"9", "the view shows the file, not a copy"


def test_drain_returns_owned_copies_up_to_the_limit(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    with open_reader(path) as reader:
        assert reader.drain_available(0) == []
        first = reader.drain_available(3)
        assert first == [Message(seq, 1000 + seq, seq % 5, f"{seq}".encode()) for seq in range(3)]
        assert all(type(message.payload) is bytes for message in first)
        assert [message.seq for message in reader.drain(100)] == list(range(3, 20))
        assert reader.drain(100) == []


def test_for_each_calls_for_what_is_available_up_to_the_limit(tmp_path: Path) -> None:
    with open_reader(fill(tmp_path / "q")) as reader:
        seen: list[int] = []
        assert reader.for_each_available(4, lambda view: seen.append(view.seq)) == 4
        assert reader.for_each_available(100, lambda view: seen.append(view.seq)) == 16
        assert seen == list(range(20))
        assert reader.for_each_available(100, lambda view: seen.append(view.seq)) == 0


def test_for_each_stops_at_false_and_that_message_is_consumed_but_not_counted(tmp_path: Path) -> None:
    with open_reader(fill(tmp_path / "q")) as reader:
        assert reader.for_each_available(100, lambda view: view.seq != 5) == 5
        view = reader.next()
        assert view is not None
        assert view.seq == 6


@pytest.mark.parametrize("answer", [None, 0, "", True])
def test_for_each_goes_on_after_any_other_answer(tmp_path: Path, answer: object) -> None:
    with open_reader(fill(tmp_path / "q")) as reader:
        assert reader.for_each_available(100, lambda view: answer) == 20


def test_two_readers_are_independent(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    with open_reader(path, "alpha") as alpha, open_reader(path, "beta") as beta:
        assert [message.seq for message in alpha.drain(5)] == list(range(5))
        assert [message.seq for message in beta.drain(50)] == list(range(20))
        assert [message.seq for message in alpha.drain(50)] == list(range(5, 20))


def test_a_reader_follows_the_writer_through_every_kind_of_roll(tmp_path: Path) -> None:
    sizes = [0, SMALL - 128, 1, SMALL - 192, 0, SMALL - 192, 1, SMALL - 256, 0, 0, 0]
    with open_writer(tmp_path / "q", retention=False) as writer, open_reader(tmp_path / "q") as reader:
        for seq, size in enumerate(sizes):
            writer.append(1, bytes([seq]) * size)
            view = reader.next()
            assert view is not None
            assert (view.seq, bytes(view)) == (seq, bytes([seq]) * size)
            assert reader.next() is None


def test_a_reader_stays_at_the_end_of_a_segment_that_is_not_sealed(tmp_path: Path) -> None:
    path = fill(tmp_path / "q", 8)
    flags = segment_file(path, 0).read_bytes()[12:16]
    overwrite(segment_file(path, 0), 12, bytes(4))
    with open_reader(path) as reader:
        assert texts(list(reader)) == list(range(7))
        overwrite(segment_file(path, 0), 12, flags)
        assert texts(list(reader)) == [7]


def test_a_reader_stays_in_the_segment_that_the_control_block_calls_current(tmp_path: Path) -> None:
    path = fill(tmp_path / "q", 8)
    overwrite(path / "control.meta", 132, struct.pack("<I", 0))
    with open_reader(path) as reader:
        assert texts(list(reader)) == list(range(7))
        overwrite(path / "control.meta", 132, struct.pack("<I", 1))
        assert texts(list(reader)) == [7]


def test_a_reader_maps_read_only_and_changes_no_segment(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    before = tree(path)
    with open_reader(path) as reader:
        list(reader)
        reader.seek_seq(3)
        reader.read_batch()
        reader.detect_disconnect()
    after = tree(path)
    assert {name: after[name] for name in before} == before


# -- damage --------------------------------------------------------------------------------------


def test_a_bad_checksum_raises_and_the_position_stays(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    flip(segment_file(path, 0), 64 + 2 * 128 + 64)
    with open_reader(path) as reader:
        assert texts(reader_take(reader, 2)) == [0, 1]
        before = reader.position
        for _ in range(3):
            with pytest.raises(
                Corrupt, match=r"offset 320 of segment 0 fails its checksum; skip_corrupt\(\)"
            ):
                reader.next()
            assert reader.position == before
        with pytest.raises(Corrupt, match="checksum"):
            reader.read_batch()
        reader.skip_corrupt()
        assert [message.seq for message in reader.drain(100)] == list(range(3, 20))


def reader_take(reader: QueueReader, count: int) -> list[MessageView]:
    views = [reader.next() for _ in range(count)]
    return [view for view in views if view is not None]


def test_without_verify_a_bad_checksum_goes_unnoticed(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    flip(segment_file(path, 0), 64 + 2 * 128 + 64, 1)
    with open_reader(path, verify=False) as reader:
        assert texts(list(reader)) == [0, 1, 3, *range(3, 20)]


def test_a_length_that_leaves_the_segment_raises_and_cannot_be_skipped(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    overwrite(segment_file(path, 0), 64 + 128, struct.pack("<I", SMALL))
    with open_reader(path) as reader:
        reader.next()
        before = reader.position
        with pytest.raises(Corrupt, match=f"offset 192 of segment 0 claims {SMALL - 1} bytes of payload"):
            reader.next()
        with pytest.raises(Unsupported, match=r"no damaged record of usable length .*seek_seq"):
            reader.skip_corrupt()
        assert reader.position == before
        assert reader.seek_seq(7) is True
        assert [message.seq for message in reader.drain(100)] == list(range(7, 20))


def test_a_record_of_another_version_raises_and_can_be_skipped(tmp_path: Path) -> None:
    path = fill(tmp_path / "q", 3)
    overwrite(segment_file(path, 0), 64 + 4, b"\x03")
    with open_reader(path) as reader:
        with pytest.raises(UnsupportedVersion, match="message version 3; this build knows 1 and 2") as raised:
            reader.next()
        assert raised.value.version == 3
        assert reader.position == (0, 64)
        reader.skip_corrupt()
        assert texts(list(reader)) == [1, 2]


def test_a_sound_record_cannot_be_skipped_by_mistake(tmp_path: Path) -> None:
    with open_reader(fill(tmp_path / "q", 2)) as reader:
        for expected in (0, 1):
            with pytest.raises(Unsupported, match="no damaged record"):
                reader.skip_corrupt()
            assert texts(reader_take(reader, 1)) == [expected]
        with pytest.raises(Unsupported, match="no damaged record"):
            reader.skip_corrupt()


def test_padding_is_not_verified(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, b"0")
        writer.append(1, bytes(SMALL - 128))
    padding = stored_records(tmp_path / "q", 0)[-1]
    assert padding.header.type_id == 0xFFFF
    flip(segment_file(tmp_path / "q", 0), padding.offset + 64)
    flip(segment_file(tmp_path / "q", 0), padding.offset + 28)
    assert len(payloads(tmp_path / "q")) == 2


def test_a_bad_segment_header_raises_when_the_reader_gets_there(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    overwrite(segment_file(path, 1), 0, b"JUNK")
    with open_reader(path) as reader:
        assert texts(reader_take(reader, 7)) == list(range(7))
        with pytest.raises(Corrupt, match="magic"):
            reader.next()
        overwrite(segment_file(path, 1), 0, struct.pack("<I", 0x53454730))
        assert [message.seq for message in reader.drain(100)] == list(range(7, 20))


def test_a_reader_of_a_deleted_segment_reads_on_to_its_end_and_then_is_told(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    with open_reader(path) as reader:
        assert texts(reader_take(reader, 2)) == [0, 1]
        for segment_id in (0, 1):
            segment_file(path, segment_id).unlink()
        assert texts(reader_take(reader, 5)) == [2, 3, 4, 5, 6]
        for _ in range(2):
            with pytest.raises(
                SegmentMissing, match=r"segment 1 of .* was deleted before alpha could read it"
            ):
                reader.next()
        assert reader.seek_seq(0) is True
        assert [message.seq for message in reader.drain(100)] == list(range(14, 20))


# -- commit and heartbeat --------------------------------------------------------------------------


def test_a_commit_is_where_the_next_life_resumes(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    for start in range(0, 20, 4):
        with open_reader(path) as reader:
            assert [message.seq for message in reader.drain(4)] == list(range(start, start + 4))
            reader.commit()
            assert reader.committed_position == reader.position
            reader.drain(2)
    with open_reader(path) as reader:
        assert reader.next() is None


def test_what_was_read_but_not_committed_is_read_again(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    for _ in range(2):
        with open_reader(path) as reader:
            assert [message.seq for message in reader.drain(100)] == list(range(20))


def test_a_commit_at_the_very_end_of_a_segment_resumes_in_the_next(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer, open_reader(tmp_path / "q") as reader:
        writer.append(1, bytes(SMALL - 128))
        reader.next()
        reader.commit()
        assert saved(tmp_path / "q").offset == SMALL
        writer.append(1, b"next")
    assert [bytes(view) for view in open_reader(tmp_path / "q")] == [b"next"]


@pytest.mark.parametrize("durable", [True, False])
def test_commit_syncs_unless_told_not_to(tmp_path: Path, durable: bool) -> None:
    path = fill(tmp_path / "q")
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    with open_reader(path, fs=fs) as reader:
        reader.next()
        before = fs.calls
        reader.commit(durable=durable)
        names = [call.name for call in fs.log if call.number > before]
    assert names == (["pwrite", "fsync"] if durable else ["pwrite"])
    assert saved(path).offset == 192


def test_an_anonymous_reader_cannot_commit(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    with open_reader(path, None) as reader:
        assert reader.name is None
        reader.next()
        with pytest.raises(Unsupported, match="anonymous"):
            reader.commit()
        reader.heartbeat()
        assert reader.drain(1)[0].seq == 1
    assert not (path / "readers").exists()


def test_a_heartbeat_stores_the_committed_position_never_a_read_ahead(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    clock = TestClock()
    with open_reader(path, clock=clock) as reader:
        reader.drain(2)
        reader.commit()
        reader.drain(10)
        clock.advance_ns(7)
        reader.heartbeat()
        position = saved(path)
        assert (position.segment_id, position.offset) == reader.committed_position == (0, 64 + 2 * 128)
        assert position.heartbeat_ns == clock.wall_ns()


READING: dict[str, Callable[[QueueReader], object]] = {
    "next, with messages": lambda reader: [reader.next() for _ in range(9)],
    "next, with nothing to read": lambda reader: [reader.next() for _ in range(3)],
    "iterating": list,
    "drain": lambda reader: reader.drain(10),
    "for_each": lambda reader: reader.for_each_available(10, lambda view: None),
    "read_batch": lambda reader: reader.read_batch(),
    "read_batch, with nothing to read": lambda reader: [reader.read_batch() for _ in range(3)],
    "wait, until its time is over": lambda reader: reader.wait(0.01),
    "commit": lambda reader: reader.commit(),
}


@pytest.mark.parametrize("way", READING)
def test_a_reader_in_use_gives_a_sign_of_life_every_second(tmp_path: Path, way: str) -> None:
    """However few messages come: a reader without sign of life for its TTL loses its segments."""
    clock = TestClock()
    nothing_to_read = "nothing" in way or "over" in way
    with (
        open_writer(tmp_path / "q", retention=False) as writer,
        open_reader(tmp_path / "q", clock=clock) as reader,
    ):
        for _ in range(5):
            if not nothing_to_read:
                writer.append_many(1, [b"x"] * 9)
            clock.advance_ns(NS_PER_S)
            READING[way](reader)
        assert clock.wall_ns() - saved(tmp_path / "q").heartbeat_ns <= 2 * NS_PER_S


def test_a_reader_that_waits_for_each_message_gives_signs_of_life(tmp_path: Path) -> None:
    """The usual loop: wait, read what is there, wait again; a message every tenth of a second."""
    clock = TestClock()
    with (
        open_writer(tmp_path / "q", retention=False) as writer,
        open_reader(tmp_path / "q", clock=clock) as reader,
    ):
        for seq in range(50):
            writer.append(1, b"x")
            clock.advance_ns(NS_PER_S // 10)
            assert reader.wait(1)
            assert [view.seq for view in reader] == [seq]
        assert clock.wall_ns() - saved(tmp_path / "q").heartbeat_ns <= 2 * NS_PER_S


@pytest.mark.parametrize("way", ["next, with messages", "read_batch", "drain", "iterating"])
def test_a_heartbeat_that_cannot_be_stored_loses_no_message(tmp_path: Path, way: str) -> None:
    path = fill(tmp_path / "q", 5)
    clock = TestClock()
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    seqs: list[int] = []

    def collect(result: object) -> None:
        for item in result if isinstance(result, list) else [result]:
            seqs.extend([item.seq] if isinstance(item, Message | MessageView) else getattr(item, "seq", []))

    with open_reader(path, clock=clock, fs=fs) as reader:
        clock.advance_ns(5 * NS_PER_S)
        fs.fail_when("pwrite", 28, path="alpha.meta")
        for _ in range(8):
            try:
                result = READING[way](reader)
            except Io as error:
                assert "No space left" in str(error)
                continue
            collect(result)
    assert seqs == list(range(5)), "an error of the heartbeat may be raised, but must not eat a message"


# -- the end ---------------------------------------------------------------------------------------


def test_a_closed_reader_refuses_everything_and_closes_again(tmp_path: Path) -> None:
    reader = open_reader(fill(tmp_path / "q"))
    reader.close()
    reader.close()
    uses: list[Callable[[], object]] = [
        reader.next,
        lambda: list(reader),
        reader.read_batch,
        lambda: reader.drain(1),
        lambda: reader.for_each_available(1, print),
        lambda: reader.wait(0),
        reader.commit,
        reader.heartbeat,
        reader.skip_corrupt,
        lambda: reader.seek_seq(0),
        lambda: reader.seek_timestamp(0),
        reader.writer_status,
        reader.detect_disconnect,
    ]
    for use in uses:
        with pytest.raises(Closed, match="closed"):
            use()


def test_closing_commits_nothing_and_frees_the_name(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    with open_reader(path) as reader:
        reader.drain(5)
        with pytest.raises(ReaderAlreadyActive):
            open_reader(path)
    with open_reader(path) as reader:
        assert reader.drain(1)[0].seq == 0


def test_a_forgotten_reader_frees_its_name(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    reader = open_reader(path)
    del reader
    open_reader(path).close()


def test_the_properties_tell_who_reads_what(tmp_path: Path) -> None:
    path = fill(tmp_path / "q")
    with open_reader(path, "alpha") as reader:
        assert (reader.name, reader.path) == ("alpha", str(path))
        assert (reader.segment_size, reader.writer_epoch) == (SMALL, 1)
        assert reader.position == reader.committed_position == (0, 64)


@pytest.mark.parametrize("max_count", [0, -1])
def test_a_batch_needs_room(tmp_path: Path, max_count: int) -> None:
    with (
        open_reader(fill(tmp_path / "q")) as reader,
        pytest.raises((Unsupported, InvalidConfig), match="at least 1 message"),
    ):
        reader.read_batch(max_count)
