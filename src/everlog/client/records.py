"""What clients send and get, as typed values.

Owns the shapes of records, gaps, jobs, topics, routers and answers; does nothing. Fields that a later server
adds are ignored, as the contract asks.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import msgspec

Predicate = str | tuple[Literal["tag"], Literal["Eq", "Glob"], str]
"""Which tags are meant: `"eu"`, `"eu*"`, or `("tag", "Eq", "eu")` and `("tag", "Glob", "eu*")`."""

Start = Literal["earliest", "now"] | int
"""Where a reader begins: what there is, what comes, or the record with this seq and what follows."""

Gaps = Literal["raise", "yield"]
"""How a reader hears of records that are gone: by the exception RecordsLost, or by a Tombstone."""


class NewRecord(msgspec.Struct, omit_defaults=True):
    """A record to append."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None


class Record(
    msgspec.Struct, frozen=True, rename={"seq": "$seq", "ts_ms": "$ts", "node": "$node", "tag": "$tag"}
):
    """A record as it is read. `tag` is there only if tags were asked for, `data` unless it was left out."""

    seq: int
    ts_ms: int
    data: Any = None
    node: str | None = None
    tag: str | None = None
    meta: dict[str, Any] | None = None


class Tombstone(msgspec.Struct, frozen=True):
    """Records from `gap_from` to `gap_to` are gone and were not read.

    The reasons `cap`, `ttl`, `mixed` and `source_trim` say why; `from_seq_too_old` is said by the first read
    of a watch; `recreated` means that the topic is another one of that name, which is read from its start.
    """

    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int
    missed_estimate: int = 0
    topic: str = ""

    @property
    def resume(self) -> int:
        """The seq to start with again, once the gap has been dealt with."""
        return self.earliest_seq


# --- Topics ----------------------------------------------------------------------------------------------


class TopicSettings(TypedDict, total=False):
    """What a topic can be told; what is left out has its default."""

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


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic, complete."""

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


class TopicPut(msgspec.Struct, frozen=True):
    """A topic was created, or its settings replaced."""

    topic: str
    created: bool
    config: TopicConfig


class QueueCounts(msgspec.Struct, frozen=True):
    """The jobs of a queue."""

    ready: int
    in_flight: int
    dead_lettered: int


class TopicState(msgspec.Struct, frozen=True):
    """A topic as it is now; `queue` is there for queues only."""

    topic: str
    type: Literal["log", "queue"]
    config: TopicConfig
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    effective_priority: int
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    queue: QueueCounts | None = None


class TopicAccount(msgspec.Struct, frozen=True):
    """What has become of the seqs behind `from_seq` up to `to_seq`; the counts add up to their number."""

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


class TopicSummary(msgspec.Struct, frozen=True):
    """A topic in a list."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int


class TopicPage(msgspec.Struct, frozen=True):
    """Some topics; `next_cursor` asks for the next ones, None if these are the last."""

    topics: list[TopicSummary]
    next_cursor: str | None = None


class TopicDeleted(msgspec.Struct, frozen=True):
    """A topic was deleted, if there was one, and these routers with it."""

    topic: str
    deleted: bool
    routers_removed: list[str] = []


class RecordsDeleted(msgspec.Struct, frozen=True):
    """Records were deleted from a topic."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


# --- Records in and out ----------------------------------------------------------------------------------


class Appended(msgspec.Struct, frozen=True):
    """Records were kept; `deduped` if an earlier request with the same key had done it."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    seqs: list[int] | None = None


class Diff(msgspec.Struct, frozen=True):
    """What is behind a cursor; `next_from_seq` is the next cursor, `caught_up` the only sign of the end."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: Tombstone | None = None


# --- Watching --------------------------------------------------------------------------------------------


class Watched(msgspec.Struct, frozen=True):
    """Where watching a topic begins."""

    from_seq: int
    head_seq: int
    earliest_seq: int


class WatchSession(msgspec.Struct, frozen=True):
    """A session of the server that a stream can be opened for."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, Watched]


class Records(msgspec.Struct, frozen=True):
    """Records of a watched topic, and the cursor before and after them."""

    topic: str
    records: list[Record]
    from_seq: int
    to_seq: int
    head_seq: int


class CaughtUp(msgspec.Struct, frozen=True):
    """Everything of a topic up to `head_seq` was sent; what follows is live."""

    topic: str
    head_seq: int


class TopicGone(msgspec.Struct, frozen=True):
    """A watched topic was deleted; nothing more will come of it."""

    topic: str
    head_seq: int = 0
    reason: str = "deleted"


WatchEvent = Records | CaughtUp | Tombstone | TopicGone


# --- Routers ---------------------------------------------------------------------------------------------


class RouterPut(msgspec.Struct, frozen=True):
    """A router was created or changed."""

    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]
    filter: tuple[str, str, str] | None = None


class RouterState(msgspec.Struct, frozen=True):
    """A router as it is now."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]
    forwarded_total: int
    filter: tuple[str, str, str] | None = None


class RouterSummary(msgspec.Struct, frozen=True):
    """A router in a list."""

    router: str
    source: str
    dest: str
    guarantee: str
    forwarded_total: int


class RouterPage(msgspec.Struct, frozen=True):
    """Some routers; `next_cursor` asks for the next ones, None if these are the last."""

    routers: list[RouterSummary]
    next_cursor: str | None = None


class RouterDeleted(msgspec.Struct, frozen=True):
    """A router was deleted, if there was one."""

    router: str
    deleted: bool


# --- Queues ----------------------------------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True, kw_only=True, rename={"seq": "$seq", "ts_ms": "$ts", "tag": "$tag"}):
    """A job and its lease, which ends at `deadline_ms` unless it is extended."""

    seq: int
    lease_id: str
    deadline_ms: int = msgspec.field(name="deadline")
    ts_ms: int
    deliveries: int
    data: Any
    tag: str | None = None
    meta: dict[str, Any] | None = None


class Claimed(msgspec.Struct, frozen=True):
    """Jobs that are leased now, and how many more are ready."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int


class Acked(msgspec.Struct, frozen=True):
    """Jobs that are done, and those that were not (any more) this worker's."""

    topic: str
    acked: list[int]
    skipped: list[int]
    ready: int
    in_flight: int


class Nacked(msgspec.Struct, frozen=True):
    """Jobs that were given back, and those that were not (any more) this worker's."""

    topic: str
    nacked: list[int]
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(msgspec.Struct, frozen=True):
    """Leases that end later now, by seq, and jobs that were not (any more) this worker's."""

    topic: str
    extended: list[int]
    skipped: list[int]
    deadlines: dict[int, int]


# --- Probes ----------------------------------------------------------------------------------------------


class Health(msgspec.Struct, frozen=True):
    """A server that runs."""

    status: str
    version: str
    uptime_ms: int


class Ready(msgspec.Struct, frozen=True):
    """A server that serves."""

    status: str
    wal_replay_complete: bool
    topics: int
