"""Room on disk that appends cannot use: on a full disk deletes, checkpoints and their log files need some.

Owns one preallocated file without content and whether the disk was found full. The file is given back to the
disk when something that frees space meets a full disk, and taken again before an append gets a new log file.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from typing import Final

from everlog.fs import Fs, opened

_NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_BYTES_MIN: Final = 64 << 10
_BYTES_MAX: Final = 16 << 20
_LOG_FILES: Final = 16  # small ones that the reserve has room for; the rest is left to checkpoints


class DiskReserve:
    """The reserve of one data directory; any thread may use it."""

    def __init__(self, fs: Fs, path: str, log_file_bytes: int) -> None:
        self._fs = fs
        self._path = path
        self._mutex = threading.Lock()
        self.is_held = False
        self.bytes = max(_BYTES_MIN, min(log_file_bytes // 4, _BYTES_MAX))
        self.small_file_bytes = min(log_file_bytes, self.bytes // _LOG_FILES)
        """Capacity of a log file that is made from the reserve."""
        self.is_short = False
        """Whether the disk was full when something was last written that needs new room."""

    def take(self) -> None:
        """Take the room if it is not held; `OSError` if the disk has none."""
        with self._mutex:
            if self.is_held:
                return
            try:
                with opened(self._fs, self._path, os.O_RDWR | os.O_CREAT) as fd:
                    self._fs.allocate(fd, self.bytes)
            except OSError:
                self._remove()
                raise
            self.is_held = True

    def release(self) -> None:
        """Give the room back to the disk, also what an earlier run has left."""
        with self._mutex:
            self.is_held = False
            self._remove()

    def note(self, error: BaseException) -> bool:
        """Something failed: whether for want of space."""
        is_full = getattr(error, "errno", None) in _NO_SPACE
        self.is_short = self.is_short or is_full
        return is_full

    def _remove(self) -> None:
        with suppress(OSError):
            self._fs.unlink(self._path)
