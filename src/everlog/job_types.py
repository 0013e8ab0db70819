"""The types of jobs and schedules on the wire; `api_types` has them too, and the answers that they are in.

Owns names and fields of what is not an answer by itself; computes nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


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
