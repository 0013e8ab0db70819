"""Replays of several sources that begin at a time: each begins with its own set of snapshots, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.archive.snapshotter import Snapshotter
from everlog.market.book_set import BookSettings
from everlog.market.feature_choice import parse_features
from everlog.market.protocol import TypeId
from everlog.market.replay import FeatureReplay, Replay, ReplayStats
from everlog.market.snapshots import SnapshotPlanner
from everlog.market.venues.simulated import SimulatedVenue
from everlog.market.warm_start import begin, books_at
from everlog.queue import Queue

SECOND_NS = 1_000_000_000
Rows = list[tuple[object, ...]]


def take_snapshots(queue: Path) -> None:
    planner = SnapshotPlanner(min_records=100, min_interval_ns=0)
    with Snapshotter(queue, planner=planner) as snapshotter:
        while snapshotter.run_once():
            pass


@pytest.fixture
def queues(tmp_path: Path) -> list[Path]:
    """The books of two markets with sets of snapshots, and the trades of both, each in its own queue."""
    venue = SimulatedVenue(2, seed=5, rate=100, kinds=("l2", "trades"), block_events=200)
    with Queue.open_publisher(tmp_path / "all", segment_size=1 << 20) as writer:
        for block in venue.blocks(6000):
            block.append_to(writer)
    everything = Replay(str(tmp_path / "all"))
    markets = books_at([everything], 2**63, BookSettings())
    assert markets is not None and len(markets.books) == 2
    paths = []
    for market in sorted(markets.books):
        paths.append(tmp_path / f"book{market.market_id}")
        everything.types(TypeId.BOOK_EVENT).markets(market.market_id).to_queue(str(paths[-1]))
        take_snapshots(paths[-1])
    everything.types(TypeId.TRADE).to_queue(str(tmp_path / "trades"), segment_size=1 << 14)
    return [*paths, tmp_path / "trades"]


def span_of(queue: Path) -> tuple[int, int]:
    times = [time for some in Replay(str(queue)).batches() for time in some.timestamp_ns.tolist()]
    return min(times), max(times)


def features(queues: list[Path], start_ns: int = 0, end_ns: int = 2**63) -> FeatureReplay:
    replays = [Replay(str(path)).between(start_ns, end_ns) for path in queues]
    chosen = parse_features("seq,time,best,standard,trades")
    return replays[0].features(chosen).also(*replays[1:]).warm_up(SECOND_NS)


def rows_of(replay: FeatureReplay, stats: ReplayStats | None = None) -> dict[object, Rows]:
    rows: dict[object, Rows] = {}
    for one in replay.tables(stats):
        rows.setdefault(one.market, []).extend(one.rows.tolist())
    return rows


def in_range(rows: dict[object, Rows], start_ns: int, end_ns: int) -> dict[object, Rows]:
    return {
        market: [row for row in found if start_ns <= int(str(row[1])) < end_ns]
        for market, found in rows.items()
    }


def middle_of(queue: Path) -> tuple[int, int]:
    first_ns, last_ns = span_of(queue)
    return first_ns + (last_ns - first_ns) * 3 // 4, last_ns


def test_a_range_of_several_sources_begins_with_the_sets_of_all_and_has_the_rows_of_a_whole_replay(
    queues: list[Path],
) -> None:
    start_ns, end_ns = middle_of(queues[0])
    whole = ReplayStats()
    expected = in_range(rows_of(features(queues), whole), start_ns, end_ns)
    warm = ReplayStats()
    assert rows_of(features(queues, start_ns, end_ns), warm) == expected
    assert len(expected) == 2 and all(expected.values())
    assert warm.read < whole.read // 2, "each source began near the range"


def test_the_books_of_several_sources_at_a_time_are_those_of_all_messages_before_it(
    queues: list[Path],
) -> None:
    start_ns, _ = middle_of(queues[0])
    replays = [Replay(str(path)) for path in queues]
    begun = begin([one.between(start_ns, 2**63) for one in replays], BookSettings(), 0)
    assert [seq is not None for seq in begun.set_seqs] == [True, True, False]
    together = books_at(replays, start_ns, BookSettings())
    apart = [books_at([one], start_ns, BookSettings()) for one in replays[:2]]
    assert together is not None
    expected = {m: b.snapshot_payload() for one in apart if one is not None for m, b in one.books.items()}
    assert {m: b.snapshot_payload() for m, b in together.books.items()} == expected


def test_a_market_in_two_sources_lets_the_replay_begin_with_the_first_message(queues: list[Path]) -> None:
    start_ns, end_ns = middle_of(queues[0])
    replays = [Replay(str(queues[0])).between(start_ns, end_ns)] * 2
    assert begin(replays, BookSettings(), 0).set_seqs == (None, None)


def test_a_source_with_books_and_no_set_lets_all_sources_begin_with_their_first_message(
    queues: list[Path],
) -> None:
    start_ns, end_ns = middle_of(queues[0])
    Replay(str(queues[0])).to_queue(str(queues[0].parent / "copy"))
    without = [queues[0].parent / "copy", *queues[1:]]
    replays = [Replay(str(path)).between(start_ns, end_ns) for path in without]
    assert begin(replays, BookSettings(), 0).set_seqs == (None, None, None)
    assert rows_of(features(without, start_ns, end_ns)) == in_range(
        rows_of(features(queues)), start_ns, end_ns
    )


def test_trades_whose_beginning_is_gone_leave_the_books_of_other_sources_whole(queues: list[Path]) -> None:
    (queues[2] / "000000000.q").unlink()
    replays = [Replay(str(path)) for path in queues]
    assert replays[2].begins_in_middle() and len(replays[2].runs()) == 1
    begun = begin(replays, BookSettings(), 0).books
    for one in replays[:2]:
        # A market that does not begin with a snapshot has its book as well.
        for some in one.where(lambda some: some.seq > 0).batches():
            begun.apply_packed(some.packed)
    assert len(begun.books) == 2 and not begun.unanchored
