"""Snapshots beside a queue: format, choice, retention, late joiners and warm starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everlog.clock import TestClock
from everlog.errors import Corrupt, SnapshotGap, Unsupported, UnsupportedVersion
from everlog.market import (
    L2Book,
    L3Book,
    Market,
    SnapshotPlanner,
    SnapshotRetention,
    SnapshotStore,
    join_late,
    warm_start,
)
from everlog.market.protocol import BookEventType, TypeId
from everlog.queue import Queue, QueueReader, StartMode
from tests.support.book_twins import l2_record, l3_records

MARKET = Market(1, 7)
DIFF, SNAPSHOT = BookEventType.DIFF, BookEventType.SNAPSHOT


def small_book() -> L2Book:
    book = L2Book()
    book.apply(l2_record(SNAPSHOT, [(10, 1), (9, 2)], [(11, 3)], scales=(1, 0), times_ns=(50, 40)))
    return book


def events(count: int, first: int = 0) -> list[bytes]:
    return [
        l2_record(
            DIFF, [(100 + number % 7, number % 5)], [(200 + number % 3, number)], times_ns=(number, number)
        )
        for number in range(first, first + count)
    ]


def write_events(path: Path, records: list[bytes], segment_size: int = 1 << 20) -> None:
    with Queue.open_publisher(path, segment_size=segment_size) as writer:
        for record in records:
            writer.append(TypeId.BOOK_EVENT, record)
            writer.append(0x77, b"something else")


def anonymous(path: Path) -> QueueReader:
    return Queue.open_subscriber(path, None, StartMode.EARLIEST)


def test_a_snapshot_file_has_these_bytes(tmp_path: Path) -> None:
    info = SnapshotStore(tmp_path).write(small_book(), MARKET, 42, ingest_ts_start_ns=5)
    assert info.path == str(tmp_path / "snapshots/1/7/snapshot_42.bin")
    data = Path(info.path).read_bytes()
    assert data[:64].hex(" ", 8) == (
        "434852534e415031 0100800000000000 0100000007000000 2a00000000000000 "
        "0500000000000000 3200000000000000 0000000000000000 2800000000000000"
    )
    assert data[80:128].hex(" ", 8) == "3c00000000000000" + " 0000000000000000" * 5
    assert data[128:].hex(" ", 4).startswith("01000000 02000000 01000000 0a000000 00000000 01000000")
    assert (len(data), os.listdir(tmp_path / "snapshots/1/7")) == (128 + 12 + 3 * 16, ["snapshot_42.bin"])


def test_books_come_back_as_they_were(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    book = small_book()
    assert store.load(store.write(book, MARKET, 1)).book_hash() == book.book_hash()
    orders = L3Book()
    orders.apply_array(l3_records([(1, 1, order, 0, 0, 10, order, 0) for order in (3, 1, 2)]))
    loaded = store.load(store.write(orders, Market(2, 1), 1))
    assert isinstance(loaded, L3Book)
    assert (loaded.queue(1, 10), loaded.book_hash()) == ([3, 1, 2], orders.book_hash())
    with pytest.raises(Unsupported, match="L3"):
        store.load(store.of_market(Market(2, 1))[0], L2Book())


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [
        (0, 0, Corrupt),
        (8, 0, UnsupportedVersion),
        (8, 3, UnsupportedVersion),
        (10, 64, Corrupt),
        (12, 1, Unsupported),
        (64, 0x5A, Corrupt),
        (80, 1, Corrupt),
        (150, 0x5A, Corrupt),
    ],
)
def test_a_damaged_snapshot_is_refused(tmp_path: Path, at: int, value: int, error: type[Exception]) -> None:
    store = SnapshotStore(tmp_path)
    info = store.write(small_book(), MARKET, 1)
    data = bytearray(Path(info.path).read_bytes())
    data[at] = value
    Path(info.path).write_bytes(data)
    with pytest.raises(error):
        store.load(info)


def test_the_right_snapshot_is_chosen_by_seq_and_by_time(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    for seq, times in ((10, (100, 90)), (30, (300, 290)), (20, (200, 190))):
        book = L2Book()
        book.apply(l2_record(SNAPSHOT, [(seq, 1)], [], times_ns=times))
        store.write(book, MARKET, seq)
    by_seq = [store.newest_at_seq(MARKET, seq) for seq in (9, 10, 29, None)]
    assert [info and info.seq for info in by_seq] == [None, 10, 20, 30]
    by_time = [store.newest_at_time(MARKET, time) for time in (99, 100, 299)]
    assert [info and info.seq for info in by_time] == [None, 10, 20]
    exchange = store.newest_at_time(MARKET, 195, exchange=True)
    assert exchange is not None and exchange.seq == 20
    assert store.newest_at_seq(Market(9, 9)) is None


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (SnapshotRetention(), [1, 2, 3]),
        (SnapshotRetention(max_snapshots=2), [2, 3]),
        (SnapshotRetention(max_bytes=200), [3]),
        (SnapshotRetention(max_age_ns=1), [3]),
    ],
)
def test_retention_keeps_the_newest(tmp_path: Path, retention: SnapshotRetention, kept: list[int]) -> None:
    clock = TestClock(wall_ns=4 * 10**18)
    store = SnapshotStore(tmp_path, retention, clock=clock)
    for seq in (1, 2, 3):
        store.write(small_book(), MARKET, seq)
    assert [info.seq for info in store.of_market(MARKET)] == kept


def test_the_planner_waits_for_records_bytes_or_time() -> None:
    planner = SnapshotPlanner(min_records=3, min_bytes=100, min_interval_ns=10)
    assert planner.is_due(5)
    planner.taken(5)
    assert not planner.is_due(14)
    assert planner.is_due(15)
    for _ in range(2):
        planner.note(10)
    assert not planner.is_due(6)
    planner.note(10)
    assert planner.is_due(6)
    planner.taken(6)
    planner.note(100)
    assert planner.is_due(7)


def test_a_late_joiner_has_the_book_of_one_who_saw_everything(tmp_path: Path) -> None:
    records = events(40)
    write_events(tmp_path / "q", records)
    everything, half = L2Book(), L2Book()
    for number, record in enumerate(records):
        everything.apply(record)
        if number < 20:
            half.apply(record)
    store = SnapshotStore(tmp_path / "q")
    store.write(half, MARKET, 2 * 19)
    store.write(half, MARKET, 2 * 30)
    Path(store.of_market(MARKET)[-1].path).write_bytes(b"damaged")
    with anonymous(tmp_path / "q") as reader:
        joined = join_late(store, reader, MARKET)
        assert joined is not None and joined.book_hash() == everything.book_hash()
        assert reader.next() is None
        assert join_late(store, reader, Market(9, 9)) is None


def test_a_late_joiner_is_told_when_records_after_the_snapshot_are_gone(tmp_path: Path) -> None:
    write_events(tmp_path / "q", events(200), segment_size=4096)
    store = SnapshotStore(tmp_path / "q")
    store.write(L2Book(), MARKET, 3)
    segments = sorted(tmp_path.glob("q/*.q"))
    for segment in segments[: len(segments) // 2]:
        segment.unlink()
    with anonymous(tmp_path / "q") as reader, pytest.raises(SnapshotGap, match="snapshot_3"):
        join_late(store, reader, MARKET)


def test_a_warm_start_stops_before_the_first_event_at_the_time(tmp_path: Path) -> None:
    records = events(40)
    write_events(tmp_path / "q", records)
    store, book, expected = SnapshotStore(tmp_path / "q"), L2Book(), L2Book()
    with anonymous(tmp_path / "q") as reader:
        assert not warm_start(store, reader, MARKET, 25, book)
        for record in records[:11]:
            expected.apply(record)
        store.write(expected, MARKET, 2 * 10)
        for record in records[11:25]:
            expected.apply(record)
        assert warm_start(store, reader, MARKET, 25, book)
        assert book.book_hash() == expected.book_hash()
        following = reader.next()
        assert following is not None and bytes(following) == records[25]
        assert not warm_start(store, reader, MARKET, 10**9, book)
