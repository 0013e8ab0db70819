"""The data directory of a running engine: its lock, its log shards, and its segments.

Owns paths and open files. What is in them is decided by `checkpoint` and `recovery`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from everlog.errors import DataDirInUse, EverlogError, StorageFailed
from everlog.fs import close_locked, create_directory, name_holder, read_file, replace_file
from everlog.objects import open_store as open_objects
from everlog.objects import probe
from everlog.topics.commits import Commit, ShardCommits
from everlog.topics.config import EngineSettings
from everlog.topics.storage import layout
from everlog.topics.storage.disk_reserve import DiskReserve
from everlog.topics.storage.log_shipping import LogShipping
from everlog.topics.storage.remote import RemoteTier, check_no_remote
from everlog.topics.storage.segment_store import SegmentStore, delete_topic
from everlog.topics.storage.segments import SegmentLimits, SegmentSet, SegmentSources
from everlog.topics.storage.shipping import Shipper
from everlog.topics.storage.synced_ends import SyncedEnd, SyncedEnds
from everlog.topics.storage.syncs import SyncRunner
from everlog.topics.storage.tier import TopicTier
from everlog.topics.storage.wal import Position, WalShard
from everlog.topics.topic import Topic

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.storage.memory_fill import MemoryFill

_END_OF_LOG = Position(2**64, 0)


class Coverage(NamedTuple):
    """Which part of the log a snapshot makes unnecessary.

    Files from `next_file_number` on are needed whole, those in `starts` from the offset on, others not.
    """

    next_file_number: int
    starts: list[tuple[int, int]]
    positions: list[Position]


DamageKind = Literal["copies", "index", "log", "record", "segment", "snapshot", "synced_file"]
DAMAGES: Final[tuple[DamageKind, ...]] = get_args(DamageKind)


class DamageFound(NamedTuple):
    """Something that the disk has lost or changed: which kind, where, and what it means."""

    kind: DamageKind
    path: str
    message: str


@dataclass
class RecoveryReport:
    """What was found when a data directory was opened."""

    snapshot_number: int = 0
    rejected_snapshots: list[str] = field(default_factory=list)
    topics: int = 0
    segments: int = 0
    records_from_segments: int = 0
    log_files: int = 0
    records_from_log: int = 0
    cut_bytes: int = 0
    damage: list[DamageFound] = field(default_factory=list)
    """What no crash can have left."""
    may_lack_acked: bool = False
    """Whether acknowledged records of `disk` or `fsync` topics may be lost."""


class OldFile(NamedTuple):
    """A log file of an earlier run, held because records are still read from it."""

    number: int
    path: str
    source: int


def lanes_for(settings: EngineSettings) -> int:
    """How many lanes the `SyncRunner` of an engine needs: those of its shards, and four of its store."""
    return settings.shards + 4


class Store:
    """Everything on disk that belongs to one engine."""

    def __init__(self, core: Core, data_dir: str, syncs: SyncRunner, *, is_copy: bool = False) -> None:
        """`is_copy`: it is read while it follows another server, which owns the cold tier."""
        settings = core.settings
        self._is_copy = is_copy
        self._core = core
        self._syncs = syncs
        self.data_dir = data_dir
        # The lanes of the runner: one per shard, then these (`lanes_for`).
        self.checkpoint_lane = settings.shards
        self.cold_lane = settings.shards + 1
        self._prepare_lane = settings.shards + 2
        self.move_lane = settings.shards + 3
        self.meta_dir = os.path.join(data_dir, layout.META_DIR)
        self.wal_dir = os.path.join(data_dir, layout.WAL_DIR)
        roots = [data_dir] if settings.cold_dir is None else [data_dir, settings.cold_dir]
        self.topic_roots = [os.path.join(root, layout.TOPICS_DIR) for root in roots]
        self.limits = SegmentLimits(
            max_events=settings.segment_max_events,
            max_bytes=settings.segment_max_bytes,
            max_age_ms=settings.segment_max_age_ms,
            hot_retain_segments=settings.hot_retain_segments,
            hot_retain_bytes=settings.hot_retain_bytes,
        )
        self.loaded = SegmentSources(
            core.sources,
            mapped_bytes_max=settings.mapped_bytes_max,
            fetched_bytes_max=settings.cold_cache_bytes,
        )
        self.old_files: list[OldFile] = []
        self.report = RecoveryReport()
        self.fill: MemoryFill | None = None
        self.keeps_log = False
        """No checkpoint may be made: the log is needed as it is once a lost segment is back."""
        """What is left of recovery: topics of class `memory`."""
        self.snapshot_number = 0
        self._fetching: dict[int, Commit] = {}
        self.boot_pending = False
        self.synced_path = os.path.join(data_dir, layout.SYNCED_FILE)
        self.earlier_ends: list[SyncedEnd] = []  # of `old_files`
        self._ends: SyncedEnds | None = None
        reserve_path = os.path.join(data_dir, layout.RESERVE_FILE)
        self.reserve = DiskReserve(core.fs, reserve_path, settings.file_bytes)
        for directory in (data_dir, self.meta_dir, self.wal_dir, *self.topic_roots):
            create_directory(core.fs, directory)
        self._lock_fd: int | None = self._take_lock()
        self.remote: RemoteTier | None = None
        self.shipping: LogShipping | None = None
        self.copy_lag_ms: Callable[[], int] | None = None
        try:
            self._open_remote()
        except BaseException:
            self._release_lock()
            raise

    def _take_lock(self) -> int:
        fs = self._core.fs
        path = os.path.join(self.data_dir, layout.LOCK_FILE)
        fd = fs.open(path, os.O_RDWR | os.O_CREAT)
        if not fs.try_lock(fd):
            holder = name_holder(fd)
            fs.close(fd)
            raise DataDirInUse(f"{holder} has {self.data_dir} open; stop it or use another data directory")
        return fd

    def _open_remote(self) -> None:
        """Reach the object store of the cold tier; one that cannot be reached now does not stop a start."""
        core, url = self._core, self._core.settings.cold_url
        if core.settings.backup_url is not None:
            open_objects(core.settings.backup_url, fs=core.fs)  # a wrong one is refused before all work
        if url is None:
            check_no_remote(core.fs, self.data_dir)
            return
        self.remote = RemoteTier(url, self.data_dir, core.fs, core.clock)
        self.topic_roots.append(self.remote.topics_dir)
        if not self._is_copy and (error := self.remote.probe()) is not None:
            core.failures.report("relocation", error, url)

    # --- Did the machine stop? ---------------------------------------------------------------------------

    def is_same_boot(self) -> bool:
        """Whether the machine has run on since the directory was last open: then nothing written was lost."""
        fs = self._core.fs
        path = os.path.join(self.data_dir, layout.BOOT_FILE)
        return fs.exists(path) and read_file(fs, path) == fs.boot_id().encode()

    def note_boot(self) -> None:
        """Remember this run of the machine.

        Not before what recovery has concluded from a stop of the machine is in a snapshot: a process that
        is killed before has to come to the same conclusions again.
        """
        if not self.is_same_boot():
            fs = self._core.fs
            replace_file(fs, os.path.join(self.data_dir, layout.BOOT_FILE), fs.boot_id().encode())

    def distrust_page_cache(self) -> None:
        """A sync failed: what the page cache shows may be gone later although the machine runs on."""
        self.boot_pending = False
        with suppress(OSError):
            self._core.fs.unlink(os.path.join(self.data_dir, layout.BOOT_FILE))

    # --- Segments ----------------------------------------------------------------------------------------

    def tier_of(self, topic_id: int) -> TopicTier:
        """Where the segments of a topic are."""
        name = layout.TOPIC_DIR.name(topic_id)
        if self.remote is not None:
            hot_dir = os.path.join(self.topic_roots[0], name)
            return TopicTier(SegmentStore(hot_dir, self._core.fs), self.remote.store_of(topic_id))
        hot, *cold = (SegmentStore(os.path.join(root, name), self._core.fs) for root in self.topic_roots)
        return TopicTier(hot, cold[0] if cold else None)

    def delete_topic(self, root: str, topic_id: int) -> None:
        """Worker: remove everything that a topic has below one of the roots."""
        if self.remote is not None and root == self.remote.topics_dir:
            self.remote.delete_topic(topic_id)
        else:
            delete_topic(self._core.fs, root, topic_id)

    def touch_segment(self, topic: Topic, seq: int) -> None:
        """A read ended at `seq`: its segment was used last."""
        if topic.storage.segments is not None and topic.log.base_seq <= seq < topic.log.next_seq:
            self.loaded.touch(topic.log.place(seq)[0])

    def segments_of(self, topic: Topic) -> SegmentSet:
        """The segments of a topic; an empty set for one that has none yet."""
        if topic.storage.segments is None:
            topic.storage.segments = SegmentSet(self.limits)
        return topic.storage.segments

    def load_segment(self, source: int) -> bool:
        """Load a segment that a read met; True if it had to be fetched."""
        if self.map_segment(source):
            return False
        with self._reporting_reads():
            fetch = self.loaded.plan_fetch(source)
            self.loaded.attach(fetch, fetch.read())
        return True

    def map_segment(self, source: int) -> bool:
        """Map a segment that a read met; False if it has to be fetched."""
        with self._reporting_reads():
            return self.loaded.load(source)

    @contextmanager
    def _reporting_reads(self) -> Iterator[None]:
        try:
            yield
        except EverlogError as error:
            self._core.failures.report("segment_read", error, self.data_dir)
            raise

    def fetch_segment(self, source: int, *, is_asked_for: bool = True) -> Commit:
        """Begin to read a segment in the background; done when it is in memory, or cannot be."""
        running = self._fetching.get(source)
        if running is not None:
            return running
        commit = self._fetching[source] = Commit()
        fetch = self.loaded.plan_fetch(source)
        found: list[bytes] = []

        def done(error: BaseException | None) -> None:
            del self._fetching[source]
            if isinstance(error, Exception):
                self._core.failures.report("segment_read", error, fetch.store.directory)
            if error is None:
                self.loaded.attach(fetch, found[0])
                commit.finish()
                if is_asked_for:
                    self._read_ahead(source)
            elif isinstance(error, EverlogError):
                commit.finish(error)
            elif isinstance(error, Exception):
                commit.finish(StorageFailed(f"a cold segment cannot be read: {error}"))
            else:
                raise error

        self._syncs.start(self.cold_lane, lambda: found.append(fetch.read()), done)
        return commit

    def _read_ahead(self, source: int) -> None:
        """Fetch the segment behind one that a read has met, if there is room for both."""
        following = self.loaded.following(source)
        if following is not None and following not in self._fetching:
            self.fetch_segment(following, is_asked_for=False)

    # --- The log -----------------------------------------------------------------------------------------

    def open_shards(self) -> None:
        """Begin this run's log: a fresh file in every shard."""
        self.refill_reserve()  # first: on a nearly full disk the files are small ones instead
        core = self._core
        count = core.settings.shards
        self._ends = SyncedEnds(core.fs, self.synced_path, count, self.earlier_ends)
        for number in range(count):
            directory = (
                self.wal_dir if count == 1 else os.path.join(self.wal_dir, layout.SHARD_DIR.name(number))
            )
            shard = WalShard(
                number,
                directory,
                core.take_file_number,
                fs=core.fs,
                clock=core.clock,
                sources=core.sources,
                syncs=self._syncs,
                prepare_lane=self._prepare_lane,
                file_bytes=core.settings.file_bytes,
                ends=self._ends,
                disk_reserve=self.reserve,
            )
            shard.failures = core.failures
            core.shards.append(ShardCommits(shard))
        self.refill_reserve()

    def refill_reserve(self) -> None:
        """Take the reserve of disk again if there is room for it; otherwise the next append has to."""
        with suppress(OSError):
            self.reserve.take()

    def begin_shipping(self, wake: Callable[[], None] | None) -> None:
        """Begin to ship the log, if there is somewhere to ship it to."""
        core, settings = self._core, self._core.settings
        if settings.backup_url is None:
            return
        shipper = Shipper(
            self.data_dir,
            open_objects(settings.backup_url, fs=core.fs),
            core.fs,
            core.clock,
            cold_dir=settings.cold_dir,
            address=settings.backup_address,
            is_primary=True,
            acks_shipped=settings.ack == "shipped",
        )
        if (error := probe(settings.backup_url, core.fs)) is None:
            shipper.begin()
        else:  # the first round that reaches the store begins
            core.failures.report("backup", error, settings.backup_url)
        self.shipping = LogShipping(
            shipper,
            core.clock,
            core.failures,
            interval_ms=settings.backup_interval_ms,
            url=settings.backup_url,
            wake=wake,
        )
        for shard in core.shards:
            shard.wal.shipping = self.shipping
            shard.wal.acks_shipped = settings.ack == "shipped"
        self.shipping.start()

    @property
    def backup_lag_ms(self) -> int:
        """How far the backup is behind, or a copy is behind it; 0 if nothing is shipped."""
        if self.copy_lag_ms is not None:
            return self.copy_lag_ms()
        return 0 if self.shipping is None else self.shipping.lag_ms

    def coverage(self) -> Coverage:
        """What a snapshot begun now makes unnecessary once all committed records are in segments."""
        starts: list[tuple[int, int]] = []
        positions: list[Position] = []
        for shard in self._core.shards:
            position = shard.oldest_position
            positions.append(position)
            for file in shard.wal.files:
                if file.number >= position.file_number:
                    starts.append(
                        (file.number, position.offset if file.number == position.file_number else 0)
                    )
            if shard.wal.prepared_number:
                # Its number is taken, but everything in it is still to come.
                starts.append((shard.wal.prepared_number, 0))
        return Coverage(self._core.next_file_number, starts, positions)

    def has_log_before(self, coverage: Coverage | None) -> bool:
        """Whether there are log files of earlier runs, or some that a snapshot made unnecessary."""
        if self.old_files or coverage is None:
            return bool(self.old_files)
        shards = zip(self._core.shards, coverage.positions, strict=True)
        return any(shard.wal.has_files_before(position) for shard, position in shards)

    def release_log(self, coverage: Coverage) -> list[str]:
        """Release the log files that a snapshot made unnecessary, and return their paths."""
        paths = self._release_old_files()
        for shard, position in zip(self._core.shards, coverage.positions, strict=True):
            paths += shard.wal.release_files(position)
        return paths

    def _release_old_files(self) -> list[str]:
        """Release the log of earlier runs; its records are all in segments."""
        paths = [file.path for file in self.old_files]
        for file in self.old_files:
            self._core.sources.remove(file.source)
            if self._ends is not None:
                self._ends.release(file.number)
        self.old_files = []
        return paths

    def delete_files(self, paths: list[str]) -> None:
        """Worker: delete log files durably. It may take long: a large file is many blocks to free."""
        fs = self._core.fs
        for path in paths:
            with suppress(FileNotFoundError):
                fs.unlink(path)
        for directory in sorted({os.path.dirname(path) for path in paths}):
            fs.fsync_dir(directory)

    # --- The end -----------------------------------------------------------------------------------------

    def close(self, *, remove_log: bool) -> None:
        """Close all files; with `remove_log` nothing of the log is left, because a snapshot has it all."""
        try:
            for shard in self._core.shards:
                shard.wal.close()
            if remove_log:
                if self._ends is not None:
                    self._ends.clear()
                paths = self._release_old_files()
                for shard in self._core.shards:
                    paths += shard.wal.release_files(_END_OF_LOG)
                self.delete_files(paths)
                self.reserve.release()
        except OSError as error:
            raise StorageFailed(f"closing the log failed: {error}", error.errno) from error
        finally:
            self._release_lock()

    def abandon(self) -> None:
        """Close all files and write nothing, as a crash would."""
        if self.shipping is not None:
            self.shipping.abandon()
        for shard in self._core.shards:
            shard.wal.abandon()
        self._release_lock()

    def _release_lock(self) -> None:
        if self._ends is not None:
            self._ends.close()
        if self._lock_fd is not None:
            close_locked(self._core.fs, self._lock_fd)
            self._lock_fd = None
