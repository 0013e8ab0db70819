"""Spec 2.2 and 5.6: segments prepared ahead, who builds them, and what a roll does without one."""

import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from everlog.clock import TestClock
from everlog.errors import Corrupt, Io, SegmentNotPrepared
from everlog.fault_fs import FaultFs
from everlog.queue import QueueWriter, WriterConfig
from everlog.queue.layout import SEGMENT_HEADER
from everlog.queue.segment import LARGE_BLOCK_BYTES, create_segment
from tests.support.files import UnsyncedFs, hooked_fs
from tests.support.processes import eventually
from tests.support.queues import (
    SMALL,
    open_reader,
    open_writer,
    overwrite,
    payloads,
    segment_file,
    segment_ids,
)

BIG = SMALL - 128
"""The payload that fills a segment."""


def prepared(path: Path, segment_id: int) -> None:
    """Wait until the worker has published a segment."""
    eventually(f"segment {segment_id}", segment_file(path, segment_id).exists)


def test_the_next_segment_is_prepared_once_a_quarter_is_used(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"x")
        assert segment_ids(tmp_path / "q") == [0]
        writer.append(1, b"x")
        prepared(tmp_path / "q", 1)


def test_after_a_roll_the_segment_after_next_is_prepared(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        for segment_id in range(5):
            writer.append(1, bytes(BIG))
            prepared(tmp_path / "q", segment_id + 1)


def test_a_prepared_segment_is_complete_and_empty(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, bytes(BIG))
        prepared(tmp_path / "q", 1)
        expected = SEGMENT_HEADER.pack(0x53454730, 2, 1, 0) + bytes(SMALL - 64)
        assert segment_file(tmp_path / "q", 1).read_bytes() == expected
        assert os.stat(segment_file(tmp_path / "q", 1)).st_blocks * 512 >= SMALL, "its space is reserved"
        assert list((tmp_path / "q").glob("*.tmp")) == []


@pytest.mark.parametrize("size", [SMALL, LARGE_BLOCK_BYTES, 3 * LARGE_BLOCK_BYTES + SMALL])
def test_a_segment_prepared_in_large_blocks_is_complete_and_empty_too(tmp_path: Path, size: int) -> None:
    fs = FaultFs(tmp_path)
    create_segment(fs, str(tmp_path), 7, size, prefault=True, large_blocks=True).close(fs)
    blocks = sum(call.name == "write_zeros" for call in fs.log)
    assert blocks == (size - 1) // LARGE_BLOCK_BYTES
    expected = SEGMENT_HEADER.pack(0x53454730, 2, 7, 0) + bytes(size - 64)
    assert segment_file(tmp_path, 7).read_bytes() == expected


def test_messages_go_through_segments_of_large_blocks(tmp_path: Path) -> None:
    sent = [bytes([number]) * LARGE_BLOCK_BYTES for number in range(12)]
    with open_writer(
        tmp_path / "q", segment_size=4 * LARGE_BLOCK_BYTES, large_blocks=True, retention=False
    ) as writer:
        for number, payload in enumerate(sent):
            writer.append(1, payload)
            if number % 3 == 1:
                prepared(tmp_path / "q", writer.segment_id + 1)
    assert payloads(tmp_path / "q") == sent


def test_of_a_large_block_that_cannot_be_written_nothing_is_left(tmp_path: Path) -> None:
    fs = FaultFs(tmp_path)
    fs.fail_when("write_zeros", errno.EIO)
    with pytest.raises(OSError, match="planned"):
        create_segment(fs, str(tmp_path), 1, 2 * LARGE_BLOCK_BYTES, prefault=True, large_blocks=True)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_does_not_enter_a_segment_that_is_merely_prepared(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer, open_reader(tmp_path / "q") as reader:
        writer.append(1, bytes(BIG))
        prepared(tmp_path / "q", 1)
        assert len(list(reader)) == 1
        assert reader.position == (0, SMALL)


def test_a_prepared_segment_is_used_by_the_next_writer(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, bytes(BIG))
        prepared(tmp_path / "q", 1)
    inode = os.stat(segment_file(tmp_path / "q", 1)).st_ino
    with open_writer(tmp_path / "q") as writer:
        writer.append(1, b"x")
        assert writer.segment_id == 1
        assert os.stat(segment_file(tmp_path / "q", 1)).st_ino == inode
    assert payloads(tmp_path / "q") == [bytes(BIG), b"x"]


def test_a_segment_is_built_aside_allocated_synced_and_published_without_replacing(tmp_path: Path) -> None:
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    with open_writer(tmp_path / "q", fs=fs) as writer:
        writer.append(1, bytes(BIG))
        prepared(tmp_path / "q", 1)
        writer.flush_async()
    steps = [call.name for call in fs.log if "000000001.q" in call.path]
    order = [steps.index(name) for name in ("open", "allocate", "pwrite", "fsync", "rename_noreplace")]
    assert order == sorted(order)


def test_a_roll_waits_for_a_segment_that_is_being_built(tmp_path: Path) -> None:
    """Two builders of one temp file would cut it under each other's mapping."""
    building, rolling = threading.Event(), threading.Event()

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "allocate" and threading.current_thread() is not threading.main_thread():
            building.set()
            eventually("the writer to wait", lambda: "suspend" in main_stack())
            rolling.set()

    with open_writer(tmp_path / "q", fs=hooked_fs(before)) as writer:
        writer.append(1, bytes(BIG))
        building.wait()
        writer.append(1, b"x")
        assert rolling.is_set()
        assert writer.segment_id == 1
    assert payloads(tmp_path / "q") == [bytes(BIG), b"x"]


def main_stack() -> set[str]:
    """The functions that the main thread is in."""
    ident = threading.main_thread().ident
    assert ident is not None
    frame = sys._current_frames().get(ident)
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_a_build_that_fails_while_the_writer_waits_is_not_begun_again_beside_it(tmp_path: Path) -> None:
    """The writer then builds the segment itself, and no other thread may touch its temp file meanwhile."""
    building, failed, trespassed = threading.Event(), threading.Event(), threading.Event()

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main and name == "open" and "000000001.q.tmp" in str(arguments[0]) and failed.is_set():
            trespassed.set()
        if not in_main and name == "allocate" and not failed.is_set():
            building.set()
            eventually("the writer to wait", lambda: "suspend" in main_stack())
            failed.set()
            raise OSError(errno.ENOSPC, "no space, for a moment")
        if in_main and name == "rename_noreplace" and "000000001.q" in str(arguments[1]):
            # Between creating the temp file and publishing it; a second builder starts after 10 ms.
            trespassed.wait(0.2)

    with open_writer(tmp_path / "q", fs=hooked_fs(before)) as writer:
        writer.append(1, bytes(BIG))
        building.wait()
        writer.append(1, b"x")
        assert failed.is_set()
        assert not trespassed.is_set()
        assert writer.metrics.prealloc_errors == 1
    assert payloads(tmp_path / "q") == [bytes(BIG), b"x"]


def test_errors_of_the_worker_are_counted_and_its_temp_file_is_removed(tmp_path: Path) -> None:
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    clock = TestClock()
    with open_writer(tmp_path / "q", fs=fs, clock=clock) as writer:
        fs.fail_when("allocate", errno.ENOSPC, path="000000001.q.tmp")
        writer.append(1, bytes(BIG))
        eventually("the failure", lambda: writer.metrics.prealloc_errors == 1)
        eventually("the clean-up", lambda: not list((tmp_path / "q").glob("*.tmp")))
        assert segment_ids(tmp_path / "q") == [0]
        clock.advance_ns(10_000_000)
        prepared(tmp_path / "q", 1)
        writer.append(1, b"x")
        assert writer.metrics.prealloc_errors == 1
    assert payloads(tmp_path / "q") == [bytes(BIG), b"x"]


@pytest.mark.parametrize("operation", ["open", "allocate", "pwrite", "fsync", "rename_noreplace"])
def test_a_roll_that_cannot_make_its_segment_changes_nothing_and_can_be_repeated(
    tmp_path: Path, operation: str
) -> None:
    fs = FaultFs(tmp_path, inner=UnsyncedFs())
    with open_writer(tmp_path / "q", fs=fs, retention=False) as writer:
        writer.append(1, bytes(SMALL - 256))
        prepared(tmp_path / "q", 1)
        writer._prepare.close()  # from here on the writer must help itself
        segment_file(tmp_path / "q", 1).unlink()
        writer._prepare._ready = None
        before = (tmp_path / "q/control.meta").read_bytes(), writer.offset, writer.next_seq
        for _ in range(2):
            fs.fail_when(operation, errno.ENOSPC, path="000000001.q")
            with pytest.raises(Io, match=r"cannot roll .* to segment 1: No space left.*disk is full"):
                writer.append(1, bytes(BIG))
            assert ((tmp_path / "q/control.meta").read_bytes(), writer.offset, writer.next_seq) == before
        assert writer.append(1, b"a record that still fits") == 1
        assert writer.append(1, bytes(BIG)) == 2
    assert payloads(tmp_path / "q") == [bytes(SMALL - 256), b"a record that still fits", bytes(BIG)]


# -- require_prealloc ------------------------------------------------------------------------------


def without_worker(path: Path, **settings: Any) -> QueueWriter:
    """A writer whose next segment is never prepared."""

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open" and "000000001.q" in str(arguments[0]):
            raise OSError(errno.EIO, "no segment today")

    return open_writer(path, fs=hooked_fs(before), require_prealloc=True, **settings)


def test_with_require_prealloc_a_roll_without_a_prepared_segment_fails(tmp_path: Path) -> None:
    with without_worker(tmp_path / "q") as writer:
        writer.append(1, bytes(BIG))
        before = (tmp_path / "q/control.meta").read_bytes(), writer.offset, writer.next_seq
        for _ in range(3):
            with pytest.raises(SegmentNotPrepared, match=r"segment 1 of .* was not prepared within 0.* s"):
                writer.append(1, b"x")
        assert ((tmp_path / "q/control.meta").read_bytes(), writer.offset, writer.next_seq) == before
    assert payloads(tmp_path / "q") == [bytes(BIG)]


def test_with_require_prealloc_a_retry_succeeds_once_the_segment_is_there(tmp_path: Path) -> None:
    config = WriterConfig(segment_size=SMALL, require_prealloc=True, retention=False)
    with open_writer(tmp_path / "q", config=config) as writer:
        sent = 0
        refusals = 0
        while sent < 50:
            try:
                writer.append(1, bytes(BIG))
                sent += 1
            except SegmentNotPrepared:
                refusals += 1
                prepared(tmp_path / "q", writer.segment_id + 1)
        assert writer.metrics.rolls == 49
    assert len(payloads(tmp_path / "q")) == 50


def test_prealloc_wait_gives_the_worker_time(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", require_prealloc=True, prealloc_wait_s=60.0, retention=False) as writer:
        for _ in range(50):
            writer.append(1, bytes(BIG))
    assert len(payloads(tmp_path / "q")) == 50


def test_prealloc_wait_without_require_prealloc_ends_in_a_segment_of_ones_own(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", prealloc_wait_s=0.001, retention=False) as writer:
        for _ in range(20):
            writer.append(1, bytes(BIG))
    assert len(payloads(tmp_path / "q")) == 20


# -- a file that is already there --------------------------------------------------------------------


def test_an_existing_segment_is_never_truncated_or_overwritten(tmp_path: Path) -> None:
    """A segment with records lies above the head: the roll refuses, and the records stay."""
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, b"x")
        data = bytearray(segment_file(tmp_path / "q", 0).read_bytes())
        data[8:12] = (1).to_bytes(4, "little")
        segment_file(tmp_path / "q", 1).write_bytes(data)
        with pytest.raises(Corrupt, match="already holds records"):
            writer.append(1, bytes(BIG))
        assert segment_file(tmp_path / "q", 1).read_bytes() == data
        segment_file(tmp_path / "q", 1).unlink()
        eventually("a roll to a segment of its own", lambda: retried(writer))
    assert payloads(tmp_path / "q") == [b"x", bytes(BIG)]


def retried(writer: QueueWriter) -> bool:
    """Whether the append goes through by now; the worker may hold the old file for a moment."""
    try:
        writer.append(1, bytes(BIG))
    except Corrupt:
        return False
    return True


@pytest.mark.parametrize(
    ("offset", "data", "message"), [(0, b"JUNK", "magic"), (8, b"\x09", "says it is segment 9")]
)
def test_a_damaged_file_in_the_way_of_a_roll_is_reported(
    tmp_path: Path, offset: int, data: bytes, message: str
) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        writer.append(1, b"x")
        segment_file(tmp_path / "q", 1).write_bytes(
            SEGMENT_HEADER.pack(0x53454730, 2, 1, 0) + bytes(SMALL - 64)
        )
        overwrite(segment_file(tmp_path / "q", 1), offset, data)
        with pytest.raises(Corrupt, match=message):
            writer.append(1, bytes(BIG))
        assert writer.append(1, b"still fits") == 1
    assert payloads(tmp_path / "q") == [b"x", b"still fits"]


def test_a_worker_that_dies_does_not_hold_up_the_writer_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the worker in the middle of a build, a roll must go on or raise."""
    building = threading.Event()

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "allocate" and threading.current_thread().name == "everlog-prepare":
            building.set()
            raise MemoryError("no memory for the worker")

    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)  # its death is expected
    writer = open_writer(tmp_path / "q", fs=hooked_fs(before), retention=False)
    outcome: list[int] = []

    def append() -> None:
        outcome.append(writer.append(1, bytes(BIG)))
        building.wait()
        outcome.append(writer.append(1, b"x"))

    thread = threading.Thread(target=append, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "the roll waits for a worker that is dead"
    assert outcome == [0, 1]
    writer.close()
    assert payloads(tmp_path / "q") == [bytes(BIG), b"x"]
