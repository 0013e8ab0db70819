"""Where each segment of a topic is: on the hot disk, on the cold one, or for a moment on both.

Owns the order in which a segment changes disks; keeps no state, so the files themselves say where
a segment is. `resolve` prefers the hot copy, so a cold copy counts only once the hot one is gone:

    copy to cold, synced -> the owner flips `SegmentInfo.tier` -> hot copy removed

A crash anywhere leaves the hot copy, the cold copy, or both with the hot one in force. All methods
block and belong on worker threads (recovery calls them on its own). The relocation of a segment
runs beside the marks of a checkpoint, never beside its removal; `SegmentSet` sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from everlog.errors import Corrupt, Unsupported
from everlog.topics.storage.segment_store import Mark, SegmentPart, SegmentStore


class Tier(Enum):
    """The disk that a segment is read from."""

    HOT = "hot"
    COLD = "cold"


class TopicTier:
    """The hot store of a topic and, if there is one, its cold store."""

    __slots__ = ("cold", "hot")

    def __init__(self, hot: SegmentStore, cold: SegmentStore | None = None) -> None:
        self.hot = hot
        self.cold = cold

    def store(self, tier: Tier) -> SegmentStore:
        """Return the store of a tier; `Unsupported` if there is no cold one."""
        if tier is Tier.HOT:
            return self.hot
        if self.cold is None:
            raise Unsupported("a segment is in the cold tier, but no cold directory is set; set it again")
        return self.cold

    def resolve(self, segment_id: int) -> Tier | None:
        """Return where a segment is read from, hot if both have it; None if neither has all of it."""
        for tier, store in self._stores():
            if _has_both_parts(store, segment_id):
                return tier
        return None

    def list(self) -> list[tuple[int, Tier]]:
        """Return all segments, ascending, each with the tier it is read from."""
        found: dict[int, Tier] = {}
        for tier, store in self._stores():
            for segment_id in store.list():
                found.setdefault(segment_id, tier)
        return sorted(found.items())

    def read(self, segment_id: int, part: SegmentPart, offset: int, length: int) -> bytes:
        """Read from the copy in force, also while a relocation removes the hot one."""
        try:
            return self.store(self.resolve(segment_id) or Tier.HOT).read(segment_id, part, offset, length)
        except Corrupt:
            if self.resolve(segment_id) is not Tier.COLD:
                raise
        return self.store(Tier.COLD).read(segment_id, part, offset, length)

    def trim(self, segment_id: int, data_length: int, index_length: int) -> None:
        """Cut the hot copy to the lengths that count; one that a relocation removes now was cut before."""
        try:
            self.hot.trim(segment_id, data_length, index_length)
        except Corrupt:
            if self.resolve(segment_id) is not Tier.COLD:
                raise

    def copy_to_cold(self, segment_id: int, data_length: int, index_length: int) -> None:
        """Store a durable copy of a sealed hot segment in the cold tier; may be repeated.

        The hot files are first cut to the lengths that count: if power is lost with both copies
        there, the segment is taken for sealed, and a sealed one must not have a torn tail.
        """
        self.hot.trim(segment_id, data_length, index_length)
        data = self.hot.read(segment_id, SegmentPart.DATA, 0, data_length)
        index = self.hot.read(segment_id, SegmentPart.INDEX, 0, index_length)
        self.store(Tier.COLD).put(segment_id, data, index)

    def delete_hot(self, segment_id: int) -> None:
        """Remove the hot copy of a segment that was copied; `Corrupt` if the cold tier has no copy."""
        cold = self.store(Tier.COLD)
        if not _has_both_parts(cold, segment_id):
            raise Corrupt(
                f"{cold.describe(segment_id, SegmentPart.DATA)} or its index is missing, so the hot copy "
                "stays; check the cold directory"
            )
        self.hot.delete([segment_id])

    def delete(self, segment_ids: Sequence[int]) -> None:
        """Durably remove segments from both tiers; may be repeated.

        Cold first: while both exist, the hot copy alone is sure to have every mark, so it must not be
        survived by a cold one in which a deleted record is still unmarked.
        """
        for _, store in reversed(self._stores()):
            store.delete(segment_ids)

    def mark_deleted(self, segment_id: int, marks: Sequence[Mark]) -> None:
        """Durably mark records as deleted in every copy there is.

        In both, because after a crash either may be the one in force. A relocation may remove the hot
        copy meanwhile; that is fine, the cold one was marked before.
        """
        marked = False
        if self.cold is not None and _has_both_parts(self.cold, segment_id):
            self.cold.mark_deleted(segment_id, marks)
            marked = True
        if _has_both_parts(self.hot, segment_id) or not marked:
            try:
                self.hot.mark_deleted(segment_id, marks)
            except Corrupt:
                if not marked or self.hot.exists(segment_id, SegmentPart.DATA):
                    raise

    def _stores(self) -> tuple[tuple[Tier, SegmentStore], ...]:
        """The stores in the order of preference."""
        hot = (Tier.HOT, self.hot)
        return (hot,) if self.cold is None else (hot, (Tier.COLD, self.cold))


def _has_both_parts(store: SegmentStore, segment_id: int) -> bool:
    # The data file is renamed first when a segment goes, and the index comes last when it is copied.
    return store.exists(segment_id, SegmentPart.DATA) and store.exists(segment_id, SegmentPart.INDEX)
