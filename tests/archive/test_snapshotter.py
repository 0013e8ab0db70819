"""The snapshotter: books as a replay makes them, resumed after kills, kept as retention says."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.archive.snapshotter import Snapshotter
from everlog.market.book_set import BookSet, BookSettings, Market
from everlog.market.protocol import TypeId
from everlog.market.snapshots import SnapshotPlanner, SnapshotRetention, SnapshotStore, join_late
from everlog.market.venues.simulated import SimulatedVenue
from everlog.queue import Queue
from tests.support.archives import snapshot_and_die
from tests.support.market_queues import MARKETS, write_market_queue
from tests.support.processes import Child


def hashes_at(queue: Path, last_seq: int) -> dict[Market, bytes]:
    """The book of every market after a record, by replaying all of them from the start."""
    books = BookSet(BookSettings())
    with Queue.open_subscriber(queue, None, "earliest") as reader:
        for message in reader:
            if message.seq <= last_seq and message.type_id == TypeId.BOOK_EVENT:
                books.apply(message.payload)
    return {market: book.snapshot_payload() for market, book in books.books.items()}


def check_all(queue: Path) -> int:
    """Hold every snapshot of a queue against a replay; return how many there are."""
    store, count = SnapshotStore(queue), 0
    for market in store.markets():
        for info in store.of_market(market):
            assert store.load(info).snapshot_payload() == hashes_at(queue, info.seq)[market], info.path
            count += 1
    return count


def run(queue: Path, records: int = 50, **options: object) -> int:
    planner = SnapshotPlanner(min_records=records, min_interval_ns=0)
    with Snapshotter(queue, planner=planner, **options) as snapshotter:  # type: ignore[arg-type]
        while snapshotter.run_once():
            pass
        return snapshotter.written


def test_snapshots_are_the_books_of_a_replay_and_late_joiners_use_them(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path))
    assert run(tmp_path, 100) > 3
    assert check_all(tmp_path) > 3
    market = Market(1, MARKETS[0])
    with Queue.open_subscriber(tmp_path, None, "earliest") as reader:
        book = join_late(SnapshotStore(tmp_path), reader, market)
    assert book is not None
    assert book.snapshot_payload() == hashes_at(tmp_path, 2**63)[market]


def test_l3_books_are_kept_too(tmp_path: Path) -> None:
    venue = SimulatedVenue(2, seed=3, kinds=("l3",), resting_orders=20, block_events=500)
    with Queue.open_publisher(tmp_path, segment_size=1 << 20) as writer:
        for block in venue.blocks(2000):
            block.append_to(writer)
    assert run(tmp_path, 500) >= 4
    assert check_all(tmp_path) >= 4


def test_a_snapshotter_killed_before_any_file_operation_goes_on_with_the_right_books(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "queue"))
    number, was_killed = 20, True
    while was_killed:
        with Child(snapshot_and_die, str(tmp_path / "queue"), number) as child:
            was_killed = child.wait_for_death() == -9
        number += 9
    assert check_all(tmp_path / "queue") > 10


def test_retention_keeps_so_many_and_one_market_can_be_chosen(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path))
    chosen = Market(1, MARKETS[1])
    run(tmp_path, 60, markets=[chosen], retention=SnapshotRetention(max_snapshots=2))
    store = SnapshotStore(tmp_path)
    assert store.markets() == [chosen]
    assert len(store.of_market(chosen)) == 2
    check_all(tmp_path)


def test_an_interval_or_bytes_make_snapshots_due_as_well(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path))
    with Snapshotter(tmp_path, planner=SnapshotPlanner(min_bytes=1, min_interval_ns=0)) as snapshotter:
        snapshotter.run_once()
        assert snapshotter.written == len(MARKETS)
    with Snapshotter(tmp_path, planner=SnapshotPlanner(), reader="other", start="earliest") as snapshotter:
        snapshotter.run_once()
        assert snapshotter.written == len(MARKETS)  # none before: due at once


def test_a_damaged_snapshot_is_passed_over_for_an_older_one(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path))
    run(tmp_path, 100)
    store = SnapshotStore(tmp_path)
    for market in store.markets():
        newest = Path(store.of_market(market)[-1].path)
        newest.write_bytes(newest.read_bytes()[:-1] + b"\xff")
    with pytest.raises(StopIteration), Snapshotter(tmp_path) as snapshotter:
        assert len(snapshotter._books.books) == len(MARKETS)
        raise StopIteration
