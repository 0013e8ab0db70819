"""A file system that changes nothing: recovery over it only finds out what a directory holds.

Owns the illusion that files were cut and removed, because recovery relies on finding its own repairs. Takes
no lock, so it works beside a running engine, and what it shows is of the moment in which it was asked.
"""

from __future__ import annotations

import os

from everlog.fs import OsFs, Syncable


class ReadOnlyFs(OsFs):
    """The operating system's files, read only; cuts and removals are remembered instead of done."""

    def __init__(self, boot_id: str) -> None:
        """Take `boot_id` for the run of the machine; see `Fs.boot_id`."""
        self._boot_id = boot_id
        self._lengths: dict[str, int] = {}
        self._gone: set[str] = set()
        self._paths: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open for reading, whatever was asked; a file that would be created is an empty one."""
        path = os.path.abspath(path)
        if path in self._gone:
            raise FileNotFoundError(2, "removed in this view", path)
        is_new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        fd = super().open(os.devnull if is_new else path, os.O_RDONLY)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        """See `Fs.close`."""
        self._paths.pop(fd, None)
        super().close(fd)

    def size(self, fd: int) -> int:
        """The length of the file, or what it was cut to."""
        found = super().size(fd)
        return min(found, self._lengths.get(self._paths[fd], found))

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read nothing behind a cut."""
        return super().pread(fd, max(0, min(length, self.size(fd) - offset)), offset)

    def truncate(self, fd: int, length: int) -> None:
        """Remember the cut."""
        self._lengths[self._paths[fd]] = length

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write nothing; what is written behind a cut makes the file longer again, as far as it goes."""
        path = self._paths[fd]
        if path in self._lengths:
            self._lengths[path] = max(self._lengths[path], offset + len(data))

    def unlink(self, path: str) -> None:
        """Remember that the file is gone."""
        self._gone.add(os.path.abspath(path))

    def rename(self, source: str, target: str) -> None:
        """Remember that the source is gone; the target stays what it was."""
        self._gone.add(os.path.abspath(source))

    def rename_noreplace(self, source: str, target: str) -> None:
        """See `rename`."""
        self.rename(source, target)

    def listdir(self, path: str) -> list[str]:
        """Leave out what is gone."""
        folder = os.path.abspath(path)
        if folder in self._gone:
            raise FileNotFoundError(2, "removed in this view", path)
        return [name for name in super().listdir(path) if os.path.join(folder, name) not in self._gone]

    def exists(self, path: str) -> bool:
        """Tell whether `path` exists and was not removed here."""
        return os.path.abspath(path) not in self._gone and super().exists(path)

    def makedirs(self, path: str) -> None:
        """Create nothing."""

    def rmdir(self, path: str) -> None:
        """Remember that the directory is gone."""
        self._gone.add(os.path.abspath(path))

    def allocate(self, fd: int, length: int) -> None:
        """Reserve nothing."""

    def fsync(self, fd: int) -> None:
        """Nothing was written."""

    def fdatasync(self, fd: int) -> None:
        """Nothing was written."""

    def fsync_dir(self, path: str) -> None:
        """Nothing was written."""

    def sync_file_system(self, path: str) -> None:
        """Nothing was written."""

    def msync(self, mapping: Syncable, fd: int, offset: int, length: int, wait: bool) -> None:
        """Nothing was written."""

    def boot_id(self) -> str:
        """See `Fs.boot_id`."""
        return self._boot_id

    def try_lock(self, fd: int) -> bool:
        """Take no lock: who only looks is in nobody's way."""
        return True

    def unlock(self, fd: int) -> None:
        """No lock was taken."""
