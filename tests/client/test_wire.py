"""Answers from pieces, requests as one piece, failures that survive a process border."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.api_types import Tombstone
from everlog.client import ApiFailed, RecordsLost
from everlog.client.wire import AnswerReader, BrokenAnswer, RequestWriter, ServerAddress
from everlog.errors import DataLost, EverlogError

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: value\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN
CLOSING = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"


def fed(pieces: list[bytes]) -> AnswerReader:
    reader = AnswerReader()
    for piece in pieces:
        if piece:
            reader.feed(piece)
    return reader


@given(st.sampled_from([PLAIN, CHUNKED, INTERIM, CLOSING]), st.data())
def test_an_answer_is_the_same_however_it_is_cut(text: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    reader = fed([text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    assert reader.is_complete
    assert (reader.complete().status, reader.answer.body) == (200, b"hello")
    assert reader.keeps_open == (text is not CLOSING)


@given(st.sampled_from([PLAIN, CHUNKED]), st.data())
def test_an_answer_that_breaks_off_is_told(text: bytes, data: st.DataObject) -> None:
    reader = fed([text[: data.draw(st.integers(1, len(text) - 1))]])
    assert not reader.is_complete
    with pytest.raises(BrokenAnswer, match="broke off"):
        reader.end()


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    reader = fed([b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo"])
    assert not reader.is_complete
    reader.end()
    assert reader.complete().body == b"hello"
    assert not reader.keeps_open


def test_a_request_is_one_piece_with_its_body() -> None:
    writer = RequestWriter(ServerAddress.parse("http://host:81/logs"), "sesame")
    assert writer.request("POST", "/topics/t", b"{}") == (
        b"POST /logs/v0/topics/t HTTP/1.1\r\nHost: host:81\r\nAuthorization: Bearer sesame\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert b"Content-Length" not in writer.request("GET", "/topics", None)
    assert b"Content-Length: 0\r\n" in writer.request("DELETE", "/topics/t", None)


def test_failures_are_everlog_errors_and_survive_pickling() -> None:
    failed = ApiFailed(429, "throttled", "full", {"limit": "max_topics"}, 2.0, was_sent=False)
    copy = pickle.loads(pickle.dumps(failed))
    assert isinstance(copy, EverlogError)
    assert (str(copy), vars(copy)) == ("full", vars(failed))
    lost = RecordsLost("gone", Tombstone(1, 2, "cap", 3, 5))
    assert pickle.loads(pickle.dumps(lost)).tombstone == lost.tombstone
    assert isinstance(lost, DataLost)
