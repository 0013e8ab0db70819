"""The format `everlog.queue`: a live queue directory as a batch or streaming source, an archive as a sink.

Owns the options, the schema and the offsets; which seqs there are and how they are read is in
`everlog.pipeline.queue_ranges`, typed columns of market data are in `everlog.pipeline.decoding`, and writing
is in `queue_sink`. One task per segment, or as many as asked for; only Arrow batches, and nothing is copied
that no column needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from everlog.errors import DataLost, InvalidConfig
from everlog.pipeline import queue_ranges
from everlog.pipeline.columns import Column, arrow_schema, check_schema, spark_schema
from everlog.pipeline.decoding import DECODINGS, MESSAGE_PLACES, UNASKED, Chosen, all_of, choose
from everlog.pipeline.decoding import column as decoded_column
from everlog.pipeline.options import EARLIEST, LATEST, ON_DATA_LOSS, U64_MAX, Options, Start
from everlog.pipeline.queue_ranges import Held, Lost, SeqRange
from everlog.pipeline.sources import queue_sink
from everlog.pipeline.sources.queue_sink import QueueArchiveWriter
from everlog.pipeline.worker_process import settle_worker
from everlog.queue.batch import Batch

GAP_COLUMNS: Final = {
    "kind": Column("string", pa.string()),
    "gap_to": Column("bigint", pa.int64()),
    "reason": Column("string", pa.string()),
}
OPTIONS: Final = (
    "path",
    "startingOffsets",
    "endingOffsets",
    "fromSeq",
    "toSeq",
    "fromTs",
    "toTs",
    "typeId",
    "decode",
    "venue",
    "market",
    "columns",
    "partitions",
    "maxRecordsPerBatch",
    "maxBytesPerBatch",
    "onDataLoss",
)


class QueueRead(NamedTuple):
    """What was asked for, checked; it travels to the executors."""

    path: str
    starting: Start
    ending: Start
    wanted: SeqRange
    from_ts: int
    to_ts: int
    type_ids: tuple[int, ...]
    decode: str
    venues: tuple[int, ...]
    markets: tuple[int, ...]
    columns: tuple[str, ...]
    partitions: int | None
    max_records: int | None
    max_bytes: int | None
    on_data_loss: str

    @property
    def known(self) -> dict[str, Column]:
        """All columns that this read can have; those of a gap only if gaps can be rows."""
        gaps = GAP_COLUMNS if self.on_data_loss == "record" else {}
        return {**DECODINGS[self.decode].columns, **gaps}

    @property
    def usual(self) -> tuple[str, ...]:
        """The columns of a read that does not name any."""
        unasked = UNASKED.get(self.decode, ())
        return tuple(name for name in self.known if name not in unasked)


def parse_options(given: Mapping[str, str]) -> QueueRead:
    """Check the options of a read; an error names what is valid."""
    options = Options(given, OPTIONS, "everlog.queue")
    if "maxRecordsPerBatch" in options and "maxBytesPerBatch" in options:
        raise InvalidConfig("maxRecordsPerBatch and maxBytesPerBatch exclude each other; give one of them")
    decode = options.choice("decode", tuple(DECODINGS))
    if decode != "raw" and "typeId" in options:
        raise InvalidConfig(f"decode={decode} says which messages are meant; leave out typeId")
    if decode == "trade" and ("venue" in options or "market" in options):
        raise InvalidConfig("trades name their symbol by its hash only; filter symbol_hash instead of market")
    read = QueueRead(
        options.text("path"),
        options.start("startingOffsets", EARLIEST),
        options.start("endingOffsets", LATEST),
        SeqRange(options.whole("fromSeq") or 0, _after(options.whole("toSeq"))),
        options.whole("fromTs") or 0,
        _after(options.whole("toTs")),
        _numbers(options, "typeId"),
        decode,
        _numbers(options, "venue"),
        _numbers(options, "market"),
        options.names("columns"),
        options.whole("partitions", least=1),
        options.whole("maxRecordsPerBatch", least=1),
        options.whole("maxBytesPerBatch", least=1),
        options.choice("onDataLoss", ON_DATA_LOSS),
    )
    unknown = [name for name in read.columns if name not in read.known]
    if unknown:
        raise options.wrong("columns", ",".join(unknown), f"some of {', '.join(read.known)}")
    return read._replace(columns=read.columns or read.usual)


def _after(last: int | None) -> int:
    """Return the end of a range whose last value is `last`; without one there is no end."""
    return U64_MAX if last is None else last + 1


def _numbers(options: Options, name: str) -> tuple[int, ...]:
    """Return the numbers of an option, decimal or as 0x1000."""
    try:
        return tuple(int(text, 0) for text in options.names(name))
    except ValueError:
        raise options.wrong(name, options.text(name), "numbers such as 0x1000,0x1002") from None


class QueueFormat(DataSource):
    """`spark.read.format("everlog.queue").load(path)`, and the same with `readStream`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._given = dict(options)

    @property
    def _read(self) -> QueueRead:
        """What a read asks for; a write has options of its own, so they are not checked before."""
        return parse_options(self._given)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "everlog.queue"

    def schema(self) -> str:
        """The columns, as Spark spells them."""
        return spark_schema(self._read.known, self._read.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once; a schema of the user chooses columns."""
        return QueueBatchReader(_with_columns(self._read, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read what comes."""
        return QueueStreamReader(_with_columns(self._read, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Write an archive; there must be nothing in its place."""
        if overwrite:
            raise InvalidConfig('an archive is written once, to a new directory: use mode("append")')
        return QueueArchiveWriter(queue_sink.parse_options(self._given, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Streams are refused: a queue has one live writer, and that is no archive."""
        raise InvalidConfig("an archive is written as a whole, in batch; let a stream write to a topic")


def _with_columns(read: QueueRead, schema: StructType) -> QueueRead:
    """Take the columns of a schema that the user may have given."""
    return read._replace(columns=check_schema(read.known, schema, "everlog.queue"))


class RangePartition(InputPartition):
    """One task: a range of seqs."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__((first, end))


class QueueBatchReader(DataSourceReader):
    """One bounded read; its ends are fixed when it is planned."""

    def __init__(self, read: QueueRead) -> None:
        self._read = read

    def partitions(self) -> list[InputPartition]:
        """One per segment, or as many as were asked for."""
        read, held = self._read, Held(self._read.path)
        bounds = held.bounds()
        first = max(_resolve(read.path, read.starting, bounds), read.wanted.first)
        end = min(_resolve(read.path, read.ending, bounds), read.wanted.end)
        return _partitions(held, SeqRange(first, end), read.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in a task."""
        return read_partition(self._read, partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream; an offset is the seq of the next message, `{"seq": 17}` in the checkpoint."""

    def __init__(self, read: QueueRead) -> None:
        self._read = read
        self._held = Held(read.path)
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """Where a query without a checkpoint begins."""
        read = self._read
        start = _resolve(read.path, read.starting, self._held.bounds())
        return {"seq": max(start, read.wanted.first)}

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much one micro-batch takes."""
        if self._read.max_records is not None:
            return ReadMaxRows(self._read.max_records)
        if self._read.max_bytes is not None:
            return ReadMaxBytes(self._read.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the end: what comes later is for the next run."""
        self._target = self._end()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The end of the next micro-batch."""
        first = start["seq"]
        end = max(first, self._target if self._target is not None else self._end())
        if isinstance(limit, ReadMaxRows):
            end = min(end, first + limit.max_rows)
        elif isinstance(limit, ReadMaxBytes) and end > first:
            end = queue_ranges.end_within_bytes(self._read.path, SeqRange(first, end), limit.max_bytes)
        return {"seq": end}

    def reportLatestOffset(self) -> dict[str, int]:
        """The end of the queue, for the progress report."""
        return {"seq": self._end()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The tasks of one micro-batch; the same ones when it is run again."""
        return _partitions(self._held, SeqRange(start["seq"], end["seq"]), self._read.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in a task."""
        return read_partition(self._read, partition)

    def _end(self) -> int:
        read = self._read
        return min(_resolve(read.path, read.ending, self._held.bounds()), read.wanted.end)


def _resolve(path: str, place: Start, bounds: SeqRange) -> int:
    """Return the seq that a place stands for now."""
    if place.seq is not None:
        return place.seq
    if place.ts_ns is not None:
        return queue_ranges.seq_at_time(path, place.ts_ns)
    return bounds.first if place == EARLIEST else bounds.end


def _partitions(held: Held, wanted: SeqRange, parts: int | None) -> list[InputPartition]:
    """Cut a range into tasks; what is gone from its front goes to the first, which reports it."""
    if not wanted.records:
        return [RangePartition(wanted.first, wanted.first)]
    ranges = queue_ranges.split(held.ranges(), wanted, parts)
    if not ranges:
        return [RangePartition(wanted.first, wanted.end)]
    ranges[0] = SeqRange(wanted.first, ranges[0].end)
    ranges[-1] = SeqRange(ranges[-1].first, wanted.end)
    return [RangePartition(*one) for one in ranges]


def read_partition(read: QueueRead, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of one task; a gap is an error or a row, as the read says."""
    if partition.value is None:
        return
    settle_worker()
    for piece in queue_ranges.read(read.path, SeqRange(*partition.value)):
        if not isinstance(piece, Lost):
            batch = to_arrow(read, piece)
            if batch.num_rows:
                yield batch
        elif read.on_data_loss == "record":
            yield _gap_row(read, piece)
        else:
            raise DataLost(
                f"messages {piece.first} to {piece.end - 1} of {read.path} are gone ({piece.reason}); start "
                f"behind them, or read with onDataLoss=record to have the gap as a row"
            )


def to_arrow(read: QueueRead, batch: Batch) -> pa.RecordBatch:
    """Return the chosen columns of those messages that pass the filters."""
    some = choose(DECODINGS[read.decode], _passing(read, all_of(batch)), read.venues, read.markets)
    arrays = [_column(read, some, name) for name in read.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(read.known, read.columns))


def _passing(read: QueueRead, some: Chosen) -> Chosen:
    """Return the messages that pass the filters of type and time."""
    if read.type_ids:
        some = some.where(np.isin(some.take(MESSAGE_PLACES["type_id"]), read.type_ids))
    if read.from_ts or read.to_ts != U64_MAX:
        times_ns = some.take(MESSAGE_PLACES["ts_ns"])
        some = some.where((times_ns >= np.uint64(read.from_ts)) & (times_ns < np.uint64(read.to_ts)))
    return some


def _column(read: QueueRead, some: Chosen, name: str) -> pa.Array:
    batch, count = some.batch, len(some)
    if name == "payload":
        data, begins = batch.joined(None if count == len(batch) else some.rows)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(begins), pa.py_buffer(data)])
    kind = read.known[name].arrow
    constants: dict[str, Any] = {"queue": queue_ranges.queue_name(read.path), "kind": "record"}
    if name in constants:
        return pa.repeat(pa.scalar(constants[name], kind), count)
    if name in GAP_COLUMNS:
        return pa.nulls(count, kind)
    return decoded_column(DECODINGS[read.decode], some, name)


def _gap_row(read: QueueRead, lost: Lost) -> pa.RecordBatch:
    """One row that stands for the messages that are gone: `seq` is the first of them."""
    row = {"queue": queue_ranges.queue_name(read.path), "seq": lost.first, "kind": "gap"}
    row |= {"gap_to": lost.end - 1, "reason": lost.reason}
    arrays = [pa.array([row.get(name)], read.known[name].arrow) for name in read.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(read.known, read.columns))
