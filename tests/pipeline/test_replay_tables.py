"""What a replay writes, without Spark: all tasks together give the rows of one machine."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import BookGap, Corrupt, DataLost, InvalidConfig
from everlog.market import BookSet, BookSettings, Outputs
from everlog.market.protocol import BookEventType, TypeId
from everlog.market.replay import Replay
from everlog.pipeline import queue_ranges
from everlog.pipeline.jobs import time_spans
from everlog.pipeline.jobs.market_tasks import TaskFilter, task_messages
from everlog.pipeline.jobs.replay import DEPTH, REPORT, TOP, BookTables, ReplayPlan
from everlog.pipeline.jobs.time_spans import Spans
from everlog.queue import Queue
from everlog.seq_ranges import SeqRange
from tests.support.book_twins import l2_record, l3_records
from tests.support.effort import effort
from tests.support.market_queues import MARKETS, SECOND_NS, START_NS, write_market_queue

NAMES = {kind: kind for kind in (TOP, DEPTH, REPORT)}
PATIENT = ReplayPlan(BookSettings(gap_policy="quarantine"))


def replayed(
    path: str, tasks: int, plan: ReplayPlan, cuts: tuple[int, ...] = (), *, ahead: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tasks by table, in the order of seqs; at the cuts books are saved and loaded.

    If they come from `ahead`, they are those of a pass that writes no rows.
    """
    held = queue_ranges.bounds(path)
    bounds = sorted({held.first, held.end, *(cut for cut in cuts if held.first < cut < held.end)})
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in NAMES}
    for number in range(tasks):
        state: bytes | None = None
        for first, end in itertools.pairwise(bounds):
            books = BookTables(plan, NAMES, state)
            for rows in books.replay(path, SeqRange(first, end), TaskFilter(tasks, number)):
                found[rows.table] += rows.batch.to_pylist()
            if ahead:
                books = BookTables(plan, NAMES, state)
                books.advance(path, SeqRange(first, end), TaskFilter(tasks, number))
            state = books.state()
    return {
        kind: sorted(rows, key=lambda row: (row["seq"], row.get("kind", ""))) for kind, rows in found.items()
    }


def written(path: Path, payloads: list[bytes]) -> str:
    """Write book events, a second apart."""
    with Queue.open_publisher(str(path), segment_size=1 << 14) as writer:
        for number, payload in enumerate(payloads):
            writer.append(TypeId.BOOK_EVENT, payload, START_NS + number * SECOND_NS)
    return str(path)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A queue of two markets."""
    path = str(tmp_path_factory.mktemp("tables") / "queue")
    write_market_queue(path)
    return path


def test_tops_and_depth_are_those_of_one_set_of_books(queue: str) -> None:
    books, tops, bids = BookSet(), {}, {}
    for some in Replay(queue).types(TypeId.BOOK_EVENT).batches():
        for events, result in books.apply_packed(some.packed, Outputs(depth=10)).values():
            assert result.top is not None and result.bids is not None
            tops.update(zip(some.seq[events].tolist(), result.top.tolist(), strict=True))
            bids.update(zip(some.seq[events].tolist(), result.bids.tolist(), strict=True))
    found = replayed(queue, 3, ReplayPlan())
    names = ("bid_price", "bid_size", "ask_price", "ask_size")
    assert {row["seq"]: tuple(row[name] for name in names) for row in found[TOP]} == tops
    seen: set[tuple[int, int]] = set()
    for row in found[DEPTH]:
        assert [(level["price"], level["size"]) for level in row["bids"]] == [
            one for one in bids[row["seq"]] if one[1]
        ]
        seen.add((row["market_id"], row["ts_ns"] // SECOND_NS))
    assert len(seen) == len(found[DEPTH]), "one row for each market and second"
    assert {market for market, _ in seen} == set(MARKETS)
    assert found[REPORT] == []


@settings(max_examples=effort(20))
@given(st.integers(1, 4), st.lists(st.integers(0, 450), max_size=4), st.booleans())
def test_books_that_are_kept_between_batches_write_what_one_run_does(
    queue: str, tasks: int, cuts: list[int], ahead: bool
) -> None:
    assert replayed(queue, tasks, ReplayPlan(), tuple(cuts), ahead=ahead) == replayed(queue, 1, ReplayPlan())


@pytest.mark.parametrize("ahead", [False, True])
def test_books_that_are_kept_still_wait_for_the_whole_book_of_a_market(tmp_path: Path, ahead: bool) -> None:
    whole = l2_record(BookEventType.SNAPSHOT, [(5, 4)], [(9, 1)])
    diff = l2_record(BookEventType.DIFF, [(6, 9)], [])
    path = written(tmp_path / "queue", [whole, *([diff] * 300), whole, diff])
    os.unlink(min((tmp_path / "queue").glob("*.q")))
    first, end = queue_ranges.bounds(path)
    assert 0 < first < end - 10
    found = replayed(path, 1, ReplayPlan(), (first + 1, end - 5, end - 1), ahead=ahead)
    assert [(row["seq"], row["bid_size"]) for row in found[TOP]] == [(end - 2, 4), (end - 1, 9)]
    assert found == replayed(path, 1, ReplayPlan())


def test_spans_are_for_queues_of_which_one_market_has_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spans_of(name: str, markets: list[int], tasks: int, parts: int | None = None) -> Spans:
        path = tmp_path / name
        if not path.exists():
            written(path, [l2_record(BookEventType.DIFF, [], [], market=(1, one)) for one in markets])
        return Spans.of(str(path), queue_ranges.bounds(str(path)), tasks, parts)

    hot, even = [*([7] * 19), 8] * 50, [*range(40)] * 25
    assert spans_of("hot", hot, 8).parts == 1, "too few messages to be worth while"
    monkeypatch.setattr(time_spans, "MESSAGES_MIN", 1000)
    assert [spans_of("hot", hot, tasks).parts for tasks in (1, 2, 8)] == [1, 2, 8]
    assert [spans_of("even", even, tasks).parts for tasks in (1, 2, 8)] == [1, 1, 1]
    assert spans_of("even", even, 2, 3)[1:] == (3, 1)
    cut = spans_of("hot", hot, 6, 3)
    assert (cut.parts, cut.groups) == (3, 2)
    ranges = [SeqRange(0, 333), SeqRange(333, 666), SeqRange(666, 1000)]
    assert [cut.of_task(number) for number in range(6)] == [
        (one, group) for one in ranges for group in (0, 1)
    ]
    assert spans_of("none", [], 4, 3).ranges() == [SeqRange(0, 0)]


def levels(number: int, size: int) -> bytes:
    """A diff that follows the one before it."""
    return l2_record(BookEventType.DIFF, [(5, size)], [(9, 1)], ids=(number, number, number - 1))


def test_the_report_has_every_gap_and_every_drift(tmp_path: Path) -> None:
    whole = l2_record(BookEventType.SNAPSHOT, [(5, 4), (4, 1)], [(9, 1)], native_seq=9)
    path = written(
        tmp_path / "queue", [levels(1, 2), levels(2, 3), whole, levels(12, 5), whole, levels(10, 6)]
    )
    rows = replayed(path, 2, PATIENT)[REPORT]
    assert [(row["kind"], row["seq"]) for row in rows] == [("drift", 2), ("gap", 3)]
    assert [rows[0][name] for name in ("missing", "extra", "changed")] == [1, 0, 1]
    assert [rows[1][name] for name in ("seen", "found", "market_id")] == [9, 12, 7]
    assert rows[0]["ts_ns"] == START_NS + 2 * SECOND_NS
    with pytest.raises(BookGap):
        replayed(path, 2, ReplayPlan())


def test_a_book_in_quarantine_has_no_rows(tmp_path: Path) -> None:
    whole = l2_record(BookEventType.SNAPSHOT, [(5, 4), (4, 1)], [(9, 1)], native_seq=9)
    missing = [levels(12, 5), levels(13, 5)]
    payloads = [whole, levels(10, 6), *missing, whole, levels(10, 7), *missing]
    stamps = [np.uint64(START_NS + number * SECOND_NS).tobytes() for number in range(len(payloads))]
    timed = [one[:24] + stamp + one[32:] for one, stamp in zip(payloads, stamps, strict=True)]
    path = written(tmp_path / "queue", timed)
    found = replayed(path, 2, PATIENT)
    assert [(row["seq"], row["bid_size"]) for row in found[TOP]] == [(0, 4), (1, 6), (4, 4), (5, 7)]
    assert [row["seq"] for row in found[DEPTH]] == [0, 1, 4, 5]
    assert [row["seq"] for row in found[REPORT] if row["kind"] == "gap"] == [2, 6]
    for ahead in (False, True):
        assert replayed(path, 2, PATIENT, cuts=(1, 3, 4, 7), ahead=ahead) == found
    patient = ReplayPlan(BookSettings(gap_policy="ignore"))
    assert len(replayed(path, 1, patient)[TOP]) == 8, "every event is applied under ignore"


def channel(markets: list[int], numbers: list[int]) -> list[bytes]:
    """Orders of several markets on one channel, with its numbers."""
    records = l3_records([(1, 1, 100 + at, 0, 0, 10, 1, 0) for at in range(len(markets))])
    records["header"]["market_id"], records["header"]["seq"] = markets, numbers
    records["header"]["stream_id"] = 2011
    return [record.tobytes() for record in records]


def test_the_numbers_of_a_channel_are_checked_over_all_its_markets(tmp_path: Path) -> None:
    markets = [1, 2, 3, 4] * 5
    whole = written(tmp_path / "whole", channel(markets, [*range(1, 21)]))
    assert replayed(whole, 3, ReplayPlan())[REPORT] == [], "no task takes the others' numbers for missing"
    holed = written(tmp_path / "holed", channel(markets, [*range(1, 11), *range(14, 24)]))
    (gap,) = replayed(holed, 3, PATIENT)[REPORT]
    assert [gap[name] for name in ("kind", "seq", "stream_id", "seen", "found", "market_id")] == [
        "gap",
        10,
        2011,
        10,
        14,
        3,
    ]


def test_messages_that_are_gone_are_in_the_report_and_books_wait_for_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    whole = l2_record(BookEventType.SNAPSHOT, [(5, 4)], [(9, 1)])
    diff = l2_record(BookEventType.DIFF, [(5, 9)], [])
    written(path, [whole, *([diff] * 200), whole, diff])
    last = queue_ranges.bounds(str(path)).end - 1
    os.unlink(sorted(path.glob("*.q"))[1])
    found = replayed(str(path), 1, PATIENT)
    (lost,) = found[REPORT]
    assert (lost["kind"], lost["market_id"], lost["ts_ns"]) == ("lost", None, None)
    gone = range(lost["seen"], lost["found"] + 1)
    tops = {row["seq"]: row["bid_size"] for row in found[TOP]}
    assert sorted(tops) == [*range(gone[0]), last - 1, last], "no rows of a book in quarantine"
    assert tops[gone[0] - 1] == tops[last] == 9
    assert tops[last - 1] == 4, "the book was whole again"
    with pytest.raises(DataLost, match="are gone from the queue"):
        replayed(str(path), 1, ReplayPlan())


@settings(max_examples=effort(20))
@given(st.integers(1, 7))
def test_every_message_falls_to_one_task(tasks: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "queue")
        orders, trades = channel([1, 2, 3], [1, 2, 3]), [bytes(56) + bytes([n] * 8) for n in range(5)]
        with Queue.open_publisher(path, segment_size=1 << 14) as writer:
            for number in range(30):
                writer.append(TypeId.BOOK_EVENT, l2_record(BookEventType.DIFF, [], [], market=(1, number)))
                writer.append(TypeId.BOOK_EVENT, orders[number % 3])
                writer.append(TypeId.TRADE, trades[number % 5])
        held = queue_ranges.bounds(path)
        for with_trades, expected in ((False, {0, 1}), (True, {2})):
            taken = Counter(_dealt_seqs(path, held, tasks, with_trades))
            assert taken == Counter(seq for seq in range(held.end) if seq % 3 in expected)


def _dealt_seqs(path: str, held: SeqRange, tasks: int, with_trades: bool) -> Iterator[int]:
    for number in range(tasks):
        for some in task_messages(path, held, TaskFilter(tasks, number, trades=with_trades)):
            assert not isinstance(some, queue_ranges.Gap)
            yield from np.asarray(some.seq).tolist()


def test_a_message_that_is_too_short_for_its_type_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "queue", [levels(1, 1), b"short"])
    with pytest.raises(Corrupt, match="message 1 has 5 bytes"):
        replayed(path, 1, ReplayPlan())


@pytest.mark.parametrize("wrong", [{"depth": -1}, {"depth_interval_ns": 0}])
def test_a_plan_that_makes_no_table_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig, match="depth is"):
        ReplayPlan(**wrong)  # type: ignore[arg-type]


def test_rows_of_all_markets_of_a_batch_come_together(tmp_path: Path) -> None:
    markets = range(300)
    payloads = [
        l2_record(BookEventType.DIFF, [(5, 1)], [], market=(1, number), times_ns=(START_NS, START_NS))
        for number in markets
    ]
    with Queue.open_publisher(tmp_path / "queue", segment_size=1 << 20) as writer:
        for number, payload in enumerate(payloads * 3):
            writer.append(TypeId.BOOK_EVENT, payload, START_NS + number)
    path = str(tmp_path / "queue")
    books = BookTables(ReplayPlan(), NAMES)
    top, depth = books.replay(path, queue_ranges.bounds(path), TaskFilter(1, 0))
    assert (top.table, top.batch.num_rows) == (TOP, 900)
    assert (depth.table, depth.batch.num_rows) == (DEPTH, 300)
    assert {market.market_id for market in top.markets} == set(markets)


def test_tables_hold_prices_of_zero_and_below(tmp_path: Path) -> None:
    events = [
        l2_record(BookEventType.SNAPSHOT, [(-5, 2), (-(2**40), 1)], [(0, 3)], scales=(2, 0), times_ns=(1, 1)),
        l2_record(BookEventType.DIFF, [], [(0, 0), (-2, 4)], scales=(3, 0), times_ns=(2, 2)),
    ]
    found = replayed(written(tmp_path / "q", events), 1, ReplayPlan(depth=2, depth_interval_ns=1))
    names = ("bid_price", "bid_size", "ask_price", "ask_size", "price_scale")
    tops = [tuple(row[name] for name in names) for row in found[TOP]]
    assert tops == [(-50, 2, 0, 3, 3), (-50, 2, -2, 4, 3)]
    last = found[DEPTH][-1]
    assert [level["price"] for level in last["bids"]] == [-50, -10 * 2**40]
    assert last["asks"] == [{"price": -2, "size": 4}]
