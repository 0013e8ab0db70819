"""Tasks that build books: how messages are assigned to tasks, and how the files of tasks are committed.

A task reads the queue's segments and writes its files itself, so only the names of files go through the
driver. What the tables hold is up to the jobs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from everlog.errors import Corrupt, InvalidConfig
from everlog.market import BookSet, Market
from everlog.market.packing import gather_field
from everlog.market.protocol import HEADER_BYTES, TRADE, BookMode, TypeId, folded_hash
from everlog.market.replay import Messages
from everlog.pipeline import market_sources, queue_ranges
from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_files import TableFiles
from everlog.pipeline.lake_places import LakePlace
from everlog.pipeline.spark_tasks import default_tasks, run_in_tasks
from everlog.pipeline.symbols import catalogue_of
from everlog.pipeline.tables.rows import Names, rows_of
from everlog.pipeline.tables.schemas import TableSchema
from everlog.queue.batch import Batch
from everlog.seq_ranges import Gap, SeqRange

EVENTS_A_MARKET: Final = 100
"""With fewer events of each in a batch, the cost for each market in a batch dominates."""
LARGEST_BATCH_RECORDS: Final = 1 << 18

TABLE_ROWS: Final = 1 << 15
"""What is computed becomes rows of its table in such portions: names are looked up once for many markets."""
MARKET_FIELDS: Final = (pa.field("venue_id", pa.int32()), pa.field("market_id", pa.int64()))
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class TableRows(NamedTuple):
    """Makes rows of a table of what was computed from a queue: with names, times and prices."""

    schema: TableSchema
    names: Names
    source: str
    instance: str | None

    def __call__(self, computed: pa.RecordBatch) -> pa.RecordBatch:
        """Return computed columns as rows."""
        count = computed.num_rows
        origin = {"source": self.source, "instance": self.instance, "kind": "computed"}
        found = {name: pa.repeat(pa.scalar(text, pa.string()), count) for name, text in origin.items()}
        found |= dict(zip(computed.schema.names, computed.columns, strict=True))
        return rows_of(self.schema, found, self.names)


class TableSpec(NamedTuple):
    """A table that a job fills; `rows` makes its rows of what tasks compute, else they are rows already."""

    table: LakeTable
    schema: pa.Schema
    partition_by: tuple[str, ...]
    rows: TableRows | None = None

    @classmethod
    def computed(cls, lake: str, table: str, schema: TableSchema, queue: str) -> Self:
        """Return a table of what is computed from a queue."""
        names = Names(catalogue_of(lake, queue))
        rows = TableRows(schema, names, queue, market_sources.instance_of(queue))
        return cls(LakeTable(lake, table), schema.arrow, schema.partition_by, rows)


class Rows(NamedTuple):
    """Rows for one of the job's tables, and the markets that they are of."""

    table: str
    markets: Collection[Market]
    batch: pa.RecordBatch


class TaskWork(NamedTuple):
    """What the tasks of a run do."""

    tasks: int
    run: Callable[[int], Iterator[Rows]]
    """The work of a task, given its number."""
    groups: int | None = None
    """Tasks whose numbers differ by a multiple of this have the same markets; None: each has its own."""
    prepare: Callable[[], object] = lambda: None
    """Called before the tasks, if there is something to do."""


Files = dict[str, list[dict[str, Any]]]
"""The files that the tasks of a run have written, by table."""


def fill_tables(
    spark: SparkSession,
    specs: Sequence[TableSpec],
    application: str,
    batch: int,
    work: TaskWork,
    report: RunReport,
    *,
    replace: bool | Mapping[str, str],
) -> Files | None:
    """Run the tasks and commit each table; return the files, or None if the batch was committed before.

    A run that was killed between two of the commits is repeated, and commits what is missing.
    """
    repeats = [one.table.repeated(application, batch) for one in specs]
    if repeats[0] is not None and None not in repeats:
        report.version = repeats[0].version
        return None
    for spec in specs:
        if replace is not True:
            spec.table.check_append(spec.schema)
        else:
            spec.table.check_replace()
    work.prepare()
    files = _run_tasks(spark, specs, work)
    for spec, repeat in zip(specs, repeats, strict=True):
        name, partition_by = spec.table.name, spec.partition_by
        done = repeat or spec.table.commit(
            files[name], spec.schema, application, batch, partition_by, replace=replace
        )
        report.files += done.files
        if spec is specs[0]:
            report.rows += done.rows
            report.version = done.version
    report.batches += 1
    return files


def fill_from_queue(
    spark: SparkSession,
    path: str,
    specs: Sequence[TableSpec],
    what: str,
    report: RunReport,
    partitions: int | None,
    work: Callable[[SeqRange, int], TaskWork],
) -> Files | None:
    """Replace the tables by what `work` makes of all messages that a queue or an archive holds now.

    `work` gets the range and how many tasks there may be. `what` describes it: a second run of the same work
    over the same messages changes nothing.
    """
    held = market_sources.bounds(path)
    # A run by an earlier version made other columns.
    application = application_name(report.job, path, f"{what} {[spec.schema.names for spec in specs]}")
    committed = specs[0].table.committed_batch(application)
    if committed is not None and committed > held.end:
        raise InvalidConfig(
            f"table {specs[0].table.path} holds a run over the messages up to {committed}, but the queue "
            f"ends at {held.end}; was it created again? Use another table"
        )
    report.offsets = {"first": held.first, "end": held.end}
    shared = work(held, partitions or default_tasks(spark))
    return fill_tables(spark, specs, application, held.end, shared, report, replace=True)


def application_name(job: str, path: str, what: str) -> str:
    """Return the name of a run: the same for the same work on the same queue, so that it is not repeated."""
    digest = hashlib.blake2b(f"{path}\n{what}".encode(), digest_size=8).hexdigest()
    return f"{job}-{digest}"


class _Done(NamedTuple):
    """What one task has done: its files, each with its table, and the markets of their rows."""

    files: list[tuple[str, dict[str, Any]]]
    markets: set[Market]


def _run_tasks(spark: SparkSession, specs: Sequence[TableSpec], work: TaskWork) -> Files:
    """Write the rows of all tasks to files; they are not part of a table yet."""
    run, groups = work.run, work.groups or work.tasks
    targets = {one.table.name: (one.table.place, one.partition_by, one.rows) for one in specs}

    def task(number: int) -> Iterator[_Done]:
        files = {name: TaskFiles(*target) for name, target in targets.items()}
        done = _Done([], set())
        for rows in run(number):
            done.markets.update(rows.markets)
            done.files.extend((rows.table, file) for file in files[rows.table].write(rows.batch))
        for name, one in files.items():
            done.files.extend((name, file) for file in one.finish())
        yield done

    by_table: Files = {name: [] for name in targets}
    seen: dict[Market, int] = {}
    for number, did in enumerate(run_in_tasks(spark, work.tasks, task)):
        for table, file in did.files:
            by_table[table].append(file)
        for market in did.markets:
            if seen.setdefault(market, number % groups) != number % groups:
                raise Corrupt(
                    f"orders of market {market.market_id} of venue {market.venue_id} are on two channels "
                    "that two tasks read; run the job with one partition"
                )
    return by_table


class TaskFiles:
    """The files of one table that a task writes; many small batches become rows together."""

    def __init__(self, place: LakePlace, partition_by: tuple[str, ...], rows: TableRows | None) -> None:
        """`rows` makes the rows of the table of what was computed."""
        self._files = TableFiles(place, partition_by)
        self._rows = rows
        self._waiting: list[pa.RecordBatch] = []
        self._count = 0

    def write(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Add what was computed; yield files that had to be closed for it."""
        self._waiting.append(batch)
        self._count += batch.num_rows
        if self._count >= TABLE_ROWS:
            yield from self._flush()

    def finish(self) -> Iterator[dict[str, Any]]:
        """Close all files; yield the description of each."""
        yield from self._flush()
        yield from self._files.finish()

    def _flush(self) -> Iterator[dict[str, Any]]:
        if self._count:
            (batch,) = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()
            yield from self._files.write(batch if self._rows is None else self._rows(batch))
        self._waiting, self._count = [], 0


# --- Assigning messages to tasks ---------------------------------------------------------------------------


class TaskFilter:
    """Selects the messages of one task: the books of its markets, or the trades of its symbols.

    Price levels are assigned by market. Orders are assigned by channel: the numbers of a channel run over all
    its markets, so the task that checks them needs all of them. Trades are assigned by symbol, or to the task
    of their market's price levels.
    """

    def __init__(self, tasks: int, number: int, *, trades: bool = False, by_market: bool = False) -> None:
        self._tasks = np.uint64(tasks)
        self._number = np.uint64(number)
        self._type_id = TypeId.TRADE if trades else TypeId.BOOK_EVENT
        self._bytes_min = TRADE.itemsize if trades else HEADER_BYTES
        self._keys = (_trade_market_keys if by_market else _trade_keys) if trades else _book_keys

    def of_trades(self) -> TaskFilter:
        """Return the filter that selects the trades of this task's markets of price levels."""
        return TaskFilter(int(self._tasks), int(self._number), trades=True, by_market=True)

    def of_batch(self, batch: Batch) -> Messages:
        """Return the selected messages of a batch."""
        whole = Messages(batch, np.arange(len(batch)))
        # The usual case of a queue that one task reads: no message has to be looked at.
        if (
            self._tasks == 1
            and batch.common_type_id == self._type_id
            and (batch.common_length or 0) >= self._bytes_min
        ):
            return whole
        return whole.where(self(whole))

    def __call__(self, some: Messages) -> NDArray[np.bool_]:
        """Return for each message whether it is selected."""
        keep: NDArray[np.bool_] = some.type_id == self._type_id
        if not keep.any():
            return keep
        wanted = some if keep.all() else some.where(keep)
        short = wanted.length < self._bytes_min
        if short.any():
            seq = int(wanted.seq[int(short.argmax())])
            raise Corrupt(
                f"message {seq} has {int(wanted.length[int(short.argmax())])} bytes, its type has at least "
                f"{self._bytes_min}; another program wrote it"
            )
        if self._tasks > 1:
            keep[keep] = _spread(self._keys(wanted)) % self._tasks == self._number
        return keep


def spread_book_keys(some: Messages) -> NDArray[np.uint64]:
    """Return for each book event the number that, modulo the tasks, is that of its task."""
    return _spread(_book_keys(some))


def _spread(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return keys * _SPREAD >> np.uint64(32)


def _book_keys(some: Messages) -> NDArray[np.uint64]:
    packed = some.packed
    modes = gather_field(packed, "book_mode")
    is_orders = modes == BookMode.L3
    if is_orders.all():
        return gather_field(packed, "stream_id").astype(np.uint64)
    markets = gather_field(packed, "market_id").astype(np.uint64)
    if not is_orders.any():
        return markets
    return np.where(is_orders, gather_field(packed, "stream_id").astype(np.uint64), markets)


def _trade_keys(some: Messages) -> NDArray[np.uint64]:
    data, _ = some.batch.joined(some.chosen)
    keys: NDArray[np.uint64] = data.view(TRADE)["symbol_hash"].astype(np.uint64)
    return keys


def _trade_market_keys(some: Messages) -> NDArray[np.uint64]:
    return folded_hash(_trade_keys(some))


def task_messages(
    path: str, wanted: SeqRange, selects: TaskFilter, books: BookSet | None = None
) -> Iterator[Messages | Gap]:
    """Yield the messages of a task in a range, and the gaps; a batch is valid until the next one.

    With `books`, batches are small while there are few markets: results then stay in the caches.
    """
    freeze_loaded_modules()

    def read_next(reader: market_sources.Reader, limit: int) -> Batch:
        largest = queue_ranges.LARGE_BATCH_RECORDS
        if books is not None:
            largest = min(len(books.books) * EVENTS_A_MARKET, LARGEST_BATCH_RECORDS)
        return reader.read_batch(min(limit, max(largest, queue_ranges.BATCH_RECORDS)))

    for piece in market_sources.read(path, wanted, read_next=read_next):
        if isinstance(piece, Gap):
            yield piece
            continue
        some = selects.of_batch(piece)
        if len(some.chosen):
            yield some


# --- Rows --------------------------------------------------------------------------------------------------


def computed_batch(schema: pa.Schema, columns: dict[str, Any]) -> pa.RecordBatch:
    """Return what was computed as rows with the columns of a schema, given as arrays of either library."""
    arrays = []
    for field in schema:
        values = columns[field.name]
        if not isinstance(values, pa.Array):
            values = pa.array(np.ascontiguousarray(values, dtype=field.type.to_pandas_dtype()))
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def signed(kind: pa.DataType) -> pa.DataType:
    """Spark has no unsigned numbers; times in nanoseconds fit into signed ones until 2262."""
    return pa.int64() if pa.types.is_uint64(kind) else kind
