"""A book that is followed in time: equal to one built at once, whatever the steps, and bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.market import BookSet
from everlog.market.book_feed import BookFeed
from everlog.market.book_follower import COLUMNS_MAX, TRADES_MAX, BookFollower, MarketChoice
from everlog.market.protocol import Side, TypeId, crypto_market_id
from everlog.market.replay import Replay
from everlog.queue import Queue
from tests.support.market_queues import simulated_queue

STEP_NS = 100_000_000
LONG_S = 60.0


@pytest.fixture(scope="module", params=["l3,trades", "l2,trades", "l3"])
def queue(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    path = tmp_path_factory.mktemp("follower") / "q"
    simulated_queue(path, symbols=3, seconds=4, rate=3000, kinds=request.param)
    return str(path)


def followed(queue: str, until_ns: int | None, symbol: str = "SIM0001") -> BookFollower:
    follower = BookFollower(queue, MarketChoice(symbol), STEP_NS)
    assert follower.advance(until_ns, 0, LONG_S)
    return follower


def test_the_book_at_the_end_is_that_of_the_queue(queue: str) -> None:
    with Queue.open_subscriber(queue, None, "earliest") as reader:
        feed = BookFeed(reader, BookSet())
        while feed.advance() is not None:
            pass
    follower = followed(queue, None)
    assert follower.market is not None and follower.market.market_id == crypto_market_id("SIM0001")
    assert follower.book is not None
    assert follower.book.book_hash() == feed.books.books[follower.market].book_hash()
    assert follower.gaps == 0 and follower.progress == 1.0
    follower.close()


def test_steps_in_time_give_the_same_as_one_way(queue: str) -> None:
    whole = followed(queue, None)
    stepped = BookFollower(queue, MarketChoice("SIM0001"), STEP_NS)
    for at_ns in range(stepped.first_ns, stepped.last_ns, 37_000_000):
        assert stepped.advance(at_ns, 0, LONG_S)
        assert stepped.position_ns == at_ns
        assert all(trade.time_ns <= at_ns for trade in stepped.trades)
        assert all(column.start_ns <= at_ns for column in stepped.columns)
    assert stepped.advance(None, 0, LONG_S)
    assert stepped.book is not None and whole.book is not None
    assert stepped.book.book_hash() == whole.book.book_hash()
    assert stepped.columns == whole.columns and len(whole.columns) > 30
    assert stepped.trades == whole.trades


def test_the_book_at_a_time_has_no_later_event(queue: str) -> None:
    middle_ns = followed(queue, None).first_ns + 2_000_000_000
    follower = followed(queue, middle_ns)
    books = BookSet()
    books.take_some_markets()
    market_id = crypto_market_id("SIM0001")
    replay = Replay(queue).between(0, middle_ns + 1).types(TypeId.BOOK_EVENT).markets(market_id)
    for some in replay.batches():
        books.apply_packed(some.packed)
    assert follower.market is not None and follower.book is not None
    assert follower.book.book_hash() == books.books[follower.market].book_hash()


def test_work_ends_with_its_budget_and_goes_on_later(queue: str) -> None:
    follower = BookFollower(queue, MarketChoice("SIM0002"), STEP_NS)
    rounds = 0
    while not follower.advance(None, 0, 0.0):
        rounds += 1
        assert rounds < 1000
    assert rounds > 0
    whole = followed(queue, None, "SIM0002")
    assert follower.book is not None and whole.book is not None
    assert follower.book.book_hash() == whole.book.book_hash()
    assert follower.columns == whole.columns


def test_columns_begin_where_they_are_wanted(queue: str) -> None:
    follower = BookFollower(queue, MarketChoice("SIM0000"), STEP_NS)
    from_ns = follower.last_ns - 5 * STEP_NS
    assert follower.advance(None, from_ns, LONG_S)
    whole = followed(queue, None, "SIM0000")
    assert list(follower.columns) == [one for one in whole.columns if one.start_ns + STEP_NS > from_ns]


def test_columns_and_trades_are_bounded(queue: str) -> None:
    follower = BookFollower(queue, MarketChoice("SIM0000"), 1_000_000)
    assert follower.advance(None, 0, LONG_S)
    assert len(follower.columns) == COLUMNS_MAX
    assert 0 < len(follower.trades) <= TRADES_MAX
    assert follower.columns_from_ns is not None and follower.columns_from_ns <= follower.columns[0].start_ns


def test_an_unknown_market_has_no_book(queue: str) -> None:
    follower = followed(queue, None, "NOTHING")
    assert (follower.market, follower.book, list(follower.columns), follower.trades) == (None, None, [], [])


def test_trades_of_order_events_are_shown_if_none_are_printed(tmp_path: Path) -> None:
    path = tmp_path / "q"
    simulated_queue(path, symbols=1, seconds=2, rate=2000, kinds="l3")
    trades = followed(str(path), None, "SIM0000").trades
    assert trades and {trade.side for trade in trades} == {Side.UNKNOWN}
    printed = tmp_path / "printed"
    simulated_queue(printed, symbols=1, seconds=2, rate=2000, kinds="l3,trades")
    shown = followed(str(printed), None, "SIM0000").trades
    assert [(one.price, one.size) for one in shown] == [(one.price, one.size) for one in trades]
    assert {trade.side for trade in shown} == {Side.BUY, Side.SELL}


def test_a_damaged_event_ends_the_way_with_its_error(tmp_path: Path) -> None:
    path = tmp_path / "q"
    simulated_queue(path, symbols=1, seconds=1, rate=1000, kinds="l2")
    with Queue.open_publisher(path) as writer:
        payload = bytearray(128)
        payload[12:16] = crypto_market_id("SIM0000").to_bytes(4, "little")
        writer.append(TypeId.BOOK_EVENT, bytes(payload))
    follower = followed(str(path), None, "SIM0000")
    assert "schema version 0" in str(follower.error)
    assert follower.book is not None and follower.book.bid_count > 0


def test_choosing_a_market_makes_no_gaps_of_a_channel_that_markets_share(tmp_path: Path) -> None:
    path = tmp_path / "q"
    simulated_queue(path, symbols=3, seconds=1, rate=1000, kinds="l3")
    with Queue.open_subscriber(path, None, "earliest") as reader:
        feed = BookFeed(reader, BookSet(), {crypto_market_id("SIM0001")})
        while feed.advance() is not None:
            pass
    assert len(feed.books.books) == 1 and sum(feed.gaps.values()) == 0
