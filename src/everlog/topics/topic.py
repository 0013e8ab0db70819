"""One topic in memory: its log, its floors, what is pending, and who waits for more.

Owns the state and the small steps that change it; decides nothing about files. All of it belongs to
the one thread that owns the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from everlog.native.topic_log import TopicLog
from everlog.topics.commits import Commit
from everlog.topics.config import Durability, TopicConfig
from everlog.topics.priority import effective_priority

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from everlog.topics.memory import MemoryChunks
    from everlog.topics.storage.segments import SegmentSet


class TopicState(msgspec.Struct, frozen=True):
    """What `Engine.state` reports."""

    topic: str
    config: TopicConfig
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    count: int
    bytes: int
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None

    @property
    def next_seq(self) -> int:
        """The seq that the next record will get."""
        return self.head_seq + 1


class RememberedKey(msgspec.Struct, frozen=True):
    """An idempotency key and the batch that it stands for."""

    first_seq: int
    count: int
    ts: int
    commit: Commit


class Totals:
    """What an engine knows of all its topics together."""

    __slots__ = ("bytes", "unsaved")

    def __init__(self) -> None:
        self.bytes = 0
        self.unsaved: dict[int, Topic] = {}  # by id: those with records or marks for the next checkpoint


class Topic:
    """State of one topic. Seqs up to `visible` can be read; later ones wait for their commit."""

    __slots__ = (
        "cap_floor",
        "caps_due",
        "ceiling_durable",
        "ceiling_logged",
        "chunks",
        "config",
        "create_pending",
        "delete_below",
        "deleted",
        "epoch",
        "flips",
        "floor_commit",
        "gone",
        "keys",
        "last_read_ts",
        "last_write_ts",
        "log",
        "logged_seq",
        "logs_ahead",
        "name",
        "pending_bytes",
        "pending_count",
        "pending_syncs",
        "planned_floor",
        "reserved_durable",
        "reserved_logged",
        "restored_head",
        "restored_ts",
        "saved",
        "saved_seq",
        "shard",
        "snapshot_record",
        "topic_id",
        "totals",
        "ttl_floor",
        "visible",
        "waiters",
    )

    def __init__(
        self, topic_id: int, name: str, epoch: int, config: TopicConfig, shard: int, totals: Totals
    ) -> None:
        self.totals = totals
        self.topic_id = topic_id
        self.name = name
        self.epoch = epoch
        self.config = config
        self.shard = shard
        self.log = TopicLog(topic_id)
        self.visible = 0
        # Floors are "first seq that is not lost"; 1 means nothing is.
        self.cap_floor = 1
        self.ttl_floor = 1
        self.caps_due = False  # the caps may be tighter than what is kept
        self.delete_below = 0
        # Appended, not yet visible; and what their publication will evict.
        self.pending_syncs = 0
        self.pending_count = 0
        self.pending_bytes = 0
        self.planned_floor = 1
        # Class disk: seqs and floors that are safe without another sync.
        self.ceiling_logged = 0
        self.ceiling_durable = 0
        self.reserved_logged = 1
        self.reserved_durable = 1
        self.floor_commit: Commit | None = None
        self.keys: dict[str, RememberedKey] = {}
        self.waiters: dict[Callable[[], None], None] = {}  # in the order in which they came
        self.chunks: MemoryChunks | None = None
        self.saved: SegmentSet | None = None
        self.saved_seq = 0
        self.logged_seq = 0  # records up to here are in the log or in segments, later ones in memory only
        self.flips: list[NDArray[np.uint64]] = []
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.snapshot_record: bytes | None = None
        self.logs_ahead = False  # will be logged: its configuration is on the way
        self.create_pending = False
        self.restored_head = 0
        self.restored_ts = 0  # no record may be older, whatever the clock says now
        self.deleted = False  # not in the table
        self.gone = False  # and that is kept

    @property
    def durability(self) -> Durability:
        """The resolved class."""
        return self.config.durability or Durability.DISK

    @property
    def evict_floor(self) -> int:
        """The first seq that was not lost to cap or age; the only trigger of tombstones."""
        return max(self.cap_floor, self.ttl_floor)

    @property
    def earliest_seq(self) -> int:
        """The first seq that can be read, one past the head if there is none."""
        return min(self.log.first_live, self.visible + 1)

    @property
    def count(self) -> int:
        """Live records that can be read."""
        return self.log.live_count - self.pending_count

    @property
    def bytes(self) -> int:
        """Their bytes of data and meta."""
        return self.log.live_bytes - self.pending_bytes

    def state(self, now_ms: int) -> TopicState:
        """Return what is reported about the topic."""
        idle_ms = None if self.last_read_ts is None else now_ms - self.last_read_ts
        return TopicState(
            topic=self.name,
            config=self.config,
            epoch=self.epoch,
            head_seq=self.visible,
            earliest_seq=self.earliest_seq,
            evict_floor=self.evict_floor,
            count=self.count,
            bytes=self.bytes,
            effective_priority=effective_priority(self.config.priority, self.config.auto_priority, idle_ms),
            last_write_ts=self.last_write_ts,
            last_read_ts=self.last_read_ts,
        )

    def wake(self) -> None:
        """Tell everyone who waits that something is new; each is told once."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter()

    def forget_keys(self, now_ms: int) -> None:
        """Drop idempotency keys whose window is over; they are held in the order of their writing."""
        window_ms = self.config.idempotency_window_ms
        while self.keys:
            key, remembered = next(iter(self.keys.items()))
            if now_ms - remembered.ts <= window_ms or not remembered.commit.done:
                return
            del self.keys[key]
            self.snapshot_record = None

    def kill_below(self, seq: int) -> int:
        """Mark every record below `seq` dead; return how many were alive."""
        count, size = self.log.kill_below(seq)
        self.totals.bytes -= size
        return count

    def kill_range(self, first_seq: int, end_seq: int) -> int:
        """Mark the records from `first_seq` up to before `end_seq` dead; return how many were alive."""
        count, size = self.log.kill_range(first_seq, end_seq)
        self.totals.bytes -= size
        return count

    def kill(self, seqs: NDArray[np.uint64]) -> int:
        """Mark the records `seqs` dead; return how many were alive."""
        count, size = self.log.kill(seqs)
        self.totals.bytes -= size
        return count

    def raise_floor(self, *, cap: int = 1, ttl: int = 1) -> None:
        """Move the floors forward; the records below must be dead already."""
        self.cap_floor = max(self.cap_floor, cap)
        self.ttl_floor = max(self.ttl_floor, ttl)
        self.snapshot_record = None
        self.reclaim()

    def reclaim(self) -> None:
        """Give back the memory of the dead front."""
        floor = self.earliest_seq
        self.log.drop_front(floor)
        if self.chunks is not None:
            self.chunks.drop_below(floor)
