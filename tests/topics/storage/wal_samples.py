"""A log shard on files that can fail and lose power, with a plain list of what it was given as the oracle."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from everlog.clock import TestClock
from everlog.errors import Corrupt, ReadOnly, StorageFailed
from everlog.fault_fs import FaultFs, PowerLoss
from everlog.fs import OsFs
from everlog.native.topics.log import FrameBuffer, Sources, read_log_frame
from everlog.topics.storage import layout
from everlog.topics.storage.syncs import InlineSyncs, SyncRunner
from everlog.topics.storage.wal import Position, WalShard
from everlog.topics.storage.wal_files import END_FRAME_SIZE, end_frame, list_wal_files, read_end_frame
from tests.support.files import UnsyncedFs

OVERHEAD = layout.LOG_HEADER_SIZE + layout.LOG_TRAILER_SIZE
FILE_BYTES = 1024
PAGE = 128
"""Smaller than a file, so that a file can survive in part."""


class HalfFs(UnsyncedFs):
    """Does not wait for the disk; one write after `fail_write` stores only a part and then fails."""

    def __init__(self) -> None:
        self.fail_write: int | None = None
        """The part of the next write that is stored, in eighths."""

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Write all of it, or only a part."""
        if self.fail_write is None:
            super().pwrite(fd, data, offset)
            return
        rest = memoryview(data)  # held while the error is raised, as the real file system does
        part = bytes(rest[: len(data) * self.fail_write // 8])
        self.fail_write = None
        super().pwrite(fd, part, offset)
        raise OSError(5, "the disk gave up in the middle")


class Entry(NamedTuple):
    """A frame and where it belongs."""

    file_number: int
    offset: int
    frame: bytes

    @property
    def end(self) -> Position:
        return Position(self.file_number, self.offset + len(self.frame))


def frame(data: bytes, flags: int = 0) -> bytes:
    """A frame of a kind that the log itself does not care about."""
    buffer = FrameBuffer()
    buffer.append_control(layout.FrameType.LEASE, flags, 7, 0, 1, data)
    return buffer.tobytes()


def frames_of(content: bytes) -> list[bytes]:
    """The frames at the start of a file, up to the end frame or the first place that is none."""
    frames: list[bytes] = []
    offset = 0
    while not frames or read_end_frame(frames[-1], len(frames[-1])) is None:
        try:
            size = read_log_frame(content, offset).size
        except Corrupt:
            break
        frames.append(content[offset : offset + size])
        offset += size
    return frames


class LogBench:
    """One shard, everything it stands on, and the list model: gathered, written, failed."""

    def __init__(
        self,
        root: Path,
        *,
        seed: int = 0,
        file_bytes: int = FILE_BYTES,
        syncs: SyncRunner | None = None,
    ) -> None:
        root.mkdir(exist_ok=True)
        self.disk = HalfFs()
        self.fs = FaultFs(root, seed, self.disk, page_size=PAGE)
        self.directory = str(root / "wal")
        self.clock = TestClock()
        self.syncs = syncs if syncs is not None else InlineSyncs()
        self.file_bytes = file_bytes
        self.numbers = itertools.count(1)
        self.serial = itertools.count(1)
        self.told: list[StorageFailed | None] = []
        self.open()

    def open(self) -> None:
        """Begin a new life; what was there before is none of its business."""
        self.gathered: list[Entry] = []
        self.written: list[Entry] = []
        self.failed: list[Entry] = []
        self.trimmed_before = Position(0, 0)
        self.first_number = 0
        self.sources = Sources()
        self.shard = WalShard(
            0,
            self.directory,
            lambda: next(self.numbers),
            fs=self.fs,
            clock=self.clock,
            sources=self.sources,
            syncs=self.syncs,
            prepare_lane=1,
            file_bytes=self.file_bytes,
        )
        self.first_number = self.shard.position.file_number

    # --- What an engine does -----------------------------------------------------------------------------

    def gather(self, *lengths: int) -> None:
        """One batch of frames with so many bytes of data each."""
        frames = [frame(next(self.serial).to_bytes(4, "little").ljust(length, b"x")) for length in lengths]
        try:
            self.shard.reserve(sum(map(len, frames)))
        finally:
            self.note()
        for content in frames:
            place = self.shard.source_offset + len(self.shard.buffer)
            self.gathered.append(Entry(self.shard.files[-1].number, place, content))
            self.shard.buffer.append_bytes(content)
            self.shard.frames_gathered += 1

    def write(self) -> None:
        """Write what is gathered."""
        try:
            self.shard.write()
        finally:
            self.note()

    def append(self, *lengths: int) -> Position:
        """Gather and write; return where the log ends then."""
        self.gather(*lengths)
        self.write()
        return self.shard.position

    def rotate(self) -> None:
        """Begin the next file."""
        try:
            self.shard.rotate()
        finally:
            self.note()

    def close(self) -> None:
        """End in order."""
        try:
            self.shard.close()
        finally:
            self.note()

    def sync(self) -> None:
        """Wait for a sync without looking."""
        self.shard.sync(self.told.append)

    def poll(self) -> None:
        """One turn of a loop."""
        self.syncs.poll()
        self.shard.poll()

    def settle(self) -> None:
        """Turns until nothing is left to do, time passing as it must."""
        self.poll()
        for _ in range(100):
            due_ns = self.shard.due_ns()
            if due_ns is not None:
                self.clock.advance_ns(max(0, due_ns - self.clock.monotonic_ns()))
            elif self.syncs.poll() == 0:
                return
            self.poll()
        raise AssertionError(f"{self.shard} never comes to rest")

    def append_synced(self, *lengths: int) -> Position:
        """Append and see it synced."""
        position = self.append(*lengths)
        self.sync()
        self.settle()
        assert self.told.pop() is None
        return position

    # --- The model ---------------------------------------------------------------------------------------

    def note(self) -> None:
        """Learn from the shard's public face what has become of the gathered frames."""
        if self.shard.needs_discard:
            self.failed += self.gathered
            self.gathered = []
            self.shard.discard()
        elif len(self.shard.buffer) == 0:
            self.written += self.gathered
            self.gathered = []

    def check(self) -> None:
        """The shard is where the model is, and every frame can be read where it was promised."""
        shard = self.shard
        assert shard.synced <= shard.position
        assert len(shard.buffer) == sum(len(entry.frame) for entry in self.gathered)
        if self.written and self.written[-1].file_number == shard.position.file_number:
            assert shard.position in (
                self.written[-1].end,
                Position(self.written[-1].end.file_number, self.written[-1].end.offset + END_FRAME_SIZE),
            )
        sources = {file.number: file.source for file in shard.files}
        for entry in self.written:
            if entry.file_number in sources:
                found = memoryview(self.sources.buffer(sources[entry.file_number]))  # type: ignore[arg-type]
                assert bytes(found[entry.offset :][: len(entry.frame)]) == entry.frame

    def calls(self, *names: str) -> list[str]:
        """The names of the file operations so far, of those asked for."""
        return [call.name for call in self.fs.log if call.name in names]

    def contents(self) -> dict[int, bytes]:
        """The log files of this life as they are on disk now."""
        files = list_wal_files(OsFs(), self.directory)
        return {
            file.number: Path(file.path).read_bytes() for file in files if file.number >= self.first_number
        }

    def check_disk(self, contents: dict[int, bytes]) -> None:
        """What a recovery finds: all that was synced, only what was written, nothing behind a gap."""
        synced = self.shard.synced
        expected: dict[int, list[Entry]] = {}
        for entry in self.written:
            expected.setdefault(entry.file_number, []).append(entry)
        found = {number: frames_of(content) for number, content in sorted(contents.items())}
        for entry in self.written:
            if self.trimmed_before < entry.end <= synced:
                assert entry.frame in found.get(entry.file_number, []), f"{entry.end} was synced and is gone"
        last = max((number for number, frames in found.items() if frames), default=0)
        for number, frames in found.items():
            wanted, end = [entry.frame for entry in expected.get(number, [])], end_frame(number)
            # What a failed write has left may be there after a power loss, but only at the very end.
            unsure = [e.frame for e in [*self.gathered, *self.failed] if e.file_number == number]
            if number < last:
                assert frames == [*wanted, end], f"file {number} is followed by {last} but not whole"
            elif end in frames:
                assert frames == [*wanted, end]
            else:
                assert frames == [*wanted, *unsure][: len(frames)]

    def trim(self, before: Position) -> list[int]:
        """Delete the files wholly before a position, as a checkpoint does, and return their numbers."""
        paths = self.shard.release_files(before)
        with contextlib.suppress(OSError):  # files that stay are found and skipped by recovery
            for path in paths:
                self.fs.unlink(path)
            if paths:
                self.fs.fsync_dir(self.directory)
        return [int(Path(path).stem.removeprefix("wal-")) for path in paths]

    def open_files(self) -> set[int]:
        """The numbers of the log files that this process could write to.

        A `FaultFs` holds files open too, but only to look at them.
        """
        names = set()
        for fd in os.listdir("/proc/self/fd"):
            try:
                flags = fcntl.fcntl(int(fd), fcntl.F_GETFL)
                name = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:  # the descriptor of the listing itself
                continue
            if flags & os.O_RDWR and name.startswith(self.directory):
                names.add(name)
        return {int(name.partition("wal-")[2][:16]) for name in names}

    def lose_power(self) -> None:
        """The power goes; what is left is checked. `open` begins a new life on it."""
        with contextlib.suppress(PowerLoss):
            self.shard.abandon()
        self.syncs.poll()
        self.fs.restore()
        self.disk.fail_write = None
        self.check_disk(self.contents())

    def expect_read_only(self) -> None:
        """Nothing is accepted any more, and all waiters are told so."""
        self.told.clear()
        assert isinstance(self.shard.read_only, ReadOnly)
        attempts: list[Callable[[], None]] = [
            lambda: self.gather(1),
            self.shard.rotate,
            lambda: self.shard.reserve(1),
        ]
        for attempt in attempts:
            with pytest.raises(ReadOnly):
                attempt()
        self.sync()
        assert self.shard.due_ns() is not None or self.shard.position <= self.shard.synced
        self.settle()
        assert self.told == [None if self.shard.position <= self.shard.synced else self.shard.read_only]
