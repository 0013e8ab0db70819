"""Rows of decoded tables without Spark: what importers make and what a queue gives become the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everlog.market.decoding import DECODINGS, column, select, select_all
from everlog.market.protocol import BAR, BOOK_TICKER, TRADE, L3Flags, TypeId, new_l3_records, symbol_hash
from everlog.market.symbols import SymbolCatalogue, SymbolDefinition
from everlog.market.venues.interface import EventBlock
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline import queue_ranges
from everlog.pipeline.tables.payloads import decoded
from everlog.pipeline.tables.rows import Names, rows_of
from everlog.pipeline.tables.schemas import SCHEMAS, TABLE_OF_DECODING
from everlog.queue import Queue
from everlog.queue.batch import Batch

NO_NAMES = Names(SymbolCatalogue())
NS = 1_700_000_000_123_456_789


def with_origin(found: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Return columns with those that say where a row is from."""
    count = len(found["seq"])
    return {**found, **{name: pa.repeat(pa.scalar("x"), count) for name in ("source", "instance", "kind")}}


def of_queue(batch: Batch, decode: str) -> dict[str, pa.Array]:
    """Decode messages as the format `everlog.queue` does."""
    decoding = DECODINGS[decode]
    chosen = select(decoding, select_all(batch))
    return {name: column(decoding, chosen, name) for name in decoding.columns if name != "queue"}


def blocks() -> Iterator[EventBlock]:
    """Yield events of a kind among others."""
    yield from SimulatedVenue(
        ["A", "B"], rate=2000.0, kinds=("l2", "l3", "trades"), resting_orders=10
    ).blocks(300)
    for type_id, layout in ((TypeId.BOOK_TICKER, BOOK_TICKER), (TypeId.BAR, BAR)):
        records = np.zeros(150, layout)
        for place, name in enumerate(layout.names or ()):
            records[name] = np.arange(150) + place
        yield EventBlock(type_id, records, np.arange(150, dtype=np.uint64) + np.uint64(NS))


@pytest.mark.parametrize("decode", TABLE_OF_DECODING)
def test_events_of_an_importer_become_the_rows_that_their_queue_gives(tmp_path: Path, decode: str) -> None:
    schema, rows = TABLE_OF_DECODING[decode], []
    with Queue.open_publisher(tmp_path / "q", segment_size=1 << 20) as writer:
        first = 0
        for block in blocks():
            block.append_to(writer)
            rows.append(rows_of(schema, with_origin(decoded(block, DECODINGS[decode], first)), NO_NAMES))
            first += len(block)
    made = pa.Table.from_batches(rows)
    path = str(tmp_path / "q")
    read = [
        rows_of(schema, with_origin(of_queue(piece, decode)), NO_NAMES)
        for piece in queue_ranges.read(path, queue_ranges.bounds(path))
        if isinstance(piece, Batch)
    ]
    assert made.num_rows > 100
    assert made.to_pylist() == pa.Table.from_batches(read).to_pylist()


def orders(venue_id: int = 1, **fields: Any) -> EventBlock:
    """Return one event of an order."""
    records = new_l3_records(1, venue_id=venue_id, market_id=MARKET)
    for name, value in fields.items():
        records["event"][name] = value
    return EventBlock(TypeId.BOOK_EVENT, records, np.array([NS], np.uint64))


CATALOGUE = SymbolCatalogue()
CATALOGUE.record([SymbolDefinition(exchange="binance", exchange_symbol="BTCUSDT", tick_size=0.01)], 0)
MARKET = CATALOGUE.versions[0].market_id


def row_of(block: EventBlock, names: Names) -> dict[str, Any]:
    schema = SCHEMAS["orders_l3"]
    (row,) = rows_of(schema, with_origin(decoded(block, DECODINGS["l3"], 5)), names).to_pylist()
    return dict(row)


def test_a_row_has_names_times_and_prices_in_place_of_ids_and_integers() -> None:
    block = orders(event_type=1, side=2, price=4_200_050, price_scale=2, qty=1500, size_scale=3)
    row = row_of(block, Names(CATALOGUE))
    assert (row["venue"], row["symbol"], row["tick_size"]) == ("binance", "BTCUSDT", 0.01)
    assert (row["event"], row["side"], row["price"], row["qty"]) == ("add", "sell", 42000.5, 1.5)
    assert (row["ts_ns"], row["seq"], str(row["date"])) == (NS, 5, "2023-11-14")
    assert row["ts"] == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    assert row["exchange_ts"] is None and row["exchange_ts_ns"] is None, "the venue gave none"


def test_a_price_of_zero_is_a_price_and_no_price_is_null() -> None:
    assert row_of(orders(price=0), NO_NAMES)["price"] == 0.0
    assert row_of(orders(price=0, flags=int(L3Flags.NO_PRICE)), NO_NAMES)["price"] is None
    assert row_of(orders(price=-3763, price_scale=2), NO_NAMES)["price"] == -37.63


def test_names_that_no_catalogue_knows_are_those_of_the_file() -> None:
    assert (row_of(orders(), NO_NAMES)["venue"], row_of(orders(), NO_NAMES)["symbol"]) == ("binance", None)
    row = row_of(orders(), Names(SymbolCatalogue(), "bybit", "ETHUSDT"))
    assert (row["venue"], row["symbol"]) == ("binance", "ETHUSDT"), "the id of a venue names it"
    assert row_of(orders(venue_id=999), NO_NAMES)["venue"] == "unknown"


def one(type_id: TypeId, layout: np.dtype[np.void], **fields: Any) -> EventBlock:
    """Return one event that names its symbol by its hash."""
    records = np.zeros(1, layout)
    records["symbol_hash"] = symbol_hash("BTCUSDT")
    for name, value in fields.items():
        records[name] = value
    return EventBlock(type_id, records, np.array([NS], np.uint64))


def decoded_row(decode: str, block: EventBlock, names: Names) -> dict[str, Any]:
    rows = rows_of(TABLE_OF_DECODING[decode], with_origin(decoded(block, DECODINGS[decode], 5)), names)
    (row,) = rows.to_pylist()
    return dict(row)


def test_trades_quotes_and_bars_have_the_names_and_the_tick_size_of_their_symbol() -> None:
    events = {
        "trade": one(TypeId.TRADE, TRADE, price=1.5),
        "quote": one(TypeId.BOOK_TICKER, BOOK_TICKER, bid_price=1.5),
        "bar": one(TypeId.BAR, BAR, open=1.5),
    }
    for decode, block in events.items():
        row = decoded_row(decode, block, Names(CATALOGUE))
        assert (row["venue"], row["symbol"], row["tick_size"]) == ("binance", "BTCUSDT", 0.01)
        assert (row["ts_ns"], row["seq"], row["source"], row["instance"]) == (NS, 5, "x", "x")
        row = decoded_row(decode, block, NO_NAMES)
        assert (row["venue"], row["symbol"], row["tick_size"]) == ("unknown", None, None)


def test_a_symbol_of_two_venues_has_the_tick_size_of_the_venue_of_its_file() -> None:
    both = SymbolCatalogue()
    for venue, tick in (("binance", 0.01), ("bybit", 0.1)):
        both.record([SymbolDefinition(exchange=venue, exchange_symbol="BTCUSDT", tick_size=tick)], 0)
    block = one(TypeId.TRADE, TRADE)
    found = [decoded_row("trade", block, Names(both, venue)) for venue in ("bybit", None)]
    assert [(row["venue"], row["symbol"], row["tick_size"]) for row in found] == [
        ("bybit", "BTCUSDT", 0.1),
        ("unknown", "BTCUSDT", None),
    ]


def test_a_quote_without_one_side_has_no_price_there() -> None:
    block = one(TypeId.BOOK_TICKER, BOOK_TICKER, bid_price=1.5, bid_qty=2.0, ask_qty=0.0, timestamp_ns=NS)
    row = decoded_row("quote", block, Names(CATALOGUE))
    sides = [row[name] for name in ("bid_price", "bid_size", "ask_price", "ask_size")]
    assert sides == [1.5, 2.0, None, 0.0]
    assert row["exchange_ts"] == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


def test_what_a_venue_does_not_tell_of_a_bar_is_null() -> None:
    told = {"start_ns": NS, "end_ns": NS + 10**9, "volume": 3.0, "quote_volume": float("nan")}
    row = decoded_row("bar", one(TypeId.BAR, BAR, **told), Names(CATALOGUE))
    assert [row[name] for name in ("volume", "quote_volume", "trades")] == [3.0, None, None]
    assert (row["end_ts"] - row["start_ts"]).total_seconds() == 1.0 and str(row["date"]) == "2023-11-14"
    assert decoded_row("bar", one(TypeId.BAR, BAR, volume=0.0), Names(CATALOGUE))["trades"] == 0


def test_all_tables_of_events_share_the_columns_of_markets_times_and_origin() -> None:
    shared = {"date", "venue", "symbol", "ts", "ts_ns", "tick_size", "seq", "source", "instance", "kind"}
    for schema in SCHEMAS.values():
        columns = {one.name: one.type for one in schema.columns}
        assert shared <= columns.keys(), schema.name
        assert {columns[name] for name in columns if name.endswith("_ts_ns") or name == "ts_ns"} == {
            pa.int64()
        }
        assert schema.partition_by == ("date", "venue")
