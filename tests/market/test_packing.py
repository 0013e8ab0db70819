"""Batches of L2 events to bytes and back, and the split of diffs that are too large."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.errors import Corrupt
from everlog.market.books import L2Book
from everlog.market.packing import (
    PackedRecords,
    pack_headers,
    pack_l2_diffs,
    pack_l2_snapshots,
    unpack_l2,
)
from everlog.market.protocol import L2_DIFF, L2_SNAPSHOT, LEVEL, BookEventType, BookMode, new_headers
from tests.support.book_twins import l2_record

LEVELS = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=4)
EVENTS = st.lists(st.tuples(LEVELS, LEVELS), max_size=8)
Event = tuple[list[tuple[int, int]], list[tuple[int, int]]]


def level_array(events: list[Event]) -> NDArray[np.void]:
    flat = [level for bids, asks in events for level in [*bids, *asks]]
    return np.array(flat, dtype=LEVEL)


@given(events=EVENTS)
def test_packed_diffs_have_the_bytes_of_single_ones_and_unpack_to_themselves(events: list[Event]) -> None:
    headers = new_headers(len(events), BookEventType.DIFF, BookMode.L2, venue_id=1, market_id=7)
    diffs = np.zeros(len(events), dtype=L2_DIFF)
    diffs["flags"] = 1
    diffs["bid_count"] = [len(bids) for bids, _ in events]
    diffs["ask_count"] = [len(asks) for _, asks in events]
    packed = pack_l2_diffs(headers, diffs, level_array(events))
    assert [bytes(record) for record in packed] == [l2_record(BookEventType.DIFF, *event) for event in events]
    unpacked = unpack_l2(packed)
    assert unpacked.diffs.tobytes() == diffs.tobytes()
    assert unpacked.diff_levels.tolist() == level_array(events).tolist()


@given(events=EVENTS)
def test_packed_snapshots_have_the_bytes_of_single_ones(events: list[Event]) -> None:
    headers = new_headers(len(events), BookEventType.SNAPSHOT, BookMode.L2, venue_id=1, market_id=7)
    headers["flags"] = 1
    bodies = np.zeros(len(events), dtype=L2_SNAPSHOT)
    bodies["bid_count"] = [len(bids) for bids, _ in events]
    bodies["ask_count"] = [len(asks) for _, asks in events]
    packed = pack_l2_snapshots(headers, bodies, level_array(events))
    singles = [l2_record(BookEventType.SNAPSHOT, *event) for event in events]
    assert [bytes(record) for record in packed] == singles
    assert [len(single) for single in singles] == [76 + 16 * (len(b) + len(a)) for b, a in events]
    assert unpack_l2(packed).snapshot_levels.tolist() == level_array(events).tolist()


def test_a_diff_with_too_many_levels_is_split_and_gives_the_same_book() -> None:
    bids, asks = 150_000, 70_000
    levels = np.zeros(bids + asks, dtype=LEVEL)
    levels["price"] = np.r_[np.arange(1, bids + 1), np.arange(10**6, 10**6 + asks)]
    levels["size"] = 1
    diff = np.zeros(1, dtype=L2_DIFF)
    diff["first_update_id"], diff["last_update_id"], diff["previous_update_id"] = 5, 9, 4
    packed = pack_l2_diffs(
        new_headers(1, BookEventType.DIFF, BookMode.L2), diff, levels, np.array([bids]), np.array([asks])
    )
    parts = unpack_l2(packed).diffs
    assert parts["bid_count"].tolist() == [65535, 65535, 18930]
    assert parts["ask_count"].tolist() == [65535, 4465, 0]
    book = L2Book()
    book.apply_array(packed)
    assert (book.bid_count, book.ask_count, book.top()) == (bids, asks, (bids, 1, 10**6, 1))
    assert book.last_update_id == 9


def test_headers_alone_are_events_without_a_body() -> None:
    packed = pack_headers(new_headers(3, BookEventType.HEARTBEAT, BookMode.L2))
    assert [len(record) for record in packed] == [64, 64, 64]
    assert len(unpack_l2(packed).headers) == 3
    assert packed.ends.tolist() == [64, 128, 192]


def test_wrong_counts_and_cut_records_are_refused() -> None:
    headers = new_headers(1, BookEventType.DIFF, BookMode.L2)
    with pytest.raises(Corrupt, match="levels by their counts"):
        pack_l2_diffs(headers, np.zeros(1, dtype=L2_DIFF), np.zeros(1, dtype=LEVEL))
    record = bytearray(l2_record(BookEventType.DIFF, [(1, 1)], []))
    record[64 + 28] = 2
    data = np.frombuffer(bytes(record), dtype=np.uint8)
    whole = PackedRecords(data, np.zeros(1, np.uint64), np.array([len(data)], np.uint64))
    with pytest.raises(Corrupt, match="2 levels"):
        unpack_l2(whole)
    with pytest.raises(Corrupt):
        unpack_l2(PackedRecords(data, whole.offsets, np.array([10], np.uint64)))
