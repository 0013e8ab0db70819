"""Price levels to L2 events: many diffs or snapshots packed at once, without a loop over events.

Owns the choice of scales and the order of levels within an event; `everlog.market.packing` lays out
the bytes. Knows no format: importers bring levels as columns, sorted into groups of one event each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from everlog.market.packing import pack_l2_diffs, pack_l2_snapshots
from everlog.market.protocol import (
    L2_DIFF,
    L2_SNAPSHOT,
    LEVEL,
    BookEventType,
    BookFlags,
    BookMode,
    Side,
    TypeId,
    new_headers,
)
from everlog.market.venues.interface import EventBlock

POWERS_OF_TEN: Final = np.array([10**exponent for exponent in range(19)], dtype=np.uint64)
U64_MAX: Final = np.uint64(2**64 - 1)


@dataclass(slots=True)
class Levels:
    """Price levels as columns: integers, their numbers of decimals, and the side of each."""

    prices: NDArray[np.uint64]
    price_decimals: NDArray[np.uint8]
    sizes: NDArray[np.uint64]
    size_decimals: NDArray[np.uint8]
    sides: NDArray[np.uint8]

    def __len__(self) -> int:
        """Return the number of levels."""
        return len(self.prices)

    def take(self, chosen: Any) -> Levels:
        """Return some of the levels: a slice, a mask or an order."""
        return Levels(
            self.prices[chosen],
            self.price_decimals[chosen],
            self.sizes[chosen],
            self.size_decimals[chosen],
            self.sides[chosen],
        )

    def followed_by(self, other: Levels) -> Levels:
        """Return these levels and then the others."""
        return Levels(
            np.concatenate([self.prices, other.prices]),
            np.concatenate([self.price_decimals, other.price_decimals]),
            np.concatenate([self.sizes, other.sizes]),
            np.concatenate([self.size_decimals, other.size_decimals]),
            np.concatenate([self.sides, other.sides]),
        )


@dataclass(slots=True)
class Groups:
    """One event per group: where its levels start, and what its header says.

    `update_ids` are the first, last and previous update id of diffs.
    """

    starts: NDArray[np.int64]
    ingest_ts_ns: NDArray[np.uint64]
    exchange_ts_ns: NDArray[np.uint64]
    seqs: NDArray[np.uint64]
    native_seqs: NDArray[np.uint64]
    venue_id: int
    market_id: int | NDArray[np.uint64]
    stream_id: int = 0
    update_ids: tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]] | None = None

    def headers(self, kind: BookEventType) -> NDArray[np.void]:
        """Return the event headers; `record_len` is set by the packer."""
        headers = new_headers(len(self.starts), kind, BookMode.L2, venue_id=self.venue_id)
        headers["market_id"] = self.market_id
        headers["stream_id"] = self.stream_id
        headers["ingest_ts_ns"] = self.ingest_ts_ns
        headers["exchange_ts_ns"] = self.exchange_ts_ns
        headers["seq"] = self.seqs
        headers["native_seq"] = self.native_seqs
        return headers


def pack_diffs(levels: Levels, groups: Groups, price_scale: int | None, size_scale: int | None) -> EventBlock:
    """Return the groups as L2 diffs. No group may have more than 65535 levels a side."""
    counts, bids = _counts(levels, groups)
    diffs = np.zeros(len(groups.starts), dtype=L2_DIFF)
    if groups.update_ids is not None:
        for name, ids in zip(("first", "last", "previous"), groups.update_ids, strict=True):
            diffs[f"{name}_update_id"] = ids
    diffs["flags"] = BookFlags.ABSOLUTE
    diffs["bid_count"], diffs["ask_count"] = bids, counts - bids
    placed, diffs["price_scale"], diffs["size_scale"] = _placed(
        levels, groups, counts, bids, price_scale, size_scale
    )
    packed = pack_l2_diffs(groups.headers(BookEventType.DIFF), diffs, placed)
    return EventBlock(TypeId.BOOK_EVENT, packed.buffer, groups.ingest_ts_ns, packed.ends)


def pack_snapshots(
    levels: Levels, groups: Groups, price_scale: int | None, size_scale: int | None
) -> EventBlock:
    """Return the groups as L2 snapshots; levels must be in book order within their side and not empty."""
    counts, bids = _counts(levels, groups)
    snapshots = np.zeros(len(groups.starts), dtype=L2_SNAPSHOT)
    snapshots["bid_count"], snapshots["ask_count"] = bids, counts - bids
    placed, snapshots["price_scale"], snapshots["size_scale"] = _placed(
        levels, groups, counts, bids, price_scale, size_scale
    )
    packed = pack_l2_snapshots(groups.headers(BookEventType.SNAPSHOT), snapshots, placed)
    return EventBlock(TypeId.BOOK_EVENT, packed.buffer, groups.ingest_ts_ns, packed.ends)


def in_book_order(levels: Levels) -> Levels:
    """Return one snapshot's levels without empty ones, best price first on each side.

    If a price occurs twice the later one counts.
    """
    scale = int(levels.price_decimals.max(initial=0))
    prices, _ = scaled(levels.prices, levels.price_decimals, *_whole(len(levels)), scale)
    is_ask = levels.sides == Side.SELL
    rank = np.where(is_ask, prices, U64_MAX - prices)
    order = np.lexsort((np.arange(len(levels)), rank, is_ask))
    same = np.zeros(len(order), dtype=bool)
    same[:-1] = (rank[order][1:] == rank[order][:-1]) & (is_ask[order][1:] == is_ask[order][:-1])
    kept = order[~same]
    return levels.take(kept[levels.sizes[kept] > 0])


def _whole(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if count == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.zeros(1, dtype=np.int64), np.array([count], dtype=np.int64)


def _counts(levels: Levels, groups: Groups) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many levels and how many bids each group has; a group may be empty."""
    total = len(levels)
    counts = np.diff(groups.starts, append=total)
    bids_before = np.zeros(total + 1, dtype=np.int64)
    np.cumsum(levels.sides == Side.BUY, out=bids_before[1:])
    bids: NDArray[np.int64] = bids_before[groups.starts + counts] - bids_before[groups.starts]
    return counts, bids


def scaled(
    values: NDArray[np.uint64],
    decimals: NDArray[np.uint8],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    scale: int | None,
) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Return the values at their group's scale, and that scale.

    The scale is the largest number of decimals in the group unless one is given; then further
    digits are cut off. Values that leave 64 bits saturate.
    """
    if scale is not None:
        scales = np.full(len(starts), scale, dtype=np.uint8)
    else:
        scales = np.zeros(len(starts), dtype=np.uint8)
        filled = counts > 0
        if filled.any():
            scales[filled] = np.maximum.reduceat(decimals, starts[filled])
    shift = np.repeat(scales, counts).astype(np.int16) - decimals
    if not shift.any():
        return values, scales
    up = POWERS_OF_TEN[np.maximum(shift, 0)]
    result: NDArray[np.uint64] = values * up
    lost = values > U64_MAX // up
    if lost.any():
        result[lost] = U64_MAX
    if scale is not None and (shift < 0).any():
        result //= POWERS_OF_TEN[np.maximum(-shift, 0)]
    return result, scales


def _placed(
    levels: Levels,
    groups: Groups,
    counts: NDArray[np.int64],
    bids: NDArray[np.int64],
    price_scale: int | None,
    size_scale: int | None,
) -> tuple[NDArray[np.void], NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the levels as they stand in the events, bids first, and the scales of each event."""
    prices, price_scales = scaled(levels.prices, levels.price_decimals, groups.starts, counts, price_scale)
    sizes, size_scales = scaled(levels.sizes, levels.size_decimals, groups.starts, counts, size_scale)
    places = _places(levels.sides, groups.starts, counts, bids)
    placed = np.empty(len(levels), dtype=LEVEL)
    placed["price"][places], placed["size"][places] = prices, sizes
    return placed, price_scales, size_scales


def _places(
    sides: NDArray[np.uint8],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    bids: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return each level's place: bids of an event before its asks, otherwise in the given order."""
    is_bid = sides == Side.BUY
    bids_before = np.cumsum(is_bid) - is_bid
    index = np.arange(len(sides))
    group_start = np.repeat(starts, counts)
    bids_in_front = bids_before - np.repeat(
        bids_before[np.minimum(starts, max(0, len(sides) - 1))] if len(sides) else starts, counts
    )
    asks_in_front = index - group_start - bids_in_front
    within = np.where(is_bid, bids_in_front, np.repeat(bids, counts) + asks_in_front)
    places: NDArray[np.int64] = group_start + within
    return places
