"""Topics of class `memory` after a start: a server is ready before their records are loaded.

Owns which topics can wait, and how they become what recovery would have made of them: from the same record of
the snapshot, segments and stretches of the log, read by one job of a lane. Until all of them are loaded they
are in no table and every call is refused, so nothing new of them gets into the log. There is no checkpoint
meanwhile, because it would free the log that is still needed. A process that is killed has changed nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from everlog.api_types import Durability
from everlog.clock import NS_PER_S
from everlog.errors import Corrupt
from everlog.native.topics.log import TopicLog, find_frames
from everlog.topics import catalogue
from everlog.topics.delivery.consumer_table import enlist
from everlog.topics.due_work import schedule
from everlog.topics.retention import has_caps
from everlog.topics.storage import control
from everlog.topics.storage.layout import FrameType
from everlog.topics.storage.stepped_replay import SteppedReplay
from everlog.topics.storage.store import Store
from everlog.topics.storage.topic_replay import apply_entry, finish_topic
from everlog.topics.topic import Topic, Totals

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from everlog.topics.core import Core
    from everlog.topics.storage.syncs import SyncRunner
    from everlog.topics.storage.topic_restore import TopicRestore

_TOPICS_A_TURN: Final = 100
_RETRY_NS: Final = 5 * NS_PER_S

log = logging.getLogger("everlog.topics")


class LogStretch(NamedTuple):
    """A log file of an earlier run, from `start` up to before `end`: sound, and held until a checkpoint."""

    source: int
    start: int
    end: int
    path: str


def is_deferrable(record: control.TopicRecord) -> bool:
    """Whether a topic has anything that takes time to load, and its class lets it wait."""
    return record.config.durability is Durability.MEMORY and bool(record.segments)


def choose(
    records: list[control.TopicRecord], body: control.SnapshotBody, log_files: Sequence[tuple[Buffer, int]]
) -> list[control.TopicRecord]:
    """Those of `records` that nothing else depends on: no router, no change of class or name in the log."""
    counts = Counter(record.name for record in records)
    names = {name for name, count in counts.items() if count > 1}
    ids: set[int] = set()
    for router in body.routers:
        ids |= {router.source_id, router.dest_id}
    try:
        for content, start in log_files:
            for kind in (FrameType.CONFIG_UPDATE, FrameType.TOPIC_DELETE):
                ids.update(topic_id for topic_id, _ in find_frames(content, start, kind))
            for _, data in find_frames(content, start, FrameType.TOPIC_CREATE):
                names.add(control.decode(data, control.TopicCreate).name)
            for _, data in find_frames(content, start, FrameType.ROUTER_CREATE):
                created = control.decode(data, control.RouterRecord)
                ids |= {created.source_id, created.dest_id}
            for topic_id, data in find_frames(content, start, FrameType.REDRIVEN):
                ids |= {topic_id, control.decode(data, control.Redriven).topic_id}
            if find_frames(content, start, FrameType.DAMAGE):
                return []
    except Corrupt:
        return []  # a torn entry, which the replay cuts off: then none waits
    return [record for record in records if record.topic_id not in ids and record.name not in names]


def enter(core: Core, topic: Topic) -> None:
    """A topic that is in the table and recovered takes part from now on."""
    topic.shard = core.shard_of(topic.topic_id, len(core.shards))
    enlist(core, topic)
    if topic.keys:
        core.totals.keys += len(topic.keys)
        core.totals.keyed[topic.topic_id] = topic
    topic.floors.caps_due = has_caps(topic)
    if topic.floors.caps_due:
        core.totals.due.add(topic, core.now_ms())
    else:
        schedule(core, topic)
    if topic.storage.segments is not None:
        core.totals.sealed[topic.topic_id] = topic


class MemoryFill:
    """The topics that are left to load, and the loading of them. `store.fill` until all are in the table."""

    def __init__(
        self,
        core: Core,
        store: Store,
        restore: TopicRestore,
        records: list[control.TopicRecord],
        stretches: list[LogStretch],
    ) -> None:
        self._core = core
        self._store = store
        self._restore = restore
        self._records = records
        self._stretches = stretches
        self._topics: dict[int, Topic] = {}
        self._is_running = False
        self._is_cancelled = False
        self._next_ns = 0
        self.error: Exception | None = None
        """Why the last attempt failed."""
        core.filling.update(record.name for record in records)

    def cancel(self) -> None:
        """Load nothing more: the engine is about to close."""
        self._is_cancelled = True

    def poll(self, syncs: SyncRunner) -> None:
        """Begin to load in a lane, or begin again some time after a failure."""
        if self._is_running or self._is_cancelled or self._core.clock.monotonic_ns() < self._next_ns:
            return
        lane = self._store.checkpoint_lane

        def go_on(error: BaseException | None) -> None:
            if self._is_cancelled:
                return
            if isinstance(error, Exception):
                self._begin_again(error)
                return
            if error is not None:
                raise error
            for topic_id in list(islice(self._topics, _TOPICS_A_TURN)):
                self._enter(self._topics.pop(topic_id))
            if self._topics:
                syncs.start(lane, _do_nothing, go_on)
            else:
                log.info("loaded %d topics of class memory", len(self._records))
                self._store.fill = None

        self._is_running = True
        self.error = None
        syncs.start(lane, self._load, go_on)

    def _begin_again(self, error: Exception) -> None:
        """Forget what was loaded. No file was changed but as every start would."""
        self._core.failures.report("segment_read", error, self._store.data_dir)
        for topic in self._topics.values():
            for info in topic.storage.segments.infos if topic.storage.segments is not None else ():
                self._store.loaded.remove(info.source)
        self._topics.clear()
        self.error = error
        self._is_running = False
        self._next_ns = self._core.clock.monotonic_ns() + _RETRY_NS

    def _load(self) -> None:
        """Worker: everything that needs none of the tables."""
        for record in self._records:
            if self._is_cancelled:
                return
            self._topics[record.topic_id] = self._restore.restore(record, Totals(self._core.delivery))
        logs = {topic.topic_id: topic.log for topic in self._topics.values()}
        for stretch in self._stretches:
            self._replay(stretch, logs)
        for topic in self._topics.values():
            finish_topic(self._store, topic, crashed=False)  # the class promises nothing for a crash

    def _replay(self, stretch: LogStretch, logs: dict[int, TopicLog]) -> None:
        content = self._core.sources.buffer(stretch.source)
        assert content is not None, "only a checkpoint frees it"
        if stretch.start == stretch.end:
            return
        replay = SteppedReplay(content, stretch.start, stretch.end, stretch.source, logs, self._core.clock)
        while not self._is_cancelled and (frame := replay.run()) is not None:
            topic = self._topics.get(frame.topic_id)
            if topic is not None:
                self._note_gaps(replay)
                apply_entry(topic, frame)
        self._note_gaps(replay)
        self._store.report.records_from_log += replay.appended
        if replay.position < stretch.end and not self._is_cancelled:
            at = replay.position
            raise Corrupt(f"{stretch.path} has an impossible seq at offset {at}; run `everlog verify`")

    def _note_gaps(self, replay: SteppedReplay) -> None:
        for topic_id, first_seq, last_seq in replay.gaps:
            self._topics[topic_id].note_holes(first_seq, last_seq)
        replay.gaps.clear()

    def _enter(self, topic: Topic) -> None:
        """Put a loaded topic into the tables."""
        totals, loaded = self._core.totals, topic.totals
        topic.totals = totals
        totals.bytes += topic.log.live_bytes
        totals.evicted |= loaded.evicted
        totals.shrunk |= loaded.shrunk
        totals.unreclaimed |= loaded.unreclaimed
        totals.unsaved |= loaded.unsaved
        self._core.filling.discard(topic.name)
        if topic.topic_id in self._restore.quarantined:
            log.error("damage: topic %s: %s", topic.name, self._restore.quarantined[topic.topic_id])
            self._core.damaged[topic.name] = topic
            self._core.by_id[topic.topic_id] = topic
        else:
            catalogue.register(self._core, topic)
            enter(self._core, topic)


def _do_nothing() -> None:
    """A job that only lets the owner's loop turn."""
