"""What is sent over streams and sockets, field by field: the data of events, commands, replies and pushes.

Owns shapes for the documents only, like `answers`. Commands are not here: they are the structs that they are
decoded into.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from everlog.server.schema.answers import (
    Job,
    Performance,
    StreamedRecord,
    StreamGapReason,
    WatchedTopic,
)

# --- Server-sent events ----------------------------------------------------------------------------------


class RecordFrame(Struct):
    """Records of one topic."""

    topic: str
    records: list[StreamedRecord]
    from_seq: int
    to_seq: int
    head_seq: int


class TombstoneFrame(Struct):
    """Records were lost before they were read."""

    topic: str
    reason: StreamGapReason
    gap_from: int
    gap_to: int
    earliest_seq: int
    head_seq: int


class CaughtUpFrame(Struct):
    """The backlog is over; what follows is live."""

    topic: str
    head_seq: int


class TopicDeletedFrame(Struct):
    """The topic is gone; nothing of it comes any more, and the stream ends with its last topic."""

    topic: str
    head_seq: int
    reason: Literal["deleted"]


class ErrorFrame(Struct):
    """Why the stream is about to end."""

    code: str | int
    message: str
    retry_after_ms: int | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET


class JobFrame(Job, kw_only=True):
    """A leased job."""

    topic: str


# --- WebSocket: replies ----------------------------------------------------------------------------------


class Subscribed(Struct, tag_field="op", tag="subscribed"):
    """The reply to `subscribe`."""

    request_id: Any
    topics: dict[str, WatchedTopic]


class Unsubscribed(Struct, tag_field="op", tag="unsubscribed"):
    """The reply to `unsubscribe`."""

    request_id: Any
    topics: list[str]


class Ack(Struct, tag_field="op", tag="ack"):
    """The reply to `publish`."""

    request_id: Any
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | None
    head_seq: int
    count: int
    created: bool
    deduped: bool
    performance: Performance


class Pong(Struct, tag_field="op", tag="pong"):
    """The reply to `ping`."""

    request_id: Any


class SocketError(Struct, tag_field="op", tag="error"):
    """A command failed, or the server ends; the socket stays open."""

    request_id: Any
    code: str
    message: str


# --- WebSocket: pushes -----------------------------------------------------------------------------------


class RecordPush(RecordFrame, tag_field="op", tag="record"):
    """Records of one topic."""


class TombstonePush(TombstoneFrame, tag_field="op", tag="tombstone"):
    """Records were lost before they were read."""


class CaughtUpPush(CaughtUpFrame, tag_field="op", tag="caught_up"):
    """The backlog is over; what follows is live."""


class TopicDeletedPush(TopicDeletedFrame, tag_field="op", tag="topic_deleted"):
    """The topic is gone; it is followed no more."""


EVENTS: dict[str, type[Struct]] = {
    "record": RecordFrame,
    "tombstone": TombstoneFrame,
    "caught-up": CaughtUpFrame,
    "topic-deleted": TopicDeletedFrame,
    "error": ErrorFrame,
}
"""The events of a watch stream and their data."""

WORK_EVENTS: dict[str, type[Struct]] = {"job": JobFrame, "error": ErrorFrame}
"""The events of a work stream."""

REPLIES: tuple[type[Struct], ...] = (Subscribed, Unsubscribed, Ack, Pong, SocketError)
PUSHES: tuple[type[Struct], ...] = (RecordPush, TombstonePush, CaughtUpPush, TopicDeletedPush)
