"""The tiers of a segment: which file of it counts, compressing it, bringing it back.

Owns the order of the steps. Killed anywhere, a step leaves the segment readable, and doing it again finishes
it: a file goes only when the one that replaces it is complete, checked and on disk. The tree is the only
index: a reader lists a directory and takes the first of `.q`, `.q.zst` with its index, stub.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.archive import layout
from everlog.archive.layout import BLOCK_INDEX_SUFFIX, STUB_SUFFIX, ZST_SUFFIX, RemoteStub, segment_file
from everlog.archive.zstd_blocks import (
    BLOCK_BYTES,
    LEVEL,
    BlockDecoder,
    BlockIndex,
    compress_blocks,
    decode_index,
    encode_index,
    index_of,
)
from everlog.errors import Corrupt, Unsupported
from everlog.fs import Fs, close_locked, opened, read_file, replace_file
from everlog.native.queue import ring as native
from everlog.queue import seek_index
from everlog.queue.layout import (
    CONTROL_FILE,
    MSG_SEQ,
    MSG_TIMESTAMP_NS,
    SEG_DATA_OFFSET,
    SEG_FLAG_SEALED,
    SEG_FLAGS,
)
from everlog.queue.seek_index import SeekIndex
from everlog.queue.segment import TEMP_SUFFIX, header_problem, map_segment
from everlog.queue.segment_builder import INDEX_STRIDE


class Tier(StrEnum):
    """Where a segment is, in the order in which a reader takes it."""

    PLAIN = "plain"
    COMPRESSED = "compressed"
    REMOTE = "remote"


_SUFFIXES: Final = {Tier.PLAIN: "", Tier.COMPRESSED: ZST_SUFFIX, Tier.REMOTE: STUB_SUFFIX}


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """One segment of a directory and the file of it that counts."""

    directory: str
    segment_id: int
    tier: Tier

    @property
    def path(self) -> str:
        """The file: segment, compressed segment or stub."""
        return segment_file(self.directory, self.segment_id, _SUFFIXES[self.tier])


def list_segments(fs: Fs, directory: str) -> list[ArchivedSegment]:
    """Return the segments of a directory in order, each once, in its first tier; unsealed ones are left out.

    A compressed segment without its index does not count; the writer of one publishes the index first.
    """
    names = set(fs.listdir(directory))
    tiers: dict[int, Tier] = {}
    for name in names:
        parsed = layout.parse_file_name(name)
        if parsed is None or (parsed[1] == ZST_SUFFIX and f"{name}.idx" not in names):
            continue
        tier = next(tier for tier, suffix in _SUFFIXES.items() if suffix == parsed[1])
        tiers[parsed[0]] = min(tier, tiers.get(parsed[0], tier), key=list(Tier).index)
    if CONTROL_FILE in names:
        for segment_id in sorted(tiers, reverse=True):
            if tiers[segment_id] is not Tier.PLAIN or _is_sealed(fs, directory, segment_id):
                break
            del tiers[segment_id]
    return [ArchivedSegment(directory, segment_id, tiers[segment_id]) for segment_id in sorted(tiers)]


def resolve(fs: Fs, directory: str, segment_id: int) -> ArchivedSegment | None:
    """Return where a segment is now, None if no tier has it."""
    for tier, suffix in _SUFFIXES.items():
        has_index = tier is not Tier.COMPRESSED or fs.exists(
            segment_file(directory, segment_id, BLOCK_INDEX_SUFFIX)
        )
        if has_index and fs.exists(segment_file(directory, segment_id, suffix)):
            return ArchivedSegment(directory, segment_id, tier)
    return None


def _is_sealed(fs: Fs, directory: str, segment_id: int) -> bool:
    with opened(fs, segment_file(directory, segment_id)) as fd:
        header = fs.pread(fd, SEG_DATA_OFFSET, 0)
    return len(header) == SEG_DATA_OFFSET and bool(header[SEG_FLAGS] & SEG_FLAG_SEALED)


def find_directories(fs: Fs, root: str) -> list[str]:
    """Return every directory in and below `root` that holds segments, in the order of their paths."""
    found = []
    for directory, below, names in os.walk(root):
        below.sort()
        if any(layout.parse_file_name(name) for name in names):
            found.append(directory)
    return sorted(found)


@contextlib.contextmanager
def changing(fs: Fs, directory: str) -> Iterator[None]:
    """Keep other processes from compressing or moving segments of this directory while a block lasts."""
    path = os.path.join(directory, layout.LOCK_FILE)
    fd = fs.open(path, os.O_RDWR | os.O_CREAT)
    if not fs.try_lock(fd):
        fs.close(fd)
        raise Unsupported(f"another process changes {directory} (it holds {path}); try again when it is done")
    try:
        yield
    finally:
        close_locked(fs, fd)


def map_plain(fs: Fs, segment: ArchivedSegment) -> native.Mapping:
    """Map an uncompressed segment after checking its header; FileNotFoundError if it has moved on."""
    with opened(fs, segment.path) as fd:
        size = fs.size(fd)
    if size <= SEG_DATA_OFFSET:
        raise Corrupt(f"{segment.path} has {size} bytes, a segment has more; restore it from a copy")
    return map_segment(fs, segment.directory, segment.segment_id, size)


def check_sealed(mapping: native.Mapping, path: str, segment_id: int) -> None:
    """Raise unless the bytes are a sealed segment of this id."""
    header = bytes(memoryview(mapping)[:SEG_DATA_OFFSET])
    if problem := header_problem(header, segment_id):
        raise Corrupt(f"{path}: {problem}")
    if not header[SEG_FLAGS] & SEG_FLAG_SEALED:
        raise Unsupported(f"{path} is not sealed; only segments that their writer has left are archived")


# -- compressing ----------------------------------------------------------------------------


def compress_segment(
    fs: Fs,
    directory: str,
    segment_id: int,
    *,
    block_size: int = BLOCK_BYTES,
    level: int = LEVEL,
    keep_source: bool = False,
) -> int:
    """Compress a sealed segment in place and return the bytes of the result; the source goes at the end.

    The result is read back from the disk and compared with the source before that. The caller holds
    `changing` of the directory.
    """
    source = ArchivedSegment(directory, segment_id, Tier.PLAIN)
    mapping = map_plain(fs, source)
    check_sealed(mapping, source.path, segment_id)
    data = memoryview(mapping)
    store_seek_index(fs, directory, segment_id, mapping)
    target = segment_file(directory, segment_id, ZST_SUFFIX)
    sizes, end = [], 0
    with opened(fs, target + TEMP_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
        for frame in compress_blocks(data, block_size, level):
            fs.pwrite(fd, frame, end)
            sizes.append(len(frame))
            end += len(frame)
        fs.fsync(fd)
        index = index_of(sizes, len(data), block_size)
        _compare(fs, fd, index, data, target)
    index_path = segment_file(directory, segment_id, BLOCK_INDEX_SUFFIX)
    encoded = encode_index(index)
    replace_file(fs, index_path, encoded)
    if read_file(fs, index_path) != encoded:
        raise Corrupt(f"{index_path} does not hold what was written to it; the disk is damaged")
    fs.rename(target + TEMP_SUFFIX, target)
    fs.fsync_dir(directory)
    if not keep_source:
        fs.unlink(source.path)
    return end


def _compare(fs: Fs, fd: int, index: BlockIndex, data: memoryview, target: str) -> None:
    """Raise unless what was written to the disk is the source, all of it."""
    for begin, block in read_blocks(fs, fd, index, target):
        if block != data[begin : begin + len(block)]:
            raise Corrupt(f"{target} does not hold the bytes of its source at {begin}; nothing was removed")


def read_blocks(fs: Fs, fd: int, index: BlockIndex, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield each block of an open compressed segment with its offset."""
    decoder = BlockDecoder(path)
    for number, frame in enumerate(index.frames):
        compressed = fs.pread(fd, frame.compressed_size, frame.compressed_offset)
        yield frame.uncompressed_offset, decoder.decode(number, frame, compressed)


def load_block_index(fs: Fs, directory: str, segment_id: int) -> BlockIndex:
    """Return the index of a compressed segment, checked against the length of the data."""
    with opened(fs, segment_file(directory, segment_id, ZST_SUFFIX)) as fd:
        size = fs.size(fd)
    path = segment_file(directory, segment_id, BLOCK_INDEX_SUFFIX)
    return decode_index(read_file(fs, path), size, path)


def load_stub(fs: Fs, directory: str, segment_id: int) -> RemoteStub:
    """Return the stub of a segment that is in an object store."""
    path = segment_file(directory, segment_id, STUB_SUFFIX)
    return layout.decode_stub(path, read_file(fs, path))


def decompress_segment(fs: Fs, directory: str, segment_id: int) -> int:
    """Make a plain segment of a compressed one and return its size; the compressed files go at the end."""
    index = load_block_index(fs, directory, segment_id)
    target = segment_file(directory, segment_id)
    source = segment_file(directory, segment_id, ZST_SUFFIX)
    with (
        opened(fs, source) as read_fd,
        opened(fs, target + TEMP_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd,
    ):
        fs.truncate(fd, index.uncompressed_size)
        for begin, block in read_blocks(fs, read_fd, index, source):
            if block.count(0) != len(block):  # zeros need no space on disk
                fs.pwrite(fd, block, begin)
        fs.fsync(fd)
        mapping = native.Mapping(fd, index.uncompressed_size, False)
    check_sealed(mapping, source, segment_id)
    fs.rename(target + TEMP_SUFFIX, target)
    fs.fsync_dir(directory)
    remove_compressed(fs, directory, segment_id)
    return index.uncompressed_size


def remove_compressed(fs: Fs, directory: str, segment_id: int) -> None:
    """Remove the compressed files of a segment; the index goes last, as it came first."""
    for suffix in (ZST_SUFFIX, BLOCK_INDEX_SUFFIX):
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(segment_file(directory, segment_id, suffix))
    fs.fsync_dir(directory)


# -- the seek index ---------------------------------------------------------------------------


def store_seek_index(fs: Fs, directory: str, segment_id: int, mapping: native.Mapping) -> None:
    """Write the seek index of a segment unless a sound and whole one is there.

    One whose entries are many blocks apart is replaced: a seek would fetch all of them from a store.
    """
    found = seek_index.load(fs, directory, segment_id, len(mapping))
    if found is not None and not found.partial:
        is_fine = len(mapping) <= 2 * BLOCK_BYTES * len(found.entries)
        if is_fine or found.entry_stride == 1:
            return
    if (index := build_seek_index(mapping, segment_id)) is not None:
        seek_index.store(fs, directory, index, durable=True)


def build_seek_index(mapping: native.Mapping, segment_id: int) -> SeekIndex | None:
    """Return the seek index of a mapped segment, made from its records.

    Its entries are about a block apart. None if the segment has no records, or a damaged one: seeks scan
    then, and a reader reports the damage.
    """
    scan = native.scan_segment(mapping, SEG_DATA_OFFSET)
    if scan["bad"] or scan["good_end"] != scan["end"] or not scan["records"]:
        return None
    size = (scan["end"] - SEG_DATA_OFFSET) // scan["records"]
    stride = max(1, min(INDEX_STRIDE, BLOCK_BYTES // size))
    entries = np.zeros(-(-scan["records"] // stride), dtype=seek_index.ENTRY_DTYPE)
    offsets: NDArray[np.uint64] = np.empty(stride, dtype=np.uint64)
    begin = SEG_DATA_OFFSET
    for number in range(len(entries)):
        count = min(stride, scan["records"] - number * stride)
        native.run_offsets(mapping, begin, count, offsets)
        entries[number] = (
            mapping.load_u64(begin + MSG_SEQ),
            mapping.load_u64(begin + MSG_TIMESTAMP_NS),
            begin,
        )
        begin = native.view_at(mapping, segment_id, int(offsets[count - 1])).end_offset
    return SeekIndex(
        segment_id=segment_id,
        segment_size=len(mapping),
        entry_stride=stride,
        partial=False,
        min_seq=scan["first_seq"],
        max_seq=scan["last_seq"],
        min_ts_ns=scan["min_ts_ns"],
        max_ts_ns=scan["max_ts_ns"],
        entries=entries,
    )
