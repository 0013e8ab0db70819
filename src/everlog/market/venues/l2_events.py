"""Price levels to L2 events: many diffs or snapshots packed at once, without a loop over events.

Owns the choice of scales and the order of levels within an event; `everlog.market.packing` lays out
the bytes. Knows no format: importers bring levels as columns, sorted into groups of one event each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.market.packing import PackedRecords, pack_l2_diffs, pack_l2_snapshots
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
from everlog.native.market.events import place_levels

POWERS_OF_TEN: Final = np.array([10**exponent for exponent in range(19)], dtype=np.int64)
U64_MAX: Final = np.uint64(2**64 - 1)
I64_MIN, I64_MAX = np.int64(-(2**63)), np.int64(2**63 - 1)


@dataclass(slots=True)
class Levels:
    """Price levels as columns: integers, their numbers of decimals, and the side of each."""

    prices: NDArray[np.int64]
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
    marks_event_ends: bool = False
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
        if self.marks_event_ends:
            headers["flags"] |= np.uint16(BookFlags.MARKS_EVENT_ENDS)
        return headers


def pack_diffs(levels: Levels, groups: Groups, price_scale: int | None, size_scale: int | None) -> EventBlock:
    """Return the groups as L2 diffs. No group may have more than 65535 levels a side."""
    placed = _placed(levels, groups, price_scale, size_scale)
    diffs = np.zeros(len(groups.starts), dtype=L2_DIFF)
    if groups.update_ids is not None:
        for name, ids in zip(("first", "last", "previous"), groups.update_ids, strict=True):
            diffs[f"{name}_update_id"] = ids
    diffs["flags"] = BookFlags.ABSOLUTE
    diffs["price_scale"], diffs["size_scale"] = placed.price_scales, placed.size_scales
    headers = groups.headers(BookEventType.DIFF)
    packed = pack_l2_diffs(headers, diffs, placed.levels, placed.bids, placed.asks)
    return _block(packed, groups, levels, placed)


def pack_snapshots(
    levels: Levels, groups: Groups, price_scale: int | None, size_scale: int | None
) -> EventBlock:
    """Return the groups as L2 snapshots; levels must be in book order within their side and not empty."""
    placed = _placed(levels, groups, price_scale, size_scale)
    snapshots = np.zeros(len(groups.starts), dtype=L2_SNAPSHOT)
    snapshots["bid_count"], snapshots["ask_count"] = placed.bids, placed.asks
    snapshots["price_scale"], snapshots["size_scale"] = placed.price_scales, placed.size_scales
    packed = pack_l2_snapshots(groups.headers(BookEventType.SNAPSHOT), snapshots, placed.levels)
    return _block(packed, groups, levels, placed)


def _block(packed: PackedRecords, groups: Groups, levels: Levels, placed: _Placed) -> EventBlock:
    most = int(levels.price_decimals.max(initial=0)), int(levels.size_decimals.max(initial=0))
    return EventBlock(
        TypeId.BOOK_EVENT,
        packed.buffer,
        groups.ingest_ts_ns,
        packed.ends,
        saturated=placed.saturated,
        cut=placed.cut,
        scales=most,
    )


def in_book_order(levels: Levels) -> Levels:
    """Return one snapshot's levels without empty ones, best price first on each side.

    If a price occurs twice the later one counts.
    """
    scale = int(levels.price_decimals.max(initial=0))
    prices = _at_scale(levels.prices, levels.price_decimals, scale)
    is_ask = levels.sides == Side.SELL
    rank = np.where(is_ask, prices, ~prices)
    order = np.lexsort((np.arange(len(levels)), rank, is_ask))
    same = np.zeros(len(order), dtype=bool)
    same[:-1] = (rank[order][1:] == rank[order][:-1]) & (is_ask[order][1:] == is_ask[order][:-1])
    kept = order[~same]
    return levels.take(kept[levels.sizes[kept] > 0])


def _at_scale(prices: NDArray[np.int64], decimals: NDArray[np.uint8], scale: int) -> NDArray[np.int64]:
    """Return the prices with `scale` decimals, none of which has more; those that leave 64 bits saturate."""
    factors = POWERS_OF_TEN[scale - decimals]
    result: NDArray[np.int64] = prices * factors
    result[prices > I64_MAX // factors] = I64_MAX
    result[prices < -(I64_MAX // factors)] = I64_MIN
    return result


class _Placed(NamedTuple):
    """Levels as they stand in the events, bids first, and what each event has of them."""

    levels: NDArray[np.void]
    bids: NDArray[np.int64]
    asks: NDArray[np.int64]
    price_scales: NDArray[np.uint8]
    size_scales: NDArray[np.uint8]
    saturated: int
    cut: int


def _placed(levels: Levels, groups: Groups, price_scale: int | None, size_scale: int | None) -> _Placed:
    """Put the levels of each group, which may be empty, in the order and at the scales of its event.

    A scale is the largest number of decimals in the group unless one is given; then further digits are cut
    off and counted. Values that leave 64 bits saturate.
    """
    starts = np.ascontiguousarray(groups.starts, dtype=np.int64)
    placed = np.empty(len(levels), dtype=LEVEL)
    bids = np.empty(len(starts), dtype=np.int64)
    price_scales, size_scales = np.empty(len(starts), dtype=np.uint8), np.empty(len(starts), dtype=np.uint8)
    place_levels(
        np.ascontiguousarray(levels.prices),
        np.ascontiguousarray(levels.price_decimals),
        np.ascontiguousarray(levels.sizes),
        np.ascontiguousarray(levels.size_decimals),
        np.ascontiguousarray(levels.sides),
        starts,
        -1 if price_scale is None else price_scale,
        -1 if size_scale is None else size_scale,
        placed.view(np.uint64).reshape(len(levels), 2),
        bids,
        price_scales,
        size_scales,
    )
    asks = np.diff(starts, append=len(levels)) - bids
    is_end = (placed["price"] == I64_MAX) | (placed["price"] == I64_MIN)
    saturated = int(is_end.sum() + (placed["size"] == U64_MAX).sum())
    cut = _cut(levels.prices, levels.price_decimals, price_scale)
    cut += _cut(levels.sizes, levels.size_decimals, size_scale)
    return _Placed(placed, bids, asks, price_scales, size_scales, saturated, cut)


def _cut(values: NDArray[Any], decimals: NDArray[np.uint8], scale: int | None) -> int:
    """Return how many values have digits other than 0 that the scale does not keep."""
    if scale is None or not len(values) or int(decimals.max()) <= scale:
        return 0
    lost = POWERS_OF_TEN.astype(values.dtype)[np.maximum(decimals.astype(np.int64) - scale, 0)]
    return int((values % lost != 0).sum())
