"""The base of both Spark formats: options, columns, gaps, tasks and stream offsets.

A format adds its own options, which streams it reads (one queue, or many topics), how a range of seqs is
split into tasks, and how a task reads its part. An offset in a checkpoint has the next seq of each stream and
the instance that it is of; a stream that was made anew is reported like a gap.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

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
from everlog.seq_ranges import Gap, Position, SeqRange

Offset = dict[str, Any]
"""As it is in the checkpoint; `Source.positions` reads it."""
Positions = dict[str, Position]


class Span(NamedTuple):
    """A range of one instance of a stream."""

    range: SeqRange
    instance: str | None


class Head(NamedTuple):
    """A stream as it is now: what it holds, what is wanted of it, and which instance it is."""

    live: SeqRange
    wanted: SeqRange
    instance: str | None


class Recreated(NamedTuple):
    """The task that reports a stream made anew: the position in the old one."""

    stream: str
    position: Position


Heads = dict[str, Head]
Spans = dict[str, Span]
Columns = Mapping[str, pa.DataType]

ALL_COLUMNS: Final = "*"
LOCAL_SCHEME: Final = "file:"
OF_A_TABLE: Final = "provider"
"""An option that Spark adds to those of a table."""

TABLE_OPTIONS: Final = "everlog.options"
"""The metadata of a table's column that keeps the options."""

RECREATED: Final = "recreated"
INSTANCE_COLUMN: Final = {"instance": pa.string()}
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
        columns: dict[str, None] = {}
        for name in source.columns or (ALL_COLUMNS,):
            columns.update(dict.fromkeys(source.default_columns if name == ALL_COLUMNS else (name,)))
        unknown = [name for name in columns if name not in source.known]
        if unknown:
            raise options.wrong("columns", ",".join(unknown), f"some of *, {', '.join(source.known)}")
        return replace(source, columns=tuple(columns))

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
        """The columns of a read that names none, or `*`."""
        return tuple(name for name in self.known if name not in INSTANCE_COLUMN)

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
        return {name: Span(head.wanted, head.instance) for name, head in self.heads(is_first=True).items()}

    def heads(self, *, is_first: bool) -> Heads:
        """Return the streams as they are now; later calls wait for a source that is away."""
        raise NotImplementedError("a source that overrides `plan` is read in batch only")

    def offset(self, positions: Positions) -> Offset:
        """Return positions as the checkpoint has them."""
        return {name: one._asdict() for name, one in positions.items()}

    def positions(self, offset: Offset) -> Positions:
        """Return the positions of an offset; earlier versions stored a seq alone."""
        return {
            name: Position(one) if isinstance(one, int) else Position(one["seq"], one["instance"])
            for name, one in offset.items()
        }

    def tasks(self, spans: Spans) -> Sequence[tuple[Any, ...]]:
        """Split ranges into tasks; the same ranges give the same tasks."""
        raise NotImplementedError

    def end_within_bytes(self, spans: Spans, max_bytes: int) -> dict[str, int]:
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

    def end_within_records(self, spans: Spans, records: int) -> dict[str, int]:
        """Return ends such that all streams together have `records` at most; a short one leaves room."""
        lags = sorted((span.range.size, name) for name, span in spans.items())
        left, ends = records, {}
        for done, (lag, name) in enumerate(lags):
            share = min(lag, max(1, left // (len(lags) - done)))
            ends[name] = spans[name].range.first + share
            left -= share
        return ends

    # --- Reading, in a task ------------------------------------------------------------------------------

    @abstractmethod
    def batches(self, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:
        """Yield the Arrow batches of one task."""

    def to_batch(
        self, stream: str, instance: str | None, count: int, found: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        """Return rows of a stream; columns that are not in `found` have the same value in all rows."""
        same = {self.STREAM: stream, "instance": instance, "kind": "record"}
        schema = self.arrow_schema
        arrays = [
            found[field.name]
            if field.name in found
            else pa.repeat(pa.scalar(same.get(field.name), field.type), count)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def is_row(self, gap: Gap) -> bool:
        """Whether a gap is a row, not an error."""
        return self.on_data_loss == "record"

    def gap_batch(self, stream: str, instance: str | None, gap: Gap) -> pa.RecordBatch:
        """Return a gap as one row whose `seq` is its first; raise `DataLost` with onDataLoss=fail."""
        if not self.is_row(gap):
            raise DataLost(
                f"{self.UNITS} {gap.first} to {gap.last} of {self.STREAM} {stream!r} are lost ({gap.reason})"
                "; start behind them, or read with onDataLoss=record to have the gap as a row"
            )
        row = {self.STREAM: stream, "instance": instance, "seq": gap.first}
        row |= {"kind": "gap", "gap_to": gap.last, "reason": gap.reason}
        return pa.RecordBatch.from_pylist([row], schema=self.arrow_schema)

    def check_continues(self, stream: str, before: Position, now: Position) -> None:
        """Refuse a stream that was made anew or lost its end, unless such a loss is to be a row."""
        if self.on_data_loss != "record" and before.is_replaced_by(now):
            raise DataLost(
                f"{self.STREAM} {stream!r} was made anew: seq {before.seq} of instance {before.instance} is "
                f"next, but instance {now.instance} ends at {now.seq}. Start with a new checkpoint, or read "
                "with onDataLoss=record to have the loss as a row and go on with the new instance"
            )


class Format(DataSource):
    """A format as Spark registers it. Options are checked when a read or a write is made of them."""

    SOURCE: ClassVar[type[Source]]

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        path = self.options.get("path", "")
        if path.startswith(LOCAL_SCHEME):  # of a table, whose path Spark makes a URL
            self.options["path"] = url2pathname(urlsplit(path).path)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return cls.SOURCE.FORMAT

    def source(self) -> Source:
        """Return the read that the options ask for."""
        return self.SOURCE.parse(self.options)

    def schema(self) -> StructType:
        """The columns of a read; those of a table keep its options, since Spark reads it without them."""
        schema = from_arrow_schema(self.source().arrow_schema)
        if OF_A_TABLE in self.options:
            schema.fields[0].metadata = {TABLE_OPTIONS: json.dumps(dict(self.options))}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once; a schema of the user selects columns."""
        return BatchReader(self.chosen(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read as a stream."""
        return StreamReader(self.streamed(self.chosen(schema)))

    def stream_reader(self) -> StreamReader:
        """Return the read of a stream for a job that plans its batches itself."""
        return StreamReader(self.streamed(self.source()))

    def streamed(self, source: Source) -> Source:
        """Return the read if it can be one of a stream; otherwise raise an error."""
        return source

    def chosen(self, schema: StructType) -> Source:
        """Return the read of the columns of a schema, with the options of the table that it is of."""
        kept = next(
            (field.metadata[TABLE_OPTIONS] for field in schema if TABLE_OPTIONS in field.metadata), None
        )
        if kept is None and not self.options:
            raise InvalidConfig(
                f"Spark gives {self.SOURCE.FORMAT} no options of a table whose columns were named; create "
                "the table without a list of columns, and name those that it is to have in the option "
                "columns"
            )
        for name, value in json.loads(kept or "{}").items():
            self.options.setdefault(name, value)
        return self.source().with_schema(schema)


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


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read that goes on: offsets, limits and the tasks between two offsets."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._target: Heads | None = None

    @property
    def source(self) -> Source:
        """What is read."""
        return self._source

    def initialOffset(self) -> Offset:
        """Return where a first batch begins."""
        spans = self._source.spans()
        return self._offset({name: Position(span.range.first, span.instance) for name, span in spans.items()})

    def _offset(self, positions: Positions) -> Offset:
        return self._source.offset(positions)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much a batch takes."""
        if self._source.max_records is not None:
            return ReadMaxRows(self._source.max_records)
        if self._source.max_bytes is not None:
            return ReadMaxBytes(self._source.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """End at what is there now."""
        self._target = self._source.heads(is_first=False)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return where the next batch ends; the same offset if there is nothing new."""
        source, before = self._source, self._source.positions(start)
        heads = source.heads(is_first=False) if self._target is None else self._target
        spans: Spans = {}
        for name, (live, wanted, instance) in heads.items():
            at, now = before.get(name), Position(live.end, instance)
            first = source.first_seq
            if at is not None:
                source.check_continues(name, at, now)
                first = at.next_in(now, first)
            # An end that the options lower is not a loss; only the live one can be below the start.
            spans[name] = Span(SeqRange(first, max(first, wanted.end)), instance)
        ends = {name: span.range.end for name, span in spans.items()}
        if isinstance(limit, ReadMaxBytes):
            ends = source.end_within_bytes(spans, limit.max_bytes)
        elif isinstance(limit, ReadMaxRows):
            ends = source.end_within_records(spans, limit.max_rows)
        found = {name: Position(ends[name], span.instance) for name, span in spans.items()}
        return self._offset({**before, **found})

    def reportLatestOffset(self) -> Offset:
        """Return the end of what is there now."""
        heads = self._source.heads(is_first=False)
        return self._offset({name: Position(one.wanted.end, one.instance) for name, one in heads.items()})

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the tasks of a batch."""
        source, before = self._source, self._source.positions(start)
        spans: Spans = {}
        recreated: list[Recreated] = []
        for name, now in sorted(source.positions(end).items()):
            at = before.get(name)
            if at is not None and at.is_replaced_by(now):
                recreated.append(Recreated(name, at))
            first = source.first_seq if at is None else at.next_in(now, source.first_seq)
            spans[name] = Span(SeqRange(first, now.seq), now.instance)
        return _partitions([*recreated, *source.tasks(spans)])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run one task."""
        return _read(self._source, partition)


def _partitions(tasks: Sequence[tuple[Any, ...]]) -> list[InputPartition]:
    return [InputPartition(task) for task in tasks] or [InputPartition(None)]


def _read(source: Source, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if partition.value is None:  # nothing to read: Spark runs one task all the same
        return
    freeze_loaded_modules()
    if isinstance(partition.value, Recreated):
        stream, at = partition.value
        yield source.gap_batch(stream, at.instance, Gap(at.seq, at.seq, RECREATED))
        return
    yield from source.batches(*partition.value)
