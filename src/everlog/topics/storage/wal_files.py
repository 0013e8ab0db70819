"""The files of the log: making them, finding them, ending them.

Owns names, room and end of a log file. What the frames mean and when they are synced is decided
elsewhere. Failures surface as `OSError`; the callers know what they mean.
"""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from everlog.errors import Corrupt, CorruptMetadata
from everlog.fs import Fs, opened
from everlog.native.queue.ring import Mapping
from everlog.native.topics.log import FrameBuffer, read_log_frame
from everlog.topics.storage import layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

PAGE_SIZE: Final = 4096

AHEAD_BYTES: Final = 256 << 10
"""How far behind the frames a log file is written with zeros at once."""


def end_frame(file_number: int) -> bytes:
    """The frame that ends a log file, with the number that the file has."""
    buffer = FrameBuffer()
    buffer.append_control(layout.FrameType.FILE_END, 0, 0, file_number, 0, b"")
    return buffer.tobytes()


END_FRAME_SIZE: Final = len(end_frame(0))
"""Every log file keeps room for its end frame."""


def read_end_frame(content: Buffer, end: int) -> int | None:
    """The file number in an end frame that ends at `end`; None if there is none, 0 if it has no number."""
    at = end - END_FRAME_SIZE
    if at < 0:
        return None
    try:
        frame = read_log_frame(content, at)
    except Corrupt:
        return None
    is_end = frame.type == layout.FrameType.FILE_END and frame.size == END_FRAME_SIZE
    return frame.seq if is_end else None


def check_number(path: str, number: int, ends_as: int) -> None:
    """Refuse a log file that ends with the number of another one; 0 is none, as in files of version 0.2."""
    if ends_as not in (0, number):
        raise CorruptMetadata(
            f"{path} is log file {ends_as} under another name; give each log file its name back, or restore "
            "the directory from a backup"
        )


class WalFile(NamedTuple):
    """A log file as found in the data directory."""

    number: int
    shard_dir: str
    path: str


def list_wal_files(fs: Fs, wal_dir: str) -> list[WalFile]:
    """Return the log files of all shards in the order of their numbers.

    A name that means nothing here is refused: to pass over a log file that was renamed by mistake would
    lose what it holds.
    """
    if not fs.exists(wal_dir):
        return []
    files: list[WalFile] = []
    for name in fs.listdir(wal_dir):
        path = os.path.join(wal_dir, name)
        if layout.SHARD_DIR.number(name) is None:
            files += _wal_file(wal_dir, name)
            continue
        try:
            names = fs.listdir(path)
        except NotADirectoryError:
            raise CorruptMetadata(f"{path} is a file where a directory of log files belongs") from None
        for inner_name in names:
            files += _wal_file(path, inner_name)
    files.sort()
    for before, after in pairwise(files):
        if before.number == after.number:
            raise CorruptMetadata(
                f"{before.path} and {after.path} have the same number; one of them is a copy, move it away"
            )
    return files


def _wal_file(directory: str, name: str) -> list[WalFile]:
    path = os.path.join(directory, name)
    number = layout.WAL_FILE.number(name)
    if number is not None:
        return [WalFile(number, directory, path)]
    if name.endswith((layout.TEMPORARY_SUFFIX, layout.DAMAGED_SUFFIX, layout.ORPHAN_SUFFIX)):
        return []
    raise CorruptMetadata(f"{path} is no log file of everlog; move it out of the log directory")


def map_file(fs: Fs, path: str) -> Mapping | None:
    """Map a whole file for reading; None if it is empty."""
    with opened(fs, path) as fd:
        size = fs.size(fd)
        return Mapping(fd, size, False) if size else None


def cut_tail(fs: Fs, path: str, number: int, length: int) -> None:
    """Cut a file that a crash has left down to its first `length` bytes, and end it, durably.

    The end frame distinguishes a complete file from one that has lost its tail, so a
    recovered file needs one as soon as a later file may follow it.
    """
    with opened(fs, path, os.O_RDWR) as fd:
        fs.truncate(fd, length)
        fs.pwrite(fd, end_frame(number), length)
        fs.fsync(fd)


class LogFile:
    """A log file that is open for writing: allocated and mapped over its whole capacity."""

    def __init__(self, number: int, path: str, fd: int, capacity: int) -> None:
        self.number = number
        self.path = path
        self.fd = fd
        self.capacity = capacity
        self.mapping = Mapping(fd, capacity, False)
        self.end = 0
        """Where the last frame that was written ends."""
        self.written = 0
        """Up to where there are frames, or zeros in place of those to come."""
        self.source = 0
        self.entry_durable = False
        """Whether the name survives a power loss; only jobs of the shard's lane look at it."""

    @property
    def limit(self) -> int:
        """Where frames must end at the latest, so that the end frame fits."""
        return self.capacity - END_FRAME_SIZE

    def grow(self, fs: Fs, capacity: int) -> None:
        """Allocate more; only for a file without frames, since the mapping changes."""
        fs.allocate(self.fd, capacity)
        self.mapping = Mapping(self.fd, capacity, False)
        self.capacity = capacity

    def write_ahead(self, fs: Fs) -> None:
        """Write zeros behind the frames.

        The first sync of new blocks has to record in the file system's journal that they are in use, and
        takes twice as long. Nothing depends on it: if it fails, syncs are just slower.
        """
        size = min(AHEAD_BYTES, self.capacity - self.end)
        with contextlib.suppress(OSError):
            fs.write_zeros(self.fd, self.end, size)
        self.written = self.end + size

    def close(self, fs: Fs) -> None:
        """Close the descriptor; the mapping lives as long as it is referenced."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            # What matters was synced, or is known to be lost: an error here changes neither.
            with contextlib.suppress(OSError):
                fs.close(fd)


def capacity_for(size: int, file_bytes: int) -> int:
    """Return the capacity of a file that must take `size` bytes of frames: `file_bytes` if that does."""
    needed = size + END_FRAME_SIZE
    return file_bytes if needed <= file_bytes else -(-needed // PAGE_SIZE) * PAGE_SIZE


def create_log_file(fs: Fs, directory: str, number: int, capacity: int) -> LogFile:
    """Create, allocate and map a log file; on failure nothing of it stays. Its name is not synced."""
    path = os.path.join(directory, layout.WAL_FILE.name(number))
    # Exclusive: nothing may ever be appended to a file of an earlier run.
    fd = fs.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        fs.allocate(fd, capacity)
        return LogFile(number, path, fd, capacity)
    except OSError:
        with contextlib.suppress(OSError):
            fs.close(fd)
        with contextlib.suppress(OSError):
            fs.unlink(path)
        raise


def discard_log_file(fs: Fs, file: LogFile) -> None:
    """Close and remove a file that never got a frame; if that fails it is found empty at the next start."""
    file.close(fs)
    with contextlib.suppress(OSError):
        fs.unlink(file.path)
