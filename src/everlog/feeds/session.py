"""One connection to a venue without its I/O: frames in, messages for the queue out.

Owns the state of every symbol: waiting for a book, or live; what was buffered; the numbers and checksums that
must follow. A break is told at once: a gap, a reset of the book, and a request for a new one. One symbol's
trouble never stops another. Nothing here waits, sleeps or opens anything, so tests and replays drive it with
any frames.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from everlog.errors import EverlogError
from everlog.feeds.encoding import PACKED_LEVEL, FeedGap, Message, PackedLevels, SymbolEncoder, gap_message
from everlog.feeds.venue import UNREADABLE, BookDiff, BookSnapshot, Quote, Refusal, TradePrint, Venue
from everlog.market.books import GapPolicy, L2Book
from everlog.market.protocol import LEVEL, MessageFlags, TypeId
from everlog.market.venues.registry import venue_id

LAST: Final = int(MessageFlags.LAST_OF_EVENT)
WINDOW_TICKS: Final = 1 << 14
BUFFER_MAX: Final = 10_000
"""Diffs of one symbol that wait for its snapshot; older ones are dropped, and the next snapshot is newer."""

Flagged = tuple[int, bytes, int]
"""Type id, payload and message flags."""


class SymbolState:
    """What is known of one symbol."""

    def __init__(self, venue: Venue, symbol: str, stream_id: int) -> None:
        self.symbol = symbol
        self.encoder = SymbolEncoder(venue_id(venue.name), symbol, stream_id)
        self.is_live = False
        self.waits_for_rest = False
        self.is_late = False
        self.last_id = 0
        self.last_trade_id = 0
        self.buffer: deque[BookDiff] = deque(maxlen=BUFFER_MAX)
        self.book: L2Book | None = None
        self.counts: Counter[str] = Counter()
        self.last_exchange_ns = 0
        self.last_received_ns = 0


class FeedSession:
    """Decodes the frames of one connection after another; `connection_id` tells them apart."""

    def __init__(
        self, venue: Venue, symbols: Sequence[str], stream_id: int = 0, *, takes_all: bool = False
    ) -> None:
        """`symbols` are the exchange's own names, all of which this connection carries.

        With `takes_all` other symbols are taken in too, from their first frame on.
        """
        self.venue = venue
        self._takes_all = takes_all
        self.connection_id = 0
        self.symbols = {symbol: SymbolState(venue, symbol, stream_id) for symbol in symbols}
        self.counts: Counter[str] = Counter()
        self.refusals: list[str] = []
        self.to_send: list[str] = []
        """Frames that the venue is to get."""
        self.snapshots_wanted: list[str] = []
        """Symbols whose book is to be asked of REST."""
        self._out: list[Flagged] = []
        self._keeps_books = type(venue).checksum is not Venue.checksum or venue.depth is not None

    @property
    def shows_losses(self) -> bool:
        """Whether a frame that is missing shows by itself, by the numbers of the venue or its checksums."""
        return self._keeps_books or self.venue.snapshot_target("") is not None

    # -- what the connection tells --------------------------------------------------------

    def connected(self, received_ns: int, *, is_continued: bool) -> list[Flagged]:
        """Begin with a new connection.

        `is_continued`: the queue holds events of an earlier process, which a gap cuts off.
        """
        self.connection_id = received_ns
        if is_continued:
            self._lose_all("connect", "", received_ns)
        for state in self.symbols.values():
            self._want_book(state, renew=False)
        return self._taken()

    def disconnected(self, reason: str, detail: str, received_ns: int) -> list[Flagged]:
        """Tell what the end of a connection means: every book is out of date from here on."""
        self.counts[f"disconnects_{reason}"] += 1
        self._lose_all(reason, detail, received_ns)
        self.to_send.clear()
        self.snapshots_wanted.clear()
        return self._taken()

    def frame(self, frame: bytes, received_ns: int) -> list[Flagged]:
        """Take in one frame; return the messages for the queue, the last of which ends an event."""
        self.counts["frames"] += 1
        try:
            items = self.venue.decode(frame)
        except UNREADABLE as error:
            # A frame that cannot be read may have held anything of any symbol.
            self.counts["bad_frames"] += 1
            self._lose_all("bad_frame", f"{type(error).__name__}: {error}"[:200], received_ns)
            for state in self.symbols.values():
                self._want_book(state, renew=True)
            return self._taken()
        for item in items:
            if isinstance(item, Refusal):
                self.counts["refusals"] += 1
                self.refusals = [*self.refusals[-9:], item.text]
                continue
            known = self.state_of(item.symbol)
            if known is None:
                self.counts["other_symbols"] += 1
                continue
            try:
                self._take_item(known, item, received_ns)
            except (*UNREADABLE, EverlogError) as error:
                self._break(known, "bad_frame", received_ns, detail=str(error)[:200])
        return self._taken()

    def state_of(self, symbol: str) -> SymbolState | None:
        """Return the state of a symbol, which begins now if all symbols are taken; else None."""
        state = self.symbols.get(symbol)
        if state is None and self._takes_all:
            state = self.symbols[symbol] = SymbolState(self.venue, symbol, 0)
        return state

    def snapshot(self, symbol: str, body: bytes, received_ns: int) -> list[Flagged]:
        """Take in the answer of REST for a symbol's book; one that is too old is asked for again."""
        state = self.symbols[symbol]
        state.counts["rest_snapshots"] += 1
        try:
            one = self.venue.decode_snapshot(symbol, body)
            if state.is_live:
                return self._taken()
            # The first buffered diff must reach back to the snapshot.
            if state.buffer and _begin_of(state.buffer[0]) > one.update_id + 1:
                state.counts["old_snapshots"] += 1
                self._want_book(state, renew=True)
                return self._taken()
            self._anchor(state, one, received_ns)
        except (*UNREADABLE, EverlogError) as error:
            state.counts["bad_snapshots"] += 1
            self.refusals = [*self.refusals[-9:], f"{symbol}: unreadable snapshot: {error}"[:200]]
            if state.is_live:  # it was a diff that had waited for it
                self._lose(state, "bad_frame", received_ns, detail=str(error)[:200])
            state.waits_for_rest = False
            self._want_book(state, renew=True)
        return self._taken()

    def remind(self) -> None:
        """Ask again for the books that have not come since the last reminder."""
        for state in self.symbols.values():
            if state.is_live or not state.is_late:
                state.is_late = not state.is_live
                continue
            state.counts["reminders"] += 1
            self._want_book(state, renew=True)

    # -- items ----------------------------------------------------------------------------

    def _take_item(
        self, state: SymbolState, item: BookSnapshot | BookDiff | TradePrint | Quote, received_ns: int
    ) -> None:
        state.last_received_ns = received_ns
        state.last_exchange_ns = item.exchange_ns or state.last_exchange_ns
        if isinstance(item, BookDiff):
            if state.is_live:
                self._apply(state, item, received_ns)
            elif self.venue.snapshot_target(state.symbol) is not None:
                state.buffer.append(item)
            else:
                state.counts["unanchored"] += 1
        elif isinstance(item, TradePrint):
            self._trade(state, item, received_ns)
        elif isinstance(item, Quote):
            self._emit(state.encoder.quote(item))
        else:
            self._anchor(state, item, received_ns)

    def _trade(self, state: SymbolState, trade: TradePrint, received_ns: int) -> None:
        flags = 0
        if trade.is_numbered:
            if state.last_trade_id and trade.trade_id <= state.last_trade_id:
                state.counts["repeated"] += 1
                return
            if state.last_trade_id and trade.trade_id != state.last_trade_id + 1:
                self._gap(state, "trades", state.last_trade_id, trade.trade_id)
                flags = int(MessageFlags.GAP_BEFORE)
            state.last_trade_id = trade.trade_id
        state.counts["trades"] += 1
        self._emit(state.encoder.trade(trade), flags)

    def _anchor(self, state: SymbolState, one: BookSnapshot, received_ns: int) -> None:
        """Begin a book with a snapshot, and go on with what was buffered."""
        bids, asks = state.encoder.sides(one.bids, one.asks)
        bids, asks = _in_order(bids, is_bid=True), _in_order(asks, is_bid=False)
        message = state.encoder.snapshot(one, bids, asks, received_ns)
        if self._keeps_books:
            # Numbers are checked here. Windows of many ticks cost more than levels that are far away.
            state.book = book = L2Book(gap_policy=GapPolicy.IGNORE, max_window_ticks=WINDOW_TICKS)
            book.apply(message[1])
            if one.checksum is not None and self.venue.checksum(book) != one.checksum:
                self._break(state, "checksum", received_ns, found=one.checksum)
                return
        state.counts["snapshots"] += 1
        state.is_live, state.waits_for_rest, state.last_id = True, False, one.update_id
        self._emit(message)
        waiting, state.buffer = state.buffer, deque(maxlen=BUFFER_MAX)
        for diff in waiting:
            if 0 < diff.last_id <= one.update_id:
                state.counts["superseded"] += 1
            elif state.is_live:
                self._apply(state, diff, received_ns)
            else:
                state.buffer.append(diff)

    def _apply(self, state: SymbolState, diff: BookDiff, received_ns: int) -> None:
        last = state.last_id
        if diff.last_id and last and not _follows(diff, last):
            comes_by_rest = self.venue.snapshot_target(state.symbol) is not None
            # Without REST nothing is older than the book: numbers that fall were begun anew.
            if diff.last_id == last or (comes_by_rest and diff.last_id < last):
                state.counts["repeated"] += 1
                return
            self._break(state, "sequence", received_ns, seen=last, found=_begin_of(diff))
            if comes_by_rest:
                state.buffer.append(diff)
            return
        bids, asks = state.encoder.sides(diff.bids, diff.asks)
        messages = state.encoder.diffs(diff, bids, asks, received_ns)
        if state.book is not None:
            _apply_all(state.book, messages)
            if gone := self._beyond_depth(state.book):
                messages = state.encoder.diffs(diff, bids + gone[0], asks + gone[1], received_ns)
                _apply_all(state.book, messages)
            if diff.checksum is not None and self.venue.checksum(state.book) != diff.checksum:
                self._break(state, "checksum", received_ns, found=diff.checksum)
                return
            state.counts["checked"] += diff.checksum is not None
        state.last_id = diff.last_id or last
        state.counts["diffs"] += 1
        for message in messages:
            self._emit(message)

    def _beyond_depth(self, book: L2Book) -> list[PackedLevels]:
        """Return what removes the levels that the venue no longer keeps up to date, if there are any."""
        depth = self.venue.depth
        if depth is None or (book.bid_count <= depth and book.ask_count <= depth):
            return []
        return [
            b"".join(PACKED_LEVEL.pack(price, 0) for price in side["price"][depth:].tolist())
            for side in book.depth(2**31)
        ]

    # -- breaks ---------------------------------------------------------------------------

    def _gap(self, state: SymbolState, reason: str, seen: int = 0, found: int = 0, detail: str = "") -> None:
        state.counts["gaps"] += 1
        self.counts[f"gaps_{reason}"] += 1
        self._emit(
            gap_message(
                FeedGap(
                    reason=reason,
                    connection=self.connection_id,
                    venue=self.venue.name,
                    symbol=state.symbol,
                    seen=seen,
                    found=found,
                    detail=detail,
                )
            )
        )

    def _break(
        self,
        state: SymbolState,
        reason: str,
        received_ns: int,
        seen: int = 0,
        found: int = 0,
        detail: str = "",
    ) -> None:
        """Tell that a book is wrong from here on, and ask for a new one."""
        self._lose(state, reason, received_ns, seen, found, detail)
        self._want_book(state, renew=True)

    def _lose(
        self,
        state: SymbolState,
        reason: str,
        received_ns: int,
        seen: int = 0,
        found: int = 0,
        detail: str = "",
    ) -> None:
        self._gap(state, reason, seen, found, detail)
        self._emit(state.encoder.reset(received_ns), int(MessageFlags.GAP_BEFORE))
        state.is_live, state.book, state.last_id = False, None, 0
        state.buffer.clear()

    def _lose_all(self, reason: str, detail: str, received_ns: int) -> None:
        for state in self.symbols.values():
            self._lose(state, reason, received_ns, detail=detail)
            state.waits_for_rest = False
            state.last_trade_id = 0

    def _want_book(self, state: SymbolState, *, renew: bool) -> None:
        if self.venue.snapshot_target(state.symbol) is None:
            if renew:
                self.to_send += self.venue.renewals(state.symbol)
        elif renew or not state.waits_for_rest:
            state.waits_for_rest = True
            if state.symbol not in self.snapshots_wanted:
                self.snapshots_wanted.append(state.symbol)

    # -- messages -------------------------------------------------------------------------

    def _emit(self, message: Message, flags: int = 0) -> None:
        self._out.append((*message, flags))

    def _taken(self) -> list[Flagged]:
        """Return the messages so far; the last one, and the last of each kind but books, ends the event."""
        out, self._out = self._out, []
        last = len(out) - 1
        return [
            (kind, payload, flags | LAST)
            if at == last or kind != TypeId.BOOK_EVENT
            else (kind, payload, flags)
            for at, (kind, payload, flags) in enumerate(out)
        ]


def _begin_of(diff: BookDiff) -> int:
    return diff.first_id if diff.previous_id is None else min(diff.first_id, diff.previous_id + 1)


def _follows(diff: BookDiff, last: int) -> bool:
    """Whether the diff is the next one: it names the one before, or what it covers holds the next id."""
    return diff.previous_id == last or _begin_of(diff) <= last + 1 <= diff.last_id


def _in_order(packed: PackedLevels, *, is_bid: bool) -> PackedLevels:
    """Return the levels of a side from the best on, without empty ones; the last of a price counts."""
    given = np.frombuffer(packed, dtype=LEVEL)
    better, worse = (given["price"][:-1], given["price"][1:])[:: 1 if is_bid else -1]
    if given["size"].all() and (better > worse).all():
        return packed
    levels: dict[int, int] = dict(PACKED_LEVEL.iter_unpack(packed))
    in_order = (price for price in sorted(levels, reverse=is_bid) if levels[price])
    return b"".join(PACKED_LEVEL.pack(price, levels[price]) for price in in_order)


def _apply_all(book: L2Book, messages: Sequence[Message]) -> None:
    for _, payload in messages:
        book.apply(payload)
