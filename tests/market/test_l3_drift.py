"""A book of orders beside snapshots of its venue: every difference is counted, and nothing else changes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.errors import Corrupt, Unsupported
from everlog.market.book_results import Outputs
from everlog.market.book_set import BookSet, Market
from everlog.market.books import L3Book
from everlog.market.l3_drift import Drift
from everlog.market.protocol import BookEventType, L3EventType
from tests.support.book_twins import L3Twin, l2_record, l3_records
from tests.support.import_runs import packed

Level = tuple[int, int]
SIDE = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 3)), max_size=5, unique_by=lambda level: level[0]
)
SNAPSHOTS = st.tuples(SIDE, SIDE)
ADDS = st.tuples(st.integers(1, 2), st.integers(1, 12), st.integers(1, 3))
STEPS = st.lists(ADDS | SNAPSHOTS, max_size=25)


def snapshot(bids: list[Level], asks: list[Level], **fields: Any) -> bytes:
    """The payload of an L2 snapshot."""
    return l2_record(BookEventType.SNAPSHOT, bids, asks, **fields)


def plain_drift(twin: L3Twin, sides: tuple[list[Level], list[Level]]) -> Drift:
    """The difference, level by level."""
    missing = extra = changed = 0
    for side, levels in enumerate(sides, start=1):
        wanted = {price: size for price, size in levels if size}
        kept = {price: size for price, size, _ in twin.levels(side)}
        for price, size in wanted.items():
            missing += price not in kept
            changed += kept.get(price, size) != size
        covered = [
            price for price in kept if wanted and sign(side) * price >= min(sign(side) * p for p in wanted)
        ]
        extra += sum(price not in wanted for price in covered)
    return Drift(missing, extra, changed)


def sign(side: int) -> int:
    """Such that a better price is larger."""
    return 1 if side == 1 else -1


def batch(steps: list[Any]) -> tuple[list[bytes], list[tuple[int, int, int, int]]]:
    """Adds of orders and snapshots as payloads, and the drift that a plain book finds."""
    adds = [step for step in steps if isinstance(step[0], int)]
    rows = [
        (int(L3EventType.ORDER_ADD), side, number, 0, 0, price, qty, 0)
        for number, (side, price, qty) in enumerate(adds, start=1)
    ]
    records: NDArray[np.void] = l3_records(rows)
    twin, payloads, drifts, done = L3Twin(), [], [], 0
    for index, step in enumerate(steps):
        if isinstance(step[0], int):
            twin.apply(records[done])
            payloads.append(records[done].tobytes())
            done += 1
        else:
            payloads.append(snapshot(*step))
            drift = plain_drift(twin, step)
            if any(drift):
                drifts.append((index, *drift))
    return payloads, drifts


@given(steps=STEPS, every=st.integers(1, 4))
def test_each_snapshot_of_a_batch_is_compared_and_changes_nothing(steps: list[Any], every: int) -> None:
    payloads, drifts = batch(steps)
    book, other = L3Book(), L3Book()
    want = Outputs(every=every, depth=2, statuses=True, places=True, trades=True, drift=True)
    result = book.apply_array(packed(payloads), want)
    assert result.drifts[["index", "missing", "extra", "changed"]].tolist() == drifts
    assert result.count == len(payloads)
    assert book.book_hash() == _without(other, payloads).book_hash()
    assert result.top is not None and result.bids is not None and result.statuses is not None
    assert len(result.top) == len(result.bids) == len(payloads) // every
    assert result.statuses.tolist() == [0] * len(payloads)
    tops = _tops(payloads)
    assert [tuple(row) for row in result.top.tolist()] == tops[every - 1 :: every]


def _without(book: L3Book, payloads: list[bytes]) -> L3Book:
    for payload in payloads:
        if len(payload) == 128 and payload[57] == 1:
            book.apply(payload)
    return book


def _tops(payloads: list[bytes]) -> list[tuple[int, int, int, int]]:
    book, tops = L3Book(), []
    for payload in payloads:
        _without(book, [payload])
        tops.append(book.top())
    return tops


def test_scales_of_book_and_snapshot_may_differ() -> None:
    book = L3Book()
    records = l3_records([(int(L3EventType.ORDER_ADD), 1, 1, 0, 0, 1050, 30, 0)])
    records["event"]["price_scale"], records["event"]["size_scale"] = 2, 1
    book.apply(records[0].tobytes())
    assert book.drift(snapshot([(105, 3)], [], scales=(1, 0))) == Drift(0, 0, 0)
    assert book.drift(snapshot([(10500, 301)], [], scales=(3, 2))) == Drift(0, 0, 1)


def test_deep_books_are_looked_at_only_as_far_as_the_snapshot_goes() -> None:
    book = L3Book()
    rows = [(int(L3EventType.ORDER_ADD), 2, n, 0, 0, 100 + n, 1, 0) for n in range(1, 400)]
    book.apply_array(l3_records(rows))
    assert book.drift(snapshot([], [(101, 1), (350, 1)])) == Drift(0, 248, 0)
    assert book.drift(snapshot([], [(101, 1)])) == Drift(0, 0, 0)


def test_without_asking_for_drift_a_snapshot_is_refused() -> None:
    with pytest.raises(Unsupported, match="book mode"):
        L3Book().apply_array(packed([snapshot([], [])]))


def test_gaps_keep_their_place_in_the_batch() -> None:
    records = l3_records([(int(L3EventType.ORDER_ADD), 1, n, 0, 0, 10, 1, 0) for n in (1, 2, 3)])
    records["header"]["seq"] = [1, 2, 9]
    first, second, third = (record.tobytes() for record in records)
    payloads = [first, snapshot([(10, 1)], []), second, snapshot([(10, 2)], []), third]
    result = L3Book(gap_policy="ignore").apply_array(packed(payloads), Outputs(drift=True))
    assert result.gaps[["index", "seen", "found"]].tolist() == [(4, 2, 9)]
    assert len(result.drifts) == 0
    assert all(earlier <= later for earlier, later in pairwise(result.top["bid_size"].tolist()))  # type: ignore[index]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (snapshot([(1, 1)], [])[:-1], Corrupt),
        (snapshot([], [])[:70], Corrupt),
        (snapshot([], [], scales=(19, 0)), Unsupported),
        (l2_record(BookEventType.DIFF, [(1, 1)], []), Unsupported),
    ],
)
def test_what_is_no_snapshot_is_refused(payload: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        L3Book().drift(payload)


def test_in_a_set_of_books_a_snapshot_is_compared_with_the_orders_of_its_market() -> None:
    records = l3_records([(int(L3EventType.ORDER_ADD), 1, n, 0, 0, 10, 1, 0) for n in (1, 2)])
    records["header"]["market_id"] = [1, 5]
    first, second = (record.tobytes() for record in records)
    payloads = [first, second, snapshot([(10, 7), (9, 1)], [], market=(2, 5))]
    results = BookSet().apply_packed(packed(payloads), Outputs(drift=True))
    assert len(results[Market(2, 1)].result.drifts) == 0
    found = results[Market(2, 5)]
    assert found.events.tolist() == [1, 2]
    assert found.result.drifts[["index", "missing", "extra", "changed"]].tolist() == [(1, 1, 0, 1)]
