"""What every answer of the HTTP API has; `api_types` and `job_types` have the answers. Computes nothing."""

from __future__ import annotations

import msgspec


class Performance(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long the server took; fields may be added at any time."""

    server_total_ms: float
    wal_append_ms: float | None = None
    fsync_ms: float | None = None
    records_scanned: int | None = None
    throttle_wait_ms: float | None = None
    cold_segments_read: int | None = None


class IgnoredMember(msgspec.Struct, frozen=True):
    """A member of a request that the server does not know."""

    path: str
    name: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base of the answers to requests; each of them carries `performance`.

    `ignored` lists members of the request's body that the server does not know.
    """

    performance: Performance | None = None
    ignored: list[IgnoredMember] | None = None
