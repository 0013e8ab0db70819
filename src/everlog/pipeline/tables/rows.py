"""Rows of the tables of decoded market data, made of decoded messages as Arrow columns.

Used by the archive of a queue and by imports alike. Names come from a symbol catalogue; what it does not know
is taken from the file, if that says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everlog.market.protocol import BookEventType, L3EventType, L3Flags, Side
from everlog.market.symbols import SymbolCatalogue
from everlog.pipeline.tables.schemas import LEVELS, TEXT, TIMESTAMP, TableSchema

UNKNOWN_VENUE: Final = "unknown"
NS_PER_US: Final = 1000
NO_TIME: Final = pa.scalar(None, pa.int64())
POWERS_OF_TEN: Final = pa.array([10.0**scale for scale in range(256)])
Columns = Mapping[str, pa.Array]


def _words(kinds: Any, prefix: str = "") -> pa.Array:
    """Return the name of each number of an enumeration."""
    names = {int(kind): kind.name.lower().removeprefix(prefix) for kind in kinds}
    return pa.array([names.get(number) for number in range(256)], TEXT)


_EVENTS: Final = {"book_l2": _words(BookEventType), "orders_l3": _words(L3EventType, "order_")}
_SIDES: Final = pa.array([None if side == Side.UNKNOWN else side.name.lower() for side in Side], TEXT)


class Names(NamedTuple):
    """Where names of markets come from."""

    catalogue: SymbolCatalogue
    venue: str | None = None
    """That of a file of one venue."""
    symbol: str | None = None
    """That of a file of one symbol."""


def rows_of(schema: TableSchema, found: Columns, names: Names) -> pa.RecordBatch:
    """Return decoded messages as rows of a table; `found` has the columns of a decoding."""
    made = dict(found)
    for name in ("ts", "exchange_ts"):
        nanoseconds = made[f"{name}_ns"]
        if name == "exchange_ts":
            nanoseconds = pc.if_else(pc.equal(nanoseconds, 0), NO_TIME, nanoseconds)
            made["exchange_ts_ns"] = nanoseconds
        made[name] = pc.divide(nanoseconds, NS_PER_US).cast(TIMESTAMP)
    today = pa.scalar(datetime.now(UTC).date(), pa.date32())
    made["date"] = pc.fill_null(made["ts"].cast(pa.date32()), today)
    made |= _named(made, names)
    if schema.name == "trades":
        buys = pc.if_else(made["is_buyer_maker"], "sell", "buy")
        made["side"] = buys.cast(TEXT)
    else:
        made["event"] = _EVENTS[schema.name].take(made["event_type"])
        made |= _priced(schema, made)
    count = len(made["seq"])
    arrays = [
        made[one.name].cast(one.type) if one.name in made else pa.nulls(count, one.type)
        for one in schema.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def _named(made: Columns, names: Names) -> dict[str, pa.Array]:
    """Return venue, symbol and tick size of each row."""
    times = _numbers(made["ts_ns"])
    if "symbol_hash" in made:
        venues, symbols = names.catalogue.trade_names(_numbers(made["symbol_hash"]).view(np.uint64))
        ticks = [None] * len(times)
    else:
        markets = _numbers(made["venue_id"]), _numbers(made["market_id"])
        venues, symbols = names.catalogue.names(*markets)
        sizes = [one.tick_size for one in names.catalogue.versions]
        ticks = [
            None if row < 0 else sizes[row] for row in names.catalogue.version_rows(*markets, times).tolist()
        ]
    venue = pc.fill_null(pa.array(venues, TEXT), names.venue or UNKNOWN_VENUE)
    symbol = pa.array(symbols, TEXT)
    return {
        "venue": venue,
        "symbol": symbol if names.symbol is None else pc.fill_null(symbol, names.symbol),
        "tick_size": pa.array(ticks, pa.float64()),
    }


def _priced(schema: TableSchema, made: Columns) -> dict[str, pa.Array]:
    """Return prices and sizes of book events as numbers of their own units."""
    price, size = (POWERS_OF_TEN.take(pc.fill_null(made[name], 0)) for name in ("price_scale", "size_scale"))
    if schema.name == "book_l2":
        return {side: _levels(made[side], price, size) for side in ("bids", "asks")}
    has_none = pc.not_equal(pc.bit_wise_and(made["flags"], int(L3Flags.NO_PRICE)), 0)
    return {
        "price": pc.if_else(has_none, None, _divided(made["price"], price)),
        "qty": _divided(made["qty"], size),
        "amt": _divided(made["amt"], size),
        "side": _SIDES.take(made["side"]),
    }


def _levels(levels: pa.Array, price: pa.Array, size: pa.Array) -> pa.Array:
    """Return lists of levels with the prices and sizes of each divided by those of its row."""
    rows, flat = pc.list_parent_indices(levels), pc.list_flatten(levels)
    columns = [
        _divided(pc.struct_field(flat, name), divisor.take(rows))
        for name, divisor in (("price", price), ("size", size))
    ]
    lengths = _numbers(pc.list_value_length(levels))
    begins = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    values = pa.StructArray.from_arrays(columns, fields=list(LEVELS.value_type))
    return pa.ListArray.from_arrays(begins, values, type=LEVELS, mask=levels.is_null())


def _divided(numbers: pa.Array, by: pa.Array) -> pa.Array:
    return pc.divide(numbers.cast(pa.float64(), safe=False), by)


def _numbers(column: pa.Array) -> np.ndarray[Any, np.dtype[Any]]:
    """Return integers, 0 for null."""
    found: np.ndarray[Any, np.dtype[Any]] = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return found
