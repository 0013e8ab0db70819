"""The operations of the contract as descriptions: what is sent, what the answer is, what may be repeated.

Every function here is a method of `Client` and, to be awaited, of `AsyncClient`.

Owns paths, bodies and the rule of repeating; sends nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlencode

import msgspec

from everlog import api_types as shapes
from everlog.api_types import NewRecord, Predicate, TopicSettings
from everlog.client.arguments import checked_records, checked_settings
from everlog.client.encoding import encode
from everlog.client.wire import router_path, topic_path

T = TypeVar("T")
Nodes = str | Sequence[str]
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


class Call(Generic[T]):
    """A request and how its answer is read.

    `may_repeat`: to send it again when nobody knows whether it was carried out does no harm. `wait_s` is what
    the server may take by plan.
    """

    __slots__ = ("body", "kind", "may_repeat", "method", "path", "wait_s")

    def __init__(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: bytes | None = None,
        *,
        may_repeat: bool = True,
        wait_s: float = 0.0,
    ) -> None:
        self.method = method
        self.path = path
        self.kind = kind
        self.body = body
        self.may_repeat = may_repeat
        self.wait_s = wait_s

    def read(self, body: bytes) -> T:
        """The answer as a value; raises msgspec.MsgspecError if it is none."""
        decoder = _decoders.get(self.kind)
        if decoder is None:
            decoder = _decoders[self.kind] = msgspec.json.Decoder(self.kind)
        answer: T = decoder.decode(body)
        return answer


def _given(**fields: object) -> bytes:
    """A body of the fields that were given."""
    return encode({name: value for name, value in fields.items() if value is not None})


def _query(**fields: str | int | bool | None) -> str:
    words = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in fields.items()
        if value is not None
    }
    return f"?{urlencode(words)}" if words else ""


# --- Topics ----------------------------------------------------------------------------------------------


def put_topic(topic: str, config: TopicSettings | None = None) -> Call[shapes.TopicPut]:
    """Create a topic, or replace all settings of an existing one."""
    return Call("PUT", topic_path(topic), shapes.TopicPut, encode(checked_settings(config or {})))


def topic(topic: str, *, touch: bool = True) -> Call[shapes.TopicState]:
    """Look at a topic; `touch=False` does not count as a use."""
    return Call("GET", topic_path(topic) + _query(touch=touch), shapes.TopicState)


def account(topic: str, from_seq: int = 0, to_seq: int | None = None) -> Call[shapes.TopicAccount]:
    """What has become of the seqs of a topic, behind `from_seq` and up to `to_seq` or a million on."""
    query = _query(from_seq=from_seq, to_seq=to_seq)
    return Call("GET", f"{topic_path(topic)}/account{query}", shapes.TopicAccount)


def topics_page(
    prefix: str | None = None, *, page_size: int = 1000, cursor: str | None = None
) -> Call[shapes.TopicPage]:
    """One page of the list of topics; `topics` gives them all."""
    query = _query(prefix=prefix, page_size=page_size, cursor=cursor)
    return Call("GET", f"/topics{query}", shapes.TopicPage)


def delete_topic(topic: str, *, if_empty: bool = False) -> Call[shapes.TopicDeleted]:
    """Delete a topic with everything in it, or only if nothing is in it."""
    return Call("DELETE", topic_path(topic) + _query(if_empty=if_empty), shapes.TopicDeleted)


def append(
    topic: str,
    data: Any,
    *,
    tag: str | None = None,
    node: str | None = None,
    meta: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    config: TopicSettings | None = None,
) -> Call[shapes.Appended]:
    """Append one record. Without a key of yours it gets one, so that trying again never appends it twice."""
    record = NewRecord(data, tag, node, meta)
    return append_many(topic, [record], idempotency_key=idempotency_key, create=create, config=config)


def append_many(
    topic: str,
    records: Iterable[NewRecord],
    *,
    node: str | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    config: TopicSettings | None = None,
    return_seqs: bool = False,
) -> Call[shapes.Appended]:
    """Append up to 10000 records, all or none; they get seqs without a gap."""
    body = _given(
        records=checked_records(records),
        node=node,
        idempotency_key=idempotency_key or new_key(),
        create=create,
        config=None if config is None else checked_settings(config),
    )
    return Call("POST", topic_path(topic) + _query(return_seqs=return_seqs), shapes.Appended, body)


def new_key() -> str:
    """An idempotency key that nobody else has."""
    return uuid.uuid4().hex


def diff(
    topic: str,
    from_seq: int = 0,
    *,
    limit: int = 256,
    node: Nodes | None = None,
    include_tags: bool = False,
    include_meta: bool = True,
    wait_ms: int = 0,
    max_batch_bytes: int = 0,
) -> Call[shapes.Diff]:
    """Read what is behind `from_seq`, waiting up to `wait_ms` for news if there is nothing."""
    body = _given(
        from_seq=from_seq,
        limit=limit,
        node=node,
        include_tags=include_tags,
        include_meta=include_meta,
        wait_ms=wait_ms,
        max_batch_bytes=max_batch_bytes,
    )
    return Call("POST", topic_path(topic, "/diff"), shapes.Diff, body, wait_s=wait_ms / 1000)


def delete_records(
    topic: str, *, before_seq: int | None = None, match: Predicate | None = None
) -> Call[shapes.RecordsDeleted]:
    """Delete what is below a seq, what has a tag, or what is both."""
    body = _given(before_seq=before_seq, match=match)
    # Repeated, a match alone would also remove what was appended in between.
    is_bounded = before_seq is not None
    return Call("POST", topic_path(topic, "/delete"), shapes.RecordsDeleted, body, may_repeat=is_bounded)


# --- Routers ---------------------------------------------------------------------------------------------


def put_router(
    router: str,
    source: str,
    dest: str,
    *,
    filter: Predicate | None = None,
    preserve_node: bool = True,
    preserve_tag: bool = True,
    create_dest: bool = True,
    allow_cycle: bool = False,
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once",
) -> Call[shapes.RouterPut]:
    """Copy what is appended to `source` from now on to `dest`."""
    body = _given(
        source=source,
        dest=dest,
        filter=filter,
        preserve_node=preserve_node,
        preserve_tag=preserve_tag,
        create_dest=create_dest,
        allow_cycle=allow_cycle,
        guarantee=guarantee,
    )
    return Call("PUT", router_path(router), shapes.RouterPut, body)


def router(router: str) -> Call[shapes.RouterState]:
    """Look at a router."""
    return Call("GET", router_path(router), shapes.RouterState)


def routers_page(
    prefix: str | None = None,
    *,
    source: str | None = None,
    dest: str | None = None,
    page_size: int = 1000,
    cursor: str | None = None,
) -> Call[shapes.RouterPage]:
    """One page of the list of routers; `routers` gives them all."""
    query = _query(prefix=prefix, source=source, dest=dest, page_size=page_size, cursor=cursor)
    return Call("GET", f"/routers{query}", shapes.RouterPage)


def delete_router(router: str) -> Call[shapes.RouterDeleted]:
    """Stop a router; what it copied stays."""
    return Call("DELETE", router_path(router), shapes.RouterDeleted)


# --- Queues ----------------------------------------------------------------------------------------------


def claim(queue: str, node: str, max: int = 1, *, lease_ms: int | None = None) -> Call[shapes.Claimed]:
    """Lease up to `max` jobs for this worker.

    If the answer is lost the jobs stay leased until their leases end, so this is not repeated after that.
    """
    body = _given(node=node, max=max, lease_ms=lease_ms)
    return Call("POST", topic_path(queue, "/claim"), shapes.Claimed, body, may_repeat=False)


def ack(
    queue: str, node: str, seqs: Sequence[int], *, lease_ids: Sequence[str] | None = None
) -> Call[shapes.Acked]:
    """Delete jobs that are done. After a lost answer, what was done by the first try is told as skipped."""
    body = _given(node=node, seqs=seqs, lease_ids=lease_ids)
    return Call("POST", topic_path(queue, "/ack"), shapes.Acked, body)


def nack(
    queue: str,
    node: str,
    seqs: Sequence[int],
    *,
    delay_ms: int = 0,
    lease_ids: Sequence[str] | None = None,
) -> Call[shapes.Nacked]:
    """Give jobs back, claimable after `delay_ms`."""
    body = _given(node=node, seqs=seqs, delay_ms=delay_ms, lease_ids=lease_ids)
    # Without lease ids a second one could give back a job that this worker has claimed again.
    is_fenced = lease_ids is not None
    return Call("POST", topic_path(queue, "/nack"), shapes.Nacked, body, may_repeat=is_fenced)


def extend(
    queue: str,
    node: str,
    seqs: Sequence[int],
    lease_ms: int,
    *,
    lease_ids: Sequence[str] | None = None,
) -> Call[shapes.Extended]:
    """Let leases end `lease_ms` from now instead."""
    body = _given(node=node, seqs=seqs, lease_ms=lease_ms, lease_ids=lease_ids)
    return Call("POST", topic_path(queue, "/extend"), shapes.Extended, body)


# --- Watching and probes ---------------------------------------------------------------------------------


def start_watch(
    topics: Mapping[str, Mapping[str, object]], *, lenient: bool = False, **options: object
) -> Call[shapes.WatchSession]:
    """Open a session; `watch` does this and reads its stream."""
    body = _given(topics=topics, **options)
    return Call("POST", "/watch" + _query(lenient=lenient), shapes.WatchSession, body)


def health() -> Call[shapes.Health]:
    """Whether the server runs."""
    return Call("GET", "/health", shapes.Health)


def ready() -> Call[shapes.Ready]:
    """Whether the server serves; while it does not, this is a 503 that is tried again until the deadline."""
    return Call("GET", "/ready", shapes.Ready)


def metrics() -> Call[dict[str, Any]]:
    """The counters of the server."""
    return Call("GET", "/metrics", dict[str, Any])
