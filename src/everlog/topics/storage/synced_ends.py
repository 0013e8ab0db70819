"""Up to where each log file is on disk, in a small file that the next start compares with the log.

Owns the file `.topics.synced`. Without it a log that lost its tail looks like one that a crash has torn. It
is written after every sync and not synced itself: each slot was true when it was written, so an older one
that a power loss brings back is true as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from everlog.fs import Fs, read_file, replace_file
from everlog.topics.storage import layout


class SyncedEnd(NamedTuple):
    """A log file was synced up to `offset`; shard `shard` of `shards` wrote it (0 shards: not known)."""

    file_number: int
    offset: int
    shard: int = 0
    shards: int = 0


class FoundEnds(NamedTuple):
    """What the file of an earlier run says, by file number, and how many slots cannot be read."""

    ends: dict[int, SyncedEnd]
    damaged_slots: int
    is_missing: bool = False


def _slot(end: SyncedEnd) -> bytes:
    body = layout.SYNCED_END.pack(*end)
    return body + layout.CHECKSUM.pack(xxh3_64_intdigest(body))


def read_ends(fs: Fs, path: str) -> FoundEnds:
    """Read the ends of an earlier run; a slot that is not whole is counted and passed over."""
    if not fs.exists(path):
        return FoundEnds({}, 0, is_missing=True)
    content = read_file(fs, path)
    size = layout.SYNCED_SLOT_SIZE
    ends: dict[int, SyncedEnd] = {}
    damaged = int(len(content) % size != 0)
    for at in range(0, len(content) - size + 1, size):
        slot = content[at : at + size]
        end = SyncedEnd(*layout.SYNCED_END.unpack_from(slot))
        if slot == _slot(end):
            known = ends.get(end.file_number)
            ends[end.file_number] = end if known is None or end.offset >= known.offset else known
        elif any(slot):
            damaged += 1
    return FoundEnds(ends, damaged)


def write_ends(fs: Fs, path: str, ends: Iterable[SyncedEnd]) -> None:
    """Durably replace the file by one with these ends."""
    replace_file(fs, path, b"".join(map(_slot, ends)))


class SyncedEnds:
    """The ends of the log files of a run. `record` may be called on any thread, the rest on the owner's."""

    def __init__(self, fs: Fs, path: str, shards: int, earlier: Iterable[SyncedEnd]) -> None:
        """Begin with the files of earlier runs; this one has so many shards."""
        self._fs = fs
        self._shards = shards
        self._ends = {end.file_number: end for end in earlier}
        self._slots = {number: slot for slot, number in enumerate(self._ends)}
        self._free: list[int] = []
        write_ends(fs, path, self._ends.values())
        self._fd = fs.open(path, os.O_RDWR)

    def add(self, file_number: int, shard: int) -> None:
        """Make room for a new log file, of which nothing is synced yet."""
        self._slots[file_number] = self._free.pop() if self._free else len(self._slots)
        self._ends[file_number] = SyncedEnd(file_number, 0, shard, self._shards)

    def record(self, file_number: int, offset: int) -> None:
        """A sync is over; raises `OSError` if that cannot be written, which weakens the check alone."""
        end = self._ends[file_number]._replace(offset=offset)
        self._fs.pwrite(self._fd, _slot(end), self._slots[file_number] * layout.SYNCED_SLOT_SIZE)

    def release(self, file_number: int) -> None:
        """No snapshot needs the log file any more."""
        if file_number in self._slots:
            self._free.append(self._slots.pop(file_number))
            del self._ends[file_number]

    def clear(self) -> None:
        """Forget all ends durably: the log is about to be removed, because a snapshot has it all."""
        self._fs.truncate(self._fd, 0)
        self._fs.fsync(self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                self._fs.close(fd)
