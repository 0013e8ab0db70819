"""The messages of streams and sockets that only the documents describe: jobs, replies and pushes.

Owns their shapes. The data of events are types of `api_types`; commands are the structs of `socket_commands`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from everlog.answer_types import IgnoredMember
from everlog.api_types import (
    Appended,
    CaughtUp,
    ConsumerAtRisk,
    Records,
    StreamError,
    Tombstone,
    TopicCreated,
    TopicGone,
    Watched,
)
from everlog.job_types import Job


class JobFrame(Job, frozen=True, kw_only=True):
    """A leased job."""

    topic: str


# --- WebSocket: replies ----------------------------------------------------------------------------------


class Subscribed(Struct, tag_field="op", tag="subscribed"):
    """The reply to `subscribe`."""

    request_id: Any
    topics: dict[str, Watched]
    ignored: list[IgnoredMember] | None = None


class Unsubscribed(Struct, tag_field="op", tag="unsubscribed"):
    """The reply to `unsubscribe`."""

    request_id: Any
    topics: list[str]
    ignored: list[IgnoredMember] | None = None


class Ack(Appended, frozen=True, kw_only=True, tag_field="op", tag="ack"):
    """The reply to `publish`."""

    request_id: Any
    seqs: list[int] | None


class Pong(Struct, tag_field="op", tag="pong"):
    """The reply to `ping`."""

    request_id: Any
    ignored: list[IgnoredMember] | None = None


class SocketError(Struct, tag_field="op", tag="error"):
    """A command failed, or the server stops; the socket stays open."""

    request_id: Any
    code: str
    message: str


# --- WebSocket: pushes -----------------------------------------------------------------------------------


class RecordPush(Records, frozen=True, tag_field="op", tag="record"):
    """Records of one topic."""


class TombstonePush(Tombstone, frozen=True, tag_field="op", tag="tombstone"):
    """Records were lost before they were read."""


class CaughtUpPush(CaughtUp, frozen=True, tag_field="op", tag="caught_up"):
    """The backlog is over; what follows is live."""


class TopicDeletedPush(TopicGone, frozen=True, tag_field="op", tag="topic_deleted"):
    """The topic was deleted and is no longer followed."""


class TopicCreatedPush(TopicCreated, frozen=True, tag_field="op", tag="topic_created"):
    """A topic has appeared that a pattern matches."""


class ConsumerAtRiskPush(ConsumerAtRisk, frozen=True, tag_field="op", tag="consumer_at_risk"):
    """Retention is about to pass the consumer that an entry names, or has."""


EVENTS: dict[str, type[Struct]] = {
    "record": Records,
    "tombstone": Tombstone,
    "caught-up": CaughtUp,
    "topic-deleted": TopicGone,
    "topic-created": TopicCreated,
    "consumer-at-risk": ConsumerAtRisk,
    "error": StreamError,
}
"""The events of a watch stream and their data."""

WORK_EVENTS: dict[str, type[Struct]] = {"job": JobFrame, "error": StreamError}
"""The events of a work stream."""

REPLIES: tuple[type[Struct], ...] = (Subscribed, Unsubscribed, Ack, Pong, SocketError)
PUSHES: tuple[type[Struct], ...] = (
    *(RecordPush, TombstonePush, CaughtUpPush, TopicDeletedPush, TopicCreatedPush, ConsumerAtRiskPush),
)
