"""From payloads to the text of a request: whatever the bytes are, the records are what they say."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.bridge import market_json
from everlog.bridge.layouts import GAP_TYPE_ID, GapMessage, GapReason, encode_gap
from everlog.bridge.origin import meta_of
from everlog.bridge.rendering import (
    Format,
    Marker,
    Messages,
    Renderer,
    copy_messages,
    fitting,
    is_acceptable_json,
    request_body,
)
from everlog.errors import InvalidRecord
from everlog.market.protocol import (
    BOOK_TICKER,
    LEVEL,
    TRADE,
    TRADE_SIDE_UNKNOWN,
    BookEventType,
    BookMode,
    L3EventType,
    TypeId,
    new_headers,
    new_l3_records,
)
from everlog.queue import Queue

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
JSON_TEXTS = st.builds(
    lambda value, is_ascii, indent: json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode(
        "utf-8", "surrogatepass"
    ),
    JSON_VALUES,
    st.booleans(),
    st.sampled_from((None, 1)),
)
TRICKY = st.sampled_from(
    (
        b'"},{"data":1',
        b'1},{"data":2',
        b'"x","meta":{"encoding":"base64","type":1}',
        b'{"data":"x","meta":{"encoding":"base64","type":5}}',
        b'1,"meta":{"bridge":{}}',
        b"NaN",
        b"1 2",
        b"",
        b" 1 ",
        b'"\\ud800"',
        b'"\xc3"',
        b"\xa9",
        b"[" * 300,
    )
)
PAYLOADS = st.lists(JSON_TEXTS | TRICKY | st.binary(max_size=20), min_size=1, max_size=12)


def made(payloads: list[bytes], type_ids: list[int] | int = 1, flags: int = 0) -> Messages:
    """Messages as they come out of a queue."""
    kinds = [type_ids] * len(payloads) if isinstance(type_ids, int) else type_ids
    seqs = np.arange(100, 100 + len(payloads), dtype=np.uint64)
    return Messages(seqs, seqs * 1000, kinds, [flags] * len(payloads), payloads)


def is_json(payload: bytes) -> bool:
    """The model: what the standard library reads strictly."""

    def refuse(word: str) -> Any:
        raise ValueError(word)

    try:
        text = json.dumps(json.loads(payload.decode(), parse_constant=refuse), ensure_ascii=False)
        text.encode()
    except (ValueError, RecursionError):
        return False
    return True


def body_of(messages: Messages, form: Format, source: str | None = None) -> Any:
    """The request, read by another JSON library."""
    records = Renderer(form, source).records(messages)
    marker = Marker(messages.first_seq, messages.last_seq, len(messages.payloads))
    return json.loads(request_body(records, marker, 'the "node"', "key", b',"create":true'))


@given(
    payloads=PAYLOADS,
    form=st.sampled_from((Format.AUTO, Format.BASE64)),
    source=st.sampled_from((None, "0a1b", 'a "100 %" %d queue')),
    flags=st.sampled_from((0, 5)),
)
def test_every_payload_becomes_one_record_that_gives_it_back(
    payloads: list[bytes], form: Format, source: str | None, flags: int
) -> None:
    body = body_of(made(payloads, 7, flags), form, source)
    assert (body["node"], body["idempotency_key"], body["create"]) == ('the "node"', "key", True)
    assert len(body["records"]) == len(payloads)
    for place, (record, payload) in enumerate(zip(body["records"], payloads, strict=True)):
        meta = record.get("meta", {})
        if place == 0:
            assert meta.pop("bridge") == {
                "first_seq": 100,
                "last_seq": 99 + len(payloads),
                "count": len(payloads),
            }
        if source is not None:
            seq = 100 + place
            stamp = {"source": source, "seq": seq, "ts_ns": seq * 1000, "type": 7}
            stamp |= {"flags": flags} if flags else {}
            assert meta_of(json.dumps(meta)).is_complete
        else:
            stamp = {}
        if form is Format.BASE64 or not is_json(payload):
            assert meta == {"type": 7, "encoding": "base64"} | stamp
            assert base64.b64decode(record["data"]) == payload
        else:
            assert meta == stamp
            assert record["data"] == json.loads(payload)


@given(payload=JSON_TEXTS | TRICKY | st.binary(max_size=12))
def test_a_payload_is_acceptable_if_a_strict_reader_takes_it(payload: bytes) -> None:
    assert is_acceptable_json(payload) == is_json(payload)


@pytest.mark.parametrize(("depth", "is_fine"), [(100, True), (119, True), (121, False), (5000, False)])
def test_nesting_that_a_server_refuses_is_not_acceptable(depth: int, is_fine: bool) -> None:
    assert is_acceptable_json(b"[" * depth + b"]" * depth) is is_fine
    assert is_acceptable_json(b"[" + b"[]," * 500 + b"[]]")


def test_messages_and_their_flags_are_copied_out_of_the_mapping(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path, segment_size=1 << 16) as writer:
        payloads = [b"a" * length for length in (0, 5, 100)]
        writer.append_packed(
            np.array([1, 2, 3], dtype=np.uint16),
            np.frombuffer(b"".join(payloads), dtype=np.uint8),
            np.cumsum([len(payload) for payload in payloads], dtype=np.uint64),
            np.array([10, 20, 30], dtype=np.uint64),
            np.array([0, 0x1234, 1], dtype=np.uint16),
        )
    with Queue.open_subscriber(tmp_path, None) as reader:
        batch = reader.read_batch()
        copied = copy_messages(batch, 1, 3)
        assert (copied.seqs.tolist(), copied.type_ids, copied.flags) == ([1, 2], [2, 3], [0x1234, 1])
        assert copied.payloads == payloads[1:]
        assert [fitting(batch, size, 0) for size in (1, 5, 104, 105, 1000)] == [1, 2, 2, 3, 3]
        assert fitting(batch, 1, 2) == 1


def test_json_only_takes_json_and_market_messages(tmp_path: Path) -> None:
    ticker = np.zeros(1, dtype=BOOK_TICKER).tobytes()
    records = Renderer(Format.JSON).records(made([b"1", ticker], [1, TypeId.BOOK_TICKER]))
    assert json.loads(records.data[1])["type"] == "book_ticker"
    with pytest.raises(InvalidRecord, match="message 101"):
        Renderer(Format.JSON).records(made([b"1", b"{"]))


# --- The market protocol ---------------------------------------------------------------------------------


def rendered(type_id: int, payload: bytes, flags: int = 0) -> Any:
    """A message as the object that its JSON is."""
    text = market_json.render(type_id, flags, payload)
    assert text is not None
    return json.loads(text)


def test_a_trade_is_rendered_with_its_side_unless_that_is_unknown() -> None:
    trade = np.zeros(1, dtype=TRADE)
    trade["price"], trade["qty"], trade["trade_id"], trade["is_buyer_maker"] = 100.25, 3.5, 2**63, 1
    document = rendered(TypeId.TRADE, trade.tobytes())
    assert (document["type"], document["price"], document["qty"]) == ("trade", 100.25, 3.5)
    assert (document["trade_id"], document["is_buyer_maker"]) == (2**63, True)
    assert rendered(TypeId.TRADE, trade.tobytes(), TRADE_SIDE_UNKNOWN)["is_buyer_maker"] is None
    trade["price"] = np.nan
    assert rendered(TypeId.TRADE, trade.tobytes())["price"] is None


def test_levels_are_exact_decimals() -> None:
    levels = np.zeros(3, dtype=LEVEL)
    levels["price"], levels["size"] = [10050, 10049, 10051], [1, 20, 2**64 - 1]
    headers = new_headers(1, BookEventType.SNAPSHOT, BookMode.L2, market_id=7)
    payload = bytes(headers.tobytes() + snapshot_body(2, 1, 2, 1) + levels.tobytes())
    payload = with_length(payload)
    document = rendered(TypeId.BOOK_EVENT, payload)
    assert (document["event"], document["mode"], document["market_id"]) == ("snapshot", "l2", 7)
    assert document["bids"] == [["100.5", "0.1"], ["100.49", "2"]]
    assert document["asks"] == [["100.51", "1844674407370955161.5"]]


def snapshot_body(price_scale: int, size_scale: int, bids: int, asks: int) -> bytes:
    """The 12 bytes before the levels of a snapshot."""
    return bytes([price_scale, size_scale, 0, 0]) + bids.to_bytes(4, "little") + asks.to_bytes(4, "little")


def with_length(payload: bytes) -> bytes:
    """A book event that says how long it is."""
    return payload[:4] + len(payload).to_bytes(4, "little") + payload[8:]


def test_an_order_is_rendered_with_its_price() -> None:
    records = new_l3_records(1, market_id=3)
    event = records["event"]
    event["event_type"], event["side"] = L3EventType.ORDER_ADD, 1
    event["price"], event["price_scale"] = 12345, 3
    document = rendered(TypeId.BOOK_EVENT, records.tobytes())
    assert (document["order_event"], document["side"], document["price"]) == ("order_add", "buy", "12.345")


def test_a_gap_that_a_bridge_wrote_is_rendered() -> None:
    document = rendered(GAP_TYPE_ID, encode_gap(GapMessage(5, 9, 5, GapReason.TTL)))
    assert document == {"type": "gap", "gap_from": 5, "gap_to": 9, "missed_estimate": 5, "reason": "ttl"}


@pytest.mark.parametrize("type_id", sorted(market_json.KNOWN_TYPE_IDS))
@given(payload=st.binary(max_size=200))
def test_bytes_that_break_the_protocol_go_as_base64(type_id: int, payload: bytes) -> None:
    text = market_json.render(type_id, 0, payload)
    (record,) = body_of(made([payload], type_id), Format.AUTO)["records"]
    if text is None:
        assert base64.b64decode(record["data"]) == payload
        assert record["meta"]["type"] == type_id
    else:
        assert record["data"] == json.loads(text)


@pytest.mark.parametrize("kind", [BookEventType.RESET, BookEventType.HEARTBEAT])
def test_an_event_without_a_body_has_no_levels(kind: BookEventType) -> None:
    document = rendered(TypeId.BOOK_EVENT, new_headers(1, kind, BookMode.L2).tobytes())
    assert document["event"] == kind.name.lower()
    assert "bids" not in document
