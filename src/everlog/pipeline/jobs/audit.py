"""The job `audit`: every seq of a source is accounted for in its table of the lake.

Owns the counting and the verdict. For each topic (or the queue) all seqs from the first that was archived to
the last are one of: delivered once, in a gap that was recorded, deleted at the source (topics only),
delivered more than once, or missing. The last two are faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from everlog.pipeline import topic_ranges
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.topic_ranges import Lost, Place


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
    spark: SparkSession, lake: str, table: str, url: str, *, key: str | None = None
) -> AuditReport:
    """Account for the seqs of a table that `archive_topics` filled; the server is asked for absent ones."""
    rows = LakeTable(lake, table).read(spark)
    place = Place(url, key)
    streams = []
    with place.connect() as api:
        for stream in _streams(rows, "topic"):
            live = topic_ranges.bounds(api, stream.name)
            stream.behind = max(0, live.end - 1 - stream.last_seq)
            for first, last in _absent(rows.where(fn.col("topic") == stream.name), stream):
                found = sum(_still_there(api, stream.name, first, last + 1))
                stream.missing += found
                stream.deleted += last - first + 1 - found
                if found:
                    stream.missing_ranges.append((first, last))
            streams.append(stream)
    return AuditReport(table=table, streams=streams)


def audit_queue(spark: SparkSession, lake: str, table: str) -> AuditReport:
    """Account for the seqs of a table that `archive_queue` filled; a queue deletes nothing by itself."""
    rows = LakeTable(lake, table).read(spark)
    streams = []
    for stream in _streams(rows, "queue"):
        absent = list(_absent(rows.where(fn.col("queue") == stream.name), stream))
        stream.missing = sum(last - first + 1 for first, last in absent)
        stream.missing_ranges = absent
        streams.append(stream)
    return AuditReport(table=table, streams=streams)


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
    """Yield the ranges of seqs, first and last, between the stream's ends that no row speaks of."""
    if stream.delivered + stream.gap == stream.last_seq - stream.first_seq + 1 and not stream.duplicate:
        return
    end = fn.coalesce("gap_to", "seq")
    reach = fn.max(end).over(Window.orderBy("seq").rowsBetween(Window.unboundedPreceding, -1))
    holes = rows.select("seq", reach.alias("before")).where(fn.col("seq") > fn.col("before") + 1)
    for row in holes.orderBy("seq").collect():
        yield row.before + 1, row.seq - 1


def _still_there(api: Any, topic: str, first: int, end: int) -> Iterator[int]:
    """Yield how many records of a range the server has or reports as lost: the table should have them."""
    for piece in topic_ranges.read(api, topic, first, end):
        yield piece.end - piece.first if isinstance(piece, Lost) else len(piece)
