"""What streaming jobs share: a query that passes its batches to a function, and what makes it restartable.

A checkpoint has one application name, under which its batches are committed to a table; a reader of the queue
follows the commits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from everlog.errors import CorruptMetadata, InvalidConfig, Unsupported
from everlog.fs import OsFs, create_directory, replace_file, sync_path
from everlog.pipeline import queue_ranges
from everlog.pipeline.accounts import Key, RangeAccount
from everlog.pipeline.lake import LakeTable
from everlog.queue import Queue
from everlog.queue.reader_meta import ReaderPosition as StoredPosition
from everlog.queue.reader_meta import list_readers

LAST_DESCRIPTOR: Final = 1023
"""Spark waits for its calls back into Python with select(), which accepts no higher descriptor."""

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
"""Folders of a checkpoint: the range of each batch, and the batches that are finished."""

APPLICATION_FILE: Final = "application"
ARCHIVED_FILE: Final = "archived"
HEARTBEAT_S: Final = 1.0


def run_batches(
    frame: DataFrame, checkpoint: str, commit: Callable[[DataFrame, int], None], *, follow: bool
) -> StreamingQuery:
    """Run a query over a stream and return it when it has ended.

    `commit` gets the rows and the number of each batch; after a crash the same batch comes again. Without
    `follow` the query ends when it has caught up with what was there at its start.
    """
    if not isinstance(frame.sparkSession, SparkSession):
        raise Unsupported(
            "the batches of this job are committed by its own process, and Spark Connect would run that on "
            "the server; start it with --master, or by spark-submit"
        )
    _drop_unwritten(checkpoint)

    def commit_planned(rows: DataFrame, batch: int) -> None:
        _sync_plan(checkpoint, batch)
        commit(rows, batch)

    writer = _passing_to(commit_planned, frame.writeStream.option("checkpointLocation", checkpoint))
    query = (writer if follow else writer.trigger(availableNow=True)).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return query


def _sync_plan(checkpoint: str, batch: int) -> None:
    """Sync the range of a batch before anything of the batch is committed; Spark does not.

    If a power loss removed the range, the batch would be planned again with more records, and a table that
    has committed its number would skip them.
    """
    fs, folder = OsFs(), os.path.join(checkpoint, OFFSETS)
    for name in (str(batch), f".{batch}.crc"):
        sync_path(fs, os.path.join(folder, name))
    fs.fsync_dir(folder)
    fs.fsync_dir(checkpoint)


def _drop_unwritten(checkpoint: str) -> None:
    """Delete the files of Spark's log that a power loss has emptied: Spark would refuse to start.

    Nothing was committed of a batch whose range was not on disk, and a batch without a commit runs again.
    """
    for folder in (os.path.join(checkpoint, name) for name in (OFFSETS, COMMITS)):
        with contextlib.suppress(FileNotFoundError):
            sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
            for name in sizes:
                batch = name.removeprefix(".").removesuffix(".crc")
                if batch.isdecimal() and sizes.get(batch, 0) == 0:
                    os.unlink(os.path.join(folder, name))


def _passing_to(commit: Callable[[DataFrame, int], None], writer: DataStreamWriter) -> DataStreamWriter:
    """Return the writer with a function for its batches.

    Refuses a descriptor for which Spark would wait forever: the first batch would never arrive. With the
    first such function of a process Spark opens a socket for its calls, on the lowest free descriptor.
    """
    lowest = _lowest_descriptor()
    writer = writer.foreachBatch(commit)
    if lowest > LAST_DESCRIPTOR and _lowest_descriptor() > lowest:
        raise Unsupported(
            f"this process has so many files open that Spark's calls come in on descriptor {lowest}, and "
            f"Spark waits only for those up to {LAST_DESCRIPTOR}; run the job in a process of its own"
        )
    return writer


def _lowest_descriptor() -> int:
    """Return the descriptor that the next file gets."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def application_of(checkpoint: str, table: LakeTable) -> str:
    """Return the name under which a checkpoint commits to its table; it is stored beside the offsets.

    A new checkpoint for a table that has been filled is refused: it would fill the table twice.
    """
    path = os.path.join(checkpoint, APPLICATION_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        pass
    if table.open() is not None:
        raise InvalidConfig(
            f"table {table.path} has been filled, but its checkpoint {checkpoint} is not there; give the "
            "right checkpoint, or another table"
        )
    create_directory(OsFs(), checkpoint)
    application = f"archive-{uuid.uuid4().hex}"
    replace_file(OsFs(), path, application.encode())
    return application


class ArchivedPositions:
    """How far a job has brought each stream, beside its checkpoint: a table that ends before lost rows."""

    def __init__(self, checkpoint: str) -> None:
        self._path = os.path.join(checkpoint, ARCHIVED_FILE)
        self.ends = _load_ends(self._path)

    def store(self, ranges: Iterable[RangeAccount]) -> None:
        """Store the ends of ranges that are committed to the table."""
        ends = dict(self.ends)
        for one in ranges:
            key = (one.stream, one.instance)
            ends[key] = max(one.end, ends.get(key, 0))
        if ends != self.ends:
            self.ends = ends
            rows = [(*key, end) for key, end in sorted(ends.items(), key=str)]
            replace_file(OsFs(), self._path, msgspec.json.encode(rows))


def _load_ends(path: str) -> dict[Key, int]:
    try:
        with open(path, "rb") as file:
            rows = msgspec.json.decode(file.read(), type=list[tuple[str, str | None, int]])
    except FileNotFoundError:
        return {}
    return {(stream, instance): end for stream, instance, end in rows}


class ReaderPosition:
    """A job as a named reader of its queue, so that retention waits for it; without a name it does nothing.

    A thread sends heartbeats, since a batch may take longer than a reader may be silent.
    """

    def __init__(self, path: str, name: str | None) -> None:
        known = None if name is None else (list_readers(OsFs(), path) or {}).get(name)
        self._reader = None if name is None else Queue.open_subscriber(path, name, "resume-snapshot")
        self.begin = 0 if known is None else self._committed_seq(path, known)
        """The seq at which a first run begins: the position that the reader has, or the first ever."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="archive-heartbeat", daemon=True)

    def _committed_seq(self, path: str, known: StoredPosition | CorruptMetadata) -> int:
        assert self._reader is not None, "only a reader has a position"
        if isinstance(known, CorruptMetadata) or self._reader.committed_position != (
            known.segment_id,
            known.offset,
        ):
            return 0  # the segment that it stood in is gone: its seq is not known any more
        batch = self._reader.read_batch(1, verify=False)
        return int(batch.seq[0]) if len(batch) else queue_ranges.bounds(path).end

    def move_to(self, next_seq: int) -> None:
        """Commit a position: everything before it is in the table."""
        if self._reader is not None:
            with self._lock:
                self._reader.seek_seq(next_seq)
                self._reader.commit()

    def _beat(self) -> None:
        assert self._reader is not None, "the thread runs for a reader only"
        while not self._over.wait(HEARTBEAT_S):
            with self._lock:
                self._reader.heartbeat()

    def __enter__(self) -> Self:
        if self._reader is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._over.set()
            self._thread.join()
            self._reader.close()
