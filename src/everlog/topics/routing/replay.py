"""Making copies again after a crash: the log says which records went where, and here they go there again.

Owns the routers and the copies while a data directory is recovered. The shards of the log are read one after
the other, so nothing of a topic that takes part in copying can be finished before all of them are read: its
records are collected separately, and what deletes or evicts some of them waits until the copies are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from everlog.api_types import Durability, Guarantee
from everlog.errors import Corrupt
from everlog.native.topics.log import TopicLog, find_frames, move_records, next_live
from everlog.topics.filters import Filter, compile_filter
from everlog.topics.memory import MemoryChunks
from everlog.topics.records import TagMatch
from everlog.topics.routing.copying import Copying, copy_to_memory, note_hops
from everlog.topics.routing.exactly_once import Origin
from everlog.topics.routing.table import Router
from everlog.topics.storage import control
from everlog.topics.storage.layout import FLAG_DURABLE, FrameType
from everlog.topics.topic import leave_holes

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from everlog.native.topics.log import LogFrame
    from everlog.topics.core import Core
    from everlog.topics.topic import Topic

WAITING_TYPES: Final = frozenset(
    (FrameType.DELETE, FrameType.DELETE_SEQS, FrameType.EVICT_WATERMARK, FrameType.HEAD_WATERMARK)
)
"""Frames about records, which mean nothing before the records are there."""
_PIECE: Final = 1024
_FRAME_GROWTH: Final = 16  # at most, from the frame of a record to that of its copy


class _Run(NamedTuple):
    """Copies that have to be in a topic: `length` from `first_seq` on; a source seq of 0 means holes."""

    first_seq: int
    length: int
    source_id: int
    source_seq: int
    hop_count: int
    ts: int
    drops: int
    origin: Origin | None

    def behind(self, seq: int) -> _Run:
        """The part from `seq` on."""
        done = seq - self.first_seq
        source_seq = self.source_seq + done if self.source_seq else 0
        return self._replace(first_seq=seq, length=self.length - done, source_seq=source_seq)


class _End:
    """A topic that takes part: its log, and for a destination what has to go there.

    `log` has what was saved and grows; `staged` has all that the log files hold of it, also what was saved: a
    record that died while it was to be saved is not in its segment, but copies of it may be needed.
    """

    def __init__(self, topic_id: int, log: TopicLog) -> None:
        self.topic_id = topic_id
        self.log = log
        self.staged = TopicLog(topic_id)
        self.topic: Topic | None = None
        self.chunks: MemoryChunks | None = None
        self.runs: list[_Run] = []
        self.at = 0  # runs before this one are done
        self.deferred: list[LogFrame] = []

    @property
    def name(self) -> str:
        """Of the topic, or what is known of one that is gone."""
        return f"id {self.topic_id}" if self.topic is None else self.topic.name


class ForwardReplay:
    """The routers and copies of one recovery. `load` loads a segment."""

    def __init__(self, core: Core, load: Callable[[int], object]) -> None:
        self._core = core
        self._load = load
        self._taking_part: set[int] = set()
        self._ends: dict[int, _End] = {}
        self._records: dict[int, control.RouterRecord] = {}
        self._deleted: set[int] = set()
        self._forwards: list[tuple[int, control.Forward]] = []
        self._damaged: set[int] = set()  # ids of topics that have lost records on disk
        self.copies = 0
        self.lost = 0
        self.starved: dict[int, int] = {}
        """By the id of a destination: the damaged source without which its copies cannot be made."""
        self.gaps: list[tuple[int, int, int]] = []
        """Ids of topics with the first and last seq of rows for which the log has neither record nor copy."""

    # --- While the log is read ---------------------------------------------------------------------------

    def expect(self, log_file: Buffer, start: int) -> None:
        """Look ahead into a log file for topics that take part."""
        for source_id, data in find_frames(log_file, start, FrameType.FORWARD):
            try:
                forward = control.decode(data, control.Forward)
            except Corrupt:
                return  # the file is damaged here, which the replay itself reports
            self._taking_part.add(source_id)
            self._taking_part.update(entry.dest_id for entry in forward.entries if entry.runs)

    def begin(self, logs: dict[int, TopicLog]) -> None:
        """Collect the records of those topics separately, also of those that are deleted."""
        for topic_id in self._taking_part:
            topic = self._core.by_id.get(topic_id)
            logs[topic_id] = self.log_of(topic_id, TopicLog(topic_id) if topic is None else topic.log)
            self._ends[topic_id].topic = topic

    def log_of(self, topic_id: int, log: TopicLog) -> TopicLog:
        """Where the records of a topic go while the log is read."""
        if topic_id not in self._taking_part:
            return log
        end = self._ends[topic_id] = _End(topic_id, log)
        return end.staged

    def is_expected(self, topic_id: int) -> bool:
        """Whether the log has copies from or to this topic."""
        return topic_id in self._taking_part

    def takes_part(self, topic_id: int) -> bool:
        """Whether the records of this topic may be needed although it is deleted."""
        return topic_id in self._ends

    def created(self, topic: Topic) -> None:
        """A topic came into being, or came out of the snapshot."""
        end = self._ends.get(topic.topic_id)
        if end is not None:
            end.topic = topic

    def defers(self, frame: LogFrame) -> bool:
        """Take a frame that has to wait for the copies; False if it need not."""
        end = self._ends.get(frame.topic_id)
        if end is None or frame.type not in WAITING_TYPES:
            return False
        end.deferred.append(frame)
        return True

    def restore(self, body: control.SnapshotBody) -> None:
        """Take over the routers of a snapshot."""
        self._core.routers.next_id = body.next_router_id
        for record in body.routers:
            self._records[record.router_id] = record

    def apply(self, frame: LogFrame) -> None:
        """Take over a frame about routers."""
        if frame.type == FrameType.FORWARD:
            self._forwards.append((frame.topic_id, control.decode(frame.data, control.Forward)))
        elif frame.type == FrameType.ROUTER_DELETE:
            self._deleted.add(control.decode(frame.data, control.RouterDelete).router_id)
        else:
            record = control.decode(frame.data, control.RouterRecord)
            known = self._records.get(record.router_id)
            if known is not None:
                record = _further(record, known.cursor, known.total)
            self._records[record.router_id] = record
            self._core.routers.next_id = max(self._core.routers.next_id, record.router_id + 1)

    # --- When all of it is read --------------------------------------------------------------------------

    def resolve(self, apply_deferred: Callable[[Topic, LogFrame], None], damaged: Iterable[int] = ()) -> None:
        """Make the copies, then let everything happen that had to wait for them.

        Copies of records that `damaged` topics have lost cannot be made: see `starved`.
        """
        self._damaged = set(damaged)
        for source_id, forward in self._forwards:
            for entry in forward.entries:
                self._note(source_id, forward, entry)
        for end in self._ends.values():
            end.runs.sort(key=lambda run: run.first_seq)
        self._merge_all()
        for end in self._ends.values():
            topic = end.topic
            if topic is None or topic.deleted:
                if end.chunks is not None:
                    end.chunks.clear()
                continue
            if end.chunks is not None and topic.durability is Durability.EPHEMERAL:
                end.chunks.clear()  # nothing of it comes back
            elif end.chunks is not None:
                topic.storage.chunks = end.chunks
            for frame in end.deferred:
                apply_deferred(topic, frame)
        self._raise_floors()

    def _note(self, source_id: int, forward: control.Forward, entry: control.ForwardEntry) -> None:
        record = self._records.get(entry.router_id)
        if record is not None:
            self._records[entry.router_id] = _further(record, entry.cursor, entry.total)
        end = self._ends.get(entry.dest_id)
        if end is None:
            return
        origin = Origin(entry.router, forward.source, source_id, forward.epoch) if entry.router else None
        reused = [] if record is None else record.reused
        first_seq = entry.first_seq
        for source_seq, count, hop_count in entry.runs:
            kept = _kept(reused, first_seq, source_seq, count)
            for seq, length in ((source_seq, kept), (0, count - kept)):
                if length:
                    run = _Run(first_seq, length, source_id, seq, hop_count, entry.ts, entry.drops, origin)
                    end.runs.append(run)
                    first_seq += length

    def _raise_floors(self) -> None:
        for _, forward in self._forwards:
            for entry in forward.entries:
                topic = self._core.by_id.get(entry.dest_id)
                if topic is None or not entry.runs:
                    continue
                topic.visible = topic.log.next_seq - 1
                topic.reserved.ceiling_logged = max(topic.reserved.ceiling_logged, entry.ceiling)
                topic.reserved.floor_logged = max(topic.reserved.floor_logged, entry.reserved)
                if entry.cap_floor > topic.floors.cap:
                    topic.kill_below(entry.cap_floor)
                    topic.raise_floor(cap=entry.cap_floor)

    def _merge_all(self) -> None:
        """Fill all logs in the order of their seqs; a copy waits for its record, which may be a copy too."""
        waiting = list(self._ends.values())
        while waiting:
            came_forward = False
            for end in waiting:
                came_forward |= self._merge(end)
            waiting = [end for end in waiting if not self._is_done(end)]
            if not came_forward and waiting:
                # The record is missing: its shard has lost it. The gap is reported, and the rest goes on.
                self._leave_out(waiting[0])

    def _is_done(self, end: _End) -> bool:
        return end.at == len(end.runs) and next_live(end.staged, end.log.next_seq) >= end.staged.next_seq

    def _merge(self, end: _End) -> bool:
        """Go on with one log as far as possible; whether it came forward."""
        staged, log = end.staged, end.log
        start = log.next_seq
        while True:
            seq = log.next_seq
            while end.at < len(end.runs) and end.runs[end.at].first_seq + end.runs[end.at].length <= seq:
                end.at += 1
            run = end.runs[end.at] if end.at < len(end.runs) else None
            staged_seq = next_live(staged, seq)
            has_staged = staged_seq < staged.next_seq
            if has_staged and staged_seq == seq:
                move_records(
                    self._core.sources, staged, seq, staged.next_seq if run is None else run.first_seq, log
                )
                if log.next_seq > seq:
                    continue
            if run is not None and run.first_seq <= seq:
                if not self._make(end, run.behind(seq)):
                    return log.next_seq > start
                continue
            following = [at for at in (run and run.first_seq, has_staged and staged_seq) if at]
            if not following:
                return log.next_seq > start
            if end.topic is not None:
                end.topic.note_holes(seq, min(following) - 1)
                self.gaps.append((end.topic_id, seq, min(following) - 1))
            leave_holes(log, end.name, min(following))

    def _make(self, end: _End, run: _Run) -> bool:
        """Make copies of one run, as many as there are records; False if there is none yet."""
        log = end.log
        if run.source_seq == 0:
            self._trim(end, run.length, run)
            return True
        source = self._source_of(run)
        count = min(run.length, _PIECE, source.next_seq - run.source_seq)
        if count <= 0:
            return False
        topic = end.topic
        is_durable = topic is not None and topic.durability is Durability.FSYNC
        copying = Copying(run.ts, FLAG_DURABLE if is_durable else 0, run.drops, run.origin)
        if end.chunks is None:
            end.chunks = MemoryChunks(self._core.sources, self._core.spare_chunks)
        first_seq = log.next_seq
        runs = [(run.source_seq, count, run.hop_count)]
        size = _frame_bytes(source, run.source_seq, count)
        copied = copy_to_memory(self._core, source, runs, log, end.chunks, copying, size)
        self.copies += copied.records
        if topic is not None and copied.records:
            note_hops(topic.routes.hop_runs, first_seq, first_seq + copied.records - 1, run.hop_count)
        if copied.missing_source:
            self._load(copied.missing_source)
        elif not copied.records:  # of later ones it is looked again where they are
            self._give_up(end, 1, run)
        return True

    def _source_of(self, run: _Run) -> TopicLog:
        """The log that has the first record of a run: the topic's, or else what the log files hold of it."""
        end = self._ends[run.source_id]
        log, staged, seq = end.log, end.staged, run.source_seq
        is_in_log = log.base_seq <= seq < log.next_seq and log.place(seq)[0] > 0
        if seq < log.next_seq and not is_in_log and staged.base_seq <= seq < staged.next_seq:
            return staged
        return log

    def _leave_out(self, end: _End) -> None:
        run = end.runs[end.at].behind(end.log.next_seq)
        self._give_up(end, run.length, run)

    def _give_up(self, end: _End, count: int, run: _Run) -> None:
        """Leave holes for copies whose records are not there."""
        self._trim(end, count, run)
        self.lost += count
        if run.source_id in self._damaged:
            self._damaged.add(end.topic_id)  # what is copied from here lacks them as well
            self.starved.setdefault(end.topic_id, run.source_id)

    def _trim(self, end: _End, count: int, run: _Run) -> None:
        first_seq = end.log.next_seq
        leave_holes(end.log, end.name, first_seq + count)
        if end.topic is not None and not end.topic.deleted:
            end.topic.note_trim(first_seq, first_seq + count - 1)
            note_hops(end.topic.routes.hop_runs, first_seq, first_seq + count - 1, run.hop_count)

    def finish(self) -> None:
        """Put the routers into the table; all topics are as they will be."""
        core = self._core
        records = [
            record for router_id, record in sorted(self._records.items()) if router_id not in self._deleted
        ]
        for record in records:
            source, dest = core.by_id.get(record.source_id), core.by_id.get(record.dest_id)
            if source is None or dest is None:
                continue
            older = core.routers.by_name.get(record.name)
            if older is not None:
                core.routers.remove(older)
            router = router_of(record, source, dest)
            core.routers.add(router)
            if router.cursor < source.visible:
                core.totals.unforwarded[source.topic_id] = source


def router_of(record: control.RouterRecord, source: Topic, dest: Topic) -> Router:
    """A router as it was stored, at a place in its source that is certainly there."""
    cursor = min(record.cursor, source.visible)
    if source.durability is Durability.EPHEMERAL:
        cursor = source.visible  # what was there is gone
    router = Router(record.router_id, record.name, source, dest, cursor)
    router.total = router.committed_total = record.total
    router.preserve_node = record.preserve_node
    router.preserve_tag = record.preserve_tag
    router.allow_cycle = record.allow_cycle
    router.guarantee = Guarantee.EXACTLY_ONCE if record.exactly_once else Guarantee.AT_LEAST_ONCE
    router.filter = _filter_of(record)
    router.reused = record.reused
    router.is_committed = router.is_active = True
    return router


def _filter_of(record: control.RouterRecord) -> Filter | None:
    """The filter of a stored router: an expression, or a tag alone."""
    if record.filter:
        return compile_filter(record.filter)
    if record.filter_tag is None:
        return None
    match = TagMatch(record.filter_tag, record.filter_prefix)
    return compile_filter(msgspec.json.encode(match.canonical()))


def note_reused_seqs(core: Core) -> None:
    """Remember, and log, which sources of routers may give out seqs a second time.

    The frame lies in the shard of the source, before every record that gets such a seq.
    """
    for router in core.routers:
        is_promised = router.source.durability in (Durability.DISK, Durability.FSYNC)
        if not is_promised and router.dest.visible:
            router.note_restart()
            core.log_change(
                router.source, FrameType.ROUTER_CREATE, control.encode(router.record()), needs_sync=False
            )
            core.shards[router.source.shard].write()  # there may be more of them than its queue has room for


def _kept(reused: list[tuple[int, int]], first_seq: int, source_seq: int, count: int) -> int:
    """How many records of a run are still those that were copied.

    An earlier start found the others gone. Their seqs may have been given to new records since, which have
    copies of their own; what was lost then stays lost, however often the log is replayed.
    """
    if source_seq == 0:
        return count
    ends = [above + 1 - source_seq for above, up_to in reused if first_seq <= up_to]
    return max(0, min([count, *ends]))


def _frame_bytes(log: TopicLog, first_seq: int, count: int) -> int:
    """As much as the frames of copies of these records can take."""
    seqs = np.arange(max(first_seq, log.base_seq), first_seq + count, dtype=np.uint64)
    return int(log.places(seqs)["size"].sum()) + _FRAME_GROWTH * len(seqs)


def _further(record: control.RouterRecord, cursor: int, total: int) -> control.RouterRecord:
    return msgspec.structs.replace(record, cursor=max(record.cursor, cursor), total=max(record.total, total))
