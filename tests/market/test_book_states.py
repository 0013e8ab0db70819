"""The state of books as bytes: cut a stream anywhere, save and load, and what follows is the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import Corrupt, UnsupportedVersion
from everlog.market import BookSet, BookSettings, Outputs
from everlog.market.book_states import load_books, quarantine_books, save_books
from everlog.market.protocol import BookEventType
from tests.support.book_twins import l2_record, l3_records
from tests.support.effort import effort
from tests.support.import_runs import packed

WANT = Outputs(top=True, depth=3, statuses=True, drift=True)

level_events = st.lists(
    st.tuples(
        st.sampled_from([BookEventType.SNAPSHOT, BookEventType.DIFF, BookEventType.DIFF, BookEventType.DIFF]),
        st.integers(1, 2),  # market
        st.integers(1, 6),  # price
        st.integers(0, 3),  # size
        st.integers(1, 8),  # update id
        st.integers(0, 2),  # scale
    ),
    max_size=30,
)
order_events = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 2, 3, 4, 5]),
        st.integers(1, 2),  # side
        st.integers(1, 6),  # order
        st.integers(1, 4),  # price
        st.integers(1, 5),  # quantity
        st.integers(1, 3),  # market
        st.integers(0, 12),  # number in the channel
    ),
    max_size=30,
)


def level_payloads(events: list[Any]) -> list[bytes]:
    """Price levels of two markets, with numbers that jump."""
    found = []
    for kind, market, price, size, number, scale in events:
        shared: dict[str, Any] = {"market": (1, market), "scales": (scale, scale)}
        bids, asks = [(price, size)], [(price + 10, size)]
        if kind is BookEventType.SNAPSHOT:
            found.append(l2_record(kind, bids, asks, native_seq=number, **shared))
        else:
            found.append(l2_record(kind, bids, asks, ids=(number, number, number - 1), **shared))
    return found


def order_payloads(events: list[Any]) -> list[bytes]:
    """Orders of three markets on two channels, with numbers that jump."""
    rows = [(kind, side, order, order, 0, price, qty, 0) for kind, side, order, price, qty, _, _ in events]
    records = l3_records(rows)
    if len(records):
        records["header"]["market_id"] = [event[5] for event in events]
        records["header"]["stream_id"] = [event[5] % 2 for event in events]
        records["header"]["seq"] = [event[6] for event in events]
    return [record.tobytes() for record in records]


def told(books: BookSet, payloads: list[bytes]) -> list[Any]:
    """Everything that a batch says, as plain values."""
    if not payloads:
        return []
    results = books.apply_packed(packed(payloads), WANT)
    said: list[Any] = [books.channel_gaps]
    for market, (events, result) in sorted(results.items()):
        assert result.top is not None and result.bids is not None and result.statuses is not None
        scales = result.price_scale, result.size_scale
        rows = result.top.tolist(), result.bids.tolist(), result.statuses.tolist()
        reports = result.gaps[["index", "seen", "found"]].tolist(), result.drifts.tolist()
        said.append((market, events.tolist(), scales, rows, reports))
    return said


@settings(max_examples=effort(200))
@given(
    st.one_of(level_events.map(level_payloads), order_events.map(order_payloads)),
    st.integers(0, 30),
    st.data(),
)
def test_books_that_were_saved_and_loaded_go_on_as_if_nothing_had_been(
    payloads: list[bytes], cut: int, data: st.DataObject
) -> None:
    policy = data.draw(st.sampled_from(["quarantine", "ignore"]))
    chosen = BookSettings(gap_policy=policy, unknown_orders="skip")
    whole = BookSet(chosen)
    told(whole, payloads[:cut])
    loaded = load_books(save_books(whole), chosen)
    assert told(loaded, payloads[cut:]) == told(whole, payloads[cut:])
    assert save_books(loaded) == save_books(whole)


def test_books_in_quarantine_wait_for_a_whole_book() -> None:
    chosen = BookSettings(gap_policy="quarantine")
    books = BookSet(chosen)
    snapshot = l2_record(BookEventType.SNAPSHOT, [(5, 5)], [(6, 6)], native_seq=1)
    told(books, [snapshot, *order_payloads([(1, 1, 1, 5, 5, 3, 1)])])
    quarantine_books(books)
    for one in (books, load_books(save_books(books), chosen)):
        assert {book.quarantined for book in one.books.values()} == {True}
        diff = l2_record(BookEventType.DIFF, [(5, 9)], [], ids=(2, 2, 1))
        (result,) = one.apply_packed(packed([diff, snapshot]), WANT).values()
        assert result.result.statuses is not None
        assert result.result.statuses.tolist() == [1, 0]


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(Corrupt, match="not a saved state of books"):
        load_books(b"\xc1")
    with pytest.raises(UnsupportedVersion, match="version 9"):
        load_books(msgspec.msgpack.encode({"version": 9, "books": [], "channels": []}))
    assert load_books(save_books(BookSet())).books == {}
