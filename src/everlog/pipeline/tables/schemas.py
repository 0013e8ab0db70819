"""Every table of decoded market data: its columns, their types and meanings, and how it is partitioned.

The page `docs/reference/lake-tables.md` is made of this module. A column that is added here appears in tables
that are there already, empty in their older rows; a column never changes its type.
"""

from __future__ import annotations

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
_IDS: Final = (
    Column("venue_id", INT, "the number of the venue"),
    Column("market_id", LONG, "the number of the symbol"),
    Column("stream_id", LONG, "the channel of the venue"),
    Column("native_seq", LONG, "the venue's own number of the event in its channel"),
)
_ORIGIN: Final = (
    Column("seq", LONG, "position in the source; of a gap, the first that is lost"),
    Column("source", TEXT, "the queue, or the imported file"),
    Column("instance", TEXT, "identity of that queue, or hash of the file"),
)
_GAP: Final = (
    Column("kind", TEXT, "`record`, or `gap`: seqs that were lost before they could be read"),
    Column("gap_to", LONG, "of a gap, the last seq that is lost"),
    Column("reason", TEXT, "of a gap, why"),
)

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
        Column("symbol_hash", LONG, "64-bit hash of the symbol; above 2^63 it is shown negative"),
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
SCHEMAS: Final = {one.name: one for one in (TRADES, BOOK_L2, ORDERS_L3)}
TABLE_OF_DECODING: Final = {"trade": TRADES, "book": BOOK_L2, "l3": ORDERS_L3}
"""The table that the messages of each decoding fill."""
NAMED: Final = frozenset({"venue", "symbol", "tick_size"})
"""Columns from the catalogue: they may become known later, so no digest has them."""
