"""The job `audit`: every seq of a source is accounted for in its table, and every row is as it was written.

For each instance of a topic or queue, intervals of seqs are compared: what the table delivers and records as
gaps, what its commits and the checkpoint say that it must hold, and what the source still has. Contents are
compared by the digests that each commit carries (`accounts`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from everlog.errors import InvalidConfig
from everlog.lake_reports import STREAMS_MAX, AuditedStream, AuditSummary
from everlog.pipeline import queue_ranges, topic_ranges
from everlog.pipeline.accounts import (
    Counted,
    Key,
    Pieces,
    RangeAccount,
    count_rows,
    digest_of,
    hashed_columns,
)
from everlog.pipeline.intervals import EMPTY, Intervals, difference, intersection, runs_of, size, union
from everlog.pipeline.jobs.archive import decoding_of, table_rows
from everlog.pipeline.jobs.batches import ArchivedPositions, shared_place
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_places import local_path
from everlog.pipeline.topic_ranges import ServerAddress
from everlog.seq_ranges import SeqRange

NAMED_RANGES: Final = 20
"""How many ranges of a fault a report names."""
DIFFERING_MAX: Final = 100_000
SEQ_END: Final = (1 << 63) - 1
FORMATS: Final = {"source": "everlog.queue", "queue": "everlog.queue", "topic": "everlog.topics"}
UNREADABLE: Final = re.compile(r"(?s)(?:FAILED_READ_FILE|PATH_NOT_FOUND|cannot read).*?(\S+\.parquet)")
"""Where an error names the file that cannot be read, or that is not there."""
Ranges = list[tuple[int, int]]


class StreamAudit(msgspec.Struct, kw_only=True):
    """The account of one instance of a topic or queue. Ranges include both ends."""

    name: str
    instance: str | None = None
    """The epoch of a topic, the identity of a queue; None in tables of earlier versions."""
    first_seq: int
    last_seq: int
    delivered: int
    gap: int
    deleted: int = 0
    """Absent, and the source had no such record when the table was filled."""
    duplicate: int = 0
    overlapping: int = 0
    """Delivered although a gap row says that they are lost, or in two gap rows."""
    missing: int = 0
    altered: int = 0
    """Rows of commits that are not as they were committed, and records that differ from the source."""
    unverified: int = 0
    """Rows of commits without a digest, as earlier versions made them; no fault."""
    behind: int = 0
    """Seqs at the source that are not archived yet; no fault."""

    missing_ranges: Ranges = []
    overlapping_ranges: Ranges = []
    altered_ranges: Ranges = []

    @property
    def is_sound(self) -> bool:
        """Whether every seq is explained and every row is as it was."""
        return not (self.duplicate or self.overlapping or self.missing or self.altered)


class AuditReport(msgspec.Struct, kw_only=True):
    """The verdict over a table."""

    table: str
    streams: list[StreamAudit]
    unreadable: list[str] = []
    """A file that cannot be read; nothing else is known then."""
    place: str = ""
    """The lake of the table."""
    version: int | None = None
    """The version of the table that was read."""
    compared_with: list[str] = []
    """Sources of records, besides the table's own commits and positions: a server and topics, or a queue."""
    audited_ms: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether every seq of every stream is explained, and every file could be read."""
        return not self.unreadable and all(stream.is_sound for stream in self.streams)


class _Source(NamedTuple):
    """A stream as it is at its source now."""

    live: SeqRange
    instance: str | None
    options: Mapping[str, str]
    is_named: bool


def audit_topics(
    spark: SparkSession,
    lake: str,
    table: str,
    url: str,
    *,
    topics: Sequence[str] = (),
    key: str | None = None,
    checkpoint: str | None = None,
) -> AuditReport:
    """Account for the seqs of a table that `archive_topics` filled, and compare it with the server.

    `topics` are those that should be archived, names or prefixes with `*`: their accounts begin with the
    oldest record that the server has, and one that is not in the table at all is behind with all records.
    """

    def sources(archived: set[str]) -> dict[str, _Source]:
        with ServerAddress(url, key).connect() as api:
            named = set(topic_ranges.find_topics(api, topics)) if topics else set()
            shared = {"url": url, **({"key": key} if key else {})}
            return {
                name: _Source(*topic_ranges.live_span(api, name), {**shared, "topic": name}, name in named)
                for name in sorted(named | archived)
            }

    target = LakeTable(lake, table)
    found = _Audit(spark, target, "topic", checkpoint).run(sources)
    return _stored(target, found, [" ".join([url, ",".join(topics)]).strip()])


def audit_queue(
    spark: SparkSession, lake: str, table: str, *, queue: str | None = None, checkpoint: str | None = None
) -> AuditReport:
    """Account for the seqs of a table that `archive_queue` filled.

    With its `queue`, the account begins with the oldest message of the queue, the contents are compared with
    it, and the report says how far the table is behind.
    """

    def sources(archived: set[str]) -> dict[str, _Source]:
        if queue is None:
            return {}
        path = queue_ranges.queue_name(os.path.abspath(queue))
        live, instance = queue_ranges.bounds(path), queue_ranges.instance_of(path)
        return {path: _Source(live, instance, {"path": path}, True)}

    target = LakeTable(lake, table)
    stream = "source" if "source" in (target.columns() or ()) else "queue"
    found = _Audit(spark, target, stream, checkpoint).run(sources)
    return _stored(target, found, [] if queue is None else [os.path.abspath(queue)])


def _stored(table: LakeTable, report: AuditReport, compared_with: list[str]) -> AuditReport:
    """Complete the report, and leave the verdict in the lake for pages that show it."""
    report.place, report.compared_with = table.place.parent.path, compared_with
    report.audited_ms = time.time_ns() // 1_000_000
    streams = sorted(report.streams, key=lambda stream: stream.is_sound)[:STREAMS_MAX]
    summary = AuditSummary(
        updated_ms=report.audited_ms,
        is_sound=report.is_sound,
        unreadable=report.unreadable,
        stream_count=len(report.streams),
        streams=[msgspec.convert(stream, AuditedStream, from_attributes=True) for stream in streams],
    )
    table.store_report(summary)
    return report


class _Recorded(NamedTuple):
    """A range of a commit, and the columns that were hashed."""

    range: RangeAccount
    columns: tuple[str, ...]


class _Audit:
    """One run over one table; `stream` is the column that names the streams."""

    def __init__(self, spark: SparkSession, table: LakeTable, stream: str, checkpoint: str | None) -> None:
        self._spark = spark
        self._table = table
        self._stream = stream
        # Before the table: commits come before their positions, so a table that grows meanwhile has them all.
        folder = (
            f"{table.path}.checkpoint" if checkpoint is None else local_path(checkpoint, "the checkpoint")
        )
        self._positions = ArchivedPositions(shared_place(table, folder)).ends
        opened = table.existing()
        self._version, columns = opened.version(), [field.name for field in opened.schema().fields]
        if stream not in columns:
            wanted = "topics: give --url" if "topic" in columns else "a queue: leave out --url"
            raise InvalidConfig(f"table {table.path} is of {wanted}")
        self._recorded: dict[Key, list[_Recorded]] = {}
        self._options: dict[str, str] = {}
        self._columns = hashed_columns(columns)
        commits = [one for one in table.accounts(self._version) if {*one.columns} <= {*columns}]
        for commit in commits:
            # Those of the last commit: a column that others added to the table is not at the source.
            self._options, self._columns = commit.options, commit.columns
            for one in commit.ranges:
                known = self._recorded.setdefault((one.stream, one.instance), [])
                known.append(_Recorded(one, tuple(commit.columns)))
        self._is_dense = stream == "queue" and not any(commit.options for commit in commits)
        """Whether every seq of a stream must be in the table: a queue deletes none, and all were selected."""

    def run(self, sources: Callable[[set[str]], dict[str, _Source]]) -> AuditReport:
        """Count the table, then compare each stream with commits, checkpoint and source."""
        keys = {*self._recorded, *self._positions}
        try:
            rows = self._table.read(self._spark, version=self._version)
            names = {row[0] for row in rows.select(self._stream).distinct().collect()}
            there = sources(names | {name for name, _ in keys})
            keys |= {(name, one.instance) for name, one in there.items()}
            pieces = {key: self._pieces(key, there.get(key[0])) for key in keys}
            counts = {
                columns: _named_count(count_rows(rows, self._stream, columns, pieces), keys)
                for columns in {tuple(self._columns), *self._column_sets()}
            }
        except Exception as error:  # of Spark or of its gateway
            unreadable = UNREADABLE.search(str(error))
            if unreadable is None:
                raise
            return AuditReport(
                table=self._table.name, version=self._version, streams=[], unreadable=[unreadable[1]]
            )
        self._rows = rows
        streams = []
        known = {*self._recorded, *self._positions}
        for key in sorted({*keys, *counts[tuple(self._columns)]}, key=str):
            source = there.get(key[0])
            source = source if source is not None and source.instance == key[1] else None
            counted = {columns: found.get(key, Counted()) for columns, found in counts.items()}
            is_there = key in counts[tuple(self._columns)]
            if is_there or key in known or (source is not None and source.is_named):
                streams.append(self._judged(key, counted, pieces.get(key), source))
        return AuditReport(table=self._table.name, version=self._version, streams=streams)

    def _column_sets(self) -> set[tuple[str, ...]]:
        """Return the columns that commits have hashed: earlier ones did not have those that came later."""
        return {one.columns for some in self._recorded.values() for one in some}

    def _foreign(self, key: Key, unaccounted: Intervals) -> Intervals:
        """Return which records without an account no job has written, whatever its version.

        Earlier versions made rows without accounts, but not behind those of this one, and without instances.
        """
        recorded = self._recorded.get(key)
        if recorded:
            begin = min(one.range.first for one in recorded)
            return intersection(unaccounted, np.array([(begin, SEQ_END)], np.int64))
        streams = {name for name, _ in self._recorded}
        # The rows of imports, in tables of decoded events, have an instance and are of another source.
        is_import = self._stream == "source" and key[0] not in streams
        return EMPTY if key[1] is None or not streams or is_import else unaccounted

    def _pieces(self, key: Key, source: _Source | None) -> Pieces:
        """Return where pieces begin whose digests are compared: at commits, and where the source begins."""
        firsts = {one.range.first for one in self._recorded.get(key, [])}
        if source is not None and source.instance == key[1]:
            firsts.add(source.live.first)
        return np.array(sorted(firsts), np.int64)

    def _judged(
        self,
        key: Key,
        counts: Mapping[tuple[str, ...], Counted],
        pieces: Pieces | None,
        source: _Source | None,
    ) -> StreamAudit:
        """Return the account of one stream, from what was counted with each set of hashed columns."""
        counted = counts[tuple(self._columns)]
        recorded = sorted(self._recorded.get(key, []), key=lambda one: one.range.first)
        committed = union((one.range.first, one.range.end) for one in recorded)
        reached = self._positions.get(key, 0)
        covered = union([counted.records, counted.gaps, committed, (max(0, reached - 1), reached)])
        first = int(covered[0, 0]) if len(covered) else 0
        is_lost = not len(committed) and not counted.rows
        if source is not None and (is_lost or source.is_named):
            first = min(first, source.live.first) if len(covered) else source.live.first
        end = int(covered[-1, 1]) if len(covered) else first
        damaged = EMPTY if pieces is None else union(_damaged(recorded, pieces, counts))
        absent = difference(union([(first, end)]), union([counted.records, counted.gaps]))
        explained = EMPTY if self._is_dense else difference(committed, damaged)
        missing, differing = difference(absent, explained), EMPTY
        if source is not None and pieces is not None and end > source.live.first:
            missing, differing = self._compare(key, source, end, pieces, counted, absent, missing)
        overlap = intersection(counted.records, counted.gaps)
        unaccounted = difference(counted.records, committed)
        foreign = self._foreign(key, unaccounted)
        altered = union([differing, damaged, foreign, counted.misdated])
        return StreamAudit(
            name=key[0],
            instance=key[1],
            first_seq=first,
            last_seq=end - 1,
            delivered=size(counted.records),
            gap=size(counted.gaps),
            deleted=size(absent) - size(missing),
            duplicate=counted.rows - size(counted.records),
            overlapping=size(overlap) + counted.gap_seqs - size(counted.gaps),
            missing=size(missing),
            altered=size(altered),
            unverified=size(unaccounted) - size(foreign),
            behind=0 if source is None else max(0, source.live.end - end),
            missing_ranges=_named(missing),
            overlapping_ranges=_named(overlap),
            altered_ranges=_named(altered),
        )

    def _compare(
        self,
        key: Key,
        source: _Source,
        end: int,
        pieces: Pieces,
        counted: Counted,
        absent: Intervals,
        unexplained: Intervals,
    ) -> tuple[Intervals, Intervals]:
        """Compare with what the source still has; return what is missing, and the records that differ."""
        first = source.live.first
        frame = self._read_source(source, first, end)
        found = count_rows(frame, self._stream, self._columns, {key: pieces}).get(key, Counted())
        # What the source deleted by retention cannot be decided any more; a deleted record is no loss.
        gone = unexplained if self._is_dense else intersection(unexplained, union([found.gaps, (0, first)]))
        missing = union([gone, intersection(absent, found.records)])
        unequal = [
            place
            for place in {*found.pieces, *counted.pieces}
            if pieces[place] >= first and found.pieces.get(place) != counted.pieces.get(place)
        ]
        differing = self._differing(key, frame) if unequal else EMPTY
        return missing, intersection(differing, counted.records)

    def _read_source(self, source: _Source, first: int, end: int) -> DataFrame:
        is_decoded = self._stream == "source"
        columns = "*,instance" if is_decoded else ",".join(dict.fromkeys([*self._columns, "instance"]))
        reading = {**self._options, **source.options, "onDataLoss": "record", "columns": columns}
        if self._stream != "topic":
            reading["onCorrupt"] = "record"
        reading |= {"fromSeq": str(first), "toSeq": str(end - 1)}
        found = self._spark.read.format(FORMATS[self._stream]).options(**reading).load()
        return table_rows(found, "queue", decoding_of(reading)) if is_decoded else found

    def _differing(self, key: Key, source: DataFrame) -> Intervals:
        """Return the seqs of records that the table has with another content than the source."""
        is_record = (fn.col(self._stream) == key[0]) & (fn.col("kind") == "record")
        # Rows of earlier versions have no instance, so their digests are others.
        is_own = fn.col("instance") == key[1] if "instance" in self._columns else fn.lit(True)
        here = self._rows.where(is_record & is_own).select("seq", digest_of(self._columns).alias("here"))
        there = source.where(is_record).select("seq", digest_of(self._columns).alias("there"))
        other = there.join(here, "seq").where("here != there").select("seq").limit(DIFFERING_MAX).collect()
        return runs_of(np.array([row.seq for row in other], np.int64))


def _damaged(
    recorded: Sequence[_Recorded], pieces: Pieces, counts: Mapping[tuple[str, ...], Counted]
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of commits, in order, whose rows are not those that were committed."""
    begins = [*np.searchsorted(pieces, [one.range.first for one in recorded]).tolist(), len(pieces)]
    for (one, columns), (begin, stop) in zip(recorded, pairwise(begins), strict=True):
        rows = digest = 0
        for place in range(begin, stop):
            found = counts[columns].pieces.get(place, (0, 0))
            rows, digest = rows + found[0], digest ^ found[1]
        if (rows, digest) != (one.rows, one.digest):
            yield one.first, one.end


def _named_count(counted: dict[Key, Counted], keys: set[Key]) -> dict[Key, Counted]:
    """Give rows of earlier versions, which have no instance, to the only instance that is known."""
    for name, instance in [key for key in counted if key[1] is None]:
        known = {key for key in {*counted, *keys} if key[0] == name and key[1] is not None}
        if len(known) == 1:
            counted.setdefault(known.pop(), Counted()).add(counted.pop((name, instance)))
    return counted


def _named(some: Intervals) -> Ranges:
    return [(first, end - 1) for first, end in some[:NAMED_RANGES].tolist()]
