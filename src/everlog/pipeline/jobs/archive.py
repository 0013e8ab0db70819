"""The job `archive`: topics or a queue into a table of the lake, every record once, every gap as a row.

The order of commits: first the table, then the position of the queue's reader, so that retention waits for
the archive. Killed at any moment, the next run continues behind the last committed batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema

from everlog.errors import InvalidConfig
from everlog.lake_reports import ArchiveProgress
from everlog.market.symbols import SymbolCatalogue, load_nearby
from everlog.pipeline import queue_ranges
from everlog.pipeline.accounts import US_PER_DAY, Key, RangeAccount, day_of
from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.jobs.batches import (
    ArchivedPositions,
    Batch,
    ReaderPosition,
    application_of,
    batch_frame,
    check_queue,
    checkpoint_folder,
    run_batches,
    shared_place,
)
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.sources.base import StreamReader
from everlog.pipeline.sources.queue import QueueFormat, QueueSource
from everlog.pipeline.sources.topics import TopicsFormat
from everlog.pipeline.symbols import read_dim_symbol
from everlog.pipeline.tables.rows import Names, rows_of
from everlog.pipeline.tables.schemas import TABLE_OF_DECODING
from everlog.pipeline.upkeep import Upkeep, UpkeepPolicy

FIRST_OF_TOPIC: Final = '{"seq": 1}'
COLUMNS: Final = "*,instance"
RECORDS: Final = "records"
OBSERVATION: Final = "everlog.batch"
"""The name under which listeners of Spark's queries get the metrics of a batch."""

SELECTING: Final = frozenset({"decode", "typeid", "venue", "market", "tag", "fromts", "tots"})
"""Options that leave out records; an audit reads the source with the same ones."""
SOURCE: Final = "source"
"""The column of a decoded table that names the queue of a row."""
Shown = Callable[[RunReport], None]


def archive_topics(  # noqa: PLR0913
    spark: SparkSession,
    url: str,
    topics: str,
    lake: str,
    table: str,
    *,
    key: str | None = None,
    checkpoint: str | None = None,
    follow: bool = False,
    options: Mapping[str, str] | None = None,
    shown: Shown | None = None,
    upkeep: UpkeepPolicy | None = None,
) -> RunReport:
    """Append topics (a name, several, or a prefix with `*`) to `table`, partitioned by date and topic.

    Every topic begins with seq 1: what is lost already is a gap in the table, like what is lost later.
    Ends when it has caught up; with `follow` it never ends. A further run continues. `checkpoint` defaults to
    a directory beside the table; `options` are further options of the format. With an `upkeep` policy, small
    files are joined between commits.
    """
    given = {"url": url, "topic": topics, "onDataLoss": "record", "columns": COLUMNS}
    given |= {"startingOffsets": FIRST_OF_TOPIC, **(options or {})}
    if key:
        given["key"] = key
    reader = TopicsFormat(given).stream_reader()
    target = LakeTable(lake, table)
    report = RunReport(job="archive", source=f"{url} {topics}", table=target.path)
    by = ("date", "topic")
    return _run(
        spark, reader, target, by, checkpoint, report, options, follow=follow, shown=shown, upkeep=upkeep
    )


def archive_queue(
    spark: SparkSession,
    path: str,
    lake: str,
    table: str,
    *,
    reader: str | None = None,
    checkpoint: str | None = None,
    follow: bool = False,
    options: Mapping[str, str] | None = None,
    shown: Shown | None = None,
    upkeep: UpkeepPolicy | None = None,
) -> RunReport:
    """Append a queue to `table`, partitioned by date, and by venue too if its messages are decoded.

    With a `reader` name the archive is a reader of the queue: retention keeps what is not committed to the
    table yet, and the table begins with the position that this reader had. Otherwise it begins with the
    first message ever. The rest is as for `archive_topics`.
    """
    # Tasks may run in another directory than this process.
    path = os.path.abspath(path)
    target = LakeTable(lake, table)
    report = RunReport(job="archive", source=path, table=target.path)
    with ReaderPosition(path, reader) as position:
        given = {"path": path, "onDataLoss": "record", "columns": COLUMNS}
        given |= {"startingOffsets": f'{{"seq": {position.begin}}}', **(options or {})}
        source = QueueFormat(given).stream_reader()
        schema = TABLE_OF_DECODING.get(decoding_of(given))
        columns = source.source.columns if schema is None else schema.arrow.names
        _check_decoding(target, columns)
        partition_by = _queue_partitions(target, columns)
        return _run(
            spark,
            source,
            target,
            partition_by,
            checkpoint,
            report,
            options,
            follow=follow,
            shown=shown,
            upkeep=upkeep,
            on_commit=None if reader is None else partial(_move_reader, position, path),
        )


def default_table(options: Mapping[str, str]) -> str:
    """Return the table that an archive with these options fills if none is named."""
    schema = TABLE_OF_DECODING.get(decoding_of(options))
    return RECORDS if schema is None else schema.name


def decoding_of(options: Mapping[str, str]) -> str:
    """Return the decoding that options of the format ask for; their names have no case."""
    return next((value for name, value in options.items() if name.lower() == "decode" and value), "raw")


def table_rows(rows: DataFrame, stream: str, decode: str, known: SymbolCatalogue | None = None) -> DataFrame:
    """Return what a format gives as rows of their table: with the day, or decoded with names and prices.

    `stream` is the column that names the topic or queue. Symbols that are not `known` may be in the catalogue
    beside the queue.
    """
    schema = TABLE_OF_DECODING.get(decode)
    if schema is None:
        return rows.withColumn("date", _date(stream))
    catalogue = known or SymbolCatalogue()

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        names: Names | None = None
        for batch in batches:
            found = dict(zip(batch.schema.names, batch.columns, strict=True))
            if batch.num_rows:
                names = names or Names(catalogue.completed_by(load_nearby(found[stream][0].as_py())))
                yield rows_of(schema, {**found, "source": found[stream]}, names)

    return rows.mapInArrow(task, from_arrow_schema(schema.arrow))


def _move_reader(position: ReaderPosition, path: str, ranges: Sequence[RangeAccount]) -> None:
    """Let retention pass over what is committed; a position in a queue that was replaced is none here."""
    present = queue_ranges.instance_of(path)
    ends = [one.end for one in ranges if one.instance == present]
    if ends:
        position.move_to(max(ends))


def _check_decoding(table: LakeTable, columns: Sequence[str]) -> None:
    """Refuse to mix decodings in one table: columns may be added, but not replaced by others."""
    known, coming = set(table.columns() or ()) - {"date"}, set(columns) - {"instance", "date"}
    empty, missing = sorted(known - coming), sorted(coming - known)
    if empty and missing:
        raise InvalidConfig(
            f"table {table.path} has columns that this archive would leave empty ({', '.join(empty)}) and "
            f"lacks those that it would fill ({', '.join(missing)}); use the decode option that the table "
            "was filled with, or another table"
        )


def _queue_partitions(table: LakeTable, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the partition columns for a queue; an existing table keeps its own."""
    known = table.partition_columns()
    if known is not None:
        return known
    # Only decoded messages have a venue, and all are of one queue.
    return ("date", "venue") if "venue" in columns else ("date",)


def _store_progress(table: LakeTable, report: RunReport, *, is_running: bool) -> None:
    """Leave in the lake how far the archive is, for pages that show it."""
    progress = ArchiveProgress(
        source=report.source,
        updated_ms=time.time_ns() // 1_000_000,
        is_running=is_running,
        rows=report.rows,
        commits=report.batches,
        files=report.files,
        version=report.version,
        seconds=report.seconds,
    )
    table.store_report(progress)


def _queue_of(reader: StreamReader) -> Key | None:
    """Return the queue that is read, and its instance; None for topics."""
    if not isinstance(reader.source, QueueSource):
        return None
    path = reader.source.path
    return queue_ranges.queue_name(path), queue_ranges.instance_of(path)


def _date(stream: str) -> Column:
    """The day of a record. A gap has no time and gets the day on which it was found."""
    today = fn.expr(f"unix_micros(current_timestamp()) div {US_PER_DAY}")
    return fn.coalesce(day_of(stream, ()), fn.date_from_unix_date(today.cast("int")))


def _run(  # noqa: PLR0913
    spark: SparkSession,
    reader: StreamReader,
    table: LakeTable,
    partition_by: tuple[str, ...],
    checkpoint: str | None,
    report: RunReport,
    options: Mapping[str, str] | None,
    *,
    follow: bool,
    shown: Shown | None,
    upkeep: UpkeepPolicy | None,
    on_commit: Callable[[Sequence[RangeAccount]], None] | None = None,
) -> RunReport:
    """Commit the batches of a stream to the table one by one; `on_commit` gets the ranges of each."""
    started_s = time.monotonic()
    folder = checkpoint_folder(table, checkpoint)
    source = _queue_of(reader)
    application = application_of(folder, table, source)
    if source is not None:
        check_queue(folder, *source)
    archived = ArchivedPositions(shared_place(table, folder))
    decode, stream = decoding_of(options or {}), reader.source.STREAM
    named_by = SOURCE if decode in TABLE_OF_DECODING else stream
    care = Upkeep(table, upkeep or UpkeepPolicy(every=0))
    selected = {name: value for name, value in (options or {}).items() if name.lower() in SELECTING}

    def commit(batch: Batch) -> None:
        known = read_dim_symbol(table.place.parent) if decode in TABLE_OF_DECODING else None
        rows = table_rows(batch_frame(spark, reader, batch), stream, decode, known)
        observed = Observation(OBSERVATION)
        rows = rows.observe(observed, fn.count_if(fn.col("kind") == "gap").alias("gaps"))
        appended = table.append(
            rows, application, batch.number, partition_by, stream=named_by, options=selected
        )
        archived.store(appended.ranges)
        report.gaps += 0 if appended.is_repeat else int(observed.get["gaps"])
        report.batches += 1
        report.rows += appended.rows
        report.files += appended.files
        report.version = appended.version
        report.seconds = time.monotonic() - started_s
        _store_progress(table, report, is_running=True)
        if on_commit is not None:
            on_commit(appended.ranges)
        if shown is not None:
            shown(report)
        care.after_commit(appended.days)

    try:
        report.offsets = {"end": run_batches(reader, folder, commit, follow=follow)}
    finally:
        _store_progress(table, report, is_running=False)
    return report
