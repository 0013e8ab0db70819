"""Books and features of a stream of messages, batch by batch: one engine for replays, commands and Spark.

Owns the books and what features and triggers remember of each market between batches, and which market a
trade belongs to. Cutting a stream into batches changes no row. Knows no queue; it is given batches.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market.book_results import NOT_QUEUED, BookResult, EventStatus, Outputs
from everlog.market.book_set import Book, BookSet, BookSettings, Market, MarketResult, order_records
from everlog.market.books import L3Book
from everlog.market.feature_rows import BookRows, Feature, Orders, Step, Trades, book_rows, row_dtype
from everlog.market.packing import PackedRecords, by_key, gather_headers, gather_records
from everlog.market.protocol import (
    L3_RECORD,
    L3_RECORD_BYTES,
    TRADE,
    BookEventType,
    BookFlags,
    L3EventType,
    MessageFlags,
    Side,
    TypeId,
    event_flags,
    folded_hash,
    taker_sides,
)
from everlog.market.triggers import TRADE_MESSAGE, Events, Trigger, fires_at_ends

_TAKER_IS_NAMED: Final = ord("T")
"""`exec_type` of a trade of DBN: its side is the taker's."""


class EventBatch(Protocol):
    """Messages in order, one value per message in each array; a `source` says from which queue each is."""

    @property
    def seq(self) -> NDArray[np.uint64]: ...  # noqa: D102
    @property
    def timestamp_ns(self) -> NDArray[np.uint64]: ...  # noqa: D102
    @property
    def type_id(self) -> NDArray[np.uint16]: ...  # noqa: D102
    @property
    def flags(self) -> NDArray[np.uint16]: ...  # noqa: D102
    @property
    def packed(self) -> PackedRecords: ...  # noqa: D102


class MarketRows(NamedTuple):
    """Features of one market: the rows that one batch gave."""

    market: Market
    rows: NDArray[np.void]
    places: NDArray[np.intp]
    """After which message of the batch each row is."""


class FeatureEngine:
    """The books, features and triggers of all markets of a stream."""

    def __init__(
        self, chosen: Sequence[Feature], settings: BookSettings, fired_by: Trigger, start_ns: int = 0
    ) -> None:
        """Rows begin at `start_ns`; features see everything before it too."""
        self._chosen = tuple(chosen)
        self._fired_by = fired_by
        self._start_ns = np.uint64(start_ns)
        self.dtype = row_dtype(self._chosen)
        self._reads_trades = any(getattr(one, "reads_trades", False) for one in self._chosen)
        self._reads_orders = any(getattr(one, "reads_orders", False) for one in self._chosen)
        depth = max(feature.depth for feature in self._chosen)
        self._want = Outputs(top=True, depth=depth, statuses=True, places=self._reads_orders)
        self._books = BookSet(settings)
        self.faults: Counter[str] = Counter()
        """What is behind the books that makes them less than the venue's."""
        self._markets: dict[Market, _MarketState] = {}
        self._with_id: dict[int, list[Market]] = defaultdict(list)

    @property
    def type_ids(self) -> tuple[int, ...]:
        """The types of the messages that it has to be given."""
        return (TypeId.BOOK_EVENT, TypeId.TRADE) if self._reads_trades else (TypeId.BOOK_EVENT,)

    @property
    def books(self) -> BookSet:
        """The books as they are after the last batch."""
        return self._books

    def begin_with(self, books: BookSet, sources: Mapping[Market, int]) -> None:
        """Go on with these books; features and triggers are shown each of them as it is, without a row.

        `sources` says from which source of the stream each book is.
        """
        self._books = books
        for market, book in books.books.items():
            state = self._state(market, np.array([sources[market]], np.intp), np.zeros(1, np.intp))
            if book.last_ingest_ts_ns:
                rows = _book_as_rows(book, self._want.depth)
                state.begin_with(rows)
                state.table(rows, np.zeros(1, np.bool_))

    def rows(self, some: EventBatch) -> list[MarketRows]:
        """Apply a batch and return the rows that it gives, market by market."""
        kinds, packed = some.type_id, some.packed
        at = np.flatnonzero(kinds == TypeId.BOOK_EVENT)
        of_books = packed if len(at) == len(kinds) else packed.take(at)
        results = self._books.apply_packed(of_books, self._want) if len(at) else {}
        self.faults["gaps"] += len(self._books.channel_gaps) if len(at) else 0
        sources = getattr(some, "source", None)
        parts: dict[Market, _Part] = {}
        if results:
            headers, seq = gather_headers(of_books), some.seq[at]
            flags = event_flags(some.flags[at], headers["flags"])
            for market, result in results.items():
                state = self._state(market, sources, at[result.events])
                parts[market] = self._book_part(state, at, of_books, headers, seq, flags, result)
        if self._reads_trades:
            traded = self._trade_parts(some, np.flatnonzero(kinds == TypeId.TRADE), sources)
            for market in {**parts, **traded}:
                state = self._markets[market]
                parts[market] = state.joined(parts.get(market), traded.get(market))
        found = []
        for market, part in parts.items():
            table, fires = self._markets[market].table(part.rows, part.is_live)
            # A row before the range is none, but sums begin behind it.
            is_shown = (part.rows.events.ingest_ts_ns >= self._start_ns)[fires]
            if is_shown.any():
                found.append(MarketRows(market, table[is_shown], part.places[fires][is_shown]))
        return found

    def _state(self, market: Market, sources: NDArray[np.intp] | None, at: NDArray[np.intp]) -> _MarketState:
        state = self._markets.get(market)
        if state is None:
            state = _MarketState(self._chosen, copy.deepcopy(self._fired_by), self.dtype)
            state.has_orders = isinstance(self._books.books[market], L3Book)
            self._markets[market] = state
            self._with_id[market.market_id].append(market)
        if self._reads_trades:
            state.sources |= {0} if sources is None else set(np.unique(sources[at]).tolist())
        return state

    def _book_part(
        self,
        state: _MarketState,
        at: NDArray[np.intp],
        of_books: PackedRecords,
        headers: NDArray[np.void],
        seq: NDArray[np.uint64],
        flags: NDArray[np.uint16],
        applied: MarketResult,
    ) -> _Part:
        events, result = applied
        of_market = headers[events]
        seen = Events(
            of_market["ingest_ts_ns"].copy(),
            of_market["exchange_ts_ns"].copy(),
            of_market["event_type"].copy(),
            flags[events],
            seq[events],
        )
        rows = book_rows(result, seen)
        if self._reads_trades or self._reads_orders:
            said = _SaidOfOrders(of_books.take(events), result) if state.has_orders else None
            rows = rows._replace(
                trades=_no_trades(len(events)) if said is None else said.trades(),
                orders=_no_orders(len(events)) if said is None else said.orders(),
            )
            state.marks_ends = bool(of_market["flags"][-1] & BookFlags.MARKS_EVENT_ENDS)
        assert result.statuses is not None, "they are asked for"
        self._count_faults(rows, result, result.statuses)
        # After a gap the book is the one that was left behind, not that of the venue.
        return _Part(at[events], rows, result.statuses != EventStatus.QUARANTINED)

    def _count_faults(self, rows: BookRows, result: BookResult, statuses: NDArray[np.uint8]) -> None:
        counts = np.bincount(statuses, minlength=len(EventStatus)).tolist()
        self.faults["unknown_orders"] += counts[EventStatus.UNKNOWN_ORDER]
        self.faults["skipped"] += counts[EventStatus.QUARANTINED] + counts[EventStatus.STALE]
        self.faults["gaps"] += len(result.gaps)
        assert rows.events.flags is not None, "events of books have them"
        is_end = (rows.events.flags & MessageFlags.LAST_OF_EVENT) != 0
        self.faults["crossed"] += int((is_end & rows.has_both & (rows.bid >= rows.ask)).sum())

    def _trade_parts(
        self, some: EventBatch, at: NDArray[np.intp], sources: NDArray[np.intp] | None
    ) -> dict[Market, _TradePart]:
        """Return the trades of each market that has a book of levels; a book of orders tells its own."""
        if not len(at):
            return {}
        trades = gather_records(some.packed.take(at), TRADE)
        of_source = np.zeros(len(at), np.uint64) if sources is None else sources[at].astype(np.uint64)
        keys = of_source << np.uint64(32) | folded_hash(trades["symbol_hash"]).astype(np.uint64)
        chosen: dict[Market, list[NDArray[np.intp]]] = defaultdict(list)
        for key, places in by_key(keys):
            market = self._market_of_trades(key >> 32, key & 0xFFFFFFFF)
            if market is not None and not self._markets[market].has_orders:
                chosen[market].append(places)
        seq, times, flags = some.seq[at], some.timestamp_ns[at], some.flags[at]
        found = {}
        for market, groups in chosen.items():
            mine = np.sort(np.concatenate(groups))
            ends = flags[mine]
            if not self._markets[market].marks_ends:
                ends = ends | np.uint16(MessageFlags.LAST_OF_EVENT)
            of_market = trades[mine]
            events = Events(
                times[mine].astype(np.uint64),
                of_market["timestamp_ns"].copy(),
                np.full(len(mine), TRADE_MESSAGE, np.uint8),
                ends,
                seq[mine],
            )
            columns = Trades(of_market["price"], of_market["qty"], taker_sides(of_market, flags[mine]))
            found[market] = _TradePart(at[mine], events, columns)
        return found

    def _market_of_trades(self, source: int, market_id: int) -> Market | None:
        """Return the market of a symbol: the one there is, or that of the trades' own queue."""
        there = self._with_id.get(market_id, [])
        if len(there) > 1:
            there = [market for market in there if source in self._markets[market].sources]
        if len(there) > 1:
            venues = ", ".join(str(market.venue_id) for market in sorted(there))
            raise InvalidConfig(
                f"market {market_id} of venues {venues} is in one queue, and trades do not name their venue; "
                "choose one of them"
            )
        return there[0] if there else None


class _Part(NamedTuple):
    """Events of one market, and after which messages of the batch its book is that of the venue."""

    places: NDArray[np.intp]
    rows: BookRows
    is_live: NDArray[np.bool_]


class _TradePart(NamedTuple):
    """Trades of one market that are messages of their own."""

    places: NDArray[np.intp]
    events: Events
    trades: Trades

    def after(self, place: int) -> _TradePart:
        """Return those behind a message."""
        keep = self.places > place
        return _TradePart(self.places[keep], self.events.take(keep), Trades(*_taken(self.trades, keep)))


def _book_of(rows: BookRows) -> list[Any]:
    """Return the columns that are the book itself."""
    return list(rows[1:9])


def _taken(columns: Iterable[Any], chosen: NDArray[Any] | slice) -> list[Any]:
    return [column[chosen] for column in columns]


def _concatenated(before: Iterable[Any], columns: Iterable[Any]) -> list[Any]:
    return [np.concatenate(pair) for pair in zip(before, columns, strict=True)]


class _MarketState:
    """The features and the trigger of one market, and its last book, between batches."""

    def __init__(self, chosen: tuple[Feature, ...], trigger: Trigger, dtype: np.dtype[np.void]) -> None:
        self.has_orders = False
        self.marks_ends = False
        self.sources: set[int] = set()
        self._steps: list[Step] = [feature.begin() for feature in chosen]
        self._completes = [one.complete for one in chosen if hasattr(one, "complete")]
        self._trigger = trigger
        self._dtype = dtype
        self._is_summed = [column.is_summed for feature in chosen for column in feature.columns]
        self._rests = [0.0] * len(self._is_summed)
        self._book: list[Any] | None = None
        self._is_live = np.zeros(1, np.bool_)

    def table(self, rows: BookRows, is_live: NDArray[np.bool_]) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
        """Return the rows, and after which events they are."""
        columns = [column for step in self._steps for column in step(rows)]
        fires = fires_at_ends(self._trigger, rows.events) & is_live
        table = np.empty(int(np.count_nonzero(fires)), dtype=self._dtype)
        for place, (name, column) in enumerate(zip(self._dtype.names or (), columns, strict=True)):
            table[name] = self._sums(place, column, fires) if self._is_summed[place] else column[fires]
        for complete in self._completes:
            complete(table)
        return table, fires

    def begin_with(self, rows: BookRows) -> None:
        """Take the book with which the stream begins."""
        self._book, self._is_live = _book_of(rows), np.ones(1, np.bool_)

    def _sums(self, place: int, column: NDArray[Any], fires: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the sum up to each row since the one before, and keep what belongs to the next row."""
        row_of = np.concatenate(([0], np.cumsum(fires) - fires))
        # One value after the other, the rest of the last batch first: cutting into batches changes no bit.
        values = np.concatenate(([self._rests[place]], column))
        sums = np.bincount(row_of, values, int(np.count_nonzero(fires)) + 1)
        self._rests[place] = float(sums[-1])
        return sums[:-1]

    def joined(self, books: _Part | None, traded: _TradePart | None) -> _Part:
        """Return book events and trades in order; the book of a trade is that of the event before it."""
        if self._book is None:
            assert books is not None, "a market begins with a book"
            # There is no book before the first event, and trades before it have none to stand beside.
            traded = None if traded is None else traded.after(int(books.places[0]))
            self._book = _taken(_book_of(books.rows), slice(1))
        before, live_before = self._book, self._is_live
        if books is not None:
            self._book = [column[-1:].copy() for column in _book_of(books.rows)]
            self._is_live = books.is_live[-1:].copy()
        if traded is None or not len(traded.places):
            assert books is not None, "there is one or the other"
            return books
        count = 0 if books is None else len(books.places)
        places = traded.places if books is None else np.concatenate((books.places, traded.places))
        order = np.argsort(places, kind="stable")
        book_of = np.cumsum(order < count)
        columns, is_live, events = before, live_before, traded.events
        trades, orders = traded.trades, _no_orders(len(traded.places))
        if books is not None:
            columns = _concatenated(before, _book_of(books.rows))
            is_live = np.concatenate((live_before, books.is_live))
            events = books.rows.events.joined(events)
            assert books.rows.trades is not None and books.rows.orders is not None, "trades are read"
            trades = Trades(*_concatenated(books.rows.trades, trades))
            orders = Orders(*_concatenated(books.rows.orders, orders))
        said = [Trades(*_taken(trades, order)), Orders(*_taken(orders, order))]
        rows = BookRows(events.take(order), *(_taken(columns, book_of) + said))
        return _Part(places[order], rows, is_live[book_of])


def _book_as_rows(book: Book, depth: int) -> BookRows:
    """Return the book as it is as the one row of a batch."""
    event = Events(
        np.array([book.last_ingest_ts_ns], np.uint64),
        np.array([book.last_exchange_ts_ns], np.uint64),
        np.array([BookEventType.DIFF], np.uint8),
        np.array([MessageFlags.LAST_OF_EVENT], np.uint16),
        np.zeros(1, np.uint64),
    )
    units = (10.0**book.price_scale, 10.0**book.size_scale)
    sides: list[Any] = []
    for levels in book.depth(depth):
        padded = np.zeros((1, depth), levels.dtype)
        padded[0, : len(levels)] = levels
        sides += [padded["price"] / units[0], padded["size"] / units[1]]
    tops = [side[:, 0] for side in sides]
    return BookRows(event, *(tops + sides + [_no_trades(1), _no_orders(1)]))


class _SaidOfOrders:
    """What order-by-order events say of orders and trades."""

    def __init__(self, own: PackedRecords, result: BookResult) -> None:
        self._count = len(own)
        self._at = np.flatnonzero(own.lengths == L3_RECORD_BYTES)
        records = order_records(own.take(self._at)) if len(self._at) else np.zeros(0, L3_RECORD)
        if isinstance(records, PackedRecords):
            records = gather_records(records, L3_RECORD)
        self._events = records["event"]
        self._result = result

    def orders(self) -> Orders:
        """Return the kind and the order of each event, and where the order stands."""
        orders = _no_orders(self._count)
        orders.kind[self._at] = self._events["event_type"]
        orders.order_id[self._at] = self._events["order_id"]
        places = self._result.places
        if places is not None:
            at = np.flatnonzero(places["orders_ahead"] != NOT_QUEUED)
            orders.orders_ahead[at] = places["orders_ahead"][at]
            orders.size_ahead[at] = places["size_ahead"][at] / 10.0**self._result.size_scale
        return orders

    def trades(self) -> Trades:
        """Return what was traded, with the takers' sides."""
        trades = _no_trades(self._count)
        events, is_trade = self._events, self._events["event_type"] == L3EventType.TRADE
        at = self._at[is_trade]
        trades.price[at] = (events["price"] / 10.0 ** events["price_scale"])[is_trade]
        trades.quantity[at] = (events["qty"] / 10.0 ** events["size_scale"])[is_trade]
        trades.side[at] = order_takers(events[is_trade])
        return trades


def order_takers(events: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return the side of the taker of each trade (`protocol.L3_EVENT`) as `Side`.

    Of two orders that are named, the later one took; one alone is the order that rested. Without orders the
    event's own side is the taker's at DBN, and unknown elsewhere.
    """
    bid, ask = events["bid_order_id"], events["ask_order_id"]
    is_named = (bid != 0) | (ask != 0)
    taker = np.where((ask == 0) | ((bid != 0) & (ask > bid)), Side.SELL, Side.BUY)
    own = np.where(events["exec_type"] == _TAKER_IS_NAMED, events["side"], Side.UNKNOWN)
    sides: NDArray[np.uint8] = np.where(is_named, taker, own).astype(np.uint8)
    return sides


def _no_trades(count: int) -> Trades:
    return Trades(np.zeros(count), np.zeros(count), np.zeros(count, np.uint8))


def _no_orders(count: int) -> Orders:
    return Orders(
        np.zeros(count, np.uint8), np.zeros(count, np.uint64), np.full(count, -1.0), np.full(count, -1.0)
    )
