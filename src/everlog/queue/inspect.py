"""The state of a queue from outside: plain file reads, nothing mapped, nothing changed, no waiting.

Owns `QueueInfo`, which the command line and the doctor work from, and the search for queues below
a directory. What cannot be read is reported in `QueueInfo` instead of raised, because damaged
queues are what people inspect.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from everlog.clock import Clock
from everlog.errors import CorruptMetadata, EverlogError, QueueNotFound, Unsupported, UnsupportedVersion
from everlog.fs import Fs
from everlog.queue import index_meta, layout
from everlog.queue.control import check_prefix
from everlog.queue.faults import io_errors
from everlog.queue.index_meta import IndexPosition
from everlog.queue.layout import CONTROL_FILE, HEADER_SIZE, LOCK_FILE, READERS_DIR, SEG_DATA_OFFSET
from everlog.queue.reader_meta import ReaderPosition, list_readers
from everlog.queue.retention import byte_position
from everlog.queue.segment import header_problem, segment_path
from everlog.queue.writer_lock import LockOwner, owner_alive, read_owner

_U32 = struct.Struct("<I")
_CURRENT_SEGMENT = struct.Struct("<II")
_WRITER_LINE = struct.Struct("<QQ")
_FUTEX_LINE = struct.Struct("<II")
_HEAD_ATTEMPTS_MAX = 100
"""A writer publishes in nanoseconds; one that died while publishing must not block the inspection."""

_DISK_BLOCK_BYTES = 512
_READING = frozenset({"close", "size", "listdir", "exists"})

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class ControlInfo:
    """What the control block says. `torn`: its writer died while publishing the head."""

    head_segment: int
    head_offset: int
    segment_size: int
    writer_epoch: int
    writer_heartbeat_ns: int
    notify_seq: int
    waiters_pending: int
    torn: bool

    @property
    def head_pos(self) -> int:
        """The head as one number, as if all segments were one file."""
        return byte_position(self.head_segment, self.head_offset, self.segment_size)


@dataclass(frozen=True, slots=True)
class LockInfo:
    """The recorded writer, and whether that very process still runs."""

    owner: LockOwner
    alive: bool


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment file. With an `error` it cannot be read as a segment, and the other fields mean little."""

    segment_id: int
    length_bytes: int
    sealed: bool
    has_records: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ReaderInfo:
    """One named reader: its committed position, or the error of its meta file.

    The lags are None if the position or the head is unknown, and 0 for a reader ahead of the head
    (a power loss may set the head back).
    """

    name: str
    position: ReaderPosition | None
    lag_bytes: int | None
    lag_segments: int | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """Everything there is to see in a queue directory at one moment.

    `control` is None if the block is damaged or not initialised, and `control_error` says how.
    `stored` is what `list_readers` returned (None: no `readers/` directory). `names` are all
    files, those of readers as `readers/<file>`. `unreadable` maps other files that could not be
    read to the reason.
    """

    path: str
    seen_ns: int
    control: ControlInfo | None
    control_error: EverlogError | None
    index: IndexPosition | None
    lock: LockInfo | None
    segments: list[SegmentInfo]
    stored: dict[str, ReaderPosition | CorruptMetadata] | None
    readers: list[ReaderInfo]
    names: list[str]
    ready: bool
    bytes_on_disk: int
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def writer_alive(self) -> bool:
        """Whether the process recorded in the lock file runs."""
        return self.lock is not None and self.lock.alive


class FoundQueues(NamedTuple):
    """Queue directories below a root, sorted, and the directories that could not be listed.

    `headless` have segments but no control block.
    """

    paths: list[str]
    unreadable: dict[str, str]
    headless: list[str]


class _ReadOnlyFs:
    """Allows only reads that cannot block.

    A file that exists but cannot be read raises `CorruptMetadata`: an inspection reports damage and
    goes on.
    """

    def __init__(self, inner: Fs) -> None:
        self._inner = inner

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if flags != os.O_RDONLY:
            raise Unsupported(f"{path} is opened for inspection, which never writes")
        try:
            # Opening a FIFO would otherwise wait for a writer.
            fd = self._inner.open(path, flags | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise _cannot_be_read(error) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self._inner.close(fd)
            raise CorruptMetadata("it is not a regular file; remove it")
        return fd

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        try:
            return self._inner.pread(fd, length, offset)
        except OSError as error:
            raise _cannot_be_read(error) from error

    def __getattr__(self, name: str) -> Any:
        if name not in _READING:
            raise Unsupported(f"inspection never writes, so there is no {name}()")
        return getattr(self._inner, name)


def inspect_queue(fs: Fs, clock: Clock, path: str) -> QueueInfo:
    """Look at the queue in directory `path`; raises QueueNotFound if there is none."""
    with io_errors(f"inspect {path}"):
        return _Inspection(cast(Fs, _ReadOnlyFs(fs)), path).run(clock.wall_ns())


def find_queues(fs: Fs, root: str) -> FoundQueues:
    """Find every directory with a control block in and below `root`. Symbolic links are not followed."""
    top = root.rstrip("/") or "/"
    with io_errors(f"look for queues under {root}"):
        rest = [(top, fs.listdir(top))]
    found = FoundQueues([], {}, [])
    while rest:
        directory, names = rest.pop()
        is_queue = CONTROL_FILE in names
        if is_queue:
            found.paths.append(directory)
        elif any(layout.parse_segment_name(name) is not None for name in names):
            found.headless.append(directory)
        for name in names:
            if is_queue and name == READERS_DIR:
                continue  # a reader named "control" has a control.meta there
            path = os.path.join(directory, name)
            try:
                # Asked directly: the file system seam knows existence, not the kind of a file.
                if stat.S_ISDIR(os.lstat(path).st_mode):
                    rest.append((path, fs.listdir(path)))
            except (FileNotFoundError, NotADirectoryError):
                continue  # gone since it was listed
            except OSError as error:
                found.unreadable[path] = error.strerror or str(error)
    found.paths.sort()
    return found


class _Inspection:
    """One look at one queue, part by part."""

    def __init__(self, fs: Fs, path: str) -> None:
        self.fs = fs
        self.path = path
        self.unreadable: dict[str, str] = {}

    def run(self, now_ns: int) -> QueueInfo:
        control: ControlInfo | None = None
        control_error: EverlogError | None = None
        try:
            # Before the segments: what is listed later can only be newer.
            control = _read_control(self.fs, os.path.join(self.path, CONTROL_FILE))
        except (CorruptMetadata, UnsupportedVersion) as error:
            control_error = error
        size = control.segment_size if control else 0
        index = self._part(
            layout.INDEX_META_FILE,
            lambda: index_meta.load_if_present(self.fs, self.path, size) if control else None,
        )
        owner = self._part(LOCK_FILE, lambda: read_owner(self.fs, self.path))
        stored = self._part(READERS_DIR, lambda: list_readers(self.fs, self.path))
        names = self._names()
        return QueueInfo(
            path=self.path,
            seen_ns=now_ns,
            control=control,
            control_error=control_error,
            index=index,
            lock=LockInfo(owner, owner_alive(owner)) if owner else None,
            segments=self._segments(names, size),
            stored=stored,
            readers=_readers(stored, control),
            names=names,
            ready=_is_regular(os.path.join(self.path, layout.READY_FILE)),
            bytes_on_disk=_bytes_on_disk(self.path, names),
            unreadable=self.unreadable,
        )

    def _part(self, name: str, read: Callable[[], _Part]) -> _Part | None:
        """Read one part of the picture; if that fails, note why and go on without it."""
        try:
            return read()
        except (OSError, CorruptMetadata) as error:
            self.unreadable[name] = (error.strerror if isinstance(error, OSError) else None) or str(error)
            return None

    def _names(self) -> list[str]:
        names = self.fs.listdir(self.path)
        if READERS_DIR in names:
            of_readers = self._part(
                READERS_DIR, lambda: self.fs.listdir(os.path.join(self.path, READERS_DIR))
            )
            names += [f"{READERS_DIR}/{name}" for name in of_readers or ()]
        return names

    def _segments(self, names: Iterable[str], segment_size: int) -> list[SegmentInfo]:
        ids = [number for number in map(layout.parse_segment_name, names) if number is not None]
        segments = [self._segment(segment_id, segment_size) for segment_id in sorted(ids)]
        return [segment for segment in segments if segment is not None]

    def _segment(self, segment_id: int, segment_size: int) -> SegmentInfo | None:
        try:
            fd = self.fs.open(segment_path(self.path, segment_id), os.O_RDONLY)
        except FileNotFoundError:
            return None  # retention was faster
        except CorruptMetadata as error:
            return SegmentInfo(segment_id, 0, False, False, str(error))
        try:
            length = self.fs.size(fd)
            start = self.fs.pread(fd, SEG_DATA_OFFSET + HEADER_SIZE, 0)
        except CorruptMetadata as error:
            return SegmentInfo(segment_id, 0, False, False, str(error))
        finally:
            self.fs.close(fd)
        return _segment_info(segment_id, length, start, segment_size)


def _read_control(fs: Fs, path: str) -> ControlInfo:
    try:
        block, torn = _read_control_block(fs, path)
    except (FileNotFoundError, NotADirectoryError):
        raise QueueNotFound(
            f"no queue at {os.path.dirname(path)}: {CONTROL_FILE} is missing; "
            "check the path, or let its writer create the queue first"
        ) from None
    except CorruptMetadata as error:
        raise CorruptMetadata(f"{path}: {error}") from None
    _check_control(path, block)
    return _control_info(path, block, torn=torn)


def _read_control_block(fs: Fs, path: str) -> tuple[bytes, bool]:
    """Return the bytes, and whether they were being changed during every attempt."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        for _ in range(_HEAD_ATTEMPTS_MAX):
            before = fs.pread(fd, _U32.size, layout.CTRL_SEGMENT_GEN)
            block = fs.pread(fd, layout.CTRL_SIZE, 0)
            after = fs.pread(fd, _U32.size, layout.CTRL_SEGMENT_GEN)
            if before == after and before and not before[0] & 1:
                return block, False
        return block, True
    finally:
        fs.close(fd)


def _check_control(path: str, block: bytes) -> None:
    if len(block) < layout.CTRL_SIZE:
        raise CorruptMetadata(
            f"{path} has {len(block)} bytes, expected {layout.CTRL_SIZE}; restore it from a backup"
        )
    magic, _, init_state, _, _ = layout.CTRL_PREFIX.unpack_from(block)
    if magic == 0 or (magic == layout.CTRL_MAGIC and init_state != layout.INIT_STATE_READY):
        raise CorruptMetadata(
            f"{path} is not initialised (init_state {init_state}, expected {layout.INIT_STATE_READY}): its "
            "writer is creating it now or died doing so; look again, then open a publisher to finish it"
        )
    check_prefix(path, block)


def _control_info(path: str, block: bytes, *, torn: bool) -> ControlInfo:
    _, _, _, writer_epoch, segment_size = layout.CTRL_PREFIX.unpack_from(block)
    _, head_segment = _CURRENT_SEGMENT.unpack_from(block, layout.CTRL_SEGMENT_GEN)
    write_offset, heartbeat_ns = _WRITER_LINE.unpack_from(block, layout.CTRL_WRITE_OFFSET)
    notify_seq, waiters_pending = _FUTEX_LINE.unpack_from(block, layout.CTRL_NOTIFY_SEQ)
    if write_offset % layout.RECORD_ALIGN or not SEG_DATA_OFFSET <= write_offset <= segment_size:
        raise CorruptMetadata(
            f"{path} has an impossible write_offset of {write_offset} in segments of {segment_size} bytes; "
            "the next writer finds the true one by itself"
        )
    # The halves of a torn head do not belong together; readers take the start of the segment too.
    head_offset = SEG_DATA_OFFSET if torn else write_offset
    return ControlInfo(
        head_segment,
        head_offset,
        segment_size,
        writer_epoch,
        heartbeat_ns,
        notify_seq,
        waiters_pending,
        torn,
    )


def _segment_info(segment_id: int, length: int, start: bytes, segment_size: int) -> SegmentInfo:
    """Judge a segment by its length and first 128 bytes; a size of 0 is not known."""
    if segment_size and length != segment_size:
        error = f"it has {length} bytes, but the queue's segment_size is {segment_size}"
        return SegmentInfo(segment_id, length, False, False, error)
    if len(start) < SEG_DATA_OFFSET + HEADER_SIZE:
        return SegmentInfo(segment_id, length, False, False, f"it has only {length} bytes")
    flags = layout.SEGMENT_HEADER.unpack_from(start)[3]
    commit_len, _, _, _, type_id, _, _ = layout.MESSAGE_HEADER.unpack_from(start, SEG_DATA_OFFSET)
    return SegmentInfo(
        segment_id,
        length,
        sealed=bool(flags & layout.SEG_FLAG_SEALED),
        has_records=commit_len > 0 and type_id != layout.PAD_TYPE_ID,
        error=header_problem(start, segment_id),
    )


def _readers(
    stored: dict[str, ReaderPosition | CorruptMetadata] | None, control: ControlInfo | None
) -> list[ReaderInfo]:
    readers: list[ReaderInfo] = []
    for name, position in sorted((stored or {}).items()):
        if isinstance(position, CorruptMetadata):
            readers.append(ReaderInfo(name, None, None, None, str(position)))
        elif control is None:
            readers.append(ReaderInfo(name, position, None, None))
        else:
            at = byte_position(position.segment_id, position.offset, control.segment_size)
            lag_segments = control.head_segment - position.segment_id
            readers.append(ReaderInfo(name, position, max(0, control.head_pos - at), max(0, lag_segments)))
    return readers


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _bytes_on_disk(path: str, names: Iterable[str]) -> int:
    blocks = 0
    for name in names:
        try:
            blocks += os.lstat(os.path.join(path, name)).st_blocks
        except OSError:
            continue  # gone since it was listed
    return blocks * _DISK_BLOCK_BYTES


def _cannot_be_read(error: OSError) -> CorruptMetadata:
    return CorruptMetadata(f"it cannot be read ({error.strerror or error}); check its mode and the disk")
