"""What answers look like, field by field.

Owns shapes for the documents only: answers are written as text where they arise, and tests hold the answers
of a real server against these. A field that may be missing is `UNSET` here.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from everlog.api_types import Guarantee, TopicType


class ErrorFields(Struct):
    """What went wrong."""

    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET


class ErrorAnswer(Struct):
    """The body of every answer that is no success."""

    error: ErrorFields


class Performance(Struct):
    """How long the server took; additions may come at any time."""

    server_total_ms: float
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    records_scanned: int | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET
    cold_segments_read: int | UnsetType = UNSET


class StoredConfig(Struct):
    """The settings of a topic as they are stored; filled in from the request's."""


class Record(Struct):
    """A record as a reader gets it."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: Any
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    meta: dict[str, Any] | UnsetType = UNSET


class StreamedRecord(Struct):
    """A record in a stream; without `data` if that was not wanted."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: Any = UNSET
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    meta: dict[str, Any] | UnsetType = UNSET


GapReason = Literal["cap", "ttl", "mixed", "source_trim", "recreated"]
StreamGapReason = Literal["cap", "ttl", "mixed", "source_trim", "recreated", "from_seq_too_old"]


class Tombstone(Struct):
    """Records that were lost before they were read."""

    gap_from: int
    gap_to: int
    reason: GapReason
    missed_estimate: int
    earliest_seq: int
    head_seq: int


# --- Topics ----------------------------------------------------------------------------------------------


class TopicPutAnswer(Struct):
    """A topic was created or its settings were replaced."""

    topic: str
    created: bool
    config: StoredConfig
    performance: Performance


class QueueCounts(Struct):
    """The jobs of a queue."""

    ready: int
    in_flight: int
    dead_lettered: int


class TopicAnswer(Struct):
    """The state of a topic."""

    topic: str
    type: TopicType
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: StoredConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    performance: Performance
    queue: QueueCounts | UnsetType = UNSET


class AccountAnswer(Struct):
    """What has become of a range of seqs; the counts add up to it."""

    topic: str
    from_seq: int
    to_seq: int
    live: int
    deleted: int
    evicted: int
    expired: int
    holes: int
    evict_floor: int
    head_seq: int
    performance: Performance


class TopicListEntry(Struct):
    """One topic of a list."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int


class TopicListAnswer(Struct):
    """One page of topics, sorted by name."""

    topics: list[TopicListEntry]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class TopicDeletedAnswer(Struct):
    """A topic is gone, or was not there."""

    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


class AppendAnswer(Struct):
    """Records were appended."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    performance: Performance
    seqs: list[int] | UnsetType = UNSET


class DiffAnswer(Struct):
    """Records from a cursor on."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    performance: Performance


class RecordsDeletedAnswer(Struct):
    """Records were deleted."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    performance: Performance


# --- Routers ---------------------------------------------------------------------------------------------


class RouterFields(Struct):
    """A router as it is stored."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: Guarantee
    performance: Performance


class RouterPutAnswer(RouterFields):
    """A router was created, or its settings were replaced."""

    created: bool


class RouterAnswer(RouterFields):
    """The state of a router."""

    forwarded_total: int


class RouterListEntry(Struct):
    """One router of a list."""

    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: int


class RouterListAnswer(Struct):
    """One page of routers, sorted by name."""

    routers: list[RouterListEntry]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class RouterDeletedAnswer(Struct):
    """A router is gone, or was not there."""

    router: str
    deleted: bool
    performance: Performance


# --- Queues ----------------------------------------------------------------------------------------------


class Job(Struct):
    """A leased job."""

    seq: int = msgspec.field(name="$seq")
    lease_id: str
    deadline: int
    ts: int = msgspec.field(name="$ts")
    deliveries: int
    data: Any
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    meta: dict[str, Any] | UnsetType = UNSET


class ClaimAnswer(Struct):
    """Jobs were leased."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int
    performance: Performance


class AckAnswer(Struct):
    """Jobs are done and deleted."""

    topic: str
    acked: list[int]
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class NackAnswer(Struct):
    """Jobs were given back."""

    topic: str
    nacked: list[int]
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class ExtendAnswer(Struct):
    """Leases were extended."""

    topic: str
    extended: list[int]
    skipped: list[int]
    deadlines: dict[str, int]
    performance: Performance


# --- Watch -----------------------------------------------------------------------------------------------


class WatchedTopic(Struct):
    """Where reading a topic begins."""

    from_seq: int
    head_seq: int
    earliest_seq: int


class WatchAnswer(Struct):
    """A session was made."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    performance: Performance


# --- Probes ----------------------------------------------------------------------------------------------


class HealthAnswer(Struct):
    """The process is alive."""

    status: Literal["ok"]
    version: str
    uptime_ms: int


class ReadyAnswer(Struct):
    """Recovery is over."""

    status: Literal["ready"]
    wal_replay_complete: Literal[True]
    topics: int


class WalCounts(Struct):
    """What the log counts."""

    fsyncs: int
    frames: int
    batches: int
    bytes_written: int
    rotations: int
    queue_depth: int
    queue_depth_peak: int
    submit_full_total: int
    read_only: int
    fsync_count: int
    fsync_micros_total: int


class MetricsAnswer(Struct):
    """What the server counts."""

    topics: int
    topics_ephemeral: int
    topics_memory: int
    topics_disk: int
    topics_fsync: int
    routers: int
    records_live: int
    bytes_live: int
    queue_topics: int
    queue_leases_in_flight: int
    sse_connections: int
    watch_sessions: int
    ready: bool
    replay_progress: float
    uptime_ms: int
    wal: WalCounts
