"""Merging of sorted streams: the order is that of the keys, however the streams are cut into blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.market.venues import merging
from everlog.market.venues.merging import KeyedBlock, merge

streams_of_blocks = st.lists(st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=6), max_size=5)


def as_blocks(keys: list[list[int]], stream: int, read: list[int]) -> Iterator[KeyedBlock]:
    """A stream of ascending keys; a record is (stream, place in it); `read` counts what was read of it."""
    flat = iter(sorted(key for block in keys for key in block))
    place = 0
    for block in keys:
        taken = [next(flat) for _ in block]
        records = np.array([(stream, place + n) for n in range(len(block))], dtype=np.int64).reshape(-1, 2)
        place += len(block)
        read[stream] += len(block)
        yield KeyedBlock(np.array(taken, dtype=np.uint64), records)


@given(streams=streams_of_blocks, events_read=st.sampled_from([1, 3, 1000]))
def test_events_come_by_key_then_by_stream_then_as_they_were(
    streams: list[list[list[int]]], events_read: int
) -> None:
    expected = sorted(
        (key, stream, place)
        for stream, blocks in enumerate(streams)
        for place, key in enumerate(sorted(key for block in blocks for key in block))
    )
    read = [0] * len(streams)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "EVENTS_READ", events_read)
        merged = list(merge(as_blocks(blocks, stream, read) for stream, blocks in enumerate(streams)))
    found = [
        (key, *record)
        for block in merged
        for key, record in zip(block.keys.tolist(), block.records.tolist(), strict=True)
    ]
    assert found == expected
    assert all(len(block) for block in merged)


def test_streams_are_read_only_as_far_as_they_are_needed() -> None:
    blocks = [[[n] * 100 for n in range(50)] for _ in range(3)]
    read = [0, 0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "EVENTS_READ", 300)
        merged = merge(as_blocks(keys, stream, read) for stream, keys in enumerate(blocks))
        next(merged)
        assert sum(read) <= 300 + 3 * 200
        assert sum(map(len, merged)) > 14_000
