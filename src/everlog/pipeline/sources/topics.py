"""The format `everlog.topics`: topics of a server as a batch or streaming source.

Owns the options, the schema and the offsets; which seqs there are and how they are read is in
`everlog.pipeline.topic_ranges`. Executors read by themselves, each a range of one topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

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
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from everlog.client.http_api import HttpApi
from everlog.errors import DataLost, InvalidConfig
from everlog.pipeline import topic_ranges
from everlog.pipeline.columns import Column, arrow_schema, check_schema, spark_schema
from everlog.pipeline.options import EARLIEST, LATEST, ON_DATA_LOSS, U64_MAX, Options, Start
from everlog.pipeline.sources import topics_sink
from everlog.pipeline.sources.topics_sink import TopicsBatchWriter, TopicsStreamWriter
from everlog.pipeline.topic_ranges import Bounds, Lost, Place, Record

COLUMNS: Final = {
    "topic": Column("string", pa.string()),
    "seq": Column("bigint", pa.int64()),
    "ts": Column("timestamp", pa.timestamp("us", "UTC")),
    "node": Column("string", pa.string()),
    "tag": Column("string", pa.string()),
    "meta": Column("string", pa.string()),
    "data": Column("string", pa.string()),
    "kind": Column("string", pa.string()),
    "gap_to": Column("bigint", pa.int64()),
    "reason": Column("string", pa.string()),
}
OPTIONS: Final = (
    "url",
    "topic",
    "key",
    "startingOffsets",
    "endingOffsets",
    "fromSeq",
    "toSeq",
    "fromTs",
    "toTs",
    "tag",
    "columns",
    "partitions",
    "maxRecordsPerBatch",
    "onDataLoss",
)
US_PER_MS: Final = 1000
NS_PER_MS: Final = 1_000_000
DEFAULT_PARTITION_RECORDS: Final = 250_000
BATCH_PAGES: Final = 16
Offset = dict[str, int]

# One plain loop for each column: every row is touched, so nothing is looked up by name there.
_VALUES: Final[dict[str, Callable[[list[Record]], list[Any]]]] = {
    "seq": lambda rows: [row.seq for row in rows],
    "ts": lambda rows: [row.ts * US_PER_MS for row in rows],
    "node": lambda rows: [row.node for row in rows],
    "tag": lambda rows: [row.tag for row in rows],
    "meta": lambda rows: [None if row.meta is None else bytes(row.meta) for row in rows],
    "data": lambda rows: [bytes(row.data) for row in rows],
}


class TopicsRead(NamedTuple):
    """What was asked for, checked; it travels to the executors."""

    place: Place
    topics: tuple[str, ...]
    starting: Start
    ending: Start
    wanted: Bounds
    from_ts_ms: int
    to_ts_ms: int
    tag: str | None
    columns: tuple[str, ...]
    partitions: int | None
    max_records: int | None
    on_data_loss: str


def parse_options(given: Mapping[str, str]) -> TopicsRead:
    """Check the options of a read; an error names what is valid."""
    options = Options(given, OPTIONS, "everlog.topics")
    url = options.text("url")
    topic_ranges.check_url(url)
    columns = options.names("columns") or tuple(COLUMNS)
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise options.wrong("columns", ",".join(unknown), f"some of {', '.join(COLUMNS)}")
    topics = options.names("topic")
    if not topics:
        raise InvalidConfig("everlog.topics needs the option 'topic': a name, several, or a prefix with *")
    to_seq, to_ts = options.whole("toSeq"), options.whole("toTs")
    return TopicsRead(
        Place(url, options.text("key", "") or None),
        topics,
        options.start("startingOffsets", EARLIEST),
        options.start("endingOffsets", LATEST),
        Bounds(options.whole("fromSeq") or 0, U64_MAX if to_seq is None else to_seq + 1),
        options.whole("fromTs") or 0,
        U64_MAX if to_ts is None else to_ts,
        options.text("tag", "") or None,
        columns,
        options.whole("partitions", least=1),
        options.whole("maxRecordsPerBatch", least=1),
        options.choice("onDataLoss", ON_DATA_LOSS),
    )


class TopicsFormat(DataSource):
    """`spark.read.format("everlog.topics").option("url", ...).option("topic", ...)`, also `readStream`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._given = dict(options)

    @property
    def _read(self) -> TopicsRead:
        """What a read asks for; a write has options of its own, so they are not checked before."""
        return parse_options(self._given)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "everlog.topics"

    def schema(self) -> str:
        """The columns, as Spark spells them."""
        return spark_schema(COLUMNS, self._read.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once; a schema of the user chooses columns."""
        return TopicsBatchReader(self._with_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read what comes."""
        return TopicsStreamReader(self._with_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Append rows; a topic cannot be overwritten."""
        if overwrite:
            raise InvalidConfig('topics are appended to: use mode("append"), or delete the topic first')
        return TopicsBatchWriter(topics_sink.parse_options(self._given, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Append the rows of a stream; `complete` output would have to overwrite."""
        if overwrite:
            raise InvalidConfig('topics are appended to: use outputMode("append") or "update"')
        return TopicsStreamWriter(topics_sink.parse_options(self._given, schema))

    def _with_columns(self, schema: StructType) -> TopicsRead:
        return self._read._replace(columns=check_schema(COLUMNS, schema, "everlog.topics"))


class RangePartition(InputPartition):
    """One task: a range of seqs of one topic."""

    def __init__(self, topic: str, first: int, end: int) -> None:
        super().__init__((topic, first, end))


class TopicsBatchReader(DataSourceReader):
    """One bounded read; its ends are fixed when it is planned."""

    def __init__(self, read: TopicsRead) -> None:
        self._read = read

    def partitions(self) -> list[InputPartition]:
        """Ranges of about equal length, of one topic each."""
        starts, ends = _both_ends(self._read)
        return _partitions(self._read, starts, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in a task."""
        return read_partition(self._read, partition)


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream; an offset is the next seq of each topic, `{"orders": 17}` in the checkpoint."""

    def __init__(self, read: TopicsRead) -> None:
        self._read = read
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:
        """Where a query without a checkpoint begins."""
        return _both_ends(self._read)[0]

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much one micro-batch takes."""
        return ReadAllAvailable() if self._read.max_records is None else ReadMaxRows(self._read.max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the ends: what comes later is for the next run."""
        self._target = _both_ends(self._read)[1]

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next micro-batch; a limit is shared by the topics."""
        ends = self._target if self._target is not None else _both_ends(self._read)[1]
        if not isinstance(limit, ReadMaxRows):
            return {**start, **ends}
        # A topic that has little leaves its share to the others.
        lags = {name: max(0, end - start.get(name, _first_of(self._read))) for name, end in ends.items()}
        left, result = limit.max_rows, dict(start)
        for place, (name, lag) in enumerate(sorted(lags.items(), key=lambda item: item[1])):
            share = min(lag, max(1, left // (len(lags) - place)))
            result[name] = start.get(name, _first_of(self._read)) + share
            left -= share
        return result

    def reportLatestOffset(self) -> Offset:
        """The ends of the topics, for the progress report."""
        return _both_ends(self._read)[1]

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of one micro-batch; the same ones when it is run again."""
        return _partitions(self._read, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in a task."""
        return read_partition(self._read, partition)


def _first_of(read: TopicsRead) -> int:
    """Where a topic begins that came into being after the query."""
    return max(1, read.wanted.first)


def _both_ends(read: TopicsRead) -> tuple[Offset, Offset]:
    """Return the first seq and the seq behind the last, of every topic that is meant, as of now."""
    names = topic_ranges.find_topics(read.place, read.topics)
    starts: Offset = {}
    ends: Offset = {}
    with read.place.connect() as api:
        for name in names:
            live = topic_ranges.bounds(api, name)
            starts[name] = max(_resolve(api, name, read.starting, live), _first_of(read))
            ends[name] = min(_resolve(api, name, read.ending, live), read.wanted.end)
    return starts, ends


def _resolve(api: HttpApi, topic: str, place: Start, live: Bounds) -> int:
    """Return the seq that a place stands for now."""
    if place.seq is not None:
        return place.seq
    if place.ts_ns is not None:
        return topic_ranges.seq_at_time(api, topic, -(-place.ts_ns // NS_PER_MS))
    return live.first if place == EARLIEST else live.end


def _partitions(read: TopicsRead, starts: Offset, ends: Offset) -> list[InputPartition]:
    """Cut the ranges of all topics into tasks."""
    total = sum(max(0, ends[name] - starts.get(name, _first_of(read))) for name in ends)
    size = DEFAULT_PARTITION_RECORDS if read.partitions is None else max(1, -(-total // read.partitions))
    parts: list[InputPartition] = []
    for name in sorted(ends):
        first, end = starts.get(name, _first_of(read)), ends[name]
        parts += [RangePartition(name, at, min(at + size, end)) for at in range(first, end, size)]
    return parts or [InputPartition(None)]


def read_partition(read: TopicsRead, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of one task; a gap is an error or a row, as the read says."""
    if partition.value is None:
        return
    topic, first, end = partition.value
    is_filtered = read.tag is not None or read.from_ts_ms > 0 or read.to_ts_ms != U64_MAX
    # A page is too few rows for a batch: handing one over costs as much as a thousand rows.
    waiting: list[Record] = []
    pages = 0
    with read.place.connect() as api:
        for piece in topic_ranges.read(api, topic, first, end):
            if not isinstance(piece, Lost):
                waiting += [record for record in piece if _passes(read, record)] if is_filtered else piece
                pages += 1
            if waiting and (isinstance(piece, Lost) or pages >= BATCH_PAGES):
                yield _to_arrow(read, topic, waiting)
                waiting, pages = [], 0
            if isinstance(piece, Lost):
                yield _gap(read, topic, piece)
        if waiting:
            yield _to_arrow(read, topic, waiting)


def _gap(read: TopicsRead, topic: str, lost: Lost) -> pa.RecordBatch:
    """Return a gap as a row, or raise it, as the read says."""
    if read.on_data_loss == "record":
        return _gap_row(read, topic, lost)
    raise DataLost(
        f"records {lost.first} to {lost.end - 1} of topic {topic!r} are lost ({lost.reason}); "
        "start behind them, or read with onDataLoss=record to have the gap as a row"
    )


def _passes(read: TopicsRead, record: Record) -> bool:
    """Tell whether a record passes the filters of time and tag; a tag that ends in `*` is a prefix."""
    if not read.from_ts_ms <= record.ts <= read.to_ts_ms:
        return False
    if read.tag is None:
        return True
    if record.tag is None:
        return False
    return record.tag.startswith(read.tag[:-1]) if read.tag.endswith("*") else record.tag == read.tag


def _to_arrow(read: TopicsRead, topic: str, rows: list[Record]) -> pa.RecordBatch:
    arrays = [_column(name, topic, rows) for name in read.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(COLUMNS, read.columns))


def _column(name: str, topic: str, rows: list[Record]) -> pa.Array:
    kind = COLUMNS[name].arrow
    if name in _VALUES:
        return pa.array(_VALUES[name](rows), kind)
    if name in ("topic", "kind"):
        return pa.repeat(pa.scalar(topic if name == "topic" else "record", kind), len(rows))
    return pa.nulls(len(rows), kind)


def _gap_row(read: TopicsRead, topic: str, lost: Lost) -> pa.RecordBatch:
    """One row that stands for the records that are gone: `seq` is the first of them."""
    row = {"topic": topic, "seq": lost.first, "kind": "gap", "gap_to": lost.end - 1, "reason": lost.reason}
    arrays = [pa.array([row.get(name)], COLUMNS[name].arrow) for name in read.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(COLUMNS, read.columns))
