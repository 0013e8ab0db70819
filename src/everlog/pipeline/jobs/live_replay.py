"""The job `replay` as a stream: each batch continues the books of the one before.

The checkpoint says which messages a batch has; the tasks read them from the segments themselves, load the
books as they were before the first message, and save them as they are after the last. So a batch that runs
again produces the same rows, and a job that is killed at any moment continues exactly: first the state is
durable, then the tables are committed, then the batch is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from everlog.clock import NS_PER_S
from everlog.errors import DataLost
from everlog.market import BookSettings
from everlog.pipeline.jobs.batches import (
    Batch,
    ReaderPosition,
    application_of,
    checkpoint_folder,
    run_batches,
    shared_place,
)
from everlog.pipeline.jobs.market_tasks import Rows, TableSpec, TaskFilter, TaskWork, fill_tables
from everlog.pipeline.jobs.replay import (
    DEPTH_LEVELS,
    TOP,
    BookTables,
    ReplayPlan,
    ReplayReport,
    count_replayed,
)
from everlog.pipeline.jobs.report import stored_settings
from everlog.pipeline.jobs.time_spans import BookStates
from everlog.pipeline.sources.base import StreamReader
from everlog.pipeline.sources.queue import QueueFormat
from everlog.pipeline.spark_tasks import default_tasks
from everlog.seq_ranges import Position, SeqRange

PLAN_FILE: Final = "plan.json"
STATES: Final = "books"
Shown = Callable[[ReplayReport], None]


class _Fixed(msgspec.Struct):
    """The settings of a checkpoint; its states of books are valid for no others."""

    queue: str
    tasks: int
    plan: str


def follow_books(  # noqa: PLR0913
    spark: SparkSession,
    queue: str,
    lake: str,
    table: str,
    *,
    settings: BookSettings | None = None,
    depth: int = DEPTH_LEVELS,
    depth_interval_ns: int = NS_PER_S,
    partitions: int | None = None,
    reader: str | None = None,
    checkpoint: str | None = None,
    follow: bool = True,
    options: Mapping[str, str] | None = None,
    shown: Shown | None = None,
) -> ReplayReport:
    """Append to the tables of `replay_books` as messages arrive; the books are stored between batches.

    Runs until it is stopped; without `follow` it ends when it has caught up. A further run continues. With a
    `reader` name the queue's retention waits for it. `options` are those of the format, such as
    `maxRecordsPerBatch`; `checkpoint` defaults to a directory beside the table.
    """
    path = os.path.abspath(queue)
    plan = ReplayPlan(settings or BookSettings(), depth, depth_interval_ns)
    given = {**(options or {}), "path": path, "columns": "seq", "onDataLoss": "record"}
    source = QueueFormat(given).stream_reader()
    with ReaderPosition(path, reader) as position:
        job = _LiveReplay(
            spark, path, plan, partial(plan.tables, lake, table, path), checkpoint, position, shown
        )
        job.fix(partitions or default_tasks(spark))
        return job.run(source, follow)


class _LiveReplay:
    """One run: the batches of a stream update the books."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        plan: ReplayPlan,
        tables: Callable[[], dict[str, TableSpec]],
        checkpoint: str | None,
        position: ReaderPosition,
        shown: Shown | None,
    ) -> None:
        self._spark = spark
        self._path = path
        self._plan = plan
        self._tables = tables
        self._position = position
        self._shown = shown
        top = tables()[TOP].table
        self._checkpoint = checkpoint_folder(top, checkpoint)
        self._states = BookStates(shared_place(top, self._checkpoint).below(STATES))
        self._application = application_of(self._checkpoint, top)
        self._report = ReplayReport(job="replay", source=path, table=top.path)
        self._started_s = time.monotonic()
        self._tasks = 1

    def fix(self, tasks: int) -> None:
        """Take the number of tasks from the checkpoint; refuse one with other settings."""
        wanted = _Fixed(self._path, tasks, repr(self._plan))
        path = os.path.join(self._checkpoint, PLAN_FILE)
        self._tasks = stored_settings(path, wanted, ("queue", "plan")).tasks

    def run(self, source: StreamReader, follow: bool) -> ReplayReport:
        """Run until it has caught up, or until it is stopped."""
        run_batches(source, self._checkpoint, self._replay, follow=follow)
        return self._report

    def _replay(self, batch: Batch) -> None:
        """Apply one batch to the books, commit its rows, and delete the states before it."""
        wanted, number = self._wanted(batch), batch.number
        tables = self._tables()  # anew: symbols may have become known
        specs = [*tables.values()]
        work = self._work(
            wanted, {kind: spec.table.name for kind, spec in tables.items()}, is_first=number == 0
        )
        files = fill_tables(self._spark, specs, self._application, number, work, self._report, replace=False)
        self._position.move_to(wanted.end)
        self._states.drop(wanted.end)
        report = self._report
        report.offsets = {"end": wanted.end}
        report.seconds = time.monotonic() - self._started_s
        count_replayed(report, tables, files)
        if self._shown is not None:
            self._shown(report)

    def _work(self, wanted: SeqRange, names: dict[str, str], *, is_first: bool) -> TaskWork:
        path, plan, tasks, states = self._path, self._plan, self._tasks, self._states

        def work(number: int) -> Iterator[Rows]:
            state = None if is_first else states.read(wanted.first, number)
            books = BookTables(plan, names, state)
            yield from books.replay(path, wanted, TaskFilter(tasks, number))
            states.write(wanted.end, number, books.state())

        return TaskWork(tasks, work)

    def _wanted(self, batch: Batch) -> SeqRange:
        """Return the messages of a batch, which are all of one queue."""
        before, end = Position(**batch.start), Position(**batch.end)
        if before.is_replaced_by(end):
            raise DataLost(
                f"the queue {self._path} was made anew: the books are those before message {before.seq} of "
                f"instance {before.instance}. Replay the new queue into another table"
            )
        return SeqRange(before.seq, end.seq)
