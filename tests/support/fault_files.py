"""Small steps on files through an `Fs`, and what can be found after a power loss."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everlog.fault_fs import FaultFs
from everlog.fs import Fs

CREATE = os.O_RDWR | os.O_CREAT
SEEDS = range(40)
Image = dict[str, bytes | None]


class MappedFile:
    """A shared mapping of an open file, as `Fs.msync` wants it."""

    def __init__(self, fd: int) -> None:
        self.memory = mmap.mmap(fd, 0)

    def msync(self, offset: int, length: int, wait: bool) -> None:
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        if wait:
            self.memory.flush(start, offset + length - start)


def write(fs: Fs, path: Path, content: bytes, offset: int = 0, *, sync: bool = False) -> None:
    """Write into a file, which need not exist; with `sync`, content and name are durable."""
    fd = fs.open(str(path), CREATE)
    fs.pwrite(fd, content, offset)
    if sync:
        fs.fsync(fd)
    fs.close(fd)
    if sync:
        fs.fsync_dir(str(path.parent))


def images(fs: FaultFs) -> list[Image]:
    """What can be found if the power goes now, over many seeds."""
    return [fs.power_loss_image(random.Random(seed)) for seed in SEEDS]


def contents(fs: FaultFs, name: str) -> set[bytes | None]:
    """What one file can hold if the power goes now; None if it can be gone."""
    return {image.get(name) for image in images(fs)}


@contextmanager
def mapped(fs: Fs, path: Path) -> Iterator[tuple[int, MappedFile]]:
    """An open and mapped file."""
    fd = fs.open(str(path), os.O_RDWR)
    yield fd, MappedFile(fd)
    fs.close(fd)
