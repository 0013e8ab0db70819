"""The format `everlog.topics`: topics of a server as a batch or streaming source and as a sink.

Executors read over HTTP, each a range of one topic (`topic_ranges`). An offset has the next seq of each topic
and its epoch, `{"orders": {"seq": 17, "instance": "1763460000000"}}`. With `dataDir`, `topics_directory`
reads the files of a data directory instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from everlog.errors import InvalidConfig
from everlog.pipeline import topic_ranges
from everlog.pipeline.columns_from_frames import FRAME_COLUMNS, ORIGIN_COLUMNS, RecordFilter
from everlog.pipeline.columns_from_frames import Columns as FrameArrays
from everlog.pipeline.options import Options
from everlog.pipeline.sources import topics_sink
from everlog.pipeline.sources.base import (
    GAP_COLUMNS,
    INSTANCE_COLUMN,
    READ_OPTIONS,
    Columns,
    Format,
    Head,
    Heads,
    Source,
    Spans,
)
from everlog.pipeline.sources.topics_sink import TopicsBatchWriter, TopicsStreamWriter
from everlog.pipeline.topic_ranges import ServerAddress
from everlog.seq_ranges import Gap, SeqRange

TASK_RECORDS: Final = 250_000
NS_PER_MS: Final = 1_000_000
MS_PER_S: Final = 1000
TIMEOUT_MS: Final = 60_000
"""How long a read waits for a server that is away or busy."""


@dataclass(frozen=True, kw_only=True)
class TopicsSource(Source):
    """A read of topics from wherever they are: their names, filters and columns."""

    FORMAT = "everlog.topics"
    OPTIONS = ("url", "key", "dataDir", "coldDir", "topic", *READ_OPTIONS, "tag", "timeoutMs")
    STREAM = "topic"
    UNITS = "records"
    FIRST_SEQ = 1

    topics: tuple[str, ...]
    tag: str | None

    @classmethod
    def own_options(cls, options: Options) -> dict[str, Any]:
        """Return the names of the topics and the tag."""
        topics = options.names("topic")
        if not topics:
            raise InvalidConfig(
                "everlog.topics needs the option 'topic': a name, several, or a prefix with *"
            )
        return {"topics": topics, "tag": options.text("tag", "") or None}

    @property
    def known(self) -> Columns:
        """The columns of records and gaps."""
        return {"topic": pa.string(), **FRAME_COLUMNS, **GAP_COLUMNS, **INSTANCE_COLUMN, **ORIGIN_COLUMNS}

    @property
    def default_columns(self) -> tuple[str, ...]:
        """Without those of bridged records, which few topics have."""
        return tuple(name for name in super().default_columns if name not in ORIGIN_COLUMNS)

    @property
    def passing(self) -> RecordFilter:
        """The filter of tag and time."""
        return RecordFilter(self.from_ts, self.to_ts, self.tag)

    @property
    def frame_columns(self) -> tuple[str, ...]:
        """The columns that come from records; at least one, for the number of rows."""
        of_records = {**FRAME_COLUMNS, **ORIGIN_COLUMNS}
        return tuple(name for name in self.columns if name in of_records) or ("seq",)

    def ranges(self, spans: Spans) -> Iterator[tuple[str, str | None, int, int]]:
        """Split the ranges into parts of about equal length, each of one topic."""
        total = sum(span.range.size for span in spans.values())
        size = TASK_RECORDS if self.partitions is None else max(1, -(-total // self.partitions))
        for name, ((start, end), instance) in spans.items():
            for first in range(start, end, size):
                yield name, instance, first, min(first + size, end)

    def to_batches(
        self, topic: str, instance: str | None, found: Iterable[FrameArrays | Gap]
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns and gaps of a topic as Arrow batches."""
        for one in found:
            if isinstance(one, Gap):
                yield self.gap_batch(topic, instance, one)
            else:
                yield self.to_batch(topic, instance, len(next(iter(one.values()))), one)


@dataclass(frozen=True, kw_only=True)
class ServerSource(TopicsSource):
    """A read over HTTP."""

    address: ServerAddress
    timeout_s: float

    @classmethod
    def own_options(cls, options: Options) -> dict[str, Any]:
        """Add the server."""
        if "coldDir" in options:
            raise InvalidConfig("coldDir belongs to dataDir; name that as well")
        if "url" not in options:
            raise InvalidConfig("everlog.topics needs the option 'url', or 'dataDir' to read files")
        address = topic_ranges.server_address(options.text("url"), options.text("key", ""))
        timeout_s = (options.whole("timeoutMs", TIMEOUT_MS) or 0) / MS_PER_S
        return {**super().own_options(options), "address": address, "timeout_s": timeout_s}

    def heads(self, *, is_first: bool) -> Heads:
        """Ask the server for the range of each topic; an address that never answered is soon given up."""
        with self.address.connect(self.timeout_s, is_tried=not is_first) as api:

            def head(name: str) -> Head:
                live, instance = topic_ranges.live_span(api, name)
                wanted = self.span(
                    live, lambda ts_ns: topic_ranges.seq_at_time(api, name, -(-ts_ns // NS_PER_MS))
                )
                return Head(live, wanted, instance)

            return {name: head(name) for name in topic_ranges.find_topics(api, self.topics)}

    def tasks(self, spans: Spans) -> list[tuple[str, str | None, int, int]]:
        """Split the ranges of all topics."""
        return list(self.ranges(spans))

    def end_within_bytes(self, spans: Spans, max_bytes: int) -> dict[str, int]:
        """Estimate by the average size of the live records."""
        with self.address.connect(self.timeout_s) as api:
            average = topic_ranges.average_bytes(api, spans)
        return self.end_within_records(spans, max(1, max_bytes // average))

    def batches(self, topic: str, instance: str | None, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range."""
        with self.address.connect(self.timeout_s) as api:
            wanted = SeqRange(first, end)
            found = topic_ranges.read(api, topic, wanted, self.passing, self.frame_columns, instance)
            yield from self.to_batches(topic, instance, found)


class TopicsFormat(Format):
    """`spark.read.format("everlog.topics").option("url", ...).option("topic", ...)`, also `readStream`."""

    SOURCE = ServerSource

    def source(self) -> Source:
        """Return the read of a server, or of files with `dataDir`."""
        if not Options(self.options, TopicsSource.OPTIONS, TopicsSource.FORMAT).text("dataDir", ""):
            return super().source()
        # Imported here: it loads the whole engine, which other tasks do not need.
        from everlog.pipeline.sources.topics_directory import DirectorySource

        return DirectorySource.parse(self.options)

    def streamed(self, source: Source) -> Source:
        """Refuse files."""
        if not isinstance(source, ServerSource):
            raise InvalidConfig("dataDir is read in batch only; read a stream by url")
        return source

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Append rows; a topic cannot be overwritten."""
        if overwrite:
            raise InvalidConfig('topics are appended to: use mode("append"), or delete the topic first')
        return TopicsBatchWriter(topics_sink.parse_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Append the rows of a stream; `complete` output would have to overwrite."""
        if overwrite:
            raise InvalidConfig('topics are appended to: use outputMode("append") or "update"')
        return TopicsStreamWriter(topics_sink.parse_options(self.options, schema))
