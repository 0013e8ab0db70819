"""The types of jobs and schedules on the wire, as in `api_types`.

Owns names, fields and their order; computes nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from everlog.answer_types import Answer, IgnoredMember, Performance


class JobMembers(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a record of a job queue may say about its job; on a log none of it is taken."""

    delay_ms: int | None = None
    run_at: int | None = None
    priority: int | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    max_deliveries: int | None = None


class RateLimit(msgspec.Struct, frozen=True):
    """At most `count` claims in any `per_ms`, of the whole job queue or of each concurrency key."""

    count: int
    per_ms: int
    by: Literal["queue", "key"] = "queue"


class Retry(msgspec.Struct, frozen=True):
    """The delay of a returned job: `base_ms`, times `factor` for each later delivery, at most `max_ms`.

    `jitter` is the share of it, from 0 to 1, that is taken off at random.
    """

    base_ms: int = 1000
    factor: float = 2.0
    max_ms: int = 3_600_000
    jitter: float = 0.0


class JobError(msgspec.Struct, frozen=True):
    """Why an attempt at a job failed."""

    type: str = ""
    message: str = ""
    trace: str = ""


_JOB_NAMES = {"seq": "$seq", "ts_ms": "$ts", "deadline_ms": "deadline", "tag": "$tag"}


class Job(msgspec.Struct, frozen=True, kw_only=True, rename=_JOB_NAMES):
    """A leased job; the lease ends at `deadline_ms` unless it is extended."""

    seq: int
    lease_id: str
    deadline_ms: int
    ts_ms: int
    deliveries: int
    data: Any
    tag: str | None = None
    meta: dict[str, Any] | None = None
    run_at: int | None = None
    priority: int = 0
    unique_key: str | None = None
    concurrency_key: str | None = None
    max_deliveries: int | None = None


class JobAttempt(msgspec.Struct, frozen=True):
    """A lease of a job that ended without an ack."""

    delivery: int
    node: str
    claimed_ts: int
    ended_ts: int
    outcome: str
    error: JobError | None


_STATE_NAMES = {"seq": "$seq", "ts_ms": "$ts", "tag": "$tag"}


class JobState(msgspec.Struct, frozen=True, kw_only=True, rename=_STATE_NAMES):
    """A job, leased or not; `failed` is one that waits again after an error or an expiry."""

    seq: int
    ts_ms: int
    state: Literal["ready", "delayed", "leased", "failed"]
    deliveries: int
    priority: int
    run_at: int | None
    node: str | None
    lease_id: str | None
    deadline: int | None
    last_error: JobError | None
    unique_key: str | None
    concurrency_key: str | None
    max_deliveries: int | None
    tag: str | None = None
    data: Any = msgspec.UNSET
    meta: Any = msgspec.UNSET
    attempts: list[JobAttempt] | msgspec.UnsetType = msgspec.UNSET


class JobCounts(msgspec.Struct, frozen=True):
    """The jobs of a job queue by state, and what has become of others."""

    ready: int
    delayed: int
    leased: int
    failed: int
    done_total: int
    failed_total: int
    dead_lettered: int


# --- Answers ---------------------------------------------------------------------------------------------


class Claimed(Answer, frozen=True):
    """Jobs were leased; `ready` more can be claimed."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int


class Acked(Answer, frozen=True):
    """So many jobs are done and deleted; `skipped` were not leased by this worker, or no longer."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Nacked(Answer, frozen=True):
    """So many jobs were returned to the job queue; `skipped` were not leased by this worker, or no longer."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(Answer, frozen=True):
    """Leases were extended, with the new deadline by seq; `skipped` were not leased by this worker."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]


class JobPage(Answer, frozen=True):
    """One page of jobs by seq; `next_cursor` requests the next page, if there is one."""

    topic: str
    jobs: list[JobState]
    counts: JobCounts
    next_cursor: str | None = None


class JobShown(JobState, frozen=True, kw_only=True):
    """One job, with its data and the attempts at it."""

    topic: str
    performance: Performance | None = None


class JobsCancelled(Answer, frozen=True):
    """So many jobs were deleted, or will be when their leases end."""

    topic: str
    cancelled: int


class JobsRetried(Answer, frozen=True):
    """So many delayed jobs can be claimed now."""

    topic: str
    retried: int


class JobsPurged(Answer, frozen=True):
    """So many jobs were deleted, or would be."""

    topic: str
    purged: int


class QueuePaused(Answer, frozen=True):
    """Whether claims and work streams give nothing."""

    topic: str
    paused: bool


class JobsRedriven(Answer, frozen=True):
    """So many jobs were brought back, or would be; so many that were meant are left."""

    topic: str
    moved: int
    left: int
    queues: dict[str, int] = msgspec.field(default_factory=dict)


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: what it appends where and when, and what it has done."""

    name: str
    topic: str
    cron: str
    timezone: str
    record: dict[str, Any]
    catch_up: Literal["none", "one", "all"]
    paused: bool
    paused_reason: str | None
    next_ts: int | None
    last_ts: int | None
    last_seq: int | None
    fired_total: int
    created_ts: int


class ScheduleShown(ScheduleState, frozen=True, kw_only=True):
    """A schedule."""

    performance: Performance | None = None
    ignored: list[IgnoredMember] | None = None


class SchedulePage(Answer, frozen=True):
    """One page of schedules, sorted by name; `next_cursor` requests the next page, if there is one."""

    schedules: list[ScheduleState]
    next_cursor: str | None = None


class ScheduleDeleted(Answer, frozen=True):
    """A schedule was deleted, if it existed."""

    name: str
    deleted: bool
