"""One topic of a snapshot at start: its state, and the indexes of its segments.

Owns what is believed of segment files and what happens to a topic that has lost one. Works on one topic at a
time and touches no table of the engine, so that it can run beside a server that serves other topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from everlog.errors import Corrupt, ObjectStoreFailed
from everlog.native.topics.log import TopicLog
from everlog.topics.commits import COMMITTED
from everlog.topics.delivery.consumer_table import restore_consumers
from everlog.topics.jobs.lease_log import restore_leases
from everlog.topics.remembered_keys import RememberedKey
from everlog.topics.storage import layout
from everlog.topics.storage.segment_loading import (
    LoadedSegment,
    check_sealed,
    contradicts,
    damaged_seqs,
    hole_index,
    identity_of,
    index_entries,
    load_listed,
    load_segments,
    rebuilt_index,
)
from everlog.topics.storage.segment_store import SegmentPart, SegmentStore
from everlog.topics.storage.segments import SegmentSet
from everlog.topics.storage.store import DamageFound, DamageKind, Store
from everlog.topics.storage.tier import Tier, TopicTier
from everlog.topics.topic import Topic, Totals, leave_holes

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
        key_seqs = dict(record.key_seqs)
        for key, first_seq, count, ts in record.keys:
            seqs = tuple(key_seqs.get(key, ()))
            topic.keys.add(RememberedKey(key, first_seq, count, ts, COMMITTED, seqs))
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
        foreign = self._rebuild_indexes(tier, record)
        try:
            if foreign:
                raise Corrupt(f"segments of topic {topic.name!r} are not those that the snapshot lists")
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
            for segment in loaded if self._gives_up else ():
                if tier.store(segment.tier).is_remote:  # a start makes no request for them
                    tier.store(segment.tier).map(segment.first_seq, SegmentPart.DATA, segment.data_bytes)
        except Corrupt as error:
            loaded = self._without_damaged(topic, tier, record, error, foreign)
        if not self._clean:
            self._sync_marks(tier, loaded)
        topic.storage.segments = SegmentSet.from_loaded(store.limits, loaded)
        checksums = dict(zip(record.segments, record.index_checksums, strict=False))
        identities = dict(zip(record.segments, record.index_identities, strict=False))
        for segment, info in zip(loaded, topic.storage.segments.infos, strict=True):
            key = (info.first_seq, info.last_seq, info.data_bytes)
            is_lost = topic.topic_id in self.quarantined
            info.identity = identities.get(key) or (0 if is_lost else identity_of(segment.index))
            if topic.topic_id in self.quarantined and key in checksums:
                info.index_checksum = checksums[key]
            if topic.topic_id in self.quarantined:
                info.is_damaged = True
                info.busy = True  # neither moved nor removed: the file may come back
            self._load_index(topic, tier, segment, store.loaded.add(tier, info))
            self._report.segments += 1
            self._report.records_from_segments += info.live

    def _rebuild_indexes(self, tier: TopicTier, record: TopicRecord) -> list[int]:
        """Make indexes again that are not as the snapshot says: all that they say follows from the data.

        Returns the segments whose data is sound, but not what the snapshot says: other files in their place.
        """
        foreign: list[int] = []
        if not self._is_alone:
            return foreign
        identities = dict(zip(record.segments, record.index_identities, strict=False))
        for place, checksum in zip(record.segments, record.index_checksums, strict=False):
            first_seq, last_seq, data_bytes = place
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
            if identities.get(place, 0) not in (0, identity_of(rebuilt)):
                foreign.append(first_seq)
                continue
            if contradicts(index, rebuilt):
                path = store.describe(first_seq, SegmentPart.INDEX)
                seqs = f"seqs {first_seq} to {last_seq} of topic {record.name!r}"
                message = f"the index of {seqs} was made again from its data"
                self._note_damage("index", path, message)
            store.put_index(first_seq, rebuilt)
        return foreign

    @staticmethod
    def _tier_with_data(tier: TopicTier, segment_id: int) -> Tier:
        if tier.cold is None or tier.hot.exists(segment_id, SegmentPart.DATA):
            return Tier.HOT
        return Tier.COLD if any(tier.cold.exists(segment_id, part) for part in SegmentPart) else Tier.HOT

    def _without_damaged(
        self, topic: Topic, tier: TopicTier, record: TopicRecord, error: Corrupt, foreign: list[int]
    ) -> list[LoadedSegment]:
        """Load the segments that can be loaded; the others have no record that can be read.

        The topic is not served then, unless they are to be given up. What a segment has behind its listed end
        is not used.
        """
        if not self._is_alone:
            raise error
        loaded: list[LoadedSegment] = []
        found = len(self._report.damage)
        for first_seq, last_seq, data_bytes in record.segments:
            where = self._tier_with_data(tier, first_seq)
            store, count = tier.store(where), last_seq - first_seq + 1
            path = store.describe(first_seq, SegmentPart.DATA)
            try:
                if first_seq in foreign:
                    raise Corrupt(
                        f"{path} has the records of another topic or time; give each segment its name back"
                    )
                index = store.read(first_seq, SegmentPart.INDEX, 0, count * layout.INDEX_ENTRY_SIZE)
                store.map(first_seq, SegmentPart.DATA, data_bytes)
                check_sealed(index, data_bytes, path)
                if self._gives_up:
                    _cut_surplus(store, first_seq, index, data_bytes)
            except Corrupt as reason:
                lost = Corrupt(f"seqs {first_seq} to {last_seq} of topic {topic.name!r}: {reason}")
                if self._gives_up:
                    for each in (tier.hot, tier.cold):
                        if each is not None:
                            each.keep_damaged(first_seq)
                    topic.note_corrupt(first_seq, last_seq)
                    self._note_damage("segment", path, f"{lost}; they are given up")
                    self._report.may_lack_acked = True
                    continue
                self._quarantine(topic, path, lost)
                index = hole_index(count)
            loaded.append(LoadedSegment(first_seq, index, data_bytes, where, sealed=True))
        if len(self._report.damage) == found:
            advice = "its records are served as listed, and `everlog repair --accept-loss` cuts the rest off"
            self._note_damage("segment", tier.hot.directory, f"topic {topic.name!r}: {error}; {advice}")
        return loaded

    @property
    def _gives_up(self) -> bool:
        return self._core.settings.on_damage == "give_up"

    def _give_up_damaged_records(self, topic: Topic, tier: TopicTier, segment: LoadedSegment) -> None:
        """Delete records whose frames are damaged, so that readers can go on behind their tombstone."""
        store = tier.store(segment.tier)
        data = store.read(segment.first_seq, SegmentPart.DATA, 0, segment.data_bytes)
        seqs = damaged_seqs(segment.first_seq, segment.index, data)
        for seq in seqs:
            topic.kill_range(seq, seq + 1)
            topic.note_corrupt(seq, seq)
        if seqs:
            topic.storage.unmarked.append(np.array(seqs, dtype=np.uint64))
            self._report.may_lack_acked = True
            message = (
                f"{len(seqs)} records of topic {topic.name!r}, seqs {seqs[0]} to {seqs[-1]}, are given up"
            )
            self._note_damage("record", store.describe(segment.first_seq, SegmentPart.DATA), message)

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
        store, damaged = tier.store(segment.tier), 0
        data: Buffer | None = None
        entries = memoryview(segment.index)
        for first_seq in range(segment.first_seq, segment.last_seq + 1, _ENTRIES_A_STEP):
            at = (first_seq - segment.first_seq) * layout.INDEX_ENTRY_SIZE
            step = entries[at : at + _ENTRIES_A_STEP * layout.INDEX_ENTRY_SIZE]
            if topic.log.load_index(first_seq, step, source):
                if data is None:
                    data = store.map_heads(
                        segment.first_seq, segment.index, segment.data_bytes, is_alone=self._is_alone
                    )
                found = topic.log.load_frames(first_seq, _ENTRIES_A_STEP, data)
                damaged = damaged or found
            self._core.clock.sleep_ns(0)  # another thread may go on
        if damaged and not self._gives_up:
            path = store.describe(segment.first_seq, SegmentPart.DATA)
            error = Corrupt(
                f"record {damaged} of topic {topic.name!r} is not where the index of its segment says; "
                f"run `everlog verify`, then restore the segment from a backup"
            )
            if not self._is_alone:
                raise error
            self._quarantine(topic, path, error)
        if self._gives_up:
            self._give_up_damaged_records(topic, tier, segment)

    def _quarantine(self, topic: Topic, path: str, error: Corrupt) -> None:
        advice = f"or give them up: everlog repair --accept-loss {self._store.data_dir}"
        self._note_damage("segment", path, f"{error}, {advice}")
        self.quarantined[topic.topic_id] = error

    def _note_damage(self, kind: DamageKind, path: str, message: str) -> None:
        self._report.damage.append(DamageFound(kind, path, message))


def _cut_surplus(store: SegmentStore, first_seq: int, index: bytes, data_bytes: int) -> None:
    """Cut off what a segment has behind its last record."""
    if store.length(first_seq, SegmentPart.INDEX) != len(index):
        store.put_index(first_seq, index)
    if store.length(first_seq, SegmentPart.DATA) != data_bytes:
        store.trim(first_seq, data_bytes, len(index))
