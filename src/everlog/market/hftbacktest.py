"""Events in the format of hftbacktest 2: one market's book and trades as an array, and as `.npz`.

Owns what a trade and an event of levels become, and the order of rows. Depth is absolute: a level that a
snapshot or a reset takes away becomes a change to size 0. Both times are nanoseconds; what has no time of the
exchange has that of receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig, Unsupported
from everlog.market.book_set import Market
from everlog.market.books import GapPolicy, L2Book
from everlog.market.hftbacktest_orders import OrderRows
from everlog.market.hftbacktest_rows import (
    DEPTH_EVENT,
    DEPTH_SNAPSHOT_EVENT,
    EVENT,
    EXCH_EVENT,
    LOCAL_EVENT,
    SIDE_FLAGS,
    TRADE_EVENT,
)
from everlog.market.merge import MergedBatch
from everlog.market.opened import from_books
from everlog.market.packing import PackedRecords, gather_headers
from everlog.market.protocol import (
    HEADER_BYTES,
    LEVEL,
    TRADE,
    BookEventType,
    BookFlags,
    BookMode,
    Side,
    TypeId,
    taker_sides,
)
from everlog.market.replay import Replay
from everlog.market.views import BookEventView, L2DiffView

_SIDES: Final = np.array(SIDE_FLAGS, np.uint64)


def to_hftbacktest(
    replays: Sequence[Replay], *, advance: Callable[[int], object] = lambda rows: None
) -> NDArray[np.void]:
    """Return the book events and the trades of one market, which the replays must be of, as an array.

    A time range begins with the book of its start. Raises SnapshotGap if that one is unknown.
    `advance` is told how many rows each step has made.
    """
    converter, parts = _Converter(), []
    for batch in from_books(replays):
        parts.append(converter.rows(batch))
        advance(len(parts[-1]))
    rows = np.concatenate([np.zeros(0, EVENT), *parts])
    return _ordered(rows)


def write_npz(
    replays: Sequence[Replay], path: str, *, advance: Callable[[int], object] = lambda rows: None
) -> int:
    """Write what `to_hftbacktest` returns to a file that hftbacktest loads; return how many rows it has."""
    rows = to_hftbacktest(replays, advance=advance)
    with open(path, "wb") as file:
        np.savez_compressed(file, data=rows)
    return len(rows)


class _Converter:
    """Remembers the market and its book from batch to batch."""

    def __init__(self) -> None:
        self._market: Market | None = None
        self._symbols: set[int] = set()
        self._book = L2Book(gap_policy=GapPolicy.IGNORE)
        self._orders: OrderRows | None = None

    def rows(self, batch: MergedBatch) -> NDArray[np.void]:
        """Return the rows of a batch, in its order."""
        is_book = (batch.type_id == TypeId.BOOK_EVENT) & (batch.packed.lengths >= HEADER_BYTES)
        is_trade = (batch.type_id == TypeId.TRADE) & (batch.packed.lengths == TRADE.itemsize)
        places, parts = self._book_rows(batch, np.flatnonzero(is_book))
        # A book of orders tells its own trades.
        trades = np.flatnonzero(is_trade) if self._orders is None else np.zeros(0, np.intp)
        rows = np.concatenate([*parts, self._trade_rows(batch, trades)])
        order = np.argsort(np.concatenate([places, trades]), kind="stable")
        found: NDArray[np.void] = rows[order]
        return found

    def _trade_rows(self, batch: MergedBatch, chosen: NDArray[np.intp]) -> NDArray[np.void]:
        packed = batch.packed.take(chosen)
        places = packed.offsets.astype(np.int64)[:, None] + np.arange(TRADE.itemsize)
        trades = packed.buffer[places].reshape(-1).view(TRADE)
        self._symbols |= set(np.unique(trades["symbol_hash"]).tolist())
        if len(self._symbols) > 1:
            raise InvalidConfig("the trades are of several symbols; choose one with --symbols")
        rows = np.zeros(len(trades), EVENT)
        rows["ev"] = TRADE_EVENT | _SIDES[taker_sides(trades, batch.flags[chosen])]
        rows["local_ts"] = batch.timestamp_ns[chosen]
        rows["exch_ts"] = np.where(trades["timestamp_ns"] == 0, rows["local_ts"], trades["timestamp_ns"])
        rows["px"], rows["qty"] = trades["price"], trades["qty"]
        return rows

    def _book_rows(
        self, batch: MergedBatch, chosen: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], list[NDArray[np.void]]]:
        """Return for each row which message it is of, and the rows."""
        packed = batch.packed.take(chosen)
        headers = gather_headers(packed)
        self._check(headers)
        local = batch.timestamp_ns[chosen].astype(np.int64).tolist()
        exchange = headers["exchange_ts_ns"].astype(np.int64).tolist()
        if self._orders is not None:
            stamps = np.where(headers["exchange_ts_ns"] == 0, local, exchange).astype(np.int64)
            counts, table = self._orders.rows(packed, stamps)
            table["local_ts"] = np.repeat(local, counts)
            return np.repeat(chosen, counts), [table]
        parts: list[NDArray[np.void]] = [np.zeros(0, EVENT)]
        sizes: list[int] = []
        kinds = headers["event_type"].tolist()
        resets = (headers["flags"] & BookFlags.RESETS) != 0
        for place, (kind, empties) in enumerate(zip(kinds, resets.tolist(), strict=True)):
            rows = self._event_rows(packed, place, kind, is_anew=empties or kind != BookEventType.DIFF)
            rows["local_ts"], rows["exch_ts"] = local[place], exchange[place] or local[place]
            parts.append(rows)
            sizes.append(len(rows))
        return np.repeat(chosen, sizes), parts

    def _event_rows(self, packed: PackedRecords, place: int, kind: int, *, is_anew: bool) -> NDArray[np.void]:
        """Return the changes of levels that one event makes; `is_anew`: also those that are gone then."""
        start, length = int(packed.offsets[place]), int(packed.lengths[place])
        payload = packed.buffer[start : start + length].data
        if kind == BookEventType.HEARTBEAT:
            return np.zeros(0, EVENT)
        if not is_anew:
            body = BookEventView(payload).body
            assert isinstance(body, L2DiffView)
            if body.flags & BookFlags.DELTA:
                raise Unsupported("sizes of L2 diffs that are differences cannot be exported to hftbacktest")
            levels = np.frombuffer(payload, LEVEL, offset=length - (body.bid_count + body.ask_count) * 16)
            units = (10.0**body.price_scale, 10.0**body.size_scale)
            self._book.apply(payload)
            return _levels(DEPTH_EVENT, levels, body.bid_count, units)
        before = [set(levels["price"].tolist()) for levels in self._sides()]
        scale = self._book.price_scale
        self._book.apply(payload)
        parts = []
        for side, (old, levels) in enumerate(zip(before, self._sides(), strict=True)):
            factor = 10 ** (self._book.price_scale - scale)
            gone = sorted({price * factor for price in old} - set(levels["price"].tolist()))
            cleared = np.zeros(len(gone), LEVEL)
            cleared["price"] = gone
            units = (10.0**self._book.price_scale, 10.0**self._book.size_scale)
            parts.append(_levels(DEPTH_EVENT, cleared, 0 if side else len(gone), units))
            parts.append(_levels(DEPTH_SNAPSHOT_EVENT, levels, 0 if side else len(levels), units))
        return np.concatenate(parts)

    def _sides(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        return self._book.bids(), self._book.asks()

    def _check(self, headers: NDArray[np.void]) -> None:
        """Refuse levels among orders, and a second market."""
        modes = np.unique(headers["book_mode"]).tolist()
        if self._market is None and modes == [BookMode.L3]:
            self._orders = OrderRows()
        if any(mode != (BookMode.L2 if self._orders is None else BookMode.L3) for mode in modes):
            raise InvalidConfig(
                "these are events of levels and of single orders; a file of hftbacktest has one of them"
            )
        keys = headers["venue_id"].astype(np.uint64) << np.uint64(32) | headers["market_id"]
        for key in np.unique(keys).tolist():
            market = Market(key >> 32, key & 0xFFFFFFFF)
            if self._market is None:
                self._market = market
            if market != self._market:
                raise InvalidConfig(
                    f"a file of hftbacktest is of one market, here are {self._market[1]} and {market[1]}; "
                    "choose one with --symbols, as `everlog symbols ls` of the queue names them"
                )


def _levels(kind: int, levels: NDArray[np.void], bids: int, units: tuple[float, float]) -> NDArray[np.void]:
    """Return rows of levels, of which the first are bids."""
    rows = np.zeros(len(levels), EVENT)
    rows["ev"] = kind | np.where(np.arange(len(levels)) < bids, _SIDES[Side.BUY], _SIDES[Side.SELL])
    rows["px"], rows["qty"] = levels["price"] / units[0], levels["size"] / units[1]
    return rows


def _ordered(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Return rows so that both the exchange and the receiver find theirs in the order of their times.

    A row is for both as long as the times of the exchange rise, else there is one for each of them.
    """
    if (np.diff(rows["exch_ts"]) >= 0).all() and (np.diff(rows["local_ts"]) >= 0).all():
        rows["ev"] |= np.uint64(EXCH_EVENT | LOCAL_EVENT)
        return rows
    of_exchange, of_receiver = rows.copy(), rows.copy()
    of_exchange["ev"] |= np.uint64(EXCH_EVENT)
    of_receiver["ev"] |= np.uint64(LOCAL_EVENT)
    both = np.concatenate([of_exchange, of_receiver])
    times = np.concatenate([of_exchange["exch_ts"], of_receiver["local_ts"]])
    ordered: NDArray[np.void] = both[np.argsort(times, kind="stable")]
    return ordered
