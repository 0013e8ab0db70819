"""Server-sent events: how each kind of frame is written, and the event id that a reader resumes from.

Owns the text of frames. Knows no connection and no engine.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from everlog.api_types import ConsumerAtRisk

CONTENT_TYPE: Final = b"text/event-stream; charset=utf-8"
STREAM_HEADERS: Final = (
    (b"Content-Type", CONTENT_TYPE),
    (b"Cache-Control", b"no-store"),
    # A proxy that collects the output would hold back every frame until its buffer is full.
    (b"X-Accel-Buffering", b"no"),
)
RETRY: Final = b"retry: 2000\n\n"
HEARTBEAT: Final = b": hb\n\n"

_json = msgspec.json.Encoder()
_cursors = msgspec.json.Decoder(dict[str, int])


def is_acceptable(accept: bytes | None) -> bool:
    """Whether a client that sends this `Accept` header takes a stream of events."""
    if accept is None or not accept.strip():
        return True
    kinds = (part.partition(b";")[0].strip().lower() for part in accept.split(b","))
    return any(kind in (b"*/*", b"text/event-stream") for kind in kinds)


def event_id(cursors: Mapping[str, int]) -> bytes:
    """The id of a frame: how far every topic of the stream was processed, in unpadded base64url."""
    return base64.urlsafe_b64encode(_json.encode(cursors)).rstrip(b"=")


def read_event_id(text: bytes) -> dict[str, int] | None:
    """The cursors in an id that a client sends back; None if no stream of this server sent it."""
    text = text.strip().rstrip(b"=")
    try:
        decoded = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursors = _cursors.decode(decoded)
    except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return None if any(seq < 0 for seq in cursors.values()) else cursors


def end_with_id(cursors: Mapping[str, int]) -> bytes:
    """The last line of a frame, and the blank one behind it."""
    return b"id: %b\n\n" % event_id(cursors)


# A frame is its lines and an end. The lines are the same for all watchers at a cursor and can be shared; the
# end names all topics of one stream.


def record_lines(topic: bytes, records: bytes, from_seq: int, to_seq: int, head_seq: int) -> bytes:
    """Records as the kernel rendered them; `topic` is JSON."""
    return b'event: record\ndata: {"topic":%b,"records":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d}\n' % (
        topic,
        records,
        from_seq,
        to_seq,
        head_seq,
    )


def tombstone_lines(
    topic: bytes, reason: str, gap_from: int, gap_to: int, earliest_seq: int, head_seq: int
) -> bytes:
    """A gap in what the reader gets; `topic` is JSON."""
    return (
        b'event: tombstone\ndata: {"topic":%b,"reason":"%b","gap_from":%d,"gap_to":%d,"earliest_seq":%d,'
        b'"head_seq":%d}\n'
    ) % (topic, reason.encode(), gap_from, gap_to, earliest_seq, head_seq)


def caught_up_lines(topic: bytes, head_seq: int) -> bytes:
    """The backlog is over; `topic` is JSON."""
    return b'event: caught-up\ndata: {"topic":%b,"head_seq":%d}\n' % (topic, head_seq)


def topic_created_lines(topic: bytes, head_seq: int) -> bytes:
    """A topic has appeared that a pattern matches; `topic` is JSON."""
    return b'event: topic-created\ndata: {"topic":%b,"head_seq":%d}\n' % (topic, head_seq)


def topic_deleted_lines(topic: bytes, head_seq: int) -> bytes:
    """The topic is gone; `topic` is JSON."""
    return b'event: topic-deleted\ndata: {"topic":%b,"head_seq":%d,"reason":"deleted"}\n' % (topic, head_seq)


def at_risk_lines(risk: ConsumerAtRisk) -> bytes:
    """A consumer that the watch names may lose records."""
    return b"event: consumer-at-risk\ndata: %b\n" % _json.encode(risk)


def error(code: str | int, message: str, **more: Any) -> bytes:
    """Why the stream ends, or is slowed down; a whole frame, without an id."""
    return b"event: error\ndata: %b\n\n" % _json.encode({"code": code, "message": message, **more})
