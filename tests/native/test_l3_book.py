"""The native L3 book against a plain one: orders, queues, places and levels after any events."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.errors import BookGap, Corrupt, LimitReached, Unsupported, UnsupportedVersion
from everlog.market.book_results import NOT_QUEUED, EventStatus, Outputs
from everlog.market.books import L3Book
from everlog.market.protocol import L3EventType, L3Flags
from tests.support.book_twins import L3Row, L3Twin, l3_records
from tests.support.effort import effort

ADD, CANCEL, MODIFY, TRADE = (
    L3EventType.ORDER_ADD,
    L3EventType.ORDER_CANCEL,
    L3EventType.ORDER_MODIFY,
    L3EventType.TRADE,
)
PRICES = st.one_of(
    st.integers(-3, 9), st.sampled_from([10**6, 2**40, 2**63 - 1, -(10**6), -(2**40), -(2**63)])
)
FLAGS = st.sampled_from(
    [0, 0, 0, 0, int(L3Flags.PRICE_IS_MARKET), int(L3Flags.AUCTION_OPEN), int(L3Flags.NO_PRICE)]
)
VERSIONS = st.sampled_from([3, 4, 4])


@st.composite
def rows(draw: st.DrawFn) -> L3Row:
    kind = draw(st.sampled_from([ADD, ADD, ADD, CANCEL, MODIFY, TRADE, L3EventType.HEARTBEAT]))
    ids = st.integers(1, 25)
    sided = st.one_of(st.just(0), ids)
    return (
        int(kind),
        draw(st.integers(0, 2)),
        draw(ids),
        draw(sided) if kind == TRADE else 0,
        draw(sided) if kind == TRADE else 0,
        draw(PRICES),
        draw(st.integers(0, 9)),
        draw(FLAGS),
    )


def of_version(records: NDArray[np.void], version: int) -> NDArray[np.void]:
    """Return the records as a writer of this version would have written them."""
    records["header"]["schema_version"] = version
    if version == 3:
        prices = records["event"]["price"]
        prices[prices < 0] = 7
    return records


def assert_equal_books(book: L3Book, twin: L3Twin) -> None:
    for side, (levels, counts) in enumerate(
        zip(book.depth(999), book.order_counts(999), strict=True), start=1
    ):
        found = zip(levels["price"].tolist(), levels["size"].tolist(), counts.tolist(), strict=True)
        assert list(found) == twin.levels(side)
        for price in levels["price"].tolist():
            assert book.queue(side, price) == twin.queue(side, price)
    assert book.top() == twin.top()
    assert book.order_count == len(twin.orders)
    for order_id, order in twin.orders.items():
        assert book.order(order_id) == (order.side, order.price, order.qty)
        assert book.queue_place(order_id) == twin.place(order_id)


@pytest.mark.parametrize("priority", ["keep", "lose_on_increase", "venue"])
@given(events=st.lists(rows(), max_size=120), venue=st.sampled_from([0, 2, 4, 5, 64, 69]), version=VERSIONS)
@settings(max_examples=effort(100))
def test_any_events_leave_the_orders_and_queues_of_the_plain_book(
    events: list[L3Row], venue: int, priority: str, version: int
) -> None:
    loses = priority == "lose_on_increase" or (priority == "venue" and venue in (4, 5))
    book, twin = L3Book(unknown_orders="skip", priority=priority), L3Twin(loses_on_increase=loses)
    if not events:
        return
    records = of_version(l3_records(events), version)
    records["header"]["venue_id"] = venue
    result = book.apply_array(records, Outputs(statuses=True))
    for number, record in enumerate(records):
        twin.apply(record)
        assert result.top is not None
        assert result.top[number].item() == twin.top()
    assert_equal_books(book, twin)
    assert book.unknown_order_count == twin.unknown


@given(events=st.lists(rows(), min_size=1, max_size=60), every=st.integers(1, 4))
@settings(max_examples=effort(50))
def test_depth_and_places_are_those_of_the_plain_book_at_each_event(events: list[L3Row], every: int) -> None:
    records, twin = l3_records(events), L3Twin()
    result = L3Book(unknown_orders="skip").apply_array(records, Outputs(depth=3, every=every, places=True))
    assert result.places is not None and result.bids is not None and result.bid_orders is not None
    row = 0
    for number, record in enumerate(records):
        event = record["event"]
        kind = int(event["event_type"])
        named = int(event["order_id"])
        if kind == TRADE:
            named = int(event["bid_order_id"]) or int(event["ask_order_id"]) or named
        before = twin.place(named)
        twin.apply(record)
        shown = before if kind in (CANCEL, TRADE) else twin.place(named) if kind in (ADD, MODIFY) else None
        assert result.places[number].item() == (shown or (NOT_QUEUED, NOT_QUEUED))
        if (number + 1) % every == 0:
            levels = twin.levels(1)[:3]
            padded = levels + [(0, 0, 0)] * (3 - len(levels))
            assert result.bids[row].tolist() == [level[:2] for level in padded]
            assert result.bid_orders[row].tolist() == [level[2] for level in padded]
            row += 1


def test_thousands_of_orders_at_one_price_keep_their_order_and_places() -> None:
    random = np.random.default_rng(1)
    alive = list(range(1, 3001))
    book = L3Book()
    book.apply_array(l3_records([(ADD, 1, order, 0, 0, 50, order % 7 + 1, 0) for order in alive]))
    for step in range(20):
        gone = set(random.choice(alive, 120, replace=False).tolist())
        book.apply_array(l3_records([(CANCEL, 0, order, 0, 0, 0, 0, 0) for order in gone], book.last_seq + 1))
        alive = [order for order in alive if order not in gone]
        added = [10_000 + 100 * step + number for number in range(50)]
        book.apply_array(
            l3_records([(ADD, 1, order, 0, 0, 50, order % 7 + 1, 0) for order in added], book.last_seq + 1)
        )
        alive += added
        assert book.queue(1, 50) == alive
        ahead = 0
        for place, order in enumerate(alive):
            assert book.queue_place(order) == (place, ahead)
            ahead += order % 7 + 1


@given(events=st.lists(rows(), min_size=2, max_size=200), half=st.integers(0, 200), scale=st.integers(0, 3))
@settings(max_examples=effort(60))
def test_places_that_are_asked_for_late_are_those_of_a_book_that_always_showed_them(
    events: list[L3Row], half: int, scale: int
) -> None:
    late, always = L3Book(unknown_orders="skip"), L3Book(unknown_orders="skip")
    records = l3_records(events)
    records["event"]["price"] %= 1000
    records["event"]["size_scale"][len(events) // 2 :] = scale
    late.apply_array(records[:half])
    always.apply_array(records[:half], Outputs(places=True))
    found, wanted = (book.apply_array(records[half:], Outputs(places=True)) for book in (late, always))
    assert found.places is not None and wanted.places is not None
    assert found.places.tolist() == wanted.places.tolist()
    assert late.book_hash() == always.book_hash()


@pytest.fixture(scope="module")
def many_records() -> NDArray[np.void]:
    """More events than the caches hold tops of; a heartbeat and a modify to another price among them."""
    random = np.random.default_rng(5)
    ids = np.arange(1, 140_004, dtype=np.uint64)
    records = np.tile(l3_records([(ADD, 1, 1, 0, 0, 50, 3, 0)]), len(ids))
    event = records["event"]
    event["order_id"], event["side"] = ids, 1 + ids % 2
    event["price"] = np.where(ids % 2 == 0, 100 - random.integers(1, 9, len(ids)), 100 + ids % 7)
    event["event_type"][1::3], event["order_id"][1::3] = CANCEL, ids[::3][: len(ids[1::3])]
    event["qty"][1::3] = 0
    event["event_type"][2::9], event["order_id"][2::9], event["price"][2::9] = MODIFY, 3, ids[2::9] % 90 + 1
    event["event_type"][2] = ADD
    event["event_type"][30_011] = L3EventType.HEARTBEAT
    records["header"]["seq"] = np.arange(1, len(ids) + 1)
    return records


@pytest.mark.parametrize("places", [False, True])
def test_rows_written_past_the_caches_are_those_of_small_arrays(
    many_records: NDArray[np.void], places: bool
) -> None:
    want = Outputs(places=places)
    whole, parts = L3Book(), L3Book()
    result = whole.apply_array(many_records, want)
    assert result.top is not None and result.top.nbytes > 1 << 22
    for first in range(0, len(many_records), 1009):
        part = parts.apply_array(many_records[first : first + 1009], want)
        assert np.array_equal(part.top, result.top[first : first + 1009])
        if part.places is not None and result.places is not None:
            assert np.array_equal(part.places, result.places[first : first + 1009])
    assert whole.book_hash() == parts.book_hash()
    assert whole.last_ingest_ts_ns == parts.last_ingest_ts_ns


def test_an_error_within_a_large_array_leaves_the_events_before_it_applied(
    many_records: NDArray[np.void],
) -> None:
    wrong = many_records.copy()
    wrong["event"]["order_id"][139_996] = 0
    wrong["event"]["event_type"][139_996] = ADD
    book, other = L3Book(), L3Book()
    with pytest.raises(Corrupt, match="139996"):
        book.apply_array(wrong, Outputs(places=True))
    other.apply_array(wrong[:139_996])
    assert book.book_hash() == other.book_hash()


def test_a_large_random_book_agrees_with_the_plain_one() -> None:
    random = np.random.default_rng(7)
    events: list[L3Row] = []
    live: list[int] = []
    for number in range(1, 12_001):
        if len(live) < 4000 or random.random() < 0.5:
            side = int(random.integers(1, 3))
            price = int(random.integers(900, 1000) if side == 1 else random.integers(1000, 1100))
            events.append((ADD, side, number * 7919, 0, 0, price, int(random.integers(1, 50)), 0))
            live.append(number * 7919)
        else:
            at = int(random.integers(len(live)))
            live[at], live[-1] = live[-1], live[at]
            events.append((CANCEL, 0, live.pop(), 0, 0, 0, 0, 0))
    book, twin = L3Book(), L3Twin()
    records = l3_records(events)
    book.apply_array(records)
    for record in records:
        twin.apply(record)
    assert [book.queue(1, price) for price in range(900, 1000)] == [
        twin.queue(1, p) for p in range(900, 1000)
    ]
    assert book.top() == twin.top()


@given(
    events=st.lists(
        st.one_of(rows(), st.just((int(L3EventType.RESET), 0, 0, 0, 0, 0, 0, 0))), min_size=1, max_size=80
    )
)
@settings(max_examples=effort(80))
def test_whatever_is_asked_for_and_one_by_one_the_events_do_the_same(events: list[L3Row]) -> None:
    records, twin = l3_records(events), L3Twin()
    outputs = (Outputs(), Outputs(places=True), Outputs(places=True, statuses=True), Outputs(trades=True))
    books = [L3Book(unknown_orders="skip") for _ in outputs]
    results = [book.apply_array(records, want) for book, want in zip(books, outputs, strict=True)]
    single = L3Book(unknown_orders="skip")
    for number, record in enumerate(records):
        twin.apply(record)
        tops = [result.top[number].item() for result in results if result.top is not None]
        assert tops == [twin.top()] * len(outputs)
        assert single.apply_and_top(record.tobytes()) == twin.top()
    assert_equal_books(single, twin)
    assert {book.book_hash() for book in books} == {single.book_hash()}
    assert results[1].places is not None and results[2].places is not None
    assert results[1].places.tolist() == results[2].places.tolist()


@pytest.mark.parametrize("step", [1, 2, 987, 1 << 32, 1 << 52, 0x9E3779B97F4A7C15, 0xF1DE83E19937733D])
def test_ids_that_count_up_by_any_step_are_found_again_and_gone_when_cancelled(step: int) -> None:
    ids = [number * step % 2**64 or 1 for number in range(1, 2500)]
    ids = list(dict.fromkeys(ids))
    book = L3Book()
    book.apply_array(l3_records([(ADD, 1, order, 0, 0, 50 + order % 5, 1, 0) for order in ids]))
    gone = set(ids[::2])
    book.apply_array(l3_records([(CANCEL, 0, order, 0, 0, 0, 0, 0) for order in ids[::2]], len(ids) + 1))
    assert book.order_count == len(ids) - len(gone)
    assert {order for order in ids if book.order(order) is None} == gone


def test_an_order_that_its_new_price_cannot_take_is_kept_off_the_ladder() -> None:
    book = L3Book(max_levels=2)
    book.apply_array(
        l3_records([(ADD, 1, order, 0, 0, price, 4, 0) for order, price in ((1, 10), (2, 11), (3, 10))])
    )
    with pytest.raises(LimitReached):
        book.apply(one(MODIFY, order_id=3, price=12).tobytes())
    assert book.order(3) == (1, 12, 4) and book.queue_place(3) is None
    assert (book.queue(1, 10), book.order_count, book.bid_count) == ([1], 3, 2)


def test_a_book_emptied_and_filled_again_and_again_forgets_no_queue() -> None:
    book, twin = L3Book(), L3Twin()
    for turn in range(4):
        events: list[L3Row] = [
            (ADD, 1 + order % 2, order, 0, 0, 40 + order % 97, order % 9 + 1, 0) for order in range(1, 900)
        ]
        kept = 13 * turn
        events += [(CANCEL, 0, order, 0, 0, 0, 0, 0) for order in range(1, 900 - kept)]
        events += [(int(L3EventType.RESET), 0, 0, 0, 0, 0, 0, 0)] if turn % 2 else []
        events += [(CANCEL, 0, order, 0, 0, 0, 0, 0) for order in range(900 - kept, 900) if not turn % 2]
        records = l3_records(events, book.last_seq + 1)
        book.apply_array(records)
        for record in records:
            twin.apply(record)
        assert_equal_books(book, twin)
        assert book.order_count == 0


def one(kind: int, **fields: int) -> NDArray[np.void]:
    records = l3_records([(kind, 0, 0, 0, 0, 0, 0, 0)])
    records["header"]["seq"] = 0
    for name, value in fields.items():
        records["event"][name] = value
    return records


def test_a_partial_cancel_keeps_its_place_and_a_price_change_goes_to_the_back() -> None:
    book = L3Book()
    book.apply_array(l3_records([(ADD, 2, order, 0, 0, 70, 10, 0) for order in (1, 2, 3)]))
    book.apply(one(CANCEL, order_id=1, qty=4).tobytes())
    assert (book.queue(2, 70), book.order(1)) == ([1, 2, 3], (2, 70, 6))
    book.apply(one(MODIFY, order_id=1, price=71).tobytes())
    book.apply(one(MODIFY, order_id=1, price=70).tobytes())
    assert (book.queue(2, 70), book.queue(2, 71)) == ([2, 3, 1], [])


def test_orders_without_a_usable_price_are_kept_off_the_ladder() -> None:
    book = L3Book()
    book.apply(one(ADD, order_id=1, side=1, qty=5, price=9, flags=int(L3Flags.PRICE_IS_MARKET)).tobytes())
    book.apply(one(ADD, order_id=2, side=1, qty=5, flags=int(L3Flags.NO_PRICE)).tobytes())
    book.apply(one(ADD, order_id=3, qty=5, price=9).tobytes())
    assert (book.order_count, book.top(), book.queue_place(1)) == (3, (0, 0, 0, 0), None)
    book.apply(one(MODIFY, order_id=1, price=9).tobytes())
    assert book.top() == (9, 5, 0, 0)


def test_a_trade_takes_from_both_orders_and_is_listed() -> None:
    book = L3Book()
    events: list[L3Row] = [
        (ADD, 1, 1, 0, 0, 10, 5, 0),
        (ADD, 2, 2, 0, 0, 10, 3, 0),
        (TRADE, 0, 0, 1, 2, 10, 3, 0),
    ]
    result = book.apply_array(l3_records(events), Outputs(trades=True))
    assert result.trades.tolist() == [(2, 3, 3, 10, 3)]
    assert (book.order(1), book.order(2)) == ((1, 10, 2), None)


def test_a_scale_rise_keeps_every_order_and_brings_rows_to_the_new_scale() -> None:
    book = L3Book()
    records = l3_records([(ADD, 1, 1, 0, 0, 15, 2, 0), (ADD, 2, 2, 0, 0, 1601, 30, 0)])
    records["event"]["price_scale"], records["event"]["size_scale"] = [1, 3], [0, 1]
    result = book.apply_array(records, Outputs(places=True))
    assert result.top is not None
    assert result.top.tolist() == [(1500, 20, 0, 0), (1500, 20, 1601, 30)]
    assert (book.order(1), book.queue(1, 1500)) == ((1, 1500, 20), [1])
    assert (book.render_price(1601), book.render_size(30)) == ("1.601", "3")


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (one(ADD, side=1, price=1, qty=1), Corrupt),
        (one(CANCEL, order_id=9), Corrupt),
        (one(MODIFY, order_id=9, price=1), Corrupt),
        (one(TRADE, bid_order_id=9, qty=1), Corrupt),
        (one(ADD, order_id=1, side=1, price=1, qty=1), Corrupt),
        (one(7), Corrupt),
        (one(ADD, order_id=5, side=1, price=2**60, qty=1, price_scale=0, size_scale=19), Unsupported),
        (one(ADD, order_id=5, side=1, price=100, qty=2**64 - 3), Corrupt),
    ],
)
def test_an_event_that_cannot_be_applied_is_refused_and_changes_nothing(
    record: NDArray[np.void], error: type[Exception]
) -> None:
    book = L3Book()
    book.apply_array(l3_records([(ADD, 1, 1, 0, 0, 100, 7, 0)]))
    before = book.book_hash()
    with pytest.raises(error):
        book.apply(record.tobytes())
    assert (book.book_hash(), book.top()) == (before, (100, 7, 0, 0))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_one_event_per_call_gives_the_top_and_names_both_numbers_of_a_gap(
    kind: Callable[[bytes], bytes],
) -> None:
    records = l3_records([(ADD, 1, order, 0, 0, order, 7, 0) for order in (1, 2, 3)])
    book = L3Book()
    assert book.apply_and_top(kind(records[0].tobytes())) == (1, 7, 0, 0)
    with pytest.raises(BookGap) as caught:
        book.apply_and_top(kind(records[2].tobytes()))
    assert (caught.value.seen, caught.value.found) == (1, 3)
    assert book.apply_and_top(kind(records[1].tobytes())) == (2, 7, 0, 0)


def test_the_header_is_checked() -> None:
    record = one(ADD, order_id=1)
    for version in (2, 5):
        record["header"]["schema_version"] = version
        with pytest.raises(UnsupportedVersion):
            L3Book().apply(record.tobytes())
    record = one(ADD, order_id=1)
    with pytest.raises(Corrupt):
        L3Book().apply(record.tobytes() + b"\0")


def test_gaps_follow_the_policy() -> None:
    events: list[L3Row] = [(ADD, 1, order, 0, 0, 10, 1, 0) for order in (1, 2, 3)]
    events.append((int(L3EventType.RESET), 0, 0, 0, 0, 0, 0, 0))
    events.append((ADD, 1, 9, 0, 0, 10, 1, 0))
    records = l3_records(events)
    records["header"]["seq"] = [5, 7, 8, 9, 10]
    with pytest.raises(BookGap) as caught:
        L3Book().apply_array(records)
    assert (caught.value.seen, caught.value.found) == (5, 7)
    book = L3Book(gap_policy="quarantine")
    result = book.apply_array(records, Outputs(statuses=True))
    assert result.statuses is not None
    assert result.statuses.tolist() == [0, EventStatus.QUARANTINED, EventStatus.QUARANTINED, 0, 0]
    assert book.queue(1, 10) == [9]
    ignoring = L3Book(gap_policy="ignore")
    assert len(ignoring.apply_array(records).gaps) == 1


def test_more_orders_than_allowed_are_refused() -> None:
    book = L3Book(max_orders=2)
    with pytest.raises(LimitReached, match="max_orders"):
        book.apply_array(l3_records([(ADD, 1, order, 0, 0, 10, 1, 0) for order in (1, 2, 3)]))
    assert book.order_count == 2


@given(events=st.lists(rows(), min_size=1, max_size=60), version=VERSIONS)
@settings(max_examples=effort(40))
def test_a_book_loaded_from_its_snapshot_goes_on_like_the_original(events: list[L3Row], version: int) -> None:
    book, copy = L3Book(unknown_orders="skip"), L3Book(unknown_orders="skip", gap_policy="ignore")
    half = len(events) // 2
    records = of_version(l3_records(events), version)
    book.apply_array(records[:half])
    copy.load_payload(book.snapshot_payload())
    assert copy.book_hash() == book.book_hash()
    assert (copy.orders().tolist(), copy.top()) == (book.orders().tolist(), book.top())
    first = book.apply_array(records[half:], Outputs(places=True))
    second = copy.apply_array(records[half:], Outputs(places=True))
    assert first.top is not None and second.top is not None
    assert first.places is not None and second.places is not None
    assert first.top.tolist() == second.top.tolist()
    assert first.places.tolist() == second.places.tolist()


def test_the_hash_does_not_depend_on_the_order_of_arrival() -> None:
    events: list[L3Row] = [(ADD, 1, order, 0, 0, 10, 1, 0) for order in (1, 2)]
    one_way, other_way = l3_records(events), l3_records(events[::-1])
    one_way["header"]["exchange_ts_ns"] = other_way["header"]["exchange_ts_ns"] = 5
    books = L3Book(), L3Book()
    books[0].apply_array(one_way)
    books[1].apply_array(other_way)
    assert books[0].book_hash() == books[1].book_hash()
    books[1].apply(one(CANCEL, order_id=1).tobytes())
    assert books[0].book_hash() != books[1].book_hash()


def test_strided_records_are_applied_where_they_lie() -> None:
    wide = np.zeros((3, 192), dtype=np.uint8)
    records = l3_records([(ADD, 1, order, 0, 0, 10, order, 0) for order in (1, 2, 3)])
    wide[:, 64:] = records.view(np.uint8).reshape(3, 128)
    view: NDArray[np.void] = np.ndarray(
        (3,), dtype=records.dtype, buffer=wide.data, offset=64, strides=(192,)
    )
    book = L3Book()
    book.apply_array(view)
    assert book.top() == (10, 6, 0, 0)
