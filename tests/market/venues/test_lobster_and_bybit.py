"""LOBSTER rows and Bybit messages, one rule at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import InvalidSource
from everlog.market.protocol import BookEventType, L3EventType, L3Flags, Side, crypto_market_id
from everlog.market.venues.interface import ImportOptions
from tests.support.import_runs import l2_events_of, l3_records_of, run_importer

ROWS = (
    "34200.004241176,1,11,18,5853300,1",
    "34200.1,1,12,20,5853400,-1",
    "34201,2,11,8,5853300,1",
    "34202,4,12,5,5853400,-1",
    "34203,5,0,7,5853350,1",
    "34204,3,11,10,5853300,1",
    "34205,7,0,0,-1,-1",
)
NEW_YORK_MIDNIGHT_NS = 1_340_251_200 * 10**9  # 2012-06-21, UTC-4 in summer


def lobster(folder: Path, *rows: str, name: str = "AAPL_2012-06-21_34200000_57600000_message_50.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(rows) + "\n")
    return path


def test_lobster_rows_give_the_documented_events(tmp_path: Path) -> None:
    blocks, tally = run_importer("lobster", [lobster(tmp_path, *ROWS)])
    records = l3_records_of(blocks)
    header, event = records["header"], records["event"]
    kinds = L3EventType
    assert event["event_type"].tolist() == [
        kinds.ORDER_ADD,
        kinds.ORDER_ADD,
        kinds.ORDER_CANCEL,
        kinds.TRADE,
        kinds.TRADE,
        kinds.ORDER_CANCEL,
        kinds.HEARTBEAT,
    ]
    assert event["exec_type"].tolist() == [1, 1, 2, 4, 5, 3, 7]
    assert event["order_id"].tolist() == [11, 12, 11, 12, 0, 11, 0]
    assert event["ask_order_id"].tolist() == [0, 0, 0, 12, 0, 0, 0]
    assert event["flags"][3] == L3Flags.RAW_HAS_ASK_ID
    assert event["price"].tolist() == [5853300, 5853400, 5853300, 5853400, 5853350, 5853300, 0]
    assert event["qty"].tolist() == [18, 20, 8, 5, 7, 10, 0]
    assert event["side"].tolist()[:2] == [Side.BUY, Side.SELL]
    assert header["exchange_ts_ns"][0] == NEW_YORK_MIDNIGHT_NS + 34200_004241176
    assert header["seq"].tolist() == list(range(1, 8))
    assert set(header["market_id"].tolist()) == {crypto_market_id("AAPL")}
    assert (tally.venue, tally.symbol, tally.date) == ("nasdaq", "AAPL", "2012-06-21")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("34200,9,1,1,1,1", "type '9' is none of the known values"),
        ("34200,1,1,1,-5,1", "price is negative"),
        ("34200,1,1,1,5,2", "direction '2' is none of the known values"),
        ("34200,1,1,1,5.5,1", "price '5.5' is no number"),
    ],
)
def test_a_bad_lobster_row_is_named(tmp_path: Path, row: str, reason: str) -> None:
    with pytest.raises(InvalidSource, match=f":2: {reason}"):
        run_importer("lobster", [lobster(tmp_path, ROWS[0], row)])


def test_a_lobster_file_must_tell_symbol_and_day(tmp_path: Path) -> None:
    path = lobster(tmp_path, *ROWS, name="messages.csv")
    with pytest.raises(InvalidSource, match="say --symbol"):
        run_importer("lobster", [path])
    with pytest.raises(InvalidSource, match="say --date"):
        run_importer("lobster", [path], ImportOptions(symbol="AAPL"))
    with pytest.raises(InvalidSource, match="no day of the calendar"):
        run_importer("lobster", [path], ImportOptions(symbol="AAPL", date="2012-02-30"))
    winter = run_importer("lobster", [path], ImportOptions(symbol="AAPL", date="2012-01-20"))
    assert l3_records_of(winter.blocks)["header"]["ingest_ts_ns"][2] == (1_327_035_600 + 34201) * 10**9


def message(kind: str, number: int, bids: Any = (), asks: Any = (), **more: Any) -> str:
    data = {"s": "XRPUSDT", "b": bids, "a": asks, "u": number, "seq": number * 10}
    return json.dumps(
        {"topic": "orderbook.500.XRPUSDT", "type": kind, "ts": 1000 + number, "data": data, **more}
    )


def bybit(folder: Path, *lines: str) -> Path:
    path = folder / "2024-12-01_XRPUSDT_ob500.data"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_bybit_messages_give_snapshots_and_diffs(tmp_path: Path) -> None:
    lines = (
        message("snapshot", 5, [["1.10", "7"], ["1.20", "3.50"]], [["1.3", "1"]]),
        message("delta", 6, [["1.20", "0"]], [["1.35", "2"], ["1.3", "0.5"]], cts=1001),
        message("delta", 7),
    )
    blocks, tally = run_importer("bybit", [bybit(tmp_path, *lines)])
    snapshot, delta, empty = l2_events_of(blocks)
    assert snapshot.header["event_type"] == BookEventType.SNAPSHOT
    assert (snapshot.bids, snapshot.asks) == ([(12, 35), (11, 70)], [(13, 10)])
    assert (delta.bids, delta.asks) == ([(120, 0)], [(135, 20), (130, 5)])
    assert (empty.bids, empty.asks) == ([], [])
    assert [int(event.header["seq"]) for event in (snapshot, delta, empty)] == [5, 6, 7]
    assert delta.body["previous_update_id"] == 5
    assert (delta.header["ingest_ts_ns"], delta.header["exchange_ts_ns"]) == (1006 * 10**6, 1001 * 10**6)
    assert (tally.symbol, tally.date, tally.gaps) == ("XRPUSDT", "2024-12-01", 0)


def test_a_hole_in_the_update_ids_is_counted_noted_and_stays_visible(tmp_path: Path) -> None:
    path = bybit(tmp_path, message("snapshot", 5), message("delta", 6), message("delta", 9))
    blocks, tally = run_importer("bybit", [path])
    assert tally.gaps == 1 and f"{path}:3: update id 9 follows 6" in tally.notes[0]
    assert l2_events_of(blocks)[2].body["previous_update_id"] == 8


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no order-book message"),
        (message("delta", 6, [["x", "1"]]), "price in .* is no number"),
        (message("delta", 6, [["1", "-1"]]), "size in .* is negative"),
        (message("other", 6), "neither snapshot nor delta"),
        (message("delta", -6), "cannot be negative"),
    ],
)
def test_a_bad_bybit_message_is_named_or_set_aside(tmp_path: Path, line: str, reason: str) -> None:
    path = bybit(tmp_path, message("snapshot", 5), line, message("delta", 6))
    with pytest.raises(InvalidSource, match=f":2: .*{reason}"):
        run_importer("bybit", [path])
    blocks, tally = run_importer("bybit", [path], quarantine=tmp_path / "quarantine.csv")
    assert (len(l2_events_of(blocks)), tally.rows, tally.quarantined) == (2, 2, 1)
