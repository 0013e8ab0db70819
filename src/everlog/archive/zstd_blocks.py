"""Seekable zstd: independent frames of one block each, and the index that finds them.

Owns the format: compress bytes to frames and index, read any range of blocks back. Knows no names of files
and no tiers. Every frame carries the checksum of its content; the index is checked against everything that
follows from how it is written, so damage to either is reported and never read over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import zstandard

from everlog.archive.layout import (
    BLOCK_INDEX_ENTRY,
    BLOCK_INDEX_HEADER,
    BLOCK_INDEX_MAGIC,
    BLOCK_INDEX_VERSION,
)
from everlog.errors import Corrupt, InvalidConfig, UnsupportedVersion

BLOCK_BYTES: Final = 1 << 20
LEVEL: Final = 3
_BLOCK_BYTES_MAX: Final = 1 << 30


class Frame(NamedTuple):
    """One entry of the index."""

    uncompressed_offset: int
    compressed_offset: int
    compressed_size: int
    uncompressed_size: int


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """Where the frames of a compressed segment are."""

    block_size: int
    frames: tuple[Frame, ...]

    @property
    def uncompressed_size(self) -> int:
        """How many bytes the segment has."""
        last = self.frames[-1] if self.frames else None
        return last.uncompressed_offset + last.uncompressed_size if last else 0

    @property
    def compressed_size(self) -> int:
        """How many bytes all frames have."""
        last = self.frames[-1] if self.frames else None
        return last.compressed_offset + last.compressed_size if last else 0

    def frame_at(self, offset: int) -> int | None:
        """Return the number of the frame that holds an offset of the segment; None past its end."""
        if not 0 <= offset < self.uncompressed_size:
            return None
        return bisect_right(self.frames, offset, key=lambda frame: frame.uncompressed_offset) - 1


def encode_index(index: BlockIndex) -> bytes:
    """Return the bytes of the index file."""
    header = BLOCK_INDEX_HEADER.pack(
        BLOCK_INDEX_MAGIC,
        BLOCK_INDEX_VERSION,
        BLOCK_INDEX_HEADER.size,
        index.block_size,
        len(index.frames),
    )
    return header + b"".join(BLOCK_INDEX_ENTRY.pack(*frame) for frame in index.frames)


def decode_index(data: bytes, compressed_size: int, where: str) -> BlockIndex:
    """Return the index of a file of `compressed_size` bytes; Corrupt unless it covers all of it in order."""
    if len(data) < BLOCK_INDEX_HEADER.size:
        raise Corrupt(f"{where} has {len(data)} bytes, a block index has at least {BLOCK_INDEX_HEADER.size}")
    magic, version, header_len, block_size, count = BLOCK_INDEX_HEADER.unpack_from(data)
    if magic != BLOCK_INDEX_MAGIC:
        raise Corrupt(f"{where} is not a block index: it begins with {magic!r}")
    if version != BLOCK_INDEX_VERSION:
        raise UnsupportedVersion(f"{where} has version {version}; this build knows 1", version)
    expected = BLOCK_INDEX_HEADER.size + count * BLOCK_INDEX_ENTRY.size
    if header_len != BLOCK_INDEX_HEADER.size or len(data) != expected:
        raise Corrupt(f"{where} has {len(data)} bytes, but its header says {count} frames ({expected})")
    if not 0 < block_size <= _BLOCK_BYTES_MAX:
        raise Corrupt(f"{where} says a block has {block_size} bytes")
    frames = tuple(Frame(*row) for row in BLOCK_INDEX_ENTRY.iter_unpack(data[BLOCK_INDEX_HEADER.size :]))
    index = BlockIndex(block_size, frames)
    offset = 0
    for number, frame in enumerate(frames):
        size, is_last = frame.uncompressed_size, number == count - 1
        is_whole = size == block_size or (is_last and 0 < size < block_size)
        if (
            not is_whole
            or frame.uncompressed_offset != number * block_size
            or frame.compressed_offset != offset
        ):
            raise Corrupt(f"{where} has an impossible entry {number}: {frame}")
        offset += frame.compressed_size
    if offset != compressed_size:
        raise Corrupt(f"{where} describes {offset} compressed bytes, there are {compressed_size}")
    return index


def check_block_size(block_size: int) -> int:
    """Return a usable block size, or raise InvalidConfig."""
    if not 0 < block_size <= _BLOCK_BYTES_MAX:
        raise InvalidConfig(f"a block has 1 to {_BLOCK_BYTES_MAX} bytes, got {block_size}")
    return block_size


def compress_blocks(data: memoryview, block_size: int = BLOCK_BYTES, level: int = LEVEL) -> Iterator[bytes]:
    """Yield the frames of `data`, one for each block of it."""
    check_block_size(block_size)
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
    for begin in range(0, len(data), block_size):
        yield compressor.compress(data[begin : begin + block_size])


def index_of(sizes: list[int], length: int, block_size: int) -> BlockIndex:
    """Return the index of frames with these compressed sizes over `length` bytes."""
    frames, offset = [], 0
    for number, size in enumerate(sizes):
        begin = number * block_size
        frames.append(Frame(begin, offset, size, min(block_size, length - begin)))
        offset += size
    return BlockIndex(block_size, tuple(frames))


def plain_index(length: int) -> BlockIndex:
    """Return the index of `length` bytes that are not compressed: each block is where it was."""
    sizes = [min(BLOCK_BYTES, length - begin) for begin in range(0, length, BLOCK_BYTES)]
    return index_of(sizes, length, BLOCK_BYTES)


class BlockDecoder:
    """Decompresses frames; Corrupt for one that does not hold exactly its block."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._decompressor = zstandard.ZstdDecompressor()

    def decode(self, number: int, frame: Frame, data: bytes | memoryview) -> bytes:
        """Return the block of a frame."""
        problem = f"{len(data)} of {frame.compressed_size} bytes are there"
        if len(data) == frame.compressed_size:
            try:
                # The frame states its own length, which damage may have made enormous.
                stated = zstandard.get_frame_parameters(data).content_size
                if stated in (frame.uncompressed_size, zstandard.CONTENTSIZE_UNKNOWN):
                    block = self._decompressor.decompress(
                        data, frame.uncompressed_size, allow_extra_data=False
                    )
                    if len(block) == frame.uncompressed_size:
                        return block
                problem = "it is not the frame that the index describes"
            except zstandard.ZstdError as error:
                problem = str(error)
        raise Corrupt(
            f"block {number} of {self._where} cannot be decompressed: {problem}; restore the file from a copy"
        )
