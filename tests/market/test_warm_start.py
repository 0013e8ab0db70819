"""Replays that begin at a time: their books and features are those of a replay from the first message on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from everlog.archive.snapshotter import Snapshotter
from everlog.market.book_set import BookSet, BookSettings, Market
from everlog.market.books import GapPolicy
from everlog.market.feature_rows import standard_features
from everlog.market.protocol import BookEventType, TypeId
from everlog.market.replay import FeatureReplay, Replay, ReplayStats
from everlog.market.snapshots import SnapshotPlanner, SnapshotRetention, SnapshotStore
from everlog.market.triggers import Always, TimeBar
from everlog.market.venues.simulated import SimulatedVenue
from everlog.market.warm_start import SnapshotSets, begin, books_at
from everlog.queue import Queue
from tests.support.book_twins import l2_record
from tests.support.market_queues import MARKETS, SECOND_NS, START_NS, write_market_queue


def take_snapshots(queue: Path, records: int, **options: object) -> SnapshotSets:
    planner = SnapshotPlanner(min_records=records, min_interval_ns=0)
    with Snapshotter(queue, planner=planner, **options) as snapshotter:  # type: ignore[arg-type]
        while snapshotter.run_once():
            pass
    return SnapshotSets(SnapshotStore(queue))


@pytest.fixture(scope="module")
def levels_queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two L2 markets and trades, with sets of snapshots."""
    path = tmp_path_factory.mktemp("levels") / "queue"
    write_market_queue(str(path))
    assert len(take_snapshots(path, 50).seqs()) > 3
    return path


@pytest.fixture(scope="module")
def orders_queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four markets of single orders on one channel, with sets of snapshots."""
    path = tmp_path_factory.mktemp("orders") / "queue"
    venue = SimulatedVenue(4, seed=3, kinds=("l3",), resting_orders=20, block_events=300)
    with Queue.open_publisher(path, segment_size=1 << 20) as writer:
        for block in venue.blocks(4000):
            block.append_to(writer)
    assert len(take_snapshots(path, 400).seqs()) > 5
    return path


def rows_of(replay: FeatureReplay, stats: ReplayStats | None = None) -> dict[Market, list[tuple[float, ...]]]:
    rows: dict[Market, list[tuple[float, ...]]] = {}
    for one in replay.tables(stats):
        rows.setdefault(one.market, []).extend(one.rows.tolist())
    return rows


def times_of(queue: Path) -> np.ndarray:
    return np.concatenate([some.timestamp_ns.copy() for some in Replay(str(queue)).batches()])


@pytest.mark.parametrize(
    ("kind", "interval_ns"),
    [("levels", 0), ("levels", SECOND_NS), ("orders", 0), ("orders", SECOND_NS // 1000)],
)
def test_the_features_of_a_range_are_the_rows_of_a_whole_replay_that_lie_in_it(
    kind: str, interval_ns: int, request: pytest.FixtureRequest
) -> None:
    queue: Path = request.getfixturevalue(f"{kind}_queue")
    trigger = TimeBar(interval_ns) if interval_ns else Always()
    stats = ReplayStats()
    whole = rows_of(Replay(str(queue)).features(standard_features()).trigger(trigger), stats)
    times = times_of(queue)
    behind_a_set = SnapshotSets(SnapshotStore(queue)).seqs()[1] + 1  # no event of any market in between
    for place in (len(times) // 3, len(times) * 4 // 5, behind_a_set):
        start_ns, end_ns = int(times[place]), int(times[place + len(times) // 8])
        ranged = Replay(str(queue)).between(start_ns, end_ns).features(standard_features()).trigger(trigger)
        warm = ReplayStats()
        found = rows_of(ranged.warm_up(2 * interval_ns), warm)
        expected = {
            market: [row for row in rows if start_ns <= row[0] < end_ns] for market, rows in whole.items()
        }
        assert found == {market: rows for market, rows in expected.items() if rows}
        assert found and warm.read - warm.filtered < stats.read * 3 // 4  # it began with a set


@pytest.mark.parametrize("kind", ["levels", "orders"])
def test_the_books_at_a_time_are_those_of_a_replay_from_the_first_message(
    kind: str, request: pytest.FixtureRequest
) -> None:
    queue: Path = request.getfixturevalue(f"{kind}_queue")
    settings = BookSettings()
    times = times_of(queue)
    for place in range(len(times) // 7, len(times), len(times) // 7):
        at_ns = int(times[place])
        expected = BookSet(settings)
        for some in Replay(str(queue)).between(0, at_ns).types(TypeId.BOOK_EVENT).batches():
            expected.apply_packed(some.packed)
        books = books_at([Replay(str(queue))], at_ns, settings)
        assert books is not None
        assert {m: b.snapshot_payload() for m, b in books.books.items()} == {
            m: b.snapshot_payload() for m, b in expected.books.items()
        }
        one = books_at([Replay(str(queue)).markets(min(expected.books)[1])], at_ns, settings)
        assert one is not None
        market = min(expected.books)
        assert one.books[market].snapshot_payload() == expected.books[market].snapshot_payload()


def test_a_snapshotter_that_goes_on_keeps_writing_sets(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "queue"))
    with Queue.open_publisher(tmp_path / "queue") as writer:
        begun = take_snapshots(tmp_path / "queue", 100).seqs()
        payload = l2_record(BookEventType.DIFF, [(9900, 1)], [], scales=(2, 0), market=(1, 8))
        writer.append(TypeId.BOOK_EVENT, payload, START_NS + 90 * SECOND_NS)  # a market without a snapshot
    sets = take_snapshots(tmp_path / "queue", 80)
    assert sets.seqs() == [*begun, 442]
    assert sets.snapshots(sets.seqs()[-1]).keys() == {Market(1, 7), Market(1, 8), Market(1, 9)}
    late = take_snapshots(tmp_path / "queue", 1, reader="late", start="latest")
    assert late.seqs() == sets.seqs(), "one that has not seen everything writes none"


def test_retention_of_snapshots_takes_their_sets_along(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path))
    sets = take_snapshots(tmp_path, 40, retention=SnapshotRetention(max_snapshots=2))
    store = SnapshotStore(tmp_path)
    assert 1 <= len(sets.seqs()) <= 2
    for seq in sets.seqs():
        assert all(store.has(market, number) for market, number in sets.snapshots(seq).items())


def test_a_damaged_set_is_passed_over_and_without_any_the_replay_begins_at_the_start(
    levels_queue: Path, tmp_path: Path
) -> None:
    shutil.copytree(levels_queue, tmp_path / "queue")
    sets = SnapshotSets(SnapshotStore(tmp_path / "queue"))
    replay = Replay(str(tmp_path / "queue")).between(START_NS + 10 * SECOND_NS, START_NS + 20 * SECOND_NS)
    newest = begin([replay], BookSettings(), 0).set_seqs[0]
    assert newest is not None
    Path(sets._path(newest)).write_bytes(b"damaged")
    older = begin([replay], BookSettings(), 0).set_seqs[0]
    assert older is not None and older < newest
    for seq in sets.seqs():
        Path(sets._path(seq)).unlink()
    assert begin([replay], BookSettings(), 0).set_seqs[0] is None


@pytest.mark.parametrize(
    "changed",
    [
        lambda replay: replay.every(2),
        lambda replay: replay.where(lambda some: some.seq > 5),
        lambda replay: replay.types(TypeId.TRADE),
    ],
)
def test_filters_that_leave_out_book_events_do_not_begin_with_a_set(
    levels_queue: Path, changed: Callable[[Replay], Replay]
) -> None:
    replay = Replay(str(levels_queue)).between(START_NS + 10 * SECOND_NS, START_NS + 20 * SECOND_NS)
    assert begin([replay], BookSettings(), 0).set_seqs[0] is not None
    assert begin([changed(replay)], BookSettings(), 0).set_seqs[0] is None


def test_a_book_behind_a_gap_is_not_taken_where_gaps_are_ignored(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path) as writer:
        for number, last_id in enumerate((1, 2, 9, 10)):
            ids = (last_id, last_id, last_id - 1)
            times = (START_NS + number * SECOND_NS,) * 2
            payload = l2_record(BookEventType.DIFF, [(100 + number, 5)], [], ids=ids, times_ns=times)
            writer.append(TypeId.BOOK_EVENT, payload, times[0])
    take_snapshots(tmp_path, 1)
    replay = Replay(str(tmp_path)).between(START_NS + 3 * SECOND_NS, START_NS + 9 * SECOND_NS)
    quarantining = BookSettings(gap_policy=GapPolicy.QUARANTINE)
    assert begin([replay], quarantining, 0).set_seqs[0] == 2
    assert begin([replay], BookSettings(gap_policy=GapPolicy.IGNORE), 0).set_seqs[0] == 1


def test_books_of_a_queue_whose_beginning_is_gone_are_unknown_without_a_set(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "queue"))
    take_snapshots(tmp_path / "queue", 50)
    at_ns = START_NS + 19 * SECOND_NS
    whole = books_at([Replay(str(tmp_path / "queue"))], at_ns, BookSettings())
    (tmp_path / "queue" / "000000000.q").unlink()
    warm = books_at([Replay(str(tmp_path / "queue"))], at_ns, BookSettings())
    assert whole is not None and warm is not None
    assert {m: b.snapshot_payload() for m, b in warm.books.items()} == {
        m: b.snapshot_payload() for m, b in whole.books.items()
    }
    assert {market[1] for market in warm.books} == set(MARKETS)
    shutil.rmtree(tmp_path / "queue" / "snapshots")
    assert books_at([Replay(str(tmp_path / "queue"))], at_ns, BookSettings()) is None
