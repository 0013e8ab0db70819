"""The format `everlog.queue`: a live queue directory as a batch or streaming source, an archive as a sink.

One task per segment, or for several small ones, or as many as asked for. Which seqs there are is found in
`queue_ranges`, columns are made in `decoding`; only the bytes that a column needs are copied. An offset is
`{"seq": 17, "instance": "..."}` with the identity of the queue.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
)
from pyspark.sql.types import StructType

from everlog.errors import InvalidConfig
from everlog.market.decoding import (
    BY_HASH,
    DECODINGS,
    MESSAGE_FIELDS,
    OPTIONAL_COLUMNS,
    MessageSelection,
    column,
    select,
    select_all,
)
from everlog.pipeline import queue_ranges
from everlog.pipeline.options import ON_DATA_LOSS, U64_MAX, Options
from everlog.pipeline.queue_ranges import QueueBounds, queue_name
from everlog.pipeline.sources import queue_sink
from everlog.pipeline.sources.base import (
    GAP_COLUMNS,
    INSTANCE_COLUMN,
    READ_OPTIONS,
    BatchReader,
    Columns,
    Format,
    Head,
    Heads,
    Offset,
    Positions,
    Source,
    Spans,
)
from everlog.pipeline.sources.queue_sink import QueueArchiveWriter
from everlog.queue.batch import Batch
from everlog.seq_ranges import Gap, Position, SeqRange


@dataclass(frozen=True, kw_only=True)
class QueueSource(Source):
    """A read of one queue."""

    FORMAT = "everlog.queue"
    OPTIONS: ClassVar[tuple[str, ...]] = (
        "path",
        *READ_OPTIONS,
        "onCorrupt",
        "typeId",
        "decode",
        "venue",
        "venueId",
        "market",
    )
    STREAM = "queue"
    UNITS = "messages"
    FIRST_SEQ = 0

    path: str
    held: QueueBounds
    type_ids: tuple[int, ...]
    decode: str
    venues: tuple[int, ...]
    markets: tuple[int, ...]
    on_corrupt: str

    @classmethod
    def own_options(cls, options: Options) -> dict[str, Any]:
        """Return path and filters; refuse filters that do not fit the decoding."""
        decode = options.choice("decode", tuple(DECODINGS))
        if decode != "raw" and "typeId" in options:
            raise InvalidConfig(f"decode={decode} selects messages by their type; leave out typeId")
        venues = "venue" if "venue" in options else "venueId"
        if decode in BY_HASH and (venues in options or "market" in options):
            raise InvalidConfig(
                f"a {decode} names its symbol by its hash only; filter symbol_hash instead of market"
            )
        # Tasks may run in another directory than this process.
        path = os.path.abspath(options.text("path"))
        return {
            "path": path,
            "held": QueueBounds(path),
            "type_ids": numbers(options, "typeId"),
            "decode": decode,
            "venues": numbers(options, venues),
            "markets": numbers(options, "market"),
            "on_corrupt": options.choice("onCorrupt", ON_DATA_LOSS),
        }

    @property
    def known(self) -> Columns:
        """The columns of the decoding; those of a gap only if gaps can be rows."""
        gaps = GAP_COLUMNS if "record" in (self.on_data_loss, self.on_corrupt) else {}
        return {**DECODINGS[self.decode].columns, **gaps, **INSTANCE_COLUMN}

    @property
    def default_columns(self) -> tuple[str, ...]:
        """All columns but the rarely used ones."""
        return tuple(
            name for name in super().default_columns if name not in OPTIONAL_COLUMNS.get(self.decode, ())
        )

    def heads(self, *, is_first: bool) -> Heads:
        """Return the range of the queue."""
        live, instance = self.held.bounds(), queue_ranges.instance_of(self.path)
        wanted = self.span(live, lambda ts_ns: queue_ranges.seq_at_time(self.path, ts_ns))
        return {queue_name(self.path): Head(live, wanted, instance)}

    def offset(self, positions: Positions) -> Offset:
        """Return the position itself: there is one stream."""
        (position,) = positions.values()
        return position._asdict()

    def positions(self, offset: Offset) -> Positions:
        """Return the position; earlier versions stored a seq alone."""
        return {queue_name(self.path): Position(offset["seq"], offset.get("instance"))}

    def tasks(self, spans: Spans) -> list[tuple[int, int, str | None]]:
        """Split at segments; what retention deleted in front goes to the first task, which reports it."""
        ((wanted, instance),) = spans.values()
        if not wanted.size:
            return []
        ranges = queue_ranges.split(self.held.task_ranges(), wanted, self.partitions) or [wanted]
        ranges[0] = SeqRange(wanted.first, ranges[0].end)
        ranges[-1] = SeqRange(ranges[-1].first, wanted.end)
        return [(first, end, instance) for first, end in ranges]

    def end_within_bytes(self, spans: Spans, max_bytes: int) -> dict[str, int]:
        """Return the end of what occupies `max_bytes` at most."""
        ((wanted, _),) = spans.values()
        return {queue_name(self.path): queue_ranges.end_within_bytes(self.path, wanted, max_bytes)}

    def batches(self, first: int, end: int, instance: str | None) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range."""
        wanted, passes = SeqRange(first, end), self.on_corrupt == "record"
        for piece in queue_ranges.read(self.path, wanted, instance=instance, pass_damage=passes):
            if isinstance(piece, Gap):
                yield self.gap_batch(queue_name(self.path), instance, piece)
            elif (batch := self._decoded(piece, instance)).num_rows:
                yield batch

    def is_row(self, gap: Gap) -> bool:
        """Damage is a row with onCorrupt=record; without it, reading raises before there is a gap."""
        return gap.reason == queue_ranges.CORRUPT or super().is_row(gap)

    def _decoded(self, batch: Batch, instance: str | None) -> pa.RecordBatch:
        """Return the wanted columns of the messages that pass the filters."""
        decoding = DECODINGS[self.decode]
        some = select(decoding, self._filtered(select_all(batch)), self.venues, self.markets)
        names = decoding.columns.keys() & set(self.columns) - {self.STREAM}
        arrays = {name: column(decoding, some, name) for name in names}
        return self.to_batch(queue_name(self.path), instance, len(some), arrays)

    def _filtered(self, some: MessageSelection) -> MessageSelection:
        """Return the messages that pass the filters of type and time."""
        if self.type_ids:
            some = some.where(np.isin(some.values(MESSAGE_FIELDS["type_id"]), self.type_ids))
        if self.from_ts or self.to_ts != U64_MAX:
            times_ns = some.values(MESSAGE_FIELDS["ts_ns"])
            some = some.where((times_ns >= np.uint64(self.from_ts)) & (times_ns <= np.uint64(self.to_ts)))
        return some


def numbers(options: Options, name: str) -> tuple[int, ...]:
    """Return the numbers of an option, decimal or as 0x1000."""
    try:
        return tuple(int(text, 0) for text in options.names(name))
    except ValueError:
        raise options.wrong(name, options.text(name), "numbers such as 0x1000,0x1002") from None


class QueueFormat(Format):
    """`spark.read.format("everlog.queue").load(path)`, and the same with `readStream`."""

    SOURCE = QueueSource

    def source(self) -> Source:
        """Return the read of a queue, or of an archive if that is what the path has."""
        from everlog.pipeline.sources.archive import ArchiveSource, is_archive

        path = self.options.get("path", "")
        return ArchiveSource.parse(self.options) if path and is_archive(path) else super().source()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once: a queue by ranges of seqs, an archive segment by segment."""
        from everlog.pipeline.sources.archive import ArchiveBatchReader, ArchiveSource

        source = self.chosen(schema)
        return ArchiveBatchReader(source) if isinstance(source, ArchiveSource) else BatchReader(source)

    def streamed(self, source: Source) -> Source:
        """Refuse an archive."""
        from everlog.pipeline.sources.archive import ArchiveSource

        if isinstance(source, ArchiveSource):
            raise InvalidConfig("an archive is read in batch; a stream follows the live queue")
        return source

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Write an archive to a path where nothing is yet."""
        if overwrite:
            raise InvalidConfig('an archive is written once, to a new directory: use mode("append")')
        return QueueArchiveWriter(queue_sink.parse_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Refuse streams: an archive is written in one batch."""
        raise InvalidConfig("an archive is written as a whole, in batch; write a stream to a topic instead")
