"""Segments of any tier as memory that the queue's native reader walks: mapped, or filled block by block.

Owns which bytes of a segment are in memory. A plain segment is mapped as it is. Of a compressed one, here or
in an object store, only the blocks from the reader's position on are decompressed, into a memory file of the
segment's size. A record that reaches into a block which is not there yet is hidden from the reader: its
commit word is taken out, and put back when the rest has arrived.
"""

from __future__ import annotations

import os
from typing import Any, Final, Protocol

from everlog.archive.layout import ZST_SUFFIX, segment_file
from everlog.archive.tiers import ArchivedSegment, Tier, load_block_index, load_stub, map_plain, resolve
from everlog.archive.zstd_blocks import BlockDecoder, BlockIndex
from everlog.errors import Corrupt, SegmentMissing, Unsupported
from everlog.fs import Fs
from everlog.native.queue import ring as native
from everlog.queue import seek_index
from everlog.queue.layout import MSG_COMMIT_LEN, SEG_DATA_OFFSET, SEG_FLAG_SEALED, SEG_FLAGS
from everlog.queue.seek_index import SeekIndex
from everlog.queue.segment import header_problem

WINDOW_BYTES_MAX: Final = 64 << 20
"""A longer walk goes on in a new window; the old one is freed with the last batch that lies in it."""
READ_AHEAD_MAX: Final = 8
"""Blocks that are brought in at once after a few steps of a walk; the first step brings in one."""
OPEN_SEGMENTS_MAX: Final = 4
SEEK_INDEXES_MAX: Final = 256
"""What an opener remembers; a seek over many segments asks for the same ones again and again."""
_RESOLVE_ATTEMPTS_MAX: Final = 8


class Blocks(Protocol):
    """The blocks of one segment that is not mapped, wherever they are."""

    path: str
    index: BlockIndex

    def read(self, first: int, end: int) -> list[bytes]:
        """Return the blocks `first` to `end`, without `end`, decompressed and checked."""
        ...


def check_blocks(blocks: Blocks) -> None:
    """Read every block, also those behind the last record, at which a reader does not look."""
    for number in range(len(blocks.index.frames)):
        blocks.read(number, number + 1)


class RemoteSegments(Protocol):
    """Opens segments that are in an object store."""

    def open(self, directory: str, segment_id: int) -> Blocks:
        """Return the blocks of a segment."""
        ...

    def seek_index(self, directory: str, segment_id: int, segment_size: int) -> SeekIndex | None:
        """Return the seek index of a segment whose directory is in the store, None if there is none."""
        ...


class LocalBlocks:
    """The blocks of a compressed segment of this file system; the file stays open, whatever becomes of it."""

    def __init__(self, fs: Fs, directory: str, segment_id: int) -> None:
        self.path = segment_file(directory, segment_id, ZST_SUFFIX)
        self._fs = fs
        self._fd = fs.open(self.path, os.O_RDONLY)
        self.index = load_block_index(fs, directory, segment_id)

    def read(self, first: int, end: int) -> list[bytes]:
        """Return the blocks `first` to `end`, without `end`, decompressed and checked."""
        decoder = BlockDecoder(self.path)
        return [
            decoder.decode(
                number, frame, self._fs.pread(self._fd, frame.compressed_size, frame.compressed_offset)
            )
            for number, frame in enumerate(self.index.frames[first:end], start=first)
        ]

    def __del__(self) -> None:
        """Close the file."""
        if hasattr(self, "_fd"):
            self._fs.close(self._fd)


class Window:
    """The part of a segment that is in memory; `mapping` has the size and offsets of the whole."""

    def __init__(self, mapping: native.Mapping, blocks: Blocks | None = None, first_block: int = 0) -> None:
        self.mapping = mapping
        self._blocks = blocks
        self._first = self._end = first_block
        self._hidden: tuple[int, int] | None = None
        self._step = 1
        self.is_complete = blocks is None

    @classmethod
    def lazy(cls, blocks: Blocks, offset: int) -> Window:
        """Return a window that will be filled from the block of `offset` on."""
        size = blocks.index.uncompressed_size
        first = blocks.index.frame_at(offset)
        if first is None or size <= SEG_DATA_OFFSET:
            raise Corrupt(f"{blocks.path} has {size} bytes, which is no segment with a record at {offset}")
        fd = os.memfd_create("everlog-archive-window")
        try:
            os.ftruncate(fd, size)
            return cls(native.Mapping(fd, size, True), blocks, first)
        finally:
            os.close(fd)

    @property
    def is_full(self) -> bool:
        """Whether the window has grown to its bound and a new one should follow."""
        if self._blocks is None or self.is_complete:
            return False
        return (self._end - self._first) * self._blocks.index.block_size >= WINDOW_BYTES_MAX

    def advance(self, offset: int, *, reads_ahead: bool = True) -> bool:
        """Bring in what follows the record boundary `offset`; False if the segment has nothing more.

        One block more, or with each call more of them. A seek, which wants one record, does not read ahead.
        """
        if self.is_complete or self._blocks is None:
            return False
        frames = self._blocks.index.frames
        self._show()
        while True:
            end = min(len(frames), self._end + (self._step if reads_ahead else 1))
            self._fill(end)
            if reads_ahead:
                self._step = min(READ_AHEAD_MAX, self._step * 2)
            scan = native.scan_segment(self.mapping, offset, verify=False)
            filled = frames[end - 1].uncompressed_offset + frames[end - 1].uncompressed_size
            if end == len(frames) or scan["padded"]:
                self.is_complete = True
            elif scan["end"] > filled:
                last: int = scan["last"]
                if not scan["records"] or last <= offset:
                    continue  # one record larger than what is here
                self._hide(last)
            return True

    def _fill(self, end: int) -> None:
        assert self._blocks is not None
        memory = memoryview(self.mapping)
        for number, block in enumerate(self._blocks.read(self._end, end), start=self._end):
            begin = self._blocks.index.frames[number].uncompressed_offset
            memory[begin : begin + len(block)] = block
        self._end = end

    def _hide(self, offset: int) -> None:
        self._hidden = (offset, self.mapping.load_u32(offset + MSG_COMMIT_LEN))
        self.mapping.store_u32(offset + MSG_COMMIT_LEN, 0)

    def _show(self) -> None:
        if self._hidden is not None:
            self.mapping.store_u32(self._hidden[0] + MSG_COMMIT_LEN, self._hidden[1])
            self._hidden = None


class SegmentOpener:
    """Opens segments of any tier; one that moved to another tier meanwhile is resolved again."""

    def __init__(self, fs: Fs, remote: RemoteSegments | None = None) -> None:
        self._fs = fs
        self._remote = remote
        self._blocks: dict[ArchivedSegment, Blocks] = {}
        self._seek_indexes: dict[ArchivedSegment, SeekIndex | None] = {}

    def window(self, segment: ArchivedSegment, offset: int = SEG_DATA_OFFSET) -> Window:
        """Return a window that begins at a record boundary; SegmentMissing if no tier has the segment."""
        for _ in range(_RESOLVE_ATTEMPTS_MAX):
            try:
                return self._open(segment, offset)
            except FileNotFoundError:
                found = resolve(self._fs, segment.directory, segment.segment_id)
                if found is None:
                    break
                segment = found
        raise SegmentMissing(
            f"segment {segment.segment_id} of {segment.directory} is in no tier any more: neither as .q nor "
            "as .q.zst with its index nor as a stub; restore it, or start behind it"
        )

    def _open(self, segment: ArchivedSegment, offset: int) -> Window:
        if segment.tier is Tier.PLAIN:
            mapping = map_plain(self._fs, segment)
            _check_header(segment.path, bytes(memoryview(mapping)[:SEG_DATA_OFFSET]), segment.segment_id)
            return Window(mapping)
        blocks = self.blocks(segment)
        window = Window.lazy(blocks, 0 if offset == SEG_DATA_OFFSET else offset)
        if offset == SEG_DATA_OFFSET:
            window.advance(offset)
            _check_header(
                blocks.path, bytes(memoryview(window.mapping)[:SEG_DATA_OFFSET]), segment.segment_id
            )
        else:
            # The reader leaves a segment only if its header says that it is sealed, as this one was found to
            # be.
            window.mapping.store_u32(SEG_FLAGS, SEG_FLAG_SEALED)
            window.advance(offset)
        return window

    def blocks(self, segment: ArchivedSegment) -> Blocks:
        """Return the blocks of a segment that is compressed or in an object store."""
        found = self._blocks.get(segment)
        if found is None:
            found = self._open_blocks(segment)
            _remember(self._blocks, segment, found, OPEN_SEGMENTS_MAX)
        return found

    def _open_blocks(self, segment: ArchivedSegment) -> Blocks:
        if segment.tier is Tier.COMPRESSED:
            return LocalBlocks(self._fs, segment.directory, segment.segment_id)
        if self._remote is None:
            stub = load_stub(self._fs, segment.directory, segment.segment_id)
            raise Unsupported(
                f"segment {segment.segment_id} of {segment.directory} is at {stub.remote_uri}; open the "
                "archive with a remote store, or restore it with 'everlog archive restore'"
            )
        return self._remote.open(segment.directory, segment.segment_id)

    def seek_index(self, segment: ArchivedSegment) -> SeekIndex | None:
        """Return the seek index of a segment, None if there is no sound and whole one."""
        if segment in self._seek_indexes:
            return self._seek_indexes[segment]
        try:
            size = (
                os.stat(segment.path).st_size
                if segment.tier is Tier.PLAIN
                else self.blocks(segment).index.uncompressed_size
            )
        except FileNotFoundError:
            return None
        if self._remote is not None and "://" in segment.directory:
            index = self._remote.seek_index(segment.directory, segment.segment_id, size)
        else:
            index = seek_index.load(self._fs, segment.directory, segment.segment_id, size)
        if index is not None and (index.partial or not len(index.entries)):
            index = None
        _remember(self._seek_indexes, segment, index, SEEK_INDEXES_MAX)
        return index

    def last_seq(self, segment: ArchivedSegment) -> int | None:
        """Return the seq of the last record of a segment by walking it, None if it has none."""
        window = self.window(segment)
        offset, last = SEG_DATA_OFFSET, None
        while True:
            scan = native.scan_segment(window.mapping, offset, verify=False)
            if scan["records"]:
                last, offset = scan["last_seq"], scan["end"]
            if not window.advance(offset):
                return last


def _remember(cache: dict[ArchivedSegment, Any], key: ArchivedSegment, value: object, limit: int) -> None:
    while len(cache) >= limit:
        cache.pop(next(iter(cache)))
    cache[key] = value


def _check_header(path: str, header: bytes, segment_id: int) -> None:
    problem = header_problem(header, segment_id)
    if problem is None and not header[SEG_FLAGS] & SEG_FLAG_SEALED:
        problem = "it is not sealed, so its writer may still add to it"
    if problem is not None:
        raise Corrupt(f"{path}: {problem}")
