"""The format `everlog.topics` with `dataDir`: topics from segment and log files, in bulk, without a server.

Owns the tasks of such a read; what lies where is planned once, in the driver, and each task opens its files
by itself. A directory is read as of the moment in which the read is planned.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from everlog.pipeline import segment_ranges
from everlog.pipeline.columns import arrow_schema
from everlog.pipeline.options import EARLIEST, Start
from everlog.pipeline.picking import PICKED, Filter
from everlog.pipeline.sources.topics_options import (
    COLUMNS,
    NS_PER_MS,
    TopicsRead,
    constant,
    first_of,
    gap,
    partition_records,
)
from everlog.pipeline.topic_ranges import Lost
from everlog.pipeline.worker_process import settle_worker
from everlog.topics.storage.bulk_view import RECREATED, BulkView, Extent, Gap, Piece


class PiecesPartition(InputPartition):
    """One task: pieces of files of one instance of a topic, and gaps between them."""

    def __init__(self, topic: str, instance: int | None, pieces: list[Piece | Gap]) -> None:
        super().__init__((topic, instance, pieces))


class DirectoryBatchReader(DataSourceReader):
    """One bounded read of files."""

    def __init__(self, read: TopicsRead) -> None:
        self._read = read

    def partitions(self) -> list[InputPartition]:
        """Ranges of about equal length, of one topic each."""
        read = self._read
        assert read.directory is not None, "a read over HTTP does not come here"
        view = BulkView(*read.directory)
        names = segment_ranges.find_topics(view, read.topics, read.directory.data_dir)
        ranges = {name: _range(read, view, name) for name in names}
        size = partition_records(read, sum(max(0, end - first) for first, end in ranges.values()))
        parts: list[InputPartition] = []
        for name, (first, end) in ranges.items():
            for at in range(first, end, size):
                pieces = view.plan(name, at, min(at + size, end))
                if pieces:
                    parts.append(PiecesPartition(name, view.instance(name), pieces))
        return parts or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read some pieces, in a task."""
        return read_pieces(self._read, partition)


def _range(read: TopicsRead, view: BulkView, name: str) -> tuple[int, int]:
    """Return the first seq and the seq behind the last that are wanted of a topic."""
    live = view.extent(name)
    first = max(_resolve(view, name, read.starting, live), first_of(read))
    return first, min(_resolve(view, name, read.ending, live), read.wanted.end)


def _resolve(view: BulkView, name: str, place: Start, live: Extent) -> int:
    """Return the seq that a place stands for."""
    if place.seq is not None:
        return place.seq
    if place.ts_ns is not None:
        return view.seq_at_time(name, -(-place.ts_ns // NS_PER_MS))
    return live.first if place == EARLIEST else live.end


def read_pieces(read: TopicsRead, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches of one task; a gap is an error or a row, as the read says."""
    if partition.value is None:
        return
    settle_worker()
    topic, instance, pieces = partition.value

    def again(first: int, end: int) -> list[Piece | Gap]:
        assert read.directory is not None, "pieces are of files"
        view = BulkView(*read.directory)
        if view.instance(topic) != instance:
            return [Gap(first, end, RECREATED)]
        return view.plan(topic, first, end)

    names = tuple(name for name in read.columns if name in PICKED) or ("seq",)
    wanted = Filter(read.from_ts_ms, read.to_ts_ms, read.tag)
    schema = arrow_schema(COLUMNS, read.columns)
    for found in segment_ranges.read(topic, pieces, wanted, names, again):
        if isinstance(found, Lost):
            yield gap(read, topic, found)
            continue
        count = len(found[names[0]])
        arrays = [found[name] if name in found else constant(name, topic, count) for name in read.columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
