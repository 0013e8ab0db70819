"""DBN bars, status, definitions and sampled quotes, against plain readings of the records."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidSource
from everlog.market.protocol import (
    BAR,
    L3EventType,
    L3Flags,
    MessageFlags,
    TypeId,
    crypto_market_id,
    symbol_hash,
)
from everlog.market.symbol_sources import refresh_symbols
from everlog.market.symbols import SYMBOLS_FILE, AssetType, load_symbols
from everlog.market.venues.interface import ImportOptions
from tests.market.venues.dbn_files import START_NS, UNDEFINED, dbn_file, package, records
from tests.support.import_runs import import_into, l2_events_of, l3_records_of, payloads_of, run_importer

NANO = 10**9
INTERVALS = {
    "ohlcv-1s": (0x20, 1),
    "ohlcv-1m": (0x21, 60),
    "ohlcv-1h": (0x22, 3600),
    "ohlcv-1d": (0x23, 86_400),
}
values = st.integers(-(10**12), 10**12)


@given(
    st.sampled_from(tuple(INTERVALS)),
    st.lists(st.tuples(values, values, values, st.integers(0, 10**6), st.sampled_from((17077, 42)))),
)
def test_bars_are_the_records_with_the_time_of_their_end(
    schema: str, rows: list[tuple[int, int, int, int, int]]
) -> None:
    rtype, seconds = INTERVALS[schema]
    made, wanted = [], []
    for at, (low, high, close, volume, instrument) in enumerate(rows):
        begin = START_NS + at * 60 * NANO
        prices = {"open": low, "high": high, "low": low, "close": close}
        made.append({"ts_event": begin, "instrument_id": instrument, "volume": volume, **prices})
        symbol = {17077: "ESH4", 42: "NQH4"}[instrument]
        numbers = [low / NANO, high / NANO, low / NANO, close / NANO, float(volume)]
        wanted.append((begin, begin + seconds * NANO, *numbers, 0, symbol_hash(symbol)))
    with tempfile.TemporaryDirectory() as folder:
        path = dbn_file(Path(folder), schema, records(package.OHLCVMsg, rtype, made))
        blocks, tally = run_importer("dbn", [path])
    found = np.frombuffer(b"".join(p for block in blocks for p in payloads_of(block)), BAR)
    assert np.isnan(found["quote_volume"]).all() and np.isnan(found["taker_buy_volume"]).all()
    names = ("start_ns", "end_ns", "open", "high", "low", "close", "volume", "trade_count", "symbol_hash")
    assert [tuple(row[name].item() for name in names) for row in found] == wanted
    assert (tally.rows, tally.stream) == (len(rows), "bars")
    assert all(block.type_id == TypeId.BAR for block in blocks)


def test_a_bar_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    bars = [{"ts_event": START_NS + at * 60 * NANO} for at in (0, 1, 1)]
    path = dbn_file(tmp_path, "ohlcv-1m", records(package.OHLCVMsg, 0x21, bars))
    with pytest.raises(InvalidSource, match=":3: ts_event goes back: records are out of order"):
        run_importer("dbn", [path])
    _, tally = run_importer("dbn", [path], ImportOptions(allow_unordered=True))
    assert (tally.rows, tally.unordered) == (3, 1)
    _, tally = run_importer("dbn", [path], ImportOptions(symbol="NQH4", allow_unordered=True))
    assert tally.rows == 0


def definition(symbol: str, tick: int, **more: Any) -> dict[str, Any]:
    texts = {"raw_symbol": symbol.encode(), "asset": b"ES", "currency": b"USD", "instrument_class": b"F"}
    numbers = {"min_price_increment": tick, "contract_multiplier": 50, "min_lot_size_round_lot": 1}
    return {**texts, **numbers, "ts_recv": START_NS, **more}


@pytest.mark.parametrize(("version", "layout"), [(1, "V1"), (2, "V2"), (3, "")])
def test_definitions_become_versions_of_the_symbol_catalogue(
    tmp_path: Path, version: int, layout: str
) -> None:
    day = 86_400 * NANO
    rows = [
        definition("ESH4", NANO // 4),
        definition("ESH4", NANO // 4, ts_recv=START_NS + 1),
        definition("NQH4", NANO // 4, contract_multiplier=2**31 - 1, unit_of_measure_qty=20 * NANO),
        definition("ESH4", NANO // 2, ts_recv=START_NS + day, instrument_id=17077),
        definition("X", UNDEFINED, min_lot_size_round_lot=2**31 - 1, instrument_class=b"C"),
    ]
    body = records(getattr(package, f"InstrumentDefMsg{layout}"), 0x13, rows)
    (result,) = import_into(
        tmp_path / "queue", "dbn", dbn_file(tmp_path, "definition", body, version=version)
    )
    assert (result.entry.rows, result.entry.groups) == (5, 0)
    assert any("5 definitions went to the symbol catalogue" in note for note in result.notes)
    found = load_symbols(tmp_path / "queue").versions
    assert [
        (
            row.exchange,
            row.exchange_symbol,
            row.tick_size,
            row.contract_size,
            row.asset_type,
            row.valid_from_ts,
        )
        for row in found
    ] == [
        ("cme", "ESH4", 0.25, 50.0, AssetType.FUTURE, START_NS // 1000),
        ("cme", "ESH4", 0.5, 50.0, AssetType.FUTURE, (START_NS + day) // 1000),
        ("cme", "NQH4", 0.25, 20.0, AssetType.FUTURE, START_NS // 1000),
        ("cme", "X", None, 50.0, AssetType.OPTION, START_NS // 1000),
    ]
    assert [row.is_current for row in found] == [False, True, True, True]


def test_a_deleted_instrument_has_no_version_from_then_on(tmp_path: Path) -> None:
    rows = [
        definition("ESH4", NANO // 4, security_update_action=b"A"),
        definition("NQH4", NANO // 4, security_update_action=b"A"),
        definition("ESH4", NANO // 4, security_update_action=b"D", ts_recv=START_NS + NANO),
    ]
    body = records(package.InstrumentDefMsg, 0x13, rows)
    import_into(tmp_path / "queue", "dbn", dbn_file(tmp_path, "definition", body))
    found = load_symbols(tmp_path / "queue").versions
    assert [(one.exchange_symbol, one.is_current) for one in found] == [("ESH4", False), ("NQH4", True)]
    assert found[0].valid_until_ts == (START_NS + NANO) // 1000
    (tmp_path / "queue" / SYMBOLS_FILE).unlink()
    assert refresh_symbols(str(tmp_path / "queue"))[1].versions == found


@given(
    st.lists(st.tuples(st.integers(0, 15), st.sampled_from((b"Y", b"N", b"~")), st.booleans()), max_size=12)
)
def test_status_records_are_heartbeats_that_say_if_it_trades(rows: list[tuple[int, bytes, bool]]) -> None:
    made = [
        {
            "action": action,
            "is_trading": trades,
            "is_quoting": b"Y" if quotes else b"N",
            "ts_recv": START_NS + at,
        }
        for at, (action, trades, quotes) in enumerate(rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = dbn_file(Path(folder), "status", records(package.StatusMsg, 0x12, made))
        blocks, tally = run_importer("dbn", [path])
    found = l3_records_of(blocks)
    wanted = [
        2 if trades == b"Y" or action == 7 else 1 if quotes or 1 <= action <= 6 else 0
        for action, trades, quotes in rows
    ]
    assert found["event"]["qty"].tolist() == wanted
    assert found["event"]["amt"].tolist() == [action for action, *_ in rows]
    assert (found["event"]["event_type"] == L3EventType.HEARTBEAT).all()
    assert (found["event"]["flags"] == L3Flags.NO_PRICE).all()
    assert (found["header"]["market_id"] == crypto_market_id("ESH4")).all()
    assert tally.rows == len(rows)


def test_sampled_quotes_are_snapshots_of_one_level_a_side(tmp_path: Path) -> None:
    rows = [
        {"bid_px_00": 5 * NANO, "bid_sz_00": 3, "ask_px_00": 6 * NANO, "ask_sz_00": 4, "sequence": 1},
        {"bid_px_00": UNDEFINED, "ask_px_00": 6 * NANO, "ask_sz_00": 2, "ts_event": 2**64 - 1, "sequence": 2},
    ]
    for schema, rtype in (("bbo-1s", 0xC3), ("bbo-1m", 0xC4)):
        path = dbn_file(tmp_path, schema, records(package.BBOMsg, rtype, rows))
        blocks, tally = run_importer("dbn", [path])
        first, second = l2_events_of(blocks)
        assert (first.bids, first.asks) == ([(5 * NANO, 3)], [(6 * NANO, 4)])
        assert (second.bids, second.asks) == ([], [(6 * NANO, 2)])
        assert second.header["exchange_ts_ns"] == START_NS + 5, "without a trade the time of the sample"
        flags = np.concatenate([block.flags for block in blocks if block.flags is not None])
        assert (flags & MessageFlags.LAST_OF_EVENT).all()
        assert (tally.rows, tally.stream) == (2, "l2")


def test_what_is_not_imported_is_named_with_what_is(tmp_path: Path) -> None:
    path = dbn_file(tmp_path, "imbalance", b"")
    with pytest.raises(InvalidSource, match=r"holds imbalance; imported are mbo, .*ohlcv-1s, .*definition"):
        run_importer("dbn", [path])
