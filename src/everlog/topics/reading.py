"""The read path: from a cursor to rendered records, in the order of the data model's pipeline.

Owns tombstones, clamps and the cursor; the records themselves are found and rendered by the kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from everlog.api_types import GapReason, Tombstone
from everlog.errors import Corrupt, InvalidRequest
from everlog.native.topics.log import Rendered, next_live
from everlog.topics.commits import Commit
from everlog.topics.config import (
    READ_BYTES_DEFAULT,
    READ_BYTES_MAX,
    READ_LIMIT_DEFAULT,
    READ_LIMIT_MAX,
    U64_MAX,
)
from everlog.topics.core import Core
from everlog.topics.filters import Filter
from everlog.topics.results import Diff
from everlog.topics.retention import floor_commit, sweep
from everlog.topics.scanning import Scan
from everlog.topics.topic import Topic


def has_gaps(topic: Topic) -> bool:
    """Whether there is any gap that is reported where it is."""
    return bool(topic.floors.trim_runs or topic.floors.corrupt)


def tombstone_for(topic: Topic, from_seq: int) -> Tombstone | None:
    """The gap that a reader at `from_seq` has to see before any record; None if there is none."""
    head_seq, earliest_seq = topic.visible, topic.earliest_seq
    if from_seq > head_seq:
        return _tombstone(1, head_seq, "recreated", earliest_seq, head_seq)
    if from_seq + 1 >= topic.evict_floor:
        return _gap_for(topic, from_seq) if has_gaps(topic) else None
    by_cap = topic.floors.cap > from_seq + 1
    by_age = topic.floors.ttl > from_seq + 1
    reason: GapReason = (
        "mixed" if by_cap and by_age else "cap" if by_cap else "ttl" if by_age else "source_trim"
    )
    return _tombstone(from_seq + 1, earliest_seq - 1, reason, earliest_seq, head_seq)


def _tombstone(gap_from: int, gap_to: int, reason: GapReason, earliest_seq: int, head_seq: int) -> Tombstone:
    missed = max(0, gap_to - gap_from + 1)
    return Tombstone(gap_from, gap_to, reason, earliest_seq, head_seq, missed)


def _gap_for(topic: Topic, from_seq: int) -> Tombstone | None:
    """The gap that a router's source or the disk left, if the next thing to read lies behind it.

    There may be live records before it, so reading goes on right behind it and not at the first record.
    """
    for first_seq, last_seq, reason in topic.floors.gaps():
        if last_seq > from_seq:
            if next_live(topic.log, from_seq + 1) < first_seq:
                return None
            gap_from = max(from_seq + 1, first_seq)
            return _tombstone(gap_from, last_seq, reason, last_seq + 1, topic.visible)
    return None


def _end_of_read(topic: Topic, start_seq: int) -> int:
    """Up to where a read may go: a gap is reported before what is behind it."""
    for first_seq, _, _ in topic.floors.gaps():
        if first_seq > start_seq:
            return first_seq - 1
    return topic.visible


class ColdRead(Exception):
    """A segment has to be fetched first; `commit` is done when it is there."""

    def __init__(self, commit: Commit) -> None:
        super().__init__("a cold segment is being fetched")
        self.commit = commit


class ReadOptions:
    """What a read returns, clamped: how much, without records of which nodes, with which fields."""

    __slots__ = (
        "filter",
        "include_data",
        "include_meta",
        "include_tags",
        "limit",
        "max_bytes",
        "nodes",
    )

    def __init__(
        self,
        limit: int = 0,
        max_bytes: int = 0,
        nodes: tuple[str, ...] = (),
        *,
        include_tags: bool = False,
        include_meta: bool = True,
        include_data: bool = True,
        filter: Filter | None = None,
    ) -> None:
        for name, value in (("limit", limit), ("max_batch_bytes", max_bytes)):
            if value < 0:
                raise InvalidRequest(f"{name} is {value}; it must be 0 (the default) or more")
        self.limit = min(limit or READ_LIMIT_DEFAULT, READ_LIMIT_MAX)
        self.max_bytes = min(max_bytes or READ_BYTES_DEFAULT, READ_BYTES_MAX)
        self.nodes = tuple(node.encode("utf-8", "surrogatepass") for node in nodes)
        self.include_tags = include_tags
        self.include_meta = include_meta
        self.include_data = include_data
        self.filter = filter


def first_of_time(core: Core, topic: Topic, time_ms: int) -> int:
    """The cursor before the first record with a timestamp from `time_ms` on; the head if there is none.

    The timestamps of a topic never fall: while the clock is behind the last one, records get that one again.
    """
    if not 0 <= time_ms <= U64_MAX:
        raise InvalidRequest(f"from_time_ms is {time_ms}; it must be from 0 to {U64_MAX}")
    sweep(core, topic, core.now_ms())
    return topic.log.find_ts(time_ms, topic.visible + 1) - 1


def joined(earlier: Diff, later: Diff) -> Diff:
    """Two reads of one call, the second one from where the first stopped."""
    tombstone = earlier.tombstone
    if later.tombstone is not None:
        gap_from = later.tombstone.gap_from if tombstone is None else tombstone.gap_from
        tombstone = msgspec.structs.replace(later.tombstone, gap_from=min(gap_from, later.tombstone.gap_from))
    records = [part for part in (earlier.records[1:-1], later.records[1:-1]) if part]
    return msgspec.structs.replace(
        later,
        records=b"[%b]" % b",".join(records),
        delivered=earlier.delivered + later.delivered,
        tombstone=tombstone,
        scanned=earlier.scanned + later.scanned,
        cold_segments_read=earlier.cold_segments_read + later.cold_segments_read,
    )


def diff(
    core: Core,
    topic: Topic,
    from_seq: int,
    options: ReadOptions,
    load: Callable[[int], bool],
    after: Diff | None = None,
) -> Diff:
    """Read from a cursor, or go on behind an earlier read of the same call and return both together.

    `load` loads a segment; True if it came from the cold tier.
    """
    if after is not None:
        return joined(after, _diff(core, topic, after.next_from_seq, options, load, after))
    return _diff(core, topic, from_seq, options, load, None)


def _diff(
    core: Core,
    topic: Topic,
    from_seq: int,
    options: ReadOptions,
    load: Callable[[int], bool],
    after: Diff | None,
) -> Diff:
    if not 0 <= from_seq <= U64_MAX:
        raise InvalidRequest(f"from_seq is {from_seq}; it must be from 0 to {U64_MAX}")
    sweep(core, topic, core.now_ms())
    tombstone = tombstone_for(topic, from_seq)
    start = from_seq if tombstone is None else tombstone.earliest_seq - 1
    cold_reads = 0
    rendered, is_paused = _render(core, topic, start, options, after)
    # A read stops where a segment is not in memory; only one that has nothing yet goes on.
    commit = None
    while rendered.missing_source and rendered.delivered == 0:
        try:
            cold_reads += load(rendered.missing_source)
        except ColdRead as cold:
            commit = cold.commit
            cold_reads += 1
            break
        rendered, is_paused = _render(core, topic, rendered.next_from_seq, options, after)
    if rendered.corrupt_seq and rendered.delivered == 0:
        error = Corrupt(
            f"record {rendered.corrupt_seq} of topic {topic.name!r} does not match its checksum; "
            f"run `everlog verify` on the stopped data directory"
        )
        core.failures.report("corrupt_record", error, topic.name)
        raise error
    return Diff(
        records=rendered.json,
        delivered=rendered.delivered,
        scanned=rendered.scanned,
        cold_segments_read=cold_reads,
        next_from_seq=rendered.next_from_seq,
        head_seq=topic.visible,
        earliest_seq=topic.earliest_seq,
        tombstone=tombstone,
        commit=commit or floor_commit(topic),
        incomplete=commit is not None,
        paused=commit is None and is_paused,
    )


def _render(
    core: Core, topic: Topic, from_seq: int, options: ReadOptions, after: Diff | None
) -> tuple[Rendered, bool]:
    """Read on, and whether a filter has more to look at for this call."""
    end_seq = _end_of_read(topic, from_seq) if has_gaps(topic) else topic.visible
    if options.filter is not None:
        scan = Scan(core, topic, from_seq, end_seq, options, after)
        scan.run()
        found = Rendered(
            scan.records,
            scan.position,
            scan.delivered,
            scan.scanned,
            scan.missing_source,
            scan.corrupt_seq,
        )
        return found, not scan.is_over
    rendered = topic.log.render(
        core.sources,
        from_seq,
        end_seq,
        options.limit,
        options.max_bytes,
        options.nodes if topic.config.dedupe_node else (),
        options.include_tags,
        options.include_meta,
        options.include_data,
    )
    return rendered, False
