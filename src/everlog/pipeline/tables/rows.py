"""Rows of the tables of decoded market data, made of decoded messages as Arrow columns.

Used by the archive of a queue and by imports alike. Names come from a symbol catalogue; what it does not know
is taken from the file, if that says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everlog.market.protocol import BookEventType, L3EventType, L3Flags, Side
from everlog.market.symbols import SymbolCatalogue, market_id_of
from everlog.market.venues.registry import VENUE_IDS
from everlog.pipeline.tables.schemas import (
    BARS,
    BOOK_L2,
    DEPTH,
    LEVELS,
    ORDERS_L3,
    QUOTES,
    TEXT,
    TIMESTAMP,
    TRADES,
    TableSchema,
)

UNKNOWN_VENUE: Final = "unknown"
NS_PER_US: Final = 1000
TIMES: Final = frozenset({"ts", "exchange_ts", "start_ts", "end_ts"})
"""Columns that are there as timestamps, and in nanoseconds under the name with `_ns`."""
NO_TIME: Final = pa.scalar(None, pa.int64())
NO_NUMBER: Final = pa.scalar(None, pa.float64())
NO_MARKET: Final = (0, 0)
POWERS_OF_TEN: Final = pa.array([10.0**scale for scale in range(256)])
Columns = Mapping[str, pa.Array]


@cache
def _words(kinds: Any, prefix: str = "") -> pa.Array:
    """Return the name of each number of an enumeration."""
    names = {int(kind): kind.name.lower().removeprefix(prefix) for kind in kinds}
    return pa.array([names.get(number) for number in range(256)], TEXT)


_SIDES: Final = pa.array([None if side == Side.UNKNOWN else side.name.lower() for side in Side], TEXT)


class Names(NamedTuple):
    """Where names of markets come from."""

    catalogue: SymbolCatalogue
    venue: str | None = None
    """That of a file of one venue."""
    symbol: str | None = None
    """That of a file of one symbol."""


def rows_of(schema: TableSchema, found: Columns, names: Names) -> pa.RecordBatch:
    """Return decoded messages, or what was computed of them, as rows of a table.

    `found` has the columns of a decoding, or of a computation.
    """
    made = dict(found)
    wanted = {one.name for one in schema.columns}
    for name in wanted & TIMES:
        nanoseconds = made[f"{name}_ns"]
        if name == "exchange_ts":
            nanoseconds = pc.if_else(pc.equal(nanoseconds, 0), NO_TIME, nanoseconds)
            made["exchange_ts_ns"] = nanoseconds
        made[name] = pc.divide(nanoseconds, NS_PER_US).cast(TIMESTAMP)
    today = pa.scalar(datetime.now(UTC).date(), pa.date32())
    day_of = made["start_ts"] if "start_ts" in wanted else made["ts"]
    made["date"] = pc.fill_null(day_of.cast(pa.date32()), today)
    made |= _named(made, names)
    if schema.name in _VALUES:
        made |= _VALUES[schema.name](made)
    count = len(made["seq"])
    arrays = [
        made[one.name].cast(one.type) if one.name in made else pa.nulls(count, one.type)
        for one in schema.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def _named(made: Columns, names: Names) -> dict[str, pa.Array]:
    """Return venue, symbol and tick size of each row."""
    catalogue, times = names.catalogue, _numbers(made["ts_ns"])
    if "market_id" in made:
        venue_ids, market_ids = _numbers(made["venue_id"]), _numbers(made["market_id"])
        venues, symbols = catalogue.names(venue_ids, market_ids)
    else:
        hashes, where = np.unique(_numbers(made["symbol_hash"]).view(np.uint64), return_inverse=True)
        venues, symbols = catalogue.trade_names(hashes)
        pairs = zip(venues.tolist(), symbols.tolist(), strict=True)
        ids = [_market(venue or names.venue, symbol or names.symbol) for venue, symbol in pairs]
        venue_ids, market_ids = np.array(ids, np.int64).reshape(-1, 2)[where].T
        venues, symbols = venues[where], symbols[where]
    venue, symbol = (pa.array(texts, TEXT) for texts in (venues, symbols))
    sizes = pa.array([*(one.tick_size for one in catalogue.versions), None], pa.float64())
    rows = catalogue.version_rows(venue_ids, market_ids, times)
    return {
        "venue": pc.fill_null(venue, names.venue or UNKNOWN_VENUE),
        "symbol": symbol if names.symbol is None else pc.fill_null(symbol, names.symbol),
        "tick_size": sizes.take(pa.array(np.where(rows < 0, len(sizes) - 1, rows))),
    }


def _market(venue: str | None, symbol: str | None) -> tuple[int, int]:
    """Return the ids of a market that is known by its names; no market has those of one that is not."""
    if venue not in VENUE_IDS or symbol is None:
        return NO_MARKET
    return VENUE_IDS[venue], market_id_of(venue, symbol)


def _of_trades(made: Columns) -> dict[str, pa.Array]:
    """Return the side of each trade."""
    return {"side": pc.if_else(made["is_buyer_maker"], "sell", "buy").cast(TEXT)}


def _of_quotes(made: Columns) -> dict[str, pa.Array]:
    """Return the best prices and sizes; those of a book are integers with a scale."""
    found = {}
    for name, scale in (("price", "price_scale"), ("size", "size_scale")):
        for side in ("bid", "ask"):
            numbers = made[f"{side}_{name}"]
            found[f"{side}_{name}"] = _divided(numbers, _powers(made[scale])) if scale in made else numbers
    for side in ("bid", "ask"):
        is_empty = pc.equal(found[f"{side}_size"], 0)
        found[f"{side}_price"] = pc.if_else(is_empty, NO_NUMBER, found[f"{side}_price"])
    return found


def _of_bars(made: Columns) -> dict[str, pa.Array]:
    """Return the volumes and numbers of trades, null where a venue does not tell them."""
    told = {
        name: pc.if_else(pc.is_nan(made[name]), NO_NUMBER, made[name])
        for name in ("volume", "quote_volume", "taker_buy_volume")
        if name in made
    }
    no_trades = pc.fill_null(pc.equal(told["volume"], 0), False)
    is_told = pc.or_(pc.greater(made["trades"], 0), no_trades)
    return {**told, "trades": pc.if_else(is_told, made["trades"], pa.scalar(None, pa.int64()))}


def _of_depth(made: Columns) -> dict[str, pa.Array]:
    """Return levels with prices and sizes as numbers of their own units."""
    price, size = _powers(made["price_scale"]), _powers(made["size_scale"])
    return {side: _levels(made[side], price, size) for side in ("bids", "asks")}


def _of_books(made: Columns) -> dict[str, pa.Array]:
    """Return kind and levels of events of price levels."""
    return {"event": _words(BookEventType).take(made["event_type"]), **_of_depth(made)}


def _of_orders(made: Columns) -> dict[str, pa.Array]:
    """Return kind, price and sizes of events of orders."""
    price, size = _powers(made["price_scale"]), _powers(made["size_scale"])
    has_none = pc.not_equal(pc.bit_wise_and(made["flags"], int(L3Flags.NO_PRICE)), 0)
    return {
        "event": _words(L3EventType, "order_").take(made["event_type"]),
        "price": pc.if_else(has_none, None, _divided(made["price"], price)),
        "qty": _divided(made["qty"], size),
        "amt": _divided(made["amt"], size),
        "side": _SIDES.take(made["side"]),
    }


_VALUES: Final[Mapping[str, Callable[[Columns], dict[str, pa.Array]]]] = {
    TRADES.name: _of_trades,
    QUOTES.name: _of_quotes,
    BOOK_L2.name: _of_books,
    ORDERS_L3.name: _of_orders,
    BARS.name: _of_bars,
    DEPTH.name: _of_depth,
}
"""What is made of the numbers of each table."""


def _powers(scales: pa.Array) -> pa.Array:
    return POWERS_OF_TEN.take(pc.fill_null(scales, 0))


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
