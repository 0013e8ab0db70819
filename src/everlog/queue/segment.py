"""Segment files: create, open, check, list, remove. Knows nothing of records.

A segment appears under its name only when it is complete: allocated on disk (so that a store
into the mapping can never fault for lack of space), with its header synced.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Final

from everlog.errors import Corrupt, UnsupportedVersion
from everlog.fs import Fs
from everlog.native.queue import ring as native
from everlog.queue import layout

TEMP_SUFFIX = ".tmp"
LARGE_BLOCK_BYTES: Final = 1 << 18
"""Larger ones make reading little cheaper, and every sync writes at least one."""


@dataclass(slots=True)
class Segment:
    """An open segment: its mapping, and the descriptor that syncing needs."""

    segment_id: int
    path: str
    mapping: native.Mapping
    fd: int

    @property
    def sealed(self) -> bool:
        """Whether no record will be added any more."""
        return bool(self.mapping.load_u32(layout.SEG_FLAGS) & layout.SEG_FLAG_SEALED)

    @property
    def pristine(self) -> bool:
        """Whether nothing was written behind the header yet."""
        end = min(layout.SEG_DATA_OFFSET + layout.HEADER_SIZE, len(self.mapping))
        return not self.sealed and not any(bytes(memoryview(self.mapping)[layout.SEG_DATA_OFFSET : end]))

    def close(self, fs: Fs) -> None:
        """Close the descriptor; the mapping lives as long as it is referenced."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            fs.close(fd)


def segment_path(queue_path: str, segment_id: int) -> str:
    """Return the path of a segment."""
    return os.path.join(queue_path, layout.segment_name(segment_id))


def list_segments(fs: Fs, queue_path: str) -> list[int]:
    """Return the ids of all segments, oldest first; other files are ignored."""
    ids = (layout.parse_segment_name(name) for name in fs.listdir(queue_path))
    return sorted(segment_id for segment_id in ids if segment_id is not None)


def create_segment(
    fs: Fs,
    queue_path: str,
    segment_id: int,
    size: int,
    *,
    prefault: bool = False,
    large_blocks: bool = False,
    memlock: bool = False,
) -> Segment:
    """Create a segment, or open the one that has appeared under its name meanwhile.

    `large_blocks` says in what pieces `prefault` brings it into memory.
    """
    path = segment_path(queue_path, segment_id)
    temp = path + TEMP_SUFFIX
    # A leftover is removed, never truncated: another process may still have it mapped.
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(temp)
    fd = fs.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        fs.allocate(fd, size)
        fs.pwrite(fd, layout.SEGMENT_HEADER.pack(layout.SEG_MAGIC, layout.SEG_VERSION, segment_id, 0), 0)
        fs.fsync(fd)
        mapping = native.Mapping(fd, size, True)
        if prefault:
            if large_blocks:
                _fill_in_blocks(fs, fd, size)
            mapping.prefault()
        if memlock:
            mapping.lock()
        fs.rename_noreplace(temp, path)
        fs.fsync_dir(queue_path)
    except FileExistsError:
        fs.close(fd)
        fs.unlink(temp)
        return open_segment(fs, queue_path, segment_id, size, writable=True, memlock=memlock)
    except BaseException:
        fs.close(fd)
        with contextlib.suppress(OSError):
            fs.unlink(temp)
        raise
    return Segment(segment_id, path, mapping, fd)


def _fill_in_blocks(fs: Fs, fd: int, size: int) -> None:
    """Have the system keep a new segment in large blocks instead of pages: it does so with what is written.

    After its sync, which would have to write all of it; and without the first block, which has the header.
    """
    for begin in range(LARGE_BLOCK_BYTES, size, LARGE_BLOCK_BYTES):
        fs.write_zeros(fd, begin, min(LARGE_BLOCK_BYTES, size - begin))


def open_segment(
    fs: Fs, queue_path: str, segment_id: int, size: int, *, writable: bool, memlock: bool = False
) -> Segment:
    """Map an existing segment after checking length, magic, version and id."""
    path = segment_path(queue_path, segment_id)
    fd = fs.open(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        length = fs.size(fd)
        if length != size:
            raise Corrupt(f"{path} has {length} bytes, but the queue's segment_size is {size}")
        _check_header(path, fs.pread(fd, layout.SEG_DATA_OFFSET, 0), segment_id)
        mapping = native.Mapping(fd, size, writable)
        if memlock:
            mapping.lock()
    except BaseException:
        fs.close(fd)
        raise
    return Segment(segment_id, path, mapping, fd)


def open_or_create_segment(
    fs: Fs, queue_path: str, segment_id: int, size: int, *, memlock: bool = False
) -> Segment:
    """Open a segment for writing, creating it if there is none."""
    try:
        return open_segment(fs, queue_path, segment_id, size, writable=True, memlock=memlock)
    except FileNotFoundError:
        return create_segment(fs, queue_path, segment_id, size, memlock=memlock)


def map_segment(fs: Fs, queue_path: str, segment_id: int, size: int) -> native.Mapping:
    """Map an existing segment read-only; no descriptor stays open."""
    segment = open_segment(fs, queue_path, segment_id, size, writable=False)
    segment.close(fs)
    return segment.mapping


def remove_segment(fs: Fs, queue_path: str, segment_id: int) -> None:
    """Delete a segment and its seek index; either may be gone already."""
    for name in (layout.segment_name(segment_id), layout.seek_index_name(segment_id)):
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(os.path.join(queue_path, name))


def remove_leftovers(fs: Fs, queue_path: str) -> None:
    """Delete what an interrupted writer left: half-prepared files, indexes without a segment."""
    names = set(fs.listdir(queue_path))
    # Compressed segments, and stubs of those in an object store, begin with the name of the segment.
    segments = {name[: len(layout.segment_name(0))] for name in names if not name.endswith(TEMP_SUFFIX)}
    for name in sorted(names):
        final = name.removesuffix(TEMP_SUFFIX)
        index_id = layout.parse_seek_index_name(final)
        if name != final:
            leftover = index_id is not None or layout.parse_segment_name(final) is not None
        else:
            leftover = index_id is not None and layout.segment_name(index_id) not in segments
        if leftover:
            # A worker of a writer that was not closed may still be renaming it.
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(os.path.join(queue_path, name))


def header_problem(header: bytes, segment_id: int) -> str | None:
    """Return what is wrong with a segment's header, None if it is sound."""
    magic, version, found_id, _ = layout.SEGMENT_HEADER.unpack_from(header)
    if magic != layout.SEG_MAGIC:
        return f"it has magic {magic:#010x}, expected {layout.SEG_MAGIC:#010x}"
    if version != layout.SEG_VERSION:
        return f"it has version {version}; this build knows {layout.SEG_VERSION}"
    return f"it says it is segment {found_id}; was it renamed?" if found_id != segment_id else None


def _check_header(path: str, header: bytes, segment_id: int) -> None:
    problem = header_problem(header, segment_id)
    if problem is None:
        return
    magic, version, _, _ = layout.SEGMENT_HEADER.unpack(header)
    message = f"{path}: {problem}"
    raise (
        UnsupportedVersion(message, version)
        if magic == layout.SEG_MAGIC and version != layout.SEG_VERSION
        else Corrupt(message)
    )
