"""Spec 1.2: the checksum is CRC-32 IEEE, by whichever instructions the processor has and by tables alike."""

import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.native.queue.ring import crc32, crc32_matches
from tests.support import ring_twin

WAYS = (0, 1, 2)
"""By tables, by carry-less multiplication, by four of these at once; the best one is the default."""


@pytest.mark.parametrize("way", WAYS)
def test_the_known_values_are_right(way: int) -> None:
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


def with_checksums(payloads: list[bytes]) -> bytearray:
    """Records of a segment, one after the other."""
    stride = ring_twin.record_size(len(payloads[0]))
    records = bytearray(stride * len(payloads))
    for number, payload in enumerate(payloads):
        ring_twin.append(records, number * stride, 2**40 + number, 2**60 - number, number, payload)
    return records


def covered_bytes(length: int) -> list[int]:
    """The bytes of a record that its checksum covers, and those of the checksum itself."""
    return list(range(4, 64 + length))


@given(
    length=st.sampled_from([0, 1, 16, 63, 64, 65, 100, 128, 192, 256]),
    count=st.integers(1, 70),
    seed=st.integers(0, 2**32 - 1),
    damage=st.lists(st.tuples(st.integers(0, 69), st.integers(0, 999), st.integers(0, 7)), max_size=3),
)
def test_a_run_of_payloads_matches_up_to_the_first_that_is_damaged(
    length: int, count: int, seed: int, damage: list[tuple[int, int, int]]
) -> None:
    random = np.random.default_rng(seed)
    records, stride = (
        with_checksums([random.bytes(length) for _ in range(count)]),
        ring_twin.record_size(length),
    )
    covered = covered_bytes(length)
    # Each bit once: twice would mend it.
    bits = {(item % count, covered[byte % len(covered)], bit) for item, byte, bit in damage}
    for item, byte, bit in bits:
        records[item * stride + byte] ^= 1 << bit
    first = min((item for item, _, _ in bits), default=count)
    assert {crc32_matches(records, length, count, way=way) for way in WAYS} == {first}


def test_every_single_bit_of_a_run_counts() -> None:
    length, count, stride = 128, 5, 192
    records = with_checksums([bytes([seq]) * length for seq in range(count)])
    for item in range(count):
        for byte in covered_bytes(length):
            for bit in range(8):
                records[item * stride + byte] ^= 1 << bit
                assert crc32_matches(records, length, count, way=2) == item
                records[item * stride + byte] ^= 1 << bit


def test_the_commit_word_is_taken_as_zero() -> None:
    records = with_checksums([b"payload"] * 3)
    records[128:132] = b"\xff" * 4
    assert {crc32_matches(records, 7, 3, way=way) for way in WAYS} == {3}


def test_the_same_damage_in_two_payloads_does_not_cancel_out() -> None:
    records = with_checksums([bytes(64)] * 8)
    for item in (3, 5):
        records[item * 128 + 80] ^= 1
    assert crc32_matches(records, 64, 8, way=2) == 3


def test_records_that_leave_their_buffer_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        crc32_matches(with_checksums([bytes(64)]), 64, 2, way=2)


def test_what_is_no_contiguous_buffer_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        crc32("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="contiguous"):
        crc32(memoryview(b"abcdef")[::2])
