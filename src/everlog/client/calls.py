"""The requests of the API as descriptions: what is sent, what the answer is, what may be repeated.

Every function here is a method of `Client` and, awaited, of `AsyncClient`. Owns paths, bodies and the rule
which requests may be repeated; sends nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

from everlog import api_types, job_types
from everlog.api_types import NewRecord, Predicate, TopicSettings
from everlog.client.arguments import Nodes, Position, checked_position, checked_records, checked_settings
from everlog.client.encoding import encode
from everlog.client.flows import Call, ClientContext, Flow, Steps
from everlog.client.wire import consumer_path, router_path, schedule_path, topic_path
from everlog.errors import InvalidRequest
from everlog.job_types import JobError, ScheduleState

_Page = TypeVar(
    "_Page", api_types.TopicPage, api_types.RouterPage, api_types.ConsumerPage, job_types.SchedulePage
)
_Entry = TypeVar("_Entry")


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


def _all_pages(
    page_call: Callable[[str | None], Call[_Page]], entries_of: Callable[[_Page], list[_Entry]]
) -> Steps[list[_Entry]]:
    """Page after page of a list; `page_call` describes the page at a cursor."""

    def steps(context: ClientContext) -> Flow[list[_Entry]]:
        entries: list[_Entry] = []
        cursor: str | None = None
        while True:
            page = yield from page_call(cursor).steps(context)
            entries += entries_of(page)
            cursor = page.next_cursor
            if cursor is None:
                return entries

    return Steps(steps)


# --- Topics ----------------------------------------------------------------------------------------------


def put_topic(topic: str, config: TopicSettings | None = None) -> Call[api_types.TopicPut]:
    """Create a topic, or replace all settings of an existing one."""
    return Call("PUT", topic_path(topic), api_types.TopicPut, encode(checked_settings(config or {})))


def topic(topic: str, *, touch: bool = True) -> Call[api_types.TopicState]:
    """The state of a topic; with `touch=False` the request does not count as a use of it."""
    return Call("GET", topic_path(topic) + _query(touch=touch), api_types.TopicState)


def account(topic: str, from_seq: int = 0, to_seq: int | None = None) -> Call[api_types.TopicAccount]:
    """What became of the seqs of a topic after `from_seq`, up to `to_seq` or a million of them."""
    query = _query(from_seq=from_seq, to_seq=to_seq)
    return Call("GET", f"{topic_path(topic)}/account{query}", api_types.TopicAccount)


def topics_page(
    prefix: str | None = None, *, page_size: int = 1000, cursor: str | None = None
) -> Call[api_types.TopicPage]:
    """One page of the list of topics; `topics` gives them all."""
    query = _query(prefix=prefix, page_size=page_size, cursor=cursor)
    return Call("GET", f"/topics{query}", api_types.TopicPage)


def topics(prefix: str | None = None) -> Steps[list[api_types.TopicSummary]]:
    """All topics, or those whose names begin with `prefix`."""
    return _all_pages(lambda cursor: topics_page(prefix, cursor=cursor), lambda page: page.topics)


def delete_topic(topic: str, *, if_empty: bool = False) -> Call[api_types.TopicDeleted]:
    """Delete a topic and its records; with `if_empty`, only if it has none."""
    return Call("DELETE", topic_path(topic) + _query(if_empty=if_empty), api_types.TopicDeleted)


def append(  # noqa: PLR0913
    topic: str,
    data: Any,
    *,
    tag: str | None = None,
    node: str | None = None,
    meta: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    config: TopicSettings | None = None,
    delay_ms: int | None = None,
    run_at: int | None = None,
    priority: int | None = None,
    unique_key: str | None = None,
    concurrency_key: str | None = None,
    max_deliveries: int | None = None,
) -> Call[api_types.Appended]:
    """Append one record. Without `idempotency_key` it gets a new one: a retry never appends it twice.

    The arguments from `delay_ms` on are for jobs, in a topic of type `queue`.
    """
    record = NewRecord(
        data,
        tag,
        node,
        meta,
        delay_ms=delay_ms,
        run_at=run_at,
        priority=priority,
        unique_key=unique_key,
        concurrency_key=concurrency_key,
        max_deliveries=max_deliveries,
    )
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
) -> Call[api_types.Appended]:
    """Append up to 10000 records, all or none; they get seqs without a gap."""
    body = _given(
        records=checked_records(records),
        node=node,
        idempotency_key=new_key() if idempotency_key is None else idempotency_key,
        create=create,
        config=None if config is None else checked_settings(config),
    )
    return Call("POST", topic_path(topic) + _query(return_seqs=return_seqs), api_types.Appended, body)


def new_key() -> str:
    """A new idempotency key."""
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
    from_time_ms: int | None = None,
    filter: Sequence[Any] | None = None,
) -> Call[api_types.Diff]:
    """Read the records after `from_seq`; if there are none, wait for them for up to `wait_ms`.

    With `from_time_ms` reading begins at the first record of that time. Records that do not match `filter`,
    an expression like `["data.price", "Gt", 100]`, are passed over.
    """
    if from_time_ms is not None and from_seq:
        raise InvalidRequest(f"both from_seq {from_seq} and from_time_ms {from_time_ms}; give one of them")
    body = _given(
        from_seq=from_seq if from_time_ms is None else None,
        from_time_ms=from_time_ms,
        filter=filter,
        limit=limit,
        node=node,
        include_tags=include_tags,
        include_meta=include_meta,
        wait_ms=wait_ms,
        max_batch_bytes=max_batch_bytes,
    )
    return Call("POST", topic_path(topic, "/diff"), api_types.Diff, body, wait_s=wait_ms / 1000)


def latest(
    topic: str,
    tags: Sequence[str] = (),
    *,
    prefix: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[api_types.Latest]:
    """The newest record of each of these tags, or of each tag that begins with `prefix`; sorted by tag."""
    fields = [("tag", tag) for tag in ([tags] if isinstance(tags, str) else tags)]
    given = {"prefix": prefix, "limit": limit, "cursor": cursor}
    words = [*fields, *((name, str(value)) for name, value in given.items() if value is not None)]
    return Call("GET", topic_path(topic, f"/latest?{urlencode(words)}"), api_types.Latest)


def histogram(
    topic: str, from_ms: int | None = None, to_ms: int | None = None, *, buckets: int = 60
) -> Call[api_types.Histogram]:
    """How many live records there are by time, from `from_ms` up to before `to_ms`."""
    query = _query(from_ms=from_ms, to_ms=to_ms, buckets=buckets)
    return Call("GET", topic_path(topic, f"/histogram{query}"), api_types.Histogram)


def delete_records(
    topic: str, *, before_seq: int | None = None, match: Predicate | None = None, dry_run: bool = False
) -> Call[api_types.RecordsDeleted]:
    """Delete the records below a seq, those with a matching tag, or those that are both.

    With `dry_run` only say how many these are.
    """
    body = _given(before_seq=before_seq, match=match, dry_run=dry_run)
    # Repeated, a match alone would also delete records that were appended in between.
    may_repeat = dry_run or before_seq is not None
    return Call("POST", topic_path(topic, "/delete"), api_types.RecordsDeleted, body, may_repeat=may_repeat)


# --- Routers ---------------------------------------------------------------------------------------------


def put_router(
    router: str,
    source: str,
    dest: str,
    *,
    filter: Predicate | Sequence[Any] | None = None,
    preserve_node: bool = True,
    preserve_tag: bool = True,
    create_dest: bool = True,
    allow_cycle: bool = False,
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once",
) -> Call[api_types.RouterPut]:
    """Copy the records that are appended to `source` from now on to `dest`."""
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
    return Call("PUT", router_path(router), api_types.RouterPut, body)


def router(router: str) -> Call[api_types.RouterState]:
    """The state of a router."""
    return Call("GET", router_path(router), api_types.RouterState)


def routers_page(
    prefix: str | None = None,
    *,
    source: str | None = None,
    dest: str | None = None,
    page_size: int = 1000,
    cursor: str | None = None,
) -> Call[api_types.RouterPage]:
    """One page of the list of routers; `routers` gives them all."""
    query = _query(prefix=prefix, source=source, dest=dest, page_size=page_size, cursor=cursor)
    return Call("GET", f"/routers{query}", api_types.RouterPage)


def routers(
    prefix: str | None = None, *, source: str | None = None, dest: str | None = None
) -> Steps[list[api_types.RouterSummary]]:
    """All routers, or those with this prefix, source or destination."""
    return _all_pages(
        lambda cursor: routers_page(prefix, source=source, dest=dest, cursor=cursor),
        lambda page: page.routers,
    )


def delete_router(router: str) -> Call[api_types.RouterDeleted]:
    """Delete a router; the copies stay."""
    return Call("DELETE", router_path(router), api_types.RouterDeleted)


# --- Job queues ------------------------------------------------------------------------------------------


def claim(queue: str, node: str, max: int = 1, *, lease_ms: int | None = None) -> Call[job_types.Claimed]:
    """Lease up to `max` jobs for this worker.

    Not repeated after a lost answer: jobs of the first request stay leased until their leases end.
    """
    body = _given(node=node, max=max, lease_ms=lease_ms)
    return Call("POST", topic_path(queue, "/claim"), job_types.Claimed, body, may_repeat=False)


def ack(
    queue: str, node: str, seqs: Sequence[int], *, lease_ids: Sequence[str] | None = None
) -> Call[job_types.Acked]:
    """Delete finished jobs. If an answer is lost and the request repeated, they are reported as skipped."""
    body = _given(node=node, seqs=seqs, lease_ids=lease_ids)
    return Call("POST", topic_path(queue, "/ack"), job_types.Acked, body)


def nack(
    queue: str,
    node: str,
    seqs: Sequence[int],
    *,
    delay_ms: int | None = None,
    lease_ids: Sequence[str] | None = None,
    error: JobError | None = None,
) -> Call[job_types.Nacked]:
    """Return jobs to the job queue; they can be claimed again after `delay_ms`, or as its `retry` says.

    `error` says why, and is kept with the attempt.
    """
    body = _given(node=node, seqs=seqs, delay_ms=delay_ms, lease_ids=lease_ids, error=error)
    # Without lease ids a repeat could return a job that this worker has claimed again.
    is_fenced = lease_ids is not None
    return Call("POST", topic_path(queue, "/nack"), job_types.Nacked, body, may_repeat=is_fenced)


def extend(
    queue: str, node: str, seqs: Sequence[int], lease_ms: int, *, lease_ids: Sequence[str] | None = None
) -> Call[job_types.Extended]:
    """Extend leases: they end `lease_ms` from now."""
    body = _given(node=node, seqs=seqs, lease_ms=lease_ms, lease_ids=lease_ids)
    return Call("POST", topic_path(queue, "/extend"), job_types.Extended, body)


# --- Consumers -------------------------------------------------------------------------------------------


def put_consumer(
    topic: str,
    consumer: str,
    *,
    start: Position = "earliest",
    hold: bool = False,
    hold_max_ms: int | None = None,
    filter: Sequence[Any] | None = None,
    node: Nodes | None = None,
) -> Call[api_types.ConsumerState]:
    """Create a consumer at `start`, or replace all but the cursor and the owner of an existing one."""
    body = _given(start=checked_position(start), hold=hold, hold_max_ms=hold_max_ms, filter=filter, node=node)
    return Call("PUT", consumer_path(topic, consumer), api_types.ConsumerState, body)


def consumer(topic: str, consumer: str) -> Call[api_types.ConsumerState]:
    """The state of a consumer: where it is, and how far behind in records and in time."""
    return Call("GET", consumer_path(topic, consumer), api_types.ConsumerState)


def consumers_page(
    topic: str, *, page_size: int = 1000, cursor: str | None = None
) -> Call[api_types.ConsumerPage]:
    """One page of the consumers of a topic; `consumers` gives them all."""
    query = _query(page_size=page_size, cursor=cursor)
    return Call("GET", topic_path(topic, f"/consumers{query}"), api_types.ConsumerPage)


def consumers(topic: str) -> Steps[list[api_types.ConsumerState]]:
    """All consumers of a topic."""
    return _all_pages(lambda cursor: consumers_page(topic, cursor=cursor), lambda page: page.consumers)


def delete_consumer(topic: str, consumer: str) -> Call[api_types.ConsumerDeleted]:
    """Delete a consumer; an absent one is no error."""
    return Call("DELETE", consumer_path(topic, consumer), api_types.ConsumerDeleted)


def read_consumer(
    topic: str,
    consumer: str,
    *,
    limit: int = 256,
    max_bytes: int = 0,
    wait_ms: int = 0,
    commit: int | None = None,
    owner_epoch: int | None = None,
    include_tags: bool = True,
    include_meta: bool = True,
) -> Call[api_types.ConsumerDiff]:
    """Read behind the cursor, which stays; `commit` is a seq to commit before."""
    body = _given(
        limit=limit,
        max_bytes=max_bytes,
        wait_ms=wait_ms,
        commit=commit,
        owner_epoch=owner_epoch,
        include_tags=include_tags,
        include_meta=include_meta,
    )
    path = consumer_path(topic, consumer, "/read")
    return Call("POST", path, api_types.ConsumerDiff, body, wait_s=wait_ms / 1000)


def commit_consumer(
    topic: str, consumer: str, seq: int, *, owner_epoch: int | None = None
) -> Call[api_types.ConsumerState]:
    """Note that everything up to `seq` is processed."""
    body = _given(seq=seq, owner_epoch=owner_epoch)
    return Call("POST", consumer_path(topic, consumer, "/commit"), api_types.ConsumerState, body)


def acquire_consumer(
    topic: str, consumer: str, owner: str, *, ttl_ms: int | None = None
) -> Call[api_types.ConsumerAcquired]:
    """Become the owner of a consumer: reads and commits with an earlier epoch are refused from now on."""
    body = _given(owner=owner, ttl_ms=ttl_ms)
    return Call("POST", consumer_path(topic, consumer, "/acquire"), api_types.ConsumerAcquired, body)


def reset_consumer(
    topic: str, consumer: str, to: Position, *, dry_run: bool = False
) -> Call[api_types.ConsumerReset]:
    """Put the cursor anywhere, forward or back; with `dry_run` only say where and over how many records."""
    body = _given(to=checked_position(to), dry_run=dry_run)
    return Call("POST", consumer_path(topic, consumer, "/reset"), api_types.ConsumerReset, body)


Selection = Sequence[Any]
"""A filter: `["tag", "Eq", "eu"]` and the like."""


def jobs_page(
    queue: str,
    *,
    state: Literal["ready", "delayed", "leased", "failed"] | None = None,
    tag: str | None = None,
    key: str | None = None,
    filter: Selection | None = None,
    limit: int = 100,
    cursor: str | None = None,
    include_data: bool = False,
) -> Call[job_types.JobPage]:
    """One page of the jobs of a job queue by seq, and how many there are in each state."""
    query = _query(
        state=state,
        tag=tag,
        key=key,
        filter=None if filter is None else encode(filter).decode(),
        limit=limit,
        cursor=cursor,
        include="data" if include_data else None,
    )
    return Call("GET", topic_path(queue, "/jobs") + query, job_types.JobPage)


def job(queue: str, seq: int) -> Call[job_types.JobShown]:
    """One job with its data and the attempts at it, without claiming it."""
    return Call("GET", topic_path(queue, f"/jobs/{seq}"), job_types.JobShown)


def cancel_jobs(
    queue: str, seqs: Sequence[int] | None = None, *, filter: Selection | None = None
) -> Call[job_types.JobsCancelled]:
    """Delete jobs; a leased one when its lease ends, unless it is acknowledged."""
    body = _given(seqs=seqs, filter=filter)
    return Call("POST", topic_path(queue, "/jobs/cancel"), job_types.JobsCancelled, body)


def retry_jobs(
    queue: str, seqs: Sequence[int] | None = None, *, filter: Selection | None = None
) -> Call[job_types.JobsRetried]:
    """Let delayed jobs be claimed now."""
    body = _given(seqs=seqs, filter=filter)
    return Call("POST", topic_path(queue, "/jobs/retry"), job_types.JobsRetried, body)


def pause_queue(queue: str) -> Call[job_types.QueuePaused]:
    """Let claims and work streams of a job queue give nothing until `resume_queue`."""
    return Call("POST", topic_path(queue, "/pause"), job_types.QueuePaused, _given())


def resume_queue(queue: str) -> Call[job_types.QueuePaused]:
    """Let claims and work streams of a job queue give jobs again."""
    return Call("POST", topic_path(queue, "/resume"), job_types.QueuePaused, _given())


def purge_jobs(
    queue: str, *, filter: Selection | None = None, all: bool = False, dry_run: bool = False
) -> Call[job_types.JobsPurged]:
    """Delete the jobs that pass a filter, or all of them, leased ones too."""
    body = _given(filter=filter, all=all, dry_run=dry_run)
    return Call("POST", topic_path(queue, "/purge"), job_types.JobsPurged, body, may_repeat=False)


def redrive(
    topic: str,
    *,
    to: str | None = None,
    filter: Selection | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> Call[job_types.JobsRedriven]:
    """Bring dead letters back to their job queues, or all to one; each at most once."""
    body = _given(to=to, filter=filter, limit=limit, dry_run=dry_run)
    return Call("POST", topic_path(topic, "/redrive"), job_types.JobsRedriven, body, wait_s=30)


# --- Schedules -------------------------------------------------------------------------------------------


def put_schedule(
    schedule: str,
    topic: str,
    cron: str,
    record: NewRecord,
    *,
    timezone: str = "UTC",
    catch_up: Literal["none", "one", "all"] = "one",
    paused: bool = False,
) -> Call[job_types.ScheduleShown]:
    """Append a record to a topic whenever the cron expression says so."""
    (checked,) = checked_records([record])
    body = _given(topic=topic, cron=cron, record=checked, timezone=timezone, catch_up=catch_up, paused=paused)
    return Call("PUT", schedule_path(schedule), job_types.ScheduleShown, body)


def schedule(schedule: str) -> Call[job_types.ScheduleShown]:
    """The state of a schedule: when it fires next, and what it has done."""
    return Call("GET", schedule_path(schedule), job_types.ScheduleShown)


def schedules_page(
    prefix: str | None = None, *, page_size: int = 1000, cursor: str | None = None
) -> Call[job_types.SchedulePage]:
    """One page of the list of schedules; `schedules` gives them all."""
    query = _query(prefix=prefix, page_size=page_size, cursor=cursor)
    return Call("GET", f"/schedules{query}", job_types.SchedulePage)


def schedules(prefix: str | None = None) -> Steps[list[ScheduleState]]:
    """All schedules, or those with this prefix."""
    return _all_pages(lambda cursor: schedules_page(prefix, cursor=cursor), lambda page: page.schedules)


def delete_schedule(schedule: str) -> Call[job_types.ScheduleDeleted]:
    """Delete a schedule; what it has appended stays."""
    return Call("DELETE", schedule_path(schedule), job_types.ScheduleDeleted)


# --- Watching and probes ---------------------------------------------------------------------------------


def start_watch(
    topics: Mapping[str, Mapping[str, object]], *, lenient: bool = False, **options: object
) -> Call[api_types.WatchSession]:
    """Create a watch session; `watch` does this and reads its stream."""
    body = _given(topics=topics, **options)
    return Call("POST", "/watch" + _query(lenient=lenient), api_types.WatchSession, body)


def health() -> Call[api_types.Health]:
    """Whether the server runs."""
    return Call("GET", "/health", api_types.Health)


def ready() -> Call[api_types.Ready]:
    """Whether recovery is over; until then the server answers 503, which is retried until the deadline."""
    return Call("GET", "/ready", api_types.Ready)


def metrics() -> Call[dict[str, Any]]:
    """The counters of the server."""
    return Call("GET", "/metrics", dict[str, Any], headers=b"Accept: application/json\r\n")
