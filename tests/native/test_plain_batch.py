"""The records of a plain body are those that the full decoder finds, to the last byte of their frames."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.native.frames import FrameBuffer
from everlog.native.record_batch import RecordBatch, plain_batch
from everlog.native.topic_log import TopicLog
from everlog.server.bodies import MAX_NESTING, AppendBody, decode, take_records
from everlog.server.http import Request

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
BODIES = st.fixed_dictionaries({"records": st.lists(RECORDS, max_size=4)}, optional={"node": NAMES})
SPACINGS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r ")])


def frames_of(batch: RecordBatch) -> bytes:
    """The frames that a batch becomes; their room was estimated before."""
    buffer = FrameBuffer()
    TopicLog(7).append(buffer, 1, 0, batch, 1_700_000_000_000, 0, None, False)
    assert len(buffer) <= batch.frame_bytes
    return bytes(buffer)


def decoded(body: bytes) -> RecordBatch:
    """The batch that the routes make of a body."""
    request = Request("POST", b"/", b"", {b"content-type": b"application/json"}, "")
    request.body = body
    append = decode(request, AppendBody)
    return RecordBatch(take_records(append), append.node)  # type: ignore[arg-type]


def assert_the_same_or_not_plain(body: bytes) -> None:
    batch = plain_batch(body, MAX_NESTING)
    if batch is not None:
        assert (batch.count, frames_of(batch)) == (len(decoded(body)), frames_of(decoded(body)))


@given(BODIES, SPACINGS, st.booleans())
def test_what_is_plain_gives_the_frames_of_the_full_decoder(
    body: Any, spacing: tuple[str, str], is_ascii: bool
) -> None:
    assert_the_same_or_not_plain(json.dumps(body, separators=spacing, ensure_ascii=is_ascii).encode())


@given(
    st.sampled_from(
        [
            b'{"records":[{"data":[1,-2.5e1,true,null,"a\\u00e4\\n"],"tag":"t","node":"n","meta":{"k":{}}}]}',
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
    assert_the_same_or_not_plain(bytes(spoiled))
    assert_the_same_or_not_plain(bytes(spoiled[:length]))


@given(st.text("0123456789+-.eE", max_size=24))
@example("0")
@example("-0.0e-00")
@example("1e99")
@example("00")
@example("1" * 18)
@example("1" * 19)
def test_numbers_are_those_of_json(number: str) -> None:
    assert_the_same_or_not_plain(b'{"records":[{"data":%b}]}' % number.encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":1}]}',
        b'{"records": [{"data": {"a": [1, 2.5, -3e2]}, "tag": "t", "meta": {"m": 1}}, {"data": null}]}\n',
        b'{"node":"n","records":[{"data":"x","node":null},{"node":"","data":"\\""}]}',
        b'{"records":[' + b",".join([b'{"data":{"id":12345678}}'] * 1000) + b"]}",
    ],
)
def test_what_clients_usually_send_is_plain(body: bytes) -> None:
    batch = plain_batch(body, MAX_NESTING)
    assert batch is not None
    assert frames_of(batch) == frames_of(decoded(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"records":[]}',
        b'{"records":[{}]}',
        b'{"records":[{"data":1}],"create":true}',
        b'{"records":[{"data":1}],"idempotency_key":"k"}',
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
        b'{"records":[' + b",".join([b'{"data":1}'] * 2000) + b"]}",
    ],
)
def test_what_needs_a_closer_look_is_not_plain(body: bytes) -> None:
    assert plain_batch(body, MAX_NESTING) is None
