"""The books of a stream that carries many markets: one book per venue and market, made when first seen.

Owns which event goes to which book, and the sequence numbers of order-by-order channels, which many
markets share. Knows no queue; it is given payloads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import Corrupt
from everlog.market.book_results import BookResult, EventStatus, Outputs
from everlog.market.books import (
    MAX_LEVELS,
    MAX_ORDERS,
    MAX_WINDOW_TICKS,
    GapPolicy,
    L2Book,
    L3Book,
    Priority,
    UnknownOrders,
)
from everlog.market.packing import PackedRecords, gather_field, gather_headers
from everlog.market.protocol import (
    BOOK_EVENT_HEADER,
    HEADER_BYTES,
    L3_RECORD,
    BookEventType,
    BookFlags,
    BookMode,
    L3EventType,
    check_headers,
    first_true,
)
from everlog.market.result_memory import ResultMemory
from everlog.market.sequences import SequenceGap, SequenceValidator, gap_error
from everlog.native.market.events import split_markets


class Market(NamedTuple):
    """A market of a venue, as book events name it."""

    venue_id: int
    market_id: int


class OtherModes(StrEnum):
    """What to do with events of a book mode that is not wanted."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class BookSettings:
    """How the books of a set are made.

    `mode` None takes both kinds; the first event of a market says which kind its book is. `other_modes` says
    what becomes of events of another mode than that, or than the market's book.
    """

    gap_policy: str = GapPolicy.PANIC
    unknown_orders: str = UnknownOrders.FAIL
    priority: str = Priority.VENUE
    mode: BookMode | None = None
    other_modes: str = OtherModes.FAIL
    max_levels: int = MAX_LEVELS
    max_orders: int = MAX_ORDERS
    max_window_ticks: int = MAX_WINDOW_TICKS


class MarketResult(NamedTuple):
    """What a batch did to one market's book; row n of the result is event `events[n]` of the batch."""

    events: NDArray[np.intp]
    result: BookResult


class ChannelGap(NamedTuple):
    """Event `event` of a batch, on a channel of a venue, has number `found` although `seen` was the last."""

    venue_id: int
    stream_id: int
    event: int
    seen: int
    found: int


class _Split(NamedTuple):
    """What `split_markets` returns."""

    bad: int
    keys: NDArray[np.uint64]
    order: NDArray[np.intp]
    ends: NDArray[np.intp]
    channels: NDArray[np.uint64]
    first_events: NDArray[np.uint64]
    firsts: NDArray[np.uint64]
    lasts: NDArray[np.uint64]
    gaps: NDArray[np.uint64]


class _Stream:
    """One order-by-order channel: its numbers, and the markets seen on it."""

    def __init__(self, policy: str) -> None:
        self.numbers = SequenceValidator(policy)
        self.books: dict[Market, L3Book] = {}
        self.quarantined = False


Book = L2Book | L3Book


class BookSet:
    """One book per market, fed with a mixed stream."""

    def __init__(self, settings: BookSettings | None = None) -> None:
        self.settings = settings or BookSettings()
        self.books: dict[Market, Book] = {}
        self.channel_gaps: list[ChannelGap] = []
        """Gaps of order-by-order channels in the last batch, unless the policy is `panic`."""

        self.passed_over: Counter[BookMode] = Counter()
        """How many events were not applied because of their book mode."""

        self.unanchored: Counter[Market] = Counter()
        """How many events came before the first snapshot or reset of a market that did not begin empty."""

        self._begins_empty = True
        self._has_all_markets = True
        self._streams: dict[tuple[int, int], _Stream] = {}

    def begin_in_middle(self) -> None:
        """Make no book from here on of a market that does not begin with a snapshot or a reset.

        For streams of which earlier events are missing: what they left in the book is unknown.
        """
        self._begins_empty = False

    def take_some_markets(self) -> None:
        """Check no numbers of order-by-order channels from here on.

        For streams from which markets were chosen: numbers that are missing may be those of other markets.
        """
        self._has_all_markets = False

    def add(self, others: BookSet) -> bool:
        """Take over the books and channels of another set; False, and nothing, if one is in both."""
        if self.books.keys() & others.books.keys() or self._streams.keys() & others._streams.keys():
            return False
        self.books |= others.books
        self._streams |= others._streams
        return True

    def apply(self, payload: bytes | memoryview) -> EventStatus | None:
        """Apply one book event; None if its book mode is not wanted and skipped."""
        data = np.frombuffer(payload, dtype=np.uint8)
        one = PackedRecords(data, np.zeros(1, np.uint64), np.full(1, len(data), np.uint64))
        results = self.apply_packed(one, Outputs(top=False, statuses=True))
        for _, result in results.values():
            assert result.statuses is not None
            return EventStatus(int(result.statuses[0]))
        return None

    def apply_packed(
        self, packed: PackedRecords, want: Outputs | None = None, memory: ResultMemory | None = None
    ) -> dict[Market, MarketResult]:
        """Apply a batch of book events and return what it did, market by market.

        Within a market the order of events is kept; markets do not depend on each other. Under gap policy
        `panic` a gap in a channel raises before anything of the batch is applied. A loop that drops its
        results may pass a `ResultMemory`, whose memory is used again.
        """
        chosen = (
            None if self.settings.mode is None else np.flatnonzero(self._mode_mask(self._headers(packed)))
        )
        wanted = packed if chosen is None else packed.take(chosen)
        split = _Split(*split_markets(wanted.buffer, wanted.offsets, wanted.lengths))
        if split.bad < len(wanted):
            # The same checks again, for their words.
            self._headers(wanted)
        results: dict[Market, MarketResult] = {}
        for first, stop, gap_stream in self._runs(split, wanted, chosen):
            if gap_stream is not None:
                self._quarantine(gap_stream)
            self._apply_run(wanted, split, (first, stop), want, memory, results)
        if chosen is not None:
            return {market: one._replace(events=chosen[one.events]) for market, one in results.items()}
        return results

    def checkpoint(self, channel: int, names: Callable[[int], str] = str) -> str:
        """Return the state of one channel as JSON: last number and the hash of each book, by symbol."""
        found = [stream for (_, number), stream in self._streams.items() if number == channel]
        last = [stream.numbers.last for stream in found if stream.numbers.last is not None]
        symbols = [
            {"symbol": names(market.market_id), "book_hash": book.book_hash().hex()}
            for stream in found
            for market, book in stream.books.items()
        ]
        symbols.sort(key=lambda row: row["symbol"])
        return json.dumps({"channel": channel, "last_seq": max(last, default=0), "symbols": symbols})

    def _headers(self, packed: PackedRecords) -> NDArray[np.void]:
        row = first_true(packed.lengths < HEADER_BYTES)
        if row is not None:
            raise Corrupt(
                f"book event {row} has {packed.lengths[row]} bytes, a header alone has {HEADER_BYTES}"
            )
        headers = gather_headers(packed)
        check_headers(headers, packed.lengths)
        return headers

    def _mode_mask(self, headers: NDArray[np.void]) -> NDArray[np.bool_]:
        if self.settings.mode is None:
            return np.ones(len(headers), dtype=np.bool_)
        mask: NDArray[np.bool_] = headers["book_mode"] == self.settings.mode
        row = first_true(~mask)
        if row is not None and OtherModes(self.settings.other_modes) is OtherModes.FAIL:
            raise Corrupt(
                f"book event {row} has book mode {headers['book_mode'][row]}, wanted is "
                f"{int(self.settings.mode)}; open the books with other_modes='skip' to pass over it"
            )
        self._count_passed_over(headers["book_mode"][~mask])
        return mask

    def _count_passed_over(self, modes: NDArray[Any]) -> None:
        for mode, count in zip(*np.unique(modes, return_counts=True), strict=True):
            self.passed_over[BookMode(int(mode))] += int(count)

    def _of_its_mode(
        self, own: PackedRecords, index: NDArray[np.intp], book: Book
    ) -> tuple[PackedRecords, NDArray[np.intp]]:
        """Return those events of a market that its book can apply."""
        modes = gather_field(own, "book_mode")
        fitting = modes == (BookMode.L3 if isinstance(book, L3Book) else BookMode.L2)
        if fitting.all():
            return own, index
        self._count_passed_over(modes[~fitting])
        return own.take(np.flatnonzero(fitting)), index[fitting]

    def _runs(
        self, split: _Split, packed: PackedRecords, chosen: NDArray[np.intp] | None
    ) -> Iterable[tuple[int, int, _Stream | None]]:
        """Cut the batch where a channel has a gap: the books of that channel must know before going on."""
        self.channel_gaps = []
        if not self._has_all_markets:
            return [(0, len(packed), None)]
        streams = [self._stream(key >> 32, key & 0xFFFFFFFF) for key in split.channels.tolist()]
        gaps: list[tuple[int, int, int, int]] = [*map(tuple, split.gaps.tolist())]
        firsts = zip(streams, split.first_events.tolist(), split.firsts.tolist(), strict=True)
        for number, (stream, event, found) in enumerate(firsts):
            seen = stream.numbers.last
            if seen is not None and found != seen + 1:
                gaps.append((event, number, seen, found))
        gaps = [gap for gap in sorted(gaps) if not _is_expected(packed, gap)]
        policy = GapPolicy(self.settings.gap_policy)
        for event, number, seen, found in gaps:
            place, channel = event if chosen is None else int(chosen[event]), int(split.channels[number])
            if policy is GapPolicy.PANIC:
                raise gap_error(SequenceGap(place, seen, found))
            self.channel_gaps.append(ChannelGap(channel >> 32, channel & 0xFFFFFFFF, place, seen, found))
        for stream, last in zip(streams, split.lasts.tolist(), strict=True):
            stream.numbers.last = last
        cuts = gaps if policy is GapPolicy.QUARANTINE else []
        begins = [0, *(event for event, *_ in cuts)]
        behind: list[_Stream | None] = [None, *(streams[number] for _, number, *_ in cuts)]
        return zip(begins, [*begins[1:], len(packed)], behind, strict=True)

    def _quarantine(self, stream: _Stream) -> None:
        stream.quarantined = True
        for book in stream.books.values():
            book._quarantine()

    def _apply_run(
        self,
        packed: PackedRecords,
        split: _Split,
        run: tuple[int, int],
        want: Outputs | None,
        memory: ResultMemory | None,
        results: dict[Market, MarketResult],
    ) -> None:
        """Apply the events of a run, market by market."""
        ends = split.ends.tolist()
        parts = [split.order[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        if run != (0, len(packed)):
            parts = [part[slice(*np.searchsorted(part, run))] for part in parts]
        settings, keys = self.settings, split.keys.tolist()
        passes_over = settings.mode is None and OtherModes(settings.other_modes) is not OtherModes.FAIL
        for number in np.argsort(split.keys).tolist():
            index, key = parts[number], keys[number]
            if len(index) == 0:
                continue
            market = Market(key >> 32, key & 0xFFFFFFFF)
            own = packed if len(index) == len(packed) else packed.take(index)
            if not self._begins_empty and market not in self.books:
                own, index = self._from_anchor(market, own, index)
                if len(index) == 0:
                    continue
            book = self._book(market, own)
            if passes_over:
                own, index = self._of_its_mode(own, index, book)
                if len(index) == 0:
                    continue
            result = book.apply_array(self._events_for(book, market, own), want, memory)
            earlier = results.get(market)
            results[market] = (
                MarketResult(index, result) if earlier is None else _joined(earlier, index, result)
            )

    def _from_anchor(
        self, market: Market, own: PackedRecords, index: NDArray[np.intp]
    ) -> tuple[PackedRecords, NDArray[np.intp]]:
        """Return the events from the first on from which a book can be built."""
        headers = gather_headers(own)
        kinds = headers["event_type"]
        is_anchor = (kinds == BookEventType.SNAPSHOT) | (kinds == BookEventType.RESET)
        is_anchor |= (headers["flags"] & BookFlags.RESETS) != 0
        of_orders = np.flatnonzero((headers["book_mode"] == BookMode.L3) & (own.lengths > HEADER_BYTES))
        bodies = own.buffer[own.offsets[of_orders] + np.uint64(HEADER_BYTES)]
        is_anchor[of_orders] |= bodies == L3EventType.RESET
        first = first_true(is_anchor)
        begin = len(index) if first is None else first
        self.unanchored[market] += begin
        return own.take(np.arange(begin, len(index))), index[begin:]

    def _book(self, market: Market, own: PackedRecords) -> Book:
        book = self.books.get(market)
        if book is None:
            book = self.new_book(BookMode(int(_head(own)["book_mode"])))
            self.books[market] = book
        return book

    def _events_for(self, book: Book, market: Market, own: PackedRecords) -> PackedRecords | NDArray[np.void]:
        """Return the events as the market's book takes them; of orders, note on which channel they come."""
        if not isinstance(book, L3Book):
            return own
        head = _head(own)
        stream = self._stream(int(head["venue_id"]), int(head["stream_id"]))
        if market not in stream.books:
            stream.books[market] = book
            if stream.quarantined:
                book._quarantine()
        return order_records(own)

    def new_book(self, mode: BookMode) -> Book:
        """Return an empty book with the settings of this set; it is not one of the set's books yet."""
        settings = self.settings
        if mode is BookMode.L2:
            return L2Book(
                gap_policy=settings.gap_policy,
                max_levels=settings.max_levels,
                max_window_ticks=settings.max_window_ticks,
            )
        book = L3Book(
            unknown_orders=settings.unknown_orders,
            priority=settings.priority,
            max_orders=settings.max_orders,
            max_levels=settings.max_levels,
            max_window_ticks=settings.max_window_ticks,
        )
        book._leave_numbers_to_the_channel()
        return book

    def _stream(self, venue_id: int, stream_id: int) -> _Stream:
        key = (venue_id, stream_id)
        if key not in self._streams:
            self._streams[key] = _Stream(self.settings.gap_policy)
        return self._streams[key]


def _head(packed: PackedRecords, event: int = 0) -> Any:
    """Return the header of an event."""
    return np.frombuffer(packed.buffer, BOOK_EVENT_HEADER, 1, int(packed.offsets[event]))[0]


def _is_expected(packed: PackedRecords, gap: tuple[int, int, int, int]) -> bool:
    """Whether a number that does not follow is no gap: the channel begins anew, or is not recorded whole."""
    event, _, seen, found = gap
    flags = int(_head(packed, event)["flags"])
    return bool(flags & BookFlags.SPARSE) or bool(flags & BookFlags.RESETS and found <= seen)


def order_records(packed: PackedRecords) -> PackedRecords | NDArray[np.void]:
    """Return order-by-order events as an array if they can be one: books go through it much faster."""
    starts = packed.offsets
    if not (packed.lengths[: 1 if packed.stride else None] == L3_RECORD.itemsize).all():
        return packed
    stride = packed.stride or _stride(starts)
    if stride:
        return np.ndarray((len(starts),), L3_RECORD, packed.buffer, int(starts[0]), (stride,))
    if (starts % np.uint64(HEADER_BYTES)).any():
        return packed
    # Those of one market lie among others: two cells of the queue are one record.
    cells = packed.buffer[: len(packed.buffer) // HEADER_BYTES * HEADER_BYTES].view(f"V{HEADER_BYTES}")
    places = (starts // np.uint64(HEADER_BYTES)).astype(np.intp)
    rows = np.empty((len(places), 2), cells.dtype)
    rows[:, 0], rows[:, 1] = cells[places], cells[places + 1]
    records: NDArray[np.void] = rows.reshape(-1).view(L3_RECORD)
    return records


def _stride(starts: NDArray[np.uint64]) -> int:
    """Return how far records lie apart, 0 if that differs; `starts` has one at least."""
    steps = np.diff(starts.astype(np.int64))
    if len(steps) == 0:
        return L3_RECORD.itemsize
    return int(steps[0]) if steps[0] > 0 and (steps == steps[0]).all() else 0


def _joined(earlier: MarketResult, index: NDArray[np.intp], result: BookResult) -> MarketResult:
    return MarketResult(np.concatenate([earlier.events, index]), earlier.result.joined(result))
