"""The base of both Spark formats: options, columns, gaps, tasks and stream offsets.

A format adds its own options, which streams it reads (one queue, or many topics), how a range of seqs is
split into tasks, and how a task reads its part. An offset in a checkpoint is the next seq of each stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from everlog.errors import DataLost, InvalidConfig
from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.options import EARLIEST, LATEST, ON_DATA_LOSS, U64_MAX, Options, Start
from everlog.seq_ranges import Gap, SeqRange

Offset = dict[str, int]
Spans = dict[str, SeqRange]
Columns = Mapping[str, pa.DataType]

GAP_COLUMNS: Final = {"kind": pa.string(), "gap_to": pa.int64(), "reason": pa.string()}
READ_OPTIONS: Final = (
    "startingOffsets",
    "endingOffsets",
    "fromSeq",
    "toSeq",
    "fromTs",
    "toTs",
    "columns",
    "partitions",
    "maxRecordsPerBatch",
    "maxBytesPerBatch",
    "onDataLoss",
)


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A checked read, sent to the tasks. `wanted` is from `fromSeq` and `toSeq`; times are inclusive."""

    FORMAT: ClassVar[str]
    OPTIONS: ClassVar[tuple[str, ...]]
    STREAM: ClassVar[str]
    """The column that names the stream: `queue` or `topic`."""
    UNITS: ClassVar[str]
    FIRST_SEQ: ClassVar[int]
    CAN_RESTART: ClassVar[bool]
    """Whether a stream may begin again with lower seqs."""

    starting: Start
    ending: Start
    wanted: SeqRange
    from_ts: int
    to_ts: int
    columns: tuple[str, ...]
    partitions: int | None
    max_records: int | None
    max_bytes: int | None
    on_data_loss: str

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check the options of a read; an error names the valid ones."""
        options = Options(given, cls.OPTIONS, cls.FORMAT)
        if "maxRecordsPerBatch" in options and "maxBytesPerBatch" in options:
            raise InvalidConfig(
                "maxRecordsPerBatch and maxBytesPerBatch exclude each other; give one of them"
            )
        to_seq = options.whole("toSeq")
        source = cls(
            starting=options.start("startingOffsets", EARLIEST),
            ending=options.start("endingOffsets", LATEST),
            wanted=SeqRange(options.whole("fromSeq") or 0, U64_MAX if to_seq is None else to_seq + 1),
            from_ts=options.whole("fromTs") or 0,
            to_ts=options.whole("toTs", U64_MAX) or 0,
            columns=options.names("columns"),
            partitions=options.whole("partitions", least=1),
            max_records=options.whole("maxRecordsPerBatch", least=1),
            max_bytes=options.whole("maxBytesPerBatch", least=1),
            on_data_loss=options.choice("onDataLoss", ON_DATA_LOSS),
            **cls.own_options(options),
        )
        unknown = [name for name in source.columns if name not in source.known]
        if unknown:
            raise options.wrong("columns", ",".join(unknown), f"some of {', '.join(source.known)}")
        return replace(source, columns=source.columns or source.default_columns)

    @classmethod
    @abstractmethod
    def own_options(cls, options: Options) -> dict[str, Any]:
        """Return the fields that only this source has."""

    @property
    @abstractmethod
    def known(self) -> Columns:
        """All columns that this read can have."""

    @property
    def default_columns(self) -> tuple[str, ...]:
        """The columns of a read that names none."""
        return tuple(self.known)

    @property
    def first_seq(self) -> int:
        """The seq with which a stream begins that the offsets do not name yet."""
        return max(self.FIRST_SEQ, self.wanted.first)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the batches."""
        known = self.known
        return pa.schema([pa.field(name, known[name]) for name in self.columns])

    def with_schema(self, schema: StructType) -> Self:
        """Return the read with the columns of a user's schema; refuse unknown names and other types."""
        for field in schema.fields:
            if field.name not in self.known:
                raise InvalidConfig(
                    f"{self.FORMAT} has no column {field.name!r}; it has {', '.join(self.known)}"
                )
            expected = from_arrow_type(self.known[field.name]).simpleString()
            given = field.dataType.simpleString()
            if given != expected:
                raise InvalidConfig(f"column {field.name!r} of {self.FORMAT} is {expected}, not {given}")
        return replace(self, columns=tuple(field.name for field in schema.fields))

    # --- Planning ----------------------------------------------------------------------------------------

    def plan(self) -> Sequence[tuple[Any, ...]]:
        """Return the tasks of a bounded read: the arguments of `batches` for each."""
        return self.tasks(self.spans())

    def spans(self) -> Spans:
        """Return the range of each stream that is to be read, as of now."""
        raise NotImplementedError("a source that overrides `plan` is read in batch only")

    def tasks(self, spans: Spans) -> Sequence[tuple[Any, ...]]:
        """Split ranges into tasks; the same ranges give the same tasks."""
        raise NotImplementedError

    def end_within_bytes(self, start: Offset, ends: Offset, max_bytes: int) -> Offset:
        """Return ends such that a micro-batch has about `max_bytes` at most."""
        raise NotImplementedError

    def span(self, live: SeqRange, seq_at_time: Callable[[int], int]) -> SeqRange:
        """Return what is to be read of a stream that holds `live`; `seq_at_time` takes nanoseconds."""

        def resolved(place: Start) -> int:
            if place.seq is not None:
                return place.seq
            if place.ts_ns is not None:
                return seq_at_time(place.ts_ns)
            return live.first if place == EARLIEST else live.end

        first = max(resolved(self.starting), self.first_seq)
        return SeqRange(first, min(resolved(self.ending), self.wanted.end))

    def end_within_records(self, start: Offset, ends: Offset, records: int) -> Offset:
        """Return ends such that all streams together have `records` at most; a short one leaves room."""
        firsts = {name: start.get(name, self.first_seq) for name in ends}
        lags = sorted((max(0, end - firsts[name]), name) for name, end in ends.items())
        left, result = records, dict(start)
        for done, (lag, name) in enumerate(lags):
            share = min(lag, max(1, left // (len(lags) - done)))
            result[name] = firsts[name] + share
            left -= share
        return result

    # --- Reading, in a task ------------------------------------------------------------------------------

    @abstractmethod
    def batches(self, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of one task."""

    def to_batch(self, stream: str, count: int, found: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return rows of a stream; columns that are not in `found` have the same value in all rows."""
        same = {self.STREAM: stream, "kind": "record"}
        schema = self.arrow_schema
        arrays = [
            found[field.name]
            if field.name in found
            else pa.repeat(pa.scalar(same.get(field.name), field.type), count)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def gap_batch(self, stream: str, gap: Gap) -> pa.RecordBatch:
        """Return a gap as one row whose `seq` is its first; raise `DataLost` with onDataLoss=fail."""
        if self.on_data_loss != "record":
            raise DataLost(
                f"{self.UNITS} {gap.first} to {gap.last} of {self.STREAM} {stream!r} are lost ({gap.reason})"
                "; start behind them, or read with onDataLoss=record to have the gap as a row"
            )
        row = {self.STREAM: stream, "seq": gap.first, "kind": "gap", "gap_to": gap.last, "reason": gap.reason}
        return pa.RecordBatch.from_pylist([row], schema=self.arrow_schema)


class Format(DataSource):
    """A format as Spark registers it. Options are checked when a read or a write is made of them."""

    SOURCE: ClassVar[type[Source]]

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return cls.SOURCE.FORMAT

    def source(self) -> Source:
        """Return the read that the options ask for."""
        return self.SOURCE.parse(self.options)

    def schema(self) -> StructType:
        """The columns of a read."""
        return from_arrow_schema(self.source().arrow_schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once; a schema of the user selects columns."""
        return BatchReader(self.source().with_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read as a stream."""
        return _StreamReader(self.source().with_schema(schema))


class BatchReader(DataSourceReader):
    """One bounded read; its ends are fixed when it is planned."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        return _partitions(self._source.plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run one task."""
        return _read(self._source, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, source: Source) -> None:
        self._source = source
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:
        return {name: span.first for name, span in self._source.spans().items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._source.max_records is not None:
            return ReadMaxRows(self._source.max_records)
        if self._source.max_bytes is not None:
            return ReadMaxBytes(self._source.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.reportLatestOffset()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        source = self._source
        ends = self.reportLatestOffset() if self._target is None else self._target
        if not source.CAN_RESTART:
            ends = {name: max(end, start.get(name, 0)) for name, end in ends.items()}
        if isinstance(limit, ReadMaxBytes):
            return source.end_within_bytes(start, ends, limit.max_bytes)
        if isinstance(limit, ReadMaxRows):
            return source.end_within_records(start, ends, limit.max_rows)
        return {**start, **ends}

    def reportLatestOffset(self) -> Offset:
        return {name: span.end for name, span in self._source.spans().items()}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        first_seq = self._source.first_seq
        spans = {name: SeqRange(start.get(name, first_seq), end[name]) for name in sorted(end)}
        return _partitions(self._source.tasks(spans))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._source, partition)


def _partitions(tasks: Sequence[tuple[Any, ...]]) -> list[InputPartition]:
    return [InputPartition(task) for task in tasks] or [InputPartition(None)]


def _read(source: Source, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if partition.value is None:  # nothing to read: Spark runs one task all the same
        return
    freeze_loaded_modules()
    yield from source.batches(*partition.value)
