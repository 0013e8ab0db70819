"""`ArchiveTap`: copies a live queue to an archive queue, message by message, in order and exactly once.

Owns what makes it exact. The archive queue numbers its messages itself; `tap.json` beside them says by how
much the seqs of the two differ, from before the first message on. So the archive's next seq names the live
message that comes next, whatever was committed: a tap that was killed anywhere neither repeats nor leaves one
out. A commit on the live queue, which lets retention go on, follows a sync of the archive.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec
import numpy as np

from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.errors import CorruptMetadata, SegmentMissing, Unsupported
from everlog.fs import Fs, OsFs, read_file, replace_file
from everlog.native.queue.ring import MessageView
from everlog.queue import Queue, QueueReader, QueueWriter
from everlog.queue.batch import Batch
from everlog.queue.config import WriterConfig
from everlog.queue.faults import io_errors
from everlog.queue.layout import HEADER_SIZE

TAP_FILE: Final = "tap.json"
READER: Final = "archive_tap"
BATCH_MESSAGES: Final = 16384
COMMIT_BYTES: Final = 64 << 20
COMMIT_NS: Final = NS_PER_S
"""How much may be copied, and how long, before it is synced and committed."""


class TapAnchor(msgspec.Struct, kw_only=True, frozen=True):
    """`tap.json`: live seq = archive seq + `seq_offset`."""

    source: str
    seq_offset: int


def load_anchor(fs: Fs, archive: str) -> TapAnchor | None:
    """Return how the seqs of an archive queue relate to those of its live queue; None if no tap wrote it."""
    path = os.path.join(archive, TAP_FILE)
    try:
        return msgspec.json.decode(read_file(fs, path), type=TapAnchor)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CorruptMetadata(
            f"{path} is damaged: {error}; restore it, or tap into a new archive queue"
        ) from error


class ArchiveTap:
    """Copies messages with their times, types and flags. Use it from one thread."""

    def __init__(
        self,
        live: str | os.PathLike[str],
        archive: str | os.PathLike[str],
        *,
        reader: str = READER,
        segment_size: int | None = None,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        """Open both queues and stand on the first live message that the archive does not have.

        `segment_size` of a new archive queue is that of the live queue unless given.
        """
        self.live, self.archive = os.fspath(live), os.fspath(archive)
        self._clock = clock or SystemClock()
        self._fs = fs or OsFs()
        self._pending_bytes = 0
        self.copied = 0
        self.bytes_copied = 0
        self._reader = Queue.open_subscriber(self.live, reader, clock=self._clock, fs=self._fs)
        try:
            config = WriterConfig.archive().replace(segment_size=segment_size or self._reader.segment_size)
            self._writer: QueueWriter = Queue.open_publisher(
                self.archive, config, clock=self._clock, fs=self._fs
            )
            try:
                self._seq_offset = self._resume()
            except BaseException:
                self._writer.close()
                raise
        except BaseException:
            self._reader.close()
            raise
        self._committed_ns = self._clock.monotonic_ns()

    @property
    def reader(self) -> QueueReader:
        """The reader of the live queue, for waiting and for its position."""
        return self._reader

    # -- where to go on --------------------------------------------------------------------

    def _resume(self) -> int | None:
        """Stand on the next message to copy; return the difference of seqs, None if it is not known yet."""
        anchor = load_anchor(self._fs, self.archive)
        archived = self._writer.next_seq
        if anchor is not None:
            self._stand_behind(archived, anchor.seq_offset)
            return anchor.seq_offset
        if archived == 0:
            return None
        # Another program filled the archive: its last message is looked for where this reader stands.
        last = self._last_archived()
        while (message := self._reader.next()) is not None:
            if _is_same(message, last):
                offset = message.seq - last.seq
                self._store_anchor(offset)
                return offset
        position = self._reader.committed_position
        self._reader.close()
        self._reader = Queue.open_subscriber(self.live, self._reader.name, clock=self._clock, fs=self._fs)
        assert self._reader.position == position
        return None

    def _stand_behind(self, archived: int, seq_offset: int) -> None:
        wanted = archived + seq_offset
        if archived == 0:
            self._reader.seek_seq(wanted)
            return
        # The last copied message, if the live queue still has it, must be the one that the archive has.
        message = self._reader.next() if self._reader.seek_seq(wanted - 1) else None
        if message is None or (message.seq == wanted - 1 and not _is_same(message, self._last_archived())):
            raise Unsupported(
                f"{self.archive} has copies up to message {wanted - 1} of {self.live}, which has another "
                "message there, or none; it is another queue now: tap it into a new archive queue"
            )
        if message.seq != wanted - 1:
            self._reader.seek_seq(wanted)

    def _last_archived(self) -> MessageView:
        with Queue.open_subscriber(self.archive, None, "earliest", clock=self._clock, fs=self._fs) as reader:
            reader.seek_seq(self._writer.next_seq - 1)
            message = reader.next()
        if message is None:
            raise SegmentMissing(
                f"the last message of {self.archive} is not there as a plain segment; restore it"
            )
        return message

    def _store_anchor(self, seq_offset: int) -> None:
        anchor = TapAnchor(source=os.path.abspath(self.live), seq_offset=seq_offset)
        with io_errors(f"write {TAP_FILE} of {self.archive}"):
            replace_file(self._fs, os.path.join(self.archive, TAP_FILE), msgspec.json.encode(anchor) + b"\n")

    # -- copying -----------------------------------------------------------------------------

    def run_once(self, max_messages: int = BATCH_MESSAGES) -> int:
        """Copy what is there, at most so many messages, and return how many; commit when that is due."""
        batch = self._reader.read_batch(max_messages)
        if len(batch):
            first = int(batch.seq[0])
            if self._seq_offset is None:
                self._seq_offset = first - self._writer.next_seq
                self._store_anchor(self._seq_offset)
            if first != self._writer.next_seq + self._seq_offset:
                raise SegmentMissing(
                    f"{self.live} has no message {self._writer.next_seq + self._seq_offset} any more, the "
                    f"oldest one left is {first}: retention went ahead; tap into a new archive queue"
                )
            append_batch(self._writer, batch)
            size = int(batch.offset[-1] - batch.offset[0]) + HEADER_SIZE
            self._pending_bytes += size
            self.bytes_copied += size
            self.copied += len(batch)
        now_ns = self._clock.monotonic_ns()
        is_due = self._pending_bytes >= COMMIT_BYTES or now_ns - self._committed_ns >= COMMIT_NS
        if self._pending_bytes and (is_due or not len(batch)):
            self.commit()
        return len(batch)

    def commit(self) -> None:
        """Make everything copied so far safe from a power loss, then let the live queue delete it."""
        self._writer.flush_sync()
        self._reader.commit()
        self._pending_bytes = 0
        self._committed_ns = self._clock.monotonic_ns()

    def close(self) -> None:
        """Commit what was copied and close both queues."""
        try:
            if self._pending_bytes:
                self.commit()
        finally:
            self._reader.close()
            self._writer.close()

    def __enter__(self) -> ArchiveTap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def append_batch(writer: QueueWriter, batch: Batch) -> int:
    """Append a batch to a queue with its times, types and flags, straight from its mapping."""
    starts = batch.offset + np.uint64(HEADER_SIZE)
    type_id: int | np.ndarray[tuple[int], np.dtype[np.uint16]] = (
        np.ascontiguousarray(batch.type_id) if batch.common_type_id is None else batch.common_type_id
    )
    return writer.append_packed(
        type_id,
        batch.segment,
        starts + batch.length,
        np.ascontiguousarray(batch.timestamp_ns),
        np.ascontiguousarray(batch.flags),
        starts,
    )


def _is_same(one: MessageView, other: MessageView) -> bool:
    return (one.timestamp_ns, one.type_id, one.flags, bytes(one)) == (
        other.timestamp_ns,
        other.type_id,
        other.flags,
        bytes(other),
    )
