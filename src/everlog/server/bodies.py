"""Request bodies: from JSON text to typed values, with every rule of the contract about bodies.

Owns decoding. `data` and `meta` of records stay the text that was sent.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from everlog import tracing
from everlog.errors import BatchTooLarge
from everlog.job_types import JobError, JobMembers
from everlog.native.topics.log import RecordBatch, json_fault, json_names, scan_append
from everlog.server.app import Call, query_flag
from everlog.server.body_checks import VALUES_MAX, fault, unknown_members
from everlog.server.errors import ApiError, invalid
from everlog.server.http import Request
from everlog.server.request_counts import TRACEPARENT
from everlog.topics import TopicConfig
from everlog.topics.config import MAX_RECORDS_PER_APPEND
from everlog.topics.delivery.consumers import Start
from everlog.topics.filters import Filter, compile_filter
from everlog.topics.jobs.options import has_members
from everlog.topics.jobs.steps import Steps
from everlog.topics.routing.definitions import RouterConfig

MAX_NESTING: Final = 128
NODES_MAX: Final = 1000
"""Nodes that one reader may leave out."""
_NODE_BYTES_MAX: Final = 128
_ONE_STEP_BYTES: Final = 65_536  # of a body whose members are looked at in the step that decodes it
_META_BYTES_MAX: Final = 16 << 10
_META_KEYS_MAX: Final = 64
# How the engine spells "absent"; a field may not be typed as "Raw or None".
_ABSENT: Final = cast(msgspec.Raw, None)
# What clients usually send; any other spelling is looked at more closely.
_JSON_TYPES: Final = frozenset({b"application/json", b"application/json; charset=utf-8"})


class RecordBody(JobMembers):
    """A record of an append, as the engine's kernel reads it."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = _ABSENT

    def __post_init__(self) -> None:
        """Count the records of a body, so that one with millions of them is refused at the first too many."""
        _Decoding.records += 1
        if _Decoding.is_body and _Decoding.records > MAX_RECORDS_PER_APPEND:
            error = BatchTooLarge(
                f"an append of more than {MAX_RECORDS_PER_APPEND} records; at most that many are allowed, "
                f"split it"
            )
            error.detail = {"records": _Decoding.records, "max": MAX_RECORDS_PER_APPEND}
            raise error


class _Decoding:
    """Whether a body is being decoded, and the records made of it; the loop decodes one at a time."""

    is_body = False
    records = 0


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
    from_time_ms: int | None = None
    filter: msgspec.Raw = _ABSENT


class StartBody(msgspec.Struct):
    """Where a consumer begins: before a record, or before the first one of a time."""

    seq: int | None = None
    time_ms: int | None = None


StartWord = Literal["earliest", "latest"]


class ConsumerBody(msgspec.Struct):
    """PUT /v0/topics/:topic/consumers/:consumer."""

    start: StartWord | StartBody = "earliest"
    hold: bool = False
    hold_max_ms: int = 86_400_000
    filter: msgspec.Raw = _ABSENT
    node: str | list[str] | None = None


class ConsumerReadBody(msgspec.Struct):
    """POST /v0/topics/:topic/consumers/:consumer/read."""

    limit: int = 0
    max_bytes: int = 0
    wait_ms: int = 0
    commit: int | None = None
    owner_epoch: int | None = None
    include_tags: bool = False
    include_meta: bool = True


class ConsumerCommitBody(msgspec.Struct):
    """POST /v0/topics/:topic/consumers/:consumer/commit."""

    seq: int
    owner_epoch: int | None = None


class ConsumerAcquireBody(msgspec.Struct):
    """POST /v0/topics/:topic/consumers/:consumer/acquire."""

    owner: str
    ttl_ms: int = 30_000


class ConsumerResetBody(msgspec.Struct):
    """POST /v0/topics/:topic/consumers/:consumer/reset."""

    to: StartWord | StartBody
    dry_run: bool = False


class DeleteBody(msgspec.Struct):
    """POST /v0/topics/:topic/delete."""

    before_seq: int | None = None
    match: str | list[Any] | None = None
    dry_run: bool = False


class WatchedBody(msgspec.Struct):
    """Where watching one topic begins, and what is sent of it."""

    from_seq: int | msgspec.UnsetType = msgspec.UNSET
    tail: bool = False
    from_time_ms: int | None = None
    consumer: str | None = None
    filter: msgspec.Raw = _ABSENT

    @property
    def cursor(self) -> int:
        """`from_seq`, or 0."""
        return 0 if isinstance(self.from_seq, msgspec.UnsetType) else self.from_seq


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


class ClaimBody(msgspec.Struct):
    """POST /v0/topics/:topic/claim."""

    node: str
    max: int = 0
    lease_ms: int | None = None


class AckBody(msgspec.Struct):
    """POST /v0/topics/:topic/ack."""

    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None


class NackBody(AckBody):
    """POST /v0/topics/:topic/nack."""

    delay_ms: int | None = None
    error: JobError | None = None


class ExtendBody(AckBody, kw_only=True):
    """POST /v0/topics/:topic/extend."""

    lease_ms: int


class JobsBody(msgspec.Struct):
    """POST /v0/topics/:topic/jobs/cancel and retry."""

    seqs: list[int] | None = None
    filter: msgspec.Raw = _ABSENT


class PurgeBody(msgspec.Struct):
    """POST /v0/topics/:topic/purge."""

    filter: msgspec.Raw = _ABSENT
    all: bool = False
    dry_run: bool = False


class ScheduleBody(msgspec.Struct):
    """PUT /v0/schedules/:schedule."""

    topic: str
    cron: str
    record: RecordBody
    timezone: str = "UTC"
    catch_up: Literal["none", "one", "all"] = "one"
    paused: bool = False


class PauseBody(msgspec.Struct):
    """POST /v0/topics/:topic/pause and resume; they need none."""


class RedriveBody(msgspec.Struct):
    """POST /v0/topics/:topic/redrive."""

    to: str | None = None
    filter: msgspec.Raw = _ABSENT
    limit: int | None = None
    dry_run: bool = False


_CONSUMER_BODIES: Final = (
    ConsumerBody,
    ConsumerReadBody,
    ConsumerCommitBody,
    ConsumerAcquireBody,
    ConsumerResetBody,
)
_QUEUE_BODIES: Final = (ClaimBody, AckBody, NackBody, ExtendBody)
_JOB_BODIES: Final = (JobsBody, PurgeBody, PauseBody, RedriveBody, ScheduleBody)
_Body = TypeVar("_Body", bound=msgspec.Struct)
_WITH_DATA: Final = (AppendBody, ScheduleBody)
"""Bodies with JSON of the user, which may have any number of values and is kept as text."""
_DECODERS: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        *(AppendBody, TopicConfig, DeleteBody, DiffBody, RouterConfig, WatchBody),
        *_QUEUE_BODIES,
        *_JOB_BODIES,
        *_CONSUMER_BODIES,
    )
}


class Append(msgspec.Struct):
    """An append as the engine takes it."""

    records: RecordBatch | list[RecordBody]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool = False
    jobs: dict[int, JobMembers] | None = None
    """What records say about their jobs, by their place."""

    @classmethod
    def of(cls, body: AppendBody) -> Append:
        """The append that a decoded body describes; absent and null meta are the same."""
        for record in body.records:
            if record.meta is not _ABSENT and bytes(record.meta) == b"null":
                record.meta = _ABSENT
        jobs: dict[int, JobMembers] = {
            place: record for place, record in enumerate(body.records) if has_members(record)
        }
        return cls(
            body.records,
            body.node,
            body.idempotency_key,
            body.create,
            body.config,
            body.disable_backpressure,
            jobs or None,
        )


def decode_append(call: Call) -> Append:
    """Read the body of an append; raises the error for the client if it cannot be.

    What clients usually send is scanned, without an object for each record. Other fields, other spellings,
    and faults, which have to be named, are for the general decoder.
    """
    request = call.request
    check_type(request)
    if TRACEPARENT in request.headers:
        trace = tracing.of_headers(request.headers)
        if trace is not None:
            body = decode(call, AppendBody)
            note_trace(body.records, trace.text)
            return Append.of(body)
    scanned = scan_append(request.body, MAX_NESTING, MAX_RECORDS_PER_APPEND)
    if scanned is None:
        return Append.of(decode(call, AppendBody))
    records, idempotency_key, create = scanned
    return Append(records, None, idempotency_key, create)


def note_trace(records: list[RecordBody], traceparent: str) -> None:
    """Keep the trace of an append in the meta of its records, unless a record has its own or no room."""
    word = b'"traceparent":"%b"}' % traceparent.encode()
    for record in records:
        meta = b"{}" if record.meta is _ABSENT else bytes(record.meta).strip()
        if meta == b"null":
            meta = b"{}"
        if meta[:1] != b"{" or len(meta) + len(word) > _META_BYTES_MAX:
            continue  # what is wrong with it, the engine says
        names = json_names(meta)
        if len(names) < _META_KEYS_MAX and b'"traceparent"' not in names:
            record.meta = msgspec.Raw(meta[:-1] + (b"," if names else b"") + word)


def decode(call: Call, kind: type[_Body], *, if_empty: _Body | None = None) -> _Body:
    """Read the body of a request; raises the error for the client if it cannot be.

    Members that `kind` does not have are noted for the answer, or refused if the request is strict.
    """
    body = call.request.body
    if not body and if_empty is not None:
        return if_empty
    check_type(call.request)
    decoded = decode_text(body, kind)
    _note_unknown(call, kind)
    return decoded


def decode_in_steps(call: Call, kind: type[_Body]) -> Steps[_Body]:
    """Read a body that may have thousands of members: looking for unknown ones is a step of its own."""
    check_type(call.request)
    decoded = decode_text(call.request.body, kind)
    if len(call.request.body) > _ONE_STEP_BYTES:
        yield None
    _note_unknown(call, kind)
    return decoded


def _note_unknown(call: Call, kind: type[msgspec.Struct]) -> None:
    unknown = unknown_members(call.request.body, kind)
    if unknown:
        if query_flag(call.query(), "strict", False):
            raise unknown[0].refusal()
        call.ignored = unknown


def decode_text(text: bytes, kind: type[_Body]) -> _Body:
    """Read JSON text; raises the error for the client if it cannot be."""
    problem = json_fault(text, MAX_NESTING)
    if problem is not None:
        raise invalid(f"the body is not acceptable JSON: {problem}")
    if kind not in _WITH_DATA and text.count(b",") > VALUES_MAX:
        raise invalid(f"the body has more than {VALUES_MAX} values; no request of this kind needs as many")
    _Decoding.is_body, _Decoding.records = True, 0
    try:
        decoded: _Body = _DECODERS[kind].decode(text)
    except msgspec.MsgspecError as error:
        raise invalid(f"the body cannot be used: {fault(text, kind, error)}") from None
    finally:
        _Decoding.is_body = False
    check_nodes(getattr(decoded, "node", None))
    return decoded


def check_nodes(nodes: str | list[str] | None) -> None:
    """Refuse a list of nodes that no reader needs: a watch holds it for as long as it lasts."""
    if nodes is None or (isinstance(nodes, str) and len(nodes) <= _NODE_BYTES_MAX):
        return
    names = [nodes] if isinstance(nodes, str) else nodes
    length = sum(map(len, names))
    if len(names) > NODES_MAX or length > NODES_MAX * _NODE_BYTES_MAX:
        raise invalid(
            f"node has {len(names)} names with {length} characters; at most {NODES_MAX} names of "
            f"{_NODE_BYTES_MAX} bytes are allowed, read without some of them",
            names=len(names),
            max=NODES_MAX,
        )


def check_type(request: Request) -> None:
    """Refuse a body that is not sent as JSON."""
    content_type = request.headers.get(b"content-type", b"")
    if content_type not in _JSON_TYPES and not content_type.lower().startswith(b"application/json"):
        raise ApiError(415, "unsupported_media_type", "the body must be sent as application/json")


def check_counts(body: msgspec.Struct) -> None:
    """Refuse negative numbers and those beyond 64 bits, whatever the field."""
    for field in body.__struct_fields__:
        value = getattr(body, field)
        signed = field == "priority"
        if type(value) is int and not signed and not 0 <= value < 2**64:
            raise invalid(f"{field} is {value}; it must be an unsigned 64-bit number")


def filter_of(text: msgspec.Raw) -> Filter | None:
    """The filter in a body; absent and null are the same."""
    return None if text is _ABSENT else compile_filter(text)


def start_of(start: StartWord | StartBody) -> Start:
    """Where a consumer is put."""
    if not isinstance(start, StartBody):
        return Start(start)
    if (start.seq is None) == (start.time_ms is None):
        raise invalid("a position has either seq or time_ms")
    check_counts(start)
    return Start(seq=start.seq, time_ms=start.time_ms)
