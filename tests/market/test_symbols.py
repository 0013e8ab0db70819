"""The symbol catalogue: versions against a plain list, the file, names for columns, where names come from."""

from __future__ import annotations

import multiprocessing
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import CorruptMetadata
from everlog.market.protocol import crypto_market_id, symbol_hash
from everlog.market.symbol_sources import refresh_symbols
from everlog.market.symbols import (
    FOREVER,
    SYMBOLS_FILE,
    RefreshedCatalogue,
    SymbolCatalogue,
    SymbolDefinition,
    SymbolVersion,
    add_names,
    load_nearby,
    load_symbols,
    market_id_of,
    record_symbols,
    store_symbols,
    symbol_id_of,
)
from everlog.market.venues.binance_info import exchange_info
from everlog.market.venues.interface import ImportOptions
from tests.market.venues.tardis_files import BOOK_HEADER
from tests.support.import_runs import import_into
from tests.support.processes import START_METHOD

SYMBOLS = ("BTCUSDT", "ETHUSDT", "000001")
VENUES = {"binance": 1, "szse": 2}


def version(
    symbol: str, begins: int, ends: int = FOREVER, venue: str = "binance", **more: Any
) -> SymbolVersion:
    """A row of a table."""
    values = {"symbol_id": symbol_id_of(VENUES[venue], symbol), "is_current": ends == FOREVER, **more}
    return SymbolVersion(
        exchange_id=VENUES[venue],
        exchange=venue,
        exchange_symbol=symbol,
        valid_from_ts=begins,
        valid_until_ts=ends,
        **values,
    )


def defined(symbol: str, tick: float | None, at_ts: int, venue: str = "binance") -> SymbolDefinition:
    return SymbolDefinition(exchange=venue, exchange_symbol=symbol, tick_size=tick, at_ts=at_ts)


ticks = st.sampled_from((0.1, 0.01, 1.0))
rows = st.builds(
    version,
    st.sampled_from(SYMBOLS),
    st.integers(0, 12),
    st.integers(0, 14) | st.just(FOREVER),
    st.sampled_from(tuple(VENUES)),
    tick_size=st.sampled_from((None, 0.1, 0.01)),
)


@given(st.lists(rows, max_size=12), st.integers(0, 15_999))
def test_a_market_resolves_to_the_version_that_began_last_of_those_valid(
    table: list[SymbolVersion], event_ns: int
) -> None:
    catalogue = SymbolCatalogue(table)
    usable = [row for row in table if row.valid_until_ts > row.valid_from_ts]
    assert catalogue.skipped == len(table) - len(usable)
    for venue, number in VENUES.items():
        for symbol in SYMBOLS:
            market = market_id_of(venue, symbol)
            valid = [
                row
                for row in usable
                if (row.exchange, row.exchange_symbol) == (venue, symbol)
                and row.valid_from_ts <= event_ns // 1000 < row.valid_until_ts
            ]
            found = catalogue.resolve(number, market, event_ns)
            if not valid:
                assert found is None
                continue
            assert found is not None
            assert found in valid and found.valid_from_ts == max(row.valid_from_ts for row in valid)
    assert catalogue.resolve(1, 77, event_ns) is None


@given(st.lists(rows, max_size=12), st.lists(st.tuples(st.sampled_from(SYMBOLS), st.integers(0, 15_999))))
def test_columns_resolve_as_single_markets_do(
    table: list[SymbolVersion], asked: list[tuple[str, int]]
) -> None:
    catalogue = SymbolCatalogue(table)
    markets = np.array([market_id_of("szse", symbol) for symbol, _ in asked], dtype=np.uint32)
    times = np.array([time for _, time in asked], dtype=np.uint64)
    found = catalogue.version_rows(np.full(len(asked), 2, dtype=np.uint16), markets, times)
    for row, market, time in zip(found.tolist(), markets.tolist(), times.tolist(), strict=True):
        assert (catalogue.versions[row] if row >= 0 else None) == catalogue.resolve(2, market, time)


@given(
    st.lists(st.tuples(st.sampled_from(SYMBOLS[:2]), st.integers(1, 5), st.sampled_from((0.1, 0.01, 1.0))))
)
def test_definitions_in_the_order_of_time_are_what_holds_until_the_next(
    steps: list[tuple[str, int, float]],
) -> None:
    catalogue, known, now = SymbolCatalogue(), dict[str, list[tuple[int, float]]](), 0
    for symbol, later, tick in steps:
        now += later
        catalogue.record([defined(symbol, tick, now)], 0)
        known.setdefault(symbol, []).append((now, tick))
        assert sum(row.is_current for row in catalogue.versions) == len(known)
    for symbol, history in known.items():
        for time in range(now + 2):
            said = [tick for at, tick in history if at <= time]
            found = catalogue.resolve(1, crypto_market_id(symbol), time * 1000 + 999)
            assert (found.tick_size if found else None) == (said[-1] if said else None)
    for row in catalogue.versions:
        assert row.is_current == (row.valid_until_ts == FOREVER)


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from((0.1, 0.01, 1.0))), max_size=10))
def test_definitions_in_any_order_never_overlap_and_hold_at_their_time(
    steps: list[tuple[int, float]],
) -> None:
    catalogue = SymbolCatalogue()
    for at, tick in steps:
        before = {time: catalogue.resolve(1, crypto_market_id("BTCUSDT"), time * 1000) for time in range(at)}
        catalogue.record([defined("BTCUSDT", tick, at)], 0)
        found = catalogue.resolve(1, crypto_market_id("BTCUSDT"), at * 1000)
        assert found is not None and found.tick_size == tick
        for time, earlier in before.items():
            now = catalogue.resolve(1, crypto_market_id("BTCUSDT"), time * 1000)
            assert earlier is None or (now is not None and now.tick_size == earlier.tick_size)
    spans = [(row.valid_from_ts, row.valid_until_ts) for row in catalogue.versions]
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
    assert sum(row.is_current for row in catalogue.versions) == bool(steps)


def test_a_new_version_closes_the_old_one_and_has_an_id_of_its_own() -> None:
    catalogue = SymbolCatalogue()
    assert catalogue.record([defined("BTCUSDT", 0.1, 10)], 0) == 1
    assert catalogue.record([defined("BTCUSDT", 0.1, 15)], 0) == 0, "nothing new"
    assert catalogue.record([defined("BTCUSDT", 0.01, 20)], 0) == 2
    old, new = catalogue.versions
    assert (old.valid_from_ts, old.valid_until_ts, old.is_current) == (10, 20, False)
    assert (new.valid_from_ts, new.valid_until_ts, new.is_current) == (20, FOREVER, True)
    assert old.symbol_id == new.symbol_id
    assert old.symbol_version_id == symbol_hash(f"{old.symbol_id}:10:20") != new.symbol_version_id


def deleted(symbol: str, at_ts: int) -> SymbolDefinition:
    return SymbolDefinition(exchange="binance", exchange_symbol=symbol, at_ts=at_ts, is_deleted=True)


def test_a_deletion_closes_the_version_of_its_time_and_a_later_definition_opens_another() -> None:
    catalogue = SymbolCatalogue()
    catalogue.record([defined("BTCUSDT", 0.1, 10), deleted("BTCUSDT", 20), deleted("ETHUSDT", 20)], 0)
    (row,) = catalogue.versions
    assert (row.valid_from_ts, row.valid_until_ts, row.is_current) == (10, 20, False)
    market = crypto_market_id("BTCUSDT")
    assert catalogue.resolve(1, market, 19_999) == row and catalogue.resolve(1, market, 20_000) is None
    assert catalogue.record([deleted("BTCUSDT", 20), defined("BTCUSDT", 0.1, 10)], 0) == 0, "nothing new"
    catalogue.record([defined("BTCUSDT", 0.1, 30)], 0)
    assert [(one.valid_from_ts, one.valid_until_ts) for one in catalogue.versions] == [
        (10, 20),
        (30, FOREVER),
    ]
    other = SymbolCatalogue()
    other.record(catalogue.definitions(), 0)
    assert other.versions == catalogue.versions, "a bus or a lake learns of the deletion too"


def test_what_imports_and_feeds_learn_is_at_the_root_of_their_bus_at_once(tmp_path: Path) -> None:
    queues = [tmp_path / "streams" / "raw" / name / "queue" for name in ("binance", "bybit")]
    for queue, symbol in zip(queues, ("BTCUSDT", "XRPUSDT"), strict=True):
        record_symbols(queue, [defined(symbol, 0.1, 100)])
    assert [row.exchange_symbol for row in load_symbols(tmp_path).versions] == ["BTCUSDT", "XRPUSDT"]
    assert [row.exchange_symbol for row in load_symbols(queues[1]).versions] == ["XRPUSDT"]
    record_symbols(tmp_path / "elsewhere", [defined("BTCUSDT", 0.1, 100)])
    assert not (tmp_path.parent / SYMBOLS_FILE).exists()


def _tell(queue: str, number: int) -> None:
    for at in range(20):
        record_symbols(queue, [defined(f"SYM{number}X{at}", 0.1, 100 + at)])


def test_processes_that_tell_one_bus_at_a_time_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context(START_METHOD)
    feeds = [
        context.Process(target=_tell, args=(str(tmp_path / "streams" / str(number)), number))
        for number in range(3)
    ]
    for one in feeds:
        one.start()
    for one in feeds:
        one.join()
        assert one.exitcode == 0
    assert len(load_symbols(tmp_path)) == 60


def test_what_a_definition_does_not_say_stays_known() -> None:
    catalogue = SymbolCatalogue()
    catalogue.record([defined("BTCUSDT", 0.1, 10)], 0)
    catalogue.record([defined("BTCUSDT", None, 20)], 0)
    assert [row.tick_size for row in catalogue.versions] == [0.1]
    catalogue.record([defined("BTCUSDT", None, 5)], 0)
    assert [row.valid_from_ts for row in catalogue.versions] == [5], "an older day extends it back"


def test_decimals_that_were_seen_are_refined_until_the_venue_names_the_tick() -> None:
    catalogue = SymbolCatalogue()
    for at, seen in ((10, 0.1), (20, 0.01), (30, 0.1)):
        one = SymbolDefinition(exchange="binance", exchange_symbol="BTCUSDT", price_increment=seen, at_ts=at)
        catalogue.record([one], 0)
    assert [row.price_increment for row in catalogue.versions] == [0.01]
    catalogue.record([defined("BTCUSDT", 0.5, 40)], 0)
    catalogue.record([one], 0)
    assert [(row.tick_size, row.price_increment) for row in catalogue.versions] == [(0.5, 0.01)]


@pytest.mark.parametrize(
    "broken",
    [
        {"exchange_id": None},
        {"exchange_id": -1},
        {"exchange_symbol": None},
        {"symbol_id": None},
        {"symbol_id": -3},
        {"valid_from_ts": -1},
        {"valid_until_ts": None, "valid_from_ts": None},
        {"valid_until_ts": 10},
        {"valid_until_ts": 9},
    ],
)
def test_rows_without_a_key_or_that_end_before_they_begin_are_skipped(broken: dict[str, Any]) -> None:
    sound = msgspec.to_builtins(version("BTCUSDT", 10, 20))
    catalogue = SymbolCatalogue([sound, {**sound, **broken}])
    assert (len(catalogue), catalogue.skipped) == (1, 1)


def test_szse_markets_are_numbers_and_ids_of_other_writers_resolve_too() -> None:
    catalogue = SymbolCatalogue([version("000001", 0, venue="szse"), version("BTCUSDT", 0)])
    assert catalogue.symbol_of(2, 1) == "000001"
    assert catalogue.symbol_of(1, 3410467731) == "BTCUSDT"
    assert catalogue.symbol_of(1, 3467451262) == "BTCUSDT", "written with the mistyped prime"
    assert catalogue.symbol_of(2, 3410467731) is None


def test_an_arrow_batch_gets_venue_and_symbol() -> None:
    catalogue = SymbolCatalogue([version("BTCUSDT", 0), version("000001", 0, venue="szse")])
    markets = [crypto_market_id("BTCUSDT"), 1, 99]
    batch = pa.RecordBatch.from_pydict({"venue_id": [1, 2, 1], "market_id": markets})
    named = add_names(batch, catalogue)
    assert named.column("venue").to_pylist() == ["binance", "szse", "binance"]
    assert named.column("symbol").to_pylist() == ["BTCUSDT", "000001", None]
    signed = [np.uint64(symbol_hash(name)).astype(np.int64) for name in ("BTCUSDT", "NONE")]
    trades = pa.RecordBatch.from_pydict({"symbol_hash": pa.array(signed, pa.int64())})
    named = add_names(trades, catalogue, hash_column="symbol_hash")
    assert named.column("venue").to_pylist() == ["binance", None]
    assert named.column("symbol").to_pylist() == ["BTCUSDT", None]


def test_the_file_holds_the_rows_and_a_damaged_one_names_its_line(tmp_path: Path) -> None:
    assert len(load_symbols(tmp_path)) == 0
    catalogue = SymbolCatalogue([version("BTCUSDT", 1, 5, tick_size=0.1), version("BTCUSDT", 5)])
    store_symbols(tmp_path, catalogue)
    assert load_symbols(tmp_path).versions == catalogue.versions
    assert os.listdir(tmp_path) == [SYMBOLS_FILE]
    with open(tmp_path / SYMBOLS_FILE, "ab") as file:
        file.write(b'{"exchange_id": 1\n')
    with pytest.raises(CorruptMetadata, match=r"symbols.jsonl:3 is not a row"):
        load_symbols(tmp_path)


def test_a_queue_is_completed_by_the_catalogue_of_its_bus(tmp_path: Path) -> None:
    queue = tmp_path / "streams" / "raw" / "binance" / "queue"
    record_symbols(queue, [defined("BTCUSDT", None, 100)])
    record_symbols(tmp_path, [defined("BTCUSDT", 0.1, 50), defined("ETHUSDT", 0.01, 50)])
    found = load_nearby(queue)
    assert [(row.exchange_symbol, row.tick_size, row.valid_from_ts) for row in found.versions] == [
        ("BTCUSDT", 0.1, 100),
        ("ETHUSDT", 0.01, 50),
    ]


def test_a_refresh_that_fails_keeps_the_old_copy(tmp_path: Path) -> None:
    record_symbols(tmp_path, [defined("BTCUSDT", 0.1, 1)])
    held = RefreshedCatalogue(lambda: load_symbols(tmp_path), 10, 0)
    record_symbols(tmp_path, [defined("ETHUSDT", 0.1, 1)])
    assert not held.refresh(9) and len(held.catalogue) == 1, "not yet"
    assert held.refresh(10) and len(held.catalogue) == 2
    (tmp_path / SYMBOLS_FILE).write_bytes(b"nonsense\n")
    assert not held.refresh(20)
    assert len(held.catalogue) == 2 and held.failures == 1 and "CorruptMetadata" in held.last_error


def test_an_import_tells_the_catalogue_of_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "binance_incremental_book_L2_2024-01-02_BTCUSDT.csv"
    lines = ("101,110,true,bid,41000.50,1.250", "102,110,true,ask,41001,2")
    path.write_text("\n".join([BOOK_HEADER, *(f"binance,BTCUSDT,{line}" for line in lines)]) + "\n")
    import_into(tmp_path / "queue", "tardis-book", path)
    (row,) = load_symbols(tmp_path / "queue").versions
    assert (row.exchange_id, row.exchange_symbol, row.valid_from_ts) == (1, "BTCUSDT", 110)
    assert (row.tick_size, row.price_increment, row.amount_increment) == (None, 0.1, 0.01)
    (tmp_path / "queue" / SYMBOLS_FILE).unlink()
    changed, found = refresh_symbols(str(tmp_path))
    assert changed == 1 and found.versions == load_symbols(tmp_path).versions == [row]


def test_digits_that_a_chosen_scale_does_not_keep_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "binance_incremental_book_L2_2024-01-02_BTCUSDT.csv"
    lines = ("101,110,true,bid,41000.57,1.25", "102,110,true,ask,41001.10,2", "103,120,false,ask,41001.25,2")
    path.write_text("\n".join([BOOK_HEADER, *(f"binance,BTCUSDT,{line}" for line in lines)]) + "\n")
    options = ImportOptions(price_scale=1, size_scale=1)
    (result,) = import_into(tmp_path / "queue", "tardis-book", path, options=options)
    assert result.entry.cut == 3
    assert any("3 prices or sizes have more decimals than --price-scale" in note for note in result.notes)
    (result,) = import_into(tmp_path / "other", "tardis-book", path, options=ImportOptions(price_scale=2))
    assert result.entry.cut == 0 and not result.notes


def test_exchange_info_of_binance_becomes_definitions() -> None:
    body = msgspec.json.encode(
        {
            "symbols": [
                {
                    "symbol": "BTCUSDT",
                    "baseAsset": "BTC",
                    "quoteAsset": "USDT",
                    "status": "TRADING",
                    "filters": [
                        {"filterType": "PRICE_FILTER", "tickSize": "0.01000000"},
                        {"filterType": "LOT_SIZE", "stepSize": "0.00001000"},
                        {"filterType": "NOTIONAL"},
                    ],
                },
                {"symbol": "ETHUSDT", "baseAsset": "ETH", "quoteAsset": "USDT", "filters": []},
            ]
        }
    )
    (one,) = exchange_info(body, "binance", ["BTCUSDT"], 7)
    assert (one.base_asset, one.quote_asset, one.tick_size, one.lot_size) == ("BTC", "USDT", 0.01, 0.00001)
    assert one.at_ts == 7
    assert len(exchange_info(body, "binance")) == 2
