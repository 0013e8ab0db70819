"""The registration of a reader whose position is not kept.

Owns the life of one `readers/<name>.meta` file, from before the reader is opened until after
it is closed. Starts no thread and opens no reader.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from everlog.clock import Clock, SystemClock
from everlog.errors import EverlogError, Io
from everlog.fs import Fs, OsFs
from everlog.queue.layout import READERS_DIR, SEG_DATA_OFFSET, parse_segment_name
from everlog.queue.names import check_component
from everlog.queue.reader_meta import ReaderMetaFile, meta_path


class ReaderRegistration:
    """Creates `readers/` on entry; removes the reader's meta file on a clean exit.

    Open the reader inside, so that it is closed first::

        with ReaderRegistration(path, "viewer"), Queue.open_subscriber(path, "viewer") as reader:
            ...

    Removing the file forgets the committed position and frees the segments it held back. That
    suits a reader that starts anew each time; one that must resume needs no registration.

    An exit by exception is not clean: the file stays, and with it the position. Removal is best
    effort (a failure is not raised; retention drops the reader after its time to live anyway),
    and it leaves the file alone while any reader of that name is open.
    """

    def __init__(
        self,
        queue_dir: str | os.PathLike[str],
        reader_name: str,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> None:
        self.reader_name = check_component(reader_name, "reader name")
        self._queue_dir = os.fspath(queue_dir)
        self._clock: Clock = clock or SystemClock()
        self._fs: Fs = fs or OsFs()

    @property
    def meta_path(self) -> Path:
        """Where the reader's position is kept."""
        return Path(meta_path(self._queue_dir, self.reader_name))

    def __enter__(self) -> Self:
        try:
            self._create_readers()
        except OSError as error:
            raise Io(
                f"cannot register reader {self.reader_name!r} on {self._queue_dir}: {error.strerror}; "
                "the queue directory must be writable",
                error.errno,
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.remove()

    def remove(self) -> bool:
        """Remove the meta file now; False if it is absent, in use, or cannot be removed."""
        try:
            # Opening takes the lock of the file: what an open reader holds is not removed, not
            # even by an exit so slow that a successor has opened the same name already.
            meta = ReaderMetaFile.open(self._fs, self._queue_dir, self.reader_name)
        except (OSError, EverlogError):
            return False
        existed = meta.exists
        try:
            meta.remove()
        except OSError:
            meta.close()
            return False
        return existed

    def _create_readers(self) -> None:
        """Create `readers/` unless it exists, with this reader at the oldest record in it.

        An empty `readers/` allows retention to delete everything below the head, and the
        records of this reader could be deleted before it is open. The oldest record is where a
        reader without a meta file starts, so the reader does not notice the difference.
        """
        if self._fs.exists(os.path.join(self._queue_dir, READERS_DIR)):
            return
        meta = ReaderMetaFile.open(self._fs, self._queue_dir, self.reader_name)
        try:
            meta.create(self._oldest_segment(), SEG_DATA_OFFSET, self._clock.wall_ns())
        finally:
            meta.close()

    def _oldest_segment(self) -> int:
        try:
            names = self._fs.listdir(self._queue_dir)
        except FileNotFoundError:
            names = []  # the queue itself may come later; it begins with segment 0
        return min((number for number in map(parse_segment_name, names) if number is not None), default=0)
