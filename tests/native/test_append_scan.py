"""The scan of an append finds what the general decoder finds, to the last byte of the records' frames."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.native.topics.log import FrameBuffer, RecordBatch, TopicLog, scan_append
from everlog.server.bodies import MAX_NESTING, Append, AppendBody, decode_text
from everlog.topics.config import MAX_RECORDS_PER_APPEND

NAMES = st.none() | st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.fixed_dictionaries(
    {"data": VALUES},
    optional={"tag": NAMES, "node": NAMES, "meta": st.none() | st.dictionaries(st.text(max_size=4), VALUES)},
)
BODIES = st.fixed_dictionaries(
    {"records": st.lists(RECORDS, max_size=4)},
    optional={"node": NAMES, "idempotency_key": NAMES, "create": st.none() | st.booleans()},
)
SPACINGS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r ")])


def frames_of(batch: RecordBatch) -> bytes:
    """The frames that a batch becomes; their room was estimated before."""
    buffer = FrameBuffer()
    TopicLog(7).append(buffer, 1, 0, batch, 1_700_000_000_000, 0, None, False)
    assert len(buffer) <= batch.frame_bytes
    return bytes(buffer)


Fields = tuple[bytes, str | None, bool | None]


def decoded(body: bytes) -> Fields:
    """The frames, the key and `create` that the general decoder finds."""
    append = Append.of(decode_text(body, AppendBody))
    assert isinstance(append.records, list)
    batch = RecordBatch(append.records, append.node)
    return frames_of(batch), append.idempotency_key, append.create


def scanned(body: bytes) -> Fields | None:
    """The same found by the scan; None if it leaves the body to the decoder."""
    found = scan_append(body, MAX_NESTING, MAX_RECORDS_PER_APPEND)
    if found is None:
        return None
    batch, key, create = found
    return frames_of(batch), key, create


def assert_the_same_or_not_scanned(body: bytes) -> None:
    found = scanned(body)
    assert found is None or found == decoded(body)


@given(BODIES, SPACINGS, st.booleans())
def test_what_is_scanned_is_what_the_decoder_finds(
    body: Any, spacing: tuple[str, str], is_ascii: bool
) -> None:
    assert_the_same_or_not_scanned(json.dumps(body, separators=spacing, ensure_ascii=is_ascii).encode())


@given(
    st.sampled_from(
        [
            b'{"records":[{"data":[1,-2.5e1,true,null,"a\\u00e4\\n"],"tag":"t","node":"n","meta":{"k":{}}}]}',
            b'{"records":[{"data":1}],"idempotency_key":"key","create":true}',
            b' { "records" : [ { "data" : 0 } , { "meta" : null , "data" : "" } ] , "node" : "x" } ',
        ]
    ),
    st.lists(st.tuples(st.integers(0, 95), st.integers(0, 255)), max_size=3),
    st.integers(0, 100),
)
def test_a_spoiled_body_is_never_taken_for_another_one(
    body: bytes, changes: list[tuple[int, int]], length: int
) -> None:
    spoiled = bytearray(body)
    for place, byte in changes:
        spoiled[place % len(spoiled)] = byte
    assert_the_same_or_not_scanned(bytes(spoiled))
    assert_the_same_or_not_scanned(bytes(spoiled[:length]))


@given(st.text("0123456789+-.eE", max_size=24))
@example("0")
@example("-0.0e-00")
@example("1e99")
@example("00")
@example("1" * 18)
@example("1" * 19)
def test_numbers_are_those_of_json(number: str) -> None:
    assert_the_same_or_not_scanned(b'{"records":[{"data":%b}]}' % number.encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":1}]}',
        b'{"records": [{"data": {"a": [1, 2.5, -3e2]}, "tag": "t", "meta": {"m": 1}}, {"data": null}]}\n',
        b'{"node":"n","records":[{"data":"x","node":null},{"node":"","data":"\\""}]}',
        b'{"records":[' + b",".join([b'{"data":1}'] * MAX_RECORDS_PER_APPEND) + b"]}",
        b'{"records":[{"data":1}],"idempotency_key":"k\xc3\xa4"}',
        b'{"records":[{"data":1}],"node":"n","idempotency_key":"k","create":true}',
        b'{"create": false ,"idempotency_key":null,"records":[{"data":1}]}',
        b'{"idempotency_key":"","create":null,"records":[{"data":1}]}',
    ],
)
def test_what_clients_usually_send_is_scanned(body: bytes) -> None:
    found = scanned(body)
    assert found is not None
    assert found == decoded(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"records":[]}',
        b'{"records":[{}]}',
        b'{"records":[{"data":1}],"create":1}',
        b'{"records":[{"data":1}],"config":{}}',
        b'{"records":[{"data":1}],"disable_backpressure":true}',
        b'{"records":[{"data":1}],"idempotency_key":"\\u0041"}',
        b'{"records":[{"data":1}],"idempotency_key":"k","idempotency_key":"k"}',
        b'{"records":[{"data":1}],"create":true,"create":true}',
        b'{"idempotency_key":"k"}',
        b'{"records":[{"data":1}],"records":[{"data":2}]}',
        b'{"records":[{"data":1,"data":2}]}',
        b'{"records":[{"data":1,"more":2}]}',
        b'{"records":[{"data":1,"tag":"\\u0041"}]}',
        b'{"records":[{"data":1,"meta":[]}]}',
        b'{"records":[{"data":1}]}}',
        b'{"records":[{"data":"\\ud800"}]}',
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":1,"tag":"%b"}]}' % (b"x" * 257),
        b'{"records":[{"data":1,"node":"%b"}]}' % (b"x" * 129),
        b'{"records":[{"data":"%b"}]}' % (b"x" * (1 << 20)),
        b'{"records":[{"data":%b%b}]}' % (b"[" * MAX_NESTING, b"]" * MAX_NESTING),
        b'{"records":[' + b",".join([b'{"data":1}'] * (MAX_RECORDS_PER_APPEND + 1)) + b"]}",
    ],
)
def test_other_bodies_are_left_to_the_decoder(body: bytes) -> None:
    assert scanned(body) is None
