"""Payloads of every kind of market data, made byte by byte, and what a decoding must say of them.

The plain twin of `everlog.market.decoding`: one message at a time, with `struct` alone.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from hypothesis import strategies as st

BOOK_EVENT, TRADE, OTHER = 0x1000, 0x1002, 0x7777
SNAPSHOT, DIFF, RESET, HEARTBEAT = 1, 2, 3, 4
HEADER = struct.Struct("<HxxIBxHIIxxxxQQQQBBHxxxx")
DIFF_BODY = struct.Struct("<QQQBBHHH")
SNAPSHOT_BODY = struct.Struct("<BBxxII")
TRADE_BODY = struct.Struct("<QddQQQBxxxxxxxQ")
L3_BODY = struct.Struct("<BBBBBBxxIxxxxQQQQQQ")
LEVEL = struct.Struct("<QQ")
VENUES = (0, 1, 65535)
MARKETS = (7, 2**32 - 1)

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
Row = dict[str, Any]


class Sample(NamedTuple):
    """One message, the decoding that shows it (None if none does), and the columns it must have there."""

    type_id: int
    payload: bytes
    decode: str | None
    row: Row


def signed(number: int) -> int:
    """The same 64 bits with a sign."""
    return number - 2**64 if number >= 2**63 else number


@st.composite
def headers(draw: st.DrawFn, kind: int, mode: int) -> tuple[tuple[Any, ...], Row]:
    """The fields of a header behind its length, and the columns they become."""
    row: Row = {
        "venue_id": draw(st.sampled_from(VENUES)),
        "market_id": draw(st.sampled_from(MARKETS)),
        "stream_id": draw(U32),
        "ingest_ts_ns": signed(ingest := draw(U64)),
        "exchange_ts_ns": signed(exchange := draw(U64)),
        "native_seq": signed(native := draw(U64)),
    }
    market = (row["venue_id"], row["market_id"], row["stream_id"])
    flags = draw(U16)
    if mode == 0:
        row |= {"event_type": kind, "flags": flags}
    return (0, *market, ingest, exchange, draw(U64), native, kind, mode, flags), row


@st.composite
def book_events(draw: st.DrawFn) -> Sample:
    """An L2 event of any kind with any number of levels."""
    kind = draw(st.sampled_from((SNAPSHOT, DIFF, RESET, HEARTBEAT)))
    fields, row = draw(headers(kind, 0))
    body, bids, asks = b"", [], []
    row |= dict.fromkeys(("first_update_id", "last_update_id", "previous_update_id"))
    row |= dict.fromkeys(("price_scale", "size_scale"))
    if kind in (SNAPSHOT, DIFF):
        bids, asks = (draw(st.lists(st.tuples(U64, U64), max_size=4)) for _ in range(2))
        scales = draw(st.tuples(U8, U8))
        row |= dict(zip(("price_scale", "size_scale"), scales, strict=True))
        if kind == DIFF:
            ids = draw(st.tuples(U64, U64, U64))
            names = ("first_update_id", "last_update_id", "previous_update_id")
            row |= dict(zip(names, map(signed, ids), strict=True))
            body = DIFF_BODY.pack(*ids, *scales, draw(U16), len(bids), len(asks))
        else:
            body = SNAPSHOT_BODY.pack(*scales, len(bids), len(asks))
    body += b"".join(LEVEL.pack(*level) for level in [*bids, *asks])
    for name, side in (("bids", bids), ("asks", asks)):
        row[name] = [{"price": signed(price), "size": signed(size)} for price, size in side]
    return Sample(BOOK_EVENT, HEADER.pack(3, 64 + len(body), *fields) + body, "book", row)


@st.composite
def order_events(draw: st.DrawFn) -> Sample:
    """An order-by-order event."""
    fields, row = draw(headers(DIFF, 1))
    small = draw(st.tuples(st.integers(1, 6), U8, U8, U8, U8, U8))
    flags = draw(U32)
    large = draw(st.tuples(U64, U64, U64, U64, U64, U64))
    names = ("event_type", "side", "ord_type", "exec_type", "price_scale", "size_scale", "flags")
    row |= dict(zip(names, (*small, flags), strict=True))
    names = ("order_id", "bid_order_id", "ask_order_id", "price", "qty", "amt")
    row |= dict(zip(names, map(signed, large), strict=True))
    return Sample(BOOK_EVENT, HEADER.pack(3, 128, *fields) + L3_BODY.pack(*small, flags, *large), "l3", row)


@st.composite
def trades(draw: st.DrawFn) -> Sample:
    """A trade."""
    decimals = st.floats(allow_nan=False)
    when, price, qty, trade, buyer, seller, maker, symbol = draw(
        st.tuples(U64, decimals, decimals, U64, U64, U64, st.integers(0, 1), U64)
    )
    row: Row = {"exchange_ts_ns": signed(when), "price": price, "qty": qty, "is_buyer_maker": bool(maker)}
    ids = {"trade_id": trade, "buyer_order_id": buyer, "seller_order_id": seller, "symbol_hash": symbol}
    row |= {name: signed(number) for name, number in ids.items()}
    payload = TRADE_BODY.pack(when, price, qty, trade, buyer, seller, maker, symbol)
    return Sample(TRADE, payload, "trade", row)


others = st.binary(max_size=200).map(lambda payload: Sample(OTHER, payload, None, {}))
samples = st.lists(st.one_of(book_events(), order_events(), trades(), others), min_size=1, max_size=30)
