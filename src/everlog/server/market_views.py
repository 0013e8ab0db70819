"""Books of markets for pages that watch them: a book at a time is the answer, and going forward is cheap.

Owns a few `BookFollower`s and which of them answers a request. An answer depends on the queue and the
request alone; that a follower stands near the time asked for only makes it faster. Used by one thread.
"""

from __future__ import annotations

import time
from typing import ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.market.book_follower import COLUMNS_MAX, BookFollower, mode_of
from everlog.market.book_set import Book
from everlog.market.books import L3Book
from everlog.market.market_names import MarketChoice
from everlog.market.packing import gather_headers
from everlog.market.protocol import HEADER_BYTES, Side, TypeId, crypto_market_id
from everlog.market.replay import Messages
from everlog.market.venues.registry import VENUE_IDS
from everlog.queue import Queue, QueueReader, StartMode
from everlog.queue.seq_bounds import SeqBounds
from everlog.server.answers import DepthColumn, MarketBook, MarketList, MarketName, MarketTrade

VIEWS_MAX: Final = 8
WORK_S: Final = 0.1
"""For one request; a book that takes longer is built by several."""
TRADES_SHOWN: Final = 50
MARKETS_MAX: Final = 500
SEARCHED_MESSAGES: Final = 1 << 17
"""Of the beginning and of the end of a queue, to find its markets."""
SIMULATED_SYMBOLS: Final = 1000
NS_PER_MS: Final = 1_000_000
_VENUES: Final = {number: name for name, number in VENUE_IDS.items() if number}


class BookRequest(NamedTuple):
    """Which book, at which time (None: the latest), and from when on its depth is wanted."""

    path: str
    symbol: str
    venue_id: int | None
    at_ms: int | None
    after_ms: int
    step_ms: int
    levels: int
    is_partial: bool = False
    """The queue begins in the middle of the events of its markets."""

    @property
    def until_ns(self) -> int | None:
        """The end of the millisecond that was asked for."""
        return None if self.at_ms is None else (self.at_ms + 1) * NS_PER_MS - 1

    def columns_from_ns(self, last_ns: int) -> int:
        """From when on columns are wanted: what the page has not seen, and no more than are kept."""
        end_ns = last_ns if self.until_ns is None else min(self.until_ns, last_ns)
        return max(self.after_ms * NS_PER_MS, end_ns - (COLUMNS_MAX - 1) * self.step_ms * NS_PER_MS, 0)


class MarketViews:
    """The followers, the last used one last."""

    IDLE_S: ClassVar[float] = 60.0

    def __init__(self) -> None:
        self._views: list[tuple[BookFollower, float]] = []

    def look(self, asked: BookRequest) -> MarketBook:
        """Return a book, or how far the way to it is done."""
        follower = self._take(asked) or _new_follower(asked)
        from_ns = asked.columns_from_ns(follower.last_ns)
        is_there = follower.advance(asked.until_ns, from_ns, WORK_S)
        self._views.append((follower, time.monotonic()))
        while len(self._views) > VIEWS_MAX:
            self._views.pop(0)[0].close()
        return _answer(asked, follower, from_ns, is_there=is_there)

    def close_idle(self) -> bool:
        """Close the followers that were not used for a while; whether some are left."""
        before_s = time.monotonic() - self.IDLE_S
        for follower, used_s in self._views:
            if used_s <= before_s:
                follower.close()
        self._views = [view for view in self._views if view[1] > before_s]
        return bool(self._views)

    def _take(self, asked: BookRequest) -> BookFollower | None:
        """Take out the follower that has the shortest way to what was asked for; None if there is none."""
        fitting = [view for view in self._views if _fits(view[0], asked)]
        if not fitting:
            return None
        best = max(fitting, key=lambda view: view[0].position_ns)
        self._views.remove(best)
        return best[0]


def _new_follower(asked: BookRequest) -> BookFollower:
    choice = MarketChoice(asked.symbol, asked.venue_id)
    return BookFollower(asked.path, choice, asked.step_ms * NS_PER_MS, is_partial=asked.is_partial)


def _fits(follower: BookFollower, asked: BookRequest) -> bool:
    """Whether going forward from here gives the book and the columns that are asked for."""
    choice = MarketChoice(asked.symbol, asked.venue_id)
    if (follower.path, follower.choice, follower.step_ns) != (asked.path, choice, asked.step_ms * NS_PER_MS):
        return False
    if asked.until_ns is not None and follower.position_ns > asked.until_ns:
        return False
    from_ns = asked.columns_from_ns(follower.last_ns)
    kept_from_ns = follower.columns_from_ns
    return follower.position_ns <= from_ns or (kept_from_ns is not None and kept_from_ns <= from_ns)


def _answer(asked: BookRequest, follower: BookFollower, from_ns: int, *, is_there: bool) -> MarketBook:
    book, market = follower.book, follower.market
    bids, asks = ([], []) if book is None else (_texts(book, side) for side in book.depth(asked.levels))
    return MarketBook(
        venue_id=None if market is None else market.venue_id,
        market_id=None if market is None else market.market_id,
        mode=None if book is None else ("l3" if mode_of(book) else "l2"),
        time_ms=follower.position_ns // NS_PER_MS,
        first_ms=follower.first_ns // NS_PER_MS,
        last_ms=follower.last_ns // NS_PER_MS,
        is_there=is_there,
        progress=follower.progress,
        bid_count=0 if book is None else book.bid_count,
        ask_count=0 if book is None else book.ask_count,
        bids=bids,
        asks=asks,
        gaps=follower.gaps,
        unknown_orders=book.unknown_order_count if isinstance(book, L3Book) else 0,
        columns=[
            DepthColumn(column.start_ns // NS_PER_MS, column.bids, column.asks)
            for column in follower.columns
            if column.start_ns + follower.step_ns > from_ns
        ],
        trades=[
            MarketTrade(seq, time_ns // NS_PER_MS, price, size, _SIDES[side])
            for seq, time_ns, price, size, side in follower.trades[-TRADES_SHOWN:]
        ],
        error=None if follower.error is None else str(follower.error),
    )


_SIDES: Final[dict[Side, Literal["buy", "sell", "unknown"]]] = {
    Side.BUY: "buy",
    Side.SELL: "sell",
    Side.UNKNOWN: "unknown",
}


def _texts(book: Book, levels: NDArray[np.void]) -> list[tuple[str, str]]:
    rows = zip(levels["price"].tolist(), levels["size"].tolist(), strict=True)
    return [(book.render_price(price), book.render_size(size)) for price, size in rows]


# --- Which markets a queue has ---------------------------------------------------------------------------


def find_markets(path: str, *, is_whole: bool = True) -> MarketList:
    """The markets in the first and last messages of a queue, by venue and symbol.

    `is_whole` says whether the queue has all of its messages.
    """
    found: set[tuple[int, int]] = set()
    with Queue.open_subscriber(path, None, StartMode.EARLIEST) as reader:
        last = SeqBounds(reader).last
        for first_seq in (0, max((last or 0) - SEARCHED_MESSAGES + 1, 0)):
            reader.seek_seq(first_seq)
            found |= _markets_from(reader, SEARCHED_MESSAGES)
    names = _names()
    markets = [MarketName(venue, _VENUES.get(venue), market, names.get(market)) for venue, market in found]
    markets.sort(key=lambda one: (one.venue_id, one.symbol is None, one.symbol, one.market_id))
    return MarketList(markets=markets[:MARKETS_MAX], is_whole=is_whole)


def _markets_from(reader: QueueReader, count: int) -> set[tuple[int, int]]:
    """The markets of the next messages."""
    found: set[tuple[int, int]] = set()
    while count > 0:
        with reader.read_batch(count) as batch:
            if len(batch) == 0:
                break
            count -= len(batch)
            is_event = (batch.type_id == TypeId.BOOK_EVENT) & (batch.length >= HEADER_BYTES)
            events = Messages(batch, np.flatnonzero(is_event))
            headers = gather_headers(events.packed)
            both = headers["venue_id"].astype(np.uint64) << np.uint64(32) | headers["market_id"]
            found |= {(key >> 32, key & 0xFFFFFFFF) for key in np.unique(both).tolist()}
    return found


def _names() -> dict[int, str]:
    """Symbols that are known, by the number of their market: a queue holds only numbers."""
    symbols = [f"SIM{number:04d}" for number in range(SIMULATED_SYMBOLS)]
    return {crypto_market_id(symbol): symbol for symbol in symbols}
