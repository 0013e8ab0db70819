"""When a segment is compressed: the policies, and one pass over the directories of an archive.

Arithmetic over what is known of a file, and the loop that applies it. A segment that fails is recorded, and
the pass goes on with the next.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from everlog.archive.metadata import last_access_s
from everlog.archive.tiers import ArchivedSegment, Tier, changing, compress_segment, list_segments
from everlog.archive.zstd_blocks import BLOCK_BYTES, LEVEL
from everlog.clock import NS_PER_S
from everlog.errors import EverlogError, InvalidConfig, Io
from everlog.fs import Fs
from everlog.queue.layout import CONTROL_FILE

_DAY_S: Final = 86_400
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What a policy may ask about a segment; times are Unix seconds."""

    created_s: float
    last_read_s: float | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Never:
    """Leave segments as they are."""

    def is_due(self, facts: SegmentFacts, now_s: float) -> bool:
        """Say no."""
        return False


@dataclass(frozen=True, slots=True)
class Immediate:
    """Compress every sealed segment."""

    def is_due(self, facts: SegmentFacts, now_s: float) -> bool:
        """Say yes."""
        return True


@dataclass(frozen=True, slots=True)
class AgeAfter:
    """Compress so many days after the file was made."""

    days: float

    def is_due(self, facts: SegmentFacts, now_s: float) -> bool:
        """Whether the file is old enough."""
        return now_s - facts.created_s >= self.days * _DAY_S


@dataclass(frozen=True, slots=True)
class IdleAfter:
    """Compress so many days after the last read that was recorded, else after the file was made."""

    days: float = 7

    def is_due(self, facts: SegmentFacts, now_s: float) -> bool:
        """Whether the file was left alone for long enough."""
        last_s = facts.created_s if facts.last_read_s is None else facts.last_read_s
        return now_s - last_s >= self.days * _DAY_S


@dataclass(frozen=True, slots=True)
class SizeThreshold:
    """Compress files of at least so many bytes."""

    size_bytes: int

    def is_due(self, facts: SegmentFacts, now_s: float) -> bool:
        """Whether the file is large enough."""
        return facts.size_bytes >= self.size_bytes


Policy = Never | Immediate | AgeAfter | IdleAfter | SizeThreshold


def parse_policy(text: str) -> Policy:
    """Return the policy of a text: never, immediate, age:DAYS, idle:DAYS or size:BYTES (with k, m or g)."""
    kind, _, value = text.partition(":")
    if kind in ("never", "immediate") and not value:
        return Never() if kind == "never" else Immediate()
    if kind == "idle" and not value:
        return IdleAfter()
    if kind in ("age", "idle") and re.fullmatch(r"\d+(\.\d+)?", value):
        return AgeAfter(float(value)) if kind == "age" else IdleAfter(float(value))
    if kind == "size" and (match := re.fullmatch(r"(\d+)([kmg]?)", value.lower())):
        return SizeThreshold(int(match[1]) * _UNITS[match[2]])
    raise InvalidConfig(
        f"{text!r} is not a policy; valid are never, immediate, age:DAYS, idle:DAYS and size:BYTES"
    )


@dataclass(slots=True)
class PassReport:
    """What one pass did."""

    done: list[ArchivedSegment] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0
    failed: dict[str, EverlogError] = field(default_factory=dict)


def due_segments(
    fs: Fs, directory: str, policy: Policy, now_ns: int, tiers: tuple[Tier, ...] = (Tier.PLAIN,)
) -> Iterator[ArchivedSegment]:
    """Yield the segments of a directory in these tiers that the policy names.

    The newest sealed segment of a queue that still has a writer stays: its records say where seq goes on.
    """
    segments = list_segments(fs, directory)
    if fs.exists(os.path.join(directory, CONTROL_FILE)):
        segments = segments[:-1]
    last_read_s = last_access_s(fs, directory)
    for segment in segments:
        if segment.tier in tiers:
            try:
                stat = os.stat(segment.path)
            except FileNotFoundError:
                continue
            facts = SegmentFacts(stat.st_mtime, last_read_s.get(segment.segment_id), stat.st_size)
            if policy.is_due(facts, now_ns / NS_PER_S):
                yield segment


def compress_due(
    fs: Fs,
    directories: list[str],
    policy: Policy,
    now_ns: int,
    *,
    block_size: int = BLOCK_BYTES,
    level: int = LEVEL,
    advance: Callable[[int], None] = lambda size: None,
) -> PassReport:
    """Compress what is due in these directories; `advance` is called with the bytes done."""
    report = PassReport()
    for directory in directories:
        try:
            with changing(fs, directory):
                for segment in list(due_segments(fs, directory, policy, now_ns)):
                    size = os.stat(segment.path).st_size
                    try:
                        after = compress_segment(
                            fs, directory, segment.segment_id, block_size=block_size, level=level
                        )
                    except (EverlogError, OSError) as error:
                        report.failed[segment.path] = as_everlog_error(error, f"compress {segment.path}")
                    else:
                        report.done.append(segment)
                        report.bytes_before += size
                        report.bytes_after += after
                    advance(size)
        except (EverlogError, OSError) as error:
            report.failed[directory] = as_everlog_error(error, f"look into {directory}")
    return report


def as_everlog_error(error: EverlogError | OSError, action: str) -> EverlogError:
    """Return an error as one of everlog, with what was being done."""
    if isinstance(error, EverlogError):
        return error
    return Io(f"cannot {action}: {error.strerror or error}", error.errno)
