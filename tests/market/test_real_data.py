"""Books of real venues, event by event against a plain replay, and against another library's book."""

from __future__ import annotations

import importlib.util
from decimal import Decimal
from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from everlog.market import L2Book, L3Book, Outputs
from everlog.market.protocol import L3EventType
from tests.market.venue_payloads import bybit_messages, bybit_record, lobster_records, mbo_records, venue_file
from tests.support.book_twins import L3Twin, l3_records

BYBIT_MESSAGES = 6_000
HAS_PEER = importlib.util.find_spec("nautilus_trader") is not None
needs_peer = pytest.mark.skipif(
    not HAS_PEER, reason="nautilus_trader is in the bench extra: make bench-books"
)


def rendered(book: L2Book, side: NDArray[np.void]) -> list[tuple[Decimal, Decimal]]:
    levels = zip(side["price"].tolist(), side["size"].tolist(), strict=True)
    return [(Decimal(book.render_price(price)), Decimal(book.render_size(size))) for price, size in levels]


def test_a_bybit_book_after_every_message_equals_a_plain_replay() -> None:
    book = L2Book()
    sides: tuple[dict[Decimal, Decimal], dict[Decimal, Decimal]] = ({}, {})
    for number, message in enumerate(
        islice(bybit_messages(venue_file("xrpusdt-ob500.data.zip")), BYBIT_MESSAGES)
    ):
        book.apply(bybit_record(message))
        for levels, changes in zip(sides, (message["data"]["b"], message["data"]["a"]), strict=True):
            if message["type"] == "snapshot":
                levels.clear()
            for price, size in changes:
                levels[Decimal(price)] = Decimal(size)
                if not Decimal(size):
                    del levels[Decimal(price)]
        bids, asks = book.depth(1)
        best_bid, best_ask = max(sides[0]), min(sides[1])
        assert rendered(book, bids) == [(best_bid, sides[0][best_bid])], f"message {number}"
        assert rendered(book, asks) == [(best_ask, sides[1][best_ask])], f"message {number}"
    assert rendered(book, book.bids()) == sorted(sides[0].items(), reverse=True)
    assert rendered(book, book.asks()) == sorted(sides[1].items())


def assert_like_twin(records: NDArray[np.void], every: int) -> L3Book:
    book, twin = L3Book(unknown_orders="skip"), L3Twin()
    result = book.apply_array(records, Outputs(every=every))
    assert result.top is not None
    tops = iter(result.top.tolist())
    for number, record in enumerate(records, start=1):
        twin.apply(record)
        if number % every == 0:
            assert next(tops) == twin.top(), f"event {number}"
    for side, levels, counts in zip((1, 2), book.depth(10**6), book.order_counts(10**6), strict=True):
        found = zip(levels["price"].tolist(), levels["size"].tolist(), counts.tolist(), strict=True)
        assert list(found) == twin.levels(side)
        for price in levels["price"].tolist()[:20]:
            assert book.queue(side, price) == twin.queue(side, price)
    assert book.unknown_order_count == twin.unknown
    return book


def test_a_cme_book_order_by_order_equals_the_plain_one() -> None:
    book = assert_like_twin(mbo_records(venue_file("esh4-glbx-mdp3-20231224.mbo.dbn.zst")), every=500)
    assert book.order_count > 8000


def test_a_nasdaq_book_with_unknown_orders_equals_the_plain_one() -> None:
    name = "AAPL_2012-06-21_message_50.first-25000.csv.gz"
    book = assert_like_twin(lobster_records(venue_file(name)), every=500)
    assert book.unknown_order_count > 0


def peer_deltas(records: NDArray[np.void]) -> list[Any]:
    """Return the events as the other library's deltas."""
    from nautilus_trader.model.data import BookOrder, OrderBookDelta
    from nautilus_trader.model.enums import BookAction, OrderSide
    from nautilus_trader.model.identifiers import InstrumentId
    from nautilus_trader.model.objects import Price, Quantity

    instrument = InstrumentId.from_str("ES.GLBX")
    actions = {
        L3EventType.ORDER_ADD: BookAction.ADD,
        L3EventType.ORDER_CANCEL: BookAction.DELETE,
        L3EventType.ORDER_MODIFY: BookAction.UPDATE,
    }
    deltas = []
    for event in records["event"]:
        scale = int(event["price_scale"])
        order = BookOrder(
            OrderSide.BUY if event["side"] == 1 else OrderSide.SELL,
            Price(int(event["price"]) / 10**scale, 2),
            Quantity(int(event["qty"]), 0),
            int(event["order_id"]),
        )
        deltas.append(
            OrderBookDelta(instrument, actions[L3EventType(int(event["event_type"]))], order, 0, 0, 0, 0)
        )
    return deltas


def assert_like_peer(records: NDArray[np.void]) -> None:
    from nautilus_trader.model.book import OrderBook
    from nautilus_trader.model.enums import BookType
    from nautilus_trader.model.identifiers import InstrumentId

    peer, book = OrderBook(InstrumentId.from_str("ES.GLBX"), BookType.L3_MBO), L3Book()
    for number, (record, delta) in enumerate(zip(records, peer_deltas(records), strict=True)):
        peer.apply_delta(delta)
        book.apply(record.tobytes())
        for side, best, price, size in (
            (1, book.best_bid, peer.best_bid_price(), peer.best_bid_size()),
            (2, book.best_ask, peer.best_ask_price(), peer.best_ask_size()),
        ):
            # The size this library shows is that of the oldest order at the best price.
            oldest = book.order(book.queue(side, best.price)[0]) if best else None
            found = best and oldest and (Decimal(book.render_price(best.price)), oldest.qty)
            assert found == (price and (price.as_decimal(), int(size))), f"event {number}"
        if number % 100 == 0 or number == len(records) - 1:
            for levels, peers in zip(book.depth(10**6), (peer.bids(), peer.asks()), strict=True):
                prices = [Decimal(book.render_price(price)) for price in levels["price"].tolist()]
                assert prices == [level.price.as_decimal() for level in peers]
                assert levels["size"].tolist() == [int(level.size()) for level in peers]


@needs_peer
def test_a_cme_book_equals_that_of_nautilus_trader_event_by_event() -> None:
    assert_like_peer(mbo_records(venue_file("esh4-glbx-mdp3-20231224.mbo.dbn.zst")))


@needs_peer
def test_adds_cancels_and_modifies_give_the_book_of_nautilus_trader() -> None:
    random = np.random.default_rng(3)
    live: dict[int, tuple[int, int]] = {}
    rows: list[tuple[int, int, int, int, int, int, int, int]] = []
    for number in range(1, 4001):
        kind = random.choice([1, 1, 2, 3]) if len(live) > 50 else 1
        if kind == L3EventType.ORDER_ADD:
            side = int(random.integers(1, 3))
            live[number] = (
                side,
                int(random.integers(4700, 4800) if side == 1 else random.integers(4800, 4900)),
            )
            rows.append((1, side, number, 0, 0, live[number][1], int(random.integers(1, 90)), 0))
            continue
        chosen = int(random.choice(list(live)))
        side, price = live[chosen]
        if kind == L3EventType.ORDER_CANCEL:
            del live[chosen]
            rows.append((2, side, chosen, 0, 0, price, 0, 0))
        else:
            price += int(random.integers(-3, 1) if side == 1 else random.integers(0, 4))
            live[chosen] = side, price
            rows.append((3, side, chosen, 0, 0, price, int(random.integers(1, 90)), 0))
    assert_like_peer(l3_records(rows))
