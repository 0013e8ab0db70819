"""The format `everlog.topics`: topics of a server as a batch or streaming source.

Owns the options, the schema and the offsets; which seqs there are and how they are read is in
`everlog.pipeline.topic_ranges`. Executors read by themselves, each a range of one topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

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

from everlog.client.http_api import HttpApi
from everlog.errors import InvalidConfig
from everlog.native.columns.frame_columns import FrameColumns
from everlog.pipeline import topic_ranges
from everlog.pipeline.columns import arrow_schema, check_schema, spark_schema
from everlog.pipeline.options import EARLIEST, Start
from everlog.pipeline.picking import PICKED, Filter, take_columns
from everlog.pipeline.sources import topics_sink
from everlog.pipeline.sources.topics_options import (
    COLUMNS,
    NS_PER_MS,
    TopicsRead,
    constant,
    first_of,
    gap,
    parse_options,
    partition_records,
)
from everlog.pipeline.sources.topics_sink import TopicsBatchWriter, TopicsStreamWriter
from everlog.pipeline.topic_ranges import Bounds
from everlog.pipeline.worker_process import settle_worker

BATCH_PAGES: Final = 16
Offset = dict[str, int]


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
        read = self._with_columns(schema)
        if read.directory is None:
            return TopicsBatchReader(read)
        # Imported here: it needs the whole engine, for which other tasks should not have to wait.
        from everlog.pipeline.sources.topics_directory import DirectoryBatchReader

        return DirectoryBatchReader(read)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read what comes."""
        read = self._with_columns(schema)
        if read.directory is not None:
            raise InvalidConfig(
                "dataDir is for reads in bulk: files say what is there, not what comes; read a stream by url"
            )
        return TopicsStreamReader(read)

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
        if self._read.max_records is not None:
            return ReadMaxRows(self._read.max_records)
        if self._read.max_bytes is not None:
            return ReadMaxBytes(self._read.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the ends: what comes later is for the next run."""
        self._target = _both_ends(self._read)[1]

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next micro-batch; a limit is shared by the topics."""
        ends = self._target if self._target is not None else _both_ends(self._read)[1]
        if isinstance(limit, ReadMaxBytes):
            rows = max(1, limit.max_bytes // topic_ranges.average_bytes(self._read.server, list(ends)))
        elif isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        else:
            return {**start, **ends}
        # A topic that has little leaves its share to the others.
        lags = {name: max(0, end - start.get(name, first_of(self._read))) for name, end in ends.items()}
        left, result = rows, dict(start)
        for place, (name, lag) in enumerate(sorted(lags.items(), key=lambda item: item[1])):
            share = min(lag, max(1, left // (len(lags) - place)))
            result[name] = start.get(name, first_of(self._read)) + share
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


def _both_ends(read: TopicsRead) -> tuple[Offset, Offset]:
    """Return the first seq and the seq behind the last, of every topic that is meant, as of now."""
    names = topic_ranges.find_topics(read.server, read.topics)
    starts: Offset = {}
    ends: Offset = {}
    with read.server.connect() as api:
        for name in names:
            live = topic_ranges.bounds(api, name)
            starts[name] = max(_resolve(api, name, read.starting, live), first_of(read))
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
    total = sum(max(0, ends[name] - starts.get(name, first_of(read))) for name in ends)
    size = partition_records(read, total)
    parts: list[InputPartition] = []
    for name in sorted(ends):
        first, end = starts.get(name, first_of(read)), ends[name]
        parts += [RangePartition(name, at, min(at + size, end)) for at in range(first, end, size)]
    return parts or [InputPartition(None)]


def read_partition(read: TopicsRead, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of one task; a gap is an error or a row, as the read says."""
    if partition.value is None:
        return
    settle_worker()
    topic, first, end = partition.value
    picked = Filter(read.from_ts_ms, read.to_ts_ms, read.tag).columns()
    # A page is too few rows for a batch: handing one over costs as much as a thousand rows.
    pages = 0
    with read.server.connect() as api:
        for lost in topic_ranges.read(api, topic, first, end, picked):
            pages += lost is None
            if len(picked) and (lost is not None or pages >= BATCH_PAGES):
                yield _to_arrow(read, topic, picked)
                pages = 0
            if lost is not None:
                yield gap(read, topic, lost)
        if len(picked):
            yield _to_arrow(read, topic, picked)


def _to_arrow(read: TopicsRead, topic: str, picked: FrameColumns) -> pa.RecordBatch:
    count = len(picked)
    found = take_columns(picked, tuple(name for name in read.columns if name in PICKED))
    arrays = [found[name] if name in found else constant(name, topic, count) for name in read.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(COLUMNS, read.columns))
