"""The configuration of topics and engines: fields, defaults, ranges and fixed limits.

Owns the vocabulary of the topics plane; holds no state and touches no file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeVar

import msgspec

from everlog import api_types
from everlog.api_types import Discard, Durability, TopicType
from everlog.errors import InvalidConfig, InvalidRequest
from everlog.job_types import RateLimit, Retry

MAX_RECORDS_PER_APPEND: Final = 10_000
MAX_IDEMPOTENCY_KEY_BYTES: Final = 256
READ_LIMIT_DEFAULT: Final = 256
READ_LIMIT_MAX: Final = 1000
READ_BYTES_DEFAULT: Final = 1 << 20
READ_BYTES_MAX: Final = 8 << 20
WAIT_MS_MAX: Final = 30_000
RATE_COUNT_MAX: Final = 1_000_000
RATE_PER_MS_MAX: Final = 86_400_000
U64_MAX: Final = 2**64 - 1

TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")

MIB: Final = 1 << 20

Ack = Literal["local", "shipped"]
"""What a write waits for: what its class asks of this machine, or that it is in the backup as well."""

OnDamage = Literal["refuse", "serve", "give_up"]
"""`give_up` is for repairs: segments that cannot be read are given up as well."""


_Choice = TypeVar("_Choice", bound=StrEnum)


def _member(choices: type[_Choice], field: str, value: str) -> _Choice:
    """Return the member of an enumeration; plain text is accepted as well."""
    try:
        return choices(value)
    except ValueError:
        raise InvalidRequest(f"{field} is {value!r}; it must be one of {', '.join(choices)}") from None


def check_topic_name(name: str) -> None:
    """Raise `InvalidRequest` unless `name` may be given to a topic."""
    if TOPIC_NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"topic name {name!r} is not allowed: 1 to 255 of A-Z a-z 0-9 . _ : -, a letter or digit first"
        )


_COUNTS: Final = (
    *("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"),
    *("concurrency_limit", "unique_window_ms"),
)


def _check_job_settings(rate: RateLimit | None, retry: Retry | None) -> None:
    if rate is not None and not (1 <= rate.count <= RATE_COUNT_MAX and 1 <= rate.per_ms <= RATE_PER_MS_MAX):
        raise InvalidRequest(
            f"rate_limit has count {rate.count} and per_ms {rate.per_ms}; they must be from 1 to "
            f"{RATE_COUNT_MAX} and from 1 to {RATE_PER_MS_MAX}"
        )
    if retry is None:
        return
    for field in ("base_ms", "max_ms"):
        value = getattr(retry, field)
        if not 0 <= value <= RATE_PER_MS_MAX:
            raise InvalidRequest(f"retry.{field} is {value}; it must be from 0 to {RATE_PER_MS_MAX}")
    if not 1 <= retry.factor <= 1000 or not 0 <= retry.jitter <= 1:
        raise InvalidRequest(
            f"retry has factor {retry.factor} and jitter {retry.jitter}; they must be from 1 to 1000 and "
            f"from 0 to 1"
        )


class TopicConfig(api_types.TopicConfig, frozen=True, kw_only=True):
    """The configuration of a topic; `resolved` gives the form that is stored and reported."""

    def resolved(self, topic: str) -> TopicConfig:
        """Check every field and return the stored form: one durability class, clamped times."""
        for field in _COUNTS:
            value = getattr(self, field)
            if not 0 <= value <= U64_MAX:
                raise InvalidRequest(f"{field} is {value}; it must be from 0 to {U64_MAX}")
        _check_job_settings(self.rate_limit, self.retry)
        if self.priority is not None and not -(2**31) <= self.priority < 2**31:
            raise InvalidRequest(f"priority is {self.priority}; it must be a signed 32-bit number or null")
        if self.dead_letter is not None:
            check_topic_name(self.dead_letter)
            if self.dead_letter == topic:
                raise InvalidRequest(f"dead_letter names the topic {topic!r} itself; name another topic")
        by_flag = Durability.FSYNC if self.durable else Durability.DISK
        durability = _member(Durability, "durability", self.durability or by_flag)
        return msgspec.structs.replace(
            self,
            type=_member(TopicType, "type", self.type),
            discard=_member(Discard, "discard", self.discard),
            durability=durability,
            durable=durability is Durability.FSYNC,
            lease_ms=min(max(self.lease_ms, 100), 86_400_000),
            claim_jitter_ms=min(max(self.claim_jitter_ms, 0), 5000),
        )


@dataclass(frozen=True)
class EngineSettings:
    """How an engine stores; the defaults are those of the server."""

    shards: int = min(os.cpu_count() or 1, 8)
    file_bytes: int = 64 * MIB
    segment_max_events: int = 10_000
    segment_max_bytes: int = 64 * MIB
    segment_max_age_ms: int = 3_600_000
    hot_retain_segments: int = 4
    hot_retain_bytes: int = 0
    cold_dir: str | None = None
    cold_url: str | None = None
    backup_url: str | None = None
    backup_interval_ms: int = 1000
    backup_address: str = ""
    ack: Ack = "local"
    snapshot_log_bytes: int = 64 * MIB
    snapshot_interval_ms: int = 60_000
    mapped_bytes_max: int = 4096 * MIB
    cold_cache_bytes: int = 64 * MIB
    max_topics: int = 100_000
    max_routers: int = 10_000
    max_consumers: int = 100_000
    max_idempotency_keys: int = 2_000_000
    """Remembered at once, of all topics; each takes about 560 bytes of memory."""
    max_schedules: int = 10_000
    max_total_bytes: int = 0
    on_damage: OnDamage = "refuse"
    """Whether to open a directory in which acknowledged records of `disk` or `fsync` topics may be lost."""

    def __post_init__(self) -> None:
        for field in ("shards", "segment_max_events", "segment_max_bytes", "file_bytes"):
            if getattr(self, field) < 1:
                raise InvalidConfig(f"{field} is {getattr(self, field)}; it must be at least 1")
        if self.ack == "shipped" and self.backup_url is None:
            raise InvalidConfig("ack is 'shipped' without backup_url; say where to ship (TOPICS_BACKUP_URL)")
        if self.cold_dir is not None and self.cold_url is not None:
            raise InvalidConfig("cold_dir and cold_url are both set; older segments go to one of them")
        if self.file_bytes >= 2**32:
            raise InvalidConfig(f"file_bytes is {self.file_bytes}; a log file must be smaller than 4 GiB")
