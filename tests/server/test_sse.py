"""The text of server-sent events, without any connection."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.server import sse
from tests.support.watch_servers import parse_frame

SEQS = st.integers(0, 2**64 - 1)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,40}", fullmatch=True)


@given(st.dictionaries(NAMES, SEQS, max_size=20))
def test_an_id_gives_back_its_cursors(cursors: dict[str, int]) -> None:
    text = sse.event_id(cursors)
    assert b"=" not in text and b"+" not in text and b"/" not in text
    assert sse.read_event_id(text) == cursors
    padded = text + b"=" * (-len(text) % 4)
    assert msgspec.json.decode(base64.urlsafe_b64decode(padded)) == cursors
    assert sse.read_event_id(b" " + padded) == cursors


@given(st.binary(max_size=60))
def test_any_bytes_are_an_id_or_not_but_never_an_error(text: bytes) -> None:
    cursors = sse.read_event_id(text)
    assert cursors is None or all(seq >= 0 for seq in cursors.values())


@pytest.mark.parametrize("text", ['{"a":-1}', '{"a":1.5}', '{"a":"1"}', '{"a":null}', "[1]", "1", '{"a":'])
def test_json_that_is_no_cursor_map_is_no_id(text: str) -> None:
    assert sse.read_event_id(base64.urlsafe_b64encode(text.encode())) is None


@given(NAMES, SEQS, SEQS, SEQS, SEQS)
def test_every_frame_has_exactly_its_fields(
    name: str, first: int, second: int, third: int, fourth: int
) -> None:
    topic, end = msgspec.json.encode(name), sse.end_with_id({name: first})
    frames: dict[str, tuple[bytes, dict[str, Any]]] = {
        "record": (
            sse.record_lines(topic, b'[{"$seq":1}]', first, second, third),
            {"records": [{"$seq": 1}], "from_seq": first, "to_seq": second, "head_seq": third},
        ),
        "tombstone": (
            sse.tombstone_lines(topic, "cap", first, second, third, fourth),
            {
                "reason": "cap",
                "gap_from": first,
                "gap_to": second,
                "earliest_seq": third,
                "head_seq": fourth,
            },
        ),
        "caught-up": (sse.caught_up_lines(topic, first), {"head_seq": first}),
        "topic-deleted": (sse.topic_deleted_lines(topic, first), {"head_seq": first, "reason": "deleted"}),
    }
    for event, (lines, fields) in frames.items():
        text = lines + end
        assert text.endswith(b"\n\n") and text.count(b"\n\n") == 1
        frame = parse_frame(text[:-2])
        assert (frame.event, frame.data, frame.id) == (event, {"topic": name, **fields}, {name: first})
        assert len(text) >= 64, "the bound on frames in a queue rests on this"


def test_an_error_stays_on_its_line() -> None:
    frame = sse.error(429, "too\nslow", retry_after_ms=2000, topics=["a"])
    assert frame.count(b"\n") == 3
    parsed = parse_frame(frame[:-2])
    assert parsed.data == {"code": 429, "message": "too\nslow", "retry_after_ms": 2000, "topics": ["a"]}
    assert parsed.id is None


@pytest.mark.parametrize(
    ("accept", "is_taken"),
    [
        (None, True),
        (b" ", True),
        (b"*/*", True),
        (b"text/event-stream;charset=utf-8", True),
        (b"application/json, Text/Event-Stream", True),
        (b"application/json, */*;q=0.1", True),
        (b"application/json", False),
        (b"text/html", False),
        (b"text/event-streams", False),
    ],
)
def test_streams_are_for_those_who_accept_events(accept: bytes | None, is_taken: bool) -> None:
    assert sse.is_acceptable(accept) is is_taken
