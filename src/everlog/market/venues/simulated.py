"""A simulated venue: order-by-order events, price levels and trades of many symbols, with known truth.

Owns what the order flow (`simulated_orders`) looks like from outside: L3 events, L2 diffs that
gather the changes of a short interval, trades, all in the order of time. Equal settings give equal
events. The truth about every book is known after each block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market.protocol import (
    TRADE,
    L3EventType,
    L3Flags,
    Side,
    TypeId,
    crypto_market_id,
    new_l3_records,
    symbol_hash,
)
from everlog.market.symbols import SymbolDefinition
from everlog.market.venues.interface import EventBlock
from everlog.market.venues.l2_events import Groups, Levels, in_book_order, pack_diffs, pack_snapshots
from everlog.market.venues.registry import venue_id
from everlog.market.venues.simulated_orders import (
    INDEX_BITS,
    LEVEL_BASE,
    LEVELS,
    SPAN_NS_MAX,
    Changes,
    Ints,
    OrderFlow,
    sorted_places,
)

VENUE: Final = "simulated"
KINDS: Final = ("l3", "l2", "trades")
PRICE_SCALE: Final = 2
SIZE_SCALE: Final = 3
L3_STREAM: Final = 1
L2_STREAM: Final = 2
START_NS: Final = 1_704_186_000_000_000_000
"""2024-01-02 09:00 UTC."""
BLOCK_EVENTS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class RestingOrder:
    """One order in the venue's own book; price and quantity are integers at the venue's scales."""

    order_id: int
    side: Side
    price: int
    quantity: int


class SimulatedVenue:
    """Generates the events of all symbols; holds the truth about their books."""

    def __init__(
        self,
        symbols: int | Sequence[str] = 1,
        *,
        seed: int = 0,
        rate: float = 100_000.0,
        start_ns: int = START_NS,
        kinds: Sequence[str] = KINDS,
        resting_orders: int = 200,
        block_events: int | None = None,
        changes_per_diff: int = 8,
    ) -> None:
        """`rate` is changes of orders per simulated second, of all symbols together."""
        names = (
            [f"SIM{number:04d}" for number in range(symbols)] if isinstance(symbols, int) else list(symbols)
        )
        if not names or len(set(names)) != len(names):
            raise InvalidConfig(f"a simulated venue needs symbols, each once; got {names or 'none'}")
        if not rate > 0:
            raise InvalidConfig(f"rate must be above 0, got {rate}")
        if not kinds or not set(kinds) <= set(KINDS):
            raise InvalidConfig(f"kinds are {', '.join(KINDS)}; got {', '.join(kinds) or 'none'}")
        self.symbols = tuple(names)
        self.kinds = frozenset(kinds)
        self.now_ns = self._start_ns = start_ns
        self._flow = OrderFlow(len(names), seed, rate, resting_orders)
        self._interval_ns = min(SPAN_NS_MAX, max(1, round(changes_per_diff * len(names) / rate * 1e9)))
        # Every resting order is looked at once a block, so blocks grow with their number.
        block_events = block_events or max(BLOCK_EVENTS, 2 * resting_orders * len(names))
        span_ns = min(SPAN_NS_MAX, max(64, min(block_events, 1 << (INDEX_BITS - 2))) / rate * 1e9)
        self._intervals = max(1, int(span_ns / self._interval_ns))
        self._totals = np.zeros(len(names) * 2 * LEVELS, dtype=np.int64)
        self._updates = np.zeros(len(names), dtype=np.uint64)
        self._l3_seq = 1
        self._trade_id = 1
        self._market_ids = np.array([crypto_market_id(name) for name in names], dtype=np.uint64)
        self._hashes = np.array([symbol_hash(name) for name in names], dtype=np.uint64)
        self._opened = False

    def definitions(self) -> list[SymbolDefinition]:
        """Return what the symbol catalogue is to know."""
        price, size = float(f"1e-{PRICE_SCALE}"), float(f"1e-{SIZE_SCALE}")
        return [
            SymbolDefinition(
                exchange=VENUE,
                exchange_symbol=symbol,
                tick_size=price,
                lot_size=size,
                price_increment=price,
                amount_increment=size,
                at_ts=self._start_ns // 1000,
            )
            for symbol in self.symbols
        ]

    # -- the truth -----------------------------------------------------------------------

    def orders(self, symbol: str) -> list[RestingOrder]:
        """Return the orders that rest after the blocks taken so far, by id."""
        live = self._flow.live.take(self._flow.live.symbols == self.symbols.index(symbol))
        rows = zip(
            live.ids.tolist(), live.sides.tolist(), live.ticks.tolist(), live.quantities.tolist(), strict=True
        )
        return [
            RestingOrder(number, Side(side), tick, quantity) for number, side, tick, quantity in sorted(rows)
        ]

    def levels(self, symbol: str) -> tuple[dict[int, int], dict[int, int]]:
        """Return bids and asks, price to total size, after the blocks taken so far."""
        totals = self._totals.reshape(-1, 2, LEVELS)[self.symbols.index(symbol)]
        bids, asks = (
            {LEVEL_BASE + level: int(side[level]) for level in np.flatnonzero(side).tolist()}
            for side in totals
        )
        return bids, asks

    # -- the events ----------------------------------------------------------------------

    def blocks(self, events: int | None = None) -> Iterator[EventBlock]:
        """Yield blocks until at least `events` events were yielded; without end if None."""
        yielded = 0
        while events is None or yielded < events:
            for block in self.next_blocks():
                yielded += len(block)
                yield block

    def next_blocks(self) -> list[EventBlock]:
        """Let the venue run for one block of time and return its events in order."""
        blocks = []
        if not self._opened:
            self._opened = True
            changes = self._flow.open(self.now_ns)
            blocks.append(self._l3_block(changes))
            self._level_updates(changes, self.now_ns)
            blocks += self._snapshots()
            self.now_ns += 1
        start, stop = self.now_ns, self.now_ns + self._intervals * self._interval_ns
        blocks.append(self._joined(self._flow.advance(start, stop), start))
        self.now_ns = stop
        return [block for block in blocks if len(block)]

    def _joined(self, changes: Changes, start: int) -> EventBlock:
        """Return every wanted kind of event of these changes as one block."""
        parts = []
        if "l3" in self.kinds:
            parts.append((self._l3_block(changes), 0))
        if "trades" in self.kinds:
            parts.append((self._trade_block(changes), 1))
        if "l2" in self.kinds:
            parts.append((self._diffs(changes, start), 2))
        else:
            self._level_updates(changes, start)  # the truth is kept in any case
        parts = [part for part in parts if len(part[0])]
        if len(parts) == 1:
            return parts[0][0]
        return _interleaved(parts, start)

    def _l3_block(self, changes: Changes) -> EventBlock:
        count = len(changes) if "l3" in self.kinds else 0
        records = new_l3_records(count, venue_id=venue_id(VENUE))
        stamps = changes.times.astype(np.uint64)
        if count == 0:
            return EventBlock(TypeId.BOOK_EVENT, records, stamps[:0])
        orders, rows, kinds = changes.orders, changes.rows, changes.kinds
        ids, sides = orders.ids[rows], orders.sides[rows]
        header, event = records["header"], records["event"]
        header["market_id"] = self._market_ids[orders.symbols[rows]]
        header["stream_id"] = L3_STREAM
        header["ingest_ts_ns"] = header["exchange_ts_ns"] = stamps
        header["seq"] = header["native_seq"] = np.arange(self._l3_seq, self._l3_seq + count)
        self._l3_seq += count
        event["event_type"] = kinds
        event["side"] = sides
        event["price_scale"], event["size_scale"] = PRICE_SCALE, SIZE_SCALE
        event["order_id"] = ids
        bought = (kinds == L3EventType.TRADE) & (sides == Side.BUY)
        sold = (kinds == L3EventType.TRADE) & (sides == Side.SELL)
        event["bid_order_id"], event["ask_order_id"] = ids * bought, ids * sold
        event["flags"] = bought * np.uint32(L3Flags.RAW_HAS_BID_ID) + sold * np.uint32(L3Flags.RAW_HAS_ASK_ID)
        event["price"] = orders.ticks[rows]
        event["qty"] = np.where(kinds == L3EventType.ORDER_MODIFY, changes.rests, changes.amounts)
        return EventBlock(TypeId.BOOK_EVENT, records, stamps)

    def _trade_block(self, changes: Changes) -> EventBlock:
        done = np.flatnonzero(changes.kinds == L3EventType.TRADE)
        rows, orders = changes.rows[done], changes.orders
        trades = np.zeros(len(done), dtype=TRADE)
        stamps = changes.times[done].astype(np.uint64)
        bought = orders.sides[rows] == Side.BUY
        trades["timestamp_ns"] = stamps
        trades["price"] = orders.ticks[rows] / 10.0**PRICE_SCALE
        trades["qty"] = changes.amounts[done] / 10.0**SIZE_SCALE
        trades["trade_id"] = np.arange(self._trade_id, self._trade_id + len(done))
        self._trade_id += len(done)
        trades["buyer_order_id"] = orders.ids[rows] * bought
        trades["seller_order_id"] = orders.ids[rows] * ~bought
        trades["is_buyer_maker"] = bought
        trades["symbol_hash"] = self._hashes[orders.symbols[rows]]
        return EventBlock(TypeId.TRADE, trades, stamps)

    # -- price levels --------------------------------------------------------------------

    def _level_updates(self, changes: Changes, start: int) -> tuple[Ints, Ints, Ints]:
        """Add the changes to the totals; return interval, level and total of every changed level."""
        orders, rows = changes.orders, changes.rows
        cells = (orders.symbols[rows] * 2 + orders.sides[rows] - 1) * LEVELS + orders.ticks[rows] - LEVEL_BASE
        order = sorted_places(cells)
        cells = cells[order]
        deltas = np.where(changes.kinds == L3EventType.ORDER_ADD, changes.amounts, -changes.amounts)[order]
        intervals = ((changes.times - start) // self._interval_ns)[order]
        sums = np.cumsum(deltas)
        first = np.diff(cells, prepend=-1) != 0
        lengths = np.diff(np.flatnonzero(first), append=len(cells))
        before = np.repeat(sums[first] - deltas[first] - self._totals[cells[first]], lengths)
        totals = sums - before
        last = np.append(first[1:], True)[: len(cells)]
        self._totals[cells[last]] = totals[last]
        shown = last | (np.diff(intervals, append=0) != 0)
        return intervals[shown], cells[shown], totals[shown]

    def _diffs(self, changes: Changes, start: int) -> EventBlock:
        """Return one diff per symbol and interval in which something changed."""
        intervals, cells, totals = self._level_updates(changes, start)
        group = intervals * len(self.symbols) + cells // (2 * LEVELS)
        order = np.argsort(group * 2 * LEVELS + cells % (2 * LEVELS))
        group, cells, totals = group[order], cells[order], totals[order]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        symbols = group[starts] % len(self.symbols)
        ids = self._next_updates(symbols)
        stamps = (start + (group[starts] // len(self.symbols) + 1) * self._interval_ns - 1).astype(np.uint64)
        groups = Groups(starts, stamps, stamps, ids, ids, venue_id(VENUE), 0, L2_STREAM)
        groups.market_id = self._market_ids[symbols]
        groups.update_ids = (ids, ids, ids - np.uint64(1))
        return pack_diffs(_levels(cells, totals), groups, PRICE_SCALE, SIZE_SCALE)

    def _next_updates(self, symbols: Ints) -> NDArray[np.uint64]:
        """Return the update ids of diffs in this order: each symbol counts for itself."""
        order = np.argsort(symbols, kind="stable")
        ranks = np.empty(len(symbols), dtype=np.int64)
        first = np.flatnonzero(np.diff(symbols[order], prepend=-1))
        lengths = np.diff(first, append=len(symbols))
        ranks[order] = np.arange(len(symbols)) - np.repeat(first, lengths)
        ids: NDArray[np.uint64] = self._updates[symbols] + ranks.astype(np.uint64) + np.uint64(1)
        self._updates += np.bincount(symbols, minlength=len(self.symbols)).astype(np.uint64)
        return ids

    def _snapshots(self) -> list[EventBlock]:
        """Return every book as it stands."""
        if "l2" not in self.kinds:
            return []
        stamp = np.array([self.now_ns], dtype=np.uint64)
        blocks = []
        for number in range(len(self.symbols)):
            cells = number * 2 * LEVELS + np.flatnonzero(self._totals.reshape(-1, 2 * LEVELS)[number])
            ids = self._next_updates(np.array([number], dtype=np.int64))
            groups = Groups(
                np.zeros(1, dtype=np.int64),
                stamp,
                stamp,
                ids,
                ids,
                venue_id(VENUE),
                int(self._market_ids[number]),
                L2_STREAM,
            )
            levels = in_book_order(_levels(cells, self._totals[cells]))
            blocks.append(pack_snapshots(levels, groups, PRICE_SCALE, SIZE_SCALE))
        return blocks


def _levels(cells: Ints, totals: Ints) -> Levels:
    return Levels(
        (cells % LEVELS + LEVEL_BASE).astype(np.int64),
        np.full(len(cells), PRICE_SCALE, dtype=np.uint8),
        totals.astype(np.uint64),
        np.full(len(cells), SIZE_SCALE, dtype=np.uint8),
        (cells // LEVELS % 2 + 1).astype(np.uint8),
    )


def _interleaved(parts: Sequence[tuple[EventBlock, int]], start: int) -> EventBlock:
    """Join blocks of several kinds in the order of time; at one time the lower rank comes first.

    Payloads stay where they are; only the order in which they are appended is computed.
    """
    stamps = np.concatenate([block.timestamps_ns for block, _ in parts])
    ranks = np.concatenate([np.full(len(block), rank, dtype=np.int64) for block, rank in parts])
    types = np.concatenate([np.full(len(block), block.type_id, dtype=np.uint16) for block, _ in parts])
    sizes = np.concatenate([_sizes(block) for block, _ in parts])
    payloads = np.concatenate([block.payloads.view(np.uint8) for block, _ in parts])
    ends = np.cumsum(sizes)
    order = sorted_places((stamps.astype(np.int64) - start) * 4 + ranks)
    return EventBlock(types[order], payloads, stamps[order], ends[order], starts=(ends - sizes)[order])


def _sizes(block: EventBlock) -> NDArray[np.uint64]:
    if block.ends is None:
        return np.full(len(block), block.payloads.dtype.itemsize, dtype=np.uint64)
    sizes: NDArray[np.uint64] = np.diff(block.ends, prepend=np.uint64(0))
    return sizes
