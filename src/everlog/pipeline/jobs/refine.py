"""The job `refine`: a raw queue of a venue to queues by symbol, day and stream, in parallel over symbols.

Owns how symbols are dealt to tasks and the record of where a root began; what is written is decided by
`everlog.pipeline.refinery`. Tasks read the raw segments themselves, so only counts travel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from everlog.errors import DataLost, InvalidConfig
from everlog.fs import OsFs, replace_file
from everlog.pipeline import queue_ranges
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.queue_ranges import Lost, SeqRange
from everlog.pipeline.refinery import LAYOUT_VERSION, Counts, Refinery, RefinerySettings, Symbols

ORIGIN_FILE: Final = "refined.json"
_COUNTS_SCHEMA: Final = pa.schema([pa.field(name, pa.int64()) for name in Counts._fields])


class RefineReport(RunReport, kw_only=True):
    """One run: how many messages of each kind were written, and how many were there before."""

    books: int = 0
    trades: int = 0
    late: int = 0
    snapshots: int = 0
    known: int = 0


class _Origin(msgspec.Struct):
    """Where the refined queues of a venue come from; a run that differs would mix two sources."""

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
    partitions: int | None = None,
) -> RefineReport:
    """Refine everything that the raw queue holds now into `<root>/v1/<venue>/<symbol>/<date>/<stream>`.

    Run it again for what has come since; nothing is written twice. The raw queue has to be there from the
    message with which the first run began: what is in a refined queue follows from all before it.
    """
    started_s = time.monotonic()
    if not symbols:
        raise InvalidConfig("refining needs the symbols of the queue")
    named, chosen = Symbols(venue, symbols), settings or RefinerySettings()
    path, target = os.path.abspath(queue), os.path.abspath(root)
    held = queue_ranges.bounds(path)
    first = _first_seq(os.path.join(target, LAYOUT_VERSION, named.venue), path, held, chosen)
    tasks = min(len(named.names), partitions or spark.sparkContext.defaultParallelism)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                mine = range(number, len(named.names), tasks)
                counts = refine_symbols(
                    path, SeqRange(first, held.end), Refinery(target, named, mine, chosen)
                )
                yield pa.RecordBatch.from_pylist([counts._asdict()], schema=_COUNTS_SCHEMA)

    frame = spark.range(tasks, numPartitions=tasks).mapInArrow(task, from_arrow_schema(_COUNTS_SCHEMA))
    done = sum((Counts(**row.asDict()) for row in frame.collect()), Counts())
    report = RefineReport(job="refine", source=path, table=target, **done._asdict())
    report.rows = done.books + done.trades + done.late + done.snapshots
    report.batches = 1 if report.rows else 0
    report.offsets = {"first": first, "end": held.end}
    report.seconds = time.monotonic() - started_s
    return report


def refine_symbols(queue: str, wanted: SeqRange, refinery: Refinery) -> Counts:
    """Give a refinery the messages of a range, and finish it; a message that is gone ends it."""
    for piece in queue_ranges.read(queue, wanted):
        if isinstance(piece, Lost):
            raise DataLost(
                f"messages {piece.first} to {piece.end - 1} of {queue} are gone ({piece.reason}), and what "
                "is refined follows from all of them; refine into another directory"
            )
        refinery.take(piece)
    return refinery.close()


def _first_seq(parent: str, queue: str, held: SeqRange, settings: RefinerySettings) -> int:
    """Return the seq with which this root began; the first run decides it."""
    path = os.path.join(parent, ORIGIN_FILE)
    try:
        with open(path, "rb") as file:
            origin = msgspec.json.decode(file.read(), type=_Origin)
    except FileNotFoundError:
        os.makedirs(parent, exist_ok=True)
        origin = _Origin(queue, held.first, settings)
        replace_file(OsFs(), path, msgspec.json.encode(origin))
    expected: dict[str, Any] = {"queue": queue, "settings": settings}
    for name, value in expected.items():
        if getattr(origin, name) != value:
            raise InvalidConfig(
                f"{parent} was refined from another {name} ({getattr(origin, name)}); use another directory"
            )
    if origin.first_seq < held.first:
        raise DataLost(
            f"{parent} was refined from message {origin.first_seq} on, but {queue} begins at {held.first}; "
            "keep more of the raw queue, or refine into another directory"
        )
    return origin.first_seq
