"""Events that bring the books of a reader to a state: what a feed sends first, and after a break.

Owns how a book becomes events: an L2 snapshot, or a reset and the orders of an L3 book, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.market.book_set import BookSet, Market
from everlog.market.books import L2Book, L3Book
from everlog.market.protocol import (
    HEADER_BYTES,
    BookEventType,
    BookFlags,
    BookMode,
    L3EventType,
    L3Flags,
    MessageFlags,
    new_headers,
    new_l3_records,
)


class SeenMarket(NamedTuple):
    """A market and how its events came."""

    market: Market
    mode: BookMode
    stream_id: int


class OpeningEvent(NamedTuple):
    """The payload of a book event, and the flags of its message."""

    payload: bytes
    flags: int


def opening_events(books: BookSet, seen: Iterable[SeenMarket], timestamp_ns: int) -> list[OpeningEvent]:
    """Return events after which a reader has these books; other markets that it has seen are emptied.

    A book that a gap has left behind is not sent.
    """
    streams = {
        market: (stream_id, stream.numbers.last or 0)
        for (_, stream_id), stream in books._streams.items()
        for market in stream.books
    }
    events: list[OpeningEvent] = []
    for market, book in sorted(books.books.items(), key=lambda entry: entry[0]):
        if isinstance(book, L2Book) and not book.quarantined:
            events.append(_level_snapshot(market, book, timestamp_ns))
        elif isinstance(book, L3Book) and not book.quarantined:
            stream_id, number = streams.get(market, (0, 0))
            events += _order_snapshot(market, book, timestamp_ns, stream_id, number)
    for one in sorted(seen):
        if one.market not in books.books:
            events.append(_reset(one, timestamp_ns))
    return events


def _level_snapshot(market: Market, book: L2Book, timestamp_ns: int) -> OpeningEvent:
    body = book.snapshot_payload()
    header = new_headers(1, BookEventType.SNAPSHOT, BookMode.L2, venue_id=market[0], market_id=market[1])
    header["record_len"] = HEADER_BYTES + len(body)
    header["ingest_ts_ns"], header["exchange_ts_ns"] = timestamp_ns, book.last_exchange_ts_ns
    return OpeningEvent(header.tobytes() + body, int(MessageFlags.LAST_OF_EVENT))


def _order_snapshot(
    market: Market, book: L3Book, timestamp_ns: int, stream_id: int, number: int
) -> list[OpeningEvent]:
    """Return a reset and an event for each order, as one event of the venue."""
    rows = book.orders()
    records = _records(1 + len(rows), market, timestamp_ns, stream_id, number)
    records["header"]["exchange_ts_ns"] = book.last_exchange_ts_ns
    records["header"]["exchange_ts_ns"][1:] = rows["last_ts_ns"]
    event = records["event"]
    event["price_scale"], event["size_scale"] = book.price_scale, book.size_scale
    event["event_type"][1:] = L3EventType.ORDER_ADD
    for name in ("order_id", "side", "ord_type", "price", "qty"):
        event[name][1:] = rows[name]
    event["flags"][1:] = rows["flags"] | (rows["no_price"] != 0) * np.uint32(L3Flags.NO_PRICE)
    flags = np.full(len(records), MessageFlags.SNAPSHOT_PART, np.uint16)
    flags[-1] |= MessageFlags.LAST_OF_EVENT
    return [OpeningEvent(one.tobytes(), flag) for one, flag in zip(records, flags.tolist(), strict=True)]


def _records(count: int, market: Market, timestamp_ns: int, stream_id: int, number: int) -> NDArray[np.void]:
    """Return events of orders that all have the last number of their channel; the first is a reset."""
    records = new_l3_records(count, venue_id=market[0], market_id=market[1])
    records["header"]["stream_id"], records["header"]["seq"] = stream_id, number
    records["header"]["ingest_ts_ns"] = timestamp_ns
    records["header"]["flags"] = BookFlags.SPARSE | BookFlags.MARKS_EVENT_ENDS
    records["header"]["flags"][0] |= BookFlags.RESETS
    records["event"]["event_type"][0] = L3EventType.RESET
    return records


def _reset(one: SeenMarket, timestamp_ns: int) -> OpeningEvent:
    flags = int(MessageFlags.LAST_OF_EVENT)
    if one.mode is BookMode.L3:
        return OpeningEvent(_records(1, one.market, timestamp_ns, one.stream_id, 0).tobytes(), flags)
    header = new_headers(1, BookEventType.RESET, BookMode.L2, venue_id=one.market[0], market_id=one.market[1])
    header["ingest_ts_ns"] = timestamp_ns
    return OpeningEvent(header.tobytes(), flags)
