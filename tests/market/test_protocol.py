"""The protocol: sizes, offsets, golden bytes and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import Corrupt, Unsupported, UnsupportedVersion
from everlog.market import protocol
from everlog.market.protocol import (
    L3_RECORD,
    BookEventType,
    BookMode,
    L3EventType,
    check_headers,
    crypto_market_id,
    new_headers,
    new_l3_records,
    symbol_hash,
)
from everlog.market.views import (
    BookEventView,
    BookTickerView,
    L2DiffView,
    L2SnapshotView,
    L3EventView,
    TradeView,
    View,
)

SIZES = {
    "BOOK_EVENT_HEADER": 64,
    "L2_DIFF": 32,
    "L2_SNAPSHOT": 12,
    "LEVEL": 16,
    "BOOK_TICKER": 48,
    "TRADE": 64,
    "L3_EVENT": 64,
    "L3_RECORD": 128,
}
VIEWS: list[type[View]] = [BookEventView, L2DiffView, L2SnapshotView, L3EventView, TradeView, BookTickerView]


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_sizes_are_those_of_the_contract(name: str, size: int) -> None:
    assert getattr(protocol, name).itemsize == size


@pytest.mark.parametrize("name", SIZES)
def test_a_copy_of_an_array_keeps_bytes_without_a_meaning(name: str) -> None:
    raw = bytes(range(1, 1 + SIZES[name])) * 50
    array = np.frombuffer(raw, dtype=getattr(protocol, name))
    assert array.copy().tobytes() == array[np.arange(50)].tobytes() == raw


def test_an_order_by_order_payload_has_these_bytes() -> None:
    record = new_l3_records(1, venue_id=2, market_id=1)
    header, event = record["header"], record["event"]
    header["stream_id"], header["ingest_ts_ns"], header["exchange_ts_ns"] = 2011, 0x1122334455667788, 7
    header["seq"], header["native_seq"] = 9, 10
    event["event_type"], event["side"], event["ord_type"], event["exec_type"] = 1, 2, 50, 70
    event["price_scale"], event["size_scale"], event["flags"] = 3, 1, 0x21
    event["order_id"], event["bid_order_id"], event["ask_order_id"] = 11, 12, 13
    event["price"], event["qty"], event["amt"] = -14, 15, 16
    assert record.tobytes().hex(" ", 8) == (
        "0400000080000000 0000020001000000 db07000000000000 8877665544332211 "
        "0700000000000000 0900000000000000 0a00000000000000 0201000000000000 "
        "0102324603010000 2100000000000000 0b00000000000000 0c00000000000000 "
        "0d00000000000000 f2ffffffffffffff 0f00000000000000 1000000000000000"
    )


def test_a_trade_and_a_ticker_have_these_bytes() -> None:
    trade = np.zeros(1, dtype=protocol.TRADE)
    trade["timestamp_ns"], trade["price"], trade["qty"], trade["trade_id"] = 1, 1.5, 2.0, 4
    trade["buyer_order_id"], trade["seller_order_id"] = 5, 6
    trade["is_buyer_maker"], trade["symbol_hash"] = 1, 8
    assert trade.tobytes().hex(" ", 8) == (
        "0100000000000000 000000000000f83f 0000000000000040 0400000000000000 "
        "0500000000000000 0600000000000000 0100000000000000 0800000000000000"
    )
    ticker = np.zeros(1, dtype=protocol.BOOK_TICKER)
    ticker["timestamp_ns"], ticker["bid_price"], ticker["ask_qty"], ticker["symbol_hash"] = 1, 1.5, 2.0, 3
    assert ticker.tobytes().hex(" ", 8) == (
        "0100000000000000 000000000000f83f 0000000000000000 "
        "0000000000000000 0000000000000040 0300000000000000"
    )


def test_hashes_are_those_of_the_contract() -> None:
    assert crypto_market_id("BTCUSDT") == 3410467731
    assert crypto_market_id("BTCUSDT", compatible=True) == 3467451262
    assert symbol_hash("") == 0xCBF29CE484222325


@pytest.mark.parametrize("kind", VIEWS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_view_reads_and_writes_the_bytes_of_its_dtype(kind: type[View], data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=kind.LAYOUT.itemsize, max_size=kind.LAYOUT.itemsize))
    row = np.frombuffer(raw, dtype=kind.LAYOUT)[0]
    view, copy = kind(raw), kind.new()
    for name in kind.FIELDS:
        np.testing.assert_equal(getattr(view, name), row[name])
        setattr(copy, name, getattr(view, name))
        np.testing.assert_equal(getattr(copy, name), row[name])


def test_the_body_of_an_event_is_of_its_kind() -> None:
    record = new_l3_records(1)
    record["event"]["price"] = 77
    event = BookEventView(record.tobytes()).check()
    body = event.body
    assert isinstance(body, L3EventView)
    assert body.price == 77
    assert BookEventView(new_headers(1, BookEventType.RESET, BookMode.L2).tobytes()).body is None
    with pytest.raises(Corrupt):
        BookEventView(b"short")


BAD_HEADERS: list[tuple[str, int, type[Exception]]] = [
    ("schema_version", 2, UnsupportedVersion),
    ("schema_version", 5, UnsupportedVersion),
    ("book_mode", 2, Unsupported),
    ("endianness", 1, Unsupported),
    ("event_type", 0, Corrupt),
    ("event_type", 5, Corrupt),
    ("record_len", 127, Corrupt),
]


@pytest.mark.parametrize(("field", "value", "error"), BAD_HEADERS)
def test_a_header_that_breaks_the_protocol_is_refused_by_row(field: str, value: int, error: Any) -> None:
    records = new_l3_records(5)
    records["event"]["event_type"] = L3EventType.ORDER_ADD
    check_headers(records["header"], L3_RECORD.itemsize)
    records["header"][field][3] = value
    with pytest.raises(error, match="book event 3"):
        check_headers(records["header"], L3_RECORD.itemsize)
