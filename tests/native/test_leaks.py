"""Native code frees what it allocates: the same calls again and again leave no more memory in use.

The leak check of AddressSanitizer reports what CPython itself leaves at the end of a process, so memory in
use is compared instead. Both allocators count it: that of the sanitizers (`make sanitize`) and that of glibc.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from everlog.errors import EverlogError
from everlog.market.books import L2Book, L3Book
from everlog.native.columns.frame_columns import FrameColumns
from everlog.native.market.events import CHOICE, UNSIGNED, RowParser
from everlog.native.topics.log import FrameBuffer, LogReplay, RecordBatch, Sources, TopicLog, scan_append
from everlog.topics import NewRecord
from tests.support.book_twins import l3_records
from tests.support.queues import open_reader, open_writer

ROUNDS = 300
# Half of the smallest allocation a round.
GROWTH_MAX_BYTES = 8 * ROUNDS
# Caches of Python and NumPy grow less and less; a leak never stops.
WINDOWS_MAX = 15


class MallInfo(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_bytes() -> int:
    """Bytes that the allocator of C has given out and not got back."""
    process = ctypes.CDLL(None)
    with suppress(AttributeError):
        count = process.__sanitizer_get_current_allocated_bytes
        count.restype = ctypes.c_size_t
        return int(count())
    process.mallinfo2.restype = MallInfo
    found = process.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def use_log() -> None:
    """Append, delete, find, render and copy records; take back a batch; replay the frames."""
    buffer, sources, log = FrameBuffer(), Sources(), TopicLog(1)
    source = sources.add(None)
    batch = RecordBatch([NewRecord(b"[1]", f"tag:{number}", "n", b"{}") for number in range(50)], None)
    log.append(buffer, source, 0, batch, 5, 0, None, False)
    log.append(buffer, source, 0, [NewRecord(memoryview(b"2"), "t")], 5, 0, None, False)
    log.pop(buffer, 0, 1)
    sources.set(source, buffer)
    log.find_tag(b"tag", True, 1000)
    log.render(sources, 0, 1000, 100, 0, (b"x",), True, True, True)
    data, index = FrameBuffer(), FrameBuffer()
    log.copy_to_segment(sources, 1, log.next_seq - 1, 0, data, index)
    loaded = TopicLog(1)
    loaded.load_index(1, index, source)
    loaded.load_frames(1, 50, data)
    log.kill_below(1000)
    log.drop_front(1000)
    replay = LogReplay(buffer, 0, source, {1: TopicLog(1)})
    assert replay.run() is None
    with suppress(EverlogError):
        RecordBatch([NewRecord(b"1", "t"), NewRecord(b"")], None)
    scan_append(b'{"records":[{"data":1,"tag":"t"}],"idempotency_key":"k"}', 100, 10)


def use_columns() -> None:
    """Records to columns, from parts and from a page."""
    columns = FrameColumns(0, 2**63, b"t", True)
    columns.add(1, 5, b"n", b"t", None, b"1")
    columns.pick_page(b'{"records":[{"$seq":1,"$ts":5,"$tag":"t","data":1}]}', 0, 9, 10)
    columns.text("data")
    columns.numbers()
    columns.clear()


def use_books() -> None:
    """Levels and orders set, shown and removed; rows of text parsed."""
    levels, orders = L2Book(), L3Book()
    for price in range(1, 2000, 100):
        levels.update(1, price, 5)
    levels.load_payload(levels.snapshot_payload())
    orders.apply_array(l3_records([(1, 1, number, 0, 0, number % 7 + 1, 3, 0) for number in range(1, 60)]))
    orders.load_payload(orders.snapshot_payload())
    parser = RowParser([(0, UNSIGNED, []), (1, CHOICE, [(b"buy", 1)])], 2)
    values, extras = [np.zeros(4, np.uint64) for _ in "ab"], [np.zeros(4, np.uint8) for _ in "ab"]
    parser.parse(b"1,buy\n2,sell\n", values, extras, np.zeros(4, np.uint32))


@pytest.mark.parametrize("use", [use_log, use_columns, use_books])
def test_memory_is_given_back(use: Callable[[], None]) -> None:
    assert_gives_back(use)


def test_a_reader_of_a_queue_gives_its_memory_back(tmp_path: Path) -> None:
    with open_writer(tmp_path / "q", retention=False) as writer:
        for _ in range(20):
            writer.append(1, b"x")

    def use() -> None:
        with open_reader(tmp_path / "q", None, "earliest") as reader:
            reader.read_batch()

    assert_gives_back(use)


def assert_gives_back(use: Callable[[], None]) -> None:
    growths = []
    for _ in range(WINDOWS_MAX):
        before = allocated_bytes()
        for _ in range(ROUNDS):
            use()
        gc.collect()
        growths.append(allocated_bytes() - before)
        if growths[-1] < GROWTH_MAX_BYTES:
            return
    raise AssertionError(f"{ROUNDS} rounds each leave this many bytes: {growths}")
