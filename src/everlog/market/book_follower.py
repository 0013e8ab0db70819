"""The book of one market of a queue at one time after the other, with its depth over time and its trades.

Owns what a page that watches a market needs: it goes forward to a time or to the end in bounded steps, and
keeps the last columns of depth and the last trades. The queue is read without a name, so nothing is left
behind and retention is not held up.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import EverlogError
from everlog.market.book_results import Outputs
from everlog.market.book_set import Book, BookSet, BookSettings, Market, OtherModes
from everlog.market.books import GapPolicy, L3Book, UnknownOrders
from everlog.market.market_names import MarketChoice
from everlog.market.packing import gather_field
from everlog.market.protocol import (
    HEADER_BYTES,
    L3_RECORD,
    L3_RECORD_BYTES,
    TRADE,
    BookMode,
    L3EventType,
    Side,
    TypeId,
    folded_hash,
    taker_sides,
)
from everlog.market.replay import Messages
from everlog.queue import Queue, StartMode
from everlog.queue.seq_bounds import SeqBounds

BATCH_MESSAGES: Final = 16384
"""Looked at between two looks at the clock; about ten milliseconds of work."""
COLUMNS_MAX: Final = 240
TRADES_MAX: Final = 200
COLUMN_LEVELS: Final = 40
SETTINGS: Final = BookSettings(
    gap_policy=GapPolicy.IGNORE,
    unknown_orders=UnknownOrders.SKIP,
    other_modes=OtherModes.SKIP,
    max_levels=1 << 18,
    max_orders=1 << 22,
    max_window_ticks=1 << 20,
)
"""A look from outside does not stop at a gap; it counts them. The limits bound the memory of one book."""


class DepthColumn(NamedTuple):
    """The best levels at the end of one step of time: price, size, price, size, from the best on."""

    start_ns: int
    bids: list[float]
    asks: list[float]


class SeenTrade(NamedTuple):
    """One trade; `side` is the taker's."""

    seq: int
    time_ns: int
    price: float
    size: float
    side: Side


class BookFollower:
    """A book that goes forward through a queue."""

    def __init__(self, path: str, choice: MarketChoice, step_ns: int, *, is_partial: bool = False) -> None:
        """`step_ns` is how much time one column of depth stands for.

        `is_partial`: the queue begins in the middle, though its first seq is 0.
        """
        self.path = path
        self.choice = choice
        self.step_ns = step_ns
        self.market: Market | None = None
        self.gaps = 0
        self.position_ns = 0
        """Time of the last message that was looked at."""
        self.columns: deque[DepthColumn] = deque(maxlen=COLUMNS_MAX)
        self.columns_from_ns: int | None = None
        """From this time on `columns` has every step in which the book changed."""
        self.error: EverlogError | None = None
        self.first_ns = self.last_ns = 0
        self._market_ids = np.array(choice.market_ids, dtype=np.uint64)
        self._books = BookSet(SETTINGS)
        self._books.take_some_markets()
        self._printed: deque[SeenTrade] = deque(maxlen=TRADES_MAX)
        self._matched: deque[SeenTrade] = deque(maxlen=TRADES_MAX)
        self._part: _Part | None = None
        self._begun = False
        self._is_partial = is_partial
        self._read_bounds()
        self._reader = Queue.open_subscriber(path, None, StartMode.EARLIEST)

    def close(self) -> None:
        """Let go of the queue."""
        self._part = None
        self._reader.close()

    @property
    def book(self) -> Book | None:
        """The book as it is now; None before the first event from which one can be built."""
        return None if self.market is None else self._books.books.get(self.market)

    @property
    def trades(self) -> list[SeenTrade]:
        """The last trades: those the venue printed, else what its order events tell of them."""
        return list(self._printed or self._matched)

    @property
    def progress(self) -> float:
        """How far between the first and the last known message it stands, 0 to 1."""
        span = self.last_ns - self.first_ns
        return 1.0 if span <= 0 else min(max(self.position_ns - self.first_ns, 0) / span, 1.0)

    def advance(self, until_ns: int | None, columns_from_ns: int, budget_s: float) -> bool:
        """Go forward, and keep columns from a time on; False if the time for it ran out before the end.

        Messages up to `until_ns`, inclusive, are applied; None is the end of the queue.
        """
        if self.columns_from_ns is None or self.position_ns < columns_from_ns:
            self.columns_from_ns = columns_from_ns
        deadline_s = time.monotonic() + budget_s
        try:
            while self.error is None:
                part = self._part or self._next_part()
                if part is None:
                    return True
                self._part = part
                if not self._apply(part, until_ns):
                    return True
                self._part = None
                if time.monotonic() > deadline_s:
                    return False
        except EverlogError as error:
            self.error = error
        return True

    def _read_bounds(self) -> None:
        """Note the time of the first and of the last message."""
        with Queue.open_subscriber(self.path, None, StartMode.EARLIEST) as reader:
            seqs = SeqBounds(reader)
            for seq, is_first in ((seqs.first, True), (seqs.last, False)):
                if seq is None or not reader.seek_seq(seq):
                    continue
                view = reader.next()
                if view is not None:
                    self.last_ns = view.timestamp_ns
                    self.first_ns = view.timestamp_ns if is_first else self.first_ns

    def _next_part(self) -> _Part | None:
        """Read the next messages and choose those of the market; None at the end."""
        batch = self._reader.read_batch(BATCH_MESSAGES)
        if len(batch) == 0:
            return None
        if not self._begun and (self._is_partial or batch.seq[0] > 0):
            self._books.begin_in_middle()
        self._begun = True
        kinds, lengths = batch.type_id, batch.length
        is_book = (kinds == TypeId.BOOK_EVENT) & (lengths >= HEADER_BYTES)
        is_trade = (kinds == TypeId.TRADE) & (lengths == TRADE.itemsize)
        events, trades = (Messages(batch, np.flatnonzero(mask)) for mask in (is_book, is_trade))
        events = events.where(np.isin(gather_field(events.packed, "market_id"), self._market_ids))
        if self.choice.venue_id is not None:
            events = events.where(gather_field(events.packed, "venue_id") == self.choice.venue_id)
        # The clock of a writer may be set back; columns only go forward.
        times = np.maximum.accumulate(np.maximum(batch.timestamp_ns, np.uint64(self.position_ns)))
        return _Part(events, self._own_trades(trades), times)

    def _own_trades(self, some: Messages) -> list[SeenTrade]:
        """Return the trades of this market among those of a batch."""
        data, _ = some.batch.joined(some.chosen)
        trades = data.view(TRADE)
        own = np.isin(folded_hash(trades["symbol_hash"]), self._market_ids)
        sides = taker_sides(trades, some.flags)[own].tolist()
        rows = zip(some.seq[own].tolist(), some.timestamp_ns[own].tolist(), trades[own], sides, strict=True)
        return [
            SeenTrade(seq, when, float(trade["price"]), float(trade["qty"]), Side(side))
            for seq, when, trade, side in list(rows)[-TRADES_MAX:]
        ]

    def _apply(self, part: _Part, until_ns: int | None) -> bool:
        """Apply what is left of a part up to a time; whether that was all of it."""
        end = len(part.event_times) if until_ns is None else part.count_until(until_ns)
        while part.done < end:
            stop = self._step_end(part, end)
            self._apply_events(part, stop)
            part.done = stop
            self._keep_column(int(part.event_times[stop - 1]))
        is_whole = until_ns is None or part.end_ns <= until_ns
        reached_ns = part.end_ns if is_whole else until_ns
        assert reached_ns is not None
        while part.trades and (is_whole or part.trades[0].time_ns <= reached_ns):
            self._printed.append(part.trades.popleft())
        self.position_ns = max(self.position_ns, reached_ns)
        self.last_ns = max(self.last_ns, part.end_ns)
        return is_whole

    def _step_end(self, part: _Part, end: int) -> int:
        """Return where the step of the next event ends; events before the columns are one step."""
        assert self.columns_from_ns is not None
        now_ns = max(int(part.event_times[part.done]), self.columns_from_ns - 1)
        next_ns = (now_ns // self.step_ns + 1) * self.step_ns
        return min(end, int(np.searchsorted(part.event_times, np.uint64(next_ns))))

    def _apply_events(self, part: _Part, stop: int) -> None:
        rows = slice(part.done, stop)
        results = self._books.apply_packed(part.packed.take(rows), Outputs(top=False))
        if self.market is None and results:
            self.market = next(iter(results))
        for market, (places, result) in results.items():
            if market == self.market:
                self.gaps += len(result.gaps)
                if isinstance(self._books.books[market], L3Book):
                    self._note_matches(part, places + part.done)

    def _note_matches(self, part: _Part, places: NDArray[np.intp]) -> None:
        """Keep the trades that order events tell of; which side took is not among what they tell."""
        places = places[part.packed.lengths[places] == L3_RECORD_BYTES]
        buffer, starts = part.packed.buffer, part.packed.offsets[places]
        is_trade = buffer[starts + np.uint64(HEADER_BYTES)] == L3EventType.TRADE
        for place in places[is_trade].tolist()[-TRADES_MAX:]:
            event = np.frombuffer(buffer, L3_RECORD, 1, int(part.packed.offsets[place]))[0]["event"]
            price = int(event["price"]) / 10 ** int(event["price_scale"])
            size = int(event["qty"]) / 10 ** int(event["size_scale"])
            seq, when = int(part.seqs[place]), int(part.event_times[place])
            self._matched.append(SeenTrade(seq, when, price, size, Side.UNKNOWN))

    def _keep_column(self, time_ns: int) -> None:
        """Keep the depth at the end of a step; another look at the same step replaces the first."""
        book = self.book
        assert self.columns_from_ns is not None
        if book is None or time_ns < self.columns_from_ns:
            return
        start_ns = time_ns // self.step_ns * self.step_ns
        if self.columns and self.columns[-1].start_ns == start_ns:
            self.columns.pop()
        elif len(self.columns) == COLUMNS_MAX:
            self.columns_from_ns = self.columns[1].start_ns
        bids, asks = (_as_floats(book, levels) for levels in book.depth(COLUMN_LEVELS))
        self.columns.append(DepthColumn(start_ns, bids, asks))


class _Part:
    """The messages of one batch that concern a market, and how many of them are applied."""

    __slots__ = ("done", "end_ns", "event_times", "packed", "seqs", "trades")

    def __init__(self, events: Messages, trades: list[SeenTrade], times: NDArray[np.uint64]) -> None:
        self.packed = events.packed
        self.seqs = events.seq
        self.trades = deque(trades)
        self.event_times = times[events.chosen]
        self.end_ns = int(times[-1])
        self.done = 0

    def count_until(self, until_ns: int) -> int:
        """How many events there are up to a time, inclusive."""
        return int(np.searchsorted(self.event_times, np.uint64(until_ns), side="right"))


def mode_of(book: Book) -> BookMode:
    """Return whether a book holds price levels or single orders."""
    return BookMode.L3 if isinstance(book, L3Book) else BookMode.L2


def _as_floats(book: Book, levels: NDArray[np.void]) -> list[float]:
    """Return prices and sizes in turn, for drawing: as near to the decimals as a float is."""
    pairs = np.empty((len(levels), 2), dtype=np.float64)
    pairs[:, 0] = levels["price"] / 10.0**book.price_scale
    pairs[:, 1] = levels["size"] / 10.0**book.size_scale
    flat: list[float] = pairs.reshape(-1).tolist()
    return flat
