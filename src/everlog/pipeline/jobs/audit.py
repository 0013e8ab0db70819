"""The job `audit`: every seq of a source is accounted for in its table of the lake.

For each topic (or the queue) every seq from the first archived one to the last is one of: delivered once, in
a recorded gap, deleted at the source (topics only), delivered more than once, or missing. The last two are
faults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from everlog.pipeline import queue_ranges, topic_ranges
from everlog.pipeline.columns_from_frames import RecordFilter
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.options import U64_MAX
from everlog.pipeline.topic_ranges import ServerAddress
from everlog.seq_ranges import Gap, SeqRange


class StreamAudit(msgspec.Struct, kw_only=True):
    """The account of one topic or queue."""

    name: str
    first_seq: int
    last_seq: int
    delivered: int
    gap: int
    deleted: int = 0
    duplicate: int = 0
    missing: int = 0
    behind: int = 0
    """Seqs at the source that are not archived yet; no fault."""

    missing_ranges: list[tuple[int, int]] = []

    @property
    def is_sound(self) -> bool:
        """Whether every seq is explained."""
        return not self.duplicate and not self.missing


class AuditReport(msgspec.Struct, kw_only=True):
    """The verdict over a table."""

    table: str
    streams: list[StreamAudit]

    @property
    def is_sound(self) -> bool:
        """Whether every seq of every stream is explained."""
        return all(stream.is_sound for stream in self.streams)


def audit_topics(
    spark: SparkSession,
    lake: str,
    table: str,
    url: str,
    *,
    topics: Sequence[str] = (),
    key: str | None = None,
) -> AuditReport:
    """Account for the seqs of a table that `archive_topics` filled; absent ones are looked up on the server.

    `topics` are those that should be archived, names or prefixes with `*`: their accounts begin with the
    oldest record that the server has, and one that is not in the table at all is behind with all records.
    """
    rows = LakeTable(lake, table).read(spark)
    found = {stream.name: stream for stream in _streams(rows, "topic")}
    streams = []
    with ServerAddress(url, key).connect() as api:
        named = set(topic_ranges.find_topics(api, topics)) if topics else set()
        for name in sorted(named | set(found)):
            live = topic_ranges.live_span(api, name)[0]
            stream = found.get(name) or _nothing_of(name, live.first)
            stream.behind = max(0, live.end - 1 - stream.last_seq)
            absent = list(_absent(rows.where(fn.col("topic") == name), stream))
            if name in named and name in found and live.first < stream.first_seq:
                absent.insert(0, (live.first, stream.first_seq - 1))
                stream.first_seq = live.first
            for first, last in absent:
                there = sum(_still_there(api, stream.name, first, last + 1))
                stream.missing += there
                stream.deleted += last - first + 1 - there
                if there:
                    stream.missing_ranges.append((first, last))
            streams.append(stream)
    return AuditReport(table=table, streams=streams)


def audit_queue(spark: SparkSession, lake: str, table: str, *, queue: str | None = None) -> AuditReport:
    """Account for the seqs of a table that `archive_queue` filled; a queue deletes nothing by itself.

    With its `queue`, the account begins with the oldest message of the queue, and says how far the table is
    behind.
    """
    rows = LakeTable(lake, table).read(spark)
    path = None if queue is None else queue_ranges.queue_name(os.path.abspath(queue))
    found = {stream.name: stream for stream in _streams(rows, "queue")}
    streams = []
    for name in sorted({*found, *([path] if path is not None else [])}):
        held = queue_ranges.bounds(name) if name == path else None
        stream = found.get(name) or _nothing_of(name, held.first if held is not None else 0)
        absent = list(_absent(rows.where(fn.col("queue") == name), stream))
        if held is not None:
            stream.behind = max(0, held.end - 1 - stream.last_seq)
            if name in found and held.first < stream.first_seq:
                absent.insert(0, (held.first, stream.first_seq - 1))
                stream.first_seq = held.first
        stream.missing = sum(last - first + 1 for first, last in absent)
        stream.missing_ranges = absent
        streams.append(stream)
    return AuditReport(table=table, streams=streams)


def _nothing_of(name: str, first_seq: int) -> StreamAudit:
    """Return the account of a stream that is not in the table."""
    return StreamAudit(name=name, first_seq=first_seq, last_seq=first_seq - 1, delivered=0, gap=0)


def _streams(rows: DataFrame, by: str) -> Iterator[StreamAudit]:
    """Count what the table holds of each stream."""
    is_record = fn.col("kind") == "record"
    counted = rows.groupBy(by).agg(
        fn.min("seq").alias("first_seq"),
        fn.max(fn.coalesce("gap_to", "seq")).alias("last_seq"),
        fn.count_if(is_record).alias("records"),
        fn.count_distinct(fn.when(is_record, fn.col("seq"))).alias("delivered"),
        fn.sum(fn.when(~is_record, fn.col("gap_to") - fn.col("seq") + 1)).alias("gap"),
    )
    for row in sorted(counted.collect(), key=lambda row: str(row[by])):
        yield StreamAudit(
            name=row[by],
            first_seq=row.first_seq,
            last_seq=row.last_seq,
            delivered=row.delivered,
            gap=row.gap or 0,
            duplicate=row.records - row.delivered,
        )


def _absent(rows: DataFrame, stream: StreamAudit) -> Iterator[tuple[int, int]]:
    """Yield the ranges of seqs, first and last included, between the stream's ends that no row covers."""
    if stream.delivered + stream.gap == stream.last_seq - stream.first_seq + 1 and not stream.duplicate:
        return
    end = fn.coalesce("gap_to", "seq")
    reach = fn.max(end).over(Window.orderBy("seq").rowsBetween(Window.unboundedPreceding, -1))
    holes = rows.select("seq", reach.alias("before")).where(fn.col("seq") > fn.col("before") + 1)
    for row in holes.orderBy("seq").collect():
        yield row.before + 1, row.seq - 1


def _still_there(api: Any, topic: str, first: int, end: int) -> Iterator[int]:
    """Yield how many seqs of a range the server has or reports as a gap: the table should have them."""
    everything = RecordFilter(0, U64_MAX, None)
    for found in topic_ranges.read(api, topic, SeqRange(first, end), everything, ("seq",)):
        yield found.end - found.first if isinstance(found, Gap) else len(found["seq"])
