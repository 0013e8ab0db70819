"""Queues as tests see them: small ones to open, known messages, bytes to look at and to damage."""

import hashlib
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from everlog.clock import Clock
from everlog.queue import Message, Queue, QueueReader, QueueWriter, layout
from everlog.queue.writer_lock import LockOwner, encode_owner
from tests.support import ring_twin
from tests.support.files import UnsyncedFs

SMALL = 1024
"""A segment of a header and fifteen cells of 64 bytes: a few appends reach its end."""
RECORD_SIZE = 128
RECORDS_PER_SEGMENT = 7
"""An 8-byte payload needs 128 bytes, and 960 bytes of a segment hold records."""


class StoredRecord(NamedTuple):
    """A record as its bytes in the segment file say."""

    offset: int
    header: ring_twin.Header
    payload: bytes


def open_writer(path: Path, **settings: Any) -> QueueWriter:
    """Open a writer with small segments, unless told otherwise."""
    return Queue.open_publisher(path, **{"segment_size": SMALL, "fs": UnsyncedFs(), **settings})


def open_reader(
    path: Path, name: str | None = "alpha", start: str = "resume-strict", **options: Any
) -> QueueReader:
    """Open a reader that does not wait for the disk."""
    return Queue.open_subscriber(path, name, start, **{"fs": UnsyncedFs(), **options})


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
    copied lock file is not locked. Temp files come and go while copying and are left out.
    """
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("*.tmp"))
    return target


def payload_of(seq: int) -> bytes:
    """The payload of the message with this seq."""
    return struct.pack("<Q", seq)


def write_messages(path: Path, count: int, *, clock: Clock | None = None, segment_size: int = SMALL) -> None:
    """Append messages with consecutive payloads and timestamps, keeping every segment; then close.

    A segment that was only prepared is removed, so that the files do not depend on how far a worker got.
    """
    with Queue.open_publisher(path, clock=clock, segment_size=segment_size, retention=False) as writer:
        for _ in range(count):
            seq = writer.next_seq
            writer.append(seq % 5, payload_of(seq), timestamp_ns=1_000_000 + seq)
        head_segment = writer.segment_id
    (path / layout.segment_name(head_segment + 1)).unlink(missing_ok=True)


def name_dead_writer(path: Path, epoch: int = 1) -> int:
    """Let the lock name a process that has ended, as a crash leaves it; return its pid."""
    ended = subprocess.Popen([sys.executable, "-Sc", ""])
    ended.wait()
    (path / layout.LOCK_FILE).write_bytes(encode_owner(LockOwner(ended.pid, 1, epoch)))
    return ended.pid


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def fabricate_far_behind(path: Path, lag_bytes: int) -> None:
    """Make a valid queue whose reader `slow` stands at the start, so many bytes behind the head.

    Its segments are large and hollow: writing ten gigabytes would prove no more.
    """
    segment_size = 1 << 30
    head_segment, head_offset = divmod(layout.SEG_DATA_OFFSET + lag_bytes, segment_size)
    write_messages(path, 1)
    control = path / layout.CONTROL_FILE
    overwrite(control, layout.CTRL_SEGMENT_SIZE, struct.pack("<Q", segment_size))
    overwrite(control, layout.CTRL_CURRENT_SEGMENT, struct.pack("<I", head_segment))
    overwrite(control, layout.CTRL_WRITE_OFFSET, struct.pack("<Q", head_offset))
    for segment_id in range(head_segment + 1):
        flags = layout.SEG_FLAG_SEALED if segment_id < head_segment else 0
        header = layout.SEGMENT_HEADER.pack(layout.SEG_MAGIC, layout.SEG_VERSION, segment_id, flags)
        segment = path / layout.segment_name(segment_id)
        segment.write_bytes(header)
        os.truncate(segment, segment_size)
    Queue.open_subscriber(path, "slow", "earliest").close()


def snapshot(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Everything below root, itself included: kind and mode, length, time of change, content.

    The content of hollow files is left out: their time of change tells enough.
    """
    state = {}
    for path in (root, *sorted(root.rglob("*"))):
        status = path.lstat()
        content = ""
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file() and status.st_blocks * 512 >= status.st_size:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        state[str(path.relative_to(root))] = (status.st_mode, status.st_size, status.st_mtime_ns, content)
    return state
