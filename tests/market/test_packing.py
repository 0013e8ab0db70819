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
    by_key,
    pack_l2_diffs,
    pack_l2_snapshots,
)
from everlog.market.protocol import L2_DIFF, L2_SNAPSHOT, LEVEL, BookEventType, BookMode, new_headers
from tests.support.book_twins import l2_record
from tests.support.import_runs import l2_event

LEVELS = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)), max_size=4)
EVENTS = st.lists(st.tuples(LEVELS, LEVELS), max_size=8)
Event = tuple[list[tuple[int, int]], list[tuple[int, int]]]


def level_array(events: list[Event]) -> NDArray[np.void]:
    flat = [level for bids, asks in events for level in [*bids, *asks]]
    return np.array(flat, dtype=LEVEL)


@given(events=EVENTS)
def test_packed_diffs_have_the_bytes_of_single_ones(events: list[Event]) -> None:
    headers = new_headers(len(events), BookEventType.DIFF, BookMode.L2, venue_id=1, market_id=7)
    diffs = np.zeros(len(events), dtype=L2_DIFF)
    diffs["flags"] = 1
    diffs["bid_count"] = [len(bids) for bids, _ in events]
    diffs["ask_count"] = [len(asks) for _, asks in events]
    packed = pack_l2_diffs(headers, diffs, level_array(events))
    assert [bytes(record) for record in packed] == [l2_record(BookEventType.DIFF, *event) for event in events]
    assert [l2_event(bytes(record))[2:] for record in packed] == events


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
    assert [l2_event(bytes(record))[2:] for record in packed] == events


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
    parts = [l2_event(bytes(record)) for record in packed]
    assert [len(part.bids) for part in parts] == [65535, 65535, 18930]
    assert [len(part.asks) for part in parts] == [65535, 4465, 0]
    book = L2Book()
    book.apply_array(packed)
    assert (book.bid_count, book.ask_count, book.top()) == (bids, asks, (bids, 1, 10**6, 1))
    assert book.last_update_id == 9


def test_levels_that_do_not_match_the_counts_are_refused() -> None:
    headers = new_headers(1, BookEventType.DIFF, BookMode.L2)
    with pytest.raises(Corrupt, match="levels by their counts"):
        pack_l2_diffs(headers, np.zeros(1, dtype=L2_DIFF), np.zeros(1, dtype=LEVEL))


@pytest.mark.parametrize("keys", [[], [7], [3, 1, 3, 2, 1, 3]])
def test_each_key_comes_once_with_all_of_its_places_in_order(keys: list[int]) -> None:
    expected = {key: [place for place, one in enumerate(keys) if one == key] for key in sorted(keys)}
    found = [(key, places.tolist()) for key, places in by_key(np.array(keys, np.uint64))]
    assert found == list(expected.items())
