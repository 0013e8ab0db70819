"""The books of a stream that carries many markets: one book per venue and market, made when first seen.

Owns which event goes to which book, and the sequence numbers of order-by-order channels, which many
markets share. Knows no queue; it is given payloads.
"""

from __future__ import annotations

import json
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
    UnknownOrders,
)
from everlog.market.packing import PackedRecords, gather_headers
from everlog.market.protocol import (
    HEADER_BYTES,
    BookMode,
    check_headers,
    first_true,
)
from everlog.market.sequences import SequenceGap, SequenceValidator, gap_error


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
    """How the books of a set are made. `mode` None takes both kinds."""

    gap_policy: str = GapPolicy.PANIC
    unknown_orders: str = UnknownOrders.FAIL
    mode: BookMode | None = None
    other_modes: str = OtherModes.FAIL
    max_levels: int = MAX_LEVELS
    max_orders: int = MAX_ORDERS
    max_window_ticks: int = MAX_WINDOW_TICKS


class MarketResult(NamedTuple):
    """What a batch did to one market's book; row n of the result is event `events[n]` of the batch."""

    events: NDArray[np.intp]
    result: BookResult


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
        self._streams: dict[tuple[int, int], _Stream] = {}

    def apply(self, payload: bytes | memoryview) -> EventStatus | None:
        """Apply one book event; None if its book mode is not wanted and skipped."""
        data = np.frombuffer(payload, dtype=np.uint8)
        one = PackedRecords(data, np.zeros(1, np.uint64), np.full(1, len(data), np.uint64))
        results = self.apply_packed(one, Outputs(top=False, statuses=True))
        for _, result in results.values():
            assert result.statuses is not None
            return EventStatus(int(result.statuses[0]))
        return None

    def apply_packed(self, packed: PackedRecords, want: Outputs | None = None) -> dict[Market, MarketResult]:
        """Apply a batch of book events and return what it did, market by market.

        Within a market the order of events is kept; markets do not depend on each other. Under gap policy
        `panic` a gap in a channel raises before anything of the batch is applied.
        """
        headers = self._headers(packed)
        wanted = np.flatnonzero(self._mode_mask(headers))
        if len(wanted) == 0:
            return {}
        results: dict[Market, MarketResult] = {}
        for first, stop, gap_stream in self._runs(headers, wanted):
            if gap_stream is not None:
                self._quarantine(gap_stream)
            self._apply_run(packed, headers, wanted[first:stop], want, results)
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
        return mask

    def _runs(
        self, headers: NDArray[np.void], wanted: NDArray[np.intp]
    ) -> Iterable[tuple[int, int, _Stream | None]]:
        """Cut the batch where a channel has a gap: the books of that channel must know before going on."""
        cuts: list[tuple[int, _Stream]] = []
        seqs = headers["seq"][wanted]
        orders = np.flatnonzero((headers["book_mode"][wanted] == BookMode.L3) & (seqs != 0))
        venues, numbers = headers["venue_id"][wanted][orders], headers["stream_id"][wanted][orders]
        channels = venues.astype(np.uint64) << np.uint64(32) | numbers
        for channel in np.unique(channels).tolist():
            rows = orders[channels == channel]
            stream = self._stream(channel >> 32, channel & 0xFFFFFFFF)
            before = stream.numbers.last
            for gap in stream.numbers.check_array(seqs[rows]):
                place = int(rows[gap.position])
                if stream.numbers.policy is GapPolicy.PANIC:
                    stream.numbers.last = before
                    raise gap_error(SequenceGap(int(wanted[place]), gap.seen, gap.found))
                if stream.numbers.policy is GapPolicy.QUARANTINE:
                    cuts.append((place, stream))
        cuts.sort(key=lambda cut: cut[0])
        begins = [0, *(place for place, _ in cuts)]
        streams: list[_Stream | None] = [None, *(stream for _, stream in cuts)]
        return zip(begins, [*begins[1:], len(wanted)], streams, strict=True)

    def _quarantine(self, stream: _Stream) -> None:
        stream.quarantined = True
        for book in stream.books.values():
            book._quarantine()

    def _apply_run(
        self,
        packed: PackedRecords,
        headers: NDArray[np.void],
        rows: NDArray[np.intp],
        want: Outputs | None,
        results: dict[Market, MarketResult],
    ) -> None:
        if len(rows) == 0:
            return
        keys = headers["venue_id"][rows].astype(np.uint64) << np.uint64(32) | headers["market_id"][rows]
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order][0] + np.uint64(1)))
        for part in np.split(order, starts[1:]):
            index = rows[part]
            head = headers[index[0]]
            market = Market(int(head["venue_id"]), int(head["market_id"]))
            result = self._book(market, head).apply_array(packed.take(index), want)
            earlier = results.get(market)
            results[market] = (
                MarketResult(index, result) if earlier is None else _joined(earlier, index, result)
            )

    def _book(self, market: Market, head: Any) -> Book:
        book = self.books.get(market)
        if book is None:
            book = self._new_book(BookMode(int(head["book_mode"])))
            self.books[market] = book
        if isinstance(book, L3Book):
            stream = self._stream(int(head["venue_id"]), int(head["stream_id"]))
            if market not in stream.books:
                stream.books[market] = book
                if stream.quarantined:
                    book._quarantine()
        return book

    def _new_book(self, mode: BookMode) -> Book:
        settings = self.settings
        if mode is BookMode.L2:
            return L2Book(
                gap_policy=settings.gap_policy,
                max_levels=settings.max_levels,
                max_window_ticks=settings.max_window_ticks,
            )
        book = L3Book(
            unknown_orders=settings.unknown_orders,
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


def _joined(earlier: MarketResult, index: NDArray[np.intp], result: BookResult) -> MarketResult:
    return MarketResult(np.concatenate([earlier.events, index]), earlier.result.joined(result))
