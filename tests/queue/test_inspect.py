"""The read-only look at a queue: complete, never waiting, never writing."""

import os
import shutil
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.clock import TestClock
from everlog.errors import CorruptMetadata, Io, QueueNotFound, UnsupportedVersion
from everlog.fault_fs import FaultFs
from everlog.fs import OsFs
from everlog.queue import Queue, layout
from everlog.queue.inspect import QueueInfo, find_queues, inspect_queue
from everlog.queue.reader_meta import list_readers
from everlog.queue.retention import byte_position
from everlog.queue.writer_lock import LockOwner, process_start_ticks
from tests.support.files import hooked_fs
from tests.support.queues import (
    RECORD_SIZE,
    RECORDS_PER_SEGMENT,
    SMALL,
    name_dead_writer,
    overwrite,
    snapshot,
    write_messages,
)

WRITING = {
    "pwrite",
    "truncate",
    "allocate",
    "fsync",
    "fsync_dir",
    "msync",
    "rename",
    "rename_noreplace",
    "unlink",
    "makedirs",
    "try_lock",
}


class StoppedClock(TestClock):
    """A clock that fails on every wait."""

    def sleep_ns(self, duration_ns: int) -> None:
        raise AssertionError("inspection must not sleep")

    def wait(self, event: threading.Event, timeout_ns: int) -> bool:
        raise AssertionError("inspection must not wait")


def look(path: Path) -> QueueInfo:
    """Inspect with a clock that must not be waited on and a file system that must not be changed."""

    def before(operation: str, arguments: tuple[object, ...]) -> None:
        assert operation not in WRITING
        if operation == "open":
            assert arguments[1] == os.O_RDONLY | os.O_NONBLOCK

    return inspect_queue(hooked_fs(before), StoppedClock(), str(path))


def test_everything_of_a_healthy_queue_is_shown(tmp_path: Path) -> None:
    clock = TestClock()
    path = tmp_path / "q"
    with Queue.open_publisher(path, clock=clock, segment_size=SMALL, retention=False) as writer:
        for number in range(RECORDS_PER_SEGMENT + 2):
            writer.append(1, struct.pack("<Q", number))
        writer.flush_sync()
        with Queue.open_subscriber(path, "zeta", clock=clock) as reader:
            reader.next()
            reader.commit()
        Queue.open_subscriber(path, "alpha", "latest", clock=clock).close()
        info = look(path)
    assert info.control is not None
    assert info.control_error is None
    assert (info.control.head_segment, info.control.head_offset) == (1, 64 + 2 * RECORD_SIZE)
    assert info.control.head_pos == SMALL + 64 + 2 * RECORD_SIZE
    assert info.control.segment_size == SMALL
    assert info.control.writer_epoch == 1
    assert info.control.writer_heartbeat_ns == clock.wall_ns()
    assert info.control.notify_seq > 0
    assert info.control.waiters_pending == 0
    assert not info.control.torn
    assert info.index == (1, 64 + 2 * RECORD_SIZE)
    assert info.lock is not None
    assert info.lock.owner == LockOwner(os.getpid(), process_start_ticks(os.getpid()) or 0, 1)
    assert info.lock.alive
    assert [(s.segment_id, s.length_bytes, s.sealed, s.error) for s in info.segments[:2]] == [
        (0, SMALL, True, None),
        (1, SMALL, False, None),
    ]
    assert [segment.has_records for segment in info.segments[:2]] == [True, True]
    assert [(r.name, r.lag_bytes, r.lag_segments, r.error) for r in info.readers] == [
        ("alpha", 0, 0, None),
        ("zeta", SMALL + RECORD_SIZE, 1, None),
    ]
    assert info.stored == list_readers(OsFs(), str(path))
    assert info.unreadable == {}
    assert not info.ready
    assert info.bytes_on_disk >= 2 * SMALL


def test_a_queue_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "file"):
        with pytest.raises(QueueNotFound, match=r"control\.meta is missing"):
            look(path)


def test_a_half_initialised_control_block_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    for content in (bytes(512), struct.pack("<III", layout.CTRL_MAGIC, layout.CTRL_VERSION, 1) + bytes(500)):
        (tmp_path / layout.CONTROL_FILE).write_bytes(content)
        info = look(tmp_path)
        assert info.control is None
        assert isinstance(info.control_error, CorruptMetadata)
        assert "not initialised" in str(info.control_error)


@pytest.mark.parametrize(
    ("offset", "data", "kind", "message"),
    [
        (layout.CTRL_MAGIC_OFFSET, b"JUNK", CorruptMetadata, "magic"),
        (layout.CTRL_VERSION_OFFSET, b"\x09\0\0\0", UnsupportedVersion, "version 9"),
        (layout.CTRL_SEGMENT_SIZE, struct.pack("<Q", 100), CorruptMetadata, "segment_size of 100"),
        (layout.CTRL_SEGMENT_SIZE, struct.pack("<Q", 2**63), CorruptMetadata, "segment_size"),
        (layout.CTRL_WRITE_OFFSET, struct.pack("<Q", 65), CorruptMetadata, "write_offset of 65"),
        (layout.CTRL_WRITE_OFFSET, struct.pack("<Q", 2048), CorruptMetadata, "write_offset of 2048"),
    ],
)
def test_a_damaged_control_block_is_reported_with_everything_else_still_shown(
    tmp_path: Path, offset: int, data: bytes, kind: type[Exception], message: str
) -> None:
    path = tmp_path / "q"
    write_messages(path, 3)
    Queue.open_subscriber(path, "someone").close()
    overwrite(path / layout.CONTROL_FILE, offset, data)
    info = look(path)
    assert info.control is None
    assert type(info.control_error) is kind
    assert message in str(info.control_error)
    assert [segment.segment_id for segment in info.segments] == [0]
    assert [(reader.name, reader.lag_bytes) for reader in info.readers] == [("someone", None)]
    assert info.lock is not None


def test_a_short_control_block_is_reported(tmp_path: Path) -> None:
    for length in (0, 3, 130, 511):
        (tmp_path / layout.CONTROL_FILE).write_bytes(bytes(length))
        assert f"has {length} bytes, expected 512" in str(look(tmp_path).control_error)


def test_a_head_that_stays_half_published_is_shown_as_torn(tmp_path: Path) -> None:
    write_messages(tmp_path, 3)
    generation = (tmp_path / layout.CONTROL_FILE).read_bytes()[layout.CTRL_SEGMENT_GEN]
    overwrite(tmp_path / layout.CONTROL_FILE, layout.CTRL_SEGMENT_GEN, bytes([generation | 1]))
    control = look(tmp_path).control
    assert control is not None
    assert control.torn
    assert (control.head_segment, control.head_offset) == (0, layout.SEG_DATA_OFFSET)


@pytest.mark.parametrize(
    "name", ["control.meta", "writer.lock", "index.meta", "readers/x.meta", "000000000.q"]
)
def test_a_fifo_in_place_of_a_file_blocks_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / "q"
    write_messages(path, 3)
    Queue.open_subscriber(path, "x").close()
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    info = look(path)
    complaints = [
        str(info.control_error),
        *info.unreadable.values(),
        *(str(reader.error) for reader in info.readers),
        *(str(segment.error) for segment in info.segments),
    ]
    assert [complaint for complaint in complaints if "not a regular file" in complaint] != []


@pytest.mark.parametrize(
    "name", ["control.meta", "writer.lock", "index.meta", "readers/x.meta", "000000000.q"]
)
@pytest.mark.parametrize("operation", ["open", "pread"])
def test_a_file_that_cannot_be_read_becomes_part_of_the_picture(
    tmp_path: Path, name: str, operation: str
) -> None:
    path = tmp_path / "q"
    write_messages(path, 3)
    with Queue.open_publisher(path) as writer:
        writer.flush_sync()
    Queue.open_subscriber(path, "x").close()
    fs = FaultFs(str(tmp_path))
    fs.fail_when(operation, 13, path=f"/q/{name}")
    info = inspect_queue(fs, StoppedClock(), str(path))
    complaints = [
        str(info.control_error),
        *info.unreadable.values(),
        *(str(reader.error) for reader in info.readers),
        *(str(segment.error) for segment in info.segments),
    ]
    assert len([complaint for complaint in complaints if "cannot be read" in complaint]) == 1


def test_a_readers_directory_that_cannot_be_listed_is_noted(tmp_path: Path) -> None:
    write_messages(tmp_path, 3)
    (tmp_path / "readers").write_text("a file")
    info = look(tmp_path)
    assert list(info.unreadable) == ["readers"]
    assert info.stored is None


def test_a_queue_directory_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "q"
    write_messages(path, 1)
    fs = FaultFs(str(tmp_path))
    fs.fail_when(lambda call: call.name == "listdir" and call.path.endswith("/q"), 13)
    with pytest.raises(Io, match="cannot inspect"):
        inspect_queue(fs, TestClock(), str(path))


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (0, b"JUNK", "magic"),
        (4, b"\x07\0\0\0", "version 7"),
        (8, b"\x05\0\0\0", "says it is segment 5"),
    ],
)
def test_a_damaged_segment_header_is_shown(tmp_path: Path, offset: int, data: bytes, message: str) -> None:
    write_messages(tmp_path, 3)
    overwrite(tmp_path / layout.segment_name(0), offset, data)
    assert message in str(look(tmp_path).segments[0].error)


def test_a_segment_of_the_wrong_length_is_shown(tmp_path: Path) -> None:
    write_messages(tmp_path, 3)
    for length in (SMALL - 1, SMALL * 2, 0):
        os.truncate(tmp_path / layout.segment_name(0), length)
        assert f"has {length} bytes" in str(look(tmp_path).segments[0].error)


def test_a_segment_that_vanishes_while_looking_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "q"
    write_messages(path, 3 * RECORDS_PER_SEGMENT)

    def before(operation: str, arguments: tuple[object, ...]) -> None:
        if operation == "open" and str(arguments[0]).endswith("000000000.q"):
            (path / "000000000.q").unlink()

    info = inspect_queue(hooked_fs(before), TestClock(), str(path))
    assert [segment.segment_id for segment in info.segments][:2] == [1, 2]


def test_a_segment_with_only_padding_has_no_records(tmp_path: Path) -> None:
    write_messages(tmp_path, 1)
    pad = layout.MESSAGE_HEADER.pack(SMALL - 128 + 1, 1, 0, 0, layout.PAD_TYPE_ID, 0, 0)
    overwrite(tmp_path / layout.segment_name(0), layout.SEG_DATA_OFFSET, pad)
    assert not look(tmp_path).segments[0].has_records


def test_a_dead_writer_is_shown_as_dead(tmp_path: Path) -> None:
    write_messages(tmp_path, 1)
    pid = name_dead_writer(tmp_path, epoch=4)
    info = look(tmp_path)
    assert info.lock is not None
    assert info.lock.owner == LockOwner(pid, 1, 4)
    assert not info.lock.alive
    assert not info.writer_alive


def test_looking_uses_nothing_but_reads(tmp_path: Path) -> None:
    write_messages(tmp_path, 1)

    seen: list[object] = []

    def before(operation: str, arguments: tuple[object, ...]) -> None:
        seen.append(operation)

    inspect_queue(hooked_fs(before), TestClock(), str(tmp_path))
    assert set(seen) <= {"open", "close", "pread", "size", "listdir", "exists"}


@given(
    head=st.tuples(st.integers(0, 30), st.integers(1, SMALL // 64)),
    reader=st.tuples(st.integers(0, 40), st.integers(1, SMALL // 64)),
)
def test_the_lag_is_the_distance_to_the_head_and_never_negative(
    tmp_path_factory: pytest.TempPathFactory, head: tuple[int, int], reader: tuple[int, int]
) -> None:
    path = tmp_path_factory.mktemp("q")
    write_messages(path, 1)
    control = path / layout.CONTROL_FILE
    overwrite(control, layout.CTRL_CURRENT_SEGMENT, struct.pack("<I", head[0]))
    overwrite(control, layout.CTRL_WRITE_OFFSET, struct.pack("<Q", head[1] * 64))
    (path / "readers").mkdir()
    (path / "readers" / "r.meta").write_bytes(struct.pack("<QQ", reader[0], reader[1] * 64))
    info = look(path)
    distance = byte_position(head[0], head[1] * 64, SMALL) - byte_position(reader[0], reader[1] * 64, SMALL)
    assert info.readers[0].lag_bytes == max(0, distance)
    assert info.readers[0].lag_segments == max(0, head[0] - reader[0])
    shutil.rmtree(path)


@given(damage=st.lists(st.tuples(st.integers(0, 511), st.binary(min_size=1, max_size=8)), max_size=6))
def test_whatever_the_control_block_holds_looking_ends_and_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("q")
    write_messages(path, RECORDS_PER_SEGMENT + 1)
    for offset, data in damage:
        overwrite(path / layout.CONTROL_FILE, offset, data)
    before = snapshot(path)
    info = look(path)
    assert (info.control is None) != (info.control_error is None)
    assert snapshot(path) == before
    shutil.rmtree(path)


# -- finding queues ------------------------------------------------------------------------


def test_all_queues_in_and_below_a_directory_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b/deep/er", "a", "b"):
        write_messages(tmp_path / name, 1)
    (tmp_path / "c/no queue").mkdir(parents=True)
    expected = [str(tmp_path / name) for name in ("a", "b", "b/deep/er")]
    assert find_queues(OsFs(), str(tmp_path)).paths == expected
    assert find_queues(OsFs(), f"{tmp_path}//").paths == expected
    assert find_queues(OsFs(), str(tmp_path / "a")).paths == expected[:1]
    assert find_queues(OsFs(), str(tmp_path / "c")).paths == []


def test_a_reader_named_control_does_not_make_a_queue_of_the_readers_directory(tmp_path: Path) -> None:
    write_messages(tmp_path / "q", 1)
    Queue.open_subscriber(tmp_path / "q", "control").close()
    assert (tmp_path / "q/readers/control.meta").exists()
    assert find_queues(OsFs(), str(tmp_path)).paths == [str(tmp_path / "q")]


def test_symbolic_links_are_not_followed_except_the_root_itself(tmp_path: Path) -> None:
    write_messages(tmp_path / "real/q", 1)
    (tmp_path / "real/loop").symlink_to(tmp_path / "real")
    (tmp_path / "real/q/loop").symlink_to("..")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert find_queues(OsFs(), str(tmp_path)).paths == [str(tmp_path / "real/q")]
    assert find_queues(OsFs(), str(tmp_path / "link")).paths == [str(tmp_path / "link/q")]


def test_a_directory_that_cannot_be_listed_is_named_and_the_search_goes_on(tmp_path: Path) -> None:
    write_messages(tmp_path / "a/q", 1)
    write_messages(tmp_path / "b/q", 1)
    fs = FaultFs(str(tmp_path))
    fs.fail_when(lambda call: call.name == "listdir" and call.path.endswith("/a"), 13)
    found = find_queues(fs, str(tmp_path))
    assert found.paths == [str(tmp_path / "b/q")]
    assert list(found.unreadable) == [str(tmp_path / "a")]
    assert "Permission denied" in found.unreadable[str(tmp_path / "a")]


def test_a_root_that_cannot_be_searched_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Io, match="cannot look for queues under"):
        find_queues(OsFs(), str(tmp_path / "nothing"))
