"""Every table of decoded market data: its columns, their types and meanings, and how it is partitioned.

The page `docs/reference/lake-tables.md` is made of this module. A column that is added here appears in tables
that are there already, empty in their older rows; a column never changes its type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", "UTC")
LONG: Final = pa.int64()
INT: Final = pa.int32()
DOUBLE: Final = pa.float64()
TEXT: Final = pa.string()
LEVELS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("price", DOUBLE), pa.field("size", DOUBLE)]))
)


class Column(NamedTuple):
    """A column and what it means."""

    name: str
    type: pa.DataType
    meaning: str


class TableSchema(NamedTuple):
    """A table: what a row of it is, and its columns."""

    name: str
    row: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ("date", "venue")

    @property
    def arrow(self) -> pa.Schema:
        """The schema of its batches."""
        return pa.schema([pa.field(one.name, one.type) for one in self.columns])


_OF_MARKET: Final = (
    Column("date", pa.date32(), "UTC day of `ts`; of a gap, the day on which it was found"),
    Column("venue", TEXT, "name of the venue; `unknown` if no catalogue says it"),
    Column("symbol", TEXT, "the venue's own name of the symbol; null if no catalogue says it"),
)
_TIMES: Final = (
    Column("ts", TIMESTAMP, "when the event was received"),
    Column("exchange_ts", TIMESTAMP, "the venue's time; null if it gave none"),
)
_EXACT: Final = (
    Column("ts_ns", LONG, "`ts` in nanoseconds"),
    Column("exchange_ts_ns", LONG, "`exchange_ts` in nanoseconds"),
)
_TICK: Final = Column("tick_size", DOUBLE, "the symbol's tick size at that time; null if it is not known")
_SCALES: Final = (
    Column("price_scale", INT, "`round(price * 10^price_scale)` is the integer that the event had"),
    Column("size_scale", INT, "the same of sizes"),
)
_MARKET_IDS: Final = (
    Column("venue_id", INT, "the number of the venue"),
    Column("market_id", LONG, "the number of the symbol"),
)
_IDS: Final = (
    *_MARKET_IDS,
    Column("stream_id", LONG, "the channel of the venue"),
    Column("native_seq", LONG, "the venue's own number of the event in its channel"),
)
_ORIGIN: Final = (
    Column("seq", LONG, "position in the source; of a gap, the first that is lost"),
    Column("source", TEXT, "the queue, or the imported file"),
    Column("instance", TEXT, "identity of that queue, or hash of the file"),
)
_KIND: Final = Column(
    "kind",
    TEXT,
    "`record`: a message; `computed`: made of messages; `gap`: seqs that were lost before they could be read",
)
_GAP: Final = (
    _KIND,
    Column("gap_to", LONG, "of a gap, the last seq that is lost"),
    Column("reason", TEXT, "of a gap, why"),
)
_HASH: Final = Column("symbol_hash", LONG, "64-bit hash of the symbol; above 2^63 it is shown negative")

TRADES: Final = TableSchema(
    "trades",
    "a trade",
    (
        *_OF_MARKET,
        *_TIMES,
        Column("price", DOUBLE, "price"),
        Column("qty", DOUBLE, "quantity"),
        Column("side", TEXT, "`buy` or `sell`: the taker's; null if the venue does not say"),
        Column("trade_id", LONG, "the venue's number of the trade"),
        Column("buyer_order_id", LONG, "order of the buyer, 0 if it is not known"),
        Column("seller_order_id", LONG, "order of the seller, 0 if it is not known"),
        _TICK,
        *_ORIGIN,
        *_EXACT,
        _HASH,
        *_GAP,
    ),
)
QUOTES: Final = TableSchema(
    "quotes",
    "the best bid and ask: of a book after an event (`replay`), or as the venue sent them",
    (
        *_OF_MARKET,
        *_TIMES,
        Column("bid_price", DOUBLE, "best price of buyers; null if there are none"),
        Column("bid_size", DOUBLE, "size at that price, 0 if there are no buyers"),
        Column("ask_price", DOUBLE, "best price of sellers; null if there are none"),
        Column("ask_size", DOUBLE, "size at that price, 0 if there are no sellers"),
        _TICK,
        *_ORIGIN,
        *_EXACT,
        *_SCALES,
        *_MARKET_IDS,
        _HASH,
        *_GAP,
    ),
)
BOOK_L2: Final = TableSchema(
    "book_l2",
    "a change of price levels, or a snapshot of them",
    (
        *_OF_MARKET,
        *_TIMES,
        Column("event", TEXT, "`snapshot`, `diff`, `reset` or `heartbeat`"),
        Column("bids", LEVELS, "levels of buyers; a size of 0 removes a level"),
        Column("asks", LEVELS, "levels of sellers"),
        Column("first_update_id", LONG, "first update of the venue that is in the event"),
        Column("last_update_id", LONG, "last update that is in the event"),
        Column("previous_update_id", LONG, "last update before it"),
        _TICK,
        *_ORIGIN,
        *_EXACT,
        *_SCALES,
        Column("flags", INT, "flags of the event, as in the market data protocol"),
        *_IDS,
        *_GAP,
    ),
)
ORDERS_L3: Final = TableSchema(
    "orders_l3",
    "something that happened to one order",
    (
        *_OF_MARKET,
        *_TIMES,
        Column("event", TEXT, "`add`, `cancel`, `modify`, `trade`, `reset` or `heartbeat`"),
        Column("side", TEXT, "`buy` or `sell`"),
        Column("order_id", LONG, "the order; above 2^63 it is shown negative"),
        Column("price", DOUBLE, "price; null if the event has none"),
        Column("qty", DOUBLE, "quantity"),
        Column("amt", DOUBLE, "amount, where the venue gives it"),
        Column("bid_order_id", LONG, "of a trade, the order of the buyer"),
        Column("ask_order_id", LONG, "of a trade, the order of the seller"),
        _TICK,
        *_ORIGIN,
        *_EXACT,
        *_SCALES,
        Column("ord_type", INT, "type of the order, as the venue numbers it"),
        Column("exec_type", INT, "type of the execution, as the venue numbers it"),
        Column("flags", LONG, "flags of the event, as in the market data protocol"),
        *_IDS,
        *_GAP,
    ),
)
BARS: Final = TableSchema(
    "bars",
    "a bar of trades: computed of them (`features --bars`), or as the venue sent it",
    (
        Column("date", pa.date32(), "UTC day of `start_ts`; of a gap, the day on which it was found"),
        *_OF_MARKET[1:],
        Column("ts", TIMESTAMP, "when its last trade, or the venue's bar, was received"),
        Column("start_ts", TIMESTAMP, "its first trade, or where the venue's bar begins"),
        Column("end_ts", TIMESTAMP, "its last trade, or where the venue's bar ends"),
        Column("open", DOUBLE, "first price"),
        Column("high", DOUBLE, "highest price"),
        Column("low", DOUBLE, "lowest price"),
        Column("close", DOUBLE, "last price"),
        Column("volume", DOUBLE, "sum of the quantities; null if the venue does not tell it"),
        Column("trades", LONG, "number of trades; null if the venue does not tell it"),
        Column("vwap", DOUBLE, "mean price, weighted by quantity"),
        Column("trade_imbalance", DOUBLE, "(bought - sold) / (bought + sold) by the takers"),
        Column("realised_volatility", DOUBLE, "root of the sum of squared returns"),
        Column("quote_volume", DOUBLE, "sum of price times quantity, as the venue tells it"),
        Column("taker_buy_volume", DOUBLE, "quantity that takers bought, as the venue tells it"),
        _TICK,
        Column("first_seq", LONG, "of a computed bar, the position of its first trade"),
        Column("seq", LONG, "position in the source, of a computed bar that of its last trade"),
        *_ORIGIN[1:],
        Column("ts_ns", LONG, "`ts` in nanoseconds"),
        Column("start_ts_ns", LONG, "`start_ts` in nanoseconds"),
        Column("end_ts_ns", LONG, "`end_ts` in nanoseconds"),
        _HASH,
        *_GAP,
    ),
)
FEATURES: Final = TableSchema(
    "features",
    "the features of a book after an event, or at the first event in an interval",
    (
        *_OF_MARKET,
        *_TIMES,
        _TICK,
        *_ORIGIN,
        *_EXACT,
        *_MARKET_IDS,
        _KIND,
    ),
)
"""Without the features themselves, which `with_features` adds."""

DEPTH: Final = TableSchema(
    "quotes_depth",
    "the best levels of a book at its first event in an interval",
    (
        *_OF_MARKET,
        *_TIMES,
        Column("bids", LEVELS, "best levels of buyers, the best one first"),
        Column("asks", LEVELS, "best levels of sellers, the best one first"),
        _TICK,
        *_ORIGIN,
        *_EXACT,
        *_SCALES,
        *_MARKET_IDS,
        _KIND,
    ),
)
FAULTS: Final = TableSchema(
    "quotes_report",
    "something that is wrong with the events of a book",
    (
        Column("date", pa.date32(), "UTC day of `ts`; of lost messages, the day on which that was found"),
        *_OF_MARKET[1:],
        Column("ts", TIMESTAMP, "when the event was received"),
        Column("kind", TEXT, "`gap` in the venue's numbers, `drift` from a snapshot, or `lost` messages"),
        Column("seen", LONG, "the number before a gap; the first lost seq"),
        Column("found", LONG, "the number behind a gap; the last lost seq"),
        Column("missing", LONG, "levels that the book did not have"),
        Column("extra", LONG, "levels that only the book had"),
        Column("changed", LONG, "levels of another size"),
        *_ORIGIN,
        Column("ts_ns", LONG, "`ts` in nanoseconds"),
        *_MARKET_IDS,
        Column("stream_id", LONG, "the channel, if the numbers are those of one"),
    ),
)
INSTRUMENTS: Final = TableSchema(
    "dim_symbol",
    "a version of a symbol: what held of it from `valid_from` until before `valid_until`",
    (
        Column("exchange_id", pa.int16(), "the number of the venue"),
        Column("exchange", TEXT, "name of the venue"),
        Column("exchange_symbol", TEXT, "the venue's own name of the symbol"),
        Column("base_asset", TEXT, "what is traded"),
        Column("quote_asset", TEXT, "what it is paid with"),
        Column("asset_type", pa.int8(), "0 unknown, 1 spot, 2 future, 3 perpetual, 4 option, 5 equity"),
        Column("tick_size", DOUBLE, "smallest step of a price"),
        Column("lot_size", DOUBLE, "smallest step of a quantity"),
        Column("price_increment", DOUBLE, "finest decimals of prices that were seen, or are told"),
        Column("amount_increment", DOUBLE, "the same of quantities"),
        Column("contract_size", DOUBLE, "units of a contract"),
        Column("valid_from_ts", LONG, "`valid_from` in microseconds"),
        Column("valid_until_ts", LONG, "`valid_until` in microseconds, 2^63 - 1 if it is still valid"),
        Column("is_current", pa.bool_(), "whether it is still valid"),
        Column("symbol_id", LONG, "the symbol, through all its versions"),
        Column("valid_from", TIMESTAMP, "from when on it holds"),
        Column("valid_until", TIMESTAMP, "until when; null if it is still valid"),
    ),
    (),
)
GAPS: Final = TableSchema(
    "gaps",
    "seqs that were lost before they could be archived; a view over the tables above",
    (
        Column("table", TEXT, "the table that has the gap"),
        _OF_MARKET[0],
        *_ORIGIN[1:],
        _ORIGIN[0],
        *_GAP[1:],
    ),
    (),
)
SCHEMAS: Final = {one.name: one for one in (TRADES, QUOTES, BOOK_L2, ORDERS_L3, FEATURES, BARS)}
"""The tables of events and of what is computed of them, by their usual names."""

TABLE_OF_DECODING: Final = {
    "trade": TRADES,
    "quote": QUOTES,
    "book": BOOK_L2,
    "l3": ORDERS_L3,
    "bar": BARS,
}
"""The table that the messages of each decoding fill."""
NAMED: Final = frozenset({"venue", "symbol", "tick_size"})
"""Columns from the catalogue: they may become known later, so no digest has them."""


def with_features(features: Iterable[pa.Field]) -> TableSchema:
    """Return the schema of a table with these features, behind the times."""
    columns, own = FEATURES.columns, {one.name for one in FEATURES.columns}
    behind = columns.index(_TICK)
    added = (Column(one.name, one.type, "a feature") for one in features if one.name not in own)
    return FEATURES._replace(columns=(*columns[:behind], *added, *columns[behind:]))
