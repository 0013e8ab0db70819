"""Finds a record by seq or by time, with the seek indexes where there are any.

Reads only; a missing or damaged index makes it scan. Segments that vanish meanwhile (retention)
are treated as if they had never been listed.
"""

from __future__ import annotations

from typing import NamedTuple

from everlog.fs import Fs
from everlog.native.queue import ring as native
from everlog.queue import layout, seek_index
from everlog.queue.damage import first_sound, next_sound
from everlog.queue.layout import SEG_DATA_OFFSET
from everlog.queue.segment import list_segments, map_segment


class SegmentPosition(NamedTuple):
    """A position in an open segment."""

    mapping: native.Mapping
    segment_id: int
    offset: int


class Seeker:
    """Searches over the segments of a queue, oldest to head."""

    def __init__(self, fs: Fs, queue_path: str, segment_size: int, head: tuple[int, int]) -> None:
        self._fs = fs
        self._queue_path = queue_path
        self._segment_size = segment_size
        self._head = head
        self._ids = [i for i in list_segments(fs, queue_path) if i <= head[0]]

    def by_seq(self, seq: int) -> SegmentPosition | None:
        """Return the first record with at least this seq."""
        return self._search(seq, by_timestamp=False)

    def by_timestamp(self, timestamp_ns: int) -> SegmentPosition | None:
        """Return the first record at or after this time; best effort where time went back."""
        return self._search(timestamp_ns, by_timestamp=True)

    def _search(self, target: int, *, by_timestamp: bool) -> SegmentPosition | None:
        key_offset = layout.MSG_TIMESTAMP_NS if by_timestamp else layout.MSG_SEQ
        # Bisect for the last segment whose first record lies before the target.
        low, high = 0, len(self._ids)
        while high - low > 1:
            middle = (low + high) // 2
            first = self._first_record(middle)
            if first is not None and first.mapping.load_u64(first.offset + key_offset) < target:
                low = middle
            else:
                high = middle
        for index in range(low, len(self._ids)):
            found = self._find(index, target, by_timestamp=by_timestamp)
            if found is not None:
                return found
        return None

    def at_or_after(self, segment_id: int, offset: int) -> SegmentPosition | None:
        """Return the first record at or behind a position, which need not be that of a record."""
        start = max(offset - offset % layout.RECORD_ALIGN, SEG_DATA_OFFSET)
        for each in self._ids:
            mapping = self._map(each) if each >= segment_id else None
            if mapping is None:
                continue
            if each > segment_id:
                start = SEG_DATA_OFFSET
            if start < self._segment_size and (found := self._walk(mapping, each, start, 0)):
                return SegmentPosition(mapping, each, found)
        return None

    def last(self) -> SegmentPosition | None:
        """Return the newest record. Walks through one segment: the head has no index on disk."""
        for segment_id in reversed(self._ids):
            mapping = self._map(segment_id)
            if mapping is None:
                continue
            start, found = SEG_DATA_OFFSET, 0
            while start:
                scan = native.scan_segment(mapping, start, verify=False)
                found = scan["last"] if scan["records"] else found
                start = self._behind_damage(mapping, segment_id, scan)
            if found:
                return SegmentPosition(mapping, segment_id, found)
        return None

    def end(self) -> SegmentPosition | None:
        """Return the place after the last committed record."""
        for segment_id in reversed(self._ids):
            mapping = self._map(segment_id)
            if mapping is not None:
                return SegmentPosition(
                    mapping, segment_id, native.scan_segment(mapping, SEG_DATA_OFFSET, verify=False)["end"]
                )
        return None

    def _first_record(self, index: int) -> SegmentPosition | None:
        """The first record of a segment, or of the next one that has any."""
        for segment_id in self._ids[index:]:
            mapping = self._map(segment_id)
            if mapping is None:
                continue
            # A damaged seq or time would lead the search astray.
            offset = first_sound(mapping)
            if offset:
                return SegmentPosition(mapping, segment_id, offset)
        return None

    def _find(self, index: int, target: int, *, by_timestamp: bool) -> SegmentPosition | None:
        segment_id = self._ids[index]
        mapping = self._map(segment_id)
        if mapping is None:
            return None
        start = SEG_DATA_OFFSET
        entries = seek_index.load(self._fs, self._queue_path, segment_id, self._segment_size)
        if entries is not None:
            lookup = entries.entry_before_timestamp if by_timestamp else entries.entry_at_or_before_seq
            entry_offset = lookup(target)
            if entry_offset is not None and _entry_holds(mapping, entries, entry_offset):
                start = entry_offset
        offset = self._walk(mapping, segment_id, start, target, by_timestamp=by_timestamp)
        return SegmentPosition(mapping, segment_id, offset) if offset else None

    def _walk(
        self, mapping: native.Mapping, segment_id: int, start: int, target: int, *, by_timestamp: bool = False
    ) -> int:
        """Return the offset of the first record from `start` on that reaches the target, 0 if none does."""
        offset = native.find_record(mapping, start, target, by_timestamp=by_timestamp)
        while not offset:
            scan = native.scan_segment(mapping, start, verify=False)
            start = self._behind_damage(mapping, segment_id, scan)
            if not start:
                break
            offset = native.find_record(mapping, start, target, by_timestamp=by_timestamp)
        return offset

    def _behind_damage(self, mapping: native.Mapping, segment_id: int, scan: dict[str, int]) -> int:
        """Return where records go on behind the end of a walk, 0 if that is their end."""
        head_segment, head_offset = self._head
        published = self._segment_size if segment_id < head_segment else head_offset
        return 0 if scan["padded"] or scan["end"] >= published else next_sound(mapping, scan["end"])

    def _map(self, segment_id: int) -> native.Mapping | None:
        try:
            return map_segment(self._fs, self._queue_path, segment_id, self._segment_size)
        except FileNotFoundError:
            return None


def _entry_holds(mapping: native.Mapping, index: seek_index.SeekIndex, offset: int) -> bool:
    """Whether the record that an entry points to is there; an index may outlive its segment."""
    entry = index.entries[index.entries["offset"] == offset][0]
    return is_record(mapping, offset, entry["seq"], entry["timestamp_ns"])


def is_record(mapping: native.Mapping, offset: int, seq: int, timestamp_ns: int) -> bool:
    """Whether the record committed at an offset has this seq and time."""
    return (
        mapping.load_u32(offset + layout.MSG_COMMIT_LEN) != 0
        and mapping.load_u64(offset + layout.MSG_SEQ) == seq
        and mapping.load_u64(offset + layout.MSG_TIMESTAMP_NS) == timestamp_ns
    )
