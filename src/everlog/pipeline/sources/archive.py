"""`everlog.queue` over an archive root: a task for each segment, directories chosen by their paths.

Owns what differs from a read of one queue: which segments there are, the options and columns of their paths.
Decoding and the filters of messages are those of the queue source. Batch only: a stream follows a live queue.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from everlog.archive import layout
from everlog.archive.reader import (
    ArchiveReader,
    archive_directories,
    archive_segments,
    select_directories,
)
from everlog.archive.remote import RemoteTier, is_url
from everlog.archive.tiers import ArchivedSegment
from everlog.errors import InvalidConfig
from everlog.fs import OsFs
from everlog.market.decoding import DECODINGS, MESSAGE_FIELDS, column, select, select_all
from everlog.pipeline.options import ON_DATA_LOSS, U64_MAX, Options
from everlog.pipeline.queue_ranges import BATCH_RECORDS, QueueBounds, queue_name
from everlog.pipeline.sources.base import Columns
from everlog.pipeline.sources.queue import QueueSource, numbers
from everlog.queue.batch import Batch
from everlog.queue.layout import CONTROL_FILE

PATH_COLUMNS: Final = ("venue", "symbol", "date", "stream")
OWN_OPTIONS: Final = ("symbol", "stream", "fromDate", "toDate", "cacheDir", "allowEmpty")
OF_OFFSETS: Final = (
    "onCorrupt",
    "startingOffsets",
    "endingOffsets",
    "partitions",
    "maxRecordsPerBatch",
    "maxBytesPerBatch",
)


def is_archive(path: str) -> bool:
    """Whether a path is no queue, but has segments in or below it."""
    if is_url(path):
        return True
    if os.path.exists(os.path.join(path, CONTROL_FILE)):
        return False
    return any(layout.parse_file_name(name) for _, _, names in os.walk(path) for name in names)


@dataclass(frozen=True, kw_only=True)
class ArchiveSource(QueueSource):
    """A read of an archive root, part of one, or one directory of it."""

    OPTIONS = (*(name for name in QueueSource.OPTIONS if name not in OF_OFFSETS), *OWN_OPTIONS)

    path_venue: str | None
    symbol: str | None
    stream: str | None
    first_date: str | None
    last_date: str | None
    cache: str | None
    allow_empty: bool

    @classmethod
    def own_options(cls, options: Options) -> dict[str, Any]:
        """Return those of a queue, and which directories to read; `venue` is the name in the path here."""
        given = {name: options.text(name) if name in options else None for name in ("venue", *OWN_OPTIONS)}
        for name in ("fromDate", "toDate"):
            if given[name] is not None:
                layout.check_date(given[name] or "")
        decode = options.choice("decode", tuple(DECODINGS))
        if decode != "raw" and "typeId" in options:
            raise InvalidConfig(f"decode={decode} selects messages by their type; leave out typeId")
        path = options.text("path")
        path = path.rstrip("/") if is_url(path) else os.path.abspath(path)
        return {
            "path": path,
            "held": QueueBounds(path),
            "type_ids": numbers(options, "typeId"),
            "decode": decode,
            "venues": numbers(options, "venueId"),
            "markets": numbers(options, "market"),
            "on_corrupt": ON_DATA_LOSS[0],
            "path_venue": given["venue"],
            "symbol": given["symbol"],
            "stream": given["stream"],
            "first_date": given["fromDate"],
            "last_date": given["toDate"],
            "cache": given["cacheDir"],
            "allow_empty": options.choice("allowEmpty", ("false", "true")) == "true",
        }

    @property
    def known(self) -> Columns:
        """The columns of the decoding, and those of the path."""
        return {**super().known, **dict.fromkeys(PATH_COLUMNS, pa.string())}

    def segments(self) -> list[ArchivedSegment]:
        """Return the segments to read, by date and path."""
        fs, remote = OsFs(), RemoteTier(OsFs())
        found = archive_directories(fs, self.path, remote)
        if self.path not in found:
            found = select_directories(
                found, self.path_venue, self.symbol, self.stream, self.first_date, self.last_date
            )
        return [segment for directory in found for segment in archive_segments(fs, directory, remote)]

    def segment_batches(self, segment: ArchivedSegment) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one segment that pass the filters."""
        remote = RemoteTier(OsFs(), cache_directory=self.cache)
        with ArchiveReader(lambda: [segment], remote=remote) as reader:
            if self.wanted.first and not reader.seek_seq(self.wanted.first):
                return
            while len(batch := reader.read_batch(BATCH_RECORDS)):
                rows = self._rows(segment, batch)
                if rows.num_rows:
                    yield rows

    def _rows(self, segment: ArchivedSegment, batch: Batch) -> pa.RecordBatch:
        decoding = DECODINGS[self.decode]
        some = select_all(batch)
        seqs = some.values(MESSAGE_FIELDS["seq"])
        some = some.where(
            (seqs >= np.uint64(self.wanted.first)) & (seqs < np.uint64(min(self.wanted.end, U64_MAX)))
        )
        some = select(decoding, self._filtered(some), self.venues, self.markets)
        arrays = {
            name: column(decoding, some, name)
            for name in decoding.columns.keys() & set(self.columns) - {self.STREAM}
        }
        key = layout.parse_directory(segment.directory)
        for name in PATH_COLUMNS:
            value = None if key is None else getattr(key, name)
            arrays[name] = pa.repeat(pa.scalar(value, pa.string()), len(some))
        name = segment.directory if is_url(segment.directory) else queue_name(segment.directory)
        return self.to_batch(name, None, len(some), arrays)


class SegmentPartition(InputPartition):
    """The task of one segment."""

    def __init__(self, segment: ArchivedSegment) -> None:
        super().__init__((segment.directory, segment.segment_id))
        self.segment = segment


class ArchiveBatchReader(DataSourceReader):
    """One bounded read of an archive."""

    def __init__(self, source: ArchiveSource) -> None:
        self._source = source

    def partitions(self) -> list[InputPartition]:
        """Plan one task for each segment."""
        segments = self._source.segments()
        if not segments and not self._source.allow_empty:
            raise InvalidConfig(
                f"no segment below {self._source.path} matches; check path, venue, symbol and dates"
            )
        return [SegmentPartition(segment) for segment in segments] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run one task; without a segment there is nothing to do."""
        if not isinstance(partition, SegmentPartition):
            return iter(())
        return self._source.segment_batches(partition.segment)
