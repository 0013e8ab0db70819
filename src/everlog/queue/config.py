"""Settings of a writer, their defaults and the presets. Touches nothing.

Times are in seconds because people write them; everything else in the queue counts
nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Final, Literal, TypedDict, Unpack

from everlog.errors import InvalidConfig
from everlog.queue.layout import RECORD_ALIGN, SEGMENT_SIZE_MIN

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SEGMENT_SIZE_MAX = 4 * GIB
"""A padding record must be able to span a whole segment, and its length is a u32."""


_WHOLE: Final = (
    "segment_size",
    "index_stride",
    "index_flush_records",
    "retention_check_bytes",
    "max_reader_lag_bytes",
    "max_segments",
    "max_bytes",
)
_SECONDS: Final = (
    "index_flush_interval_s",
    "retention_check_interval_s",
    "reader_ttl_s",
    "block_timeout_s",
    "prealloc_wait_s",
)


class WriterSettings(TypedDict, total=False):
    """The fields of `WriterConfig`, so that editors and type checkers know them as arguments."""

    segment_size: int
    index_stride: int
    index_flush_interval_s: float | None
    index_flush_records: int | None
    retention: bool
    retention_check_interval_s: float
    retention_check_bytes: int
    reader_ttl_s: float
    max_reader_lag_bytes: int
    max_segments: int | None
    max_bytes: int | None
    backpressure: Literal["fail-fast", "block"]
    block_timeout_s: float
    defer_seal_sync: bool
    require_prealloc: bool
    prealloc_wait_s: float
    memlock: bool
    large_blocks: bool
    clock_mode: Literal["wall", "anchored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterConfig:
    """How a writer rolls, retains and waits. An existing queue keeps its own segment size."""

    segment_size: int = 128 * MIB
    index_stride: int = 4096
    index_flush_interval_s: float | None = None
    index_flush_records: int | None = None
    retention: bool = True
    retention_check_interval_s: float = 0.01
    retention_check_bytes: int = MIB
    reader_ttl_s: float = 30.0
    max_reader_lag_bytes: int = 10 * GIB
    max_segments: int | None = None
    max_bytes: int | None = None
    backpressure: Literal["fail-fast", "block"] = "fail-fast"
    block_timeout_s: float = 1.0
    defer_seal_sync: bool = False
    require_prealloc: bool = False
    prealloc_wait_s: float = 0.0
    memlock: bool = False
    large_blocks: bool = False
    clock_mode: Literal["wall", "anchored"] = "wall"

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the setting and the value."""
        self._check_numbers()
        size = self.segment_size
        if size % RECORD_ALIGN or not SEGMENT_SIZE_MIN <= size <= SEGMENT_SIZE_MAX:
            raise InvalidConfig(
                f"segment_size must be a multiple of {RECORD_ALIGN} in "
                f"{SEGMENT_SIZE_MIN}..{SEGMENT_SIZE_MAX}, got {size}"
            )
        for name in (
            "index_stride",
            "index_flush_records",
            "max_segments",
            "max_bytes",
            "retention_check_bytes",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name} must be at least 1, got {value}")
        for name in ("index_flush_interval_s", "retention_check_interval_s", "reader_ttl_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidConfig(f"{name} must be above 0, got {value}")
        for name in ("block_timeout_s", "prealloc_wait_s", "max_reader_lag_bytes"):
            if not getattr(self, name) >= 0:
                raise InvalidConfig(f"{name} must not be negative, got {getattr(self, name)}")
        if self.backpressure not in ("fail-fast", "block"):
            raise InvalidConfig(f"backpressure must be 'fail-fast' or 'block', got {self.backpressure!r}")
        if self.clock_mode not in ("wall", "anchored"):
            raise InvalidConfig(f"clock_mode must be 'wall' or 'anchored', got {self.clock_mode!r}")

    def _check_numbers(self) -> None:
        for names, kind, word in ((_WHOLE, Integral, "whole number"), (_SECONDS, Real, "number")):
            for name in names:
                value = getattr(self, name)
                if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
                    raise InvalidConfig(f"{name} must be a {word}, got {value!r}")

    def replace(self, **settings: Unpack[WriterSettings]) -> WriterConfig:
        """Return a copy with some settings changed; an unknown name lists the valid ones."""
        valid = {field.name: getattr(self, field.name) for field in fields(self)}
        unknown = sorted(set(settings) - set(valid))
        if unknown:
            raise InvalidConfig(f"unknown setting {', '.join(unknown)}; valid are {', '.join(sorted(valid))}")
        return WriterConfig(**{**valid, **settings})

    @classmethod
    def ultra_low_latency(cls) -> WriterConfig:
        """Nothing slow in `append`: a roll takes a prepared segment or fails."""
        return cls(defer_seal_sync=True, require_prealloc=True, prealloc_wait_s=0.001, memlock=True)

    @classmethod
    def archive(cls) -> WriterConfig:
        """Keep everything, and keep the seek index fresh."""
        return cls(index_flush_interval_s=1.0, index_flush_records=4096, retention=False)

    @classmethod
    def blocking(
        cls, max_segments: int | None = None, max_bytes: int | None = None, timeout_s: float = 1.0
    ) -> WriterConfig:
        """Wait up to `timeout_s` for readers when the capacity is used up."""
        return cls(
            max_segments=max_segments,
            max_bytes=max_bytes,
            backpressure="block",
            block_timeout_s=timeout_s,
        )
