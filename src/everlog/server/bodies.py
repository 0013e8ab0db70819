"""Request bodies: from JSON text to typed values, with every rule of the contract about bodies.

Owns decoding. `data` and `meta` of records stay the text that was sent.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec

from everlog.native.frames import json_fault
from everlog.server.errors import ApiError, invalid
from everlog.server.http import Request
from everlog.topics import TopicConfig

MAX_NESTING: Final = 128
_ABSENT: Final = msgspec.Raw(b"")


class RecordBody(msgspec.Struct):
    """A record of an append, as the engine's kernel reads it."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = _ABSENT


class AppendBody(msgspec.Struct):
    """POST /v0/topics/:topic."""

    records: list[RecordBody]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool = False


class DiffBody(msgspec.Struct):
    """POST /v0/topics/:topic/diff."""

    from_seq: int = 0
    limit: int = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = 0


class DeleteBody(msgspec.Struct):
    """POST /v0/topics/:topic/delete."""

    before_seq: int | None = None
    match: str | list[Any] | None = None


class WatchedBody(msgspec.Struct):
    """Where watching one topic begins."""

    from_seq: int = 0
    tail: bool = False


class WatchBody(msgspec.Struct):
    """POST /v0/watch."""

    topics: dict[str, WatchedBody]
    node: str | list[str] | None = None
    limit: int = 256
    max_batch_bytes: int = 262_144
    heartbeat_ms: int = 15_000
    include_meta: bool = True
    include_data: bool = True
    include_tags: bool = False
    consistency: Literal["eventual", "strong"] = "eventual"


_Body = TypeVar("_Body", AppendBody, TopicConfig, DeleteBody, DiffBody, WatchBody)
_DECODERS: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind) for kind in (AppendBody, TopicConfig, DeleteBody, DiffBody, WatchBody)
}


def decode(request: Request, kind: type[_Body], *, if_empty: _Body | None = None) -> _Body:
    """Read the body of a request; raises what the client is told if it cannot be."""
    body = request.body
    if not body and if_empty is not None:
        return if_empty
    content_type = request.header(b"content-type") or b""
    if not content_type.lower().startswith(b"application/json"):
        raise ApiError(415, "unsupported_media_type", "the body must be sent as application/json")
    fault = json_fault(body, MAX_NESTING)
    if fault is not None:
        raise invalid(f"the body is not acceptable JSON: {fault}")
    try:
        decoded: _Body = _DECODERS[kind].decode(body)
    except msgspec.MsgspecError as error:
        raise invalid(f"the body is not what this route expects: {error}") from None
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8: {error}") from None
    return decoded


def check_counts(body: DiffBody | DeleteBody | TopicConfig | WatchBody | WatchedBody) -> None:
    """Refuse negative numbers and those beyond 64 bits, whatever the field."""
    for field in body.__struct_fields__:
        value = getattr(body, field)
        signed = field == "priority"
        if type(value) is int and not signed and not 0 <= value < 2**64:
            raise invalid(f"{field} is {value}; it must be an unsigned 64-bit number")


def take_records(body: AppendBody) -> list[RecordBody]:
    """The records of an append with absent and null meta made the same."""
    for record in body.records:
        if record.meta is _ABSENT or bytes(record.meta) == b"null":
            record.meta = None  # type: ignore[assignment]  # how the engine spells "absent"
    return body.records
