"""The right to write to a queue: `writer.lock`.

Owns the lock file and the question whether its recorded owner still lives. The kernel's file
lock decides; the record "pid start_ticks epoch" only explains a refusal and lets readers
check whether the writer's process runs. Failures of the disk pass through as `OSError`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from everlog.clock import Clock
from everlog.errors import WriterAlreadyActive
from everlog.fs import Fs, close_locked, lock_holder
from everlog.queue.layout import LOCK_FILE

STALE_RETRY_NS_MAX = 100_000_000
"""How long a refused lock without a living owner is tried again."""

_RETRY_INTERVAL_NS = 1_000_000
_RECORD_SIZE_MAX = 128
_FIELD_DIGITS_MAX = 20
_DEAD_STATES = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The process that wrote the lock file; the start time distinguishes it from a later one with its pid."""

    pid: int
    start_ticks: int
    epoch: int


def encode_owner(owner: LockOwner) -> bytes:
    """Return the line in the lock file."""
    return f"{owner.pid} {owner.start_ticks} {owner.epoch}\n".encode("ascii")


def decode_owner(data: bytes) -> LockOwner | None:
    """Parse a lock file; unparsable fields read as 0, all zero is no owner (None).

    Only the first line counts: a shorter line is written over a longer one before the file is
    cut, so a rest of the old line may follow for a moment.
    """
    fields = [_parse_field(field) for field in data.partition(b"\n")[0].split(b" ")[:3]]
    fields += [0] * (3 - len(fields))
    return LockOwner(*fields) if any(fields) else None


def _parse_field(field: bytes) -> int:
    # bytes.isdigit is ASCII only, unlike int(), which also takes signs and underscores.
    return int(field) if field.isdigit() and len(field) <= _FIELD_DIGITS_MAX else 0


def read_owner(fs: Fs, queue_path: str) -> LockOwner | None:
    """Return the recorded owner, dead or alive; None if the file is missing or names no process."""
    try:
        fd = fs.open(os.path.join(queue_path, LOCK_FILE), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return decode_owner(fs.pread(fd, _RECORD_SIZE_MAX, 0))
    finally:
        fs.close(fd)


def parse_start_ticks(stat: str) -> int | None:
    """Return field 22 of a `/proc/<pid>/stat` line, None if the process is dead.

    Fields are counted after the last ')', because the command name before it may hold blanks
    and parentheses. A zombie counts as dead: the kernel has closed its files, the lock among
    them, and it will never run again; only its parent has not asked for the exit status yet.
    """
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in _DEAD_STATES:
        return None
    return int(fields[19])


def process_start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not run."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat_file:
            return parse_start_ticks(stat_file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def owner_alive(owner: LockOwner) -> bool:
    """Whether the recorded process itself (not a later one with its pid) still runs."""
    return owner.pid > 0 and process_start_ticks(owner.pid) == owner.start_ticks


class WriterLock:
    """The held lock. A second one, in this or another process, is refused."""

    def __init__(self, fs: Fs, path: str, fd: int, previous: LockOwner | None) -> None:
        """Use `WriterLock.acquire`."""
        self.path = path
        self.previous_epoch = previous.epoch if previous else 0
        self._fs = fs
        self._fd: int | None = fd
        self._pid = os.getpid()
        self._start_ticks = process_start_ticks(self._pid) or 0

    @classmethod
    def acquire(cls, fs: Fs, clock: Clock, queue_path: str) -> WriterLock:
        """Take the lock and record this process as its owner, with epoch 0.

        Refused at once if the recorded owner lives. If it does not, the lock is tried again for
        at most 100 ms: the owner may be exiting, or may not have written its record yet.
        After that, a forked child of the owner must be holding the descriptor.
        """
        path = os.path.join(queue_path, LOCK_FILE)
        fd = fs.open(path, os.O_RDWR | os.O_CREAT)
        try:
            _wait_for_lock(fs, clock, fd, path)
            lock = cls(fs, path, fd, decode_owner(fs.pread(fd, _RECORD_SIZE_MAX, 0)))
            lock._write(epoch=0)
        except BaseException:
            with contextlib.suppress(OSError):
                fs.close(fd)
            raise
        return lock

    def record_epoch(self, epoch: int) -> None:
        """Rewrite the record with the epoch of this writer and force it to disk."""
        self._fs.fsync(self._write(epoch))

    def close(self) -> None:
        """Release the lock; the record stays. Closing twice is fine."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            close_locked(self._fs, fd)

    def _write(self, epoch: int) -> int:
        assert self._fd is not None, "the writer lock is closed"
        record = encode_owner(LockOwner(self._pid, self._start_ticks, epoch))
        # In this order there is never a moment without an owner in the first line.
        self._fs.pwrite(self._fd, record, 0)
        self._fs.truncate(self._fd, len(record))
        return self._fd


def _processes_with(fd: int) -> list[int]:
    """Return the other processes that have the file open, as far as this user may see."""
    found = []
    status = os.fstat(fd)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd") if pid != os.getpid() else ():
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), status):
                        found.append(pid)
                        break
    return found


def _wait_for_lock(fs: Fs, clock: Clock, fd: int, path: str) -> None:
    deadline_ns = clock.monotonic_ns() + STALE_RETRY_NS_MAX
    while not fs.try_lock(fd):
        owner = decode_owner(fs.pread(fd, _RECORD_SIZE_MAX, 0))
        holder = lock_holder(fd)
        if owner is not None and holder in (None, owner.pid) and owner_alive(owner):
            raise WriterAlreadyActive(
                f"{path} is held by the live process {owner.pid} (epoch {owner.epoch}); "
                "close that writer first"
            )
        if clock.monotonic_ns() >= deadline_ns:
            raise WriterAlreadyActive(f"{path} is held {_who_holds(fd, owner, holder)}")
        clock.sleep_ns(_RETRY_INTERVAL_NS)


def _who_holds(fd: int, owner: LockOwner | None, holder: int | None) -> str:
    """Name the process that holds a lock which its recorded owner does not hold."""
    recorded = f"process {owner.pid} (epoch {owner.epoch})" if owner else "no process"
    if holder is not None and process_start_ticks(holder) is not None:
        return f"by process {holder}, although it names {recorded} as its writer; end process {holder} first"
    children = ", ".join(map(str, _processes_with(fd))) or "unknown"
    dead = ", which is dead" if owner else ""
    return (
        f"although it names {recorded}{dead}: a forked child of the writer may have inherited it "
        f"(processes with the file open: {children}); end that child first"
    )
