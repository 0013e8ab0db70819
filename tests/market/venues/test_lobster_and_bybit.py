"""LOBSTER rows and Bybit messages, one rule at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import InvalidSource
from everlog.market.book_set import BookSet, Market
from everlog.market.books import L2Book, L3Book
from everlog.market.protocol import BookEventType, L3EventType, L3Flags, Side, crypto_market_id
from everlog.market.venues import archives
from everlog.market.venues import bybit as bybit_format
from everlog.market.venues.interface import ImportOptions
from tests.support.import_runs import (
    import_into,
    l2_event,
    l2_events_of,
    l3_records_of,
    messages_of,
    packed,
    payloads_of,
    run_importer,
    write_archive,
)

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
        ("34200,3,0,1,5,1", "it names no order"),
        ("34200,4,-1,1,5,1", "it names no order"),
        ("34200,1,1,1,5,0", "it has no side"),
        ("34200,7,0,0,-2,-1", "a halt has price -1, 0 or 1"),
        ("34200,2,1,0,5,1", "it is of no shares"),
        ("86400,1,1,1,5,1", "the time is later than the end of the day"),
    ],
)
def test_a_bad_lobster_row_is_named(tmp_path: Path, row: str, reason: str) -> None:
    with pytest.raises(InvalidSource, match=f":2: {reason}"):
        run_importer("lobster", [lobster(tmp_path, ROWS[0], row)])


def test_a_lobster_file_must_tell_symbol_and_day(tmp_path: Path) -> None:
    path = lobster(tmp_path, *ROWS, name="messages.csv")
    with pytest.raises(InvalidSource, match="pass --symbol"):
        run_importer("lobster", [path])
    with pytest.raises(InvalidSource, match="pass --date"):
        run_importer("lobster", [path], ImportOptions(symbol="AAPL"))
    with pytest.raises(InvalidSource, match="not a day of the calendar"):
        run_importer("lobster", [path], ImportOptions(symbol="AAPL", date="2012-02-30"))
    winter = run_importer("lobster", [path], ImportOptions(symbol="AAPL", date="2012-01-20"))
    assert l3_records_of(winter.blocks)["header"]["ingest_ts_ns"][2] == (1_327_035_600 + 34201) * 10**9


def test_crosses_and_halts_touch_no_order(tmp_path: Path) -> None:
    rows = ("34200.5,6,-1,1000,5850000,-1", "34201,6,0,5,5850000,0", "34202,7,0,0,0,-1", "34203,7,-1,0,1,0")
    event = l3_records_of(run_importer("lobster", [lobster(tmp_path, *rows)]).blocks)["event"]
    assert event["event_type"].tolist() == [L3EventType.TRADE] * 2 + [L3EventType.HEARTBEAT] * 2
    assert event["order_id"].tolist() == [0] * 4
    assert event["qty"].tolist() == [1000, 5, 1, 2], "a halt's price is kept as 0, 1, 2"
    assert event["side"].tolist() == [Side.SELL, Side.UNKNOWN, Side.SELL, Side.UNKNOWN]


@pytest.mark.parametrize("digits", range(10))
def test_seconds_may_have_any_number_of_decimals(tmp_path: Path, digits: int) -> None:
    time = f"34200.{'123456789'[:digits]}".rstrip(".")
    records = l3_records_of(run_importer("lobster", [lobster(tmp_path, f"{time},1,11,18,5853300,1")]).blocks)
    after_ns = records["header"]["exchange_ts_ns"].tolist()[0] - NEW_YORK_MIDNIGHT_NS
    assert after_ns == 34200 * 10**9 + int("123456789"[:digits].ljust(9, "0"))


def test_an_archive_of_messages_a_book_and_a_description_is_one_import(tmp_path: Path) -> None:
    messages = lobster(tmp_path, *ROWS)
    book = lobster(
        tmp_path,
        "5859400,200,5853300,18,9999999999,0,-9999999999,0",
        name="AAPL_2012-06-21_34200000_57600000_orderbook_2.csv",
    )
    readme = tmp_path / "LOBSTER_SampleFiles_ReadMe.txt"
    readme.write_text("Please read.")
    archive = tmp_path / "LOBSTER_SampleFile_AAPL_2012-06-21_2.zip"
    write_archive(archive, [messages, book, readme])
    (result,) = import_into(tmp_path / "queue", "lobster", archive)
    assert (result.entry.rows, result.entry.symbol, result.entry.date) == (7, "AAPL", "2012-06-21")
    assert [note.partition("!")[2] for note in result.notes] == [
        f"{readme.name} is not market data; it was left out",
    ]
    assert result.entry.groups == 7 + 1, "the ask; the bid is that of the first message"


def test_symbols_of_one_day_in_one_queue_are_feeds_of_their_own(tmp_path: Path) -> None:
    files = [
        lobster(tmp_path, *rows, name=f"{name}_2012-06-21_message_1.csv")
        for name, rows in (("AAPL", ROWS), ("MSFT", ROWS[:6]))
    ]
    other_day = lobster(tmp_path, ROWS[0], name="AAPL_2012-06-22_message_1.csv")
    queue = tmp_path / "queue"
    import_into(queue, "lobster", *files)
    archive = tmp_path / "both.zip"
    write_archive(archive, files)
    (both,) = import_into(tmp_path / "other", "lobster", archive)
    assert (both.entry.symbol, both.entry.rows) == ("MULTI", 13)
    for imported in (queue, tmp_path / "other"):
        books = BookSet()
        for found in messages_of(imported):
            books.apply(found.payload)
        assert {market.market_id for market in books.books} == {
            crypto_market_id(name) for name in ("AAPL", "MSFT")
        }
    import_into(queue, "lobster", other_day)
    books = BookSet()
    for found in messages_of(queue):
        books.apply(found.payload)
    book = books.books[Market(4, crypto_market_id("AAPL"))]
    assert isinstance(book, L3Book)
    assert book.order_count == 1, "the day before left nothing in the book"


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


def test_updates_before_the_first_snapshot_are_dropped_and_counted(tmp_path: Path) -> None:
    path = bybit(tmp_path, message("delta", 4, [["9", "9"]]), message("snapshot", 5), message("delta", 6))
    blocks, tally = run_importer("bybit", [path])
    assert len(l2_events_of(blocks)) == 2
    assert (tally.rows, tally.dropped_rows, tally.gaps) == (3, 1, 0)


def test_a_restart_of_the_service_begins_the_book_and_its_numbers_anew(tmp_path: Path) -> None:
    lines = (
        message("snapshot", 900, [["1.5", "10"], ["1.4", "1e-7"]], [["1.6", "3"]]),
        message("delta", 901, [["7.7", "0"]], []),
        message("snapshot", 1, [["2.5", "1"]], [["2.6", "3"]]),
        message("delta", 2, [["2.5", "0"]], None),
        message("delta", 3, None, [["2.7", "0.5"]]),
    )
    blocks, tally = run_importer("bybit", [bybit(tmp_path, *lines)])
    book = L2Book()
    book.apply_array(packed([payload for block in blocks for payload in payloads_of(block)]))
    assert (len(book.bids()), tally.gaps) == (0, 0)
    found = [(book.render_price(price), book.render_size(size)) for price, size in book.asks().tolist()]
    assert found == [("2.6", "3"), ("2.7", "0.5")]


def test_an_archive_of_several_symbols_and_days_is_one_import(tmp_path: Path) -> None:
    files = []
    for day, symbol in (("2024-12-02", "XRPUSDT"), ("2024-12-01", "XRPUSDT"), ("2024-12-01", "BTCUSDT")):
        files.append(tmp_path / f"{day}_{symbol}_ob200.data")
        files[-1].write_text(message("snapshot", 5, [["1", "2"]]).replace("XRPUSDT", symbol))
    archive = tmp_path / "orderbooks.zip"
    write_archive(archive, files)
    (result,) = import_into(tmp_path / "queue", "bybit", archive)
    assert (result.entry.symbol, result.entry.date, result.entry.rows) == ("MULTI", "2024-12-01", 3)
    markets = [l2_event(found.payload).header["market_id"] for found in messages_of(tmp_path / "queue")]
    assert markets == [crypto_market_id(name) for name in ("BTCUSDT", "XRPUSDT", "XRPUSDT")]


def test_messages_are_packed_together_only_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bybit_format, "LEVELS_MAX", 10)
    levels = [["1", "1"], ["2", "1"], ["3", "1"], ["4", "1"]]
    lines = [message("snapshot", 1), *(message("delta", n, levels) for n in range(2, 12))]
    blocks, _ = run_importer("bybit", [bybit(tmp_path, *lines)])
    assert [len(block) for block in blocks] == [1, 3, 3, 3, 1]
    assert [int(event.header["seq"]) for event in l2_events_of(blocks)] == list(range(1, 12))


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LINE_BYTES_MAX", 1000)
    path = bybit(tmp_path, message("snapshot", 5))
    path.write_text(path.read_text() + "x" * 5000)
    with pytest.raises(InvalidSource, match=":2: a line of more than 1000 bytes"):
        run_importer("bybit", [path])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no order-book message"),
        (message("delta", 6).replace("XRPUSDT", "BTCUSDT"), "symbol 'BTCUSDT' in a file of 'XRPUSDT'"),
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
