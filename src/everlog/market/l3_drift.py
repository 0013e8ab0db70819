"""An order-by-order book beside the snapshots of its venue: where they differ, and how much.

Owns the comparison and the cut of a batch at its snapshots. A snapshot of price levels (L2) says what the
venue thinks the book is; a book of single orders is never replaced by it, only compared. Changes no book.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from everlog.errors import Corrupt, Unsupported
from everlog.market.book_results import DRIFT, BookResult, Outputs
from everlog.market.decimals import MAX_SCALE
from everlog.market.packing import PackedRecords, gather_headers
from everlog.market.protocol import (
    BOOK_EVENT_HEADER,
    HEADER_BYTES,
    L2_SNAPSHOT,
    L3_RECORD,
    L3_RECORD_BYTES,
    LEVEL,
    BookEventType,
    BookMode,
)

_ALIGNED_BYTES: Final = 64

Levels = dict[int, int]
"""Sizes by price."""


class Drift(NamedTuple):
    """How a book differs from a snapshot, in levels, within the prices that the snapshot covers."""

    missing: int
    """Levels of the snapshot that the book does not have."""
    extra: int
    """Levels of the book that the snapshot does not have."""
    changed: int
    """Levels of both with another size."""


class _Book(Protocol):
    """What is needed of a book."""

    @property
    def price_scale(self) -> int: ...
    @property
    def size_scale(self) -> int: ...
    @property
    def quarantined(self) -> bool: ...
    def depth(self, count: int) -> tuple[NDArray[np.void], NDArray[np.void]]: ...


def drift_from_snapshot(book: _Book, payload: NDArray[np.uint8]) -> Drift:
    """Compare a book with an L2 snapshot event; a side that the snapshot leaves empty is not compared."""
    body, levels = _snapshot(payload)
    price_scale = max(book.price_scale, int(body["price_scale"]))
    size_scale = max(book.size_scale, int(body["size_scale"]))
    scales = price_scale - int(body["price_scale"]), size_scale - int(body["size_scale"])
    of_book = price_scale - book.price_scale, size_scale - book.size_scale
    bids = int(body["bid_count"])
    missing = extra = changed = 0
    for side, given in enumerate((levels[:bids], levels[bids:])):
        wanted = _sizes(given, *scales)
        if not wanted:
            continue
        worst = min(wanted) if side == 0 else max(wanted)
        kept = _covered(book, side, worst, len(wanted), of_book)
        missing += len(wanted.keys() - kept.keys())
        extra += len(kept.keys() - wanted.keys())
        changed += sum(kept[price] != size for price, size in wanted.items() if price in kept)
    return Drift(missing, extra, changed)


def apply_with_drift(
    book: _Book,
    packed: PackedRecords,
    want: Outputs,
    apply: Callable[[PackedRecords, Outputs], BookResult],
) -> BookResult:
    """Apply a batch of L3 events and L2 snapshots; each snapshot is compared with the book at its place.

    In all other outputs a snapshot is an event that changes nothing.
    """
    rows = _snapshot_rows(packed)
    if len(rows) == 0:
        return apply(packed, want)
    quiet = _without_snapshots(packed, rows)
    # Rows are counted from the start of the batch, not of a part: every event gets one, some are kept.
    each = replace(want, every=1)
    parts: list[BookResult] = []
    found: list[tuple[int, ...]] = []
    begun = 0
    for row in [*rows.tolist(), len(packed)]:
        stop = min(row + 1, len(packed))
        if stop > begun:
            parts.append(apply(quiet.take(np.arange(begun, stop)), each))
        if row < len(packed) and not book.quarantined:
            start, length = int(packed.offsets[row]), int(packed.lengths[row])
            drift = drift_from_snapshot(book, packed.buffer[start : start + length])
            if any(drift):
                found.append((row, *drift))
        begun = stop
    drifts = np.zeros(len(found), dtype=DRIFT)
    for name, column in zip(("index", *Drift._fields), zip(*found, strict=True), strict=False):
        drifts[name] = column
    return _thinned(replace(_joined(parts), drifts=drifts), want.every)


def _snapshot_rows(packed: PackedRecords) -> NDArray[np.intp]:
    # What is too short for a header is left to the book, which refuses it with its index.
    whole = np.flatnonzero(packed.lengths >= HEADER_BYTES)
    headers = gather_headers(packed.take(whole))
    chosen = (headers["book_mode"] == BookMode.L2) & (headers["event_type"] == BookEventType.SNAPSHOT)
    rows: NDArray[np.intp] = whole[chosen]
    return rows


def _without_snapshots(packed: PackedRecords, rows: NDArray[np.intp]) -> PackedRecords:
    """Return the batch with a heartbeat of the same time in the place of each snapshot."""
    fillers = np.zeros(len(rows), dtype=L3_RECORD)
    fillers["header"] = gather_headers(packed.take(rows))
    header = fillers["header"]
    header["event_type"], header["book_mode"] = BookEventType.HEARTBEAT, BookMode.L3
    header["record_len"], header["seq"] = L3_RECORD_BYTES, 0
    # Only the part of a segment that the batch lies in is copied, and records stay where words begin.
    first = int(packed.offsets.min()) // _ALIGNED_BYTES * _ALIGNED_BYTES
    part = packed.buffer[first : int(packed.ends.max())]
    start = -(-len(part) // _ALIGNED_BYTES) * _ALIGNED_BYTES
    buffer = np.zeros(start + fillers.nbytes, dtype=np.uint8)
    buffer[: len(part)] = part
    buffer[start:] = fillers.view(np.uint8)
    offsets, lengths = packed.offsets - np.uint64(first), packed.lengths.copy()
    offsets[rows] = start + L3_RECORD_BYTES * np.arange(len(rows), dtype=np.uint64)
    lengths[rows] = L3_RECORD_BYTES
    return PackedRecords(buffer, offsets, lengths)


def _joined(parts: Sequence[BookResult]) -> BookResult:
    # Halves of halves: one part after the other would copy the first rows again and again.
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return _joined(parts[:middle]).joined(_joined(parts[middle:]))


def _thinned(result: BookResult, every: int) -> BookResult:
    if every == 1:
        return result
    kept: dict[str, Any] = {
        name: None if getattr(result, name) is None else getattr(result, name)[every - 1 :: every]
        for name in ("top", "bids", "asks", "bid_orders", "ask_orders")
    }
    return replace(result, **kept)


def _snapshot(payload: NDArray[np.uint8]) -> tuple[np.void, NDArray[np.void]]:
    head_bytes = HEADER_BYTES + L2_SNAPSHOT.itemsize
    if len(payload) < head_bytes:
        raise Corrupt(f"an L2 snapshot has at least {head_bytes} bytes, this one {len(payload)}")
    header = payload[:HEADER_BYTES].copy().view(BOOK_EVENT_HEADER)[0]
    if header["event_type"] != BookEventType.SNAPSHOT or header["book_mode"] != BookMode.L2:
        raise Unsupported(
            "a book of orders can only be compared with an L2 snapshot; this event is of another kind"
        )
    body = payload[HEADER_BYTES:head_bytes].copy().view(L2_SNAPSHOT)[0]
    if max(body["price_scale"], body["size_scale"]) > MAX_SCALE:
        raise Unsupported(f"the snapshot has a scale above {MAX_SCALE}")
    levels = payload[head_bytes:]
    count = int(body["bid_count"]) + int(body["ask_count"])
    if len(levels) != count * LEVEL.itemsize:
        raise Corrupt(f"the L2 snapshot counts {count} levels and has {len(levels)} bytes for them")
    return body, levels.copy().view(LEVEL)


def _sizes(levels: NDArray[np.void], price_decimals: int, size_decimals: int) -> Levels:
    """Return the sizes that are not 0, by price, with so many further decimals."""
    prices, sizes = levels["price"].tolist(), levels["size"].tolist()
    return {
        price * 10**price_decimals: size * 10**size_decimals
        for price, size in zip(prices, sizes, strict=True)
        if size
    }


def _covered(book: _Book, side: int, worst: int, count: int, decimals: tuple[int, int]) -> Levels:
    """Return the book's levels up to the worst price of a snapshot."""
    while True:
        levels = book.depth(count)[side]
        sizes = _sizes(levels, *decimals)
        beyond = [price for price in sizes if (price < worst if side == 0 else price > worst)]
        if beyond or len(levels) < count:
            return {price: size for price, size in sizes.items() if price not in set(beyond)}
        count *= 2
