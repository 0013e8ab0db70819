"""Spec 1.2: the checksum is CRC-32 IEEE, by whichever instructions the processor has and by tables alike."""

import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.native.mapping import crc32

WAYS = (None, 0, 1, 2)
"""The best one; by tables, by carry-less multiplication, by four of these at once."""


@pytest.mark.parametrize("way", WAYS)
def test_the_known_values_are_right(way: int | None) -> None:
    assert crc32(b"hello", way=way) == 0x3610A686
    assert crc32(b"", way=way) == 0
    assert crc32(bytes(32), way=way) == 0x190A55AD


@given(data=st.binary(max_size=1024))
@example(data=bytes(range(256)) * 8)
def test_all_ways_agree_with_zlib(data: bytes) -> None:
    assert {crc32(data, way=way) for way in WAYS} == {zlib.crc32(data)}


def test_every_length_and_every_alignment_agree_with_zlib() -> None:
    data = np.random.default_rng(7).integers(0, 256, 512, dtype=np.uint8).tobytes()
    whole = memoryview(data)
    for start in range(17):
        for length in range(300):
            part = whole[start : start + length]
            assert {crc32(part, way=way) for way in WAYS} == {zlib.crc32(part)}, (start, length)


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1000, 300_000))
def test_long_payloads_agree_with_zlib(seed: int, length: int) -> None:
    data = np.random.default_rng(seed).bytes(length)
    assert {crc32(bytearray(data), way=way) for way in WAYS} == {zlib.crc32(data)}


def test_what_is_no_contiguous_buffer_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        crc32("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="contiguous"):
        crc32(memoryview(b"abcdef")[::2])
