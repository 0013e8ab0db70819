"""From gathered frames to kept promises: each shard's frames are written in one go, then who waits is told.

Owns what an entry is. Their order is in `native/commits`; what a commit means is the entry's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from everlog.errors import StorageFailed
from everlog.native import commits

if TYPE_CHECKING:
    from everlog.topics.storage.wal import Position, WalShard


class Entry(Protocol):
    """Something whose frames are gathered in a shard."""

    @property
    def needs_sync(self) -> bool:
        """Whether it waits for a sync, not only for the write."""
        ...

    def committed(self) -> None:
        """Its condition is met."""
        ...

    def failed(self, error: StorageFailed, written: bool) -> None:
        """It is not kept; `written` tells whether its bytes are in the log, synced or not."""
        ...


class ShardLog(commits.ShardLog):
    """One shard of the log with the entries that are gathered in it or wait for its sync.

    All of it is native; here is what it deals with.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        shard: WalShard
        oldest_position: Position

        def __init__(self, shard: WalShard) -> None: ...
        def gather(self, entry: Entry, frames: int) -> None:
            """Take an entry whose `frames` frames are at the end of the buffer."""
