"""A reader's committed position on disk: `readers/<name>.meta`.

Owns the two-slot format, the file lock that makes a reader name unique, and the listing that
retention and inspection use. Knows nothing about segments. Failures of the disk pass through
as `OSError`.

Two rules:

* The lock belongs to the inode, not to the name. Code that puts a new inode under the name
  (creation, upgrade of a legacy file) locks it before it becomes visible, and code that opens
  the name checks after locking that it still leads to the same inode.
* An existing but empty `readers/` allows retention to delete everything below the head. So
  the directory never appears before its first file: both are prepared aside and appear with
  one rename.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from everlog.errors import Closed, CorruptMetadata, ReaderAlreadyActive
from everlog.fs import Fs, close_locked, sync_path
from everlog.queue.layout import (
    READER_META_SIZE,
    READER_META_SUFFIX,
    READER_SLOT,
    READERS_DIR,
    SEG_DATA_OFFSET,
)
from everlog.queue.names import check_component

_SLOT_CRC = struct.Struct("<I")
_SLOT_CRC_OFFSET = 32
_LEGACY_OFFSET = struct.Struct("<Q")
_LEGACY_SEGMENT_OFFSET = struct.Struct("<QQ")
_TEMP_SUFFIX = ".tmp"
_OPEN_ATTEMPTS_MAX = 16
"""Each retry means that another reader of the same name came or went in between."""


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """What a reader last stored. `heartbeat_ns` is 0 in legacy files and then never expires."""

    segment_id: int
    offset: int
    heartbeat_ns: int
    generation: int


def encode_slot(position: ReaderPosition) -> bytes:
    """Return the 40 bytes of one slot."""
    slot = bytearray(
        READER_SLOT.pack(position.segment_id, position.offset, position.heartbeat_ns, position.generation, 0)
    )
    _SLOT_CRC.pack_into(slot, _SLOT_CRC_OFFSET, zlib.crc32(slot[:_SLOT_CRC_OFFSET]))
    return bytes(slot)


def decode_slot(data: bytes) -> ReaderPosition | None:
    """Return the position in a slot, None if its checksum is wrong.

    An all-zero slot needs no special case: the CRC of 32 zero bytes is not 0.
    """
    segment_id, offset, heartbeat_ns, generation, crc = READER_SLOT.unpack(data)
    if zlib.crc32(data[:_SLOT_CRC_OFFSET]) != crc:
        return None
    return ReaderPosition(segment_id, offset, heartbeat_ns, generation)


def load(data: bytes) -> ReaderPosition | None:
    """Decode a whole file; None is a new reader (both slots all zero)."""
    if len(data) == _LEGACY_OFFSET.size:
        (offset,) = _LEGACY_OFFSET.unpack(data)
        return ReaderPosition(0, offset, heartbeat_ns=0, generation=0)
    if len(data) == _LEGACY_SEGMENT_OFFSET.size:
        segment_id, offset = _LEGACY_SEGMENT_OFFSET.unpack(data)
        return ReaderPosition(segment_id, offset, heartbeat_ns=0, generation=0)
    if len(data) != READER_META_SIZE:
        raise CorruptMetadata(
            f"reader meta is {len(data)} bytes long, expected {READER_META_SIZE} (or legacy 8, 16); "
            "delete the file to let the reader start anew"
        )
    slots = (decode_slot(data[: READER_SLOT.size]), decode_slot(data[READER_SLOT.size :]))
    valid = [slot for slot in slots if slot is not None]
    if valid:
        return max(valid, key=lambda slot: slot.generation)
    if not any(data):
        return None
    raise CorruptMetadata(
        "both slots of the reader meta have a wrong checksum; delete the file to let the reader start anew"
    )


def _next_generation(data: bytes) -> int:
    """Return the generation of the next store: one more, in the slot that may be overwritten.

    Files written here keep generation g in slot g % 2. A file from elsewhere may not; then one
    generation is skipped rather than overwrite the only slot that is known to be good.
    """
    position = load(data)
    if position is None or len(data) != READER_META_SIZE:
        return 1
    generation = position.generation + 1
    start = (generation % 2) * READER_SLOT.size
    if decode_slot(data[start : start + READER_SLOT.size]) == position:
        generation += 1
    return generation


def meta_path(queue_path: str, name: str) -> str:
    """Return the path of a reader's meta file."""
    return os.path.join(queue_path, READERS_DIR, name + READER_META_SUFFIX)


def list_readers(fs: Fs, queue_path: str) -> dict[str, ReaderPosition | CorruptMetadata] | None:
    """Return what every reader stored, by name; None if there is no `readers/` directory.

    A damaged file is listed as the error it raises, so that the caller decides whether it
    aborts (retention) or is reported (inspection). A file that vanishes while listing belonged
    to a reader that left and is skipped. A file without any store yet stands at the very
    beginning: it must hold back deletion until its reader has stored a position.
    """
    directory = os.path.join(queue_path, READERS_DIR)
    try:
        file_names = fs.listdir(directory)
    except FileNotFoundError:
        return None
    readers: dict[str, ReaderPosition | CorruptMetadata] = {}
    for file_name in file_names:
        name = file_name.removesuffix(READER_META_SUFFIX)
        if name in ("", file_name):
            continue
        path = os.path.join(directory, file_name)
        try:
            position = load(_read_file(fs, path))
        except FileNotFoundError:
            continue
        except IsADirectoryError:
            readers[name] = CorruptMetadata(f"{path}: a directory, expected a reader meta file; remove it")
        except CorruptMetadata as error:
            readers[name] = CorruptMetadata(f"{path}: {error}")
        else:
            readers[name] = position or ReaderPosition(0, SEG_DATA_OFFSET, heartbeat_ns=0, generation=0)
    return readers


def sync_readers(fs: Fs, queue_path: str, names: Iterable[str]) -> None:
    """Make what these readers stored survive a power loss; one that has left is skipped."""
    for name in names:
        sync_path(fs, meta_path(queue_path, name))
    # A reader may have put a new file in the place of a legacy one.
    fs.fsync_dir(os.path.join(queue_path, READERS_DIR))


class ReaderMetaFile:
    """The meta file of one open reader, locked as long as the reader is open.

    Opening writes nothing. If there is no file yet, `position` is None and the first `create`
    or `store` makes it, together with the lock. Not safe for use by two threads.
    """

    def __init__(self, fs: Fs, queue_path: str, name: str) -> None:
        """Use `ReaderMetaFile.open`."""
        self.name = name
        self.path = meta_path(queue_path, name)
        self.position: ReaderPosition | None = None
        self._fs = fs
        self._queue_path = queue_path
        self._directory = os.path.join(queue_path, READERS_DIR)
        self._fd: int | None = None
        self._next_generation = 1
        self._legacy = False
        self._rename_unsynced = False
        self._closed = False

    @classmethod
    def open(cls, fs: Fs, queue_path: str, name: str) -> ReaderMetaFile:
        """Lock and load the file of reader `name`, if there is one."""
        meta = cls(fs, queue_path, check_component(name, "reader name"))
        meta._open_existing()
        return meta

    @property
    def exists(self) -> bool:
        """Whether the file exists and is locked by this object."""
        return self._fd is not None

    def create(self, segment_id: int, offset: int, heartbeat_ns: int) -> ReaderPosition:
        """Make sure that the file exists and return the position that it holds.

        That is the given position or, if the file existed before (another reader of the same
        name may have come and gone since `open`), the one found in it, left as it was. A
        creation that fails leaves neither a file nor a new `readers/` directory.
        """
        self._check_open()
        for _ in range(_OPEN_ATTEMPTS_MAX):
            if self._fd is not None or self._open_existing():
                if self.position is None:
                    self.store(segment_id, offset, heartbeat_ns, durable=True)
                assert self.position is not None
                return self.position
            position = ReaderPosition(segment_id, offset, heartbeat_ns, generation=1)
            if self._try_create(position):
                self._adopt(position)
                return position
        raise self._already_active()

    def store(self, segment_id: int, offset: int, heartbeat_ns: int, durable: bool) -> None:
        """Store a position in the slot that does not hold the last one.

        If this fails, the next call writes the same slot again: the other one still holds the
        last position that was stored.
        """
        self._check_open()
        if self._fd is None:
            first = ReaderPosition(segment_id, offset, heartbeat_ns, generation=1)
            if self.create(segment_id, offset, heartbeat_ns) == first:
                return
        position = ReaderPosition(segment_id, offset, heartbeat_ns, self._next_generation)
        if self._legacy:
            self._replace_legacy(position)
        else:
            assert self._fd is not None
            slot_offset = (position.generation % 2) * READER_SLOT.size
            self._fs.pwrite(self._fd, encode_slot(position), slot_offset)
        if durable:
            self._sync()
        self.position = position
        self._next_generation = position.generation + 1

    def remove(self) -> None:
        """Delete the file, so that retention forgets this reader, and close."""
        if self._fd is not None:
            # While the lock is held, the file under this name is this reader's.
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Release the lock; the file stays. Closing twice is fine."""
        self._closed = True
        if self._fd is not None:
            fd, self._fd = self._fd, None
            close_locked(self._fs, fd)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the meta file of reader {self.name!r} is closed; open the reader again")

    def _already_active(self) -> ReaderAlreadyActive:
        return ReaderAlreadyActive(
            f"reader {self.name!r} is already open on {self._queue_path}; "
            "close the other reader or choose another name"
        )

    def _adopt(self, position: ReaderPosition) -> None:
        self.position = position
        self._next_generation = position.generation + 1

    def _open_existing(self) -> bool:
        """Lock and load the file; False if there is none."""
        for _ in range(_OPEN_ATTEMPTS_MAX):
            try:
                fd = self._fs.open(self.path, os.O_RDWR | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
            try:
                locked = self._lock(fd, self.path)
                if locked:
                    self._load(fd)
            except BaseException:
                self._close_quietly(fd)
                raise
            if locked:
                self._fd = fd
                return True
            self._close_quietly(fd)
        raise self._already_active()

    def _lock(self, fd: int, path: str) -> bool:
        """Lock an open file; False if `path` leads elsewhere by now, so the lock is worthless."""
        if not self._fs.try_lock(fd):
            raise self._already_active()
        return _leads_to(path, fd)

    def _load(self, fd: int) -> None:
        data = self._fs.pread(fd, READER_META_SIZE + 1, 0)
        try:
            self.position = load(data)
        except CorruptMetadata as error:
            raise CorruptMetadata(f"{self.path}: {error}") from None
        self._next_generation = _next_generation(data)
        self._legacy = len(data) != READER_META_SIZE

    def _try_create(self, position: ReaderPosition) -> bool:
        """Put a locked file under the name; False if another reader interfered: look again."""
        if self._fs.exists(self._directory):
            return self._try_create_file(position)
        return self._try_create_directory(position)

    def _try_create_file(self, position: ReaderPosition) -> bool:
        """Create the file in the existing `readers/`."""
        temp = self.path + _TEMP_SUFFIX
        fd = self._write_locked(temp, position)
        if fd is None:
            return False
        visible = temp
        try:
            self._fs.rename_noreplace(temp, self.path)
            visible = self.path
            self._fs.fsync_dir(self._directory)
        except BaseException as error:
            self._discard(fd, visible)
            if isinstance(error, FileExistsError):
                return False
            raise
        self._fd = fd
        return True

    def _remove_directory(self, path: str) -> None:
        """Remove a directory that this module made, unless it is in use by now."""
        with contextlib.suppress(OSError):
            self._fs.rmdir(path)

    def _try_create_directory(self, position: ReaderPosition) -> bool:
        """Create `readers/` with the file in it, in one step as seen by retention."""
        staging = f"{self._directory}.{self.name}{READER_META_SUFFIX}{_TEMP_SUFFIX}"
        file_name = self.name + READER_META_SUFFIX
        try:
            self._fs.makedirs(staging)
        except FileExistsError:  # it was there and went away: another reader is at it
            return False
        try:
            fd = self._write_locked(os.path.join(staging, file_name), position)
        except OSError:  # and not ReaderAlreadyActive: then the directory is the other reader's
            self._remove_directory(staging)
            raise
        if fd is None:
            return False
        visible = staging
        try:
            self._fs.fsync_dir(staging)
            # A plain rename: it replaces an empty directory only.
            self._fs.rename(staging, self._directory)
            visible = self._directory
            self._fs.fsync_dir(self._queue_path)
        except BaseException as error:
            self._discard(fd, os.path.join(visible, file_name))
            self._remove_directory(visible)
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        self._fd = fd
        return True

    def _write_locked(self, path: str, position: ReaderPosition) -> int | None:
        """Fill `path` with one valid slot and return it locked; None if it was moved away.

        The name is fixed, so a crash leaves at most one file, which the next attempt reuses;
        the lock keeps two attempts apart.
        """
        try:
            fd = self._fs.open(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            return None  # the directory was renamed or removed under us
        try:
            owned = self._lock(fd, path)
            if owned:
                content = bytearray(READER_META_SIZE)
                start = (position.generation % 2) * READER_SLOT.size
                content[start : start + READER_SLOT.size] = encode_slot(position)
                self._fs.truncate(fd, 0)
                self._fs.pwrite(fd, bytes(content), 0)
                self._fs.fsync(fd)
        except ReaderAlreadyActive:
            self._close_quietly(fd)  # the file is the other reader's
            raise
        except BaseException:
            self._discard(fd, path)
            raise
        if not owned:
            self._close_quietly(fd)
            return None
        return fd

    def _discard(self, fd: int, path: str) -> None:
        """Undo a creation as far as possible; the error that led here is the one to report."""
        try:
            with contextlib.suppress(OSError):
                self._fs.unlink(path)
        finally:
            self._close_quietly(fd)

    def _close_quietly(self, fd: int) -> None:
        """Close a file whose content does not matter; even a failing close closes."""
        with contextlib.suppress(OSError):
            self._fs.close(fd)

    def _replace_legacy(self, position: ReaderPosition) -> None:
        """Put a file of today's length under the name, without ever giving up the lock."""
        temp = self.path + _TEMP_SUFFIX
        fd = self._write_locked(temp, position)
        if fd is None:
            raise self._already_active()
        try:
            self._fs.rename(temp, self.path)
        except BaseException:
            self._discard(fd, temp)
            raise
        assert self._fd is not None
        old_fd, self._fd = self._fd, fd
        self._legacy = False
        self._rename_unsynced = True
        # The slot is on disk already and is the only valid one: never write it again.
        self._adopt(position)
        self._close_quietly(old_fd)

    def _sync(self) -> None:
        assert self._fd is not None
        self._fs.fsync(self._fd)
        if self._rename_unsynced:
            self._fs.fsync_dir(self._directory)
            self._rename_unsynced = False


def _read_file(fs: Fs, path: str) -> bytes:
    fd = fs.open(path, os.O_RDONLY)
    try:
        return fs.pread(fd, READER_META_SIZE + 1, 0)
    finally:
        fs.close(fd)


def _leads_to(path: str, fd: int) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
