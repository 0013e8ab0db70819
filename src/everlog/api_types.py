"""What the HTTP API sends and takes, as types: one definition for server, clients, commands and Spark.

Owns names, fields and their order; computes nothing. A field of an answer that has a default may be absent on
the wire. Clients ignore unknown fields of answers. The documents of the API are generated from these
classes (`tools.reference_pages`), which adds the meaning of each field.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from everlog.answer_types import Answer
from everlog.job_types import JobMembers, RateLimit, Retry
from everlog.notebook import html_table

if TYPE_CHECKING:
    import pandas
    import polars

Predicate = str | tuple[Literal["tag"], Literal["Eq", "Glob"], str]
"""Which tags are meant: `"eu"`, `"eu*"`, or `("tag", "Eq", "eu")` and `("tag", "Glob", "eu*")`."""

GapReason = Literal["cap", "ttl", "mixed", "source_trim", "corrupt", "recreated", "from_seq_too_old"]


class ErrorFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong."""

    code: str
    message: str = ""
    detail: dict[str, Any] | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorFields


# --- Records ---------------------------------------------------------------------------------------------


class NewRecord(JobMembers, omit_defaults=True):
    """A record to append."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None


_RECORD_NAMES = {"seq": "$seq", "ts_ms": "$ts", "node": "$node", "tag": "$tag"}


class Record(msgspec.Struct, frozen=True, repr_omit_defaults=True, rename=_RECORD_NAMES):
    """A record as it is read. `tag` is present only if tags were requested, `data` unless it was left out."""

    seq: int
    ts_ms: int
    data: Any = None
    node: str | None = None
    tag: str | None = None
    meta: dict[str, Any] | None = None


class RawRecord(msgspec.Struct, omit_defaults=True, rename=_RECORD_NAMES):
    """A record whose data and meta stay the JSON text that the server sent; the text is empty if absent."""

    seq: int
    ts_ms: int
    # Not `Raw | None`: msgspec then decodes nothing but null.
    data: msgspec.Raw = msgspec.Raw(b"")
    node: str | None = None
    tag: str | None = None
    meta: msgspec.Raw = msgspec.Raw(b"")


class Tombstone(msgspec.Struct, frozen=True):
    """Records from `gap_from` to `gap_to`, both included, are gone and were not read.

    The reasons `cap`, `ttl`, `mixed`, `source_trim` and `corrupt` say why; with `corrupt` the disk has lost
    them, and some of these seqs may never have been assigned. `from_seq_too_old` comes with the first read of
    a watch; `recreated` means that the topic is another one of that name, which is read from its start.
    """

    gap_from: int
    gap_to: int
    reason: GapReason
    earliest_seq: int
    head_seq: int
    missed_estimate: int = 0
    topic: str = ""

    @property
    def resume(self) -> int:
        """The seq to start with again, once the gap has been dealt with."""
        return self.earliest_seq


class Appended(Answer, frozen=True):
    """Records were appended; `deduped` if an earlier request with the same key had done it.

    If every job was there already by its unique key, `count` is 0 and there is no first and no last seq.
    """

    topic: str
    head_seq: int
    count: int
    created: bool
    deduped: bool
    first_seq: int = 0
    last_seq: int = 0
    seqs: list[int] | None = None
    unique_hits: int = 0


def record_columns(records: Iterable[Record]) -> dict[str, list[Any]]:
    """Records as columns of a data frame: seq, time (UTC), node, tag, data, meta."""
    rows = list(records)
    return {
        "seq": [record.seq for record in rows],
        "time": [datetime.fromtimestamp(record.ts_ms / 1000, UTC) for record in rows],
        "node": [record.node for record in rows],
        "tag": [record.tag for record in rows],
        "data": [record.data for record in rows],
        "meta": [record.meta for record in rows],
    }


class Framed:
    """What has records, and gives them as a data frame."""

    __slots__ = ()
    if TYPE_CHECKING:

        @property
        def records(self) -> list[Record]:
            """What is in the frame."""

    def to_pandas(self) -> pandas.DataFrame:
        """The records as a pandas DataFrame; pandas has to be installed."""
        import pandas

        return pandas.DataFrame(record_columns(self.records))

    def to_polars(self) -> polars.DataFrame:
        """The records as a polars DataFrame; polars has to be installed.

        A column of polars has one type and JSON any, so `data` and `meta` are JSON text.
        """
        import polars

        columns = record_columns(self.records)
        texts = {
            name: [None if value is None else msgspec.json.encode(value).decode() for value in columns[name]]
            for name in ("data", "meta")
        }
        kinds: dict[str, Any] = {
            "seq": polars.UInt64,
            "time": polars.Datetime("ms", "UTC"),
            "node": polars.String,
        }
        kinds |= {"tag": polars.String, "data": polars.String, "meta": polars.String}
        return polars.DataFrame(columns | texts, schema=kinds)

    def _repr_html_(self) -> str:
        """What a notebook shows: a table of the records."""
        columns = record_columns(self.records)
        rows = list(zip(*columns.values(), strict=True))
        return html_table(f"{len(rows):,} records", list(columns), rows, _shown)


def _shown(row: tuple[Any, ...]) -> list[object]:
    *plain, data, meta = row
    return [*plain, *("" if part is None else msgspec.json.encode(part).decode() for part in (data, meta))]


class Diff(Answer, Framed, frozen=True):
    """Records after a cursor; `next_from_seq` is the next cursor, `caught_up` the only sign of the end."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int


class RawDiff(msgspec.Struct, frozen=True):
    """A `Diff` whose records keep their payload as JSON text."""

    records: list[RawRecord]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None = None


class Latest(Answer, Framed, frozen=True):
    """The newest live record of each tag, by tag."""

    topic: str
    records: list[Record]
    next_cursor: str | None = None


class HistogramBucket(msgspec.Struct, frozen=True):
    """Live records of a span of time, up to the next bucket."""

    from_ms: int
    records: int
    bytes: int


class Histogram(Answer, frozen=True):
    """Live records by time."""

    topic: str
    from_ms: int
    to_ms: int
    buckets: list[HistogramBucket]


class RecordsDeleted(Answer, frozen=True):
    """Records were deleted from a topic."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


# --- Topics ----------------------------------------------------------------------------------------------


class Durability(StrEnum):
    """What an acknowledgement promises, from nothing to a synced disk."""

    EPHEMERAL = "ephemeral"
    MEMORY = "memory"
    DISK = "disk"
    FSYNC = "fsync"


class TopicType(StrEnum):
    """A plain log, or a queue of leased jobs on top of one."""

    LOG = "log"
    QUEUE = "queue"


class Discard(StrEnum):
    """What a full topic does: evict the oldest records, or refuse new ones."""

    OLD = "old"
    REJECT = "reject"


class TopicSettings(TypedDict, total=False):
    """The settings of a topic as a caller gives them; what is left out has its default."""

    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Literal["old", "reject"]
    durable: bool
    durability: Literal["ephemeral", "memory", "disk", "fsync"]
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool
    concurrency_limit: int
    rate_limit: dict[str, Any] | None
    retry: dict[str, Any] | None
    unique_window_ms: int
    paused: bool


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic; in answers all fields are present and `durability` is not null."""

    type: TopicType = TopicType.LOG
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = Discard.OLD
    durable: bool = False
    durability: Durability | None = None
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    concurrency_limit: int = 0
    rate_limit: RateLimit | None = None
    retry: Retry | None = None
    unique_window_ms: int = 0
    paused: bool = False


class TopicPut(Answer, frozen=True):
    """A topic was created, or its settings were replaced."""

    topic: str
    created: bool
    config: TopicConfig


class QueueCounts(msgspec.Struct, frozen=True):
    """The jobs of a job queue."""

    ready: int
    in_flight: int
    dead_lettered: int


class TopicState(Answer, frozen=True):
    """The state of a topic; `queue` is present for job queues only."""

    topic: str
    type: TopicType
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounts | None = None


class TopicAccount(Answer, frozen=True):
    """What became of the seqs after `from_seq` up to `to_seq`; the counts add up to their number."""

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
    epoch: int = 0
    """Which instance of the topic this is: a topic that is created again has a higher one."""


class TopicSummary(msgspec.Struct, frozen=True):
    """One topic of a list; older servers leave `type` and `durability` out."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    type: TopicType | None = None
    durability: Durability | None = None


class TopicPage(Answer, frozen=True):
    """One page of topics, sorted by name; `next_cursor` requests the next page, if there is one."""

    topics: list[TopicSummary]
    next_cursor: str | None = None


class TopicDeleted(Answer, frozen=True):
    """A topic was deleted, if it existed, and these routers with it."""

    topic: str
    deleted: bool
    routers_removed: list[str]


# --- Consumers -------------------------------------------------------------------------------------------


class ConsumerState(Answer, frozen=True, kw_only=True):
    """A consumer: a stored cursor of a topic, how far it is behind, and who owns it."""

    name: str
    topic: str
    cursor: int
    next_seq: int
    head_seq: int
    lag_records: int
    lag_ms: int
    at_risk: bool
    hold: bool
    hold_max_ms: int
    owner: str | None
    owner_epoch: int
    created_ts: int
    committed_ts: int | None
    filter: list[Any] | None = None
    node: list[str] = msgspec.field(default_factory=list)


class ConsumerPage(Answer, frozen=True):
    """One page of consumers, sorted by name; `next_cursor` requests the next page, if there is one."""

    consumers: list[ConsumerState]
    next_cursor: str | None = None


class ConsumerDiff(Diff, frozen=True):
    """Records after the cursor of a consumer, which stays where it is until a commit."""

    consumer: ConsumerState


class ConsumerDeleted(Answer, frozen=True):
    """A consumer was deleted, if it existed."""

    topic: str
    name: str
    deleted: bool


class ConsumerAcquired(Answer, frozen=True):
    """A consumer has a new owner; requests with an earlier epoch are refused from now on."""

    owner_epoch: int
    expires_ts: int


class ConsumerReset(Answer, frozen=True):
    """The cursor of a consumer was moved, or would be; `records` is how many live ones lie between."""

    cursor_before: int
    cursor: int
    records: int


# --- Routers ---------------------------------------------------------------------------------------------


class Guarantee(StrEnum):
    """What a router promises about the copies of one record."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class RouterFields(Answer, frozen=True):
    """A router as it is stored."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[Any] | None
    allow_cycle: bool
    guarantee: Guarantee


class RouterPut(RouterFields, frozen=True):
    """A router was created, or its settings were replaced."""

    created: bool


class RouterState(RouterFields, frozen=True):
    """The state of a router."""

    forwarded_total: int
    paused: bool = False
    """Whether it copies nothing, because a topic at one of its ends is damaged; left out if not."""
    corrupt_seq: int | None = None
    """The record of the source that cannot be read and keeps it from going on; left out if there is none."""


class RouterSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """One router of a list."""

    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: int
    lag: int | None = None
    """Only if it was asked for."""
    paused: bool = False
    """Whether it copies nothing, because a topic at one of its ends is damaged."""
    corrupt_seq: int | None = None
    """The record of the source that cannot be read and keeps it from going on, if there is one."""


class RouterPage(Answer, frozen=True):
    """One page of routers, sorted by name; `next_cursor` requests the next page, if there is one."""

    routers: list[RouterSummary]
    next_cursor: str | None = None


class RouterDeleted(Answer, frozen=True):
    """A router was deleted, if it existed."""

    router: str
    deleted: bool


# --- Watching --------------------------------------------------------------------------------------------


class Watched(msgspec.Struct, frozen=True):
    """Where watching a topic begins."""

    from_seq: int
    head_seq: int
    earliest_seq: int


class WatchSession(Answer, frozen=True):
    """A watch session was created; its stream can be opened."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, Watched]


class Records(msgspec.Struct, Framed, frozen=True):
    """Records of one topic, and the cursor before and after them."""

    topic: str
    records: list[Record]
    from_seq: int
    to_seq: int
    head_seq: int


class CaughtUp(msgspec.Struct, frozen=True):
    """Everything of a topic up to `head_seq` was sent; what follows is live."""

    topic: str
    head_seq: int


class TopicCreated(msgspec.Struct, frozen=True):
    """A topic has appeared that a pattern of the watch matches; its records follow from the first one on."""

    topic: str
    head_seq: int


class TopicGone(msgspec.Struct, frozen=True):
    """A watched topic was deleted; nothing of it follows, and a stream ends with its last topic."""

    topic: str
    head_seq: int
    reason: Literal["deleted"]


class ConsumerAtRisk(msgspec.Struct, frozen=True):
    """Retention is about to pass the consumer of this watch, or has: what is below `evict_floor` is gone."""

    topic: str
    consumer: str
    cursor: int
    evict_floor: int
    head_seq: int


WatchEvent = Records | CaughtUp | Tombstone | TopicGone | TopicCreated | ConsumerAtRisk


class StreamError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a stream is about to end."""

    code: str | int
    message: str
    retry_after_ms: int | None = None
    topics: list[str] | None = None


# --- Probes ----------------------------------------------------------------------------------------------


StorageStatus = Literal["ok", "degraded", "damaged", "failing"]


class StorageHealth(msgspec.Struct, frozen=True):
    """How the storage of a server is.

    `failing`: some topics cannot be written now. `damaged`: the last start found damage, or a router has come
    to a damaged record. `degraded`: something else fails, such as a checkpoint.
    """

    status: StorageStatus = "ok"
    closed_shards: dict[str, str] = {}
    """Log shards that take no writes until a restart, and the symbol of the cause."""
    failing: dict[str, str] = {}
    """What fails at present, by kind, with the symbol of the cause."""
    errors: dict[str, int] = {}
    """Failures since the start, by kind."""
    damage: dict[str, int] = {}
    """What the last start found damaged, by kind."""
    may_lack_acked: bool = False
    """Whether acknowledged records of `disk` or `fsync` topics may be lost."""
    damaged_topics: int = 0
    """Topics that are not served because their segments are damaged."""
    paused_routers: int = 0
    """Routers that copy nothing, because a topic at one of their ends or their next record is damaged."""
    filling_topics: int = 0
    """Topics that are not served yet, because their records are still being loaded: those of class `memory`,
    and those whose segments are in an object store that was away at the start."""


class Health(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: Literal["ok"]
    version: str
    uptime_ms: int
    storage: StorageHealth | None = None
    """Only if something is wrong."""


class Ready(msgspec.Struct, frozen=True):
    """Recovery is over and the server answers requests."""

    status: Literal["ready"]
    wal_replay_complete: bool
    topics: int
    storage: StorageHealth | None = None
    """Only if something is wrong."""


class WalCounts(msgspec.Struct, frozen=True):
    """Counters of the write-ahead log."""

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


class Metrics(msgspec.Struct, frozen=True):
    """Counters of the server."""

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
