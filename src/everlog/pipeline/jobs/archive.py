"""The job `archive`: topics or a queue into a table of the lake, every record once, every gap as a row.

Owns the query and the order of its commits: first the table, then the position of the queue's reader, so that
retention waits for the archive. Killed at any moment, the next run goes on where the table stands.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from everlog.errors import InvalidConfig
from everlog.fs import OsFs, create_directory, replace_file
from everlog.pipeline.jobs.batches import run_batches
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import Appended, LakeTable
from everlog.queue import Queue

NS_PER_US: Final = 1000
HEARTBEAT_S: Final = 1.0
APPLICATION_FILE: Final = "application"
Shown = Callable[[RunReport], None]


def archive_topics(
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
) -> RunReport:
    """Bring topics (a name, several, or a prefix with `*`) into `table`, partitioned by date and topic.

    Ends when it has caught up, or goes on for ever with `follow`. `checkpoint` defaults to a directory beside
    the table. Run it again to go on; `options` are further options of the format.
    """
    given = {"url": url, "topic": topics, "onDataLoss": "record", **(options or {})}
    if key:
        given["key"] = key
    source = spark.readStream.format("everlog.topics").options(**given).load()
    job = _Archive(LakeTable(lake, table), ("date", "topic"), checkpoint, f"{url} {topics}", shown)
    return job.run(source.withColumn("date", _date(fn.col("ts"))), follow)


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
) -> RunReport:
    """Bring a queue into `table`, partitioned by date, and by venue too if its messages are decoded.

    With a `reader` name the archive is a reader of the queue: retention keeps what it has not yet committed
    to the table. The rest is as for `archive_topics`.
    """
    # Tasks may run in another directory than this process.
    path = os.path.abspath(path)
    given = {"path": path, "onDataLoss": "record", **(options or {})}
    source = spark.readStream.format("everlog.queue").options(**given).load()
    target = LakeTable(lake, table)
    _check_decoding(target, source)
    job = _Archive(target, _queue_partitions(target, source), checkpoint, path, shown)
    when = fn.timestamp_micros((fn.col("ts_ns") / NS_PER_US).cast("long"))
    frame = source.withColumn("date", _date(when))
    if reader is None:
        return job.run(frame, follow)
    with KeptPosition(path, reader) as position:
        job.committed = lambda last_seq: position.move_to(last_seq + 1)
        return job.run(frame, follow)


def _check_decoding(table: LakeTable, source: DataFrame) -> None:
    """Refuse to mix messages that are decoded differently: columns may come later, but not others instead."""
    known, coming = set(table.columns() or ()) - {"date"}, set(source.columns)
    empty, missing = sorted(known - coming), sorted(coming - known)
    if empty and missing:
        raise InvalidConfig(
            f"table {table.path} has columns that this archive would leave empty ({', '.join(empty)}) and "
            f"lacks those that it would fill ({', '.join(missing)}); use the decode option that the table "
            "was filled with, or another table"
        )


def _queue_partitions(table: LakeTable, source: DataFrame) -> tuple[str, ...]:
    """Return the partitions of a queue's table; a table that is there keeps its own."""
    known = table.partition_columns()
    if known is not None:
        return known
    # Of messages that are not decoded nobody knows the venue, and all of them are of one queue.
    return ("date", "venue_id") if "venue_id" in source.columns else ("date",)


def _date(when: Column) -> Column:
    """The day of a record; a gap, which has no time, belongs to the day on which it was found."""
    return fn.to_date(fn.coalesce(when, fn.current_timestamp()))


class _Archive:
    """One run: a streaming query whose batches are committed one by one."""

    def __init__(
        self,
        table: LakeTable,
        partition_by: tuple[str, ...],
        checkpoint: str | None,
        source: str,
        shown: Shown | None,
    ) -> None:
        self.committed: Callable[[int], None] | None = None
        self._table = table
        self._partition_by = partition_by
        self._checkpoint = checkpoint or f"{table.path}.checkpoint"
        self._report = RunReport(job="archive", source=source, table=table.path)
        self._shown = shown
        self._started_s = time.monotonic()

    def run(self, frame: DataFrame, follow: bool) -> RunReport:
        """Run the query until it has caught up, or until it is stopped."""
        application = application_of(self._checkpoint, self._table)
        query = run_batches(
            frame,
            self._checkpoint,
            lambda rows, batch: self._commit(rows, application, batch),
            follow=follow,
        )
        for progress in query.recentProgress[-1:]:
            self._report.offsets = {"end": progress["sources"][0]["endOffset"]}
        return self._report

    def _commit(self, rows: DataFrame, application: str, batch: int) -> None:
        appended = self._table.append(rows, application, batch, self._partition_by)
        report = self._report
        report.batches += 1
        report.rows += appended.rows
        report.files += appended.files
        report.version = appended.version
        report.seconds = time.monotonic() - self._started_s
        if self.committed is not None:
            last = _last_seq(rows, appended)
            if last is not None:
                self.committed(last)
        if self._shown is not None:
            self._shown(report)


def _last_seq(rows: DataFrame, appended: Appended) -> int | None:
    """Return the last seq of a batch; the files' statistics know it, so that nothing is read again."""
    if appended.is_repeat:
        found: int | None = rows.agg(fn.max(fn.coalesce("gap_to", "seq"))).collect()[0][0]
        return found
    known = [appended.highest[name] for name in ("seq", "gap_to") if name in appended.highest]
    return max(known, default=None)


def application_of(checkpoint: str, table: LakeTable) -> str:
    """Return the name under which a checkpoint commits to its table: made once, kept beside the offsets.

    A new checkpoint for a table that has been filled would begin again and fill it twice: refused.
    """
    path = os.path.join(checkpoint, APPLICATION_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        pass
    if table.open() is not None:
        raise InvalidConfig(
            f"table {table.path} has been filled, but its checkpoint {checkpoint} is not there; give the "
            "right checkpoint, or another table"
        )
    create_directory(OsFs(), checkpoint)
    application = f"archive-{uuid.uuid4().hex}"
    replace_file(OsFs(), path, application.encode())
    return application


class KeptPosition:
    """A job as a reader of the queue: alive as long as the job runs, so that retention waits for it.

    A thread gives signs of life, since a batch may take longer than a reader may be silent.
    """

    def __init__(self, path: str, name: str) -> None:
        self._reader = Queue.open_subscriber(path, name, "resume-snapshot")
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="archive-heartbeat", daemon=True)

    def move_to(self, next_seq: int) -> None:
        """Commit a position: what lies before it is in the table."""
        with self._lock:
            self._reader.seek_seq(next_seq)
            self._reader.commit()

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            with self._lock:
                self._reader.heartbeat()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._reader.close()
