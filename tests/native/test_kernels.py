"""The native kernels against their plain-Python twins, on sound, damaged and senseless bytes."""

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.errors import PayloadTooLarge
from everlog.native.queue import ring as native
from everlog.queue.seek_index import ENTRY_DTYPE
from tests.native.mappings import attach_writer, bytes_of, map_bytes
from tests.support import ring_twin

U16 = st.integers(0, 0xFFFE)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
CELLS_MAX = 24


@st.composite
def cells(draw: st.DrawFn) -> bytes:
    """Any multiple of 64 bytes that may pass for a segment: records of all kinds, then whatever."""
    data = bytearray(64 * draw(st.integers(2, CELLS_MAX)))
    kinds = st.sampled_from(["sound", "sound", "sound", "bad sum", "foreign", "pad", "garbage", "hole"])
    offset = 64
    while offset + 64 <= len(data):
        kind = draw(kinds)
        payload = draw(st.binary(max_size=min(150, len(data) - offset - 64)))
        type_id = 0xFFFF if kind == "pad" else draw(U16)
        version = draw(st.integers(0, 255)) if kind == "foreign" else draw(st.sampled_from([1, 2]))
        commit = {"garbage": draw(U32), "hole": 0}.get(kind, len(payload) + 1)
        fields = (commit, version, draw(U64), draw(U64), type_id, draw(U16))
        if kind == "pad" and draw(st.booleans()):
            payload, fields = b"", (len(data) - offset - 63, 2, 0, 0, 0xFFFF, 0)
        checksum = ring_twin.checksum_of(struct.pack("<IB3xQQHHI32x", *fields, 0) + payload)
        if version == 1 or (kind == "foreign" and draw(st.booleans())):
            checksum = zlib.crc32(payload)
        checksum ^= draw(st.integers(1, 2**32 - 1)) if kind == "bad sum" else 0
        header = struct.pack("<IB3xQQHHI32x", *fields, checksum)
        data[offset : offset + 64 + len(payload)] = header + payload
        offset += ring_twin.record_size(len(payload))
    return bytes(data)


@st.composite
def senseless(draw: st.DrawFn) -> bytes:
    """Random bytes with small numbers where lengths are read, so that a walk gets somewhere."""
    data = bytearray(draw(st.binary(min_size=128, max_size=64 * CELLS_MAX)))
    del data[len(data) // 64 * 64 :]
    for offset in range(64, len(data), 64):
        struct.pack_into("<I", data, offset, draw(st.one_of(st.integers(0, 200), U32)))
    return bytes(data)


segments = st.one_of(cells(), senseless())


@given(data=segments, verify=st.booleans(), share=st.floats(0, 1))
@example(data=bytes(128), verify=True, share=1.0)
def test_the_scan_finds_what_its_twin_finds(data: bytes, verify: bool, share: float) -> None:
    start = 64 + int(share * (len(data) // 64 - 1)) * 64
    expected = ring_twin.scan(data, start, verify)
    assert native.scan_segment(map_bytes(data), start, verify=verify) == expected


@given(
    data=segments,
    target=st.one_of(U64, st.integers(0, 300)),
    by_timestamp=st.booleans(),
    share=st.floats(0, 1),
)
def test_the_search_finds_what_its_twin_finds(
    data: bytes, target: int, by_timestamp: bool, share: float
) -> None:
    start = 64 + int(share * (len(data) // 64 - 1)) * 64
    expected = ring_twin.find(data, start, target, by_timestamp)
    assert native.find_record(map_bytes(data), start, target, by_timestamp=by_timestamp) == expected


@given(data=segments, share=st.floats(0, 1))
def test_the_offsets_of_a_run_are_those_of_the_twin(data: bytes, share: float) -> None:
    walked = ring_twin.walk(data, 64)
    count = round(share * len(walked))
    offsets = np.zeros(count + 1, dtype=np.uint64)
    native.run_offsets(map_bytes(data), 64, count, offsets)
    assert offsets.tolist() == [*walked[:count], 0]


@given(
    rubbish=st.binary(min_size=64, max_size=64),
    cell_count=st.integers(2, CELLS_MAX),
    records=st.lists(st.tuples(U16, U64, st.binary(max_size=200)), max_size=12),
    first_seq=st.integers(0, 2**63),
    stride=st.integers(1, 5),
    share=st.floats(0, 1),
)
def test_appended_bytes_and_index_are_those_of_the_twin(
    rubbish: bytes,
    cell_count: int,
    records: list[tuple[int, int, bytes]],
    first_seq: int,
    stride: int,
    share: float,
) -> None:
    """Over rubbish: what an aborted write left behind must not show through."""
    data = bytearray(rubbish * cell_count)
    offset = 64 + int(share * (cell_count - 1)) * 64
    segment, control = map_bytes(data), map_bytes(bytes(512))
    writer = attach_writer(control, segment, offset, first_seq, stride)
    written: list[tuple[int, int, int]] = []
    for type_id, timestamp_ns, payload in records:
        if offset + ring_twin.record_size(len(payload)) > len(data):
            with pytest.raises((EOFError, PayloadTooLarge)):
                writer.append(type_id, payload, timestamp_ns)
        else:
            assert writer.append(type_id, payload, timestamp_ns) == first_seq + len(written)
            written.append((first_seq + len(written), timestamp_ns, offset))
            offset = ring_twin.append(data, offset, written[-1][0], timestamp_ns, type_id, payload)
        assert bytes_of(segment) == data
    assert (writer.offset, writer.next_seq) == (offset, first_seq + len(written))
    state = writer._index_state()
    assert state is not None
    assert np.frombuffer(state[0], ENTRY_DTYPE).tolist() == written[::stride]
    if written:
        stamps = [timestamp_ns for _, timestamp_ns, _ in written]
        assert state[1:6] == (first_seq, written[-1][0], min(stamps), max(stamps), len(written))


@given(
    count=st.integers(0, 12),
    size=st.integers(0, 130),
    cell_count=st.integers(4, CELLS_MAX),
    step=st.sampled_from([1, 2, -1]),
    per_item=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_an_appended_array_is_the_same_bytes_as_single_appends(
    count: int, size: int, cell_count: int, step: int, per_item: bool, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    items: np.ndarray[Any, Any] = np.frombuffer(generator.bytes(max(1, count * 2 * size)), dtype=np.uint8)
    array = items[: count * 2 * size].view(f"V{size}")[::step] if size else np.zeros(count, "V0")
    array = array[:count]
    stamps = generator.integers(0, 2**63, len(array), dtype=np.uint64)
    one_segment, one_control = map_bytes(bytes(64 * cell_count)), map_bytes(bytes(512))
    all_segment, all_control = map_bytes(bytes(64 * cell_count)), map_bytes(bytes(512))
    one, both = (
        attach_writer(one_control, one_segment, 64, 0, 2),
        attach_writer(all_control, all_segment, 64, 0, 2),
    )
    fits = (64 * cell_count - 64) // ring_twin.record_size(size)
    for item, stamp in list(zip(array, stamps, strict=True))[:fits]:
        one.append(3, item.tobytes(), int(stamp) if per_item else 9)
    timestamps = stamps if per_item else 9
    if len(array) > fits:
        with pytest.raises((EOFError, PayloadTooLarge)):
            both.append_array(3, array, timestamps)
    else:
        assert both.append_array(3, array, timestamps) == 0
    assert bytes_of(all_segment) == bytes_of(one_segment)
    assert both._index_state() == one._index_state()


@given(
    rubbish=st.binary(min_size=64, max_size=64), cell_count=st.integers(2, CELLS_MAX), share=st.floats(0, 1)
)
def test_padding_is_that_of_the_twin(rubbish: bytes, cell_count: int, share: float) -> None:
    data = bytearray(rubbish * cell_count)
    offset = 64 + int(share * (cell_count - 1)) * 64
    segment = map_bytes(data)
    native.pad_segment(segment, offset)
    ring_twin.pad(data, offset)
    assert bytes_of(segment) == data


@given(rubbish=st.binary(min_size=64, max_size=64))
def test_sealing_is_that_of_the_twin(rubbish: bytes) -> None:
    data = bytearray(rubbish * 2)
    segment = map_bytes(data)
    native.seal_segment(segment)
    ring_twin.seal(data)
    assert bytes_of(segment) == data


@given(rubbish=st.binary(min_size=512, max_size=512), heads=st.lists(st.tuples(U32, U64), max_size=4))
@example(rubbish=b"\xff" * 512, heads=[(1, 64), (2, 128)])
def test_the_published_head_is_that_of_the_twin(rubbish: bytes, heads: list[tuple[int, int]]) -> None:
    """Whatever generation a dead writer left, odd ones included."""
    data = bytearray(rubbish)
    control = map_bytes(data)
    assert native.read_head(control) == ring_twin.read_head(data)
    for segment_id, offset in heads:
        native.publish_head(control, segment_id, offset)
        ring_twin.publish_head(data, segment_id, offset)
        assert bytes_of(control) == data
        assert native.read_head(control) == ring_twin.read_head(data) == (segment_id, offset)
