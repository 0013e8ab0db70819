"""Queues in a known state, for tests that look at files: written, damaged, abandoned."""

import os
import struct
import subprocess
import sys
from pathlib import Path

from everlog.queue import Queue, layout

SEGMENT_SIZE = 1984
RECORD_SIZE = 128
"""What a message of `write_messages` takes: a header and eight bytes, in whole cells."""
RECORDS_PER_SEGMENT = (SEGMENT_SIZE - layout.SEG_DATA_OFFSET) // RECORD_SIZE


def write_messages(path: Path, count: int) -> None:
    """Append the numbers 0 to count - 1 and close; a segment that was only prepared is removed."""
    with Queue.open_publisher(path, segment_size=SEGMENT_SIZE, retention=False) as writer:
        for number in range(count):
            writer.append(1, struct.pack("<Q", number))
        current = writer.segment_id
    (path / layout.segment_name(current + 1)).unlink(missing_ok=True)


def overwrite(file: Path, offset: int, data: bytes) -> None:
    """Put `data` into an existing file; it grows if it must."""
    with open(file, "r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def name_dead_writer(path: Path, epoch: int = 1) -> int:
    """Let the lock file name a process that has ended, and return its pid."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (path / layout.LOCK_FILE).write_bytes(f"{ended.pid} 1 {epoch}\n".encode("ascii"))
    return ended.pid


def snapshot(path: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory: kind, size, time of the last change and, if small, the content."""
    found: dict[str, tuple[object, ...]] = {}
    for file in sorted(path.rglob("*")):
        status = file.lstat()
        small = file.is_file() and status.st_size <= 2**20
        content = file.read_bytes() if small else None
        found[str(file.relative_to(path))] = (status.st_mode, status.st_size, status.st_mtime_ns, content)
    return found


def fabricate_far_behind(path: Path, lag_bytes: int) -> None:
    """Make a queue whose one reader, without heartbeat, is so far behind; its segments are holes in files."""
    segment_size = 2**32
    head = layout.SEG_DATA_OFFSET + lag_bytes
    head_segment, head_offset = divmod(head, segment_size)
    (path / layout.READERS_DIR).mkdir(parents=True)
    control = bytearray(layout.CTRL_SIZE)
    for offset, value in {
        layout.CTRL_MAGIC_OFFSET: layout.CTRL_MAGIC,
        layout.CTRL_VERSION_OFFSET: layout.CTRL_VERSION,
        layout.CTRL_INIT_STATE: layout.INIT_STATE_READY,
        layout.CTRL_CURRENT_SEGMENT: head_segment,
    }.items():
        struct.pack_into("<I", control, offset, value)
    struct.pack_into("<Q", control, layout.CTRL_SEGMENT_SIZE, segment_size)
    struct.pack_into("<Q", control, layout.CTRL_WRITE_OFFSET, head_offset)
    (path / layout.CONTROL_FILE).write_bytes(control)
    for segment_id in range(head_segment + 1):
        flags = layout.SEG_FLAG_SEALED if segment_id < head_segment else 0
        header = layout.SEGMENT_HEADER.pack(layout.SEG_MAGIC, layout.SEG_VERSION, segment_id, flags)
        (path / layout.segment_name(segment_id)).write_bytes(header)
        os.truncate(path / layout.segment_name(segment_id), segment_size)
    meta = struct.pack("<QQ", 0, layout.SEG_DATA_OFFSET)
    (path / layout.READERS_DIR / f"behind{layout.READER_META_SUFFIX}").write_bytes(meta)
