"""What a segment index says, and finding the segments of a topic at start.

Owns the rules by which an index and a data file agree; changes files only to clean up after a crash.

Only the newest segment of a topic may be appended to. Each append is synced before the next segment
is created, so after a power loss only the newest one can have a torn tail. `load_segments` cuts that
off, but refuses to cut what a checkpoint had promised; in all others any mismatch is `Corrupt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from everlog.errors import Corrupt
from everlog.native.topics import log as frames
from everlog.topics.storage import layout
from everlog.topics.storage.segment_store import Listing, SegmentPart, SegmentStore
from everlog.topics.storage.tier import Tier, TopicTier

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ENTRY = np.dtype([("offset", "<u4"), ("size", "<u4"), ("ts", "<u8"), ("flags", "u1"), ("zero", "u1", (3,))])
assert _ENTRY.itemsize == layout.INDEX_ENTRY_SIZE
_FRAME_FLAGS = layout.FLAG_HAS_TAG | layout.FLAG_HAS_NODE | layout.FLAG_HAS_META
_SMALLEST_FRAME = layout.SEGMENT_HEADER_SIZE + layout.SEGMENT_TRAILER_SIZE

Entries = NDArray[Any]

# Up to here a plain loop is quicker than arrays: what counts if there are very many small topics.
_SMALL_INDEX_BYTES = 16 * layout.INDEX_ENTRY_SIZE
"""Index entries with the fields offset, size, ts, flags and zero."""


# --- What an index says ----------------------------------------------------------------------------------


def index_entries(index: Buffer) -> Entries:
    """Return the whole entries of an index as a structured array (a view, nothing is copied)."""
    view = memoryview(index)
    entries: Entries = np.frombuffer(view, dtype=_ENTRY, count=view.nbytes // layout.INDEX_ENTRY_SIZE)
    return entries


def _entry_ends(entries: Entries) -> NDArray[np.uint64]:
    """Return where the frame of each entry must end: frames follow each other without a gap."""
    ends: NDArray[np.uint64] = np.cumsum(entries["size"], dtype=np.uint64)
    return ends


def well_formed_count(entries: Entries, data_length: int) -> int:
    """Return how many leading entries are possible: no gaps, inside the data, sensible sizes and flags."""
    sizes = entries["size"]
    ends = _entry_ends(entries)
    is_hole = sizes == 0
    flags = entries["flags"]
    fits = np.where(
        is_hole,
        flags == layout.INDEX_FLAG_DELETED,
        (entries["offset"] == ends - sizes)
        & (sizes >= _SMALLEST_FRAME)
        & (flags & ~np.uint8(_FRAME_FLAGS | layout.INDEX_FLAG_DELETED) == 0),
    )
    fits &= (ends <= data_length) & ~entries["zero"].any(axis=1)
    return _leading(fits)


def sound_count(first_seq: int, entries: Entries, data: Buffer, data_offset: int = 0) -> int:
    """Return how many leading entries have exactly their frame in `data`, checksums included.

    The entries must be well formed; `data` holds what lies in the data file from `data_offset` on.
    """
    records = np.flatnonzero(entries["size"])
    wanted = entries[records]
    scan = frames.scan_segment_frames(data, 0, verify=True)
    whole = min(scan.frames, len(records))
    raw = np.frombuffer(memoryview(data), dtype=np.uint8)
    starts = wanted["offset"][:whole].astype(np.int64) - data_offset
    sound = (
        (frame_field(raw, starts, layout.SEGMENT_FRAME_LEN, "<u4") == wanted["size"][:whole] - np.uint32(4))
        & (
            frame_field(raw, starts, layout.SEGMENT_SEQ, "<u8")
            == records[:whole].astype(np.uint64) + first_seq
        )
        & (frame_field(raw, starts, layout.SEGMENT_TS, "<u8") == wanted["ts"][:whole])
        & (
            frame_field(raw, starts, layout.SEGMENT_FLAGS, "u1") & np.uint8(_FRAME_FLAGS)
            == wanted["flags"][:whole] & np.uint8(_FRAME_FLAGS)
        )
    )
    good = _leading(sound)
    return int(records[good]) if good < len(records) else len(entries)


def frame_field(raw: NDArray[np.uint8], starts: NDArray[np.int64], offset: int, kind: str) -> NDArray[Any]:
    """Read one fixed field of many frames."""
    places = starts[:, None] + (offset + np.arange(np.dtype(kind).itemsize))
    picked: NDArray[Any] = raw[places].view(kind)[:, 0]
    return picked


def live_count(entries: Entries) -> int:
    """Return how many entries have a record that is not marked as deleted."""
    return int(np.count_nonzero((entries["flags"] & layout.INDEX_FLAG_DELETED) == 0))


def _leading(conditions: NDArray[np.bool_]) -> int:
    """Return how many conditions hold before the first that does not."""
    return len(conditions) if bool(conditions.all()) else int(conditions.argmin())


def check_sealed(index: Buffer, data_length: int, name: str) -> None:
    """Raise `Corrupt` unless an index is whole and describes exactly `data_length` bytes."""
    length = memoryview(index).nbytes
    entries = index_entries(index)
    if length == 0 or length % layout.INDEX_ENTRY_SIZE:
        raise Corrupt(
            f"the index of {name} has {length} bytes, no positive multiple of {layout.INDEX_ENTRY_SIZE}; "
            "restore both files of the segment from a backup"
        )
    fitting = well_formed_count(entries, data_length)
    if fitting < len(entries):
        raise Corrupt(
            f"entry {fitting} of the index of {name} cannot be right for {data_length} bytes of data; "
            "restore both files of the segment from a backup"
        )
    if (end := int(_entry_ends(entries)[-1])) != data_length:
        raise Corrupt(
            f"{name} has {data_length} bytes but its index describes {end}; "
            "restore both files of the segment from a backup"
        )


def rebuilt_index(first_seq: int, last_seq: int, data: bytes) -> bytes | None:
    """Make the index of a segment from its frames; None if they are not sound or not of these seqs."""
    index = np.zeros(last_seq - first_seq + 1, dtype=_ENTRY)
    index["flags"] = layout.INDEX_FLAG_DELETED
    offset, ts, place = 0, 0, 0
    while offset < len(data):
        try:
            frame = frames.read_segment_frame(data, offset)
        except Corrupt:
            return None
        if not first_seq + place <= frame.seq <= last_seq:
            return None
        at = frame.seq - first_seq
        index["ts"][place:at] = ts or frame.ts
        deleted = layout.INDEX_FLAG_DELETED if frame.deleted else 0
        index[at] = (offset, frame.size, frame.ts, frame.flags & _FRAME_FLAGS | deleted, (0, 0, 0))
        offset, ts, place = offset + frame.size, frame.ts, at + 1
    index["ts"][place:] = ts
    return index.tobytes()


def contradicts(index: bytes, rebuilt: bytes) -> bool:
    """Whether an index is not what its data says, apart from marks that a crash has kept from it."""
    found, wanted = index_entries(index), index_entries(rebuilt)
    if len(index) != len(rebuilt):
        return True
    deleted = np.uint8(layout.INDEX_FLAG_DELETED)
    records = wanted["size"] > 0
    same = (found["size"] == wanted["size"]) & (found["flags"] & ~deleted == wanted["flags"] & ~deleted)
    same &= ~records | ((found["offset"] == wanted["offset"]) & (found["ts"] == wanted["ts"]))
    same &= (found["flags"] & deleted <= wanted["flags"] & deleted) & ~found["zero"].any(axis=1)
    return not bool(same.all())


def identity_of(index: Buffer) -> int:
    """A checksum of what an index says of its records; deletion marks, and seqs without one, do not count."""
    entries = index_entries(index).copy()
    entries["flags"] &= ~np.uint8(layout.INDEX_FLAG_DELETED)
    entries[entries["size"] == 0] = np.zeros((), dtype=_ENTRY)
    return xxh3_64_intdigest(entries.tobytes())


def hole_index(count: int) -> bytes:
    """The index of a segment in which no record can be read."""
    return layout.INDEX_ENTRY.pack(0, 0, 0, layout.INDEX_FLAG_DELETED) * count


def damaged_seqs(first_seq: int, index: bytes, data: bytes) -> list[int]:
    """The seqs of records that are not deleted and whose frames are not those of the index."""
    entries = index_entries(index)
    found: list[int] = []
    for place in np.flatnonzero((entries["size"] > 0) & (entries["flags"] < layout.INDEX_FLAG_DELETED)):
        try:
            frame = frames.read_segment_frame(data, int(entries["offset"][place]))
        except Corrupt:
            frame = None
        wanted = (first_seq + int(place), int(entries["size"][place]), int(entries["ts"][place]))
        if frame is None or (frame.seq, frame.size, frame.ts) != wanted:
            found.append(first_seq + int(place))
    return found


# --- Loading ---------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """What was cut off the newest segment: everything from `first_seq` on; the log still has it."""

    first_seq: int
    index_bytes: int
    data_bytes: int


@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """A segment as found at start: the bytes of its index say which seqs it holds."""

    first_seq: int
    index: bytes
    data_bytes: int
    tier: Tier
    sealed: bool

    @property
    def last_seq(self) -> int:
        """The seq of the last entry."""
        return self.first_seq + len(self.index) // layout.INDEX_ENTRY_SIZE - 1


class LoadedSegments(NamedTuple):
    """The segments of a topic, ascending, and what was cut off the newest one (None: nothing)."""

    segments: list[LoadedSegment]
    cut: Cut | None


def load_listed(tier: TopicTier, listed: Sequence[tuple[int, int, int]]) -> list[LoadedSegment] | None:
    """Read the indexes of hot segments that are exactly as listed: first seq, last seq, bytes of data.

    The quick way for a start after a stop in good order; None if anything is different, then
    `load_segments` has to look closer.
    """
    if not tier.hot.holds_just([first_seq for first_seq, _, _ in listed]):
        return None
    if tier.cold is not None and not tier.cold.holds_just([]):
        return None
    loaded: list[LoadedSegment] = []
    for first_seq, last_seq, data_bytes in listed:
        index_bytes = (last_seq - first_seq + 1) * layout.INDEX_ENTRY_SIZE
        index = tier.hot.read_index(first_seq, index_bytes, data_bytes)
        if index is None:
            return None
        if len(index) > _SMALL_INDEX_BYTES or not _is_small_index_sound(index, data_bytes):
            check_sealed(index, data_bytes, tier.hot.describe(first_seq, SegmentPart.DATA))
        is_newest = len(loaded) == len(listed) - 1
        loaded.append(LoadedSegment(first_seq, index, data_bytes, Tier.HOT, sealed=not is_newest))
    return loaded


def _is_small_index_sound(index: bytes, data_bytes: int) -> bool:
    """Whether entries follow each other without a gap up to the end of the data."""
    end = 0
    for offset, size, _, flags in layout.INDEX_ENTRY.iter_unpack(index):
        if size and offset == end and not flags & ~(_FRAME_FLAGS | layout.INDEX_FLAG_DELETED):
            end += size
        else:
            return False
    return end == data_bytes


def load_segments(tier: TopicTier, *, durable_through_seq: int) -> LoadedSegments:
    """Read all indexes of a topic and clean up what crashes left. For the start, on any one thread.

    `durable_through_seq` is the last seq of this topic that the newest snapshot or checkpoint mark
    says is in segments (0: none). Up to there the log may be gone, so any damage is `Corrupt`; what
    lies behind it is checked by checksum and may be cut off, because the log has it. Running it
    twice gives the same result.
    """
    hot = tier.hot.listing()
    cold = tier.cold.listing() if tier.cold is not None else Listing()
    _check_leftovers(tier, hot, cold, durable_through_seq)
    tier.hot.remove_leftovers(hot)
    if tier.cold is not None:
        tier.cold.remove_leftovers(cold)
    segment_ids = sorted({*hot.complete, *cold.complete})
    # A segment with a cold copy was sealed, even if it is the newest and the hot copy is in force.
    may_grow = bool(segment_ids) and segment_ids[-1] not in cold.complete
    newest, cut = None, None
    if may_grow:
        newest, cut = _load_newest(tier.hot, segment_ids.pop(), durable_through_seq)
    loaded = [
        _load_sealed(tier, segment_id, Tier.HOT if segment_id in hot.complete else Tier.COLD)
        for segment_id in segment_ids
    ]
    if newest is not None:
        loaded.append(newest)
    elif may_grow and loaded and loaded[-1].first_seq not in cold.complete:
        # The newest one held nothing and is gone, so the one before it is the newest again.
        loaded[-1] = replace(loaded[-1], sealed=False)
    for earlier, later in pairwise(loaded):
        if later.first_seq <= earlier.last_seq:
            raise Corrupt(
                f"{tier.store(later.tier).describe(later.first_seq, SegmentPart.DATA)} begins inside the "
                f"segment before it, which ends with seq {earlier.last_seq}; restore both from a backup"
            )
    return LoadedSegments(loaded, cut)


def _check_leftovers(tier: TopicTier, hot: Listing, cold: Listing, durable_through_seq: int) -> None:
    """Raise `Corrupt` for a lone file that no crash can have left."""
    newest = max((*hot.complete, *cold.complete), default=-1)
    for segment_id in hot.data_only:
        # A creation that was interrupted: of the newest segment, and before any promise about it.
        if segment_id <= max(newest, durable_through_seq):
            raise _part_lost(tier.hot, segment_id, SegmentPart.INDEX)
    for segment_id in cold.data_only:
        # A copy that was interrupted: the hot segment is still there.
        if segment_id not in hot.complete:
            raise _part_lost(tier.store(Tier.COLD), segment_id, SegmentPart.INDEX)
    for segment_id in hot.index_only:
        raise _part_lost(tier.hot, segment_id, SegmentPart.DATA)
    for segment_id in cold.index_only:
        raise _part_lost(tier.store(Tier.COLD), segment_id, SegmentPart.DATA)


def _part_lost(store: SegmentStore, segment_id: int, part: SegmentPart) -> Corrupt:
    return Corrupt(f"{store.describe(segment_id, part)} is missing; restore it from a backup")


def _load_sealed(tier: TopicTier, segment_id: int, where: Tier) -> LoadedSegment:
    store = tier.store(where)
    index = store.read(segment_id, SegmentPart.INDEX, 0)
    data_length = store.length(segment_id, SegmentPart.DATA)
    check_sealed(index, data_length, store.describe(segment_id, SegmentPart.DATA))
    return LoadedSegment(segment_id, index, data_length, where, sealed=True)


def _load_newest(
    store: SegmentStore, first_seq: int, durable_through_seq: int
) -> tuple[LoadedSegment | None, Cut | None]:
    """Load the segment that may have a torn tail and cut that off; None if nothing is left."""
    index = store.read(first_seq, SegmentPart.INDEX, 0)
    data_length = store.length(first_seq, SegmentPart.DATA)
    entries = index_entries(index)
    count = well_formed_count(entries, data_length)
    ends = _entry_ends(entries)
    promised = min(max(0, durable_through_seq - first_seq + 1), count)
    if promised < count:
        start = int(ends[promised - 1]) if promised else 0
        tail = store.read(first_seq, SegmentPart.DATA, start, int(ends[count - 1]) - start)
        fresh = entries[promised:count]
        sound = sound_count(first_seq + promised, fresh, tail, start)
        last_ts = int(entries["ts"][promised - 1]) if promised else 0
        count = promised + min(sound, _ordered_count(fresh, last_ts))
    index_end = count * layout.INDEX_ENTRY_SIZE
    data_end = int(ends[count - 1]) if count else 0
    cut = None
    if index_end < len(index) or data_end < data_length:
        cut = Cut(first_seq + count, len(index) - index_end, data_length - data_end)
        if cut.first_seq <= durable_through_seq:
            raise Corrupt(
                f"{store.describe(first_seq, SegmentPart.DATA)} is damaged from seq {cut.first_seq} on, but "
                f"a checkpoint has promised all up to seq {durable_through_seq}; restore it from a backup"
            )
    if count == 0:
        store.delete([first_seq])
        return None, cut
    if cut is not None:
        store.trim(first_seq, data_end, index_end)
    return LoadedSegment(first_seq, index[:index_end], data_end, Tier.HOT, sealed=False), cut


def _ordered_count(entries: Entries, last_ts: int) -> int:
    """Return how many leading entries have times that never go back, from `last_ts` on.

    For entries without a record this is the only check that their time was not torn.
    """
    times = entries["ts"]
    return _leading(times >= np.concatenate((np.array([last_ts], dtype=times.dtype), times[:-1])))
