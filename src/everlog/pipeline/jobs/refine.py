"""The job `refine`: a raw queue of a venue to queues by symbol, day and stream, in parallel over symbols.

Assigns symbols to tasks, stores where a root began, and fills the table of late messages. What is written is
decided by `everlog.pipeline.refinery`. Tasks read the raw segments themselves and return counts only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from everlog.errors import DataLost, InvalidConfig
from everlog.fs import OsFs
from everlog.pipeline import queue_ranges
from everlog.pipeline.jobs.market_tasks import Rows, TableSpec, TaskWork, application_name, fill_tables
from everlog.pipeline.jobs.report import RunReport, stored_settings
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.refinery import LAYOUT_VERSION, Counts, Refinery, RefinerySettings, Symbols
from everlog.pipeline.spark_tasks import default_tasks, run_in_tasks
from everlog.queue.control import ControlBlock
from everlog.seq_ranges import Gap, SeqRange

ORIGIN_FILE: Final = "refined.json"


class RefineReport(RunReport, kw_only=True):
    """One run: how many messages of each kind were written, and how many were there before."""

    books: int = 0
    trades: int = 0
    late: int = 0
    snapshots: int = 0
    known: int = 0


LATE_SCHEMA: Final = pa.schema(
    [
        pa.field("date", pa.date32()),
        pa.field("venue", pa.string()),
        pa.field("symbol", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("ts_ns", pa.int64()),
        pa.field("type_id", pa.int32()),
        pa.field("payload", pa.binary()),
    ]
)
"""A message that arrived after its day: `date` is the day it belongs to, `seq` counts in its queue."""


class LateTable(NamedTuple):
    """The table of late messages; one for each directory of refined queues."""

    lake: str
    table: str = "late"


class _Origin(msgspec.Struct):
    """The source of the refined queues of a venue; a run with another one would mix two sources."""

    queue: str
    first_seq: int
    settings: RefinerySettings


def refine(
    spark: SparkSession,
    queue: str,
    root: str,
    venue: str,
    symbols: Sequence[str],
    *,
    settings: RefinerySettings | None = None,
    late: LateTable | None = None,
    partitions: int | None = None,
) -> RefineReport:
    """Refine everything that the raw queue holds now into `<root>/v1/<venue>/<symbol>/<date>/<stream>`.

    Late messages are in the queues `late`; with a `late` table they are there as well, in the partitions of
    the day and the venue. A further run adds what is new; nothing is written twice. The raw queue must still
    have the first message of the first run: what is in a refined queue follows from all before it.
    """
    started_s = time.monotonic()
    if not symbols:
        raise InvalidConfig("refining needs the symbols of the queue")
    named, chosen = Symbols(venue, symbols), settings or RefinerySettings()
    path, target = os.path.abspath(queue), os.path.abspath(root)
    held = queue_ranges.bounds(path)
    first = _first_seq(os.path.join(target, LAYOUT_VERSION, named.venue), path, held, chosen)
    tasks = min(len(named.names), partitions or default_tasks(spark))

    def task(number: int) -> Iterator[Counts]:
        mine = range(number, len(named.names), tasks)
        yield refine_symbols(path, SeqRange(first, held.end), Refinery(target, named, mine, chosen))

    done = sum(run_in_tasks(spark, tasks, task), Counts())
    report = RefineReport(job="refine", source=path, table=target, **done._asdict())
    report.rows = done.books + done.trades + done.late + done.snapshots
    report.batches = 1 if report.rows else 0
    report.offsets = {"first": first, "end": held.end}
    if late is not None:
        _fill_late_table(spark, target, named, late, report)
    report.seconds = time.monotonic() - started_s
    return report


def refine_symbols(queue: str, wanted: SeqRange, refinery: Refinery) -> Counts:
    """Refine the messages of a range; raises `DataLost` for a gap."""
    for piece in queue_ranges.read(queue, wanted, batch_records=queue_ranges.LARGE_BATCH_RECORDS):
        if isinstance(piece, Gap):
            raise DataLost(
                f"messages {piece.first} to {piece.end - 1} of {queue} are gone ({piece.reason}), and what "
                "is refined follows from all of them; refine into another directory"
            )
        refinery.add(piece)
    return refinery.close()


def _fill_late_table(
    spark: SparkSession, root: str, symbols: Symbols, late: LateTable, report: RefineReport
) -> None:
    """Replace the late messages of this venue in the table; one transaction for each end of the raw queue."""
    spec = TableSpec(LakeTable(late.lake, late.table), LATE_SCHEMA, ("date", "venue"))
    parent = os.path.join(root, LAYOUT_VERSION, symbols.venue)
    tasks = min(len(symbols.codes), default_tasks(spark))

    def work(number: int) -> Iterator[Rows]:
        for one in range(number, len(symbols.codes), tasks):
            for batch in _late_rows(parent, symbols.venue, symbols.codes[one]):
                yield Rows(spec.table.name, (), batch)

    done = RunReport(job="refine", source=root, table=spec.table.path)
    application = application_name("refine", root, symbols.venue)
    end = report.offsets["end"]
    shared = TaskWork(tasks, work)
    fill_tables(spark, [spec], application, end, shared, done, replace={"venue": symbols.venue})
    report.files, report.version = done.files, done.version


def _late_rows(parent: str, venue: str, code: str) -> Iterator[pa.RecordBatch]:
    """Yield the messages of all `late` queues of a symbol."""
    folder = os.path.join(parent, code)
    for day in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = os.path.join(folder, day, "late")
        if not ControlBlock.is_ready(OsFs(), path):
            continue
        for piece in queue_ranges.read(path, queue_ranges.bounds(path)):
            assert not isinstance(piece, Gap), "a refined queue loses nothing"
            data, begins = piece.joined()
            count = len(piece)
            texts = [pa.repeat(pa.scalar(text), count) for text in (venue, code)]
            payloads = [None, pa.py_buffer(begins), pa.py_buffer(data)]
            columns = [
                pa.repeat(pa.scalar(date.fromisoformat(day), pa.date32()), count),
                *texts,
                pa.array(piece.seq.astype(np.int64)),
                pa.array(piece.timestamp_ns.astype(np.int64)),
                pa.array(piece.type_id.astype(np.int32)),
                pa.Array.from_buffers(pa.binary(), count, payloads),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=LATE_SCHEMA)


def _first_seq(parent: str, queue: str, held: SeqRange, settings: RefinerySettings) -> int:
    """Return the seq with which this root began, which the first run stores."""
    wanted = _Origin(queue, held.first, settings)
    origin = stored_settings(os.path.join(parent, ORIGIN_FILE), wanted, ("queue", "settings"))
    if origin.first_seq < held.first:
        raise DataLost(
            f"{parent} was refined from message {origin.first_seq} on, but {queue} begins at {held.first}; "
            "keep more of the raw queue, or refine into another directory"
        )
    return origin.first_seq
