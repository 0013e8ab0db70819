"""Tasks that build books: how messages are assigned to tasks, and how the files of tasks are committed.

A task reads the queue's segments and writes its files itself, so only the names of files go through the
driver. What the tables hold is up to the jobs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from everlog.errors import Corrupt, InvalidConfig
from everlog.market import BookSet, Market
from everlog.market.packing import PackedRecords, gather_field
from everlog.market.protocol import HEADER_BYTES, TRADE, BookMode, TypeId, folded_hash
from everlog.market.replay import Messages
from everlog.pipeline import queue_ranges
from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_files import TableFiles
from everlog.pipeline.spark_tasks import default_tasks, run_in_tasks
from everlog.queue.batch import Batch
from everlog.queue.layout import HEADER_SIZE
from everlog.queue.reader import QueueReader
from everlog.seq_ranges import Gap, SeqRange

NS_PER_DAY: Final = 86_400_000_000_000
FEW_MARKETS: Final = 200
"""With more of them, the cost for each market in a batch dominates, so batches are large."""

MARKET_FIELDS: Final = (
    pa.field("date", pa.date32()),
    pa.field("venue_id", pa.int32()),
    pa.field("market_id", pa.int64()),
)
MARKET_PARTITIONS: Final = ("date", "venue_id")
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class TableSpec(NamedTuple):
    """A table that a job fills."""

    table: LakeTable
    schema: pa.Schema
    partition_by: tuple[str, ...] = MARKET_PARTITIONS


class Rows(NamedTuple):
    """Rows for one of the job's tables; `market` is None if they are not of a single one."""

    table: str
    market: Market | None
    batch: pa.RecordBatch


Work = Callable[[int], Iterator[Rows]]
"""The work of a task, given its number."""


Files = dict[str, list[dict[str, Any]]]
"""The files that the tasks of a run have written, by table."""


def fill_tables(
    spark: SparkSession,
    specs: Sequence[TableSpec],
    application: str,
    batch: int,
    tasks: int,
    work: Work,
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
    files = _run_tasks(spark, specs, tasks, work)
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
    work: Callable[[SeqRange, int, int], Iterator[Rows]],
) -> Files | None:
    """Replace the tables by what `work` makes of all messages that the queue holds now.

    `work` gets the range, the number of tasks and its own number. `what` describes it: a second run of the
    same work over the same messages changes nothing.
    """
    held = queue_ranges.bounds(path)
    application = application_name(report.job, path, what)
    committed = specs[0].table.committed_batch(application)
    if committed is not None and committed > held.end:
        raise InvalidConfig(
            f"table {specs[0].table.path} holds a run over the messages up to {committed}, but the queue "
            f"ends at {held.end}; was it created again? Use another table"
        )
    report.offsets = {"first": held.first, "end": held.end}
    tasks = partitions or default_tasks(spark)
    task = partial(work, held, tasks)
    return fill_tables(spark, specs, application, held.end, tasks, task, report, replace=True)


def application_name(job: str, path: str, what: str) -> str:
    """Return the name of a run: the same for the same work on the same queue, so that it is not repeated."""
    digest = hashlib.blake2b(f"{path}\n{what}".encode(), digest_size=8).hexdigest()
    return f"{job}-{digest}"


class _Done(NamedTuple):
    """What one task has done: its files, each with its table, and the markets of their rows."""

    files: list[tuple[str, dict[str, Any]]]
    markets: set[Market]


def _run_tasks(spark: SparkSession, specs: Sequence[TableSpec], tasks: int, work: Work) -> Files:
    """Write the rows of all tasks to files; they are not part of a table yet."""
    places = {one.table.name: (one.table.place, one.partition_by) for one in specs}

    def task(number: int) -> Iterator[_Done]:
        files = {name: TableFiles(place, partition_by) for name, (place, partition_by) in places.items()}
        done = _Done([], set())
        for rows in work(number):
            if rows.market is not None:
                done.markets.add(rows.market)
            done.files.extend((rows.table, file) for file in files[rows.table].write(rows.batch))
        for name, one in files.items():
            done.files.extend((name, file) for file in one.finish())
        yield done

    by_table: Files = {name: [] for name in places}
    seen: dict[Market, int] = {}
    for number, did in enumerate(run_in_tasks(spark, tasks, task)):
        for table, file in did.files:
            by_table[table].append(file)
        for market in did.markets:
            if seen.setdefault(market, number) != number:
                raise Corrupt(
                    f"orders of market {market.market_id} of venue {market.venue_id} are on two channels "
                    "that two tasks read; run the job with one partition"
                )
    return by_table


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

    def of_batch(self, batch: Batch) -> NDArray[np.intp] | None:
        """Return the indexes of the selected messages of a batch; None if all are."""
        # The usual case of a queue that one task reads: no message has to be looked at.
        if (
            self._tasks == 1
            and batch.common_type_id == self._type_id
            and (batch.common_length or 0) >= self._bytes_min
        ):
            return None
        keep = self(Messages(batch, np.arange(len(batch))))
        return None if keep.all() else np.flatnonzero(keep)

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
            mixed = self._keys(wanted) * _SPREAD >> np.uint64(32)
            keep[keep] = mixed % self._tasks == self._number
        return keep


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


class TaskMessages(NamedTuple):
    """The messages of a batch that belong to a task; `chosen` is None if all of them do."""

    batch: Batch
    chosen: NDArray[np.intp] | None

    @property
    def seq(self) -> NDArray[np.uint64]:
        """Each message's seq."""
        return self.batch.seq if self.chosen is None else self.batch.seq[self.chosen]

    @property
    def timestamp_ns(self) -> NDArray[np.uint64]:
        """Each message's ingest time."""
        return self.batch.timestamp_ns if self.chosen is None else self.batch.timestamp_ns[self.chosen]

    @property
    def flags(self) -> NDArray[np.uint16]:
        """Each message's flags."""
        chosen = np.arange(len(self.batch)) if self.chosen is None else self.chosen
        return Messages(self.batch, chosen).flags

    @property
    def packed(self) -> PackedRecords:
        """The payloads, without a copy."""
        offsets, lengths = self.batch.offset, self.batch.length
        stride = 0 if self.batch.common_length is None else self.batch.stride
        if self.chosen is not None:
            offsets, lengths, stride = offsets[self.chosen], lengths[self.chosen], 0
        offsets += np.uint64(HEADER_SIZE)
        return PackedRecords(self.batch.segment, offsets, lengths.astype(np.uint64), stride)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.batch) if self.chosen is None else len(self.chosen)


def task_messages(
    path: str, wanted: SeqRange, selects: TaskFilter, books: BookSet | None = None
) -> Iterator[TaskMessages | Gap]:
    """Yield the messages of a task in a range, and the gaps; a batch is valid until the next one.

    With `books`, batches are small while there are few markets: results then stay in the caches.
    """
    freeze_loaded_modules()

    def read_next(reader: QueueReader, limit: int) -> Batch:
        are_few = books is not None and len(books.books) <= FEW_MARKETS
        largest = queue_ranges.BATCH_RECORDS if are_few else queue_ranges.LARGE_BATCH_RECORDS
        return reader.read_batch(min(limit, largest))

    for piece in queue_ranges.read(path, wanted, read_next=read_next):
        if isinstance(piece, Gap):
            yield piece
            continue
        chosen = selects.of_batch(piece)
        if chosen is None or len(chosen):
            yield TaskMessages(piece, chosen)


# --- Rows --------------------------------------------------------------------------------------------------


def dates(times_ns: NDArray[Any]) -> pa.Array:
    """Return the UTC days of times."""
    days = (np.asarray(times_ns, dtype=np.uint64) // np.uint64(NS_PER_DAY)).astype(np.int32)
    return pa.array(days, pa.int32()).cast(pa.date32())


def market_batch(
    schema: pa.Schema, market: Market, columns: dict[str, Any], times_ns: NDArray[Any]
) -> pa.RecordBatch:
    """Return rows of one market; `columns` has all but `MARKET_FIELDS`, as arrays of either library."""
    count = len(times_ns)
    arrays = [
        dates(times_ns),
        pa.repeat(pa.scalar(market.venue_id, pa.int32()), count),
        pa.repeat(pa.scalar(market.market_id, pa.int64()), count),
    ]
    for field in list(schema)[len(arrays) :]:
        values = columns[field.name]
        if isinstance(values, pa.Array):
            arrays.append(values)
        else:
            arrays.append(pa.array(np.ascontiguousarray(values).astype(field.type.to_pandas_dtype())))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def signed(kind: pa.DataType) -> pa.DataType:
    """Spark has no unsigned numbers; times in nanoseconds fit into signed ones until 2262."""
    return pa.int64() if pa.types.is_uint64(kind) else kind
