"""One reader from the archive into the live queue: `HistoryReader`, without a gap and without a repeat.

Owns the step from one to the other, which is made by seq. A raw archive has the seqs of its live queue; those
of an archive queue differ by what `tap.json` says. What is archived but not sealed yet is read from the
archive queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Self

from everlog.archive.reader import ArchiveReader
from everlog.archive.tap import load_anchor
from everlog.clock import Clock, SystemClock
from everlog.errors import SegmentMissing
from everlog.fs import Fs, OsFs
from everlog.native.queue.ring import MessageView
from everlog.queue import Queue, QueueReader
from everlog.queue.batch import Batch
from everlog.queue.layout import CONTROL_FILE
from everlog.queue.reader import BATCH_MAX

Reader = ArchiveReader | QueueReader


class HistoryReader:
    """Reads an archive, then the live queue it was made of. Messages carry the seq of where they are read."""

    def __init__(
        self,
        archive: Callable[[], ArchiveReader],
        live: str | os.PathLike[str],
        *,
        archive_queue: str | None = None,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        """`archive` opens a reader of the archive; `archive_queue` is its directory if a tap writes it."""
        self._open_archive = archive
        self._live_path = os.fspath(live)
        self._clock, self._fs = clock or SystemClock(), fs or OsFs()
        self._queue_path = archive_queue or ""
        self._offset = 0
        if archive_queue is not None and (anchor := load_anchor(self._fs, archive_queue)) is not None:
            self._offset = anchor.seq_offset
        self._next: int | None = None  # the live seq that comes next
        self._reader: Reader = archive()
        self.is_live = False

    # -- reading -----------------------------------------------------------------------------

    def next(self) -> MessageView | None:
        """Return the next message, None if the live queue has no more yet."""
        while (view := self._reader.next()) is None:
            if not self._go_on():
                return None
        self._next = view.seq + 1 + self._shift
        return view

    def __iter__(self) -> Iterator[MessageView]:
        """Yield everything that is there now."""
        while (view := self.next()) is not None:
            yield view

    def read_batch(self, max: int = BATCH_MAX) -> Batch:
        """Return up to `max` messages of one segment as arrays; empty if the live queue has no more yet."""
        while not len(batch := self._reader.read_batch(max)):
            if not self._go_on():
                return batch
        self._next = int(batch.seq[-1]) + 1 + self._shift
        return batch

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the live queue; True at once while the archive is read."""
        return (
            self._reader.wait(timeout_s) if isinstance(self._reader, QueueReader) and self.is_live else True
        )

    @property
    def _shift(self) -> int:
        return 0 if self.is_live else self._offset

    # -- from one reader to the next -----------------------------------------------------------

    def _go_on(self) -> bool:
        """Called at the end of a reader: open the next; False if this is the live one."""
        if self.is_live:
            return False
        if self._has_archive_queue:
            queue = self._open_queue(self._queue_path)
            if self._stands_at(queue, None if self._next is None else self._next - self._offset):
                self._replace(queue)
                return True
            queue.close()
        live = self._open_queue(self._live_path)
        if not self._stands_at(live, self._next):
            live.close()
            return self._look_again()
        self._replace(live)
        self.is_live = True
        return True

    @property
    def _has_archive_queue(self) -> bool:
        """Whether the open segment of an archive queue comes next."""
        is_queue = self._queue_path and self._fs.exists(os.path.join(self._queue_path, CONTROL_FILE))
        return bool(is_queue) and isinstance(self._reader, ArchiveReader)

    def _open_queue(self, path: str) -> QueueReader:
        return Queue.open_subscriber(path, None, "earliest", clock=self._clock, fs=self._fs)

    def _stands_at(self, reader: QueueReader, seq: int | None) -> bool:
        """Stand on the message with this seq, or where it will be; False if only later ones are left."""
        if seq is None:
            return True
        if not reader.seek_seq(seq):
            return True
        message = reader.next()
        if message is not None and message.seq != seq:
            return False
        reader.seek_seq(seq)
        return True

    def _look_again(self) -> bool:
        """The live queue begins behind what was read: retention and archive went on meanwhile."""
        assert self._next is not None
        archive = self._open_archive()
        if not archive.seek_seq(self._next - self._offset):
            archive.close()
            raise SegmentMissing(
                f"message {self._next} is neither in the archive nor in {self._live_path} any more; "
                "archive before retention deletes: the archiver must be a reader of the queue"
            )
        self._replace(archive)
        return True

    def _replace(self, reader: Reader) -> None:
        self._reader.close()
        self._reader = reader

    # -- seeking -----------------------------------------------------------------------------

    def seek_seq(self, seq: int) -> bool:
        """Stand before the first message with at least this seq of the live queue's numbers."""
        return self._seek(lambda reader, shift: reader.seek_seq(seq - shift))

    def seek_time(self, timestamp_ns: int) -> bool:
        """Stand before the first message at or after a time; False: none, stand at the end."""
        return self._seek(lambda reader, shift: reader.seek_timestamp(timestamp_ns))

    def _seek(self, search: Callable[[Reader, int], bool]) -> bool:
        archive = self._open_archive()
        self._replace(archive)
        self._next, self.is_live = None, False
        if search(archive, self._offset):
            return True
        # Not in the archive: in what lies behind its last message.
        while self.next_reader():
            if search(self._reader, self._shift):
                return True
        return False

    def next_reader(self) -> bool:
        """Go on to the reader behind this one, for a seek; False if this is the live one."""
        if self.is_live:
            return False
        if self._has_archive_queue:
            self._replace(self._open_queue(self._queue_path))
            return True
        self._replace(self._open_queue(self._live_path))
        self.is_live = True
        return True

    def close(self) -> None:
        """Close the reader that is open."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
