"""Recovery of a data directory: snapshot, segment indexes, then the log in order.

Owns the order and the rules of what is believed. State that cannot be read stops the start: an engine
never comes up with less than the disk still has.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from everlog.clock import NS_PER_S
from everlog.errors import Corrupt, CorruptMetadata, DamagedData, Io, ObjectStoreFailed
from everlog.fs import Fs, create_directory, opened, read_file, replace_file, sync_path
from everlog.native.queue.ring import Mapping
from everlog.native.topics.log import LogFrame, LogReplay, TopicLog, read_log_frame
from everlog.topics import catalogue
from everlog.topics.jobs.lease_log import apply_redriven
from everlog.topics.jobs.schedule_replay import ScheduleReplay
from everlog.topics.routing.replay import ForwardReplay, note_reused_seqs
from everlog.topics.storage import control, layout, snapshot
from everlog.topics.storage.layout import FrameType
from everlog.topics.storage.log_losses import LogLosses
from everlog.topics.storage.log_survey import Survey, missing_file, survey
from everlog.topics.storage.memory_fill import LogStretch, MemoryFill, choose, enter, is_deferrable
from everlog.topics.storage.segment_store import list_topics
from everlog.topics.storage.stepped_replay import SteppedReplay
from everlog.topics.storage.store import DamageFound, OldFile, RecoveryReport, Store
from everlog.topics.storage.synced_ends import SyncedEnd, read_ends
from everlog.topics.storage.syncs import SyncRunner
from everlog.topics.storage.topic_replay import apply_entry, finish_topic
from everlog.topics.storage.topic_restore import TopicRestore
from everlog.topics.storage.wal_files import (
    END_FRAME_SIZE,
    WalFile,
    check_number,
    cut_tail,
    list_wal_files,
    map_file,
)
from everlog.topics.topic import SEQ_GAP_MAX, Topic

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from everlog.topics.core import Core


log = logging.getLogger("everlog.topics")
_STORE_RETRY_S: Final = 5
_T = TypeVar("_T")


class Progress(NamedTuple):
    """How far recovery is: `done` of `total` bytes of the phase."""

    phase: str
    done: int
    total: int


def open_store(
    core: Core,
    data_dir: str,
    syncs: SyncRunner,
    progress: Callable[[Progress], None] | None,
    *,
    fills_later: bool = False,
) -> Store:
    """Lock a data directory, recover what it holds into `core`, and begin this run's log.

    With `fills_later` topics of class `memory` are left to `Store.fill`.
    """
    try:
        store = Store(core, data_dir, syncs)
    except OSError as error:
        raise Io(f"cannot open the data directory {data_dir}: {error}", error.errno) from error
    try:
        _check_is_restored(core.fs, data_dir)
        _Recovery(core, store, progress, fills_later=fills_later).run()
        _log_report(store.report)
        if not store.boot_pending:
            store.note_boot()
        store.open_shards()
        core.begin_leases()
        for topic in list(core.topics.values()):
            enter(core, topic)
        note_reused_seqs(core)
    except OSError as error:
        store.abandon()
        raise Io(f"cannot recover the data directory {data_dir}: {error}", error.errno) from error
    except BaseException:
        store.abandon()
        raise
    return store


def _check_is_restored(fs: Fs, data_dir: str) -> None:
    """Refuse a directory of which a restore has filled only a part, or that follows another server."""
    if fs.exists(os.path.join(data_dir, layout.RESTORING_FILE)):
        raise Io(
            f"{data_dir} is not restored completely, or is the copy of a standby; run `everlog restore` or "
            "`everlog promote` on it"
        )


def _log_report(report: RecoveryReport) -> None:
    """Write what was found to the log of the process: damage as errors, the rest in one line."""
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


def recover_copy(core: Core, store: Store) -> None:
    """As `recover_store`, for an engine that shows the directory and takes no writes, beside another one.

    The files of a copy are made of shipments, which were checked as a whole.
    """
    _Recovery(core, store, None, is_alone=False, is_copy=True).run()
    core.totals.unforwarded.clear()  # copies come with the log
    for topic in list(core.topics.values()):
        enter(core, topic)


_ROUTER_TYPES: Final = {FrameType.ROUTER_CREATE, FrameType.ROUTER_DELETE, FrameType.FORWARD}
EMPTY_SNAPSHOT: Final = control.SnapshotBody(True, 1, 1, 1, [], [], has_synced_file=True, number=1)


@contextmanager
def _reading(file: WalFile) -> Iterator[None]:
    """Name the log file in any `OSError` of the block."""
    try:
        yield
    except OSError as error:
        raise Io(f"cannot read the log file {file.path}: {error.strerror or error}", error.errno) from error


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the file in any `Corrupt` of the block."""
    try:
        yield
    except Corrupt as error:
        raise Corrupt(f"{path}: {error}") from error


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
        is_copy: bool = False,
        fills_later: bool = False,
    ) -> None:
        self._is_alone = is_alone
        self._is_copy = is_copy
        self._fills_later = fills_later
        self._core = core
        self._store = store
        self._report = store.report
        self._progress = progress or (lambda _: None)
        self._clean = False
        self._replayed_frames = False
        self._is_same_boot = False
        self._logs: dict[int, TopicLog] = {}
        self._forwards = ForwardReplay(core, self._load_segment)
        self._listed: set[int] = set()  # ids of topics of which the snapshot lists segments
        self._deferred: list[control.TopicRecord] = []
        self._stretches: list[LogStretch] = []
        self._damaged: list[_LogContent] = []
        self._restore = TopicRestore(core, store, is_clean=False, is_alone=is_alone)
        self._schedules = ScheduleReplay(core)
        self._redriven: list[control.Redriven] = []  # of what may still be in their topics
        self._losses = LogLosses(core, self._logs)

    def run(self) -> None:
        """Recover everything."""
        self._is_same_boot = self._store.is_same_boot()
        body = self._load_snapshot()
        files = list_wal_files(self._core.fs, self._store.wal_dir)
        if body is not None:
            self._clean = body.clean
            self._restore = TopicRestore(
                core=self._core, store=self._store, is_clean=body.clean, is_alone=self._is_alone
            )
            self._forwards.restore(body)
            self._core.schedules.update((record.name, record) for record in body.schedules)
            for number, raw in enumerate(body.topics):
                record = control.decode(raw, control.TopicRecord)
                if self._fills_later and is_deferrable(record):
                    self._deferred.append(record)
                else:
                    self._restore_topic(record)
                if number % 1000 == 0:
                    self._progress(Progress("segments", number, len(body.topics)))
            self._progress(Progress("segments", len(body.topics), len(body.topics)))
        self._replay(files, body)
        with _naming(self._store.wal_dir):
            self._forwards.resolve(self._apply_to, self._restore.quarantined)
        for gap in self._forwards.gaps:
            self._losses.note_gap(None, *gap)
        self._schedules.finish()
        for note in self._redriven:
            apply_redriven(self._core.by_id.get(note.topic_id), note)
        for topic in self._core.topics.values():
            self._losses.place_tombstones(topic)
            # A process that was killed has lost nothing it wrote; only a machine that stopped may have.
            finish_topic(self._store, topic, crashed=self._has_crashed or self._losses.reach(topic))
        self._forwards.finish()
        self._losses.skip_lost_copies()
        self._check_policy()
        self._quarantine()
        self._write_salvaged()
        self._core.totals.bytes = sum(topic.log.live_bytes for topic in self._core.topics.values())
        self._remove_unknown_topics()
        self._report.topics = len(self._core.topics) + len(self._deferred)
        if self._deferred:
            self._store.fill = MemoryFill(
                self._core, self._store, self._restore, self._deferred, self._stretches
            )

    @property
    def _has_crashed(self) -> bool:
        """Whether the machine may have stopped while the directory was open."""
        return (self._replayed_frames or not self._clean) and not self._is_same_boot

    def _load_segment(self, source: int) -> bool:
        return self._with_store(lambda: self._store.load_segment(source))

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
        snapshot.check_number(store.meta_dir, found.number, body.number)
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
            snapshot.write(fs, store.meta_dir, 1, [control.encode(EMPTY_SNAPSHOT)])
            store.snapshot_number = 1
        elif not files or not whole:
            reason = f"{rejected[0].path}: {rejected[0].reason}" if rejected else "there is none"
            raise CorruptMetadata(
                f"no snapshot in {store.meta_dir} can be read ({reason}) and the log does not reach back to "
                f"the beginning; restore the directory from a backup"
            )

    # --- Segments ----------------------------------------------------------------------------------------

    def _with_store(self, action: Callable[[], _T]) -> _T:
        """Do what may need the object store; a server waits for one that is away, others get the error."""
        while True:
            try:
                return action()
            except ObjectStoreFailed as error:
                if not self._fills_later:
                    raise
                self._core.failures.report("segment_read", error, self._store.data_dir)
                for _ in range(_STORE_RETRY_S):
                    self._progress(Progress("log", 0, 1))  # raises if the start is given up
                    self._core.clock.sleep_ns(NS_PER_S)

    def _restore_topic(self, record: control.TopicRecord) -> None:
        if record.segments:
            self._listed.add(record.topic_id)
        self._register(self._with_store(lambda: self._restore.restore(record, self._core.totals)))

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

    def _quarantine(self) -> None:
        """Do not serve topics that have lost a segment, and pause the routers at them.

        A topic whose copies in the log would have to be made from lost records is damaged, too. The log then
        stays as it is: with the segment back, the next start makes them.
        """
        core = self._core
        lacking = [topic_id for topic_id in self._forwards.starved if topic_id in core.by_id]
        if core.settings.on_damage == "give_up":
            lacking = []
        for topic_id in lacking:
            source = core.by_id.get(self._forwards.starved[topic_id])
            message = (
                f"topic {core.by_id[topic_id].name!r} lacks copies of records that its source "
                f"{source.name if source is not None else 'topic'!r} has lost"
            )
            self._report.damage.append(DamageFound("copies", self._store.data_dir, message))
            self._store.keeps_log = True
        for topic_id in dict.fromkeys((*self._restore.quarantined, *lacking)):
            topic = core.by_id.get(topic_id)
            if topic is None:
                continue
            catalogue.unlist(core, topic)
            core.damaged[topic.name] = topic
            topic.shard = core.shard_of(topic_id, core.settings.shards)
            for router in core.routers.touching(topic):
                router.is_paused = True
                log.error("router %s is paused: topic %s is damaged", router.name, topic.name)

    def _remove_unknown_topics(self) -> None:
        """Remove the segments of topics that are not there any more, or whose checkpoint was cut short."""
        if not self._is_alone:
            return
        for root in self._store.topic_roots:
            for topic_id in list_topics(self._core.fs, root):
                topic = self._core.by_id.get(topic_id)
                # What the snapshot lists stays until the next one: this start may have to be repeated.
                if (topic is None or topic.storage.segments is None) and topic_id not in self._listed:
                    self._store.delete_topic(root, topic_id)

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
        self._choose_deferred(contents, body)
        self._forwards.begin(self._logs)
        for number, log in enumerate(contents):
            self._progress(Progress("log", number, len(contents)))
            self._replay_file(log)
        self._progress(Progress("log", len(contents), len(contents)))
        for file in files:
            if file not in wanted:
                self._core.fs.unlink(file.path)

    def _choose_deferred(self, contents: list[_LogContent], body: control.SnapshotBody | None) -> None:
        """Restore those topics now whose entries in the log concern others as well."""
        if not self._deferred or body is None:
            return
        buffers = [(log.content, log.start) for log in contents]
        chosen = [] if self._damaged else choose(self._deferred, body, buffers)
        chosen = [record for record in chosen if not self._forwards.is_expected(record.topic_id)]
        chosen_ids = {record.topic_id for record in chosen}
        for record in self._deferred:
            if record.topic_id not in chosen_ids:
                self._restore_topic(record)
        self._deferred = chosen
        self._listed |= chosen_ids

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
        content: Buffer = b"" if mapping is None else mapping
        if memoryview(content).nbytes < start:
            content = bytes(content).ljust(start, b"\0")
        is_trusted = self._is_same_boot and self._is_alone
        if self._is_copy:
            found = Survey(memoryview(content).nbytes, False, (), b"")
        else:
            found = survey(content, start, synced, is_last=is_last, is_trusted=is_trusted)
        check_number(file.path, file.number, found.ends_as)
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
        replay = self._begin_replay(log)
        while (frame := replay.run()) is not None and frame.type != FrameType.FILE_END:
            self._replayed_frames = True
            if frame.type == FrameType.DAMAGE:
                self._note_gaps(replay, file)
                self._losses.note(control.decode(frame.data, control.Damage), file.shard_dir)
            else:
                with _naming(file.path):
                    self._apply(frame)
        self._note_gaps(replay, file)
        self._replayed_frames |= replay.appended > 0 or frame is not None
        self._report.log_files += 1
        self._report.records_from_log += replay.appended
        end = replay.position
        if frame is None and log.survey.lost:
            raise Corrupt(f"{file.path} cannot be replayed behind offset {end}; restore it from a backup")
        if frame is None:
            self._check_seq(file, content, replay)
            self._cut(file, replay, memoryview(content).nbytes)
            end += END_FRAME_SIZE
        self._stretches.append(LogStretch(source, log.start, replay.position, file.path))
        shard = log.synced or SyncedEnd(0, 0)
        self._store.earlier_ends.append(shard._replace(file_number=file.number, offset=end))

    def _check_seq(self, file: WalFile, content: Buffer, replay: LogReplay | SteppedReplay) -> None:
        """Cut off no sound record because of its seq: that is damage, and not the torn end of the file."""
        try:
            frame = read_log_frame(content, replay.position)
        except (Corrupt, IndexError, ValueError):
            return
        log = self._logs.get(frame.topic_id)
        if frame.type != FrameType.APPEND or log is None or frame.seq - log.next_seq <= SEQ_GAP_MAX:
            return  # its batch is torn
        topic = self._core.by_id.get(frame.topic_id)
        name = f"id {frame.topic_id}" if topic is None else repr(topic.name)
        raise Corrupt(
            f"{file.path}: the record at offset {replay.position} has seq {frame.seq}, and topic {name} has "
            f"seq {log.next_seq - 1} before it; the number is damaged, restore the directory from a backup"
        )

    def _begin_replay(self, log: _LogContent) -> LogReplay | SteppedReplay:
        if not self._is_copy:
            return LogReplay(log.content, log.start, log.source, self._logs)
        end = memoryview(log.content).nbytes
        return SteppedReplay(log.content, log.start, end, log.source, self._logs, self._core.clock)

    def _note_gaps(self, replay: LogReplay | SteppedReplay, file: WalFile) -> None:
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

    def _cut(self, file: WalFile, replay: LogReplay | SteppedReplay, size: int) -> None:
        """Cut off a torn tail, so that the next start finds a file that ends in order."""
        if replay.outcome != "end":
            self._report.cut_bytes += size - replay.position
        # The mapping must not reach behind the end of the file: touching that would be a bus error.
        old = self._store.old_files.pop()
        cut_tail(self._core.fs, file.path, file.number, replay.position)
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
        if frame.type in (FrameType.SCHEDULE, FrameType.SCHEDULE_FIRED):
            self._schedules.apply(frame)
            return
        if frame.type == FrameType.REDRIVEN:
            self._redriven.append(control.decode(frame.data, control.Redriven))
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
        if frame.type != FrameType.TOPIC_DELETE:
            apply_entry(topic, frame)
            return
        catalogue.hide(self._core, topic)
        catalogue.release(self._core, topic)
        self._forget_log(topic)

    def _create(self, frame: LogFrame) -> None:
        core = self._core
        created = control.decode(frame.data, control.TopicCreate)
        core.next_topic_id = max(core.next_topic_id, frame.topic_id + 1)
        core.next_epoch = max(core.next_epoch, created.epoch + 1)
        if frame.topic_id in core.by_id:
            return
        topic = Topic(frame.topic_id, created.name, created.epoch, created.config, 0, core.totals)
        self._register(topic)
