"""Which segments a topic has: planning appends, deletions, removals and moves; and loading for reads.

Owns the rules; the files belong to `segment_store` and `tier`. A topic without segments needs none
of these objects. All state here belongs to the owner thread. Every change has three steps: a `plan_...`
(owner, no I/O), a method of the plan that does the I/O (worker thread; it touches no state), and an
`apply_...` (owner). An append that failed is simply not applied, the next one does the same work
again at the same places; other plans that failed go to `abandon`. Per topic there is at most
one append, deletion or removal at a time (the checkpoint's); one relocation may run beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from everlog.errors import Corrupt
from everlog.topics.storage import layout
from everlog.topics.storage.segment_loading import (
    Entries,
    LoadedSegment,
    identity_of,
    index_entries,
    live_count,
    well_formed_count,
)
from everlog.topics.storage.segment_store import Mark, SegmentPart, SegmentStore
from everlog.topics.storage.tier import Tier, TopicTier

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from everlog.native.topics.log import Sources

# Offsets in an index are u32; no append may reach beyond.
DATA_BYTES_LIMIT = 2**32 - 1


# --- The segments of a topic -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """When a segment is sealed, and how many sealed ones stay hot."""

    max_events: int = 10_000
    max_bytes: int = 64 << 20
    max_age_ms: int = 3_600_000
    hot_retain_segments: int = 4
    hot_retain_bytes: int = 0


@dataclass(slots=True)
class SegmentInfo:
    """One segment. `live` counts its records that are not marked as deleted on disk."""

    first_seq: int
    last_seq: int
    data_bytes: int
    live: int
    created_ms: int
    sealed: bool = False
    tier: Tier = Tier.HOT
    source: int = 0
    """Its id in `Sources`, 0 before `SegmentSources.add`."""
    busy: bool = False
    """A removal or a relocation is under way, so no other may begin."""
    is_damaged: bool = False
    """It is lost or damaged, so its files stay as they are and its topic is not served."""
    hot_left: bool = False
    """The cold copy is in force, but the hot one may still be there."""
    index_checksum: int = 0
    """Of the bytes of its index, as far as they count."""
    identity: int = 0
    """See `identity_of`; deletion marks do not change it."""
    marks_pending: int = 0
    marks_applied: int = 0

    @property
    def count(self) -> int:
        """The number of entries, holes included."""
        return self.last_seq - self.first_seq + 1

    @property
    def index_bytes(self) -> int:
        """The length of the index."""
        return self.count * layout.INDEX_ENTRY_SIZE


@dataclass(frozen=True, slots=True)
class AppendPiece:
    """One write of an append: `count` entries from `first_seq` on, for one segment."""

    segment_id: int
    first_seq: int
    count: int
    data_offset: int
    index_offset: int

    @property
    def creates(self) -> bool:
        """Whether the segment begins with this piece."""
        return self.index_offset == 0


class AppendPlan(NamedTuple):
    """The pieces of an append, in order, and what must be put right before the first one.

    Each piece must be on disk (`write_piece`) before the next is begun. `apply_append` may follow
    piece by piece or at the end; what was not applied is planned again by the next append.
    """

    pieces: list[AppendPiece]
    leftovers: tuple[int, ...]
    previous: tuple[int, int, int] | None

    def prepare(self, tier: TopicTier) -> None:
        """Worker: remove what failed appends created, and cut what they left behind a full segment.

        Must succeed before the first piece: segments must not overlap, and a segment that is no
        longer the newest must have exactly the length that counts.
        """
        if self.leftovers:
            tier.hot.delete(self.leftovers)
        if self.previous is not None:
            tier.trim(*self.previous)


def write_piece(
    store: SegmentStore, piece: AppendPiece, data: Buffer, index: Buffer, *, sync: bool = True
) -> tuple[int, int]:
    """Worker: write one piece and sync it; without `sync` that is left to the caller.

    Returns the checksum of the whole index, and its identity.
    """
    store.append(piece.segment_id, piece.data_offset, data, piece.index_offset, index)
    if sync:
        store.sync(piece.segment_id, created=piece.creates)
    before = store.read(piece.segment_id, SegmentPart.INDEX, 0, piece.index_offset)
    whole = before + bytes(index)
    return xxh3_64_intdigest(whole), identity_of(whole)


class MarkPlan(NamedTuple):
    """Records of one segment to mark as deleted; `may_drop` if it may go once it holds no live record."""

    segment_id: int
    index_bytes: int
    data_bytes: int
    positions: NDArray[np.int64]
    may_drop: bool

    def write(self, tier: TopicTier) -> tuple[int, int]:
        """Worker: mark them durably in every copy.

        Returns how many records stay unmarked, and the checksum of the index.
        """
        index = tier.read(self.segment_id, SegmentPart.INDEX, 0, self.index_bytes)
        entries = index_entries(index).copy()
        if well_formed_count(entries, self.data_bytes) < len(entries):
            # A mark at a wrong place would damage another record.
            raise Corrupt(
                f"the index of the segment at {tier.hot.describe(self.segment_id, SegmentPart.INDEX)} is "
                "damaged, so nothing can be deleted in it; restore it from a backup"
            )
        entries["flags"][self.positions] |= layout.INDEX_FLAG_DELETED
        live = live_count(entries)
        # Those marked before are marked again: the sync of an earlier attempt may have failed.
        marks = [
            Mark(
                int(entry["offset"]) + int(entry["size"]) - 1,
                position * layout.INDEX_ENTRY_SIZE + layout.INDEX_FLAGS,
                int(entry["flags"]),
            )
            for position in self.positions.tolist()
            if (entry := entries[position])["size"]
        ]
        if marks:
            tier.mark_deleted(self.segment_id, marks)
        return live, xxh3_64_intdigest(entries.tobytes())


class Relocation(NamedTuple):
    """A sealed segment to move to the cold tier.

    Worker `copy` -> owner `apply_copied` -> worker `delete_hot` -> owner `apply_moved`. If `copied`, an
    earlier plan got as far as `apply_copied`, and only the hot copy is left to be removed.
    """

    segment_id: int
    data_bytes: int
    index_bytes: int
    marks_applied: int
    copied: bool

    def copy(self, tier: TopicTier) -> None:
        """Worker: make a durable cold copy, unless that was done before."""
        if not self.copied:
            tier.copy_to_cold(self.segment_id, self.data_bytes, self.index_bytes)

    def delete_hot(self, tier: TopicTier) -> None:
        """Worker: remove the hot copy, after `apply_copied` said yes."""
        tier.delete_hot(self.segment_id)


class SegmentSet:
    """The segments of one topic, ascending. See the module for the three steps of every change."""

    __slots__ = ("_segments", "_unapplied", "limits")

    def __init__(self, limits: SegmentLimits) -> None:
        self.limits = limits
        self._segments: list[SegmentInfo] = []
        # Segments that planned appends may have created on disk without being applied.
        self._unapplied: set[int] = set()

    @classmethod
    def from_loaded(cls, limits: SegmentLimits, loaded: Iterable[LoadedSegment]) -> SegmentSet:
        """Take over what `load_segments` found."""
        segments = cls(limits)
        for found in loaded:
            entries = index_entries(found.index)
            info = SegmentInfo(
                found.first_seq,
                found.last_seq,
                found.data_bytes,
                live=live_count(entries),
                # The time of its first record is close enough for an age of an hour.
                created_ms=int(entries["ts"][0]),
                sealed=found.sealed,
                tier=found.tier,
                index_checksum=xxh3_64_intdigest(found.index),
            )
            segments._segments.append(info)
        return segments

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def infos(self) -> Sequence[SegmentInfo]:
        """All segments, ascending; not to be changed."""
        return self._segments

    @property
    def active(self) -> SegmentInfo | None:
        """The segment that the next append may continue."""
        return self._segments[-1] if self._segments and not self._segments[-1].sealed else None

    @property
    def last_seq(self) -> int:
        """The last seq in any segment, 0 if there is none."""
        return self._segments[-1].last_seq if self._segments else 0

    def find(self, seq: int) -> SegmentInfo | None:
        """Return the segment that has an entry for `seq`."""
        place = self._place(seq)
        return self._segments[place] if place >= 0 and seq <= self._segments[place].last_seq else None

    def _place(self, seq: int) -> int:
        """Return the position of the last segment that does not begin after `seq`, -1 if all do."""
        return bisect_right(self._segments, seq, key=lambda info: info.first_seq) - 1

    # Appending

    @property
    def seal_due_ms(self) -> int | None:
        """When the active segment is old enough to be sealed; None if it never is."""
        active, max_age_ms = self.active, self.limits.max_age_ms
        return None if active is None or not max_age_ms else active.created_ms + max_age_ms

    def seal_due(self, now_ms: int) -> SegmentInfo | None:
        """Seal the active segment if it is full or old; returns it if so. Costs no I/O."""
        active = self.active
        if active is None:
            return None
        limits = self.limits
        old = 0 < limits.max_age_ms <= now_ms - active.created_ms
        if active.count < limits.max_events and active.data_bytes < limits.max_bytes and not old:
            return None
        active.sealed = True
        return active

    def seal(self) -> None:
        """Seal the active segment: nothing is appended to it any more."""
        if self._segments:
            self._segments[-1].sealed = True

    def plan_stretches(
        self, stretches: Sequence[tuple[int, Sequence[int] | Entries]], now_ms: int
    ) -> AppendPlan:
        """Split stretches of seqs, each from its first one on, into pieces that respect the limits.

        A stretch has one number per seq, 0 for one without a record: at least the size of its segment frame
        (that of its log frame will do). Seqs may be left out between two stretches, and two appends.
        """
        first_seq = stretches[0][0]
        if first_seq <= self.last_seq:
            raise ValueError(
                f"seq {first_seq} is in a segment already; the last one there is {self.last_seq}"
            )
        self.seal_due(now_ms)
        active = self.active
        if active is not None and active.last_seq + 1 != first_seq:
            active.sealed = True
            active = None
        pieces: list[AppendPiece] = []
        for stretch_seq, frame_sizes in stretches:
            sizes = np.asarray(frame_sizes, dtype=np.int64)
            done = 0
            while done < len(sizes):
                seq = stretch_seq + done
                count, size = (active.count, active.data_bytes) if active is not None else (0, 0)
                taken = self._fitting(sizes[done:], count, size)
                if taken:
                    segment_id = active.first_seq if active is not None else seq
                    pieces.append(AppendPiece(segment_id, seq, taken, size, count * layout.INDEX_ENTRY_SIZE))
                elif active is not None:
                    active.sealed = True
                done += taken
                active = None
        plan = AppendPlan(pieces, tuple(sorted(self._unapplied)), self._outgrown(pieces))
        self._unapplied.update(piece.segment_id for piece in pieces if piece.creates)
        return plan

    def _fitting(self, sizes: NDArray[np.int64], count: int, data_bytes: int) -> int:
        """Return how many of the next frames go into a segment that has `count` entries."""
        room = min(self.limits.max_bytes, DATA_BYTES_LIMIT) - data_bytes
        ends = np.cumsum(sizes[: max(0, self.limits.max_events - count)])
        fitting = int(np.searchsorted(ends, room, side="right"))
        # One frame always goes into an empty segment, however large it is.
        return max(fitting, 1) if count == 0 else fitting

    def _outgrown(self, pieces: Sequence[AppendPiece]) -> tuple[int, int, int] | None:
        """Return id and lengths of the newest segment if it will not be the newest any more.

        One that the first piece continues needs no cut: an append leaves exact lengths itself.
        """
        newest = self._segments[-1] if self._segments else None
        if newest is None or newest.tier is not Tier.HOT or not pieces or not pieces[0].creates:
            return None
        if newest.is_damaged:
            return None  # it stays as it is until it is restored or given up
        return newest.first_seq, newest.data_bytes, newest.index_bytes

    def apply_append(
        self, plan: AppendPlan, piece: AppendPiece, data_bytes: int, index: Buffer, now_ms: int
    ) -> SegmentInfo:
        """A piece of the plan is durable: `data_bytes` bytes of frames and the entries of `index`."""
        created = {each.segment_id for each in plan.pieces if each.creates}
        self._unapplied -= set(plan.leftovers) - created
        self._unapplied.discard(piece.segment_id)
        if piece.creates:
            for earlier in self._segments[-1:]:
                earlier.sealed = True
            self._segments.append(SegmentInfo(piece.segment_id, piece.first_seq - 1, 0, 0, now_ms))
        info = self._segments[-1]
        info.last_seq += piece.count
        info.data_bytes += data_bytes
        info.live += live_count(index_entries(index))
        return info

    # Deleting

    def plan_marks(self, seqs: NDArray[np.uint64]) -> list[MarkPlan]:
        """Plan the durable deletion of those of `seqs` that are in segments; the rest is left out.

        Each plan must come back to `apply_marks` or, if it failed, to `abandon`.
        """
        seqs = np.unique(seqs)
        plans: list[MarkPlan] = []
        begin = self._place(int(seqs[0])) if len(seqs) else len(self._segments)
        for info in self._segments[max(0, begin) :]:
            if info.first_seq > seqs[-1]:
                break
            start, end = np.searchsorted(seqs, [info.first_seq, info.last_seq + 1])
            if start == end:
                continue
            positions = seqs[start:end].astype(np.int64) - info.first_seq
            may_drop = info.sealed and not info.busy
            info.busy |= may_drop
            info.marks_pending += 1
            plans.append(MarkPlan(info.first_seq, info.index_bytes, info.data_bytes, positions, may_drop))
        return plans

    def apply_marks(self, plan: MarkPlan, written: tuple[int, int]) -> SegmentInfo | None:
        """The deletion is durable, with this result; returns the segment if its files are to go."""
        info = self._release(plan)
        info.live, info.index_checksum = written
        info.marks_applied += 1
        if info.live or not plan.may_drop:
            return None
        self._segments.remove(info)
        return info

    def drop_dead(self, first_live: int) -> list[SegmentInfo]:
        """Take out all segments that end before `first_live` or have no live record; returns them.

        The caller removes the files once no snapshot lists them, and must know the next seq from elsewhere,
        since the newest segment may be among them. One that is being relocated waits for the next time.
        """
        dead = [
            info
            for info in self._segments
            if (info.last_seq < first_live or info.live == 0) and not info.busy and not info.marks_pending
        ]
        gone = {info.first_seq for info in dead}
        self._segments = [info for info in self._segments if info.first_seq not in gone]
        return dead

    # Moving to the cold tier

    def plan_relocations(self, limit: int = 1) -> list[Relocation]:
        """Plan moving at most `limit` of the oldest sealed segments that need not stay hot.

        The newest `hot_retain_segments` stay, as long as they have at most `hot_retain_bytes` (0: any)
        together. Segments with deletions under way are left for later, since a copy could miss them.
        Only for topics with a cold tier. Each plan must come back to `apply_copied` and `apply_moved`
        or to `abandon`.
        """
        kept_count = kept_bytes = 0
        beyond = []
        for info in reversed(self._segments):
            if not info.sealed:
                continue
            kept_count += 1
            kept_bytes += info.data_bytes + info.index_bytes
            few = kept_count <= self.limits.hot_retain_segments
            small = not self.limits.hot_retain_bytes or kept_bytes <= self.limits.hot_retain_bytes
            wanted = info.hot_left or (info.tier is Tier.HOT and not (few and small))
            if wanted and not info.busy and not info.marks_pending:
                beyond.append(info)
        plans = []
        for info in reversed(beyond[-limit:] if limit else []):
            info.busy = True
            plans.append(
                Relocation(
                    info.first_seq, info.data_bytes, info.index_bytes, info.marks_applied, info.hot_left
                )
            )
        return plans

    def apply_copied(self, plan: Relocation) -> SegmentInfo | None:
        """The cold copy is durable: from now on it is read. None if it is out of date.

        Then a record was deleted while the copy was made; the plan is over and the next one copies
        again. Until then the stale copy is harmless, because the hot one is preferred.
        """
        info = self._get(plan.segment_id)
        missed = info.marks_pending or info.marks_applied != plan.marks_applied
        if missed and not plan.copied:
            info.busy = False
            return None
        info.tier = Tier.COLD
        info.hot_left = True
        return info

    def apply_moved(self, plan: Relocation) -> None:
        """The hot copy is gone."""
        info = self._get(plan.segment_id)
        info.busy = info.hot_left = False

    def abandon(self, plan: MarkPlan | Relocation) -> None:
        """The I/O of a plan failed: its segment may be planned for again."""
        if isinstance(plan, MarkPlan):
            self._release(plan)
        else:
            self._get(plan.segment_id).busy = False

    def _release(self, plan: MarkPlan) -> SegmentInfo:
        info = self._get(plan.segment_id)
        info.marks_pending -= 1
        if plan.may_drop:
            info.busy = False
        return info

    def _get(self, segment_id: int) -> SegmentInfo:
        info = self.find(segment_id)
        if info is None or info.first_seq != segment_id:
            raise KeyError(f"there is no segment that begins with seq {segment_id}")
        return info


# --- Reading ---------------------------------------------------------------------------------------------


class _TierSegment(NamedTuple):
    """A segment and the tier that its files are in."""

    tier: TopicTier
    info: SegmentInfo


class Fetch(NamedTuple):
    """A segment that must be read in whole before records can be read from it."""

    source: int
    held: _TierSegment
    store: SegmentStore
    segment_id: int
    length: int

    def read(self) -> bytes:
        """Worker: read the data file."""
        return self.store.read(self.segment_id, SegmentPart.DATA, 0, self.length)


class SegmentSources:
    """Gives segments their ids in `Sources` and loads them when a read meets one that is not loaded.

    Belongs to the owner thread; only `Fetch.read` runs elsewhere. Hot segments are mapped; cold ones are
    fetched, because a page fault there could hold up every write. Of both kinds only so much stays loaded:
    the least recently used goes first, and the last one loaded always stays, so that the reader that asked
    for it can go on at once. A mapping lives as long as something refers to it.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        mapped_bytes_max: int = 4 << 30,
        mapped_count_max: int = 4096,
        fetched_bytes_max: int = 64 << 20,
    ) -> None:
        self._sources = sources
        self._mapped_bytes_max = mapped_bytes_max
        self._mapped_count_max = mapped_count_max
        self._fetched_bytes_max = fetched_bytes_max
        self._held: dict[int, _TierSegment] = {}
        self._by_first_seq: dict[tuple[str, int], int] = {}
        # Lengths of what is loaded, least recently used first.
        self._mapped: OrderedDict[int, int] = OrderedDict()
        self._fetched: OrderedDict[int, int] = OrderedDict()
        self.mapped_bytes = 0
        self.fetched_bytes = 0

    def add(self, tier: TopicTier, info: SegmentInfo) -> int:
        """Assign a segment its id, unloaded; it is written to `info.source` as well."""
        info.source = self._sources.add(None)
        self._held[info.source] = _TierSegment(tier, info)
        self._by_first_seq[tier.hot.directory, info.first_seq] = info.source
        return info.source

    def remove(self, source: int) -> None:
        """The segment is gone: release its id."""
        self.unload(source)
        held = self._held.pop(source)
        self._by_first_seq.pop((held.tier.hot.directory, held.info.first_seq), None)
        self._sources.remove(source)

    def unload(self, source: int) -> None:
        """Forget the loaded bytes: the segment grew, or is read from another tier now."""
        if source in self._mapped:
            self.mapped_bytes -= self._mapped.pop(source)
            self._sources.set(source, None)
        elif source in self._fetched:
            self.fetched_bytes -= self._fetched.pop(source)
            self._sources.set(source, None)

    def touch(self, source: int) -> None:
        """A read used this source; one that is not loaded or no segment is fine."""
        if source in self._mapped:
            self._mapped.move_to_end(source)
        elif source in self._fetched:
            self._fetched.move_to_end(source)

    def load(self, source: int) -> bool:
        """Load a source that a read met unloaded; False if it needs a `Fetch`."""
        held = self._held[source]
        if source in self._mapped or source in self._fetched:
            self.touch(source)
            return True
        if held.info.tier is not Tier.HOT:
            return False
        buffer = held.tier.hot.map(held.info.first_seq, SegmentPart.DATA, held.info.data_bytes)
        self._sources.set(source, buffer)
        self._mapped[source] = held.info.data_bytes
        self.mapped_bytes += held.info.data_bytes
        while len(self._mapped) > 1 and (
            self.mapped_bytes > self._mapped_bytes_max or len(self._mapped) > self._mapped_count_max
        ):
            self.unload(next(iter(self._mapped)))
        return True

    def following(self, source: int) -> int | None:
        """Return the remote segment behind this one, if it is not loaded and there is room for it."""
        held = self._held.get(source)
        if held is None or held.tier.cold is None or not held.tier.cold.is_remote:
            return None
        following = self._by_first_seq.get((held.tier.hot.directory, held.info.last_seq + 1))
        if following is None or following in self._fetched:
            return None
        info = self._held[following].info
        has_room = self.fetched_bytes + info.data_bytes <= self._fetched_bytes_max
        return following if info.tier is Tier.COLD and has_room else None

    def plan_fetch(self, source: int) -> Fetch:
        """Plan reading a segment that `load` could not load."""
        held = self._held[source]
        store = held.tier.store(held.info.tier)
        return Fetch(source, held, store, held.info.first_seq, held.info.data_bytes)

    def attach(self, fetch: Fetch, data: bytes) -> bool:
        """Load what was fetched; False if the segment is gone or has grown meanwhile."""
        if self._held.get(fetch.source) is not fetch.held or fetch.length != fetch.held.info.data_bytes:
            return False
        self.unload(fetch.source)
        self._sources.set(fetch.source, data)
        self._fetched[fetch.source] = len(data)
        self.fetched_bytes += len(data)
        while len(self._fetched) > 1 and self.fetched_bytes > self._fetched_bytes_max:
            self.unload(next(iter(self._fetched)))
        return True
