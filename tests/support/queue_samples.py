"""Queue directories for tests that look at them from outside: built for real, then damaged byte by byte."""

import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

from everlog.clock import Clock
from everlog.queue import Queue, layout
from everlog.queue.writer_lock import LockOwner, encode_owner

SEGMENT_SIZE = 1024
RECORD_SIZE = 128
RECORDS_PER_SEGMENT = 7
"""An 8-byte payload needs 128 bytes, and 960 bytes of a segment hold records."""


def payload_of(seq: int) -> bytes:
    """The payload of the message with this seq."""
    return struct.pack("<Q", seq)


def write_messages(
    path: Path, count: int, *, clock: Clock | None = None, segment_size: int = SEGMENT_SIZE
) -> None:
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
