"""The rules of retention and capacity: counting readers, deletable segments, room for a record.

Arithmetic only: opens no file and starts no thread. The worker passes in what
`reader_meta.list_readers` returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from everlog.clock import Clock
from everlog.errors import CorruptMetadata
from everlog.queue.reader_meta import ReaderPosition


class Liveness(Protocol):
    """Decides which readers are alive."""

    def live(self, readers: Mapping[str, ReaderPosition]) -> set[str]:
        """Return the names of the live ones among all readers of the queue."""
        ...


@dataclass(slots=True)
class WallClockLiveness:
    """The rule for one look at a queue: a heartbeat of 0, or at most `reader_ttl_ns` old."""

    now_ns: int
    reader_ttl_ns: int

    def live(self, readers: Mapping[str, ReaderPosition]) -> set[str]:
        """Return the live readers; a heartbeat in the future is fresh."""
        return {
            name
            for name, position in readers.items()
            if position.heartbeat_ns == 0 or self.now_ns - position.heartbeat_ns <= self.reader_ttl_ns
        }


class ReaderLiveness:
    """The rule for a worker that keeps looking: a jump of the wall clock must not kill readers.

    A reader dies only when its heartbeat stayed the same for more than `reader_ttl_ns` of
    monotonic time, counted from when this object first saw that heartbeat, however old it may
    look by the wall clock. A heartbeat of 0 never expires.
    """

    def __init__(self, clock: Clock, reader_ttl_ns: int) -> None:
        self._clock = clock
        self._reader_ttl_ns = reader_ttl_ns
        self._seen: dict[str, tuple[int, int]] = {}

    def live(self, readers: Mapping[str, ReaderPosition]) -> set[str]:
        """Return the live readers; readers that are no longer listed are forgotten."""
        now_ns = self._clock.monotonic_ns()
        seen: dict[str, tuple[int, int]] = {}
        live: set[str] = set()
        for name, position in readers.items():
            heartbeat_ns, since_ns = self._seen.get(name, (None, 0))
            if heartbeat_ns != position.heartbeat_ns:
                since_ns = now_ns
            seen[name] = (position.heartbeat_ns, since_ns)
            if position.heartbeat_ns == 0 or now_ns - since_ns <= self._reader_ttl_ns:
                live.add(name)
        self._seen = seen
        return live


def byte_position(segment_id: int, offset: int, segment_size: int) -> int:
    """Return a place in the queue as one number, as if all segments were one file."""
    return segment_id * segment_size + offset


def counting_readers(
    readers: Mapping[str, ReaderPosition | CorruptMetadata],
    liveness: Liveness,
    *,
    head_segment: int,
    head_offset: int,
    segment_size: int,
    max_reader_lag_bytes: int,
) -> dict[str, ReaderPosition]:
    """Return the readers that hold back deletion: live and not too far behind.

    A damaged meta file raises: what its reader still needs is unknown.
    """
    positions: dict[str, ReaderPosition] = {}
    for name, position in readers.items():
        if isinstance(position, CorruptMetadata):
            raise position
        positions[name] = position
    head = byte_position(head_segment, head_offset, segment_size)
    live = liveness.live(positions)
    return {
        name: position
        for name, position in positions.items()
        if name in live
        and head - byte_position(position.segment_id, position.offset, segment_size) <= max_reader_lag_bytes
    }


def minimum_position(counting: Mapping[str, ReaderPosition] | None, segment_size: int) -> int | None:
    """Return the byte position of the slowest counting reader; None: there is none, so no limit."""
    if not counting:
        return None
    return min(
        byte_position(position.segment_id, position.offset, segment_size) for position in counting.values()
    )


def deletable_end(
    counting: Mapping[str, ReaderPosition] | None, *, head_segment: int, keep_from: int | None = None
) -> int:
    """Return the id below which all segments may be deleted.

    `counting` is None if there is no `readers/` directory: then the queue was never read and
    everything is kept for the first reader. `keep_from` is the newest segment that holds a
    record; it stays whatever the readers say, so that seq can continue after a restart.
    """
    if counting is None:
        return 0
    end = min((position.segment_id for position in counting.values()), default=head_segment)
    return min(end, head_segment, head_segment if keep_from is None else keep_from)


def capacity_allows(
    head_segment_after: int,
    head_offset_after: int,
    min_position: int | None,
    segment_size: int,
    max_bytes: int | None,
    max_segments: int | None,
) -> bool:
    """Whether the head may move to where it would be after the record (and the roll)."""
    if min_position is None:
        return True
    if max_bytes is not None:
        head_after = byte_position(head_segment_after, head_offset_after, segment_size)
        if head_after - min_position > max_bytes:
            return False
    if max_segments is not None:
        return head_segment_after - min_position // segment_size + 1 <= max_segments
    return True


def offset_limit(segment_id: int, min_position: int | None, segment_size: int, max_bytes: int | None) -> int:
    """Return the largest end offset in a segment that `max_bytes` allows, 0 to `segment_size`."""
    if min_position is None or max_bytes is None:
        return segment_size
    return max(0, min(segment_size, min_position + max_bytes - segment_id * segment_size))
