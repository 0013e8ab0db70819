"""Files for hftbacktest of books of single orders: what a plain reader makes of the rows is our book."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from everlog.market.books import L3Book
from everlog.market.hftbacktest import to_hftbacktest, write_npz
from everlog.market.hftbacktest_rows import (
    ADD_ORDER_EVENT,
    BUY_EVENT,
    CANCEL_ORDER_EVENT,
    DEPTH_CLEAR_EVENT,
    EXCH_EVENT,
    FILL_EVENT,
    LOCAL_EVENT,
    MODIFY_ORDER_EVENT,
    SELL_EVENT,
    TRADE_EVENT,
)
from everlog.market.protocol import L3_RECORD, L3EventType, TypeId
from everlog.market.replay import Replay
from everlog.market.venues.interface import ImportOptions
from tests.support.import_runs import import_into, real_file
from tests.support.market_queues import simulated_queue

Orders = dict[int, tuple[int, float, float]]


class Reader:
    """What hftbacktest does with the rows of one of its two readers, with each mistake an error."""

    def __init__(self) -> None:
        self.orders: Orders = {}
        self.traded = 0.0
        self.filled = 0.0

    def read(self, rows: NDArray[np.void], flag: int) -> None:
        for row in rows[(rows["ev"] & flag) != 0]:
            kind, order_id = int(row["ev"]) & 0xFF, int(row["order_id"])
            side = 1 if row["ev"] & BUY_EVENT else 2 if row["ev"] & SELL_EVENT else 0
            if kind == DEPTH_CLEAR_EVENT:
                self.orders.clear()
            elif kind == ADD_ORDER_EVENT:
                assert order_id not in self.orders and side
                self.orders[order_id] = side, float(row["px"]), float(row["qty"])
            elif kind == MODIFY_ORDER_EVENT:
                assert self.orders[order_id][0] == side
                self.orders[order_id] = side, float(row["px"]), float(row["qty"])
            elif kind == CANCEL_ORDER_EVENT:
                del self.orders[order_id]
            elif kind == FILL_EVENT:
                assert self.orders[order_id][0] == side
                self.filled += float(row["qty"])
            else:
                assert kind == TRADE_EVENT
                self.traded += float(row["qty"])


def orders_of(book: L3Book) -> Orders:
    units = 10.0**book.price_scale, 10.0**book.size_scale
    return {
        int(row["order_id"]): (int(row["side"]), row["price"] / units[0], row["qty"] / units[1])
        for row in book.orders()
        if book.queue_place(int(row["order_id"])) is not None
    }


def book_and_trades(path: Path) -> tuple[L3Book, float]:
    book = L3Book(unknown_orders="skip")
    book._leave_numbers_to_the_channel()
    traded = 0.0
    for some in Replay(str(path)).types(TypeId.BOOK_EVENT).batches():
        for payload in some.packed:
            book.apply(payload)
            event = np.frombuffer(payload, L3_RECORD)[0]["event"]
            if event["event_type"] == L3EventType.TRADE:
                traded += event["qty"] / 10.0 ** event["size_scale"]
    return book, traded


def check(path: Path) -> NDArray[np.void]:
    """Both readers of the rows have the book's orders, and the trades."""
    rows = to_hftbacktest([Replay(str(path))])
    book, traded = book_and_trades(path)
    for flag in (EXCH_EVENT, LOCAL_EVENT):
        reader = Reader()
        reader.read(rows, flag)
        assert reader.orders == orders_of(book) != {}
        assert reader.traded == pytest.approx(traded)
    return rows


def test_the_orders_of_a_simulated_market_are_the_same_there(tmp_path: Path) -> None:
    simulated_queue(tmp_path / "q", symbols=1, seconds=0.2, rate=20_000, kinds="l3,trades")
    rows = check(tmp_path / "q")
    kinds = set(np.unique(rows["ev"] & 0xFF).tolist())
    assert {ADD_ORDER_EVENT, CANCEL_ORDER_EVENT, MODIFY_ORDER_EVENT, FILL_EVENT, TRADE_EVENT} <= kinds


def test_a_time_range_begins_with_the_orders_of_its_start(tmp_path: Path) -> None:
    simulated_queue(tmp_path / "q", symbols=1, seconds=0.2, rate=20_000, kinds="l3")
    replay = Replay(str(tmp_path / "q"))
    times = np.concatenate([some.timestamp_ns.copy() for some in replay.batches()])
    start_ns = int(times[len(times) // 2])
    rows = to_hftbacktest([replay.between(start_ns, 2**63)])
    assert rows["local_ts"].min() >= start_ns and rows["ev"][0] & 0xFF == DEPTH_CLEAR_EVENT
    reader = Reader()
    reader.read(rows, LOCAL_EVENT)
    assert reader.orders == orders_of(book_and_trades(tmp_path / "q")[0])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("dbn", "esh4-glbx-mdp3-20231224.mbo.dbn.zst"),
        ("lobster", "AAPL_2012-06-21_message_50.first-25000.csv.gz"),
    ],
)
def test_the_orders_of_a_real_day_are_the_same_there(tmp_path: Path, kind: str, name: str) -> None:
    import_into(tmp_path / "q", kind, real_file(name), options=ImportOptions())
    check(tmp_path / "q")


def test_hftbacktest_itself_has_the_same_best_prices_of_orders(tmp_path: Path) -> None:
    hft = pytest.importorskip("hftbacktest", reason="hftbacktest (extra 'bench') is not installed")
    simulated_queue(tmp_path / "q", symbols=1, seconds=0.2, rate=20_000, kinds="l3")
    path = os.fspath(tmp_path / "orders.npz")
    write_npz([Replay(str(tmp_path / "q"))], path)
    book, _ = book_and_trades(tmp_path / "q")
    best_bid, best_ask = book.best_bid, book.best_ask
    assert best_bid is not None and best_ask is not None
    asset = (
        hft.BacktestAsset()
        .data(path)
        .linear_asset(1.0)
        .constant_order_latency(0, 0)
        .l3_fifo_queue_model()
        .no_partial_fill_exchange()
        .trading_value_fee_model(0.0, 0.0)
        .tick_size(10.0**-book.price_scale)
        .lot_size(0.001)
        .last_trades_capacity(0)
    )
    simulation = hft.HashMapMarketDepthBacktest([asset])
    while simulation.wait_next_feed(False, 10**15) == 2:
        pass
    depth = simulation.depth(0)
    unit = 10.0**book.price_scale
    assert depth.best_bid == pytest.approx(best_bid.price / unit)
    assert depth.best_ask == pytest.approx(best_ask.price / unit)
    assert depth.best_bid_qty == pytest.approx(best_bid.size / 10.0**book.size_scale)
    simulation.close()
