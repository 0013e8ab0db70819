"""One topic of a snapshot at start: its state, and the indexes of its segments.

Owns what is believed of segment files and what happens to a topic that has lost one. Works on one topic at a
time and touches no table of the engine, so that it can run beside a server that serves other topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import structs
from xxhash import xxh3_64_intdigest

from everlog.errors import Corrupt, ObjectStoreFailed
from everlog.native.topics.log import TopicLog
from everlog.topics.commits import COMMITTED
from everlog.topics.delivery.consumer_table import restore_consumers
from everlog.topics.jobs.lease_log import restore_leases
from everlog.topics.storage import layout
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
from everlog.topics.storage.segment_store import SegmentPart, SegmentStore
from everlog.topics.storage.segments import SegmentSet
from everlog.topics.storage.store import DamageFound, Store
from everlog.topics.storage.tier import Tier, TopicTier
from everlog.topics.topic import RememberedKey, Topic, Totals, leave_holes

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from everlog.topics.core import Core
    from everlog.topics.storage.control import TopicRecord

# Entries of an index that are loaded in one call, which holds the interpreter for a millisecond or two.
_ENTRIES_A_STEP: Final = 16_384


class TopicRestore:
    """Restores topics of one snapshot. `is_clean`: it is that of a stop in good order."""

    def __init__(self, core: Core, store: Store, *, is_clean: bool, is_alone: bool) -> None:
        self._core = core
        self._store = store
        self._report = store.report
        self._clean = is_clean
        self._is_alone = is_alone
        self.quarantined: dict[int, Corrupt] = {}
        """By topic id: why it cannot be served."""
        self._remote_error: ObjectStoreFailed | None = None
        self.must_restore = False
        """A segment that the object store does not give now makes its topic quarantined until a start."""

    def restore(self, record: TopicRecord, totals: Totals) -> Topic:
        """Make a topic of what a snapshot says; it is in no table."""
        topic = Topic(record.topic_id, record.name, record.epoch, record.config, 0, totals)
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
        for key, seqs in record.key_seqs:
            if key in topic.keys:
                topic.keys[key] = structs.replace(topic.keys[key], seqs=tuple(seqs))
        restore_consumers(topic, record.consumers)
        topic.storage.restored_head = record.head_seq
        topic.storage.restored_ts = record.last_ts
        first_seq = record.segments[0][0] if record.segments else record.saved_seq + 1
        topic.log = TopicLog(topic.topic_id, first_seq)
        if record.segments:
            try:
                self._load_segments(topic, record)
            except ObjectStoreFailed:
                for info in topic.storage.segments.infos if topic.storage.segments is not None else ():
                    if info.source:
                        self._store.loaded.remove(info.source)
                raise
        if topic.log.next_seq <= record.saved_seq:
            leave_holes(topic.log, topic.name, record.saved_seq + 1)
        topic.log.kill_below(max(topic.evict_floor, topic.floors.delete_below))
        restore_leases(topic, record)
        return topic

    def _load_segments(self, topic: Topic, record: TopicRecord) -> None:
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
            if topic.topic_id in self.quarantined and key in checksums:
                info.index_checksum = checksums[key]
            if topic.topic_id in self.quarantined:
                info.is_damaged = True
                info.busy = True  # neither moved nor removed: the file may come back
            self._load_index(topic, tier, segment, store.loaded.add(tier, info))
            self._report.segments += 1
            self._report.records_from_segments += info.live

    def _rebuild_indexes(self, tier: TopicTier, record: TopicRecord) -> None:
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
            if xxh3_64_intdigest(index) == checksum or store.is_remote:
                continue  # a remote index is checked when it is loaded; its data has no deletion marks
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
        self, topic: Topic, tier: TopicTier, record: TopicRecord, error: Corrupt
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
                self.quarantined[topic.topic_id] = error
                index = hole_index(count)
            loaded.append(LoadedSegment(first_seq, index, data_bytes, where, sealed=True))
        if not self.quarantined.get(topic.topic_id) and not gives_up:
            raise error  # each segment is sound by itself, so it is something else
        self._report.may_lack_acked |= gives_up
        return loaded

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

    def _cut_to_snapshot(self, tier: TopicTier, record: TopicRecord) -> None:
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
        store, data, damaged = tier.store(segment.tier), None, 0
        entries = memoryview(segment.index)
        for first_seq in range(segment.first_seq, segment.last_seq + 1, _ENTRIES_A_STEP):
            at = (first_seq - segment.first_seq) * layout.INDEX_ENTRY_SIZE
            step = entries[at : at + _ENTRIES_A_STEP * layout.INDEX_ENTRY_SIZE]
            if topic.log.load_index(first_seq, step, source):
                data = data or self._data_of(topic, store, segment)
                if data is None:
                    continue
                found = topic.log.load_frames(first_seq, _ENTRIES_A_STEP, data)
                damaged = damaged or found
            self._core.clock.sleep_ns(0)  # another thread may go on
        if damaged and self._core.settings.on_damage != "give_up":
            error = Corrupt(
                f"record {damaged} of topic {topic.name!r} is not where the index of its segment says; "
                f"run `everlog verify`, then restore the segment from a backup"
            )
            if not self._is_alone:
                raise error
            self._quarantine(topic, store.describe(segment.first_seq, SegmentPart.DATA), str(error))
        if self._core.settings.on_damage == "give_up":
            self._give_up_damaged_records(topic, tier, segment)

    def _data_of(self, topic: Topic, store: SegmentStore, segment: LoadedSegment) -> Buffer | None:
        """The data of a segment; None if the object store does not give it, and the start cannot wait."""
        if self._remote_error is None or not (self.must_restore and store.is_remote):
            try:
                return store.map(segment.first_seq, SegmentPart.DATA, segment.data_bytes)
            except ObjectStoreFailed as error:
                if not self.must_restore:
                    raise
                self._remote_error = error
        if topic.topic_id not in self.quarantined:
            path = store.describe(segment.first_seq, SegmentPart.DATA)
            self._quarantine(topic, path, f"{self._remote_error}; restart when it is")
        return None

    def _quarantine(self, topic: Topic, path: str, message: str) -> None:
        self._report.damage.append(DamageFound("segment", path, message))
        self.quarantined[topic.topic_id] = Corrupt(message)
