"""The simulated venue: its events, replayed by the books, give its own truth; equal seeds, equal events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market.book_results import Outputs
from everlog.market.books import L2Book, L3Book
from everlog.market.protocol import (
    BOOK_EVENT_HEADER,
    L3_RECORD,
    TRADE,
    BookMode,
    L3EventType,
    Side,
    TypeId,
    crypto_market_id,
    symbol_hash,
)
from everlog.market.venues.interface import EventBlock
from everlog.market.venues.simulated import PRICE_SCALE, SIZE_SCALE, SimulatedVenue
from everlog.queue import Queue
from tests.support.import_runs import l2_event, messages_of, packed, payloads_of, small_archive

EVENTS = 20_000


def typed_payloads(blocks: list[EventBlock]) -> Iterator[tuple[int, int, bytes]]:
    """(type id, timestamp, payload) of every event."""
    for block in blocks:
        kinds = np.broadcast_to(np.asarray(block.type_id), len(block)).tolist()
        yield from zip(kinds, block.timestamps_ns.tolist(), payloads_of(block), strict=True)


def book_payloads(blocks: list[EventBlock], symbol: str, mode: BookMode) -> list[bytes]:
    """The book events of one symbol and kind."""
    found = []
    for kind, _, payload in typed_payloads(blocks):
        if kind == TypeId.BOOK_EVENT:
            header = np.frombuffer(payload, BOOK_EVENT_HEADER, 1)[0]
            if header["book_mode"] == mode and header["market_id"] == crypto_market_id(symbol):
                found.append(payload)
    return found


def pairs(levels: NDArray[np.void]) -> dict[int, int]:
    return dict(levels.tolist())


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32), symbols=st.integers(1, 6), rate=st.sampled_from([50.0, 10_000.0, 5e7]))
def test_books_replayed_from_the_events_equal_the_truth_after_every_block(
    seed: int, symbols: int, rate: float
) -> None:
    venue = SimulatedVenue(symbols, seed=seed, rate=rate, resting_orders=20, block_events=300)
    l2 = {symbol: L2Book() for symbol in venue.symbols}
    l3 = {symbol: L3Book(gap_policy="ignore") for symbol in venue.symbols}
    for _ in range(4):
        blocks = venue.next_blocks()
        for symbol in venue.symbols:
            for book, mode in ((l3[symbol], BookMode.L3), (l2[symbol], BookMode.L2)):
                payloads = book_payloads(blocks, symbol, mode)
                if payloads:
                    book.apply_array(packed(payloads))
            bids, asks = venue.levels(symbol)
            assert (pairs(l2[symbol].bids()), pairs(l2[symbol].asks())) == (bids, asks)
            deep = l3[symbol].depth(10**6)
            assert (pairs(deep[0]), pairs(deep[1])) == (bids, asks)
            found = [
                (int(row["order_id"]), int(row["side"]), int(row["price"]), int(row["qty"]))
                for row in l3[symbol].orders()
            ]
            truth = [(o.order_id, int(o.side), o.price, o.quantity) for o in venue.orders(symbol)]
            assert sorted(found) == truth


def test_the_book_is_never_crossed_and_both_sides_are_there(tmp_path: Path) -> None:
    venue = SimulatedVenue(1, seed=5)
    blocks = list(venue.blocks(EVENTS))
    payloads = book_payloads(blocks, venue.symbols[0], BookMode.L3)
    result = L3Book().apply_array(packed(payloads), Outputs(top=True))
    assert result.top is not None
    opened = result.top[1000:]
    assert (opened["bid_size"] > 0).all() and (opened["ask_size"] > 0).all()
    assert (opened["bid_price"] < opened["ask_price"]).all()


def test_trades_are_the_executions_of_the_order_events() -> None:
    venue = SimulatedVenue(3, seed=7)
    blocks = list(venue.blocks(EVENTS))
    events = list(typed_payloads(blocks))
    orders = [
        np.frombuffer(p, L3_RECORD, 1)[0] for k, _, p in events if k == TypeId.BOOK_EVENT and len(p) == 128
    ]
    done = [
        r for r in orders if r["header"]["book_mode"] == 1 and r["event"]["event_type"] == L3EventType.TRADE
    ]
    trades = np.frombuffer(b"".join(p for k, _, p in events if k == TypeId.TRADE), dtype=TRADE)
    hashes = {crypto_market_id(symbol): symbol_hash(symbol) for symbol in venue.symbols}
    assert len(done) == len(trades) > 50
    for record, trade in zip(done, trades, strict=True):
        event = record["event"]
        assert trade["symbol_hash"] == hashes[int(record["header"]["market_id"])]
        assert trade["timestamp_ns"] == record["header"]["exchange_ts_ns"]
        assert round(trade["price"] * 10**PRICE_SCALE) == event["price"]
        assert round(trade["qty"] * 10**SIZE_SCALE) == event["qty"]
        assert trade["is_buyer_maker"] == (event["side"] == Side.BUY)
        assert (trade["buyer_order_id"], trade["seller_order_id"]) == (
            event["bid_order_id"],
            event["ask_order_id"],
        )
    assert trades["trade_id"].tolist() == list(range(1, len(trades) + 1))


def test_events_are_in_the_order_of_time_and_their_numbers_have_no_gap(tmp_path: Path) -> None:
    venue = SimulatedVenue(4, seed=8)
    with Queue.open_publisher(tmp_path, small_archive()) as writer:
        for block in venue.blocks(EVENTS):
            block.append_to(writer)
    messages = messages_of(tmp_path)
    stamps = [message.timestamp_ns for message in messages]
    assert stamps == sorted(stamps)
    l3_numbers, l2_numbers = [], {crypto_market_id(symbol): [] for symbol in venue.symbols}  # type: ignore[var-annotated]
    for message in messages:
        if message.type_id != TypeId.BOOK_EVENT:
            continue
        header = np.frombuffer(message.payload, BOOK_EVENT_HEADER, 1)[0]
        assert header["ingest_ts_ns"] == message.timestamp_ns
        if header["book_mode"] == BookMode.L3:
            l3_numbers.append(int(header["seq"]))
        else:
            event = l2_event(message.payload)
            l2_numbers[int(header["market_id"])].append(int(event.header["seq"]))
    assert l3_numbers == list(range(1, len(l3_numbers) + 1))
    for numbers in l2_numbers.values():
        assert numbers == list(range(1, len(numbers) + 1))


def fingerprint(venue: SimulatedVenue) -> list[tuple[int, int, bytes]]:
    return list(typed_payloads(list(venue.blocks(3000))))


def test_equal_seeds_give_equal_events_and_others_do_not() -> None:
    assert fingerprint(SimulatedVenue(2, seed=3)) == fingerprint(SimulatedVenue(2, seed=3))
    assert fingerprint(SimulatedVenue(2, seed=3)) != fingerprint(SimulatedVenue(2, seed=4))


@pytest.mark.parametrize("kind", ["l3", "l2", "trades"])
def test_single_kinds_are_those_of_the_whole(kind: str) -> None:
    def wanted(row: tuple[int, int, bytes]) -> bool:
        if row[0] == TypeId.TRADE:
            return kind == "trades"
        mode = int(np.frombuffer(row[2], BOOK_EVENT_HEADER, 1)[0]["book_mode"])
        return kind == ("l3" if mode else "l2")

    whole = SimulatedVenue(2, seed=3, block_events=500)
    alone = SimulatedVenue(2, seed=3, block_events=500, kinds=[kind])
    for _ in range(3):
        expected = [row for row in typed_payloads(whole.next_blocks()) if wanted(row)]
        assert list(typed_payloads(alone.next_blocks())) == expected
        assert alone.levels("SIM0000") == whole.levels("SIM0000")


def test_settings_that_cannot_work_are_refused() -> None:
    for symbols, wrong in (([], {}), (["A", "A"], {}), (1, {"rate": 0}), (1, {"kinds": ["l4"]})):
        with pytest.raises(InvalidConfig):
            SimulatedVenue(symbols, **wrong)  # type: ignore[arg-type]
