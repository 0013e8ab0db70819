"""Queues as tests see them: small ones to open, their bytes to look at and to damage, and ends to read to."""

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from everlog.fs import OsFs
from everlog.queue import Message, Queue, QueueReader, QueueWriter
from tests.support import ring_twin
from tests.support.holder import SOURCE_ROOT
from tests.support.queues import overwrite

SMALL = 1024
"""A segment of a header and fifteen cells of 64 bytes: a few appends reach its end."""


class StoredRecord(NamedTuple):
    """A record as its bytes in the segment file say."""

    offset: int
    header: ring_twin.Header
    payload: bytes


class QuickFs(OsFs):
    """The real file system without waiting for the disk; power is never lost in these tests."""

    def fsync(self, fd: int) -> None:
        """Do not wait."""

    def fsync_dir(self, path: str) -> None:
        """Do not wait."""


def open_writer(path: Path, **settings: Any) -> QueueWriter:
    """Open a writer with small segments, unless told otherwise."""
    return Queue.open_publisher(path, **{"segment_size": SMALL, "fs": QuickFs(), **settings})


def open_reader(
    path: Path, name: str | None = "alpha", start: str = "resume-strict", **options: Any
) -> QueueReader:
    """Open a reader that does not wait for the disk."""
    return Queue.open_subscriber(path, name, start, **{"fs": QuickFs(), **options})


def read_all(path: Path, **options: Any) -> list[Message]:
    """Everything a new reader finds, oldest first; leaves no trace."""
    with open_reader(path, None, "earliest", **options) as reader:
        return reader.drain(2**31)


def payloads(path: Path) -> list[bytes]:
    """The payloads of everything a new reader finds."""
    return [message.payload for message in read_all(path)]


def segment_file(path: Path, segment_id: int) -> Path:
    """The file of a segment."""
    return path / f"{segment_id:09d}.q"


def segment_ids(path: Path) -> list[int]:
    """The ids of the segments that are there."""
    return sorted(int(file.name[:9]) for file in path.glob("[0-9]" * 9 + ".q"))


def sealed(path: Path, segment_id: int) -> bool:
    """Whether a segment is sealed."""
    return bool(segment_file(path, segment_id).read_bytes()[12] & ring_twin.SEALED)


def stored_records(path: Path, segment_id: int) -> list[StoredRecord]:
    """The committed records of a segment file, padding included."""
    data = segment_file(path, segment_id).read_bytes()
    records = []
    for offset in ring_twin.walk(data, 64):
        header = ring_twin.header_at(data, offset)
        records.append(StoredRecord(offset, header, data[offset + 64 : offset + 63 + header.commit_len]))
    return records


def control_u32(path: Path, offset: int) -> int:
    """A word of the control block as it is now."""
    return int(struct.unpack_from("<I", (path / "control.meta").read_bytes(), offset)[0])


def control_u64(path: Path, offset: int) -> int:
    """A double word of the control block as it is now."""
    return int(struct.unpack_from("<Q", (path / "control.meta").read_bytes(), offset)[0])


def flip(file: Path, offset: int, mask: int = 0xFF) -> None:
    """Damage one byte of an existing file."""
    overwrite(file, offset, bytes([file.read_bytes()[offset] ^ mask]))


def register(path: Path, name: str, meta: bytes) -> None:
    """Let a meta file with this content appear in one step, together with `readers/` if need be.

    An empty `readers/` allows everything below the head to be deleted, so it must never be seen.
    """
    directory = path / "readers"
    if directory.exists():
        (directory / f"{name}.tmp").write_bytes(meta)
        (directory / f"{name}.tmp").rename(directory / f"{name}.meta")
        return
    staging = path / "readers.staging"
    staging.mkdir()
    (staging / f"{name}.meta").write_bytes(meta)
    staging.rename(directory)


def kill_image(path: Path, target: Path) -> Path:
    """Copy what would be found if every process of the queue were killed right now.

    Stores into a shared mapping are visible to reads of the file at once, so a copy is such an image; the
    copied lock file is held by nobody. Temp files come and go while copying and are left out.
    """
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("*.tmp"))
    return target


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    """Wait for a worker thread or another process; the time only bounds a failure."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.001)


def run_python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter, for what may kill one; the caller judges how it ended."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE_ROOT, "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=100,
        check=False,
        **options,
    )


def assert_survives(code: str, *arguments: object) -> str:
    """Run `code` in a new interpreter, insist that it ends well, and return what it printed."""
    ended = run_python(code, *arguments)
    assert ended.returncode == 0, f"ended with {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout
