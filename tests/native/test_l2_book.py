"""The native L2 book against a plain one: whatever the prices, the same levels and the same top."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.errors import BookGap, Corrupt, InvalidConfig, LimitReached, Unsupported, UnsupportedVersion
from everlog.market.book_results import L2_UPDATE, EventStatus, Outputs
from everlog.market.books import L2Book
from everlog.market.packing import PackedRecords
from everlog.market.protocol import BookEventType
from tests.support.book_twins import L2Twin, l2_record
from tests.support.effort import effort

I64_MIN, I64_MAX = -(2**63), 2**63 - 1
Update = tuple[int, int, int]

# Prices near each other, on a coarse tick, far away, at both ends of the number range, and anything.
PRICES = st.one_of(
    st.integers(1000, 1100),
    st.integers(0, 40).map(lambda step: 5_000_000_000 + 250_000_000 * step),
    st.integers(-5, 5),
    st.integers(I64_MAX - 5, I64_MAX),
    st.integers(I64_MIN, I64_MIN + 5),
    st.integers(I64_MIN, I64_MAX),
)
UPDATES = st.lists(
    st.tuples(st.integers(1, 2), PRICES, st.one_of(st.just(0), st.integers(1, 100))), max_size=150
)


def as_array(updates: list[Update]) -> NDArray[np.void]:
    array = np.zeros(len(updates), dtype=L2_UPDATE)
    for name, place in (("side", 0), ("price", 1), ("size", 2)):
        array[name] = np.array([update[place] for update in updates], dtype=array.dtype[name])
    return array


def levels_of(array: NDArray[np.void]) -> list[tuple[int, int]]:
    return list(zip(array["price"].tolist(), array["size"].tolist(), strict=True))


def assert_equal_books(book: L2Book, twin: L2Twin) -> None:
    assert levels_of(book.bids()) == twin.levels(1)
    assert levels_of(book.asks()) == twin.levels(2)
    assert book.top() == twin.top()
    assert (book.bid_count, book.ask_count) == (len(twin.sides[0]), len(twin.sides[1]))


@given(updates=UPDATES, window=st.sampled_from([1, 4096, 1 << 24]))
def test_any_updates_at_any_prices_leave_the_levels_of_the_plain_book(
    updates: list[Update], window: int
) -> None:
    book, twin = L2Book(max_window_ticks=window), L2Twin()
    for update in updates:
        twin.update(*update)
        assert book.update_and_top(*update) == twin.top() == book.top()
    assert_equal_books(book, twin)


@given(updates=UPDATES, every=st.integers(1, 5), depth=st.integers(0, 4))
def test_an_array_gives_the_rows_that_single_calls_would(
    updates: list[Update], every: int, depth: int
) -> None:
    result = L2Book().apply_array(as_array(updates), Outputs(every=every, depth=depth))
    twin, tops, bids = L2Twin(), [], []
    for number, update in enumerate(updates, start=1):
        twin.update(*update)
        if number % every == 0:
            tops.append(twin.top())
            bids.append((twin.levels(1) + [(0, 0)] * depth)[:depth])
    assert result.top is not None
    assert result.top.tolist() == tops
    if depth:
        assert result.bids is not None
        assert result.bids.tolist() == bids


@pytest.mark.parametrize("middle", [10**17, 0, -(10**17)])
@pytest.mark.parametrize(("spread", "step"), [(50, 1), (3_000, 25), (400_000, 1), (2**40, 1), (2**30, 10**9)])
def test_long_random_walks_over_any_range_agree_with_the_plain_book(
    middle: int, spread: int, step: int
) -> None:
    random = np.random.default_rng(spread)
    count = 20_000
    middles = middle + np.cumsum(random.integers(-3, 4, count)) * step
    array = np.zeros(count, dtype=L2_UPDATE)
    array["side"] = random.integers(1, 3, count)
    array["price"] = middles + random.integers(-spread, spread, count) * step
    array["size"] = random.integers(0, 3, count)
    for window in (2048, 1 << 24):
        book, twin = L2Book(max_window_ticks=window), L2Twin()
        result = book.apply_array(array, Outputs(every=100))
        tops = []
        for number, update in enumerate(array, start=1):
            twin.update(int(update["side"]), int(update["price"]), int(update["size"]))
            if number % 100 == 0:
                tops.append(twin.top())
        assert result.top is not None
        assert result.top.tolist() == tops
        assert_equal_books(book, twin)


def test_removing_everything_gives_an_empty_book_that_can_be_filled_again() -> None:
    book = L2Book()
    for price in range(5000, 0, -1):
        book.update(1, price * 1000, 1)
    for price in range(5000, 0, -1):
        book.update(1, price * 1000, 0)
    assert (book.bid_count, book.best_bid) == (0, None)
    book.update(1, 7, 3)
    assert book.best_bid == (7, 3)


def test_more_levels_than_allowed_are_refused_and_name_the_limit() -> None:
    book = L2Book(max_levels=2)
    book.update(1, 1, 1)
    book.update(1, -(2**63), 1)
    with pytest.raises(LimitReached, match="max_levels") as caught:
        book.update(1, 2, 1)
    assert caught.value.maximum == 2
    book.update(1, 1, 5)
    assert (book.size_at(1, 1), book.bid_count) == (5, 2)


def test_an_unknown_side_stops_the_array_at_its_index() -> None:
    array = as_array([(1, 5, 5), (2, 9, 1), (1, 6, 5)])
    array["side"][2] = 3
    book = L2Book()
    with pytest.raises(Corrupt, match="event 2"):
        book.apply_array(array)
    assert book.top() == (5, 5, 9, 1)


def packed(*records: bytes) -> PackedRecords:
    lengths = np.array([len(record) for record in records], dtype=np.uint64)
    ends = np.cumsum(lengths, dtype=np.uint64)
    return PackedRecords(np.frombuffer(b"".join(records), dtype=np.uint8), ends - lengths, lengths)


DIFF, SNAPSHOT = BookEventType.DIFF, BookEventType.SNAPSHOT


def test_a_snapshot_replaces_both_sides_and_ignores_sizes_of_zero() -> None:
    book = L2Book()
    book.update(1, 1, 1)
    book.apply(l2_record(SNAPSHOT, [(10, 1), (9, 0)], [(11, 4)]))
    assert (levels_of(book.bids()), levels_of(book.asks())) == ([(10, 1)], [(11, 4)])


def test_a_reset_clears_and_a_heartbeat_does_nothing() -> None:
    book = L2Book()
    book.apply(l2_record(SNAPSHOT, [(10, 1)], [(11, 4)]))
    book.apply(l2_record(BookEventType.HEARTBEAT, [], []))
    assert book.top() == (10, 1, 11, 4)
    book.apply(l2_record(BookEventType.RESET, [], []))
    assert book.top() == (0, 0, 0, 0)


@given(scales=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=6))
def test_a_change_of_scale_keeps_the_value_of_every_level(scales: list[tuple[int, int]]) -> None:
    book, values = L2Book(), {}
    for number, (price_scale, size_scale) in enumerate(scales, start=1):
        price, size = (100 + number) * (-1) ** number, 3
        book.apply(l2_record(DIFF, [(price, size)], [], scales=(price_scale, size_scale)))
        values[price * 10 ** (18 - price_scale)] = size * 10 ** (18 - size_scale)
    found = {
        price * 10 ** (18 - book.price_scale): size * 10 ** (18 - book.size_scale)
        for price, size in levels_of(book.bids())
    }
    assert found == values


def test_rows_before_a_rise_of_scale_are_brought_to_the_new_one() -> None:
    result = L2Book().apply_array(
        packed(
            l2_record(DIFF, [(15, 2)], [], scales=(1, 0)),
            l2_record(DIFF, [], [(1601, 30)], scales=(3, 1)),
        )
    )
    assert result.top is not None
    assert (result.price_scale, result.size_scale) == (3, 1)
    assert result.top.tolist() == [(1500, 20, 0, 0), (1500, 20, 1601, 30)]


@pytest.mark.parametrize("price", [2**60, -(2**60)])
def test_a_scale_at_which_a_level_needs_more_than_64_bits_is_refused(price: int) -> None:
    book = L2Book()
    book.apply(l2_record(DIFF, [(price, 1)], []))
    with pytest.raises(Unsupported, match="64 bits"):
        book.apply(l2_record(DIFF, [(1, 1)], [], scales=(10, 0)))
    assert book.top() == (price, 1, 0, 0)


def numbered(first: int, last: int, previous: int) -> bytes:
    return l2_record(DIFF, [(last, 1)], [], ids=(first, last, previous))


def test_a_gap_under_panic_stops_with_both_numbers() -> None:
    book = L2Book()
    with pytest.raises(BookGap) as caught:
        book.apply_array(packed(numbered(1, 3, 0), numbered(5, 6, 4)))
    assert (caught.value.seen, caught.value.found) == (3, 5)
    assert levels_of(book.bids()) == [(3, 1)]


def test_a_gap_under_quarantine_skips_diffs_until_the_next_snapshot() -> None:
    book = L2Book(gap_policy="quarantine")
    result = book.apply_array(
        packed(
            numbered(1, 3, 0),
            numbered(5, 6, 4),
            numbered(7, 7, 6),
            l2_record(SNAPSHOT, [(50, 5)], [], native_seq=8),
            numbered(9, 9, 8),
        ),
        Outputs(statuses=True),
    )
    assert result.statuses is not None
    assert result.statuses.tolist() == [0, EventStatus.QUARANTINED, EventStatus.QUARANTINED, 0, 0]
    assert [(row["index"], row["seen"], row["found"]) for row in result.gaps] == [(1, 3, 5)]
    assert levels_of(book.bids()) == [(50, 5), (9, 1)]


def test_a_gap_under_ignore_is_applied_and_listed() -> None:
    book = L2Book(gap_policy="ignore")
    result = book.apply_array(packed(numbered(1, 3, 0), numbered(5, 6, 4)))
    assert (len(result.gaps), book.bid_count) == (1, 2)


@pytest.mark.parametrize("ids", [(4, 9, 3), (4, 4, 0), (2, 4, 1), (9, 9, 3)])
def test_ids_that_follow_by_range_or_by_the_id_before_are_no_gap(ids: tuple[int, int, int]) -> None:
    result = L2Book().apply_array(packed(numbered(1, 3, 0), l2_record(DIFF, [], [], ids=ids)))
    assert len(result.gaps) == 0


def test_diffs_older_than_the_snapshot_before_them_are_passed_over() -> None:
    book = L2Book()
    statuses = [
        book.apply(record)
        for record in (
            l2_record(SNAPSHOT, [(50, 5)], [], native_seq=100),
            numbered(90, 95, 89),
            numbered(96, 103, 95),
        )
    ]
    assert statuses == [0, EventStatus.STALE, 0]


def test_drift_counts_what_the_snapshot_corrects() -> None:
    book = L2Book()
    book.apply(l2_record(SNAPSHOT, [(0, 1), (-1, 1), (-5, 1)], [(1, 4)]))
    result = book.apply_array(
        packed(l2_record(SNAPSHOT, [(0, 2), (-2, 1)], [(1, 4), (2, 4)])), Outputs(drift=True)
    )
    # -2 and 2 were missing, -1 is extra (-5 lies below what the snapshot covers), 0 has another size.
    assert result.drifts[["index", "missing", "extra", "changed"]].tolist() == [(0, 2, 1, 1)]


def damaged(at: int, value: int) -> bytes:
    record = bytearray(l2_record(DIFF, [(1, 1)], []))
    record[at] = value
    return bytes(record)


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (damaged(0, 2), UnsupportedVersion),
        (damaged(4, 111), Corrupt),
        (damaged(8, 1), Unsupported),
        (damaged(56, 9), Corrupt),
        (damaged(57, 1), Unsupported),
        (damaged(57, 2), Unsupported),
        (damaged(64 + 24, 19), Unsupported),
        (damaged(64 + 28, 2), Corrupt),
        (l2_record(DIFF, [(1, 1)], [], flags=2), Unsupported),
        (b"short", Corrupt),
    ],
)
def test_an_event_that_breaks_the_protocol_is_refused_and_changes_nothing(
    record: bytes, error: type[Exception]
) -> None:
    book = L2Book()
    book.update(1, 3, 3)
    with pytest.raises(error):
        book.apply(record)
    assert book.top() == (3, 3, 0, 0)


@given(updates=UPDATES)
@settings(max_examples=effort(30))
def test_a_book_loaded_from_its_snapshot_is_equal(updates: list[Update]) -> None:
    book, copy = L2Book(), L2Book()
    book.apply_array(as_array(updates))
    copy.load_payload(book.snapshot_payload())
    assert copy.book_hash() == book.book_hash()
    assert copy.bids().tolist() == book.bids().tolist()


def test_other_threads_run_while_an_array_is_applied() -> None:
    array = as_array([(1 + number % 2, 1000 + number % 97, 1 + number % 3) for number in range(300_000)])
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(L2Book().apply_array(array).count))
    thread.start()
    own = L2Book().apply_array(array)
    thread.join()
    assert seen == [own.count]


@pytest.mark.parametrize("side", [0, 3])
def test_a_side_that_is_none_is_refused_with_an_error_of_ours(side: int) -> None:
    book = L2Book()
    for call in (book.update, book.update_and_top):
        with pytest.raises(InvalidConfig, match=f"side is 1 .buy. or 2 .sell., not {side}"):
            call(side, 1, 1)
    assert book.top() == (0, 0, 0, 0)


@given(updates=UPDATES, count=st.sampled_from([0, 1, 10, 200]))
@settings(max_examples=effort(100))
def test_the_best_levels_as_bytes_are_those_of_depth(updates: list[Update], count: int) -> None:
    book = L2Book()
    for update in updates:
        book.update(*update)
    assert book.best_packed(count) == tuple(side.tobytes() for side in book.depth(count))
