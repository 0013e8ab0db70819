"""Tardis files: groups, snapshots and trades, on golden rows and against a plain replay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidSource
from everlog.market.books import L2Book
from everlog.market.protocol import (
    TRADE,
    BookEventType,
    BookFlags,
    MessageFlags,
    crypto_market_id,
    symbol_hash,
)
from everlog.market.venues import csv_blocks
from everlog.market.venues.interface import ImportOptions
from everlog.market.venues.simulated import PRICE_SCALE, SIZE_SCALE, SimulatedVenue
from everlog.queue import Queue
from tests.market.venues.tardis_files import BOOK_HEADER, TRADE_HEADER, write_tardis_files
from tests.support.import_runs import (
    import_into,
    l2_events_of,
    messages_of,
    packed,
    payloads_of,
    run_importer,
)


def book_file(folder: Path, *rows: str, header: str = BOOK_HEADER) -> Path:
    """A book file of binance's BTCUSDT; rows begin with the timestamp."""
    path = folder / "binance_incremental_book_L2_2024-01-02_BTCUSDT.csv"
    path.write_text("\n".join([header, *(f"binance,BTCUSDT,{row}" for row in rows)]) + "\n")
    return path


GOLDEN = (
    "90,100,false,bid,1.0,5",  # before the first snapshot: dropped
    "101,110,true,bid,41000.50,1.250",
    "102,110,true,ask,41001,2",
    "103,111,true,bid,41000.25,0.5",  # directly follows: the same snapshot
    "0,120,false,ask,41001.5,3",
    "119,120,false,bid,41000.5,0",
    "130,131,false,ask,41002,1e-7",
)


def test_golden_rows_give_the_documented_events(tmp_path: Path) -> None:
    blocks, tally = run_importer("tardis-book", [book_file(tmp_path, *GOLDEN)])
    snapshot, first, second = l2_events_of(blocks)
    assert (tally.rows, tally.dropped_rows, tally.groups) == (7, 1, 3)
    assert (tally.venue, tally.symbol, tally.date, tally.stream) == (
        "binance",
        "BTCUSDT",
        "2024-01-02",
        "book",
    )
    assert snapshot.header["event_type"] == BookEventType.SNAPSHOT
    assert (snapshot.body["price_scale"], snapshot.body["size_scale"]) == (2, 2)
    assert snapshot.bids == [(4100050, 125), (4100025, 50)]
    assert snapshot.asks == [(4100100, 200)]
    assert (snapshot.header["ingest_ts_ns"], snapshot.header["exchange_ts_ns"]) == (111_000, 103_000)
    assert first.header["event_type"] == BookEventType.DIFF
    assert first.header["flags"] == first.body["flags"] == BookFlags.ABSOLUTE
    assert (first.bids, first.asks) == ([(410005, 0)], [(410015, 3)])
    assert (first.body["price_scale"], first.body["size_scale"]) == (1, 0)
    assert first.header["exchange_ts_ns"] == 120_000, "a missing exchange time is the local one"
    assert (second.asks, second.body["size_scale"]) == ([(41002, 1)], 7)
    for number, event in enumerate((snapshot, first, second)):
        assert event.header["seq"] == event.header["native_seq"] == number
        assert event.header["market_id"] == crypto_market_id("BTCUSDT") == 3410467731
        assert event.header["venue_id"] == 1
    for number, event in ((1, first), (2, second)):
        ids = [int(event.body[f"{name}_update_id"]) for name in ("first", "last", "previous")]
        assert ids == [number, number, number - 1]


def test_the_message_timestamp_is_the_ingest_time(tmp_path: Path) -> None:
    import_into(tmp_path / "queue", "tardis-book", book_file(tmp_path, *GOLDEN))
    assert [message.timestamp_ns for message in messages_of(tmp_path / "queue")] == [
        111_000,
        120_000,
        131_000,
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,0,false,bid,1,1", "local_timestamp is 0"),
        ("1,2,false,bid,1", "another number of fields"),
        ("1,2,false,left,1,1", "side 'left' is none of the known values"),
        ("1,2,false,bid,x,1", "price 'x' is no number"),
        ("1,2,false,bid,1,-1", "amount '-1' is negative"),
        ("1,2,maybe,bid,1,1", "is_snapshot 'maybe' is none of the known values"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line_or_set_aside(tmp_path: Path, row: str, reason: str) -> None:
    path = book_file(tmp_path, *GOLDEN[:3], row, *GOLDEN[4:])
    with pytest.raises(InvalidSource) as caught:
        run_importer("tardis-book", [path])
    assert f"{path}:5: " in str(caught.value) and reason in str(caught.value)
    assert caught.value.line == 5
    quarantine = tmp_path / "quarantine.csv"
    _, tally = run_importer("tardis-book", [path], quarantine=quarantine)
    assert (tally.rows, tally.quarantined) == (6, 1)
    assert reason in quarantine.read_text() and f"binance,BTCUSDT,{row}" in quarantine.read_text()


def test_a_file_of_two_symbols_or_another_symbol_is_refused(tmp_path: Path) -> None:
    path = book_file(tmp_path, *GOLDEN)
    with pytest.raises(InvalidSource, match="not 'ETHUSDT' as the command says"):
        run_importer("tardis-book", [path], ImportOptions(symbol="ETHUSDT"))
    path.write_text(path.read_text() + "binance,ETHUSDT,1,140,false,bid,1,1\n")
    with pytest.raises(InvalidSource, match="symbol 'ETHUSDT' is not 'BTCUSDT' as in the first row"):
        run_importer("tardis-book", [path])


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text(
        '"amount", price ,side,is_snapshot,local_timestamp,timestamp,other,symbol,exchange\n'
        "2,1,sell,1,5,4,x,BTCUSDT,binance\r\n"
    )
    blocks, _ = run_importer("tardis-book", [path])
    assert l2_events_of(blocks)[0].asks == [(1, 2)]
    path.write_text("price,amount\n1,2\n")
    with pytest.raises(InvalidSource, match="no column exchange, symbol"):
        run_importer("tardis-book", [path])


def test_scales_can_be_given(tmp_path: Path) -> None:
    options = ImportOptions(price_scale=1, size_scale=3)
    blocks, _ = run_importer("tardis-book", [book_file(tmp_path, *GOLDEN)], options)
    snapshot, *_ = l2_events_of(blocks)
    assert snapshot.bids == [(410005, 1250), (410002, 500)], "digits beyond the scale are cut off"


def test_numbers_that_leave_64_bits_at_the_scale_of_their_event_are_noted(tmp_path: Path) -> None:
    row = "1,110,true,bid,0.000000000000000001,1"
    path = book_file(tmp_path, row, "1,110,true,ask,100,1")
    (result,) = import_into(tmp_path / "queue", "tardis-book", path)
    assert len(result.notes) == 1 and result.notes[0].startswith("1 prices or sizes are too large")
    options = ImportOptions(price_scale=4)
    (result,) = import_into(tmp_path / "queue", "tardis-book", path, force=True, options=options)
    (note,) = result.notes
    assert note.startswith("1 prices or sizes have more decimals than --price-scale")


ODD_FILES = {
    "carriage returns": "\r\n".join((BOOK_HEADER, "b,S,1,2,true,bid,1,1", "b,S,1,3,false,bid,1,2", "")),
    "quotes": f'{BOOK_HEADER}\n"b","S","1","2","true","bid","1","1"\nb,S,1,3,"false",bid,1,"2"\n',
    "no line feed at the end": f"{BOOK_HEADER}\nb,S,1,2,true,bid,1,1\nb,S,1,3,false,bid,1,2",
    "a further column": f"{BOOK_HEADER},x\nb,S,1,2,true,bid,1,1,\nb,S,1,3,false,bid,1,2,y\n",
    "a byte order mark": f"\ufeff{BOOK_HEADER}\nb,S,1,2,true,bid,1,1\nb,S,1,3,false,bid,1,2\n",
    "blank lines": f"{BOOK_HEADER}\n\nb,S,1,2,true,bid,1,1\n\n\nb,S,1,3,false,bid,1,2\n\n",
    "exponents": f"{BOOK_HEADER}\nb,S,1,2,true,bid,1E0,10e-1\nb,S,1,3,false,bid,0.1e1,2.0\n",
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_files_may_be_written_in_other_ways(tmp_path: Path, name: str) -> None:
    path = tmp_path / "odd.csv"
    path.write_bytes(ODD_FILES[name].encode())
    snapshot, diff = l2_events_of(run_importer("tardis-book", [path]).blocks)
    assert (snapshot.bids, diff.bids, diff.header["ingest_ts_ns"]) == ([(1, 1)], [(1, 2)], 3000)


@pytest.mark.parametrize("symbol", ["BTC/USDT", "XBT-ÜÑÍ", "btc usd", "123456"])
def test_symbols_may_be_any_text(tmp_path: Path, symbol: str) -> None:
    book, trades = tmp_path / "book.csv", tmp_path / "trades.csv"
    book.write_text(f"{BOOK_HEADER}\nb,{symbol},1,2,true,bid,1,1\n", encoding="utf-8")
    trades.write_text(f"{TRADE_HEADER}\nb,{symbol},1,2,9,buy,1,1\n", encoding="utf-8")
    (event,) = l2_events_of(run_importer("tardis-book", [book]).blocks)
    assert event.header["market_id"] == crypto_market_id(symbol)
    (block,), tally = run_importer("tardis-trades", [trades])
    assert block.payloads["symbol_hash"].tolist() == [symbol_hash(symbol)] and tally.symbol == symbol


def test_local_time_that_goes_back_begins_another_event(tmp_path: Path) -> None:
    path = book_file(tmp_path, "1,110,true,bid,1,1", "1,120,false,bid,1,2", "1,115,false,bid,1,3")
    with pytest.raises(InvalidSource, match=":4: local_timestamp goes back"):
        run_importer("tardis-book", [path])
    blocks, tally = run_importer("tardis-book", [path], ImportOptions(allow_unordered=True))
    events = l2_events_of(blocks)
    assert [int(event.header["ingest_ts_ns"]) for event in events] == [110_000, 120_000, 115_000]
    assert tally.unordered == 1


def test_a_snapshot_in_the_middle_begins_the_book_anew(tmp_path: Path) -> None:
    path = book_file(
        tmp_path,
        "1,110,true,bid,1,1",
        "1,120,false,bid,2,1",
        "1,130,true,bid,3,1",
        "1,131,true,ask,4,0",
        "1,140,false,bid,2,0",
    )
    blocks, _ = run_importer("tardis-book", [path])
    book = L2Book()
    book.apply_array(packed([payload for block in blocks for payload in payloads_of(block)]))
    assert (book.bids()["price"].tolist(), len(book.asks())) == ([3], 0)


def test_a_file_without_a_snapshot_or_without_rows_is_noted(tmp_path: Path) -> None:
    path = book_file(tmp_path, "1,110,false,bid,1,1")
    (result,) = import_into(tmp_path / "queue", "tardis-book", path)
    assert result.notes == ("the file has no snapshot, so none of its rows became an event",)
    assert (result.entry.rows, result.entry.dropped_rows, result.entry.groups) == (1, 1, 0)
    options = ImportOptions(symbol="BTCUSDT", venue="binance")
    (result,) = import_into(tmp_path / "queue", "tardis-book", book_file(tmp_path), options=options)
    assert result.notes == ("the file has no rows",)
    path.write_bytes(b"")
    with pytest.raises(InvalidSource, match="is empty, without even a header"):
        import_into(tmp_path / "queue", "tardis-book", path)


def test_trades_of_a_group_of_symbols_are_told_apart_or_picked(tmp_path: Path) -> None:
    path = tmp_path / "deribit_trades_2024-01-02_PERPETUALS.csv"
    names = ["BTC-PERPETUAL", "ETH-PERPETUAL", "BTC-PERPETUAL"]
    rows = [f"deribit,{name},1,{n + 2},{n},buy,1,1" for n, name in enumerate(names)]
    path.write_text("\n".join((TRADE_HEADER, *rows)) + "\n")
    (block,), tally = run_importer("tardis-trades", [path])
    assert block.payloads["symbol_hash"].tolist() == [symbol_hash(name) for name in names]
    assert (tally.symbol, tally.date, tally.rows) == ("MULTI", "2024-01-02", 3)
    (block,), tally = run_importer("tardis-trades", [path], ImportOptions(symbol="ETH-PERPETUAL"))
    assert block.payloads["trade_id"].tolist() == [1]
    assert tally.notes == [f"{path}: 2 rows of other symbols than ETH-PERPETUAL were left out"]
    with pytest.raises(InvalidSource, match="not 'SOL-PERPETUAL' as the command says"):
        run_importer("tardis-trades", [path], ImportOptions(symbol="SOL-PERPETUAL"))


rows = st.lists(
    st.tuples(
        st.integers(0, 2),  # how far local time goes on
        st.sampled_from([True, False, False, False]),
        st.sampled_from(["bid", "ask"]),
        st.integers(1, 30),
        st.sampled_from(["0", "1", "2.5", "0.125", "7"]),
    ),
    max_size=60,
)


@given(rows=rows, block_bytes=st.sampled_from([16, 64, 1 << 20]))
def test_events_give_the_book_that_a_plain_replay_of_the_rows_gives(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, bool, str, int, str]], block_bytes: int
) -> None:
    local, lines, stamped = 100, [], []
    for step, is_snapshot, side, price, amount in rows:
        local += step
        lines.append(f"{local},{local},{str(is_snapshot).lower()},{side},{price / 4},{amount}")
        stamped.append((local, is_snapshot, side, price, float(amount)))
    path = book_file(tmp_path_factory.mktemp("rows"), *lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_blocks, "BLOCK_BYTES", block_bytes)
        blocks, tally = run_importer("tardis-book", [path])
    book = L2Book()
    payloads = [payload for block in blocks for payload in payloads_of(block)]
    if payloads:
        book.apply_array(packed(payloads))
    found = tuple(
        {level["price"] * 4 / 10**book.price_scale: level["size"] / 10**book.size_scale for level in side}
        for side in (book.bids(), book.asks())
    )
    assert found == plain_book(stamped)
    assert tally.rows == len(rows)


def plain_book(
    rows: list[tuple[int, bool, str, int, float]],
) -> tuple[dict[float, float], dict[float, float]]:
    """The book after all rows, by the vendor's rules, with nothing but dictionaries."""
    groups: list[list[tuple[int, bool, str, int, float]]] = []
    for row in rows:
        if groups and groups[-1][0][0] == row[0]:
            groups[-1].append(row)
        else:
            groups.append([row])
    book: tuple[dict[float, float], dict[float, float]] = ({}, {})
    started, in_snapshot = False, False
    for group in groups:
        is_snapshot = any(row[1] for row in group)
        if is_snapshot and not in_snapshot:
            book[0].clear()
            book[1].clear()
        started, in_snapshot = started or is_snapshot, is_snapshot
        if not started:
            continue
        for _, _, side, price, amount in group:
            levels = book[side == "ask"]
            levels.pop(price, None)
            if amount:
                levels[price] = amount
    return book


def test_trades_are_taken_over_field_by_field(tmp_path: Path) -> None:
    path = tmp_path / "binance_trades_2024-01-02_BTCUSDT.csv"
    path.write_text(
        TRADE_HEADER + "\n"
        "binance,BTCUSDT,100,110,77,sell,41000.55,0.001\n"
        "binance,BTCUSDT,0,120,ab-1,buy,41001,2\n"
        "binance,BTCUSDT,130,131,,unknown,0.3,7\n"
    )
    (result,) = import_into(tmp_path / "queue", "tardis-trades", path)
    messages = messages_of(tmp_path / "queue")
    trades = np.frombuffer(b"".join(message.payload for message in messages), dtype=TRADE)
    assert result.entry.stream == "trades"
    assert [message.type_id for message in messages] == [0x1002] * 3
    assert [message.timestamp_ns for message in messages] == [110_000, 120_000, 131_000]
    assert trades["timestamp_ns"].tolist() == [100_000, 120_000, 130_000]
    assert trades["price"].tolist() == [41000.55, 41001.0, 0.3]
    assert trades["qty"].tolist() == [0.001, 2.0, 7.0]
    assert trades["trade_id"].tolist() == [77, symbol_hash("ab-1"), 0]
    assert trades["is_buyer_maker"].tolist() == [1, 0, 0]
    assert set(trades["symbol_hash"].tolist()) == {symbol_hash("BTCUSDT")}
    assert flags_of(tmp_path / "queue") == [2, 2, 3]


def flags_of(queue: Path) -> list[int]:
    """The header flags of every message."""
    with Queue.open_subscriber(queue, None, "earliest") as reader:
        return [view.flags for view in reader]


def test_files_of_a_simulated_venue_give_its_book_and_its_trades(tmp_path: Path) -> None:
    venue = SimulatedVenue(["SIMUSD"], seed=11, kinds=("l2", "trades"), rate=1000.0)
    book_path, trades_path = write_tardis_files(venue, 3000, tmp_path)
    (book_import,) = import_into(tmp_path / "book", "tardis-book", book_path)
    book = L2Book()
    book.apply_array(packed([message.payload for message in messages_of(tmp_path / "book")]))
    book.set_scales(PRICE_SCALE, SIZE_SCALE)
    found = tuple(dict(side.tolist()) for side in (book.bids(), book.asks()))
    assert found == venue.levels("SIMUSD")
    assert (book_import.entry.dropped_rows, book_import.entry.venue) == (0, "simulated")
    import_into(tmp_path / "trades", "tardis-trades", trades_path)
    trades = np.frombuffer(b"".join(m.payload for m in messages_of(tmp_path / "trades")), dtype=TRADE)
    assert trades["trade_id"].tolist() == list(range(1, len(trades) + 1)) and len(trades) > 20


def test_trades_that_arrived_together_and_parts_of_a_long_diff_are_one_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b_trades_2024-01-02_S.csv"
    times = [5, 5, 5, 6, 7, 7]
    rows = [f"b,S,1,{time},{n},{'unknown' if n == 0 else 'buy'},1,1" for n, time in enumerate(times)]
    path.write_text("\n".join((TRADE_HEADER, *rows)) + "\n")
    blocks = run_importer("tardis-trades", [path]).blocks
    flags = [int(flag) for block in blocks for flag in (block.flags if block.flags is not None else ())]
    last = int(MessageFlags.LAST_OF_EVENT)
    assert flags == [int(MessageFlags.SIDE_UNKNOWN), 0, last, last, 0, last]
    monkeypatch.setattr("everlog.market.venues.tardis.MAX_DIFF_LEVELS", 2)
    levels = [f"1,20,false,bid,{price},1" for price in range(1, 6)]
    book = book_file(tmp_path, "1,10,true,bid,1,1", *levels, "1,30,false,bid,1,2")
    import_into(tmp_path / "queue", "tardis-book", book)
    with Queue.open_subscriber(tmp_path / "queue", None, "earliest") as reader:
        assert [view.flags & last for view in reader] == [last, 0, 0, last, last]
