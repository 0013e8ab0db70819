"""The two marker files of a queue directory: READY (may be opened) and LEASE (who serves it).

Owns those two files and nothing else. Both appear by temp file and rename, so a
reader sees a whole marker or none. Neither is forced to disk: after a power cut the process that
wrote it is gone, and its successor writes it again.

    READY   empty regular file; present from the moment the queue can be opened until its
            owner closes it cleanly. A crash leaves it behind: it promises a queue that can be
            opened, not a writer that is alive (`QueueReader.writer_status` answers that).
    LEASE   one JSON line: {"pid":4711,"epoch":3,"timestamp_ns":1700000000000000000}
"""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass

from everlog.errors import CorruptMetadata, Io
from everlog.fs import Fs, OsFs, replace_file
from everlog.queue.layout import LEASE_FILE, READY_FILE

# Errors that mean "absent" to a reader. What this user may not look at counts as absent too,
# since it could not be opened as a queue either.
NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG})

# Three integers and their names need about 90 bytes; a longer file is not a lease.
_LEASE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Lease:
    """The process that serves a queue directory, and when it last confirmed that (wall time)."""

    pid: int
    epoch: int
    timestamp_ns: int


def mark_ready(directory: str | os.PathLike[str], *, fs: Fs | None = None) -> None:
    """Announce that the queue in `directory` can be opened. Call it once that is true."""
    _replace(directory, READY_FILE, b"", fs)


def is_ready(directory: str | os.PathLike[str]) -> bool:
    """Whether `directory` holds a READY marker: a regular file, not a link or a directory."""
    path = os.path.join(directory, READY_FILE)
    try:
        # Asked directly: the file system seam knows existence, not the kind of a file.
        mode = os.lstat(path).st_mode
    except OSError as error:
        if error.errno in NOT_THERE:
            return False
        raise Io(f"cannot look for {path}: {error.strerror}; check the disk", error.errno) from error
    return stat.S_ISREG(mode)


def clear_ready(directory: str | os.PathLike[str], *, fs: Fs | None = None) -> bool:
    """Withdraw the READY marker; False if there was none."""
    path = os.path.join(directory, READY_FILE)
    try:
        (fs or OsFs()).unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise Io(f"cannot remove {path}: {error.strerror}; remove it by hand", error.errno) from error
    return True


def write_lease(
    directory: str | os.PathLike[str], pid: int, epoch: int, timestamp_ns: int, *, fs: Fs | None = None
) -> None:
    """Write or renew the LEASE of `directory`. Costs a few system calls: not for the hot thread."""
    fields = {"pid": pid, "epoch": epoch, "timestamp_ns": timestamp_ns}
    for name, value in fields.items():
        if not _is_count(value):
            raise ValueError(f"lease field {name} must be an integer of at least 0, not {value!r}")
    line = json.dumps(fields, separators=(",", ":")) + "\n"
    _replace(directory, LEASE_FILE, line.encode("ascii"), fs)


def read_lease(directory: str | os.PathLike[str], *, fs: Fs | None = None) -> Lease | None:
    """Return the lease of `directory`, None if there is none; `CorruptMetadata` if it is garbage."""
    path = os.path.join(directory, LEASE_FILE)
    try:
        data = _read(fs or OsFs(), path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Io(f"cannot read {path}: {error.strerror}; check its permissions", error.errno) from error
    try:
        fields = json.loads(data)
        lease = Lease(fields["pid"], fields["epoch"], fields["timestamp_ns"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _not_a_lease(path, data) from error
    if not (_is_count(lease.pid) and _is_count(lease.epoch) and _is_count(lease.timestamp_ns)):
        raise _not_a_lease(path, data)
    return lease


def _is_count(value: object) -> bool:
    # bool is an int to Python; `true` in a lease is garbage all the same.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _not_a_lease(path: str, data: bytes) -> CorruptMetadata:
    return CorruptMetadata(
        f"{path} is not one JSON line with pid, epoch and timestamp_ns, it starts with {data[:64]!r}; "
        "remove it, its owner will write it again"
    )


def _read(fs: Fs, path: str) -> bytes:
    fd = fs.open(path, os.O_RDONLY)
    try:
        return fs.pread(fd, _LEASE_BYTES_MAX, 0)
    finally:
        fs.close(fd)


def _replace(directory: str | os.PathLike[str], name: str, data: bytes, fs: Fs | None) -> None:
    path = os.path.join(directory, name)
    try:
        replace_file(fs or OsFs(), path, data, durable=False)
    except OSError as error:
        raise Io(
            f"cannot write {path}: {error.strerror}; the queue directory must exist and be writable",
            error.errno,
        ) from error
