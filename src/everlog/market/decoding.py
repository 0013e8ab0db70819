"""Typed columns of market data: those of tables, of files, and of `decode` for the format `everlog.queue`.

Owns the columns of each decoding and how they are read from a batch of messages. Every column is one gather
from the mapped segment: no loop over events, and only the bytes that a column needs are read. Spark has no
unsigned numbers, so those of 64 bits keep their bits: an id above 2^63 is shown negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from everlog.errors import Corrupt
from everlog.market.packing import ranges
from everlog.market.protocol import (
    BAR,
    BOOK_EVENT_HEADER,
    BOOK_TICKER,
    HEADER_BYTES,
    L2_DIFF,
    L2_SNAPSHOT,
    L3_EVENT,
    L3_RECORD_BYTES,
    LEVEL_BYTES,
    TRADE,
    TRADE_SIDE_UNKNOWN,
    BookEventType,
    BookMode,
    TypeId,
    check_headers,
    first_true,
)
from everlog.queue.batch import Batch
from everlog.queue.layout import (
    HEADER_SIZE,
    MSG_COMMIT_LEN,
    MSG_FLAGS,
    MSG_SEQ,
    MSG_TIMESTAMP_NS,
    MSG_TYPE_ID,
    RECORD_ALIGN,
)

Indexes = NDArray[np.intp]

LONG: Final = pa.int64()
INT: Final = pa.int32()
DOUBLE: Final = pa.float64()
_LEVEL: Final = pa.struct([pa.field("price", LONG), pa.field("size", LONG)])
LEVELS: Final = pa.list_(pa.field("element", _LEVEL))
_WORD_BYTES: Final = 4
_LEVEL_WORDS: Final = LEVEL_BYTES // _WORD_BYTES
_CHECKED: Final = ("schema_version", "record_len", "endianness", "event_type", "book_mode")


class FieldLayout(NamedTuple):
    """The byte offset of a value in a message's record, and its type there."""

    offset: int
    dtype: np.dtype[Any]


COMMIT_LEN: Final = FieldLayout(MSG_COMMIT_LEN, np.dtype("<u4"))
MESSAGE_FIELDS: Final = {
    "seq": FieldLayout(MSG_SEQ, np.dtype("<u8")),
    "ts_ns": FieldLayout(MSG_TIMESTAMP_NS, np.dtype("<u8")),
    "type_id": FieldLayout(MSG_TYPE_ID, np.dtype("<u2")),
}
"""The columns that every message has."""


class Decoding(NamedTuple):
    """A way to read messages: which ones, their columns, and the fields of columns that are plain numbers."""

    type_id: int | None
    book_mode: int | None
    columns: Mapping[str, pa.DataType]
    fields: Mapping[str, FieldLayout]


def _fields(layout: np.dtype[np.void], start: int, names: Mapping[str, str]) -> dict[str, FieldLayout]:
    """Return the fields of columns, given the names in the layout; `start` is an offset in the payload."""
    fields: Mapping[str, Any] = layout.fields or {}
    return {
        column: FieldLayout(HEADER_SIZE + start + fields[field][1], fields[field][0])
        for column, field in names.items()
    }


def _same(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


_MESSAGE: Final = {"queue": pa.string(), "seq": LONG, "ts_ns": LONG}
HEADER_FIELDS: Final = _fields(BOOK_EVENT_HEADER, 0, _same(" ".join(BOOK_EVENT_HEADER.names or ())))
_MARKET: Final = {"venue_id": INT, "market_id": LONG, "stream_id": LONG}
_TIMES: Final = {"ingest_ts_ns": LONG, "exchange_ts_ns": LONG, "native_seq": LONG}

RAW: Final = Decoding(
    None,
    None,
    {**_MESSAGE, "type_id": INT, "payload": pa.binary(), "flags": INT},
    {"flags": FieldLayout(MSG_FLAGS, np.dtype("<u2"))},
)
OPTIONAL_COLUMNS: Final = {"raw": ("flags",)}
"""Columns that a read has only if it names them: they are rarely used, and every column costs."""

TRADES: Final = Decoding(
    TypeId.TRADE,
    None,
    {
        **_MESSAGE,
        "exchange_ts_ns": LONG,
        "price": DOUBLE,
        "qty": DOUBLE,
        "trade_id": LONG,
        "buyer_order_id": LONG,
        "seller_order_id": LONG,
        "is_buyer_maker": pa.bool_(),
        "symbol_hash": LONG,
    },
    _fields(
        TRADE,
        0,
        {
            "exchange_ts_ns": "timestamp_ns",
            **_same("price qty trade_id buyer_order_id seller_order_id is_buyer_maker symbol_hash"),
        },
    ),
)
QUOTES: Final = Decoding(
    TypeId.BOOK_TICKER,
    None,
    {
        **_MESSAGE,
        "exchange_ts_ns": LONG,
        **dict.fromkeys(("bid_price", "bid_size", "ask_price", "ask_size"), DOUBLE),
        "symbol_hash": LONG,
    },
    _fields(
        BOOK_TICKER,
        0,
        {
            "exchange_ts_ns": "timestamp_ns",
            "bid_size": "bid_qty",
            "ask_size": "ask_qty",
            **_same("bid_price ask_price symbol_hash"),
        },
    ),
)
BARS: Final = Decoding(
    TypeId.BAR,
    None,
    {
        **_MESSAGE,
        "start_ts_ns": LONG,
        "end_ts_ns": LONG,
        **dict.fromkeys(("open", "high", "low", "close", "volume"), DOUBLE),
        **dict.fromkeys(("quote_volume", "taker_buy_volume"), DOUBLE),
        "trades": LONG,
        "symbol_hash": LONG,
    },
    _fields(
        BAR,
        0,
        {
            "start_ts_ns": "start_ns",
            "end_ts_ns": "end_ns",
            "trades": "trade_count",
            **_same("open high low close volume quote_volume taker_buy_volume symbol_hash"),
        },
    ),
)
L3: Final = Decoding(
    TypeId.BOOK_EVENT,
    BookMode.L3,
    {
        **_MESSAGE,
        **_MARKET,
        **_TIMES,
        **dict.fromkeys(("event_type", "side", "ord_type", "exec_type", "price_scale", "size_scale"), INT),
        "flags": LONG,
        **dict.fromkeys(("order_id", "bid_order_id", "ask_order_id", "price", "qty", "amt"), LONG),
    },
    # The event's own type and flags, not those of the header, which are the same for all of them.
    HEADER_FIELDS | _fields(L3_EVENT, HEADER_BYTES, _same(" ".join(L3_EVENT.names or ()))),
)
BOOK: Final = Decoding(
    TypeId.BOOK_EVENT,
    BookMode.L2,
    {
        **_MESSAGE,
        **_MARKET,
        **_TIMES,
        "event_type": INT,
        "flags": INT,
        **dict.fromkeys(("first_update_id", "last_update_id", "previous_update_id"), LONG),
        "price_scale": INT,
        "size_scale": INT,
        "bids": LEVELS,
        "asks": LEVELS,
    },
    HEADER_FIELDS,
)
DECODINGS: Final = {"raw": RAW, "book": BOOK, "trade": TRADES, "l3": L3, "quote": QUOTES, "bar": BARS}
BY_HASH: Final = frozenset(name for name, one in DECODINGS.items() if "symbol_hash" in one.columns)
"""Decodings of messages that name their symbol by its hash only, and no venue."""
_LENGTHS: Final = {
    TypeId.TRADE: (TRADE.itemsize, "trade"),
    TypeId.BOOK_TICKER: (BOOK_TICKER.itemsize, "quote"),
    TypeId.BAR: (BAR.itemsize, "bar"),
}
"""Messages that all have one length."""


class MessageSelection:
    """Some messages of a batch: their numbers in it, and the offset of each record in its segment.

    Offsets are found once, because a batch walks over records of different lengths for them. `stride` is the
    distance of records that are all equally far apart, else 0.
    """

    __slots__ = ("_bodies", "_cells", "batch", "offsets", "rows", "stride")

    def __init__(self, batch: Batch, rows: Indexes, offsets: NDArray[np.int64], stride: int = 0) -> None:
        self.batch = batch
        self.rows = rows
        self.offsets = offsets
        self.stride = stride
        self._cells: NDArray[np.int64] | None = None
        self._bodies: tuple[_Bodies, _Bodies] | None = None

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rows)

    def where(self, keep: NDArray[np.bool_]) -> MessageSelection:
        """Return those for which `keep` is true."""
        if keep.all():
            return self
        return MessageSelection(self.batch, self.rows[keep], self.offsets[keep])

    def take(self, places: NDArray[np.intp]) -> MessageSelection:
        """Return those at some places."""
        return MessageSelection(self.batch, self.rows[places], self.offsets[places])

    def part(self, first: int, end: int) -> MessageSelection:
        """Return consecutive ones."""
        return MessageSelection(self.batch, self.rows[first:end], self.offsets[first:end], self.stride)

    def values(self, field: FieldLayout) -> NDArray[Any]:
        """Return the value of a field of each record."""
        segment = self.batch.segment
        if self.stride and len(self.offsets):
            start = int(self.offsets[0]) + field.offset
            strided: NDArray[Any] = np.ndarray(
                (len(self.offsets),), field.dtype, memoryview(segment.data), start, (self.stride,)
            )
            return strided.copy()
        # Records start at multiples of the alignment, so a field is a column of the segment's cells.
        if self._cells is None:
            self._cells = self.offsets // RECORD_ALIGN
        cells = (len(segment) - field.offset - field.dtype.itemsize) // RECORD_ALIGN + 1
        column: NDArray[Any] = np.ndarray(
            (cells,), field.dtype, memoryview(segment.data), field.offset, (RECORD_ALIGN,)
        )
        found: NDArray[Any] = column[self._cells]
        return found

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each payload."""
        return self.values(COMMIT_LEN).astype(np.int64) - 1

    def seq(self, row: int) -> int:
        """Return the seq of one of them, for an error."""
        return int(self.part(row, row + 1).values(MESSAGE_FIELDS["seq"])[0])

    def bodies(self) -> tuple[_Bodies, _Bodies]:
        """Return the L2 diffs and the L2 snapshots among them; several columns need the same."""
        if self._bodies is None:
            self._bodies = _bodies(self)
        return self._bodies


def select_all(batch: Batch) -> MessageSelection:
    """Return all messages of a batch."""
    return MessageSelection(batch, np.arange(len(batch)), batch.offset.astype(np.int64), batch.stride)


def select(
    decoding: Decoding, some: MessageSelection, venues: tuple[int, ...] = (), markets: tuple[int, ...] = ()
) -> MessageSelection:
    """Return the messages of this decoding, of these venues and markets if any are named.

    Reads headers only. Raises what `check_headers` does for a book event that breaks the protocol.
    """
    wanted = TypeId.BOOK_EVENT if decoding.type_id is None and (venues or markets) else decoding.type_id
    if wanted is not None:
        some = some.where(some.values(MESSAGE_FIELDS["type_id"]) == wanted)
    if wanted in _LENGTHS:
        _check_lengths(some, *_LENGTHS[TypeId(wanted)])
    if wanted != TypeId.BOOK_EVENT or not len(some):
        return some
    _check_book_events(some)
    if decoding.book_mode is not None:
        some = some.where(some.values(HEADER_FIELDS["book_mode"]) == decoding.book_mode)
    for name, numbers in (("venue_id", venues), ("market_id", markets)):
        if numbers:
            some = some.where(np.isin(some.values(HEADER_FIELDS[name]), numbers))
    if decoding.book_mode == BookMode.L3:
        _check_lengths(some, L3_RECORD_BYTES, "order event")
    return some


def column(decoding: Decoding, some: MessageSelection, name: str) -> pa.Array:
    """Return one column of the selected messages."""
    kind = decoding.columns[name]
    if name == "payload":
        data, begins = some.batch.joined(None if len(some) == len(some.batch) else some.rows)
        return pa.Array.from_buffers(kind, len(some), [None, pa.py_buffer(begins), pa.py_buffer(data)])
    if decoding is BOOK and name not in HEADER_FIELDS and name not in MESSAGE_FIELDS:
        return _body_column(some, name, kind)
    values = some.values(MESSAGE_FIELDS.get(name) or decoding.fields[name])
    if name == "is_buyer_maker":
        flags = some.values(FieldLayout(MSG_FLAGS, np.dtype("<u2")))
        return pa.array(values != 0, mask=(flags & TRADE_SIDE_UNKNOWN) != 0)
    return pa.array(_signed(values, kind))


def _signed(values: NDArray[Any], kind: pa.DataType) -> NDArray[Any]:
    """Return numbers in the column's type; those of 64 bits keep their bits."""
    wanted = np.dtype(kind.to_pandas_dtype())
    values = np.ascontiguousarray(values)
    return values.view(wanted) if values.itemsize == wanted.itemsize else values.astype(wanted)


def _check_lengths(some: MessageSelection, length: int, what: str) -> None:
    lengths = some.lengths
    row = first_true(lengths != length)
    if row is not None:
        raise Corrupt(f"message {some.seq(row)} is a {what} of {lengths[row]} bytes; it must have {length}")


def _check_book_events(some: MessageSelection) -> None:
    """Check the headers against the protocol; reads only the fields that this needs."""
    lengths = some.lengths
    row = first_true(lengths < HEADER_BYTES)
    if row is not None:
        raise Corrupt(
            f"message {some.seq(row)} is a book event of {lengths[row]} bytes; its header has {HEADER_BYTES}"
        )
    headers = np.empty(len(lengths), [(name, HEADER_FIELDS[name].dtype) for name in _CHECKED])
    for name in _CHECKED:
        headers[name] = some.values(HEADER_FIELDS[name])
    check_headers(headers, lengths)


# --- Bodies of L2 events ---------------------------------------------------------------------------------


class _Bodies(NamedTuple):
    """The selected events of one kind, and the layout of their bodies."""

    rows: Indexes
    some: MessageSelection
    layout: np.dtype[np.void]

    def field(self, name: str) -> NDArray[Any]:
        """Return a field of the bodies."""
        return self.some.values(_fields(self.layout, HEADER_BYTES, {name: name})[name])


def _bodies(some: MessageSelection) -> tuple[_Bodies, _Bodies]:
    """Return the diffs and the snapshots; resets and heartbeats have no body."""
    kinds = some.values(HEADER_FIELDS["event_type"])
    lengths = some.lengths
    found = []
    for kind, layout in ((BookEventType.DIFF, L2_DIFF), (BookEventType.SNAPSHOT, L2_SNAPSHOT)):
        is_kind = kinds == kind
        row = first_true(is_kind & (lengths < HEADER_BYTES + layout.itemsize))
        if row is not None:
            raise Corrupt(f"message {some.seq(row)} is too short for its body")
        found.append(_Bodies(np.flatnonzero(is_kind), some.where(is_kind), layout))
    return found[0], found[1]


def _body_column(some: MessageSelection, name: str, kind: pa.DataType) -> pa.Array:
    if name in ("bids", "asks"):
        return _levels(some, name)
    values = np.zeros(len(some), dtype=kind.to_pandas_dtype())
    is_absent = np.ones(len(some), dtype=np.bool_)
    for bodies in some.bodies():
        if name in (bodies.layout.names or ()):
            values[bodies.rows] = _signed(bodies.field(name), kind)
            is_absent[bodies.rows] = False
    return pa.array(values, mask=is_absent)


def _levels(some: MessageSelection, name: str) -> pa.Array:
    """Return the levels of one side of each book as a list."""
    starts = np.zeros(len(some), dtype=np.int64)
    counts = np.zeros(len(some), dtype=np.int64)
    for bodies in some.bodies():
        bids, asks = (bodies.field(field).astype(np.int64) for field in ("bid_count", "ask_count"))
        first = bodies.some.offsets + (HEADER_SIZE + HEADER_BYTES + bodies.layout.itemsize)
        room = bodies.some.lengths
        room -= HEADER_BYTES + bodies.layout.itemsize
        row = first_true((bids + asks) * LEVEL_BYTES != room)
        if row is not None:
            levels = bids[row] + asks[row]
            raise Corrupt(
                f"message {bodies.some.seq(row)} has {levels} levels by its counts, and {room[row]} bytes"
            )
        starts[bodies.rows] = first if name == "bids" else first + bids * LEVEL_BYTES
        counts[bodies.rows] = bids if name == "bids" else asks
    begins = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=begins[1:])
    # Levels of snapshots lie at multiples of four bytes only.
    words = some.batch.segment.view("<u4")
    firsts = np.repeat(starts // _WORD_BYTES, counts)
    firsts += ranges(np.zeros_like(counts), counts) * _LEVEL_WORDS
    numbers = words[firsts[:, None] + np.arange(_LEVEL_WORDS)].view("<i8")
    sides = [pa.array(np.ascontiguousarray(numbers[:, place])) for place in range(2)]
    return pa.ListArray.from_arrays(
        pa.array(begins), pa.StructArray.from_arrays(sides, fields=list(_LEVEL)), type=LEVELS
    )
