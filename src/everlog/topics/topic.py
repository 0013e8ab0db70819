"""One topic in memory: its log, its floors, what is pending, and who waits for more.

Owns the state and the small steps that change it; decides nothing about files. All of it belongs to
the one thread that owns the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from everlog.api_types import Durability, TopicType
from everlog.native.topic_core import TopicCore, Totals
from everlog.native.topic_log import TopicLog
from everlog.topics import holes
from everlog.topics.commits import Commit
from everlog.topics.config import TopicConfig
from everlog.topics.routing.order import SeqOrder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from everlog.topics.jobs.lease_table import LeaseTable
    from everlog.topics.memory import MemoryChunks
    from everlog.topics.routing.table import Router
    from everlog.topics.storage.segments import SegmentSet


class QueueCounts(msgspec.Struct, frozen=True):
    """The jobs of a queue: claimable, leased, and moved to its dead-letter topic so far."""

    ready: int
    in_flight: int
    dead_lettered: int


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
    queue: QueueCounts | None = None

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


class Topic(TopicCore):
    """State of one topic. Seqs up to `visible` can be read; later ones wait for their commit."""

    __slots__ = (
        "cap_floor",
        "chunks",
        "create_pending",
        "delete_below",
        "deleted",
        "epoch",
        "feeders",
        "flips",
        "gone",
        "holes",
        "hop_runs",
        "leases",
        "logs_ahead",
        "planned_floor",
        "reserved_durable",
        "reserved_logged",
        "restored_head",
        "saved",
        "saved_seq",
        "trim_floor",
        "trim_holes",
        "ttl_floor",
        "uncertain_seq",
    )

    def __init__(
        self, topic_id: int, name: str, epoch: int, config: TopicConfig, shard: int, totals: Totals
    ) -> None:
        self.totals = totals
        self.topic_id = topic_id
        self.name = name
        self.epoch = epoch
        self.ready_set = None if totals.delivery is None else totals.delivery.scheduler
        self.configure(config)
        self.shard = shard
        self.log = TopicLog(topic_id)
        self.visible = 0
        # Floors are "first seq that is not lost"; 1 means nothing is.
        self.cap_floor = 1
        self.ttl_floor = 1
        self.trim_floor = 1  # of what a source had lost before it was copied; later such gaps are holes
        self.trim_holes: list[tuple[int, int]] = []  # first and last seq, ascending, behind live records
        self.holes: list[tuple[int, int]] = []  # first and last seq, ascending: see topics.holes
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
        self.leases: LeaseTable | None = None  # created by the first claim, or when a lease is restored
        # Routers: those that read here, those that write here, and what only then is needed.
        self.feeds: list[Router] | None = None
        self.feeders: list[Router] | None = None
        self.order: SeqOrder | None = None
        self.hop_runs: list[tuple[int, int, int]] = []  # first and last seq, hops of copies
        self.uncertain_seq = 0  # the first copy that was taken back and yet may be there after a restart
        self.chunks: MemoryChunks | None = None
        self.saved: SegmentSet | None = None
        self.saved_seq = 0
        self.logged_seq = 0  # records up to here are in the log or in segments, later ones in memory only
        self.flips: list[NDArray[np.uint64]] = []
        self.logs_ahead = False  # will be logged: its configuration is on the way
        self.create_pending = False
        self.restored_head = 0
        self.restored_ts = 0  # no record may be older, whatever the clock says now
        self.deleted = False  # not in the table
        self.gone = False  # and that is kept

    def configure(self, config: TopicConfig) -> None:
        """Use this configuration from now on."""
        self.config = config
        self.rank(config.priority, config.auto_priority)

    @property
    def durability(self) -> Durability:
        """The resolved class."""
        return self.config.durability or Durability.DISK

    @property
    def evict_floor(self) -> int:
        """The first seq that was not lost to cap, age or a trimmed source."""
        if self.trim_holes:
            self._pass_trims(self.earliest_seq)
        return max(self.cap_floor, self.ttl_floor, self.trim_floor)

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
        return TopicState(
            topic=self.name,
            config=self.config,
            epoch=self.epoch,
            head_seq=self.visible,
            earliest_seq=self.earliest_seq,
            evict_floor=self.evict_floor,
            count=self.count,
            bytes=self.bytes,
            effective_priority=self.priority_at(now_ms),
            last_write_ts=self.last_write_ts,
            last_read_ts=self.last_read_ts,
            queue=self.queue_counts(now_ms) if self.config.type is TopicType.QUEUE else None,
        )

    def queue_counts(self, now_ms: int) -> QueueCounts:
        """Return how the jobs of a queue stand, after leases and delays have ended that are over."""
        leases = self.leases
        if leases is None:
            return QueueCounts(self.count, 0, 0)
        if leases.sweep(now_ms):
            leases.wake()
        return QueueCounts(leases.ready(self.count), leases.leased, leases.dead_lettered)

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
        if count and self.leases is not None:
            self.leases.drop_below(seq)
        return count

    def kill_range(self, first_seq: int, end_seq: int) -> int:
        """Mark the records from `first_seq` up to before `end_seq` dead; return how many were alive."""
        count, size = self.log.kill_range(first_seq, end_seq)
        self.totals.bytes -= size
        if count and self.leases is not None:
            self.leases.drop_range(first_seq, end_seq)
        return count

    def kill(self, seqs: NDArray[np.uint64]) -> int:
        """Mark the records `seqs` dead; return how many were alive."""
        count, size = self.log.kill(seqs)
        self.totals.bytes -= size
        if count and self.leases is not None:
            self.leases.drop(seqs.tolist())
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
        if self.trim_holes:
            self._pass_trims(floor)
        self.log.drop_front(floor)
        if self.chunks is not None:
            self.chunks.drop_below(floor)

    def order_by_seq(self) -> None:
        """From now on batches come through more than one shard of the log."""
        if self.order is None:
            self.order = SeqOrder(self.log.next_seq)

    def note_trim(self, first_seq: int, last_seq: int) -> None:
        """These seqs stand for records that a source had lost before they could be copied."""
        holes = self.trim_holes
        if holes and first_seq <= holes[-1][1] + 1:
            before = holes.pop()
            first_seq, last_seq = min(first_seq, before[0]), max(last_seq, before[1])
        holes.append((first_seq, last_seq))
        self.snapshot_record = None

    def note_holes(self, first_seq: int, last_seq: int) -> None:
        """These seqs hold no record, and nobody deleted one."""
        holes.forget_below(self.holes, self.evict_floor)
        holes.note(self.holes, first_seq, last_seq)
        self.snapshot_record = None

    def _pass_trims(self, earliest_seq: int) -> None:
        """Gaps without a live record before them are told by the floor."""
        while self.trim_holes and self.trim_holes[0][1] < earliest_seq:
            self.trim_floor = max(self.trim_floor, self.trim_holes.pop(0)[1] + 1)
