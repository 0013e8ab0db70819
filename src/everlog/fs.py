"""The disk, as a seam: everything with a guarantee reaches files through an `Fs`.

Owns the file operations; knows nothing of what the files mean. `OsFs` is the real one;
`fault_fs.FaultFs` works on real files too, but fails, tears or loses power at a chosen call.
Failures surface as `OSError`; the callers turn them into everlog errors.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import grp
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_SYNC_FILE_RANGE_WRITE = 2
_ZEROS = memoryview(bytes(1 << 18))
_libc = ctypes.CDLL(None, use_errno=True)


class Syncable(Protocol):
    """A memory mapping that can be written back (`native.queue.ring.Mapping`)."""

    def msync(self, offset: int, length: int, wait: bool) -> None:
        """Write back the pages that hold `offset .. offset + length`."""
        ...


class Fs(Protocol):
    """File operations with a guarantee. Descriptors are plain ints, always close-on-exec."""

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open `path` and return the descriptor; a new file has the mode, and what its group is given."""
        ...

    def close(self, fd: int) -> None:
        """Close a descriptor from `open`."""
        ...

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read at most `length` bytes at `offset`."""
        ...

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`."""
        ...

    def size(self, fd: int) -> int:
        """Return the length of the open file."""
        ...

    def truncate(self, fd: int, length: int) -> None:
        """Set the length of the open file."""
        ...

    def allocate(self, fd: int, length: int) -> None:
        """Reserve `length` bytes on disk, so that a later store into a mapping cannot fault."""
        ...

    def write_zeros(self, fd: int, offset: int, length: int) -> None:
        """Write zeros to reserved bytes, which are zero already, so that syncs of them cost less later."""
        ...

    def fsync(self, fd: int) -> None:
        """Force data and metadata of the open file to disk."""
        ...

    def fdatasync(self, fd: int) -> None:
        """Force the data of the open file to disk, and of its metadata what is needed to read it."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Force the entries of a directory to disk."""
        ...

    def sync_file_system(self, path: str) -> None:
        """Force everything written to the file system of `path` to disk: one call for very many files."""
        ...

    def msync(self, mapping: Syncable, fd: int, offset: int, length: int, wait: bool) -> None:
        """Write back a range of the mapping of `fd`; with `wait`, return when it is on disk."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomically replace `target` by `source`."""
        ...

    def rename_noreplace(self, source: str, target: str) -> None:
        """Atomically rename; `FileExistsError` if `target` exists."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file."""
        ...

    def makedirs(self, path: str) -> None:
        """Create a directory and its parents; existing ones are fine."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def exists(self, path: str) -> bool:
        """Whether `path` exists."""
        ...

    def boot_id(self) -> str:
        """Name this run of the machine: as long as it stays the same, nothing written was lost."""
        ...

    def try_lock(self, fd: int) -> bool:
        """Take an exclusive flock without waiting; False if it is held elsewhere."""
        ...

    def unlock(self, fd: int) -> None:
        """Release the flock, also if a forked child has inherited the descriptor."""
        ...


class OsFs:
    """The file system of the operating system."""

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open `path` and return the descriptor; a new file has the mode, and what its group is given.

        What may be created is never written through a symbolic link.
        """
        flags |= os.O_CLOEXEC | (os.O_NOFOLLOW if flags & os.O_CREAT else 0)
        fd = os.open(path, flags, mode)
        if flags & os.O_CREAT and (group := _group_bits(os.path.dirname(path)) & 0o060):
            with suppress(PermissionError):  # it exists and is another user's
                os.fchmod(fd, mode | group)
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor from `open`."""
        os.close(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read at most `length` bytes at `offset`."""
        return os.pread(fd, length, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`; short writes are continued."""
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            written += os.pwrite(fd, memoryview(data)[written:], offset + written)

    def size(self, fd: int) -> int:
        """Return the length of the open file."""
        return os.fstat(fd).st_size

    def truncate(self, fd: int, length: int) -> None:
        """Set the length of the open file."""
        os.ftruncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        """Reserve `length` bytes on disk, so that a later store into a mapping cannot fault."""
        os.posix_fallocate(fd, 0, length)

    def write_zeros(self, fd: int, offset: int, length: int) -> None:
        """See `Fs.write_zeros`; nothing is promised, so a short write is enough."""
        os.pwrite(fd, _ZEROS[:length] if length <= len(_ZEROS) else bytes(length), offset)

    def fsync(self, fd: int) -> None:
        """Force data and metadata of the open file to disk."""
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """Force the data of the open file to disk, and of its metadata what is needed to read it."""
        os.fdatasync(fd)

    def fsync_dir(self, path: str) -> None:
        """Force the entries of a directory to disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file_system(self, path: str) -> None:
        """See `Fs.sync_file_system`; Python has no binding for `syncfs`, so libc is called."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)

    def msync(self, mapping: Syncable, fd: int, offset: int, length: int, wait: bool) -> None:
        """See `Fs.msync`; MS_ASYNC does nothing on Linux, so write-out is started by hand."""
        mapping.msync(offset, length, wait)
        if not wait:
            _libc.sync_file_range(
                fd, ctypes.c_int64(offset), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
            )

    def rename(self, source: str, target: str) -> None:
        """Atomically replace `target` by `source`."""
        os.replace(source, target)

    def rename_noreplace(self, source: str, target: str) -> None:
        """See `Fs.rename_noreplace`; Python has no binding for `renameat2`, so libc is called."""
        result = _libc.renameat2(
            _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE
        )
        if result != 0:
            number = ctypes.get_errno()
            if number not in (errno.EINVAL, errno.ENOSYS):
                raise OSError(number, os.strerror(number), source, None, target)
            # This file system or kernel has no RENAME_NOREPLACE; a hard link never replaces either.
            os.link(source, target)
            os.unlink(source)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def makedirs(self, path: str) -> None:
        """Create a directory and its parents; existing ones are fine."""
        parent = os.path.dirname(path.rstrip("/"))
        if parent and not os.path.isdir(parent):
            self.makedirs(parent)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return
        if group := _group_bits(parent):
            os.chmod(path, stat.S_ISGID | 0o700 | group)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        """Whether `path` exists."""
        return os.path.exists(path)

    def boot_id(self) -> str:
        """Name this run of the machine: as long as it stays the same, nothing written was lost."""
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()

    def try_lock(self, fd: int) -> bool:
        """Take an exclusive flock without waiting; False if it is held elsewhere."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        """Release the flock, also if a forked child has inherited the descriptor."""
        fcntl.flock(fd, fcntl.LOCK_UN)


def _group_bits(directory: str) -> int:
    """What the group may do with new entries of a directory: as with itself if it is shared, else nothing."""
    mode = os.stat(directory or ".").st_mode
    return mode & 0o070 if mode & stat.S_ISGID else 0


def share_with_group(path: str, group: str) -> None:
    """Create a directory, if there is none, that a group may use: what is created in it belongs to the group.

    Raises LookupError for a group that does not exist.
    """
    group_id = grp.getgrnam(group).gr_gid
    os.makedirs(path, exist_ok=True)
    os.chown(path, -1, group_id)
    os.chmod(path, 0o2770)


@contextmanager
def opened(fs: Fs, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file for a block, which gets its descriptor."""
    fd = fs.open(path, flags)
    try:
        yield fd
    finally:
        fs.close(fd)


def read_file(fs: Fs, path: str) -> bytes:
    """Return the whole content of a file."""
    with opened(fs, path) as fd:
        length = fs.size(fd)
        content = fs.pread(fd, length, 0)
        while len(content) < length and (more := fs.pread(fd, length - len(content), len(content))):
            content += more
        return content


def replace_file(fs: Fs, path: str, data: bytes | Iterable[bytes], *, durable: bool = True) -> None:
    """Write `path` by temp file and rename: a reader sees the old bytes or the new, never a mix."""
    temp = path + ".tmp"
    with opened(fs, temp, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
        offset = 0
        for piece in (data,) if isinstance(data, bytes | bytearray | memoryview) else data:
            fs.pwrite(fd, piece, offset)
            offset += len(piece)
        if durable:
            fs.fsync(fd)
    fs.rename(temp, path)
    if durable:
        fs.fsync_dir(os.path.dirname(path) or ".")


def sync_path(fs: Fs, path: str) -> None:
    """Force a file to disk that is not open here; one that is gone needs no sync."""
    with suppress(FileNotFoundError), opened(fs, path) as fd:
        fs.fsync(fd)


def close_locked(fs: Fs, fd: int) -> None:
    """Unlock and close: closing alone would leave the lock with a forked child that has the file."""
    try:
        fs.unlock(fd)
    finally:
        fs.close(fd)


def lock_holder(fd: int) -> int | None:
    """Return the process that holds the flock of an open file, None if it is not visible."""
    with suppress(OSError), open("/proc/locks", encoding="ascii") as locks:
        inode = os.fstat(fd).st_ino
        for line in locks:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def name_holder(fd: int) -> str:
    """Who holds the flock of an open file, for an error message."""
    holder = lock_holder(fd)
    return "another process" if holder is None else f"process {holder}"


def create_directory(fs: Fs, path: str) -> None:
    """Create a directory and its parents so that they survive a power loss; existing ones are fine."""
    missing: list[str] = []
    ancestor = os.path.abspath(path)
    while not fs.exists(ancestor):
        missing.append(ancestor)
        ancestor = os.path.dirname(ancestor)
    if missing:
        fs.makedirs(path)
    for created in reversed(missing):
        fs.fsync_dir(os.path.dirname(created))
