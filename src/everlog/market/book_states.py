"""The state of a set of books as bytes: saved at one message, loaded to go on with the next.

Owns that format, which is msgpack with a version. It holds all that decides what later events do: levels or
orders, numbers seen, what waits for a snapshot. Unlike `everlog.market.snapshots`, which keeps one market for
people and tools to start from, it is read only by the job that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from everlog.errors import Corrupt, UnsupportedVersion
from everlog.market.book_set import Book, BookSet, BookSettings, Market
from everlog.market.books import L2Book, L3Book
from everlog.market.protocol import OLDEST_VERSION, SCHEMA_VERSION, BookMode

STATE_VERSION: Final = 2
UNSIGNED_VERSION: Final = 1
"""Still read: prices of levels are unsigned."""


class _BookState(msgspec.Struct, array_like=True):
    venue_id: int
    market_id: int
    mode: int
    payload: bytes
    last_seq: int
    last_update_id: int
    last_exchange_ts_ns: int
    last_ingest_ts_ns: int
    after_snapshot: bool
    quarantined: bool


class _ChannelState(msgspec.Struct, array_like=True):
    venue_id: int
    stream_id: int
    last: int | None
    quarantined: bool
    markets: list[tuple[int, int]]


class _SetState(msgspec.Struct):
    version: int
    books: list[_BookState]
    channels: list[_ChannelState]


def save_books(books: BookSet, *, with_payloads: bool = True) -> bytes:
    """Return the state of all books and channels of a set; without payloads if snapshots hold these."""
    channels = [
        _ChannelState(
            venue_id,
            stream_id,
            one.numbers.last,
            one.quarantined,
            [(market.venue_id, market.market_id) for market in one.books],
        )
        for (venue_id, stream_id), one in books._streams.items()
    ]
    states = [_book_state(market, book, with_payload=with_payloads) for market, book in books.books.items()]
    return msgspec.msgpack.encode(_SetState(STATE_VERSION, states, channels))


def load_books(
    data: bytes,
    settings: BookSettings | None = None,
    load: Callable[[Market, Book], object] | None = None,
) -> BookSet:
    """Return the set that `save_books` was given; `settings` are those with which it was made.

    `load` fills the books of a state that was saved without payloads.
    """
    try:
        state = msgspec.msgpack.decode(data, type=_SetState)
    except msgspec.DecodeError as error:
        raise Corrupt(f"not a saved state of books ({error}); remove it and replay from the start") from None
    if not UNSIGNED_VERSION <= state.version <= STATE_VERSION:
        raise UnsupportedVersion(
            f"the state of books has version {state.version}, this build reads {STATE_VERSION}; "
            "replay from the start",
            state.version,
        )
    books = BookSet(settings)
    schema_version = OLDEST_VERSION if state.version == UNSIGNED_VERSION else SCHEMA_VERSION
    for one in state.books:
        books.books[Market(one.venue_id, one.market_id)] = _loaded(books, one, schema_version, load)
    for channel in state.channels:
        stream = books._stream(channel.venue_id, channel.stream_id)
        stream.numbers.last, stream.quarantined = channel.last, channel.quarantined
        for venue_id, market_id in channel.markets:
            book = books.books[Market(venue_id, market_id)]
            assert isinstance(book, L3Book), "only these belong to a channel"
            stream.books[Market(venue_id, market_id)] = book
    return books


def quarantine_books(books: BookSet) -> None:
    """Quarantine every book until its next snapshot or reset: what was lost is unknown."""
    for book in books.books.values():
        if isinstance(book, L2Book):
            book._restore_flags(False, True)
        else:
            book._quarantine()
    for stream in books._streams.values():
        stream.quarantined = True


def _book_state(market: Market, book: Book, *, with_payload: bool) -> _BookState:
    is_l2 = isinstance(book, L2Book)
    return _BookState(
        *market,
        mode=BookMode.L2 if is_l2 else BookMode.L3,
        payload=book.snapshot_payload() if with_payload else b"",
        last_seq=book.last_seq,
        last_update_id=book.last_update_id if isinstance(book, L2Book) else 0,
        last_exchange_ts_ns=book.last_exchange_ts_ns,
        last_ingest_ts_ns=book.last_ingest_ts_ns,
        after_snapshot=isinstance(book, L2Book) and book.after_snapshot,
        quarantined=book.quarantined,
    )


def _loaded(
    books: BookSet,
    state: _BookState,
    schema_version: int,
    load: Callable[[Market, Book], object] | None,
) -> Book:
    book = books.new_book(BookMode(state.mode))
    times_ns = state.last_exchange_ts_ns, state.last_ingest_ts_ns
    if load is not None:
        load(Market(state.venue_id, state.market_id), book)
    elif isinstance(book, L2Book):
        book.load_payload(state.payload, schema_version=schema_version)
    else:
        book.load_payload(state.payload)
    if isinstance(book, L2Book):
        book._restore_numbers(state.last_seq, state.last_update_id, *times_ns)
        book._restore_flags(state.after_snapshot, state.quarantined)
        return book
    book._restore_numbers(state.last_seq, *times_ns)
    if state.quarantined:
        book._quarantine()
    return book
