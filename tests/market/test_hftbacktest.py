"""Files for hftbacktest: its own depth over them is our book."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from everlog.errors import InvalidConfig
from everlog.market import hftbacktest
from everlog.market import hftbacktest_rows as export
from everlog.market.books import L2Book
from everlog.market.protocol import TRADE, BookEventType, MessageFlags, TypeId
from everlog.market.replay import Replay
from everlog.queue import Queue
from tests.support.book_twins import l2_record
from tests.support.market_queues import simulated_queue, write_market_queue

BEGIN_NS = 1_700_000_000_000_000_000


def depth_of(rows: np.ndarray, flag: int) -> tuple[dict[float, float], dict[float, float]]:
    """The book that a reader of the rows with a flag has at the end."""
    sides: tuple[dict[float, float], dict[float, float]] = ({}, {})
    for row in rows[(rows["ev"] & flag) != 0]:
        if row["ev"] & 0xFF in (export.DEPTH_EVENT, export.DEPTH_SNAPSHOT_EVENT):
            side = sides[0 if row["ev"] & export.BUY_EVENT else 1]
            side[float(row["px"])] = float(row["qty"])
    return tuple({px: qty for px, qty in side.items() if qty} for side in sides)  # type: ignore[return-value]


def book_of(path: Path) -> tuple[dict[float, float], dict[float, float]]:
    book = L2Book()
    for some in Replay(str(path)).types(TypeId.BOOK_EVENT).batches():
        for payload in some.packed:
            book.apply(payload)
    sides = ((book.bids(), 0), (book.asks(), 1))
    units = 10.0**book.price_scale, 10.0**book.size_scale
    return tuple(  # type: ignore[return-value]
        {float(row["price"] / units[0]): float(row["size"] / units[1]) for row in levels}
        for levels, _ in sides
    )


def write(
    path: Path, events: list[tuple[BookEventType, list[tuple[int, int]], list[tuple[int, int]], int, int]]
) -> None:
    with Queue.open_publisher(path) as writer:
        for kind, bids, asks, local_ns, exchange_ns in events:
            payload = l2_record(kind, bids, asks, scales=(1, 2), times_ns=(local_ns, exchange_ns))
            writer.append(TypeId.BOOK_EVENT, payload, local_ns)


def test_the_book_of_a_simulated_market_is_the_same_there(tmp_path: Path) -> None:
    simulated_queue(tmp_path / "q", symbols=1, seconds=0.2, rate=20_000, kinds="l2,trades")
    rows = hftbacktest.to_hftbacktest([Replay(str(tmp_path / "q"))])
    assert (rows["ev"] & 0xFF == export.TRADE_EVENT).any()
    for flag in (export.EXCH_EVENT, export.LOCAL_EVENT):
        assert depth_of(rows, flag) == book_of(tmp_path / "q")
    assert (np.diff(rows["exch_ts"][rows["ev"] & export.EXCH_EVENT != 0]) >= 0).all()
    assert (np.diff(rows["local_ts"][rows["ev"] & export.LOCAL_EVENT != 0]) >= 0).all()


def test_levels_that_a_snapshot_or_a_reset_takes_away_are_set_to_0(tmp_path: Path) -> None:
    write(
        tmp_path,
        [
            (BookEventType.SNAPSHOT, [(10, 100), (9, 100)], [(11, 100)], BEGIN_NS, BEGIN_NS - 5),
            (BookEventType.DIFF, [(8, 300)], [(12, 50)], BEGIN_NS + 1, BEGIN_NS - 4),
            (BookEventType.SNAPSHOT, [(10, 200)], [(12, 100)], BEGIN_NS + 2, 0),
            (BookEventType.RESET, [], [], BEGIN_NS + 3, BEGIN_NS + 3),
            (BookEventType.DIFF, [(7, 700)], [], BEGIN_NS + 4, BEGIN_NS + 4),
        ],
    )
    rows = hftbacktest.to_hftbacktest([Replay(str(tmp_path))])
    assert depth_of(rows, export.LOCAL_EVENT) == ({0.7: 7.0}, {})
    of_second = rows[rows["local_ts"] == BEGIN_NS + 2]
    assert sorted((row["px"], row["qty"]) for row in of_second) == [
        (0.8, 0.0),
        (0.9, 0.0),
        (1.0, 2.0),
        (1.1, 0.0),
        (1.2, 1.0),
    ]
    assert (of_second["exch_ts"] == BEGIN_NS + 2).all()


def test_times_of_the_exchange_that_go_back_make_a_row_for_each_reader(tmp_path: Path) -> None:
    stamps = [(BEGIN_NS + 10, BEGIN_NS), (BEGIN_NS + 20, BEGIN_NS - 5), (BEGIN_NS + 30, BEGIN_NS + 25)]
    write(
        tmp_path,
        [(BookEventType.DIFF, [(5 + n, 1)], [], local, exch) for n, (local, exch) in enumerate(stamps)],
    )
    rows = hftbacktest.to_hftbacktest([Replay(str(tmp_path))])
    exch, local = rows["ev"] & export.EXCH_EVENT != 0, rows["ev"] & export.LOCAL_EVENT != 0
    assert rows["exch_ts"][exch].tolist() == sorted(exchange for _, exchange in stamps)
    assert rows["local_ts"][local].tolist() == [local_ns for local_ns, _ in stamps]
    assert not (exch & local).any()


def test_trades_have_the_side_of_the_taker_or_none(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path) as writer:
        for is_maker, flags in ((1, 0), (0, 0), (0, MessageFlags.SIDE_UNKNOWN)):
            trade = np.zeros(1, TRADE)
            trade["price"], trade["qty"], trade["is_buyer_maker"] = 1.5, 2, is_maker
            data = trade.view(np.uint8)
            ends, stamps = np.array([64], np.uint64), np.array([BEGIN_NS], np.uint64)
            writer.append_packed(TypeId.TRADE, data, ends, stamps, np.array([flags], np.uint16))
    rows = hftbacktest.to_hftbacktest([Replay(str(tmp_path))])
    sides = rows["ev"] & (export.BUY_EVENT | export.SELL_EVENT)
    assert sides.tolist() == [export.SELL_EVENT, export.BUY_EVENT, 0]
    assert rows["exch_ts"].tolist() == [BEGIN_NS] * 3


def test_hftbacktest_itself_loads_the_file_and_has_the_same_book(tmp_path: Path) -> None:
    hft = pytest.importorskip("hftbacktest", reason="hftbacktest (extra 'bench') is not installed")
    assert export.EVENT.fields is not None
    simulated_queue(tmp_path / "q", symbols=1, seconds=0.1, rate=20_000, kinds="l2,trades")
    path = str(tmp_path / "events.npz")
    hftbacktest.write_npz([Replay(str(tmp_path / "q"))], path)
    with np.load(path) as file:
        rows = file["data"]
    assert rows.dtype == hft.event_dtype
    bids, asks = book_of(tmp_path / "q")
    prices = sorted([*bids, *asks])
    tick = min(b - a for a, b in itertools.pairwise(prices))
    asset = (
        hft.BacktestAsset()
        .data(path)
        .linear_asset(1.0)
        .constant_order_latency(0, 0)
        .risk_adverse_queue_model()
        .no_partial_fill_exchange()
        .trading_value_fee_model(0.0, 0.0)
        .tick_size(tick)
        .lot_size(0.001)
        .last_trades_capacity(0)
    )
    simulation = hft.HashMapMarketDepthBacktest([asset])
    while simulation.wait_next_feed(False, 10**15) == 2:
        pass
    depth = simulation.depth(0)
    assert depth.best_bid == pytest.approx(max(bids))
    assert depth.best_ask == pytest.approx(min(asks))
    assert depth.best_bid_qty == pytest.approx(bids[max(bids)])
    simulation.close()


def test_several_markets_and_both_kinds_of_book_are_refused(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "two"))
    with pytest.raises(InvalidConfig, match="of one market"):
        hftbacktest.to_hftbacktest([Replay(str(tmp_path / "two"))])
    assert len(hftbacktest.to_hftbacktest([Replay(str(tmp_path / "two")).symbols("7")]))
    simulated_queue(tmp_path / "both", symbols=1, seconds=0.2, rate=20_000, kinds="l2,l3")
    with pytest.raises(InvalidConfig, match="one of them"):
        hftbacktest.to_hftbacktest([Replay(str(tmp_path / "both"))])
    Queue.open_publisher(tmp_path / "none").close()
    assert not len(hftbacktest.to_hftbacktest([Replay(str(tmp_path / "none"))]))


def test_a_time_range_begins_with_the_levels_of_its_start(tmp_path: Path) -> None:
    simulated_queue(tmp_path / "q", symbols=1, seconds=0.2, rate=20_000, kinds="l2,trades")
    replay = Replay(str(tmp_path / "q"))
    times = np.concatenate([some.timestamp_ns.copy() for some in replay.batches()])
    start_ns = int(times[len(times) // 2])
    rows = hftbacktest.to_hftbacktest([replay.between(start_ns, 2**63)])
    assert rows["local_ts"].min() >= start_ns
    assert depth_of(rows, export.LOCAL_EVENT) == book_of(tmp_path / "q")
