"""SZSE files: golden rows, and whole simulated days with known truth through import and books."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from everlog.errors import InvalidConfig, InvalidSource
from everlog.market.book_set import BookSet, BookSettings, Market
from everlog.market.books import L3Book
from everlog.market.protocol import L3_RECORD, L3EventType, L3Flags, Side
from everlog.market.venues.interface import ImportOptions
from everlog.market.venues.szse import in_continuous_trading, local_times
from everlog.market.venues.szse_channels import COLUMNS
from everlog.queue import Message
from tests.market.venues.szse_day import SzseDay
from tests.support.import_runs import (
    import_into,
    l3_records_of,
    messages_of,
    packed,
    run_importer,
    write_archive,
)

CHANNELS = {2011: ("000001", "000002"), 2013: ("300750",)}
ORDER_HEADER = "ApplSeqNum,ChannelNo,Side,Price,OrderQty,OrdType,TransactTime,SendingTime"
TICK_HEADER = (
    "ApplSeqNum,ChannelNo,BidApplSeqNum,OfferApplSeqNum,Price,Qty,Amt,ExecType,TransactTime,SendingTime"
)
DAY = "20240102"


def symbol_files(folder: Path, orders: Sequence[str], ticks: Sequence[str]) -> list[Path]:
    """An order and a tick file of one symbol on channel 2011; rows have neither channel nor sending time."""
    paths = []
    for kind, header, rows in (("order", ORDER_HEADER, orders), ("tick", TICK_HEADER, ticks)):
        path = folder / f"{kind}_new_STK_SZ_{DAY}" / "000001.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [header]
        for row in rows:
            seq, rest = row.split(",", 1)
            lines.append(f"{seq},2011,{rest},{rest.rsplit(',', 1)[1]}")
        path.write_text("\n".join(lines) + "\n")
        paths.append(path)
    return paths


def test_golden_rows_give_the_documented_events(tmp_path: Path) -> None:
    orders = [
        f"1,1,10.01,100,2,{DAY}091500000",
        f"2,2,-1,200,1,{DAY}093000000",
        f"5,2,10.02,300,U,{DAY}145700000",
    ]
    ticks = [f"3,1,2,10.01,100,1001.000,F,{DAY}092559999", f"4,0,2,0,100,0,4,{DAY}092000000"]
    blocks, tally = run_importer("szse", symbol_files(tmp_path, orders, ticks))
    records = l3_records_of(blocks)
    header, event = records["header"], records["event"]
    assert header["seq"].tolist() == header["native_seq"].tolist() == [1, 2, 3, 4, 5]
    assert set(header["stream_id"].tolist()) == {2011}
    assert set(header["market_id"].tolist()) == {1}
    assert set(header["venue_id"].tolist()) == {2}
    add, cancel, trade = L3EventType.ORDER_ADD, L3EventType.ORDER_CANCEL, L3EventType.TRADE
    assert event["event_type"].tolist() == [add, add, trade, cancel, add]
    assert event["order_id"].tolist() == [1, 2, 0, 2, 5]
    assert event["side"].tolist() == [Side.BUY, Side.SELL, Side.UNKNOWN, Side.SELL, Side.SELL]
    assert event["price"].tolist() == [10010, 0, 10010, 0, 10020]
    assert event["qty"].tolist() == [100, 200, 100, 100, 300]
    assert event["amt"].tolist() == [0, 0, 1001000, 0, 0]
    assert event["ord_type"].tolist() == [2, 1, 0, 0, ord("U")]
    assert event["exec_type"].tolist() == [0, 0, ord("F"), 4, 0]
    assert set(event["price_scale"].tolist()) == {3} and set(event["size_scale"].tolist()) == {0}
    ids = L3Flags.RAW_HAS_BID_ID | L3Flags.RAW_HAS_ASK_ID
    assert event["flags"].tolist() == [
        L3Flags.AUCTION_OPEN,
        L3Flags.PRICE_IS_MARKET,
        L3Flags.AUCTION_OPEN | ids,
        L3Flags.PRICE_IS_MARKET
        | L3Flags.AUCTION_OPEN
        | L3Flags.CANCEL_RESTRICTED_WINDOW
        | L3Flags.RAW_HAS_ASK_ID,
        L3Flags.AUCTION_CLOSE,
    ]
    opening = datetime(2024, 1, 2, 9, 15, tzinfo=timezone(timedelta(hours=8)))
    assert header["exchange_ts_ns"][0] == int(opening.timestamp()) * 10**9
    assert tally.channel_symbols == {2011: {"000001"}}


def test_times_of_the_exchange_are_converted_exactly() -> None:
    stamps = [20240102091500123, 20240229235959999, 20240230000000000, 20240102246000000, 0]
    times = local_times(np.array(stamps, dtype=np.uint64))
    assert times.valid.tolist() == [True, True, False, False, False]
    zone = timezone(timedelta(hours=8))
    for stamp, found in zip(stamps[:2], times.utc_ns.tolist(), strict=False):
        expected = datetime.strptime(str(stamp)[:14], "%Y%m%d%H%M%S").replace(tzinfo=zone)
        assert found == int(expected.timestamp()) * 10**9 + stamp % 1000 * 10**6


@pytest.mark.parametrize("seed", range(3))
def test_a_whole_day_gives_the_true_books(tmp_path: Path, seed: int) -> None:
    day = SzseDay(CHANNELS, seed=seed, orders_per_symbol=400)
    paths = [Path(path) for path in day.write(str(tmp_path / "files"))]
    options = ImportOptions(full_channel=True)
    (result,) = import_into(tmp_path / "queue", "szse", *paths, options=options)
    messages = messages_of(tmp_path / "queue")
    assert result.entry.rows == len(messages) == sum(day.last_seq.values())
    assert (result.entry.symbol, result.entry.date) == ("MULTI", "2024-01-02")
    stamps = [message.timestamp_ns for message in messages]
    assert stamps == sorted(stamps), "channels are merged by the time of sending"
    books = BookSet(BookSettings())
    books.apply_packed(packed([message.payload for message in messages]))
    for symbol, truth in day.truth.items():
        book = books.books[Market(2, int(symbol))]
        assert isinstance(book, L3Book)
        found = {int(row["order_id"]): int(row["qty"]) for row in book.orders()}
        assert found == {number: order.rest for number, order in truth.orders.items()}
        for side, levels in zip((1, 2), book.depth(10**6), strict=True):
            assert dict(levels.tolist()) == truth.levels(side)
        assert truth.market_orders > 0 and truth.restricted_cancels > 0 and truth.trades > 0
    event = l3_events(messages)
    restricted = (event["flags"] & np.uint32(L3Flags.CANCEL_RESTRICTED_WINDOW)) != 0
    assert restricted.sum() == sum(truth.restricted_cancels for truth in day.truth.values())
    assert event["qty"][event["event_type"] == L3EventType.TRADE].sum() == sum(
        truth.traded for truth in day.truth.values()
    )


def l3_events(messages: Sequence[Message]) -> NDArray[np.void]:
    """The order-by-order events of messages."""
    events: NDArray[np.void] = np.frombuffer(b"".join(m.payload for m in messages), dtype=L3_RECORD)["event"]
    return events


def test_a_missing_message_of_a_full_channel_is_an_error_that_names_both_neighbours(tmp_path: Path) -> None:
    day = SzseDay(CHANNELS, seed=1, orders_per_symbol=60)
    paths = [Path(path) for path in day.write(str(tmp_path), drop={2011: {40}})]
    with pytest.raises(InvalidSource, match="channel 2011: sequence 39 is followed by 41"):
        run_importer("szse", paths, ImportOptions(full_channel=True))
    _, tally = run_importer("szse", paths)
    assert tally.rows == sum(day.last_seq.values()) - 1, "without the whole channel, gaps are normal"


@pytest.mark.parametrize("suffix", [".7z", ".zip"])
def test_archives_and_single_symbols_are_read_as_they_are(tmp_path: Path, suffix: str) -> None:
    day = SzseDay(CHANNELS, seed=2, orders_per_symbol=60)
    archives = []
    for folder in {Path(path).parent for path in day.write(str(tmp_path))}:
        archives.append(tmp_path / f"{folder.name}{suffix}")
        write_archive(archives[-1], sorted(folder.iterdir()))
    _, everything = run_importer("szse", archives)
    assert everything.channel_symbols == {number: set(symbols) for number, symbols in CHANNELS.items()}
    blocks, one = run_importer("szse", archives, ImportOptions(symbol="000002"))
    assert one.symbol == "000002"
    assert set(l3_records_of(blocks)["header"]["market_id"].tolist()) == {2}


def test_the_channel_index_of_the_queue_lists_symbols_both_ways(tmp_path: Path) -> None:
    day = SzseDay(CHANNELS, seed=3, orders_per_symbol=30)
    paths = [Path(path) for path in day.write(str(tmp_path / "files"))]
    import_into(tmp_path / "queue", "szse", *paths)
    index = json.loads((tmp_path / "queue" / "channel_index.json").read_text())
    assert index["date"] == "2024-01-02" and index["updated_at_ns"] > 0
    assert index["channel_to_symbols"] == {"2011": ["000001", "000002"], "2013": ["300750"]}
    assert index["symbol_to_channel"] == {"000001": 2011, "000002": 2011, "300750": 2013}


@pytest.mark.parametrize(
    ("orders", "ticks", "reason"),
    [
        ([f"1,1,1,1,2,{DAY}093000000"], [f"2,0,0,0,1,0,4,{DAY}093000000"], "a cancel must name one order"),
        ([f"1,1,1,1,2,{DAY}093000000"], [f"2,1,1,0,1,0,4,{DAY}093000000"], "a cancel must name one order"),
        ([f"2,1,1,1,2,{DAY}093000000", f"1,1,1,1,2,{DAY}093000000"], [], "ApplSeqNum goes back"),
        ([f"1,1,1,1,2,{DAY}253000000"], [], "is not a time"),
        ([f"1,3,1,1,2,{DAY}093000000"], [], "Side '3' is none of the known values"),
        ([f"1,1,-1.01,1,2,{DAY}093000000"], [], "Price is negative"),
        ([f"1,1,1.0001,1,2,{DAY}093000000"], [], "Price has more than 3 decimals"),
        ([f"1,1,1,10.5,2,{DAY}093000000"], [], "OrderQty has more than 0 decimals"),
        ([f"1,1,1,0,2,{DAY}093000000"], [], "it is of no shares"),
        ([], [f"2,1,0,1,0,0,F,{DAY}093000000"], "it is of no shares"),
        ([f"0,1,1,1,2,{DAY}093000000"], [], "ApplSeqNum is 0"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    tmp_path: Path, orders: list[str], ticks: list[str], reason: str
) -> None:
    with pytest.raises(InvalidSource, match=reason):
        run_importer("szse", symbol_files(tmp_path, orders, ticks))


def test_a_message_that_two_files_hold_is_refused_or_counted(tmp_path: Path) -> None:
    orders = [f"{number},1,10.00,100,2,{DAY}093000000" for number in (1, 3)]
    first, _ = symbol_files(tmp_path / "one", orders, [])
    again, _ = symbol_files(tmp_path / "two", orders[:1], [])
    with pytest.raises(InvalidSource, match=r"sequence 1 is followed by 1; two files hold the same message"):
        run_importer("szse", [first, again])
    _, tally = run_importer("szse", [first, again], ImportOptions(allow_unordered=True))
    assert (tally.rows, tally.unordered) == (3, 1)


def test_numbers_that_the_protocol_cannot_hold_are_refused(tmp_path: Path) -> None:
    path, _ = symbol_files(tmp_path, [f"1,1,10.00,100,2,{DAY}093000000"], [])
    path.write_text(path.read_text().replace(",2011,", f",{2**32 + 2011},"))
    with pytest.raises(InvalidSource, match="ChannelNo is above 4294967295"):
        run_importer("szse", [path])
    row = f"2011,1,ORDER,4294967297,1,0,0,1,10.00,100,0,2,,{DAY}093000000,{DAY}093000000,order"
    path.write_text(f"{','.join(COLUMNS)}\n{row}\n")
    with pytest.raises(InvalidSource, match="Symbol is above 999999"):
        run_importer("szse", [path])


def test_a_file_holds_one_channel_and_a_symbol_has_one(tmp_path: Path) -> None:
    orders, ticks = symbol_files(tmp_path, [f"1,1,1,1,2,{DAY}093000000"], [f"2,1,0,0,1,0,4,{DAY}093000000"])
    ticks.write_text(ticks.read_text().replace(",2011,", ",2012,"))
    with pytest.raises(InvalidSource, match="symbol 000001 is on channel 201"):
        run_importer("szse", [orders, ticks])
    orders.write_text(orders.read_text() + f"3,2012,1,1,1,2,{DAY}093000000,{DAY}093000000\n")
    with pytest.raises(InvalidSource, match="another channel in a file of channel 2011"):
        run_importer("szse", [orders])


def test_files_hold_one_day_and_days_are_not_mixed(tmp_path: Path) -> None:
    today, tomorrow = (f"1,1,10.01,100,2,{day}093000000" for day in (DAY, "20240103"))
    order_file, _ = symbol_files(tmp_path / "today", [today, tomorrow.replace("1,1", "2,1", 1)], [])
    with pytest.raises(InvalidSource, match=":3: another day in a file of 2024-01-02"):
        run_importer("szse", [order_file])
    first, _ = symbol_files(tmp_path / "today", [today], [])
    second, _ = symbol_files(tmp_path / "tomorrow", [tomorrow], [])
    with pytest.raises(InvalidSource, match=r"of 2024-01-02 and .* of 2024-01-03; import each day by itself"):
        run_importer("szse", [first, second])


def test_more_files_than_a_process_may_open_are_merged_and_empty_ones_do_no_harm(tmp_path: Path) -> None:
    files = []
    for number in range(120):
        files.append(tmp_path / f"{number + 1:06d}.csv")
        row = f"{number + 1},2011,1,10.01,100,2,{DAY}093000000,{DAY}093000000"
        files[-1].write_text("" if number == 60 else f"{ORDER_HEADER}\n{row}\n")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
    try:
        blocks, tally = run_importer("szse", files)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    wanted = [seq for seq in range(1, 121) if seq != 61]
    assert l3_records_of(blocks)["header"]["seq"].tolist() == wanted
    assert (tally.rows, tally.symbol) == (119, "MULTI")


def test_a_merged_file_gives_the_events_of_its_parts(tmp_path: Path) -> None:
    parts = symbol_files(
        tmp_path,
        [f"1,1,10.01,100,2,{DAY}093000000", f"2,2,10.01,100,2,{DAY}093000001"],
        [f"3,1,2,10.01,60,600.6,F,{DAY}093000002", f"4,1,0,0,40,0,4,{DAY}093000003"],
    )
    merged = tmp_path / "channel_2011.csv"
    merged.write_text(
        "ChannelNo,ApplSeqNum,Event,Symbol,OrderID,BidOrderID,OfferOrderID,Side,Price,Qty,Amt,OrdType,ExecType,"
        "TransactTime,SendingTime,Source\n"
        f"2011,1,ORDER,000001,1,0,0,1,10.01,100,0,2,,{DAY}093000000,{DAY}093000000,order\n"
        f"2011,2,ORDER,000001,2,0,0,2,10.01,100,0,2,,{DAY}093000001,{DAY}093000001,order\n"
        f"2011,3,TRADE,000001,0,1,2,,10.01,60,600.6,,F,{DAY}093000002,{DAY}093000002,tick\n"
        f"2011,4,CANCEL,000001,1,1,0,,0,40,0,,4,{DAY}093000003,{DAY}093000003,tick\n"
    )
    expected = l3_records_of(run_importer("szse", parts).blocks)
    assert l3_records_of(run_importer("szse", [merged]).blocks).tobytes() == expected.tobytes()
    merged.write_text(merged.read_text().replace("TRADE", "TICK"))
    with pytest.raises(InvalidSource, match="Event 'TICK' is none of the known values"):
        run_importer("szse", [merged])


def test_snapshots_are_comparable_in_continuous_trading_only() -> None:
    clocks = ["092559999", "092959999", "093000000", "112959999", "113000000", "125959999", "130000000"]
    clocks += ["145659999", "145700000", "150000000"]
    stamps = local_times(np.array([int(DAY + clock) for clock in clocks], dtype=np.uint64)).utc_ns
    assert in_continuous_trading(stamps).tolist() == [
        *(False, False, True, True, False),
        *(False, True, True, False, False),
    ]


def test_channel_files_hold_the_whole_day_and_give_the_same_events_again(tmp_path: Path) -> None:
    day = SzseDay(CHANNELS, seed=5, orders_per_symbol=80)
    paths = [Path(path) for path in day.write(str(tmp_path / "files"))]
    folder = tmp_path / "channels"
    import_into(tmp_path / "queue", "szse", *paths, channel_dir=str(folder))
    names = [f"channel_{number}.csv" for number in CHANNELS]
    assert sorted(path.name for path in folder.iterdir()) == names
    for number, name in zip(CHANNELS, names, strict=True):
        header, *rows = (folder / name).read_text().splitlines()
        assert header == (
            "ChannelNo,ApplSeqNum,Event,Symbol,OrderID,BidOrderID,OfferOrderID,Side,Price,Qty,Amt,OrdType,"
            "ExecType,TransactTime,SendingTime,Source"
        )
        assert [int(row.split(",")[1]) for row in rows] == list(range(1, day.last_seq[number] + 1))
        assert {tuple(row.split(",")[2::13]) for row in rows} == {
            ("ORDER", "order"),
            ("TRADE", "tick"),
            ("CANCEL", "tick"),
        }
    import_into(tmp_path / "again", "szse", *(folder / name for name in names))
    first, second = (messages_of(tmp_path / name) for name in ("queue", "again"))
    assert [bytes(message.payload) for message in first] == [bytes(message.payload) for message in second]


def test_an_import_that_fails_leaves_no_channel_file(tmp_path: Path) -> None:
    orders = [f"1,1,10.01,100,2,{DAY}091500000", f"2,1,x,100,2,{DAY}091500000"]
    with pytest.raises(InvalidSource):
        import_into(
            tmp_path / "queue", "szse", *symbol_files(tmp_path, orders, []), channel_dir=str(tmp_path / "c")
        )
    assert list((tmp_path / "c").iterdir()) == []


def test_only_szse_has_channel_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="channel files are made of szse files, not of lobster"):
        import_into(tmp_path / "queue", "lobster", tmp_path / "x.csv", channel_dir=str(tmp_path))
