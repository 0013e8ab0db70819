"""Writing an archive from Spark: rows of messages into the segments of a new queue, in batch.

Each task writes files beside the target, under a name that no other attempt has. The commit orders the files
of the attempts that Spark counts by their seqs and creates the queue with one rename. Files of other attempts
are deleted.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from everlog.errors import InvalidConfig
from everlog.fs import OsFs
from everlog.pipeline.options import Options
from everlog.queue.config import WriterConfig
from everlog.queue.layout import PAD_TYPE_ID
from everlog.queue.segment_builder import BuiltSegment, SegmentBuilder, assemble

OPTIONS: Final = ("path", "segmentSize")
REQUIRED: Final = {"seq": "bigint", "ts_ns": "bigint", "type_id": "int", "payload": "binary"}
COLUMNS: Final = {"queue": "string", **REQUIRED, "flags": "int"}
FLAGS_MAX: Final = 0xFFFF
ADVICE: Final = "use repartitionByRange(n, 'seq').sortWithinPartitions('seq')"


class QueueWrite(NamedTuple):
    """A checked write, sent to the executors."""

    path: str
    segment_size: int
    job: str

    @property
    def folder(self) -> str:
        """The directory of the files until the commit: beside the queue, so that a rename is enough."""
        parent, name = os.path.split(self.path)
        return os.path.join(parent, f".{name}.archive-{self.job}")


class Built(WriterCommitMessage):
    """The files of one task, and the queues that its rows name."""

    def __init__(self, segments: list[BuiltSegment], queues: frozenset[str]) -> None:
        self.segments = segments
        self.queues = queues


def parse_options(given: Mapping[str, str], schema: StructType) -> QueueWrite:
    """Check the options and the columns of a write; an error names what is valid."""
    options = Options(given, OPTIONS, "a write to everlog.queue")
    # Tasks may run in another directory than this process.
    path = os.path.abspath(options.text("path"))
    size = options.whole("segmentSize", WriterConfig().segment_size) or 0
    WriterConfig(segment_size=size)
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if not types.keys() <= COLUMNS.keys() or not types.keys() >= REQUIRED.keys():
        raise InvalidConfig(
            f"a write to everlog.queue takes the columns {', '.join(REQUIRED)} and, if wanted, queue and "
            f"flags; got {', '.join(types)}; select those"
        )
    for name, found in types.items():
        if found != COLUMNS[name]:
            raise InvalidConfig(
                f"column {name!r} of a write to everlog.queue is {COLUMNS[name]}, not {found}"
            )
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise InvalidConfig(
            f"there is something at {path} already; an archive is written once, to a new directory"
        )
    return QueueWrite(path, size, uuid.uuid4().hex)


class QueueArchiveWriter(DataSourceArrowWriter):
    """One archive: all rows, or nothing."""

    def __init__(self, write: QueueWrite) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Built:
        """Write the messages of one task."""
        return write_task(self._write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Create the queue."""
        built = [message for message in messages if isinstance(message, Built)]
        queues = sorted(frozenset().union(*(message.queues for message in built)))
        if len(queues) > 1:
            raise InvalidConfig(
                f"the rows are of the queues {', '.join(queues)}; an archive is of one, filter the others out"
            )
        write = self._write
        os.makedirs(write.folder, exist_ok=True)
        segments = [segment for message in built for segment in message.segments]
        assemble(OsFs(), write.folder, write.path, segments, write.segment_size)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what was written."""
        shutil.rmtree(self._write.folder, ignore_errors=True)


def write_task(write: QueueWrite, batches: Iterator[pa.RecordBatch]) -> Built:
    """Write the rows of one task, which must be in the order of their seqs, without a gap."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    os.makedirs(write.folder, exist_ok=True)
    # The same task may run twice at the same time: every attempt has files of its own.
    prefix = os.path.join(write.folder, f"{partition:05d}-{uuid.uuid4().hex}")
    builder: SegmentBuilder | None = None
    queues: frozenset[str] = frozenset()
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = _Rows(batch)
            if builder is None:
                builder = SegmentBuilder(OsFs(), prefix, write.segment_size, int(rows.seqs[0]))
            rows.check_order(builder.next_seq)
            rows.append_to(builder)
            queues |= rows.queues
    except BaseException:
        if builder is not None:
            builder.discard()
        raise
    return Built([] if builder is None else builder.finish(), queues)


class _Rows:
    """The rows of one Arrow batch as arrays that the writer takes."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        for name in batch.schema.names:
            if batch.column(name).null_count:
                raise InvalidConfig(f"a message without {name} cannot be archived; filter such rows out")
        self._batch = batch
        # Spark has no unsigned numbers: those of 64 bits keep their bits, as they do when they are read.
        self.seqs = self._numbers("seq").view(np.uint64)
        self._times_ns = self._numbers("ts_ns").view(np.uint64)
        self._types = self._small("type_id", PAD_TYPE_ID - 1)
        has_flags = "flags" in batch.schema.names
        self._flags = self._small("flags", FLAGS_MAX) if has_flags else None
        named = batch.column("queue").unique().to_pylist() if "queue" in batch.schema.names else []
        self.queues = frozenset(named)

    def _numbers(self, name: str) -> NDArray[Any]:
        return np.ascontiguousarray(self._batch.column(name).to_numpy(zero_copy_only=False))

    def _small(self, name: str, largest: int) -> NDArray[np.uint16]:
        values = self._numbers(name)
        if values.min() < 0 or values.max() > largest:
            wrong = values.min() if values.min() < 0 else values.max()
            raise InvalidConfig(f"{name} is {wrong} in some row; it must be from 0 to {largest}")
        return values.astype(np.uint16)

    def check_order(self, expected: int) -> None:
        """Refuse rows that are not consecutive."""
        wanted = np.arange(len(self.seqs), dtype=np.uint64) + np.uint64(expected)
        wrong = np.flatnonzero(self.seqs != wanted)
        if len(wrong):
            raise InvalidConfig(
                f"found seq {self.seqs[wrong[0]]} instead of {wanted[wrong[0]]}; the seqs of a partition "
                f"have to be consecutive: {ADVICE}"
            )

    def append_to(self, builder: SegmentBuilder) -> None:
        """Write all of them."""
        payloads = self._batch.column("payload")
        if payloads.type != pa.binary():
            payloads = payloads.cast(pa.binary())
        _, places, data = payloads.buffers()
        first = payloads.offset
        begins = np.frombuffer(places, dtype=np.int32)[first : first + len(payloads) + 1].astype(np.uint64)
        raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
        builder.append_packed(
            self._types, raw, begins[1:], self._times_ns, flags=self._flags, starts=begins[:-1]
        )
