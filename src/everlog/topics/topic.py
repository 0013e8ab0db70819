"""One topic in memory, in parts that change together: floors, pending batches, reservations, routes, storage.

Owns the state and the small steps that change it; decides nothing about files. All of it belongs to the one
thread that owns the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from everlog.api_types import Durability, GapReason, QueueCounts, TopicType
from everlog.errors import Corrupt
from everlog.native.topics.log import TopicLog
from everlog.topics.commits import ChangeEntry, Commit, SeqOrder
from everlog.topics.config import TopicConfig
from everlog.topics.delivery.scheduler import TopicSchedule
from everlog.topics.due_topics import DueTopics
from everlog.topics.remembered_keys import RememberedKey, RememberedKeys

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from everlog.topics.delivery.consumer_table import ConsumerTable
    from everlog.topics.delivery.delivery import Delivery
    from everlog.topics.jobs.lease_table import LeaseTable
    from everlog.topics.memory import MemoryChunks
    from everlog.topics.routing.table import Router
    from everlog.topics.storage.segments import SegmentSet
    from everlog.topics.storage.topic_records import StoredTopic

SeqRun = tuple[int, int]  # first and last seq
HOLE_RUNS_MAX: Final = 1024
SEQ_GAP_MAX: Final = 1 << 32
"""So many seqs in a row without a record can be behind others; more are a damaged number."""
SEQ_MAX: Final = 1 << 48
"""No topic gets as far."""
KEYS_A_STEP: Final = 1000
"""Idempotency keys that one append drops at most when their window is over."""


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


class Totals:
    """What an engine knows of all its topics together."""

    __slots__ = (
        "appended",
        "bytes",
        "consumed",
        "consumers",
        "delivery",
        "due",
        "evicted",
        "keyed",
        "keys",
        "sealed",
        "shrunk",
        "unforwarded",
        "unreclaimed",
        "unsaved",
    )

    def __init__(self, delivery: Delivery | None = None) -> None:
        self.appended = 0
        """Records that were accepted since the start."""
        self.bytes = 0
        self.consumed: dict[int, Topic] = {}
        """By id: topics that have consumers."""
        self.consumers = 0
        """How many consumers there are."""
        self.delivery = delivery
        self.due = DueTopics()
        """Topics to which time alone does something."""
        self.evicted: dict[int, Topic] = {}
        """By id: topics with consumers that have evicted records; see `Consumers.warn`."""
        self.keys = 0
        """How many idempotency keys are remembered."""
        self.keyed: dict[int, Topic] = {}
        """By id: topics whose keys are counted in `keys`; those looked through longest ago first."""
        self.sealed: dict[int, Topic] = {}
        """By id: topics with sealed segments that may have to move to the cold directory."""
        self.shrunk: dict[int, Topic] = {}
        """By id: topics that have lost records since the last checkpoint, perhaps all of a segment."""
        self.unforwarded: dict[int, Topic] = {}
        """By id: sources of routers with records that were not copied yet."""
        self.unreclaimed: dict[int, Topic] = {}
        """By id: topics whose dead records still take memory, which is freed in steps."""
        self.unsaved: dict[int, Topic] = {}
        """By id: topics with records or deletion marks for the next checkpoint."""


class Floors:
    """Up to where records are gone, and why. A floor is the first seq that is not gone; 1: none is."""

    __slots__ = (
        "cap",
        "caps_due",
        "commit",
        "corrupt",
        "delete_below",
        "holes",
        "planned",
        "trim",
        "trim_runs",
        "ttl",
    )

    def __init__(self) -> None:
        self.cap = 1
        self.ttl = 1
        self.trim = 1
        """Of what a router's source had lost before it was copied; later such gaps are in `trim_runs`."""
        self.trim_runs: list[SeqRun] = []
        """Ascending, behind live records."""
        self.holes: list[SeqRun] = []
        """Ascending: seqs that may hold no record although none was deleted. Batches that failed leave
        them, and what could not be synced is there again after some restarts, so only seqs of the runs
        that are not alive are holes."""
        self.corrupt: list[SeqRun] = []
        """Ascending: seqs whose records the disk has lost. Some of them may never have been assigned."""
        self.planned = 1
        """What batches that are not visible yet will evict."""
        self.caps_due = False
        """The caps may be tighter than what the topic holds."""
        self.commit: Commit | None = None
        """Of a floor that may not be shown before it is synced."""
        self.delete_below = 0

    def note_trim(self, first_seq: int, last_seq: int) -> None:
        """Add a gap behind all others that a router's source left."""
        runs = self.trim_runs
        if runs and first_seq <= runs[-1][1] + 1:
            before = runs.pop()
            first_seq, last_seq = min(first_seq, before[0]), max(last_seq, before[1])
        runs.append((first_seq, last_seq))

    def gaps(self) -> list[tuple[int, int, GapReason]]:
        """First and last seq of the gaps that a reader has to see where they are, and why; ascending."""
        trims: list[tuple[int, int, GapReason]] = [(*run, "source_trim") for run in self.trim_runs]
        return sorted([*trims, *((*run, "corrupt") for run in self.corrupt)])

    def pass_trims(self, earliest_seq: int) -> None:
        """Move the floor over gaps that have no live record before them."""
        while self.trim_runs and self.trim_runs[0][1] < earliest_seq:
            self.trim = max(self.trim, self.trim_runs.pop(0)[1] + 1)


def add_holes(runs: list[SeqRun], first_seq: int, last_seq: int) -> None:
    """Add a run, also one that is known. Runs stay ascending, apart and bounded.

    Of too many the two oldest become one, so that records deleted between them count as holes too.
    """
    if last_seq < first_seq:
        return
    merged: list[SeqRun] = []
    for first, last in sorted([*runs, (first_seq, last_seq)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    if len(merged) > HOLE_RUNS_MAX:
        merged[:2] = [(merged[0][0], merged[1][1])]
    runs[:] = merged


def drop_holes_below(runs: list[SeqRun], seq: int) -> None:
    """Drop the runs that lie wholly below `seq`."""
    runs[:] = [run for run in runs if run[1] >= seq]


def leave_holes(log: TopicLog, name: str, end_seq: int) -> None:
    """Leave the seqs up to before `end_seq` without a record; a number that cannot be true is damage."""
    try:
        while log.base_seq == log.next_seq and SEQ_GAP_MAX < end_seq - log.next_seq < SEQ_MAX:
            log.push_holes(SEQ_GAP_MAX, log.last_ts)  # without records in front they take no memory
        log.push_holes(end_seq - log.next_seq, log.last_ts)
    except (ValueError, OverflowError) as error:
        raise Corrupt(
            f"topic {name!r}: seq {end_seq - 1} cannot follow seq {log.next_seq - 1} ({error}); the number "
            f"is damaged, restore the directory from a backup"
        ) from error


class Pending:
    """Batches that are appended and not visible yet."""

    __slots__ = ("bytes", "count", "syncs")

    def __init__(self) -> None:
        self.syncs = 0
        """Entries that wait for a sync; batches behind them wait too."""
        self.count = 0
        self.bytes = 0


class Reservations:
    """Class `disk`: seqs and floors that may be shown without another sync; see `ack_policy`."""

    __slots__ = ("ceiling_durable", "ceiling_logged", "floor_durable", "floor_logged")

    def __init__(self) -> None:
        self.ceiling_logged = 0
        self.ceiling_durable = 0
        self.floor_logged = 1
        self.floor_durable = 1

    def reserve_seqs(self, ceiling: int) -> ChangeEntry:
        """Reserve seqs up to `ceiling`; they may be used once the entry is committed."""
        self.ceiling_logged = ceiling

        def apply() -> None:
            self.ceiling_durable = max(self.ceiling_durable, ceiling)

        def undo() -> None:
            self.ceiling_logged = self.ceiling_durable

        return ChangeEntry(apply, undo)

    def reserve_floor(self, floor: int) -> ChangeEntry:
        """Reserve floors up to `floor`; they may be shown once the entry is committed."""
        self.floor_logged = floor

        def apply() -> None:
            self.floor_durable = max(self.floor_durable, floor)

        def undo() -> None:
            self.floor_logged = self.floor_durable

        return ChangeEntry(apply, undo)


class TopicRoutes:
    """The routers that read from a topic (`feeds`) or write to it (`feeders`), and what only they need."""

    __slots__ = ("feeders", "feeds", "hop_runs", "order", "uncertain_seq")

    def __init__(self) -> None:
        self.feeds: tuple[Router, ...] = ()
        self.feeders: tuple[Router, ...] = ()
        self.order: SeqOrder | None = None
        """Once batches come through more than one shard of the log."""
        self.hop_runs: list[tuple[int, int, int]] = []
        """First and last seq, hops of copies."""
        self.uncertain_seq = 0
        """The first copy that was withdrawn and yet may be there after a restart."""


class TopicStorage:
    """Where the records of a topic are: in memory, in the log, in segments."""

    __slots__ = (
        "changes",
        "chunks",
        "create_pending",
        "logged_changes",
        "logged_seq",
        "newest_config",
        "restored_head",
        "restored_ts",
        "saved_seq",
        "segments",
        "unmarked",
        "updates",
    )

    def __init__(self) -> None:
        self.changes = 0
        """Changes of the class under way: leases, options and consumers are logged as if one were over."""
        self.updates = 0
        """How many configurations were logged."""
        self.chunks: MemoryChunks | None = None
        self.segments: SegmentSet | None = None
        self.saved_seq = 0
        """Records up to here are in segments."""
        self.logged_seq = 0
        """Records up to here are in the log or in segments, later ones in memory only."""
        self.unmarked: list[NDArray[np.uint64]] = []
        """Seqs that were deleted and have no deletion mark in their segment yet."""
        self.newest_config: TopicConfig | None = None
        """The configuration that was logged last; None if there was none since the start."""
        self.logged_changes = 0
        """Configurations that wait to take effect and have the topic in the log."""
        self.create_pending = False
        self.restored_head = 0
        self.restored_ts = 0
        """No record may be older, whatever the clock says now."""


class Topic:
    """State of one topic. Seqs up to `visible` can be read; later ones wait for their commit."""

    __slots__ = (
        "config",
        "consumers",
        "deleted",
        "due_ms",
        "epoch",
        "floors",
        "gone",
        "keys",
        "last_write_ts",
        "leases",
        "log",
        "name",
        "pending",
        "reserved",
        "routes",
        "schedule",
        "shard",
        "snapshot_record",
        "storage",
        "topic_id",
        "totals",
        "visible",
    )

    def __init__(
        self, topic_id: int, name: str, epoch: int, config: TopicConfig, shard: int, totals: Totals
    ) -> None:
        self.totals = totals
        self.topic_id = topic_id
        self.name = name
        self.epoch = epoch
        self.schedule = TopicSchedule(name, totals.delivery)
        self.configure(config)
        self.shard = shard
        self.log = TopicLog(topic_id)
        self.visible = 0
        self.last_write_ts: int | None = None
        self.floors = Floors()
        self.pending = Pending()
        self.reserved = Reservations()
        self.routes = TopicRoutes()
        self.storage = TopicStorage()
        self.keys = RememberedKeys()
        self.leases: LeaseTable | None = None  # created by the first claim, or when a lease is restored
        self.consumers: ConsumerTable | None = None  # None: it has none
        self.snapshot_record: StoredTopic | None = None
        self.due_ms = 0  # its entry in `Totals.due`, 0 if it has none
        self.deleted = False  # not in the table
        self.gone = False  # and that is committed

    def configure(self, config: TopicConfig) -> None:
        """Use this configuration from now on."""
        self.config = config
        self.schedule.configure(config.priority, config.auto_priority)

    @property
    def durability(self) -> Durability:
        """The resolved class."""
        return self.config.durability or Durability.DISK

    @property
    def newest_config(self) -> TopicConfig:
        """The configuration that was logged last; it may still wait to take effect."""
        return self.storage.newest_config or self.config

    @property
    def evict_floor(self) -> int:
        """The first seq that was not lost to cap, age or a trimmed source."""
        floors = self.floors
        if floors.trim_runs:
            floors.pass_trims(self.earliest_seq)
        return max(floors.cap, floors.ttl, floors.trim)

    @property
    def earliest_seq(self) -> int:
        """The first seq that can be read, one past the head if there is none."""
        return min(self.log.first_live, self.visible + 1)

    @property
    def count(self) -> int:
        """Live records that can be read."""
        return self.log.live_count - self.pending.count

    @property
    def bytes(self) -> int:
        """Their bytes of data and meta."""
        return self.log.live_bytes - self.pending.bytes

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
            effective_priority=self.schedule.priority_at(now_ms),
            last_write_ts=self.last_write_ts,
            last_read_ts=self.schedule.last_read_ts,
            queue=self.queue_counts(now_ms) if self.config.type is TopicType.QUEUE else None,
        )

    def queue_counts(self, now_ms: int) -> QueueCounts:
        """Return how the jobs of a job queue stand, after leases and delays have ended that are over."""
        leases = self.leases
        if leases is None:
            return QueueCounts(self.count, 0, 0)
        if leases.sweep(now_ms):
            leases.wake()
        return QueueCounts(leases.ready(self.count), leases.leased, leases.dead_lettered)

    def remember_key(self, remembered: RememberedKey) -> None:
        """Remember an idempotency key."""
        self.totals.keys += remembered.key not in self.keys
        self.totals.keyed[self.topic_id] = self
        self.keys.add(remembered)

    def forget_key(self, key: str) -> None:
        """Drop an idempotency key, also one that is not there."""
        if self.keys.forget(key):
            self.totals.keys -= 1

    def find_key(self, key: str, now_ms: int) -> RememberedKey | None:
        """What an idempotency key stands for; None if it is not known, or was used too long ago."""
        remembered = self.keys.get(key)
        if remembered is None or not self._is_forgotten(remembered, now_ms):
            return remembered
        self.forget_key(key)
        return None

    def forget_keys(self, now_ms: int) -> None:
        """Drop some idempotency keys whose window is over; they are held in the order of their writing."""
        for _ in range(KEYS_A_STEP):
            oldest = self.keys.oldest
            if oldest is None or not self._is_forgotten(oldest, now_ms):
                return
            self.forget_key(oldest.key)
            self.snapshot_record = None

    def _is_forgotten(self, remembered: RememberedKey, now_ms: int) -> bool:
        return now_ms - remembered.ts > self.config.idempotency_window_ms and remembered.commit.done

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
        """Mark the records `seqs`, ascending, dead; return how many were alive."""
        count, size = self.log.kill(seqs)
        self.totals.bytes -= size
        if count and self.leases is not None:
            self.leases.drop(self.leases.known_among(seqs))
        return count

    def raise_floor(self, *, cap: int = 1, ttl: int = 1) -> None:
        """Move the floors forward; the records below must be dead already."""
        self.floors.cap = max(self.floors.cap, cap)
        self.floors.ttl = max(self.floors.ttl, ttl)
        self.snapshot_record = None
        if self.consumers is not None:
            self.totals.evicted[self.topic_id] = self
        self.reclaim()

    def reclaim(self) -> None:
        """Free the memory of the dead front, or begin to: `Totals.unreclaimed` has what is left."""
        floor = self.earliest_seq
        if self.floors.trim_runs:
            self.floors.pass_trims(floor)
        if self.storage.segments is not None:
            self.totals.shrunk[self.topic_id] = self
        self.log.drop_front(floor)
        is_done = self.log.base_seq >= floor
        if self.storage.chunks is not None:
            is_done &= self.storage.chunks.drop_below(floor)
        if not is_done:
            self.totals.unreclaimed[self.topic_id] = self

    def order_by_seq(self) -> None:
        """From now on batches come through more than one shard of the log."""
        if self.routes.order is None:
            self.routes.order = SeqOrder(self.log.next_seq)

    def note_trim(self, first_seq: int, last_seq: int) -> None:
        """These seqs stand for records that a source had lost before they could be copied."""
        self.floors.note_trim(first_seq, last_seq)
        self.snapshot_record = None

    def restore_gaps(self, trim_floor: int, trim_runs: list[SeqRun], holes: list[SeqRun]) -> None:
        """Take over gaps that were logged; later ones may be known already."""
        self.floors.trim = max(self.floors.trim, trim_floor)
        for runs, logged in ((self.floors.trim_runs, trim_runs), (self.floors.holes, holes)):
            for first_seq, last_seq in logged:
                add_holes(runs, first_seq, last_seq)

    def note_holes(self, first_seq: int, last_seq: int) -> None:
        """These seqs hold no record, although none was deleted."""
        drop_holes_below(self.floors.holes, self.evict_floor)
        add_holes(self.floors.holes, first_seq, last_seq)
        self.snapshot_record = None

    def note_corrupt(self, first_seq: int, last_seq: int) -> None:
        """The disk has lost the records of these seqs; readers get a tombstone in their place."""
        drop_holes_below(self.floors.corrupt, self.evict_floor)
        add_holes(self.floors.corrupt, first_seq, last_seq)
        self.note_holes(first_seq, last_seq)
