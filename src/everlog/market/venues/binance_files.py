"""Public data files of Binance: `trades`, `aggTrades`, `bookDepth` and `klines`.

Owns the meaning of their columns. Files of spot have no header; those of futures have one. The exchange's
time is the only one there is, in milliseconds, or microseconds in files of spot since 2025.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidSource
from everlog.market.protocol import (
    BAR,
    TRADE,
    MessageFlags,
    Side,
    TypeId,
    crypto_market_id,
    symbol_hash,
)
from everlog.market.venues.archives import Member
from everlog.market.venues.csv_blocks import CHOICE, DECIMAL, PRICE, UNSIGNED, Column, CsvReader, RowBlock
from everlog.market.venues.interface import EventBlock, ImportContext, agree
from everlog.market.venues.l2_events import Groups, Levels, pack_snapshots
from everlog.market.venues.registry import venue_id
from everlog.market.venues.tardis import as_floats

_NAME: Final = re.compile(
    r"(?P<symbol>[A-Za-z0-9_]+)-(?P<kind>trades|aggTrades|bookDepth|\d+(?:s|m|h|d|w|mo))"
    r"-(?P<date>\d{4}-\d{2}(?:-\d{2})?)"
)
SPOT, FUTURES = "binance", "binance-futures"
MICROSECONDS_FROM: Final = np.uint64(10**14)
"""Times from here on are microseconds: as milliseconds it would be the year 5138."""
LATEST: Final = np.uint64(9 * 10**15)
"""Microseconds of the year 2255."""
NS_PER_US, NS_PER_MS = np.uint64(1000), np.uint64(1_000_000)
GAPS_NOTED: Final = 10
_TRUTHS: Final = (("true", 1), ("false", 0), ("True", 1), ("False", 0), ("TRUE", 1), ("FALSE", 0))
_TRADES: Final = ("id", "price", "qty", "quote_qty", "time", "is_buyer_maker", "is_best_match")
_AGGREGATES: Final = (
    *("agg_trade_id", "price", "quantity", "first_trade_id", "last_trade_id", "transact_time"),
    *("is_buyer_maker", "is_best_match"),
)
KLINES: Final = (
    *("open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume", "count"),
    *("taker_buy_volume", "taker_buy_quote_volume", "ignore"),
)


class _File(NamedTuple):
    """What the name of a file, the command and its first line say."""

    reader: CsvReader
    venue: str
    symbol: str
    date: str


def _open(member: Member, context: ImportContext, names: Sequence[str], stream: str) -> _File:
    """Open a file with or without a header; only spot has as many columns as `names`, or no header."""
    start = member.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    has_header = start[:1].isalpha()
    columns = member.peek(1 << 12).partition(b"\n")[0].count(b",") + 1
    reader = CsvReader(member, context.rejects, None if has_header else names[:columns])
    is_spot = not has_header if names is KLINES else columns == len(names)
    symbol, date = _named(member, context)
    venue = context.options.venue or (SPOT if is_spot else FUTURES)
    context.tally.name(venue=venue, symbol=symbol, date=date, stream=stream)
    return _File(reader, venue, symbol, date)


def _named(member: Member, context: ImportContext) -> tuple[str, str]:
    """Return symbol and day, or the first day of the month, as the name and the command say."""
    found = _NAME.match(member.name)
    symbol = context.options.symbol or (found["symbol"] if found else None)
    if symbol is None:
        raise InvalidSource(
            f"{member.label}: its name does not begin like BTCUSDT-trades-2024-01-02; pass --symbol",
            member.label,
        )
    if found is not None:
        agree("symbol", found["symbol"], context.options.symbol, member.label)
    date = context.options.date or (found["date"] if found else "")
    return symbol, f"{date}-01" if len(date) == len("2024-01") else date


def _timed(block: RowBlock, column: str, context: ImportContext) -> RowBlock:
    """Refuse rows whose time, in nanoseconds, would not fit into 64 bits."""
    return block.refuse(block.values[column] >= LATEST, f"{column} is no time of our age", context.rejects)


def _ns(times: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return times * np.where(times >= MICROSECONDS_FROM, NS_PER_US, NS_PER_MS)


class _Numbers:
    """Watches ids that rise by one from row to row."""

    def __init__(self, column: str, label: str, context: ImportContext, *, is_dense: bool = True) -> None:
        self._column = column
        self._label = label
        self._context = context
        self._is_dense = is_dense
        self._last: int | None = None

    def checked(self, block: RowBlock) -> RowBlock:
        """Refuse, or count, rows whose id goes back or is there twice; count holes."""
        ids = block.values[self._column]
        if not len(ids):
            return block
        before = ids[0] if self._last is None else np.uint64(self._last + 1)
        latest = np.maximum.accumulate(np.concatenate(([before], ids + np.uint64(1))))[:-1]
        goes_back = ids < latest
        self._last = max(int(latest[-1]) - 1, int(ids[-1]))
        tally = self._context.tally
        if goes_back.any():
            if self._context.options.allow_unordered:
                tally.unordered += int(goes_back.sum())
            else:
                reason = (
                    f"{self._column} goes back: rows are out of order or there twice; --allow-unordered "
                    "keeps them"
                )
                block = block.refuse(goes_back, reason, self._context.rejects)
                latest = latest[~goes_back]
        if self._is_dense:
            self._note_holes(block, latest)
        tally.rows += len(block)
        return block

    def _note_holes(self, block: RowBlock, expected: NDArray[np.uint64]) -> None:
        tally, ids = self._context.tally, block.values[self._column]
        for row in np.flatnonzero(ids > expected).tolist():
            tally.gaps += 1
            if tally.gaps <= GAPS_NOTED:
                tally.notes.append(
                    f"{self._label}:{block.lines[row]}: {self._column} {ids[row]} follows {expected[row] - 1}"
                )


class BinanceTrades:
    """Importer of `trades` files."""

    name = "binance-trades"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield one trade a row, each an event by itself as on the exchange's stream."""
        for member in members:
            yield from _trades(member, context, _TRADES, ("id", "price", "qty", "time"))


class BinanceAggTrades:
    """Importer of `aggTrades` files."""

    name = "binance-agg-trades"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield one trade a row: what one order took at one price, with the aggregate's id."""
        for member in members:
            yield from _trades(
                member, context, _AGGREGATES, ("agg_trade_id", "price", "quantity", "transact_time")
            )


def _trades(
    member: Member, context: ImportContext, names: Sequence[str], wanted: tuple[str, str, str, str]
) -> Iterator[EventBlock]:
    number, price, size, time = wanted
    file = _open(member, context, names, "trades")
    columns = [
        Column(number, UNSIGNED),
        Column(price, PRICE),
        Column(size, DECIMAL),
        Column(time, UNSIGNED),
        Column("is_buyer_maker", CHOICE, choices=_TRUTHS),
    ]
    order, symbol = _Numbers(number, member.label, context), symbol_hash(file.symbol)
    for rows in file.reader.blocks(columns):
        block = order.checked(_timed(rows, time, context))
        trades = np.zeros(len(block), dtype=TRADE)
        trades["timestamp_ns"] = stamps = _ns(block.values[time])
        trades["price"] = as_floats(block.values[price].view(np.int64), block.extras[price])
        trades["qty"] = as_floats(block.values[size], block.extras[size])
        trades["trade_id"] = block.values[number]
        trades["is_buyer_maker"] = block.extras["is_buyer_maker"]
        trades["symbol_hash"] = symbol
        scales = int(block.extras[price].max(initial=0)), int(block.extras[size].max(initial=0))
        yield EventBlock(TypeId.TRADE, trades, stamps, scales=scales)


class BinanceKlines:
    """Importer of `klines` files."""

    name = "binance-klines"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield one bar a row; its message has the time of its end, when it is known."""
        for member in members:
            file = _open(member, context, KLINES, "bars")
            prices = [Column(name, PRICE) for name in ("open", "high", "low", "close")]
            sizes = [Column(name, DECIMAL) for name in ("volume", "quote_volume", "taker_buy_volume")]
            numbers = [Column(name, UNSIGNED) for name in ("open_time", "close_time", "count")]
            order = _Numbers("open_time", member.label, context, is_dense=False)
            for rows in file.reader.blocks([*prices, *sizes, *numbers]):
                timed = _timed(_timed(rows, "open_time", context), "close_time", context)
                yield _bars(order.checked(timed), symbol_hash(file.symbol), prices, sizes)


def _bars(block: RowBlock, symbol: int, prices: Sequence[Column], sizes: Sequence[Column]) -> EventBlock:
    bars = np.zeros(len(block), dtype=BAR)
    bars["start_ns"] = _ns(block.values["open_time"])
    # The file names the last instant of the bar, in the unit of its times.
    closing = block.values["close_time"]
    bars["end_ns"] = ends = _ns(closing + np.uint64(1))
    for column in prices:
        values = block.values[column.name].view(np.int64)
        bars[column.name] = as_floats(values, block.extras[column.name])
    for column in sizes:
        bars[column.name] = as_floats(block.values[column.name], block.extras[column.name])
    bars["trade_count"] = block.values["count"]
    bars["symbol_hash"] = symbol
    return EventBlock(TypeId.BAR, bars, ends)


# --- bookDepth -------------------------------------------------------------------------------------------

BANDS_SCALE: Final = 8
"""Decimals of the average prices of bands, which are quotients."""
EARLIEST_YEAR, LATEST_YEAR = 1970, 2255
LARGEST: Final = 10**10
"""Larger depths would not fit into 64 bits with their decimals."""
_DEPTH: Final = ("timestamp", "percentage", "depth", "notional")


class BinanceBookDepth:
    """Importer of `bookDepth` files: what stands within 1 to 5 percent of the mid, twice a minute."""

    name = "binance-book-depth"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield one L2 snapshot a timestamp; a level is what lies between two percentages.

        Its size is the difference of the depths, its price the average: the difference of the notionals
        divided by that. So sums of levels are the file's own depths.
        """
        for member in members:
            symbol, date = _named(member, context)
            venue = context.options.venue or FUTURES
            context.tally.name(venue=venue, symbol=symbol, date=date, stream="l2")
            for block in _snapshots(_depth_rows(member, context), context, venue, symbol):
                block.scales = None
                yield block


class _Depth(NamedTuple):
    """One row."""

    time_ns: int
    percentage: Decimal
    depth: Decimal
    notional: Decimal


def _depth_rows(member: Member, context: ImportContext) -> Iterator[_Depth]:
    """Yield the sound rows in order."""
    columns: list[str] = []
    latest, seen = 0, set[Decimal]()
    for number, line in member.lines():
        text = line.decode("utf-8", "backslashreplace").lstrip("\ufeff").strip()
        if not text:
            continue
        fields = [field.strip() for field in text.split(",")]
        if not columns:
            columns = fields if fields[0].isalpha() else list(_DEPTH)
            if set(_DEPTH) - set(columns):
                raise InvalidSource(f"{member.label}:1: columns are {', '.join(_DEPTH)}", member.label, 1)
            if columns == fields:
                continue
        try:
            row = _depth_row(dict(zip(columns, fields, strict=True)))
        except (ValueError, InvalidOperation) as error:
            context.rejects.reject(member.label, number, f"no row of depth: {error}", text)
            continue
        if row.time_ns > latest:
            latest, seen = row.time_ns, set()
        elif row.time_ns < latest or row.percentage in seen:
            if not context.options.allow_unordered:
                reason = "timestamp goes back or the percentage is there twice; --allow-unordered keeps it"
                context.rejects.reject(member.label, number, reason, text)
                continue
            context.tally.unordered += 1
        seen.add(row.percentage)
        context.tally.rows += 1
        yield row


def _depth_row(fields: dict[str, str]) -> _Depth:
    time = datetime.strptime(fields["timestamp"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    percentage, depth, notional = (Decimal(fields[name]) for name in _DEPTH[1:])
    if (
        not (percentage.is_finite() and depth.is_finite() and notional.is_finite())
        or min(depth, notional) < 0
    ):
        raise ValueError("numbers must be finite, depth and notional not negative")
    if max(depth, notional) >= LARGEST or int(depth.as_tuple().exponent) < -BANDS_SCALE:
        raise ValueError(f"depth and notional must be below {LARGEST}, with at most {BANDS_SCALE} decimals")
    if not percentage:
        raise ValueError("percentage is 0: neither a bid nor an ask")
    if not EARLIEST_YEAR <= time.year <= LATEST_YEAR:
        raise ValueError(f"the year is {time.year}")
    return _Depth(int(time.timestamp()) * 10**9, percentage, depth, notional)


def _snapshots(
    rows: Iterator[_Depth], context: ImportContext, venue: str, symbol: str
) -> Iterator[EventBlock]:
    waiting: list[_Depth] = []
    seq = 0
    for row in chain(rows, (None,)):
        if waiting and (row is None or row.time_ns != waiting[0].time_ns):
            yield _snapshot(waiting, seq, context, venue_id(venue), crypto_market_id(symbol))
            seq, waiting = seq + 1, []
        if row is not None:
            waiting.append(row)


def _snapshot(rows: list[_Depth], seq: int, context: ImportContext, venue: int, market: int) -> EventBlock:
    levels: list[tuple[int, int, int, int]] = []
    for side, sign in ((Side.BUY, -1), (Side.SELL, 1)):
        depth = notional = Decimal(0)
        for row in sorted(
            (one for one in rows if one.percentage * sign > 0), key=lambda one: abs(one.percentage)
        ):
            size, value = row.depth - depth, row.notional - notional
            depth, notional = row.depth, row.notional
            if size <= 0 or value < 0:
                continue  # nothing between the two percentages
            decimals = max(0, -int(size.as_tuple().exponent))
            price = int((value / size).scaleb(BANDS_SCALE).to_integral_value())
            levels.append((price, int(size.scaleb(decimals)), decimals, side))
    columns: list[NDArray[Any]] = [np.array([one[at] for one in levels]) for at in range(4)]
    seqs, stamps = np.array([seq], dtype=np.uint64), np.array([rows[0].time_ns], dtype=np.uint64)
    packed = Levels(
        columns[0].astype(np.int64),
        np.full(len(levels), BANDS_SCALE, dtype=np.uint8),
        columns[1].astype(np.uint64),
        columns[2].astype(np.uint8),
        columns[3].astype(np.uint8),
    )
    groups = Groups(np.zeros(1, dtype=np.int64), stamps, stamps, seqs, seqs, venue, market)
    block = pack_snapshots(packed, groups, context.options.price_scale, context.options.size_scale)
    block.flags = np.array([MessageFlags.LAST_OF_EVENT], dtype=np.uint16)
    return block
