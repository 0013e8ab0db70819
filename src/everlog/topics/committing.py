"""From gathered frames to kept promises: writes each shard's frames in one go and tells who waits.

Owns the order: an entry is committed when its bytes are written, or synced if it asked for that, and
never before an earlier one of its topic. What a commit means is the entry's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from everlog.errors import StorageFailed
from everlog.native.frames import FrameBuffer
from everlog.topics.storage.wal import Position, WalShard


class Entry(Protocol):
    """Something whose frames are gathered in a shard."""

    needs_sync: bool

    def committed(self) -> None:
        """Its condition is met."""
        ...

    def failed(self, error: StorageFailed, written: bool) -> None:
        """It is not kept; `written` tells whether its bytes are in the log, synced or not."""
        ...


class _Group:
    """Entries that were written together and wait for one sync."""

    __slots__ = ("entries", "start")

    def __init__(self, start: Position, entries: list[Entry]) -> None:
        self.start = start
        self.entries = entries


class ShardLog:
    """One shard of the log with the entries that are gathered in it or wait for its sync."""

    def __init__(self, shard: WalShard) -> None:
        self.shard = shard
        self.buffer: FrameBuffer = shard.buffer
        """The gathered frames."""
        self.depth = 0
        """Entries that are gathered or wait for a sync."""
        self.depth_peak = 0
        self.refused = 0  # counted by who looks at the depth before adding to it
        self._gathered: list[Entry] = []
        self._gathered_from = shard.position
        self._waiting: deque[_Group] = deque()

    @property
    def oldest_position(self) -> Position:
        """Where the first frame lies whose entry is not committed yet; the end if all are."""
        if self._waiting:
            return self._waiting[0].start
        return self._gathered_from if self._gathered else self.shard.position

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes of frames; entries gathered before may be committed or failed by it."""
        if self.shard.has_room(size):
            return
        gathered_bytes = len(self.buffer)
        try:
            self.shard.reserve(size)
        except StorageFailed as error:
            if self.shard.needs_discard:
                self._fail_gathered(error)
            raise
        finally:
            if self._gathered and gathered_bytes and not len(self.buffer):
                self._pass_on()  # the room was made by writing what was gathered and beginning a new file

    def gather(self, entry: Entry, frames: int) -> None:
        """Take an entry whose `frames` frames are at the end of the buffer."""
        shard = self.shard
        if not self._gathered:
            self._gathered_from = shard.position
        shard.frames_gathered += frames
        self._gathered.append(entry)
        self.depth += 1
        self.depth_peak = max(self.depth_peak, self.depth)

    def write(self) -> None:
        """Write what is gathered; failures reach the entries, not the caller."""
        if not self._gathered:
            return
        try:
            self.shard.write()
        except StorageFailed as error:
            self._fail_gathered(error)
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        """Commit what only had to be written, and let the rest wait for a sync."""
        entries, self._gathered = self._gathered, []
        waiting = [entry for entry in entries if entry.needs_sync]
        if waiting:
            self._waiting.append(_Group(self._gathered_from, waiting))
            self.shard.sync(self._synced)
        else:
            self.shard.request_sync()
        if len(waiting) < len(entries):
            self.depth -= len(entries) - len(waiting)
            _tell(entry.committed for entry in entries if not entry.needs_sync)

    def _fail_gathered(self, error: StorageFailed) -> None:
        entries, self._gathered = self._gathered, []
        self.depth -= len(entries)
        # Newest first: each takes back what it put at the end of its topic's log.
        for entry in reversed(entries):
            entry.failed(error, False)
        self.shard.discard()

    def _synced(self, error: StorageFailed | None) -> None:
        group = self._waiting.popleft()
        self.depth -= len(group.entries)
        if error is None:
            _tell(entry.committed for entry in group.entries)
        else:
            _tell(partial(entry.failed, error, True) for entry in group.entries)


def _tell(outcomes: Iterable[Callable[[], None]]) -> None:
    """Tell every entry its outcome, also if one of them raises; the first error is raised in the end."""
    first_error: Exception | None = None
    for outcome in outcomes:
        try:
            outcome()
        except Exception as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
