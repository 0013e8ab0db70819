"""What streaming jobs share: batches that their own process plans and commits, so that a run can go on.

The range of a batch is on disk, in the file `batch.json` of the checkpoint, before anything of the batch is
committed: after a crash the same batch comes again. No query of Spark runs, so a job is the same on a
session of any kind. A checkpoint has one application name, under which its batches are committed to a table;
a reader of the queue follows the commits.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from everlog.clock import NS_PER_S, SystemClock
from everlog.errors import (
    CorruptMetadata,
    InvalidConfig,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreFailed,
)
from everlog.fs import OsFs, close_locked, create_directory, replace_file
from everlog.pipeline import queue_ranges
from everlog.pipeline.accounts import Key, RangeAccount
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_places import LakePlace, local_path
from everlog.pipeline.sources.base import Offset, StreamReader
from everlog.queue import Queue
from everlog.queue.reader_meta import ReaderPosition as StoredPosition
from everlog.queue.reader_meta import list_readers

BATCH_FILE: Final = "batch.json"
LOCK_FILE: Final = "lock"
POLL_NS: Final = NS_PER_S // 10
"""How often a job that has caught up looks for more."""

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
"""Folders of a checkpoint of an earlier version, by Spark: the ends of batches, and those finished."""

APPLICATION_FILE: Final = "application"
ARCHIVED_FILE: Final = "archived"
QUEUE_FILE: Final = "queue"
HEARTBEAT_S: Final = 1.0
STORE_TRIES: Final = 100
"""One of several jobs that store their positions at once succeeds each time."""


class Batch(msgspec.Struct, frozen=True):
    """A range of a stream, from one offset up to another, as the checkpoint has it."""

    number: int
    start: Offset
    end: Offset
    is_committed: bool = False


def run_batches(
    reader: StreamReader, checkpoint: str, commit: Callable[[Batch], None], *, follow: bool
) -> Offset | None:
    """Pass the batches of a stream to `commit`, one by one; return the offset behind the last one.

    After a crash the same batch comes again. Without `follow` this ends when it has caught up with what was
    there at its start.
    """
    with _locked(checkpoint):
        last = _load(checkpoint)
        if last is not None and not last.is_committed:
            last = _passed_on(checkpoint, last, commit, reader)
        if not follow:
            reader.prepareForTriggerAvailableNow()
        clock = SystemClock()
        while True:
            start = reader.initialOffset() if last is None else last.end
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end != start:
                number = 0 if last is None else last.number + 1
                last = _passed_on(checkpoint, Batch(number, start, end), commit, reader)
            elif not follow:
                return end
            else:
                clock.sleep_ns(POLL_NS)


def batch_frame(spark: SparkSession, reader: StreamReader, batch: Batch) -> DataFrame:
    """Return the rows of a batch, one task for each part of it."""
    parts = reader.partitions(batch.start, batch.end)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in batches:
            for number in one.column(0).to_pylist():
                yield from reader.read(parts[number])

    numbers = spark.range(0, len(parts), 1, len(parts))
    return numbers.mapInArrow(task, from_arrow_schema(reader.source.arrow_schema))


def _passed_on(checkpoint: str, batch: Batch, commit: Callable[[Batch], None], reader: StreamReader) -> Batch:
    """Store a batch, let it be committed, and store that it is."""
    if not batch.start:  # taken over from an earlier version, which did not store the first one
        batch = msgspec.structs.replace(batch, start=reader.initialOffset())
    _store(checkpoint, batch)
    commit(batch)
    done = msgspec.structs.replace(batch, is_committed=True)
    _store(checkpoint, done)
    return done


def _store(checkpoint: str, batch: Batch) -> None:
    replace_file(OsFs(), os.path.join(checkpoint, BATCH_FILE), msgspec.json.encode(batch))


def _load(checkpoint: str) -> Batch | None:
    """Return the last batch of a checkpoint, None if there is none yet."""
    path = os.path.join(checkpoint, BATCH_FILE)
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Batch)
    except FileNotFoundError:
        return _taken_over(checkpoint)
    except msgspec.MsgspecError as error:
        raise InvalidConfig(f"{path} is no batch of a checkpoint ({error}); restore it") from None


def _taken_over(checkpoint: str) -> Batch | None:
    """Return the last batch of a checkpoint of an earlier version, whose offsets Spark stored."""

    def numbers(folder: str) -> set[int]:
        """Return the batches that a folder has; a power loss may have left empty files."""
        with suppress(FileNotFoundError):
            entries = os.scandir(os.path.join(checkpoint, folder))
            return {int(one.name) for one in entries if one.name.isdecimal() and one.stat().st_size}
        return set()

    def offset(number: int) -> Offset:
        with open(os.path.join(checkpoint, OFFSETS, str(number)), encoding="utf-8") as file:
            found: Offset = msgspec.json.decode(file.read().splitlines()[-1])
        return found

    planned = numbers(OFFSETS)
    if not planned:
        return None
    last = max(planned)
    done = last in numbers(COMMITS)
    if last and not done and last - 1 not in planned:
        raise InvalidConfig(f"checkpoint {checkpoint} lacks the offsets of batch {last - 1}; restore it")
    start = offset(last - 1) if last - 1 in planned else {}
    return Batch(last, start, offset(last), done)


@contextmanager
def _locked(checkpoint: str) -> Iterator[None]:
    """Keep other runs away from a checkpoint; the lock ends with the process."""
    fs = OsFs()
    create_directory(fs, checkpoint)
    fd = fs.open(os.path.join(checkpoint, LOCK_FILE), os.O_RDWR | os.O_CREAT)
    if not fs.try_lock(fd):
        fs.close(fd)
        raise InvalidConfig(
            f"another run has the checkpoint {checkpoint}; wait for its end, or give another table"
        )
    try:
        yield
    finally:
        close_locked(fs, fd)


def application_of(checkpoint: str, table: LakeTable, source: Key | None = None) -> str:
    """Return the name under which a checkpoint commits to its table; it is stored beside the offsets.

    A new checkpoint for a table that has been filled is refused: it would fill the table twice. With the
    queue that is the `source` only if this one may be in the table; rows of others may be there.
    """
    path = os.path.join(checkpoint, APPLICATION_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        pass
    if table.open() is not None and (source is None or table.may_have_archived(source)):
        raise InvalidConfig(
            f"table {table.path} has been filled, but its checkpoint {checkpoint} is not there; give the "
            "right checkpoint, or another table"
        )
    create_directory(OsFs(), checkpoint)
    application = f"archive-{uuid.uuid4().hex}"
    replace_file(OsFs(), path, application.encode())
    return application


def checkpoint_folder(table: LakeTable, checkpoint: str | None) -> str:
    """Return the directory of a job's checkpoint: beside its table, unless one is given."""
    if checkpoint is not None:
        return local_path(checkpoint, "the checkpoint")
    if not table.place.is_local:
        raise InvalidConfig(
            f"table {table.path} is in an object store, and a checkpoint is a directory; name one with "
            "--checkpoint DIR that is there again in the next run"
        )
    return f"{table.path}.checkpoint"


def shared_place(table: LakeTable, folder: str) -> LakePlace:
    """Return where a job keeps what others read: in its checkpoint, or in the object store of its table."""
    return LakePlace(folder) if table.place.is_local else table.place.parent.below(f"{table.name}.checkpoint")


def check_queue(checkpoint: str, name: str, instance: str | None) -> None:
    """Refuse a queue that is neither the one of this checkpoint nor one made anew in its place."""
    path, last = os.path.join(checkpoint, QUEUE_FILE), _load(checkpoint)
    try:
        with open(path, encoding="utf-8") as file:
            known = file.read()
    except FileNotFoundError:
        known = ""
    if known == name:
        return
    if known and last is not None and last.end.get("instance") != instance:
        raise InvalidConfig(
            f"checkpoint {checkpoint} is of queue {known}, not of {name}; name another table (--table), or a "
            "checkpoint of this queue (--checkpoint)"
        )
    replace_file(OsFs(), path, name.encode())


class ArchivedPositions:
    """How far jobs have brought each stream: a table that ends before has lost rows."""

    def __init__(self, place: LakePlace) -> None:
        self._objects = place.objects()
        self.ends = self._load()[0]

    def _load(self) -> tuple[dict[Key, int], str | None]:
        """Return what is stored, and its tag."""
        try:
            stored = self._objects.get(ARCHIVED_FILE)
        except ObjectNotFound:
            return {}, None
        rows = msgspec.json.decode(stored.data, type=list[tuple[str, str | None, int]])
        return {(stream, instance): end for stream, instance, end in rows}, stored.tag

    def store(self, ranges: Iterable[RangeAccount]) -> None:
        """Store the ends of ranges that are committed to the table, beside those of other jobs."""
        ends = dict(self.ends)
        for one in ranges:
            key = (one.stream, one.instance)
            ends[key] = max(one.end, ends.get(key, 0))
        for _ in range(STORE_TRIES):
            stored, tag = self._load()
            for key, end in stored.items():
                ends[key] = max(end, ends.get(key, 0))
            if ends != stored:
                data = msgspec.json.encode([(*key, end) for key, end in sorted(ends.items(), key=str)])
                try:
                    if tag is None:
                        self._objects.put_new(ARCHIVED_FILE, data)
                    else:
                        self._objects.swap(ARCHIVED_FILE, data, tag)
                except (ObjectExists, ObjectChanged):
                    continue  # another job has stored its own meanwhile
            self.ends = ends
            return
        raise ObjectStoreFailed(
            f"{self._objects.describe(ARCHIVED_FILE)} was changed by others {STORE_TRIES} times in a row; "
            "run fewer archives into one table at a time"
        )


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
