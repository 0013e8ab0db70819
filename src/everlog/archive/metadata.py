"""`meta.json` and `.access_log` of an archive directory: what it holds, and when it was read."""

from __future__ import annotations

import contextlib
import os

import msgspec

from everlog.archive.layout import ACCESS_LOG_FILE, META_FILE, ArchiveMeta
from everlog.clock import NS_PER_S
from everlog.errors import CorruptMetadata
from everlog.fs import Fs, opened, read_file, replace_file

ACCESS_LOG_BYTES_MAX = 64 * 1024
"""Beyond, the log is rewritten with the last read of each segment."""


def load_meta(fs: Fs, directory: str) -> ArchiveMeta | None:
    """Return what a directory says it holds, None if it says nothing."""
    path = os.path.join(directory, META_FILE)
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=ArchiveMeta)
    except msgspec.DecodeError as error:
        raise CorruptMetadata(
            f"{path} does not describe an archive: {error}; move it away, 'archive run' makes a new one"
        ) from error


def widen_meta(
    fs: Fs, directory: str, defaults: ArchiveMeta, times_ns: tuple[int, int] | None
) -> ArchiveMeta:
    """Write `meta.json` if there is none, and let its range of times include `times_ns`."""
    found = load_meta(fs, directory)
    meta = found or defaults
    known = meta.event_time_range if found else None
    if times_ns is not None:
        known = times_ns if known is None else (min(known[0], times_ns[0]), max(known[1], times_ns[1]))
    widened = msgspec.structs.replace(meta, event_time_range=known)
    if widened != found:
        text = msgspec.json.format(msgspec.json.encode(widened), indent=2) + b"\n"
        replace_file(fs, os.path.join(directory, META_FILE), text)
    return widened


def note_access(fs: Fs, directory: str, segment_id: int, now_ns: int) -> None:
    """Record that a segment is read now. A directory that cannot be written to stays without a record."""
    path = os.path.join(directory, ACCESS_LOG_FILE)
    with contextlib.suppress(OSError), opened(fs, path, os.O_RDWR | os.O_CREAT) as fd:
        if fs.try_lock(fd):  # another reader at the same moment: one line of the two is enough
            end = fs.size(fd)
            fs.pwrite(fd, f"{segment_id},{now_ns // NS_PER_S}\n".encode(), end)
            fs.unlock(fd)
            if end > ACCESS_LOG_BYTES_MAX:
                last = last_access_s(fs, directory)
                lines = "".join(f"{number},{second}\n" for number, second in sorted(last.items()))
                replace_file(fs, path, lines.encode(), durable=False)


def last_access_s(fs: Fs, directory: str) -> dict[int, int]:
    """Return when each segment was last read, in Unix seconds; lines that make no sense are passed over."""
    try:
        text = read_file(fs, os.path.join(directory, ACCESS_LOG_FILE)).decode("ascii", "replace")
    except FileNotFoundError:
        return {}
    last: dict[int, int] = {}
    for line in text.splitlines():
        segment_id, _, second = line.partition(",")
        if segment_id.isdigit() and second.isdigit():
            last[int(segment_id)] = max(int(second), last.get(int(segment_id), 0))
    return last
