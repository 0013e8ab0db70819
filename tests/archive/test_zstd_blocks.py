"""Seekable zstd: the format against a plain model, and damage to any byte of it."""

from __future__ import annotations

import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from everlog.archive.zstd_blocks import (
    BlockDecoder,
    compress_blocks,
    decode_index,
    encode_index,
    index_of,
)
from everlog.errors import EverlogError, InvalidConfig, UnsupportedVersion


def packed(data: bytes, block_size: int) -> tuple[bytes, bytes]:
    frames = list(compress_blocks(memoryview(data), block_size))
    index = index_of([len(frame) for frame in frames], len(data), block_size)
    return b"".join(frames), encode_index(index)


def unpacked(compressed: bytes, index_bytes: bytes) -> bytes:
    index = decode_index(index_bytes, len(compressed), "here")
    decoder = BlockDecoder("here")
    parts = []
    for number, frame in enumerate(index.frames):
        end = frame.compressed_offset + frame.compressed_size
        parts.append(decoder.decode(number, frame, compressed[frame.compressed_offset : end]))
    return b"".join(parts)


@given(st.binary(min_size=1, max_size=3000), st.integers(1, 700))
def test_what_was_packed_is_what_is_unpacked(data: bytes, block_size: int) -> None:
    compressed, index_bytes = packed(data, block_size)
    assert unpacked(compressed, index_bytes) == data
    # Each frame alone is plain zstd, and all of them behind each other are too.
    assert zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True).read() == data


@given(st.integers(1, 5000), st.integers(1, 700), st.integers(-10, 6000))
def test_the_frame_of_an_offset_is_the_one_that_holds_it(length: int, block_size: int, offset: int) -> None:
    _, index_bytes = packed(bytes(length), block_size)
    index = decode_index(index_bytes, index_of_size(index_bytes), "here")
    expected = offset // block_size if 0 <= offset < length else None
    assert index.frame_at(offset) == expected


def index_of_size(index_bytes: bytes) -> int:
    last = struct.unpack_from("<QQII", index_bytes, len(index_bytes) - 24)
    return int(last[1] + last[2])


def test_the_bytes_of_the_index_are_those_of_the_specification() -> None:
    compressed, index_bytes = packed(b"a" * 100 + b"b" * 50, 100)
    assert index_bytes[:24] == b"QZSTIDX1" + struct.pack("<HHIQ", 1, 24, 100, 2)
    first, second = struct.iter_unpack("<QQII", index_bytes[24:])
    assert first[:2] == (0, 0) and first[3] == 100
    assert second == (100, first[2], len(compressed) - first[2], 50)


def test_a_block_size_of_0_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="got 0"):
        list(compress_blocks(memoryview(b"x"), 0))


def test_damage_to_any_byte_is_reported() -> None:
    data = bytes(range(256)) * 5
    compressed, index_bytes = packed(data, 500)
    for place in range(len(index_bytes)):
        for bit in range(8):
            damaged = bytearray(index_bytes)
            damaged[place] ^= 1 << bit
            with pytest.raises(EverlogError):
                unpacked(compressed, bytes(damaged))
    for place in range(len(compressed)):
        damaged = bytearray(compressed)
        damaged[place] ^= 0xFF
        with pytest.raises(EverlogError):
            unpacked(bytes(damaged), index_bytes)


@given(st.binary(max_size=200))
def test_an_index_of_any_bytes_is_refused_with_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(EverlogError):
        decode_index(b"QZSTIDX1" + data, 1 << 40, "here")


def test_a_cut_file_and_a_longer_one_are_reported() -> None:
    compressed, index_bytes = packed(bytes(1000), 300)
    for wrong in (compressed[:-1], compressed + b"\0"):
        with pytest.raises(EverlogError, match="compressed bytes"):
            unpacked(wrong, index_bytes)
    with pytest.raises(EverlogError):
        unpacked(compressed, index_bytes[:-1])


def test_an_index_of_another_version_is_refused_by_its_number() -> None:
    compressed, index_bytes = packed(b"x", 10)
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_index(index_bytes[:8] + b"\2\0" + index_bytes[10:], len(compressed), "here")


def test_frames_without_checksum_or_length_of_other_writers_are_read() -> None:
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False)
    frame = compressor.compress(b"y" * 70)
    assert unpacked(frame, encode_index(index_of([len(frame)], 70, 100))) == b"y" * 70
