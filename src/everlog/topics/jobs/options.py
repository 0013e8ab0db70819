"""What the records of jobs say about their claims: the checks, and the form that is stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from everlog.errors import InvalidRequest
from everlog.job_types import JobMembers
from everlog.topics.config import U64_MAX
from everlog.topics.storage.control import JobOptions

DELAY_MS_MAX: Final = 31_536_000_000
PRIORITY_MAX: Final = 1000
KEY_BYTES_MAX: Final = 256
NO_OPTIONS: Final = JobOptions()


def has_members(members: JobMembers) -> bool:
    """Whether a record says anything about its job."""
    return (
        members.priority is not None
        or members.delay_ms is not None
        or members.run_at is not None
        or members.unique_key is not None
        or members.concurrency_key is not None
        or members.max_deliveries is not None
    )


def options_of(members: Mapping[int, JobMembers], now_ms: int) -> dict[int, JobOptions]:
    """Check the members of records, by their place in the batch; return what is stored of them."""
    return {place: _options(place, each, now_ms) for place, each in members.items()}


def _options(place: int, members: JobMembers, now_ms: int) -> JobOptions:
    _check(place, "delay_ms", members.delay_ms, 0, DELAY_MS_MAX)
    _check(place, "run_at", members.run_at, 0, U64_MAX)
    _check(place, "priority", members.priority, -PRIORITY_MAX, PRIORITY_MAX)
    _check(place, "max_deliveries", members.max_deliveries, 0, U64_MAX)
    if members.delay_ms is not None and members.run_at is not None:
        raise InvalidRequest(f"record {place}: delay_ms and run_at together; send one of them")
    run_at = members.run_at or 0
    if members.delay_ms is not None:
        run_at = now_ms + members.delay_ms
    return JobOptions(
        run_at,
        members.priority or 0,
        _key(place, "unique_key", members.unique_key),
        _key(place, "concurrency_key", members.concurrency_key),
        members.max_deliveries,
    )


def _check(place: int, name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"record {place}: {name} is {value}; it must be from {low} to {high}")


def _key(place: int, name: str, value: str | None) -> str:
    if value is None:
        return ""
    if not 1 <= len(value.encode("utf-8", "surrogatepass")) <= KEY_BYTES_MAX:
        raise InvalidRequest(
            f"record {place}: {name} {value[:100]!r} has {len(value)} characters; it must have 1 to "
            f"{KEY_BYTES_MAX} bytes"
        )
    return value


_encode: Final = msgspec.json.Encoder().encode


def with_members(job: bytes, options: JobOptions) -> bytes:
    """A job, which is a JSON object, and the options that it was appended with: those that are set."""
    text = job[:-1]
    if options.run_at:
        text += b',"run_at":%d' % options.run_at
    if options.priority:
        text += b',"priority":%d' % options.priority
    if options.unique_key:
        text += b',"unique_key":' + _encode(options.unique_key)
    if options.concurrency_key:
        text += b',"concurrency_key":' + _encode(options.concurrency_key)
    if options.max_deliveries is not None:
        text += b',"max_deliveries":%d' % options.max_deliveries
    return text + b"}"
