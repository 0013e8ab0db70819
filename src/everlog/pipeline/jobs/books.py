"""The jobs `replay` and `features`: books of every market of a queue, built inside the Spark tasks.

Owns how markets are dealt to tasks and what the tables hold. A task reads the queue's segments itself and
returns only results; books and formulas are those of `everlog.market`, so the numbers are the same as on one
machine. A table always holds one whole run: a run over the same messages changes nothing, one over more
replaces it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from everlog.errors import InvalidConfig
from everlog.market import BookSet, BookSettings, Market, Outputs
from everlog.market.feature_rows import Feature, row_dtype
from everlog.market.packing import gather_field
from everlog.market.protocol import TypeId
from everlog.market.replay import Messages, Replay, book_headers
from everlog.market.triggers import Always, Trigger
from everlog.pipeline import queue_ranges
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import LakeTable

NS_PER_DAY: Final = 86_400_000_000_000
_MARKET_FIELDS: Final = (
    pa.field("venue_id", pa.int32()),
    pa.field("market_id", pa.int64()),
    pa.field("date", pa.date32()),
)
TOP_SCHEMA: Final = pa.schema(
    [
        *_MARKET_FIELDS,
        pa.field("seq", pa.int64()),
        pa.field("ts_ns", pa.int64()),
        pa.field("exchange_ts_ns", pa.int64()),
        pa.field("price_scale", pa.int32()),
        pa.field("size_scale", pa.int32()),
        pa.field("bid_price", pa.int64()),
        pa.field("bid_size", pa.int64()),
        pa.field("ask_price", pa.int64()),
        pa.field("ask_size", pa.int64()),
    ]
)
"""Prices and sizes are integers, to be divided by ten to their scale. A size of 0 means an empty side."""

Results = Iterator[pa.RecordBatch]


def replay_books(
    spark: SparkSession,
    queue: str,
    lake: str,
    table: str,
    *,
    settings: BookSettings | None = None,
    partitions: int | None = None,
) -> RunReport:
    """Write the top of the book of every market after each of its events, partitioned by date."""
    chosen = settings or BookSettings()

    def tops(replay: Replay) -> Results:
        books = BookSet(chosen)
        for some in replay.types(TypeId.BOOK_EVENT).batches():
            headers = book_headers(some.packed)
            for market, (events, result) in books.apply_packed(some.packed, Outputs()).items():
                assert result.top is not None, "it was asked for"
                columns: dict[str, Any] = {name: result.top[name] for name in result.top.dtype.names or ()}
                columns |= {
                    "seq": some.seq[events],
                    "ts_ns": some.timestamp_ns[events],
                    "exchange_ts_ns": headers["exchange_ts_ns"][events],
                    "price_scale": np.full(len(events), result.price_scale),
                    "size_scale": np.full(len(events), result.size_scale),
                }
                yield _batch(TOP_SCHEMA, market, columns, some.timestamp_ns[events])

    job = _BookJob("replay", queue, LakeTable(lake, table), TOP_SCHEMA, repr(chosen))
    return job.run(spark, tops, partitions)


def features_of_books(
    spark: SparkSession,
    queue: str,
    lake: str,
    table: str,
    features: Sequence[Feature],
    *,
    trigger: Trigger | None = None,
    settings: BookSettings | None = None,
    partitions: int | None = None,
) -> RunReport:
    """Write the features of every market, a row whenever the trigger fires, partitioned by date.

    The rows of a market are those of `Replay(queue).features(...)`, bit for bit. `GlobalTime` has to be among
    the features: it says to which day a row belongs.
    """
    chosen, fired_by, books = tuple(features), trigger or Always(), settings or BookSettings()
    dtype = row_dtype(chosen)
    names = dtype.names or ()
    fields = [pa.field(name, _signed(pa.from_numpy_dtype(dtype[name]))) for name in names]
    schema = pa.schema([*_MARKET_FIELDS, *fields])

    def rows(replay: Replay) -> Results:
        for market, table_rows in replay.features(chosen, books).trigger(fired_by).tables():
            columns = {name: table_rows[name] for name in names}
            yield _batch(schema, market, columns, table_rows["ingest_ts_ns"])

    what = repr([names, books, type(fired_by).__name__, sorted(vars(fired_by).items(), key=str)])
    job = _BookJob("features", queue, LakeTable(lake, table), schema, what)
    return job.run(spark, rows, partitions)


class _BookJob:
    """One run over all messages that the queue holds when it starts."""

    def __init__(self, name: str, queue: str, table: LakeTable, schema: pa.Schema, what: str) -> None:
        self._queue = os.path.abspath(queue)
        self._table = table
        self._schema = schema
        # The same work on the same queue has the same name, so that it is not done twice.
        digest = hashlib.blake2b(f"{self._queue}\n{what}".encode(), digest_size=8).hexdigest()
        self._application = f"{name}-{digest}"
        self._report = RunReport(job=name, source=self._queue, table=table.path)

    def run(
        self, spark: SparkSession, results: Callable[[Replay], Results], partitions: int | None
    ) -> RunReport:
        """Deal the markets to tasks, and commit what they return as the table's content."""
        started_s = time.monotonic()
        held = queue_ranges.bounds(self._queue)
        committed = self._table.committed_batch(self._application)
        if committed is not None and committed > held.end:
            raise InvalidConfig(
                f"table {self._table.path} holds a run over the messages up to {committed}, but the queue "
                f"ends at {held.end}; was it made anew? Use another table"
            )
        tasks = partitions or spark.sparkContext.defaultParallelism
        queue = self._queue

        def task(batches: Results) -> Results:
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    mine = Replay(queue, from_seq=held.first).where(_DealtMarkets(tasks, number, held.end))
                    yield from results(mine)

        frame = spark.range(tasks, numPartitions=tasks).mapInArrow(task, from_arrow_schema(self._schema))
        written = self._table.append(frame, self._application, held.end, ("date",), replace=True)
        report = self._report
        report.rows, report.files, report.version = written.rows, written.files, written.version
        report.batches = 0 if written.is_repeat else 1
        report.offsets = {"first": held.first, "end": held.end}
        report.seconds = time.monotonic() - started_s
        return report


class _DealtMarkets:
    """Passes the book events of the markets that fall to one task, up to the end of the run."""

    def __init__(self, tasks: int, number: int, end_seq: int) -> None:
        self._tasks = tasks
        self._number = number
        self._end_seq = end_seq

    def __call__(self, some: Messages) -> np.ndarray[Any, Any]:
        keep: np.ndarray[Any, Any] = (some.seq < np.uint64(self._end_seq)) & (
            some.type_id == TypeId.BOOK_EVENT
        )
        books = some.where(keep)
        market_ids = gather_field(books.packed, "market_id")
        # Spread by a product, since ids of one venue often have a common divisor.
        mixed = market_ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
        keep[keep] = mixed % np.uint64(self._tasks) == self._number
        return keep


def _batch(schema: pa.Schema, market: Market, columns: dict[str, Any], times_ns: Any) -> pa.RecordBatch:
    count = len(times_ns)
    days = (times_ns // np.uint64(NS_PER_DAY)).astype(np.int32)
    arrays = [
        pa.repeat(pa.scalar(market.venue_id, pa.int32()), count),
        pa.repeat(pa.scalar(market.market_id, pa.int64()), count),
        pa.array(days, pa.int32()).cast(pa.date32()),
    ]
    for field in list(schema)[len(arrays) :]:
        values = np.ascontiguousarray(columns[field.name])
        arrays.append(pa.array(values.astype(field.type.to_pandas_dtype())))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _signed(kind: pa.DataType) -> pa.DataType:
    """Spark has no unsigned numbers; times in nanoseconds fit into signed ones until 2262."""
    return pa.int64() if pa.types.is_uint64(kind) else kind
