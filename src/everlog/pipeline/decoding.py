"""Typed columns of market data: what `decode` means for the format `everlog.queue`.

Owns the columns of each decoding and how they are taken out of a batch of messages. Every column is one
gather from the mapped segment: no loop over events, and nothing is touched that no column needs. Numbers of
64 bits without a sign keep their bits, because Spark has none: an id above 2^63 is shown negative.
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
    BOOK_EVENT_HEADER,
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
from everlog.pipeline.columns import Column
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

LONG: Final = Column("bigint", pa.int64())
WHOLE: Final = Column("int", pa.int32())
DOUBLE: Final = Column("double", pa.float64())
_LEVEL_TYPE: Final = pa.struct([pa.field("price", pa.int64()), pa.field("size", pa.int64())])
LEVELS: Final = Column("array<struct<price:bigint,size:bigint>>", pa.list_(pa.field("element", _LEVEL_TYPE)))
_WORD_BYTES: Final = 4
_LEVEL_WORDS: Final = LEVEL_BYTES // _WORD_BYTES
_CHECKED: Final = ("schema_version", "record_len", "endianness", "event_type", "book_mode")


class Place(NamedTuple):
    """Where a value lies: bytes after the beginning of the message's record, and its type there."""

    position: int
    dtype: np.dtype[Any]


_COMMIT_LEN: Final = Place(MSG_COMMIT_LEN, np.dtype("<u4"))
MESSAGE_PLACES: Final = {
    "seq": Place(MSG_SEQ, np.dtype("<u8")),
    "ts_ns": Place(MSG_TIMESTAMP_NS, np.dtype("<u8")),
    "type_id": Place(MSG_TYPE_ID, np.dtype("<u2")),
}
"""Where the columns lie that every message has."""


class Decoding(NamedTuple):
    """One way to see messages: which ones, which columns, and where plain columns come from."""

    type_id: int | None
    book_mode: int | None
    columns: Mapping[str, Column]
    places: Mapping[str, Place]


def _places(layout: np.dtype[np.void], start: int, names: Mapping[str, str]) -> dict[str, Place]:
    """Return the places of columns whose field of the layout is named; `start` counts in the payload."""
    fields: Mapping[str, Any] = layout.fields or {}
    return {
        column: Place(HEADER_SIZE + start + fields[field][1], fields[field][0])
        for column, field in names.items()
    }


def _same(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


_MESSAGE: Final = {"queue": Column("string", pa.string()), "seq": LONG, "ts_ns": LONG}
_HEADER: Final = _places(BOOK_EVENT_HEADER, 0, _same(" ".join(BOOK_EVENT_HEADER.names or ())))
_MARKET: Final = {"venue_id": WHOLE, "market_id": LONG, "stream_id": LONG}
_TIMES: Final = {"ingest_ts_ns": LONG, "exchange_ts_ns": LONG, "native_seq": LONG}

RAW: Final = Decoding(
    None,
    None,
    {**_MESSAGE, "type_id": WHOLE, "payload": Column("binary", pa.binary()), "flags": WHOLE},
    {"flags": Place(MSG_FLAGS, np.dtype("<u2"))},
)
UNASKED: Final = {"raw": ("flags",)}
"""Columns that a read has only if they are asked for: few want them, and every column costs."""

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
        "is_buyer_maker": Column("boolean", pa.bool_()),
        "symbol_hash": LONG,
    },
    _places(
        TRADE,
        0,
        {
            "exchange_ts_ns": "timestamp_ns",
            **_same("price qty trade_id buyer_order_id seller_order_id is_buyer_maker symbol_hash"),
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
        **dict.fromkeys(("event_type", "side", "ord_type", "exec_type", "price_scale", "size_scale"), WHOLE),
        "flags": LONG,
        **dict.fromkeys(("order_id", "bid_order_id", "ask_order_id", "price", "qty", "amt"), LONG),
    },
    # The event's own type and flags, not those of the header, which are the same for all of them.
    _HEADER | _places(L3_EVENT, HEADER_BYTES, _same(" ".join(L3_EVENT.names or ()))),
)
BOOK: Final = Decoding(
    TypeId.BOOK_EVENT,
    BookMode.L2,
    {
        **_MESSAGE,
        **_MARKET,
        **_TIMES,
        "event_type": WHOLE,
        "flags": WHOLE,
        **dict.fromkeys(("first_update_id", "last_update_id", "previous_update_id"), LONG),
        "price_scale": WHOLE,
        "size_scale": WHOLE,
        "bids": LEVELS,
        "asks": LEVELS,
    },
    _HEADER,
)
DECODINGS: Final = {"raw": RAW, "book": BOOK, "trade": TRADES, "l3": L3}


class Chosen:
    """Some messages of a batch: which ones, and where each record starts in its segment.

    The batch is asked for the starts once: it has to walk over records of different lengths for them.
    `stride` is the distance of records that are all equally far apart, else 0.
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

    def where(self, keep: NDArray[np.bool_]) -> Chosen:
        """Return those for which `keep` is true; all of them cost nothing."""
        if keep.all():
            return self
        return Chosen(self.batch, self.rows[keep], self.offsets[keep])

    def part(self, first: int, end: int) -> Chosen:
        """Return some that follow each other."""
        return Chosen(self.batch, self.rows[first:end], self.offsets[first:end], self.stride)

    def take(self, place: Place) -> NDArray[Any]:
        """Return the value at a place of each record."""
        segment = self.batch.segment
        if self.stride and len(self.offsets):
            start = int(self.offsets[0]) + place.position
            strided: NDArray[Any] = np.ndarray(
                (len(self.offsets),), place.dtype, memoryview(segment.data), start, (self.stride,)
            )
            return strided.copy()
        # Records start at multiples of the alignment, so a place is a column of the segment's cells.
        if self._cells is None:
            self._cells = self.offsets // RECORD_ALIGN
        cells = (len(segment) - place.position - place.dtype.itemsize) // RECORD_ALIGN + 1
        column: NDArray[Any] = np.ndarray(
            (cells,), place.dtype, memoryview(segment.data), place.position, (RECORD_ALIGN,)
        )
        values: NDArray[Any] = column[self._cells]
        return values

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each payload."""
        return self.take(_COMMIT_LEN).astype(np.int64) - 1

    def seq(self, row: int) -> int:
        """Return the seq of one of them, for an error."""
        return int(self.part(row, row + 1).take(MESSAGE_PLACES["seq"])[0])

    def bodies(self) -> tuple[_Bodies, _Bodies]:
        """Return the L2 diffs and the L2 snapshots among them; several columns need the same."""
        if self._bodies is None:
            self._bodies = _bodies(self)
        return self._bodies


def all_of(batch: Batch) -> Chosen:
    """Return all messages of a batch."""
    return Chosen(batch, np.arange(len(batch)), batch.offset.astype(np.int64), batch.stride)


def choose(
    decoding: Decoding, some: Chosen, venues: tuple[int, ...] = (), markets: tuple[int, ...] = ()
) -> Chosen:
    """Return the messages that this decoding shows, of these venues and markets if any are named.

    Looks at headers only. Raises what `check_headers` does for a book event that breaks the protocol.
    """
    wanted = TypeId.BOOK_EVENT if decoding.type_id is None and (venues or markets) else decoding.type_id
    if wanted is not None:
        some = some.where(some.take(MESSAGE_PLACES["type_id"]) == wanted)
    if wanted == TypeId.TRADE:
        _check_lengths(some, TRADE.itemsize, "trade")
    if wanted != TypeId.BOOK_EVENT or not len(some):
        return some
    _check_book_events(some)
    if decoding.book_mode is not None:
        some = some.where(some.take(_HEADER["book_mode"]) == decoding.book_mode)
    for name, numbers in (("venue_id", venues), ("market_id", markets)):
        if numbers:
            some = some.where(np.isin(some.take(_HEADER[name]), numbers))
    if decoding.book_mode == BookMode.L3:
        _check_lengths(some, L3_RECORD_BYTES, "order event")
    return some


def column(decoding: Decoding, some: Chosen, name: str) -> pa.Array:
    """Return one column of numbers or levels of the chosen messages."""
    kind = decoding.columns[name].arrow
    if decoding is BOOK and name not in _HEADER and name not in MESSAGE_PLACES:
        return _body_column(some, name, kind)
    values = some.take(MESSAGE_PLACES.get(name) or decoding.places[name])
    if name == "is_buyer_maker":
        flags = some.take(Place(MSG_FLAGS, np.dtype("<u2")))
        return pa.array(values != 0, mask=(flags & TRADE_SIDE_UNKNOWN) != 0)
    return pa.array(_signed(values, kind))


def _signed(values: NDArray[Any], kind: pa.DataType) -> NDArray[Any]:
    """Return numbers in the column's type; those of 64 bits keep their bits."""
    wanted = np.dtype(kind.to_pandas_dtype())
    values = np.ascontiguousarray(values)
    return values.view(wanted) if values.itemsize == wanted.itemsize else values.astype(wanted)


def _check_lengths(some: Chosen, length: int, what: str) -> None:
    lengths = some.lengths
    row = first_true(lengths != length)
    if row is not None:
        raise Corrupt(f"message {some.seq(row)} is a {what} of {lengths[row]} bytes; it must have {length}")


def _check_book_events(some: Chosen) -> None:
    """Check what the protocol says of a header, with no more of it than that needs."""
    lengths = some.lengths
    row = first_true(lengths < HEADER_BYTES)
    if row is not None:
        raise Corrupt(
            f"message {some.seq(row)} is a book event of {lengths[row]} bytes; its header has {HEADER_BYTES}"
        )
    headers = np.empty(len(lengths), [(name, _HEADER[name].dtype) for name in _CHECKED])
    for name in _CHECKED:
        headers[name] = some.take(_HEADER[name])
    check_headers(headers, lengths)


# --- Bodies of L2 events ---------------------------------------------------------------------------------


class _Bodies(NamedTuple):
    """The events of one kind among those chosen, and the layout of their bodies."""

    rows: Indexes
    some: Chosen
    layout: np.dtype[np.void]

    def field(self, name: str) -> NDArray[Any]:
        """Return a field of the bodies."""
        return self.some.take(_places(self.layout, HEADER_BYTES, {name: name})[name])


def _bodies(some: Chosen) -> tuple[_Bodies, _Bodies]:
    """Return the diffs and the snapshots; resets and heartbeats have no body."""
    kinds = some.take(_HEADER["event_type"])
    lengths = some.lengths
    found = []
    for kind, layout in ((BookEventType.DIFF, L2_DIFF), (BookEventType.SNAPSHOT, L2_SNAPSHOT)):
        is_kind = kinds == kind
        row = first_true(is_kind & (lengths < HEADER_BYTES + layout.itemsize))
        if row is not None:
            raise Corrupt(f"message {some.seq(row)} is too short for its body")
        found.append(_Bodies(np.flatnonzero(is_kind), some.where(is_kind), layout))
    return found[0], found[1]


def _body_column(some: Chosen, name: str, kind: pa.DataType) -> pa.Array:
    if name in ("bids", "asks"):
        return _levels(some, name)
    values = np.zeros(len(some), dtype=kind.to_pandas_dtype())
    is_absent = np.ones(len(some), dtype=np.bool_)
    for bodies in some.bodies():
        if name in (bodies.layout.names or ()):
            values[bodies.rows] = _signed(bodies.field(name), kind)
            is_absent[bodies.rows] = False
    return pa.array(values, mask=is_absent)


def _levels(some: Chosen, name: str) -> pa.Array:
    """Return the levels of one side as lists: where each list begins, and all prices and sizes."""
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
        pa.array(begins), pa.StructArray.from_arrays(sides, fields=list(_LEVEL_TYPE)), type=LEVELS.arrow
    )
