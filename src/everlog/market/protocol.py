"""The market data protocol: every payload as a NumPy dtype, and the rules that go with it.

Owns the byte layouts, ids, flags and hashes, and the check of a batch against them. Knows no
book, no queue and no venue. The same bytes as light Python objects are in `everlog.market.views`,
whole batches of records of varying length in `everlog.market.packing`, decimal text in
`everlog.market.decimals`.

Integers are little-endian. Prices are signed, and 0 is a price like any other; sizes and ids are unsigned.
Bytes without a name are zero; only these may gain a meaning without a new `SCHEMA_VERSION`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import Corrupt, Unsupported, UnsupportedVersion

SCHEMA_VERSION: Final = 4
OLDEST_VERSION: Final = 3
"""Still read. Its prices are unsigned, and a price of 0 in an event of orders means that there is none."""
LITTLE_ENDIAN: Final = 0
MAX_SCALE: Final = 18
RESERVED: Final = "reserved_"
"""How fields begin that stand for bytes without a meaning."""
MAX_DIFF_LEVELS: Final = 65535
"""Levels a side that one L2 diff can carry; larger diffs are split."""


class TypeId(IntEnum):
    """`MessageHeader.type_id` of the payloads defined here."""

    BOOK_EVENT = 0x1000
    BOOK_TICKER = 0x1001
    TRADE = 0x1002
    BAR = 0x1003
    FEED_GAP = 0x1010
    """JSON of a live feed: what broke, where and why (`everlog.feeds.encoding.FeedGap`)."""
    RAW_FRAME = 0x1011
    """A frame of a live feed: u64 connection id, then the venue's own bytes."""
    ORDER = 0x2000
    FILL = 0x2001


class BookEventType(IntEnum):
    """`event_type` of a book event's header."""

    SNAPSHOT = 1
    DIFF = 2
    RESET = 3
    HEARTBEAT = 4


class BookMode(IntEnum):
    """`book_mode` of a book event's header: price levels or single orders."""

    L2 = 0
    L3 = 1


class L3EventType(IntEnum):
    """`event_type` of an order-by-order event."""

    ORDER_ADD = 1
    ORDER_CANCEL = 2
    ORDER_MODIFY = 3
    TRADE = 4
    RESET = 5
    HEARTBEAT = 6


class Side(IntEnum):
    """Which side of the book an order or level is on."""

    UNKNOWN = 0
    BUY = 1
    SELL = 2


class BookFlags(IntFlag):
    """`flags` of a book event's header and of an L2 diff."""

    ABSOLUTE = 1
    DELTA = 2
    HAS_SCALE = 4
    MARKS_EVENT_ENDS = 8
    """The message's flags say whether it is the last of its event; without it every message is."""
    RESETS = 16
    """The book is emptied before the event: a snapshot run, a day or a stream begins with it."""
    SPARSE = 32
    """Numbers of the channel that are missing before it may be those of markets that were not recorded, or of
    rows that an import set aside."""


class MessageFlags(IntFlag):
    """`MessageHeader.flags` of market data."""

    SIDE_UNKNOWN = 1
    """A trade whose source did not give the taker's side."""
    LAST_OF_EVENT = 2
    """The venue's event, of which this message may be one of several, ends with it."""
    SNAPSHOT_PART = 4
    GAP_BEFORE = 8


class L3Flags(IntFlag):
    """`flags` of an order-by-order event."""

    PRICE_IS_MARKET = 1
    AUCTION_OPEN = 2
    AUCTION_CLOSE = 4
    CANCEL_RESTRICTED_WINDOW = 8
    RAW_HAS_BID_ID = 16
    RAW_HAS_ASK_ID = 32
    NO_PRICE = 64
    """`price` is 0 and means nothing: a modify keeps the order's, an added order stands on no level."""


def layout(size: int, fields: dict[str, tuple[Any, int]]) -> np.dtype[np.void]:
    """Return a dtype of exactly `size` bytes with each field at its stated offset.

    Bytes between the fields become fields `reserved_<offset>`: NumPy does not copy bytes that belong to no
    field, and what is zero must stay zero in every copy.
    """
    complete: list[tuple[str, Any, int]] = []
    end = 0
    for name, (kind, offset) in [*fields.items(), ("", ("V1", size))]:
        if offset > end:
            complete.append((f"{RESERVED}{end}", f"V{offset - end}", end))
        if name:
            complete.append((name, kind, offset))
            end = offset + np.dtype(kind).itemsize
    return np.dtype(
        {
            "names": [name for name, _, _ in complete],
            "formats": [kind for _, kind, _ in complete],
            "offsets": [offset for _, _, offset in complete],
            "itemsize": size,
        }
    )


BOOK_EVENT_HEADER: Final = layout(
    64,
    {
        "schema_version": ("<u2", 0),
        "record_len": ("<u4", 4),
        "endianness": ("u1", 8),
        "venue_id": ("<u2", 10),
        "market_id": ("<u4", 12),
        "stream_id": ("<u4", 16),
        "ingest_ts_ns": ("<u8", 24),
        "exchange_ts_ns": ("<u8", 32),
        "seq": ("<u8", 40),
        "native_seq": ("<u8", 48),
        "event_type": ("u1", 56),
        "book_mode": ("u1", 57),
        "flags": ("<u2", 58),
    },
)
"""Starts every book event. `record_len` is the whole payload; `seq` 0 means the message's own."""

L2_DIFF: Final = layout(
    32,
    {
        "first_update_id": ("<u8", 0),
        "last_update_id": ("<u8", 8),
        "previous_update_id": ("<u8", 16),
        "price_scale": ("u1", 24),
        "size_scale": ("u1", 25),
        "flags": ("<u2", 26),
        "bid_count": ("<u2", 28),
        "ask_count": ("<u2", 30),
    },
)
"""Changed levels; `bid_count` bids and then `ask_count` asks of `LEVEL` follow."""

L2_SNAPSHOT: Final = layout(
    12,
    {"price_scale": ("u1", 0), "size_scale": ("u1", 1), "bid_count": ("<u4", 4), "ask_count": ("<u4", 8)},
)
"""A whole book; bids (descending) and then asks (ascending) of `LEVEL` follow."""

LEVEL: Final = layout(16, {"price": ("<i8", 0), "size": ("<u8", 8)})

BOOK_TICKER: Final = layout(
    48,
    {
        "timestamp_ns": ("<u8", 0),
        "bid_price": ("<f8", 8),
        "bid_qty": ("<f8", 16),
        "ask_price": ("<f8", 24),
        "ask_qty": ("<f8", 32),
        "symbol_hash": ("<u8", 40),
    },
)

TRADE: Final = layout(
    64,
    {
        "timestamp_ns": ("<u8", 0),
        "price": ("<f8", 8),
        "qty": ("<f8", 16),
        "trade_id": ("<u8", 24),
        "buyer_order_id": ("<u8", 32),
        "seller_order_id": ("<u8", 40),
        "is_buyer_maker": ("u1", 48),
        "symbol_hash": ("<u8", 56),
    },
)
"""One trade; `timestamp_ns` is the exchange's time."""

BAR: Final = layout(
    88,
    {
        "start_ns": ("<u8", 0),
        "end_ns": ("<u8", 8),
        "open": ("<f8", 16),
        "high": ("<f8", 24),
        "low": ("<f8", 32),
        "close": ("<f8", 40),
        "volume": ("<f8", 48),
        "quote_volume": ("<f8", 56),
        "taker_buy_volume": ("<f8", 64),
        "trade_count": ("<u8", 72),
        "symbol_hash": ("<u8", 80),
    },
)
"""What a venue says of the trades from `start_ns` until before `end_ns`.

Volumes that it does not tell are NaN; `trade_count` 0 with a volume is not told either.
"""

TRADE_SIDE_UNKNOWN: Final = int(MessageFlags.SIDE_UNKNOWN)
"""Bit 0 of `MessageHeader.flags` of a trade: the source did not give the taker's side."""

L3_EVENT: Final = layout(
    64,
    {
        "event_type": ("u1", 0),
        "side": ("u1", 1),
        "ord_type": ("u1", 2),
        "exec_type": ("u1", 3),
        "price_scale": ("u1", 4),
        "size_scale": ("u1", 5),
        "flags": ("<u4", 8),
        "order_id": ("<u8", 16),
        "bid_order_id": ("<u8", 24),
        "ask_order_id": ("<u8", 32),
        "price": ("<i8", 40),
        "qty": ("<u8", 48),
        "amt": ("<u8", 56),
    },
)

L3_RECORD: Final = layout(128, {"header": (BOOK_EVENT_HEADER, 0), "event": (L3_EVENT, 64)})
"""A whole order-by-order payload: `array["header"]["seq"]`, `array["event"]["price"]`."""

HEADER_BYTES: Final = BOOK_EVENT_HEADER.itemsize
L2_DIFF_BYTES: Final = L2_DIFF.itemsize
L2_SNAPSHOT_BYTES: Final = L2_SNAPSHOT.itemsize
LEVEL_BYTES: Final = LEVEL.itemsize
L3_RECORD_BYTES: Final = L3_RECORD.itemsize

FNV_BASIS: Final = 0xCBF29CE484222325
FNV_PRIME: Final = 0x100000001B3
FNV_PRIME_COMPATIBLE: Final = 0x1099511628211904
"""A mistyped prime that older writers used; only to read what they wrote."""


def symbol_hash(symbol: str, *, compatible: bool = False) -> int:
    """Return the 64-bit FNV-1a of the exchange's own symbol.

    `compatible` gives the value of writers that multiplied by the mistyped prime.
    """
    prime = FNV_PRIME_COMPATIBLE if compatible else FNV_PRIME
    value = FNV_BASIS
    for byte in symbol.encode():
        value = (value ^ byte) * prime & 0xFFFFFFFFFFFFFFFF
    return value


def crypto_market_id(symbol: str, *, compatible: bool = False) -> int:
    """Return the `market_id` of a crypto symbol: its hash folded to 32 bits."""
    value = symbol_hash(symbol, compatible=compatible)
    return value >> 32 ^ value & 0xFFFFFFFF


def market_ids_of(symbol: str) -> set[int]:
    """Return the numbers that a market with this symbol may have; a number stands for itself, too."""
    ids = {crypto_market_id(symbol), crypto_market_id(symbol, compatible=True)}
    if symbol.isascii() and symbol.isdigit() and int(symbol) < 1 << 32:
        ids.add(int(symbol))
    return ids


def folded_hash(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the `market_id` that belongs to each symbol hash, as `crypto_market_id` gives it."""
    folded: NDArray[np.uint64] = hashes >> np.uint64(32) ^ hashes & np.uint64(0xFFFFFFFF)
    return folded


def new_headers(
    count: int, event_type: BookEventType, book_mode: BookMode, *, venue_id: int = 0, market_id: int = 0
) -> NDArray[np.void]:
    """Return `count` headers with version, kind and market set; the other columns are yours to fill.

    `record_len` is right for events without a body; packing L2 bodies sets it anew.
    """
    headers = np.zeros(count, dtype=BOOK_EVENT_HEADER)
    headers["schema_version"] = SCHEMA_VERSION
    headers["record_len"] = HEADER_BYTES
    headers["endianness"] = LITTLE_ENDIAN
    headers["event_type"] = event_type
    headers["book_mode"] = book_mode
    headers["venue_id"] = venue_id
    headers["market_id"] = market_id
    if book_mode is BookMode.L2 and event_type is BookEventType.DIFF:
        headers["flags"] = BookFlags.ABSOLUTE
    return headers


def new_l3_records(count: int, *, venue_id: int = 0, market_id: int = 0) -> NDArray[np.void]:
    """Return `count` order-by-order payloads with everything constant set.

    Fill the columns (`records["event"]["price"][:] = prices`) and pass the array to
    `QueueWriter.append_array(TypeId.BOOK_EVENT, records, records["header"]["ingest_ts_ns"])`.
    """
    record = np.zeros(1, dtype=L3_RECORD)
    record["header"] = new_headers(1, BookEventType.DIFF, BookMode.L3, venue_id=venue_id, market_id=market_id)
    record["header"]["record_len"] = L3_RECORD_BYTES
    # Repeating one record is several times faster than filling columns of zeros.
    return np.repeat(record, count)


def check_headers(headers: NDArray[np.void], lengths: NDArray[Any] | int | None = None) -> None:
    """Refuse the batch if a header breaks the protocol; `lengths` are the payloads' real lengths.

    Raises UnsupportedVersion for another schema version, Unsupported for an unknown book mode or
    byte order, Corrupt for a wrong `record_len` or event type. The error names the first bad row.
    """
    versions = headers["schema_version"]
    row = first_true((versions < OLDEST_VERSION) | (versions > SCHEMA_VERSION))
    if row is not None:
        version = int(versions[row])
        raise UnsupportedVersion(
            f"book event {row} has schema version {version}, this build reads {OLDEST_VERSION} to "
            f"{SCHEMA_VERSION}; "
            "read it with the release that wrote it",
            version,
        )
    row = first_true((headers["book_mode"] > BookMode.L3) | (headers["endianness"] != LITTLE_ENDIAN))
    if row is not None:
        raise Unsupported(
            f"book event {row} has book mode {headers['book_mode'][row]} and byte order "
            f"{headers['endianness'][row]}; known are modes 0 (L2) and 1 (L3), byte order 0 (little-endian)"
        )
    kinds = headers["event_type"]
    row = first_true((kinds < BookEventType.SNAPSHOT) | (kinds > BookEventType.HEARTBEAT))
    if row is not None:
        raise Corrupt(f"book event {row} has event type {kinds[row]}; known are 1 to 4")
    if lengths is None:
        return
    wrong = headers["record_len"] != lengths
    row = first_true(wrong)
    if row is not None:
        length = int(np.broadcast_to(np.asarray(lengths), wrong.shape)[row])
        raise Corrupt(
            f"book event {row} says {headers['record_len'][row]} bytes, its payload has {length}; "
            "the record was cut or written by another program"
        )


def event_flags(message_flags: NDArray[Any], header_flags: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the messages' flags; those of writers that mark no event ends are ends, one and all."""
    is_whole = (header_flags & BookFlags.MARKS_EVENT_ENDS) == 0
    flags: NDArray[np.uint16] = message_flags | is_whole * np.uint16(MessageFlags.LAST_OF_EVENT)
    return flags


def taker_sides(trades: NDArray[np.void], message_flags: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the side of each trade's taker as `Side`: buy, sell, or unknown."""
    sides = np.where(trades["is_buyer_maker"] != 0, Side.SELL, Side.BUY).astype(np.uint8)
    sides[(message_flags & MessageFlags.SIDE_UNKNOWN) != 0] = Side.UNKNOWN
    return sides


def first_true(flags: NDArray[Any]) -> int | None:
    """Return the index of the first true element, None if there is none."""
    if not flags.any():
        return None
    return int(flags.argmax())
