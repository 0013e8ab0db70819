"""Recovery of a data directory: snapshot, segment indexes, then the log in order.

Owns the order and the rules of what is believed. State that cannot be read stops the start: an engine
never comes up with less than the disk still has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from everlog.api_types import Durability
from everlog.errors import Corrupt, CorruptMetadata, DamagedData, Io
from everlog.fs import create_directory, opened, read_file, replace_file, sync_path
from everlog.native.queue.ring import Mapping
from everlog.native.topics.log import LogFrame, LogReplay, TopicLog
from everlog.topics import catalogue
from everlog.topics.commits import COMMITTED
from everlog.topics.delivery.consumer_table import (
    CONSUMER_FRAMES,
    apply_consumer,
    clear_volatile_consumers,
    enlist,
    finish_consumer_replay,
    restore_consumers,
)
from everlog.topics.due_work import schedule
from everlog.topics.jobs.lease_log import (
    apply_delete_seqs,
    apply_lease,
    clear_volatile_leases,
    finish_lease_replay,
    restore_leases,
)
from everlog.topics.retention import apply_delete, has_caps
from everlog.topics.routing.replay import ForwardReplay, note_reused_seqs
from everlog.topics.storage import control, layout, snapshot
from everlog.topics.storage.layout import FrameType
from everlog.topics.storage.log_losses import LogLosses
from everlog.topics.storage.log_survey import Survey, missing_file, survey
from everlog.topics.storage.segment_loading import (
    LoadedSegment,
    check_sealed,
    contradicts,
    damaged_seqs,
    hole_index,
    index_entries,
    load_listed,
    load_segments,
    rebuilt_index,
)
from everlog.topics.storage.segment_store import SegmentPart, delete_topic, list_topics
from everlog.topics.storage.segments import SegmentSet
from everlog.topics.storage.store import DamageFound, OldFile, RecoveryReport, Store
from everlog.topics.storage.synced_ends import SyncedEnd, read_ends
from everlog.topics.storage.syncs import SyncRunner
from everlog.topics.storage.tier import Tier, TopicTier
from everlog.topics.storage.wal_files import END_FRAME, WalFile, cut_tail, list_wal_files, map_file
from everlog.topics.topic import RememberedKey, Topic

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from everlog.topics.core import Core


log = logging.getLogger("everlog.topics")


class Progress(NamedTuple):
    """How far recovery is: `done` of `total` bytes of the phase."""

    phase: str
    done: int
    total: int


def open_store(
    core: Core, data_dir: str, syncs: SyncRunner, progress: Callable[[Progress], None] | None
) -> Store:
    """Lock a data directory, recover what it holds into `core`, and begin this run's log."""
    try:
        store = Store(core, data_dir, syncs)
    except OSError as error:
        raise Io(f"cannot open the data directory {data_dir}: {error}", error.errno) from error
    try:
        _Recovery(core, store, progress).run()
        _log_report(store.report)
        if not store.boot_pending:
            store.note_boot()
        store.open_shards()
        core.begin_leases()
        for topic in list(core.topics.values()):
            topic.shard = core.shard_of(topic.topic_id, len(core.shards))
            enlist(core, topic)
            topic.floors.caps_due = has_caps(topic)
            if topic.floors.caps_due:
                core.totals.due.add(topic, core.now_ms())
            else:
                schedule(core, topic)
            if topic.storage.segments is not None:
                core.totals.sealed[topic.topic_id] = topic
        note_reused_seqs(core)
    except OSError as error:
        store.abandon()
        raise Io(f"cannot recover the data directory {data_dir}: {error}", error.errno) from error
    except BaseException:
        store.abandon()
        raise
    return store


def _log_report(report: RecoveryReport) -> None:
    """Write what was found to the log of the process: damage loudly, the rest in one line."""
    for found in report.damage:
        log.error("damage (%s): %s: %s", found.kind, found.path, found.message)
    if report.may_lack_acked:
        log.error("acknowledged records may be lost; what is missing is reported to readers as `corrupt`")
    log.info(
        "recovered %d topics: %d records from %d segments, %d from %d log files; %d torn bytes cut off",
        report.topics,
        report.records_from_segments,
        report.segments,
        report.records_from_log,
        report.log_files,
        report.cut_bytes,
    )


def recover_store(core: Core, store: Store) -> None:
    """Find out what a data directory holds, and begin nothing; `store` may be one that changes no file."""
    _Recovery(core, store, None, is_alone=False).run()


_ROUTER_TYPES: Final = {FrameType.ROUTER_CREATE, FrameType.ROUTER_DELETE, FrameType.FORWARD}
EMPTY_SNAPSHOT: Final = control.SnapshotBody(True, 1, 1, 1, [], [], has_synced_file=True)


@contextmanager
def _reading(file: WalFile) -> Iterator[None]:
    """Name the log file in any `OSError` of the block."""
    try:
        yield
    except OSError as error:
        raise Io(f"cannot read the log file {file.path}: {error.strerror or error}", error.errno) from error


class _LogContent:
    """A log file to be replayed: its bytes, or what could be saved of them."""

    __slots__ = ("content", "file", "source", "start", "survey", "synced")

    def __init__(self, file: WalFile, start: int, synced: SyncedEnd | None, found: Survey) -> None:
        self.file = file
        self.start = start
        self.synced = synced
        self.survey = found
        self.content: Buffer = found.salvaged
        self.source = 0


class _Recovery:
    """One run of recovery. `is_alone`: no engine has the directory open and writes to it meanwhile."""

    def __init__(
        self,
        core: Core,
        store: Store,
        progress: Callable[[Progress], None] | None,
        *,
        is_alone: bool = True,
    ) -> None:
        self._is_alone = is_alone
        self._core = core
        self._store = store
        self._report = store.report
        self._progress = progress or (lambda _: None)
        self._clean = False
        self._replayed_frames = False
        self._is_same_boot = False
        self._logs: dict[int, TopicLog] = {}
        self._forwards = ForwardReplay(core, store.load_segment)
        self._listed: set[int] = set()  # ids of topics of which the snapshot lists segments
        self._damaged: list[_LogContent] = []
        self._quarantined: dict[int, Corrupt] = {}  # by topic id: why it cannot be served
        self._losses = LogLosses(core, self._logs)

    def run(self) -> None:
        """Recover everything."""
        self._is_same_boot = self._store.is_same_boot()
        body = self._load_snapshot()
        files = list_wal_files(self._core.fs, self._store.wal_dir)
        if body is not None:
            self._clean = body.clean
            self._forwards.restore(body)
            for number, raw in enumerate(body.topics):
                self._restore_topic(control.decode(raw, control.TopicRecord))
                if number % 1000 == 0:
                    self._progress(Progress("segments", number, len(body.topics)))
            self._progress(Progress("segments", len(body.topics), len(body.topics)))
        self._replay(files, body)
        self._forwards.resolve(self._apply_to)
        for topic in self._core.topics.values():
            self._losses.settle(topic)
            self._finish_topic(topic)
        self._forwards.finish()
        self._losses.settle_copies()
        self._check_policy()
        self._quarantine()
        self._write_salvaged()
        self._core.totals.bytes = sum(topic.log.live_bytes for topic in self._core.topics.values())
        self._remove_unknown_topics()
        self._report.topics = len(self._core.topics)

    # --- Snapshot ----------------------------------------------------------------------------------------

    def _load_snapshot(self) -> control.SnapshotBody | None:
        core, store = self._core, self._store
        # A name may be in the page cache only; what is built on it must not outlive it.
        core.fs.fsync_dir(store.meta_dir)
        found = snapshot.newest(core.fs, store.meta_dir)
        self._report.rejected_snapshots = [
            f"{rejected.path}: {rejected.reason}" for rejected in found.rejected
        ]
        self._report.damage += [DamageFound("snapshot", *rejected) for rejected in found.rejected]
        numbers = snapshot.numbers(core.fs, store.meta_dir)
        store.snapshot_number = max(numbers, default=0)
        if found.payload is None:
            self._check_log_is_whole(found.rejected)
            return None
        self._report.snapshot_number = found.number
        body = control.decode(found.payload, control.SnapshotBody)
        core.next_topic_id = body.next_topic_id
        core.next_epoch = body.next_epoch
        core.next_file_number = body.next_file_number
        return body

    def _check_log_is_whole(self, rejected: list[snapshot.Rejected]) -> None:
        """Without a snapshot only a log that was never trimmed is complete.

        A new directory gets its first snapshot before its first log file, so none means that it is lost.
        """
        store, fs = self._store, self._core.fs
        files = list_wal_files(fs, store.wal_dir)
        whole = [file.number for file in files] == list(range(1, len(files) + 1))
        used = bool(self._last_files_with_frames(files)) or any(
            list_topics(fs, root) for root in store.topic_roots
        )
        if not used and not rejected:
            snapshot.write(fs, store.meta_dir, 1, control.encode(EMPTY_SNAPSHOT))
            store.snapshot_number = 1
        elif not files or not whole:
            reason = f"{rejected[0].path}: {rejected[0].reason}" if rejected else "there is none"
            raise CorruptMetadata(
                f"no snapshot in {store.meta_dir} can be read ({reason}) and the log does not reach back to "
                f"the beginning; restore the directory from a backup"
            )

    # --- Segments ----------------------------------------------------------------------------------------

    def _restore_topic(self, record: control.TopicRecord) -> None:
        core = self._core
        topic = Topic(record.topic_id, record.name, record.epoch, record.config, 0, core.totals)
        topic.floors.cap = record.cap_floor
        topic.floors.ttl = record.ttl_floor
        topic.floors.trim = record.trim_floor
        topic.floors.trim_runs = record.trim_holes
        topic.routes.hop_runs = record.hop_runs
        topic.floors.holes = record.holes
        topic.floors.corrupt = record.corrupt
        topic.floors.delete_below = record.delete_below
        topic.reserved.floor_logged = max(record.cap_floor, record.reserved_floor)
        topic.reserved.ceiling_logged = record.ceiling
        topic.storage.saved_seq = record.saved_seq
        topic.last_write_ts = record.last_write_ts
        topic.schedule.last_read_ts = record.last_read_ts
        for key, first_seq, count, ts in record.keys:
            topic.keys[key] = RememberedKey(first_seq, count, ts, COMMITTED)
        restore_leases(topic, record)
        restore_consumers(topic, record.consumers)
        topic.storage.restored_head = record.head_seq
        topic.storage.restored_ts = record.last_ts
        first_seq = record.segments[0][0] if record.segments else record.saved_seq + 1
        topic.log = TopicLog(topic.topic_id, first_seq)
        if record.segments:
            self._listed.add(topic.topic_id)
            self._load_segments(topic, record)
        if topic.log.next_seq <= record.saved_seq:
            topic.log.push_holes(record.saved_seq + 1 - topic.log.next_seq, record.last_ts)
        topic.log.kill_below(max(topic.evict_floor, topic.floors.delete_below))
        self._register(topic)

    def _register(self, topic: Topic) -> None:
        """Put a topic into the table; its name belongs to the newest instance.

        Shards are read one by one, so an older one may come later, and its deletion may be lost.
        """
        core = self._core
        other = core.topics.get(topic.name)
        catalogue.register(core, topic)
        self._logs[topic.topic_id] = self._forwards.log_of(topic.topic_id, topic.log)
        self._forwards.created(topic)
        if other is not None:
            older = other if other.epoch < topic.epoch else topic
            core.topics[topic.name] = topic if older is other else other
            catalogue.hide(core, older)
            catalogue.release(core, older)
            self._forget_log(older)

    def _forget_log(self, topic: Topic) -> None:
        """Collect no more records of a topic that is gone, unless copies of them have to be made."""
        if not self._forwards.takes_part(topic.topic_id):
            self._logs.pop(topic.topic_id, None)

    def _load_segments(self, topic: Topic, record: control.TopicRecord) -> None:
        store = self._store
        tier = store.tier_of(topic.topic_id)
        self._rebuild_indexes(tier, record)
        try:
            loaded = load_listed(tier, record.segments)
            if loaded is None:
                self._cut_to_snapshot(tier, record)
                loaded = load_segments(tier, durable_through_seq=record.saved_seq).segments
            found = [(segment.first_seq, segment.last_seq, segment.data_bytes) for segment in loaded]
            if found != record.segments:
                missing = sorted(set(record.segments) - set(found)) or sorted(
                    set(found) - set(record.segments)
                )
                raise Corrupt(
                    f"segment {missing[0][0]} of topic {topic.name!r} is not as the snapshot says (seqs "
                    f"{missing[0][0]} to {missing[0][1]}, {missing[0][2]} bytes); restore it from a backup"
                )
        except Corrupt as error:
            loaded = self._without_damaged(topic, tier, record, error)
        if not self._clean:
            self._sync_marks(tier, loaded)
        topic.storage.segments = SegmentSet.from_loaded(store.limits, loaded)
        checksums = dict(zip(record.segments, record.index_checksums, strict=False))
        for segment, info in zip(loaded, topic.storage.segments.infos, strict=True):
            key = (info.first_seq, info.last_seq, info.data_bytes)
            if topic.topic_id in self._quarantined and key in checksums:
                info.index_checksum = checksums[key]
            if topic.topic_id in self._quarantined:
                info.busy = True  # neither moved nor removed: the file may come back
            self._load_index(topic, tier, segment, store.loaded.add(tier, info))
            self._report.segments += 1
            self._report.records_from_segments += info.live

    def _rebuild_indexes(self, tier: TopicTier, record: control.TopicRecord) -> None:
        """Make indexes again that are not as the snapshot says: all that they say follows from the data."""
        if not self._is_alone:
            return
        for (first_seq, last_seq, data_bytes), checksum in zip(
            record.segments, record.index_checksums, strict=False
        ):
            count = last_seq - first_seq + 1
            store = tier.store(self._tier_with_data(tier, first_seq))
            try:
                index = store.read(first_seq, SegmentPart.INDEX, 0)[: count * layout.INDEX_ENTRY_SIZE]
            except Corrupt:
                index = b""
            if xxh3_64_intdigest(index) == checksum:
                continue
            try:
                data = store.read(first_seq, SegmentPart.DATA, 0, data_bytes)
            except Corrupt:
                continue  # the data is gone, which is found when the segment is loaded
            rebuilt = rebuilt_index(first_seq, last_seq, data)
            if rebuilt is None:
                continue
            if contradicts(index, rebuilt):
                path = store.describe(first_seq, SegmentPart.INDEX)
                self._report.damage.append(DamageFound("index", path, "it was made again from its data"))
            store.put_index(first_seq, rebuilt)

    @staticmethod
    def _tier_with_data(tier: TopicTier, segment_id: int) -> Tier:
        if tier.cold is None or tier.hot.exists(segment_id, SegmentPart.DATA):
            return Tier.HOT
        return Tier.COLD if tier.cold.exists(segment_id, SegmentPart.DATA) else Tier.HOT

    def _without_damaged(
        self, topic: Topic, tier: TopicTier, record: control.TopicRecord, error: Corrupt
    ) -> list[LoadedSegment]:
        """Load the segments that can be loaded; the others have no record that can be read.

        The topic is not served then, unless they are to be given up.
        """
        gives_up = self._core.settings.on_damage == "give_up"
        if not self._is_alone:
            raise error
        self._report.damage.append(DamageFound("segment", tier.hot.directory, str(error)))
        loaded: list[LoadedSegment] = []
        for first_seq, last_seq, data_bytes in record.segments:
            where = self._tier_with_data(tier, first_seq)
            store, count = tier.store(where), last_seq - first_seq + 1
            try:
                index = store.read(first_seq, SegmentPart.INDEX, 0, count * layout.INDEX_ENTRY_SIZE)
                store.map(first_seq, SegmentPart.DATA, data_bytes)
                check_sealed(index, data_bytes, store.describe(first_seq, SegmentPart.DATA))
            except Corrupt:
                if gives_up:
                    store.keep_damaged(first_seq)
                    topic.note_corrupt(first_seq, last_seq)
                    continue
                self._quarantined[topic.topic_id] = error
                index = hole_index(count)
            loaded.append(LoadedSegment(first_seq, index, data_bytes, where, sealed=True))
        if not self._quarantined.get(topic.topic_id) and not gives_up:
            raise error  # each segment is sound by itself, so it is something else
        self._report.may_lack_acked |= gives_up
        return loaded

    def _quarantine(self) -> None:
        """Do not serve topics that have lost a segment; those that routers use stop the start instead."""
        core = self._core
        for topic_id, error in self._quarantined.items():
            topic = core.by_id.get(topic_id)
            if topic is None:
                continue
            if self._forwards.takes_part(topic_id) or core.routers.touching(topic):
                raise error
            catalogue.unlist(core, topic)
            core.damaged[topic.name] = topic

    def _give_up_damaged_records(self, topic: Topic, tier: TopicTier, segment: LoadedSegment) -> None:
        """Delete records whose frames are damaged, so that readers can go on behind their tombstone."""
        data = tier.store(segment.tier).read(segment.first_seq, SegmentPart.DATA, 0, segment.data_bytes)
        for seq in damaged_seqs(segment.first_seq, segment.index, data):
            path = tier.store(segment.tier).describe(segment.first_seq, SegmentPart.DATA)
            self._report.damage.append(DamageFound("record", path, f"record {seq} is given up"))
            self._report.may_lack_acked = True
            topic.kill_range(seq, seq + 1)
            topic.note_corrupt(seq, seq)
            topic.storage.unmarked.append(np.array([seq], dtype=np.uint64))

    def _sync_marks(self, tier: TopicTier, loaded: list[LoadedSegment]) -> None:
        """Make sure of deletion marks: a checkpoint that failed may have left them in the page cache only."""
        for segment in loaded:
            entries = index_entries(segment.index)
            if ((entries["flags"] & layout.INDEX_FLAG_DELETED != 0) & (entries["size"] > 0)).any():
                tier.store(segment.tier).sync(segment.first_seq, created=False)

    def _cut_to_snapshot(self, tier: TopicTier, record: control.TopicRecord) -> None:
        """Remove what a checkpoint wrote whose snapshot never came: the log has it, with its keys."""
        known = {first_seq for first_seq, _, _ in record.segments}
        extra = [segment_id for segment_id, _ in tier.list() if segment_id not in known]
        if extra:
            tier.delete(extra)
        first_seq, last_seq, data_bytes = record.segments[-1]
        index_bytes = (last_seq - first_seq + 1) * layout.INDEX_ENTRY_SIZE
        for store in (tier.hot, tier.cold):
            # It may have grown, been sealed and even moved since the snapshot.
            if store is not None and all(store.exists(first_seq, part) for part in SegmentPart):
                data_length = store.length(first_seq, SegmentPart.DATA)
                index_length = store.length(first_seq, SegmentPart.INDEX)
                if data_length >= data_bytes and index_length > index_bytes:
                    store.trim(first_seq, data_bytes, index_bytes)

    def _load_index(self, topic: Topic, tier: TopicTier, segment: LoadedSegment, source: int) -> None:
        needing_frames = topic.log.load_index(segment.first_seq, segment.index, source)
        if needing_frames:
            store = tier.store(segment.tier)
            data = store.map(segment.first_seq, SegmentPart.DATA, segment.data_bytes)
            count = segment.last_seq - segment.first_seq + 1
            damaged = topic.log.load_frames(segment.first_seq, count, data)
            if damaged and self._core.settings.on_damage != "give_up":
                error = Corrupt(
                    f"record {damaged} of topic {topic.name!r} is not where the index of its segment says; "
                    f"run `everlog verify`, then restore the segment from a backup"
                )
                if not self._is_alone:
                    raise error
                path = store.describe(segment.first_seq, SegmentPart.DATA)
                self._report.damage.append(DamageFound("segment", path, str(error)))
                self._quarantined[topic.topic_id] = error
        if self._core.settings.on_damage == "give_up":
            self._give_up_damaged_records(topic, tier, segment)

    def _remove_unknown_topics(self) -> None:
        """Remove the segments of topics that are not there any more, or whose checkpoint was cut short."""
        for root in self._store.topic_roots:
            for topic_id in list_topics(self._core.fs, root):
                topic = self._core.by_id.get(topic_id)
                # What the snapshot lists stays until the next one: this start may have to be repeated.
                if (topic is None or topic.storage.segments is None) and topic_id not in self._listed:
                    delete_topic(self._core.fs, root, topic_id)

    # --- The log -----------------------------------------------------------------------------------------

    def _replay(self, files: list[WalFile], body: control.SnapshotBody | None) -> None:
        starts = dict(body.starts) if body is not None else {}
        whole_from = body.next_file_number if body is not None else 0
        wanted = [file for file in files if file.number >= whole_from or file.number in starts]
        for file in files:
            self._core.next_file_number = max(self._core.next_file_number, file.number + 1)
        ends = self._read_ends(body)
        self._sync_directories()
        last_of_shard = self._last_files_with_frames(wanted)
        contents: list[_LogContent] = []
        for file in wanted:
            # `progress` may raise: a stop does not have to wait for the last file.
            self._progress(Progress("log", 0, len(wanted)))
            is_last = last_of_shard.get(file.shard_dir, file.number) <= file.number
            contents += self._look_through(file, starts.get(file.number, 0), ends.get(file.number), is_last)
        known = {file.number for file in files}
        for end in ends.values():
            needed_from = starts.get(end.file_number, 0 if end.file_number >= whole_from else end.offset)
            if end.file_number not in known and end.offset > needed_from and self._is_alone:
                contents.append(self._missing_file(end))
        contents.sort(key=lambda log: log.file.number)
        self._forwards.begin(self._logs)
        for number, log in enumerate(contents):
            self._progress(Progress("log", number, len(contents)))
            self._replay_file(log)
        self._progress(Progress("log", len(contents), len(contents)))
        for file in files:
            if file not in wanted:
                self._core.fs.unlink(file.path)

    def _read_ends(self, body: control.SnapshotBody | None) -> dict[int, SyncedEnd]:
        """Read up to where the log files were synced; reports a file or slot that is lost."""
        path = self._store.synced_path
        found = read_ends(self._core.fs, path)
        if found.is_missing and body is not None and body.has_synced_file and self._is_alone:
            message = "it is missing, so a lost end of the log cannot be recognised"
            self._report.damage.append(DamageFound("synced_file", path, message))
        # A power loss may tear the write of a slot.
        if found.damaged_slots and self._is_same_boot and self._is_alone:
            message = (
                f"{found.damaged_slots} slots are damaged; a lost end of their log files is not recognised"
            )
            self._report.damage.append(DamageFound("synced_file", path, message))
        return found.ends

    def _look_through(
        self, file: WalFile, start: int, synced: SyncedEnd | None, is_last: bool
    ) -> list[_LogContent]:
        """Survey a file, and find out which topics take part in copying before any record is met."""
        mapping = self._map(file)
        is_lost = synced is not None and synced.offset > start
        if (mapping is None or len(mapping) < start) and not is_lost:
            self._core.fs.unlink(file.path)
            return []
        content: Buffer = mapping if mapping is not None and len(mapping) >= start else bytes(start)
        is_trusted = self._is_same_boot and self._is_alone
        found = survey(content, start, synced, is_last=is_last, is_trusted=is_trusted)
        log = _LogContent(file, start, synced, found)
        if found.lost:
            self._note_damage(log)
        else:
            log.content = content
        self._forwards.expect(log.content, start)
        return [log]

    def _missing_file(self, synced: SyncedEnd) -> _LogContent:
        name = layout.WAL_FILE.name(synced.file_number)
        shard_dir = self._store.wal_dir
        if synced.shards > 1:
            shard_dir = os.path.join(shard_dir, layout.SHARD_DIR.name(synced.shard))
        file = WalFile(synced.file_number, shard_dir, os.path.join(shard_dir, name))
        self._core.next_file_number = max(self._core.next_file_number, file.number + 1)
        log = _LogContent(file, 0, synced, missing_file(synced))
        self._note_damage(log)
        return log

    def _note_damage(self, log: _LogContent) -> None:
        self._damaged.append(log)
        for lost in log.survey.lost:
            message = (
                f"{lost.size} bytes from offset {lost.offset} on are lost, with up to {lost.records} records"
            )
            self._report.damage.append(DamageFound("log", log.file.path, message))

    def _sync_directories(self) -> None:
        """Make sure of the names in the log directories: no file may come back under a number used again."""
        fs, wal_dir = self._core.fs, self._store.wal_dir
        shards = [name for name in fs.listdir(wal_dir) if layout.SHARD_DIR.number(name) is not None]
        for directory in (wal_dir, *(os.path.join(wal_dir, name) for name in shards)):
            fs.fsync_dir(directory)

    def _last_files_with_frames(self, files: list[WalFile]) -> dict[str, int]:
        last: dict[str, int] = {}
        for file in files:
            with _reading(file), opened(self._core.fs, file.path) as fd:
                if any(self._core.fs.pread(fd, 4, 0)):
                    last[file.shard_dir] = file.number
        return last

    def _replay_file(self, log: _LogContent) -> None:
        """Apply one file, and cut off a torn tail."""
        file, content = log.file, log.content
        source = log.source = self._core.sources.add(content)
        self._store.old_files.append(OldFile(file.number, file.path, source))
        replay = LogReplay(content, log.start, source, self._logs)
        while (frame := replay.run()) is not None and frame.type != FrameType.FILE_END:
            self._replayed_frames = True
            if frame.type == FrameType.DAMAGE:
                self._note_gaps(replay, file)
                self._losses.note(control.decode(frame.data, control.Damage), file.shard_dir)
            else:
                self._apply(frame)
        self._note_gaps(replay, file)
        self._replayed_frames |= replay.appended > 0 or frame is not None
        self._report.log_files += 1
        self._report.records_from_log += replay.appended
        end = replay.position
        if frame is None and log.survey.lost:
            raise Corrupt(f"{file.path} cannot be replayed behind offset {end}; restore it from a backup")
        if frame is None:
            self._cut(file, replay, memoryview(content).nbytes)
            end += len(END_FRAME)
        shard = log.synced or SyncedEnd(0, 0)
        self._store.earlier_ends.append(shard._replace(file_number=file.number, offset=end))

    def _note_gaps(self, replay: LogReplay, file: WalFile) -> None:
        """Seqs that no record came for are holes, except where copies come from another part of the log."""
        for topic_id, first_seq, last_seq in replay.gaps:
            topic = self._core.by_id.get(topic_id)
            if topic is not None and self._logs.get(topic_id) is topic.log:
                topic.note_holes(first_seq, last_seq)
            self._losses.note_gap(file.shard_dir, topic_id, first_seq, last_seq)
        replay.gaps.clear()

    def _map(self, file: WalFile) -> Mapping | None:
        fs = self._core.fs
        with _reading(file):
            # After a kill these bytes may be in the page cache only, and what is shown must stay.
            sync_path(fs, file.path)
            return map_file(fs, file.path)

    def _cut(self, file: WalFile, replay: LogReplay, size: int) -> None:
        """Cut off a torn tail, so that the next start finds a file that ends in order."""
        if replay.outcome != "end":
            self._report.cut_bytes += size - replay.position
        # The mapping must not reach behind the end of the file: touching that would be a bus error.
        old = self._store.old_files.pop()
        cut_tail(self._core.fs, file.path, replay.position)
        self._core.sources.set(old.source, map_file(self._core.fs, file.path))
        self._store.old_files.append(old)

    def _check_policy(self) -> None:
        """Refuse to go on if acknowledged records may be lost, unless the settings accept that."""
        may_lack_acked = bool(self._damaged) and self._losses.reach_promised_topics()
        self._report.may_lack_acked |= may_lack_acked
        if not may_lack_acked or self._core.settings.on_damage != "refuse":
            return
        places = "; ".join(f"{found.path}: {found.message}" for found in self._report.damage[:3])
        raise DamagedData(
            f"the log is damaged, so acknowledged records may be lost ({places}). Nothing was changed. "
            f"Restore {self._store.data_dir} from a backup, or accept the loss: "
            f"everlog repair --accept-loss {self._store.data_dir}, or start with TOPICS_ON_DAMAGE=serve"
        )

    def _write_salvaged(self) -> None:
        """Keep a copy of each damaged log file and put what could be saved of it in its place."""
        fs = self._core.fs
        for log in self._damaged:
            path = log.file.path
            create_directory(fs, log.file.shard_dir)
            if fs.exists(path):
                replace_file(fs, path + layout.DAMAGED_SUFFIX, read_file(fs, path))
            replace_file(fs, path, log.survey.salvaged)
            self._core.sources.set(log.source, map_file(fs, path))

    def _apply(self, frame: LogFrame) -> None:
        """Apply one control frame."""
        if frame.type not in control.ENTRY_TYPES:
            raise Corrupt(
                f"the log has an entry of type {frame.type}, which this build does not know; start the build "
                f"that wrote it"
            )
        if frame.type == FrameType.TOPIC_CREATE:
            self._create(frame)
            return
        if frame.type in _ROUTER_TYPES:
            self._forwards.apply(frame)
            return
        topic = self._core.by_id.get(frame.topic_id)
        # One that is not there was deleted later, and the snapshot knows that already.
        if topic is not None and not self._forwards.defers(frame):
            self._apply_to(topic, frame)

    def _apply_to(self, topic: Topic, frame: LogFrame) -> None:
        """Apply one control frame of a topic."""
        if frame.type == FrameType.TOPIC_DELETE:
            catalogue.hide(self._core, topic)
            catalogue.release(self._core, topic)
            self._forget_log(topic)
        elif frame.type == FrameType.CONFIG_UPDATE:
            topic.configure(control.decode(frame.data, control.ConfigUpdate).config)
            if topic.durability not in (Durability.DISK, Durability.FSYNC):
                topic.keys.clear()  # a change back logs those that are still known
            clear_volatile_leases(topic)
            clear_volatile_consumers(topic)
        elif frame.type == FrameType.DELETE:
            topic.visible = topic.log.next_seq - 1
            apply_delete(topic, control.decode(frame.data, control.Delete))
        elif frame.type == FrameType.DELETE_SEQS:
            topic.visible = topic.log.next_seq - 1
            apply_delete_seqs(topic, control.decode(frame.data, control.DeleteSeqs))
        elif frame.type == FrameType.LEASE:
            apply_lease(topic, control.decode(frame.data, control.Lease))
        elif frame.type in CONSUMER_FRAMES:
            apply_consumer(topic, frame)
        elif frame.type == FrameType.EVICT_WATERMARK:
            mark = control.decode(frame.data, control.EvictWatermark)
            # A crash may have taken the evicted records and left the floor, which shows that they were there.
            _raise_head(topic, max(mark.cap_floor, mark.ttl_floor) - 1)
            topic.visible = topic.log.next_seq - 1
            topic.reserved.floor_logged = max(topic.reserved.floor_logged, mark.reserved)
            topic.kill_below(max(mark.cap_floor, mark.ttl_floor))
            topic.restore_gaps(mark.trim_floor, mark.trim_runs, mark.holes)
            topic.raise_floor(cap=mark.cap_floor, ttl=mark.ttl_floor)
        elif frame.type == FrameType.HEAD_WATERMARK:
            head = control.decode(frame.data, control.HeadWatermark)
            topic.reserved.ceiling_logged = max(topic.reserved.ceiling_logged, head.ceiling)
            _raise_head(topic, head.head)
        else:
            key = control.decode(frame.data, control.IdempotencyKey)
            topic.keys.pop(key.key, None)  # keys are held in the order of their writing
            topic.keys[key.key] = RememberedKey(key.first_seq, key.count, frame.ts, COMMITTED)

    def _create(self, frame: LogFrame) -> None:
        core = self._core
        created = control.decode(frame.data, control.TopicCreate)
        core.next_topic_id = max(core.next_topic_id, frame.topic_id + 1)
        core.next_epoch = max(core.next_epoch, created.epoch + 1)
        if frame.topic_id in core.by_id:
            return
        topic = Topic(frame.topic_id, created.name, created.epoch, created.config, 0, core.totals)
        self._register(topic)

    # --- The end -----------------------------------------------------------------------------------------

    def _finish_topic(self, topic: Topic) -> None:
        """Close the gap between what is there and what may have been promised before a crash."""
        if topic.durability is Durability.EPHEMERAL:
            self._forget_records(topic)
        log = topic.log
        # A class that is `fsync` now may have been `disk` before; `memory` promises nothing.
        promised = topic.durability in (Durability.DISK, Durability.FSYNC)
        # A process that was killed has lost nothing it wrote; only a machine that stopped may have.
        crashed = (self._replayed_frames or not self._clean) and not self._is_same_boot
        crashed |= self._losses.reach(topic)
        if promised and crashed and topic.reserved.ceiling_logged >= log.next_seq:
            topic.note_holes(log.next_seq, topic.reserved.ceiling_logged)
            log.push_holes(topic.reserved.ceiling_logged + 1 - log.next_seq, log.last_ts)
            self._store.boot_pending = True
        topic.visible = log.next_seq - 1
        floor = min(topic.reserved.floor_logged, topic.visible + 1)
        if crashed and promised and floor > topic.floors.cap:
            self._store.boot_pending = True
            topic.kill_below(floor)
            topic.raise_floor(cap=floor)
        if log.last_ts:
            topic.last_write_ts = max(topic.last_write_ts or 0, log.last_ts)
        if not promised:
            topic.keys.clear()  # of a time when it was of another class
        topic.floors.planned = topic.floors.cap
        topic.reserved.floor_logged = topic.reserved.floor_durable = topic.floors.cap
        topic.reserved.ceiling_logged = 0
        topic.reclaim()
        topic.storage.logged_seq = topic.visible if topic.durability is not Durability.EPHEMERAL else 0
        finish_lease_replay(topic)
        finish_consumer_replay(topic)
        if topic.visible > topic.storage.saved_seq or topic.storage.unmarked:
            self._core.totals.unsaved[topic.topic_id] = topic

    def _forget_records(self, topic: Topic) -> None:
        """An ephemeral topic comes back empty, with its head."""
        topic.log = TopicLog(topic.topic_id, max(topic.log.next_seq, topic.storage.restored_head + 1))
        topic.note_holes(1, topic.log.next_seq - 1)
        if topic.storage.segments is not None:
            topic.storage.segments.seal()  # of a time when it had another class: a checkpoint drops them
        topic.storage.saved_seq = topic.log.next_seq - 1


def _raise_head(topic: Topic, head: int) -> None:
    """Leave holes up to a seq that was given out."""
    log = topic.log
    if head >= log.next_seq:
        topic.note_holes(log.next_seq, head)
        log.push_holes(head + 1 - log.next_seq, log.last_ts)
