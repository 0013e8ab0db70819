"""Memory for results: reused once it is not referenced, never before."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market import BookSet, L2Book, L3Book, Outputs, PackedRecords, ResultMemory
from everlog.market.book_results import L2_UPDATE, TOP, BookResult
from everlog.market.protocol import L3EventType
from everlog.market.result_memory import MAX_BLOCKS, SMALLEST_BLOCK_BYTES, aligned_array
from tests.support.book_twins import l3_records
from tests.support.effort import effort

ADD, CANCEL = int(L3EventType.ORDER_ADD), int(L3EventType.ORDER_CANCEL)
LARGE = SMALLEST_BLOCK_BYTES // TOP.itemsize
ALL = Outputs(depth=2, statuses=True, places=True, trades=True)


def updates(count: int, price: int) -> NDArray[np.void]:
    rows = np.zeros(count, dtype=L2_UPDATE)
    rows["price"], rows["size"], rows["side"] = price, np.arange(1, count + 1), 1
    return rows


def arrays(result: BookResult) -> dict[str, NDArray[np.generic]]:
    names = ("top", "bids", "asks", "bid_orders", "ask_orders", "statuses", "places")
    return {name: array for name in names if (array := getattr(result, name)) is not None}


def address(array: NDArray[np.generic] | None) -> int:
    assert array is not None
    return array.ctypes.data


@given(
    batches=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3)), min_size=1, max_size=6),
    max_blocks=st.integers(1, 9),
)
@settings(max_examples=effort(25), deadline=None)
def test_results_are_those_of_new_memory_however_long_they_are_kept(
    batches: list[tuple[int, int]], max_blocks: int
) -> None:
    memory = ResultMemory(max_blocks)
    book, other = L3Book(unknown_orders="skip"), L3Book(unknown_orders="skip")
    kept: list[tuple[BookResult, BookResult]] = []
    for count, forgotten in batches:
        numbers = np.random.default_rng(count).integers(1, 50, count).tolist()
        rows = [(ADD if order % 3 else CANCEL, 1, order, 0, 0, 9, order, 0) for order in numbers]
        # 48 times the same events: large enough for blocks without many rows of Python to make.
        records = np.tile(l3_records(rows), 48 if count > 1500 else 1)
        records["header"]["seq"] = 0
        kept.append((book.apply_array(records, ALL, memory), other.apply_array(records, ALL)))
        del kept[: len(kept) if forgotten == 3 else forgotten]
        for reused, fresh in kept:
            ours, theirs = arrays(reused), arrays(fresh)
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert book.book_hash() == other.book_hash()


def test_memory_of_a_result_that_is_not_referenced_is_reused() -> None:
    memory, book = ResultMemory(), L2Book()
    first = address(book.apply_array(updates(LARGE, 5), memory=memory).top)
    assert address(book.apply_array(updates(LARGE, 6), memory=memory).top) == first
    assert memory.kept_bytes < 2 * SMALLEST_BLOCK_BYTES


@pytest.mark.parametrize("part", [slice(3, 5), slice(0, 0), slice(None)])
def test_a_part_of_an_array_holds_its_memory(part: slice) -> None:
    memory, book = ResultMemory(), L2Book()
    top = book.apply_array(updates(LARGE, 5), memory=memory).top
    assert top is not None
    first, held = address(top), top[part]["bid_price"]
    del top
    assert address(book.apply_array(updates(LARGE, 6), memory=memory).top) != first
    assert (held == 5).all()


def test_the_raw_bytes_of_an_array_hold_its_memory() -> None:
    memory = ResultMemory()
    array = memory.array(SMALLEST_BLOCK_BYTES, np.dtype(np.uint8))
    array.fill(7)
    raw = memoryview(array)
    del array
    memory.array(SMALLEST_BLOCK_BYTES, np.dtype(np.uint8)).fill(8)
    assert raw[0] == raw[-1] == 7


def test_no_more_blocks_are_kept_than_allowed() -> None:
    memory = ResultMemory(2)
    held = [memory.array(SMALLEST_BLOCK_BYTES, np.dtype(np.uint8)) for _ in range(5)]
    assert len({address(array) for array in held}) == 5
    assert memory.kept_bytes < 3 * SMALLEST_BLOCK_BYTES
    del held
    memory.array(9 * SMALLEST_BLOCK_BYTES, np.dtype(np.uint8))
    assert 10 * SMALLEST_BLOCK_BYTES < memory.kept_bytes < 11 * SMALLEST_BLOCK_BYTES
    memory.release()
    assert memory.kept_bytes == 0


def test_small_arrays_and_far_larger_blocks_are_left_alone() -> None:
    memory = ResultMemory()
    memory.array(16 * SMALLEST_BLOCK_BYTES, np.dtype(np.uint8))
    before = memory.kept_bytes
    memory.array(100, np.dtype(np.uint8))
    assert memory.kept_bytes == before
    memory.array(SMALLEST_BLOCK_BYTES, np.dtype(np.uint8))
    assert memory.kept_bytes > before


def test_large_arrays_begin_on_a_line_of_cache() -> None:
    memory = ResultMemory()
    for count in (LARGE, LARGE + 1, 3 * LARGE):
        assert address(memory.array(count, TOP)) % 64 == 0
        assert address(aligned_array(count, TOP)) % 64 == 0


def test_threads_that_share_a_memory_get_no_array_twice() -> None:
    memory, wrong = ResultMemory(MAX_BLOCKS), threading.Event()

    def fill(number: int) -> None:
        for _ in range(200):
            array = memory.array(SMALLEST_BLOCK_BYTES, np.dtype(np.uint8))
            array.fill(number)
            if not (array == number).all():
                wrong.set()

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong.is_set()


def test_the_books_of_a_set_share_one_memory() -> None:
    memory, books, plain = ResultMemory(), BookSet(), BookSet()
    records = l3_records([(ADD, 1, order, 0, 0, order % 9 + 1, 2, 0) for order in range(1, 2 * LARGE + 1)])
    records["header"]["market_id"] = np.arange(len(records)) % 2
    packed = PackedRecords(
        records.view(np.uint8).reshape(-1),
        np.arange(len(records), dtype=np.uint64) * np.uint64(128),
        np.full(len(records), 128, dtype=np.uint64),
    )
    ours, theirs = books.apply_packed(packed, ALL, memory), plain.apply_packed(packed, ALL)
    assert memory.kept_bytes > 0
    for market, (_, result) in ours.items():
        other = arrays(theirs[market].result)
        assert all(np.array_equal(array, other[name]) for name, array in arrays(result).items())


def test_a_memory_without_blocks_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="max_blocks is 0"):
        ResultMemory(0)
