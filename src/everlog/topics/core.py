"""What all parts of an engine share: settings, seams, the table of topics, the shards of the log.

Owns these and the few steps that every operation needs; the operations are in their own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList
from xxhash import xxh3_64_intdigest

from everlog.api_types import Durability
from everlog.clock import Clock
from everlog.errors import LimitReached, OutcomeUnknown, StorageFailed
from everlog.fs import Fs
from everlog.native.topics.log import FrameBuffer, Sources
from everlog.topics.commits import COMMITTED, ChangeEntry, Commit, ShardCommits, nothing, together
from everlog.topics.config import EngineSettings
from everlog.topics.delivery.delivery import Delivery
from everlog.topics.memory import SpareChunks
from everlog.topics.routing.table import RouterTable
from everlog.topics.storage.failures import StorageFailures
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import Topic, Totals

if TYPE_CHECKING:
    from everlog.topics.routing.forwarding import Forwarder
    from everlog.topics.storage.control import ScheduleRecord

NS_PER_MS: Final = 1_000_000
# Entries of one shard that may wait for the disk; more are refused, to be tried again.
QUEUE_MAX: Final = 4096
# Room for the control frames that can accompany a batch: create, key, head and evict watermark.
CONTROL_ROOM: Final = 4096
StateEntry = tuple[int, int, bytes]
"""Seq and time of a control frame, and its payload."""
_LEASES_PER_MS_BITS: Final = 20
_LEASE_TIME_BITS: Final = 20


class Core:
    """The state of an engine. `shards` is empty if nothing is stored on disk."""

    def __init__(
        self, settings: EngineSettings, clock: Clock, fs: Fs, delivery: Delivery | None = None
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.fs = fs
        self.failures = StorageFailures(clock)
        self.sources = Sources()
        self.topics: dict[str, Topic] = {}
        self.topic_names: SortedList[str] = SortedList()
        """The names of `topics`, for pages of them; code points sort like the bytes of UTF-8."""
        self.by_id: dict[int, Topic] = {}
        self.shards: list[ShardCommits] = []
        self.delivery = delivery or Delivery(clock)
        self.delivery.ingest = self._ingest
        self.totals = Totals(self.delivery)
        self.damaged: dict[str, Topic] = {}  # by name: not served, because a segment cannot be read
        self.filling: set[str] = set()  # names of topics whose records are still being loaded
        self.deleting: dict[int, Topic] = {}  # by id: deleted, but that is not committed yet
        self.dropped: list[Topic] = []  # deleted, with files that the next checkpoint removes
        self.created: list[Callable[[str], None]] = []
        """Called with the name of each new topic once its creation is committed."""
        self.schedules: dict[str, ScheduleRecord] = {}  # by name, as they are stored
        self.routers = RouterTable()
        self.forwarder: Forwarder | None = None  # once everything is recovered
        self.scratch = FrameBuffer()
        self.spare_chunks = SpareChunks()
        self.next_topic_id = 1
        self.next_epoch = 1
        self.next_file_number = 1
        # Without a log nothing outlives the process, so the time of its start makes its lease ids unique.
        self.next_lease_id = self.now_ms() << _LEASES_PER_MS_BITS

    def now_ms(self) -> int:
        """Wall time."""
        return self.clock.wall_ns() // NS_PER_MS

    def _ingest(self) -> int:
        """How full the fullest queue of the log is, in thousandths."""
        return max((shard.depth for shard in self.shards), default=0) * 1000 // QUEUE_MAX

    def shard_of(self, topic_id: int, shards: int) -> int:
        """Which of `shards` shards a topic writes to."""
        return xxh3_64_intdigest(topic_id.to_bytes(8, "little")) % shards if shards else 0

    def take_file_number(self) -> int:
        """A number for a new log file; never the same twice in the life of a data directory."""
        number = self.next_file_number
        self.next_file_number += 1
        return number

    def begin_leases(self) -> None:
        """Begin to number leases behind those of all earlier runs: every run takes a new file number.

        The time is in it as well, for a run whose files were lost with the power before they were synced.
        """
        started_ms = self.now_ms() % (1 << _LEASE_TIME_BITS)
        number = self.next_file_number << _LEASE_TIME_BITS | started_ms
        self.next_lease_id = number << _LEASES_PER_MS_BITS

    def take_lease_ids(self, count: int) -> int:
        """The first of `count` numbers for leases; none is used twice."""
        first = self.next_lease_id
        self.next_lease_id += count
        return first

    def is_logged(self, topic: Topic) -> bool:
        """Whether new records of this topic go into the log.

        Those of an ephemeral one do while older batches wait there, so that all become visible in order.
        """
        if topic.durability is not Durability.EPHEMERAL:
            return bool(self.shards)
        storage = topic.storage
        has_waiting = topic.pending.count > 0 and storage.logged_seq > topic.visible
        return bool(self.shards) and (storage.logged_changes > 0 or has_waiting)

    def logs_changes(self, topic: Topic) -> bool:
        """Whether floors and deletes of this topic go into the log: it has, or will have, records there."""
        storage = topic.storage
        return self.is_logged(topic) or (
            bool(self.shards) and (storage.changes > 0 or storage.logged_seq >= topic.log.first_live)
        )

    def writable_shard(self, topic: Topic) -> ShardCommits:
        """The shard of a topic; raises `ReadOnly` if it takes nothing more."""
        shard = self.shards[topic.shard]
        if shard.wal.read_only is not None:
            raise shard.wal.refusal(shard.wal.read_only)
        if shard.depth >= QUEUE_MAX:
            shard.refused += 1
            raise LimitReached(
                f"{shard.depth} writes wait for the disk; try again soon", "wal_queue", QUEUE_MAX
            )
        return shard

    def check_pressure(self, topic: Topic) -> None:
        """Refuse a write while there is far too much to do and the queue of its shard is nearly full."""
        if not self.is_logged(topic):
            return
        depth = self.shards[topic.shard].depth
        if depth * 4 >= QUEUE_MAX * 3:
            self.delivery.refused += 1
            retry_after_ms = self.delivery.governor.retry_after_ms
            raise LimitReached(
                f"the server has too much to do, and {depth} writes wait for the disk; try again in "
                f"{retry_after_ms} ms",
                "pressure",
                QUEUE_MAX,
                retry_after_ms,
            )

    def log_change(
        self,
        topic: Topic,
        kind: FrameType,
        payload: bytes,
        apply: Callable[[], None] = nothing,
        undo: Callable[[], None] = nothing,
        *,
        needs_sync: bool = True,
    ) -> Commit:
        """Gather one control frame of a topic; `apply` runs when it is committed, `undo` if it fails."""
        if not self.shards:
            apply()
            return COMMITTED
        shard = self.writable_shard(topic)
        shard.reserve(len(payload) + CONTROL_ROOM, frees_space=True)  # deletes and limits come this way
        shard.wal.buffer.append_control(kind, 0, topic.topic_id, 0, self.now_ms(), payload)
        entry = ChangeEntry(apply, undo, needs_sync=needs_sync)
        shard.gather(entry, 1)
        return entry.commit

    def log_state(self, topic: Topic, kind: FrameType, entries: Iterable[StateEntry]) -> Commit:
        """Gather what is known of a topic that is about to be logged; a later change is waited for.

        It is one entry of the queue of its shard, however many frames it has.
        """
        shard = self.writable_shard(topic)
        gathered = ChangeEntry(needs_sync=False)
        shard.gather(gathered, 0)
        for seq, ts, payload in entries:
            shard.reserve(len(payload) + CONTROL_ROOM)
            shard.wal.buffer.append_control(kind, 0, topic.topic_id, seq, ts, payload)
            shard.wal.frames_gathered += 1
        return gathered.commit

    def sync(self, shards: Iterable[ShardCommits]) -> Commit:
        """A commit that is done when everything that is written in these shards now is synced."""
        commits: list[Commit] = []
        for shard in shards:
            if shard.wal.position > shard.wal.synced:
                commits.append(Commit())
                shard.wal.sync(partial(_finish_synced, commits[-1]))
        return together(commits)


def _finish_synced(commit: Commit, error: StorageFailed | None) -> None:
    """The sync that a commit waits for is over; what a failed one left on disk is not known."""
    commit.finish(None if error is None else OutcomeUnknown.of(error))
