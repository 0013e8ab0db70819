"""Who applies the events: everlog and its peers, each in the fastest way its interface offers.

Owns the loops that are timed. A contender that cannot run says why instead of a number. All give the best
bid and ask after every event. Conversion of the events to a contender's own objects is not timed. The clock
is the thread's processor time: every loop runs in one thread, and other processes shall not count.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlog.market.book_results import Outputs
from everlog.market.book_set import BookSet
from everlog.market.books import L2Book, L3Book
from everlog.market.feature_choice import parse_features
from everlog.market.protocol import L3EventType, TypeId
from everlog.market.replay import Replay
from everlog.market.result_memory import ResultMemory
from everlog.market.venues.simulated import SimulatedVenue
from everlog.queue import Queue, WriterConfig

Events = NDArray[np.void]
Timed = Callable[[], float]
"""Applies the events to a new book and returns the seconds."""

PEER_EVENTS_MAX = 50_000


class Missing(Exception):
    """A contender cannot run; the text says what to do about it."""


def everlog_l2(updates: Events, *, fresh_memory: bool = False) -> Timed:
    """All updates in one call. Rounds share the memory for results, as a loop over batches does."""
    memory = None if fresh_memory else ResultMemory()

    def run() -> float:
        book = L2Book()
        started_s = time.thread_time()
        book.apply_array(updates, memory=memory)
        return time.thread_time() - started_s

    return run


def everlog_l3(records: Events, live: int, *, places: bool) -> Timed:
    """All records in one call, after `live` orders are there. Rounds share the memory for results."""
    memory = ResultMemory()

    def run() -> float:
        book = L3Book()
        book.apply_array(records[:live], Outputs(top=False))
        started_s = time.thread_time()
        book.apply_array(records[live:], Outputs(places=places), memory)
        return time.thread_time() - started_s

    return run


def everlog_l2_calls(updates: Events) -> Timed:
    """One call per update, which returns the best prices."""
    rows = [tuple(row) for row in np.array(updates[["side", "price", "size"]]).tolist()]

    def run() -> float:
        book = L2Book()
        update = book.update_and_top
        started_s = time.thread_time()
        for side, price, size in rows:
            update(side, price, size)
        return time.thread_time() - started_s

    return run


def everlog_l3_calls(records: Events, live: int) -> Timed:
    """One call per record, which returns the best prices."""
    payloads = [record.tobytes() for record in records]

    def run() -> float:
        book = L3Book()
        apply = book.apply_and_top
        for payload in payloads[:live]:
            apply(payload)
        started_s = time.thread_time()
        for payload in payloads[live:]:
            apply(payload)
        return time.thread_time() - started_s

    return run


class FeatureQueue:
    """A queue of a simulated venue's levels and trades, from which features are computed."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="feature-bench-")

    def close(self) -> None:
        """Remove the queue."""
        self._folder.cleanup()

    def path(self, events: int) -> str:
        """Return the queue of at least so many events, which is made when it is first asked for."""
        path = os.path.join(self._folder.name, "queue")
        if not os.path.exists(path):
            with Queue.open_publisher(path, WriterConfig.archive()) as writer:
                for block in SimulatedVenue(4, seed=3, kinds=("l2", "trades")).blocks(events):
                    block.append_to(writer)
        return path

    def books(self, events: int) -> Timed:
        """The books alone, with five levels a side after every event: what features are computed from."""
        path = self.path(events)

        def run() -> float:
            books, want = BookSet(), Outputs(depth=5, statuses=True)
            started_s = time.thread_time()
            for some in Replay(path).types(TypeId.BOOK_EVENT).batches():
                books.apply_packed(some.packed, want)
            return time.thread_time() - started_s

        return run

    def features(self, events: int, chosen: str) -> Timed:
        """Books and the features of a text, a row after every event."""
        path = self.path(events)

        def run() -> float:
            replay = Replay(path).features(parse_features(chosen))
            started_s = time.thread_time()
            for _ in replay.tables():
                pass
            return time.thread_time() - started_s

        return run


def _deltas(rows: list[tuple[Any, int, int, int, int]]) -> list[Any]:
    from nautilus_trader.model.data import BookOrder, OrderBookDelta
    from nautilus_trader.model.enums import BookAction, OrderSide
    from nautilus_trader.model.identifiers import InstrumentId
    from nautilus_trader.model.objects import Price, Quantity

    instrument = InstrumentId.from_str("A.B")
    actions = {"add": BookAction.ADD, "update": BookAction.UPDATE, "delete": BookAction.DELETE}
    sides = {1: OrderSide.BUY, 2: OrderSide.SELL}
    return [
        OrderBookDelta(
            instrument,
            actions[action],
            BookOrder(sides[side], Price(price, 0), Quantity(size, 0), order_id),
            0,
            0,
            0,
            0,
        )
        for action, side, price, size, order_id in rows
    ]


def _nautilus(deltas: list[Any], live: int, kind: str) -> Timed:
    from nautilus_trader.model.book import OrderBook
    from nautilus_trader.model.enums import BookType
    from nautilus_trader.model.identifiers import InstrumentId

    def run() -> float:
        book = OrderBook(InstrumentId.from_str("A.B"), getattr(BookType, kind))
        apply, bid, ask = book.apply_delta, book.best_bid_price, book.best_ask_price
        bid_size, ask_size = book.best_bid_size, book.best_ask_size
        for delta in deltas[:live]:
            apply(delta)
        started_s = time.thread_time()
        for delta in deltas[live:]:
            apply(delta)
            bid(), bid_size(), ask(), ask_size()
        return time.thread_time() - started_s

    return run


def nautilus_l2(updates: Events) -> Timed:
    """`OrderBook.apply_delta` of nautilus_trader, price levels."""
    _need("nautilus_trader")
    rows = [
        ("update" if size else "delete", side, price, size, price)
        for price, size, side in np.array(updates[["price", "size", "side"]]).tolist()
    ]
    return _nautilus(_deltas(rows), 0, "L2_MBP")


def nautilus_l3(records: Events, live: int) -> Timed:
    """`OrderBook.apply_delta` of nautilus_trader, single orders."""
    _need("nautilus_trader")
    actions = {L3EventType.ORDER_ADD: "add", L3EventType.ORDER_MODIFY: "update"}
    event = records["event"]
    columns = (event[name].tolist() for name in ("event_type", "side", "price", "qty", "order_id"))
    rows = [(actions.get(kind, "delete"), *rest) for kind, *rest in zip(*columns, strict=True)]
    return _nautilus(_deltas(rows), live, "L3_MBO")  # type: ignore[arg-type]


def order_book_l2(updates: Events) -> Timed:
    """The dictionaries of `order-book`, one assignment or deletion per update."""
    _need("order_book")
    from order_book import OrderBook

    rows = [tuple(row) for row in np.array(updates[["side", "price", "size"]]).tolist()]

    def run() -> float:
        book = OrderBook()
        bids, asks = book.bids, book.asks
        sides = {1: bids, 2: asks}
        started_s = time.thread_time()
        for side, price, size in rows:
            levels = sides[side]
            if size:
                levels[price] = size
            elif price in levels:
                del levels[price]
            if len(bids):
                bids.index(0)
            if len(asks):
                asks.index(0)
        return time.thread_time() - started_s

    return run


def hftbacktest_l2(updates: Events) -> Timed:
    """The depth of hftbacktest, read after every event in compiled code; its simulator runs along."""
    _need("hftbacktest")
    _need("numba")
    import hftbacktest as hft
    from numba import njit

    data = np.zeros(len(updates), dtype=hft.event_dtype)
    side = np.where(updates["side"] == 1, hft.BUY_EVENT, hft.SELL_EVENT)
    data["ev"] = hft.EXCH_EVENT | hft.LOCAL_EVENT | hft.DEPTH_EVENT | side
    data["exch_ts"] = data["local_ts"] = np.arange(1, len(updates) + 1) * 1000
    data["px"], data["qty"] = updates["price"], updates["size"]

    @njit  # type: ignore[untyped-decorator]
    def loop(simulation: Any) -> float:
        total = 0.0
        while simulation.wait_next_feed(False, 10**15) == 2:
            depth = simulation.depth(0)
            total += depth.best_bid + depth.best_ask + depth.best_bid_qty + depth.best_ask_qty
        return total

    def simulation() -> Any:
        asset = (
            hft.BacktestAsset()
            .data(data)
            .linear_asset(1.0)
            .constant_order_latency(0, 0)
            .risk_adverse_queue_model()
            .no_partial_fill_exchange()
            .trading_value_fee_model(0.0, 0.0)
            .tick_size(1.0)
            .lot_size(1.0)
            .last_trades_capacity(0)
        )
        return hft.HashMapMarketDepthBacktest([asset])

    compiled = simulation()
    loop(compiled)  # compiles
    compiled.close()

    def run() -> float:
        fresh = simulation()
        started_s = time.thread_time()
        loop(fresh)
        elapsed_s = time.thread_time() - started_s
        fresh.close()
        return elapsed_s

    return run


def _need(module: str) -> None:
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise Missing("not installed: pip install '.[bench]'")
