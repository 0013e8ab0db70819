"""Many markets in one stream: each has its own book; channels share their numbers."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.errors import BookGap, Corrupt, Unsupported
from everlog.market import BookSet, BookSettings, EventStatus, L2Book, L3Book, Market, Outputs, PackedRecords
from everlog.market.protocol import BookEventType, BookMode, L3EventType
from everlog.market.sequences import SequenceValidator
from tests.support.book_twins import l2_record, l3_records
from tests.support.effort import effort

DIFF = BookEventType.DIFF


def packed(records: list[bytes]) -> PackedRecords:
    lengths = np.array([len(record) for record in records], dtype=np.uint64)
    ends = np.cumsum(lengths, dtype=np.uint64)
    return PackedRecords(np.frombuffer(b"".join(records), dtype=np.uint8), ends - lengths, lengths)


def channel_records(markets: list[int], seqs: list[int], channel: int = 2011) -> NDArray[np.void]:
    records = l3_records([(1, 1, 100 + number, 0, 0, 10, 1, 0) for number in range(len(markets))])
    records["header"]["market_id"], records["header"]["seq"] = markets, seqs
    records["header"]["stream_id"] = channel
    return records


def payloads(records: NDArray[np.void]) -> list[bytes]:
    return [record.tobytes() for record in records]


@given(
    events=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(0, 3)), max_size=40),
    cut=st.integers(0, 40),
)
@settings(max_examples=effort(50))
def test_markets_in_one_stream_give_the_books_they_give_alone(
    events: list[tuple[int, int, int]], cut: int
) -> None:
    records = [l2_record(DIFF, [(price, size)], [], market=(1, market)) for market, price, size in events]
    together, alone = BookSet(), {market: L2Book() for market in (1, 2, 3)}
    rows: dict[int, tuple[int, ...]] = {}
    for part, offset in ((records[:cut], 0), (records[cut:], cut)):
        for market, (index, result) in together.apply_packed(packed(part)).items():
            assert result.top is not None
            rows.update(zip((index + offset).tolist(), result.top.tolist(), strict=True))
            assert market.venue_id == 1
    for number, ((market_id, _, _), record) in enumerate(zip(events, records, strict=True)):
        alone[market_id].apply(record)
        assert rows[number] == alone[market_id].top()
    for market, book in together.books.items():
        assert book.book_hash() == alone[market.market_id].book_hash()


def test_l2_and_l3_markets_live_side_by_side() -> None:
    books = BookSet()
    books.apply(l2_record(DIFF, [(5, 5)], [], market=(1, 8)))
    assert books.apply(channel_records([9], [1])[0].tobytes()) is EventStatus.APPLIED
    assert isinstance(books.books[Market(1, 8)], L2Book)
    assert isinstance(books.books[Market(2, 9)], L3Book)


def test_a_mode_that_is_not_wanted_fails_or_is_skipped() -> None:
    record = l2_record(DIFF, [(5, 5)], [])
    with pytest.raises(Corrupt, match="book mode 0"):
        BookSet(BookSettings(mode=BookMode.L3)).apply(record)
    assert BookSet(BookSettings(mode=BookMode.L3, other_modes="skip")).apply(record) is None


@pytest.mark.parametrize("first", [BookMode.L2, BookMode.L3])
def test_a_market_with_both_modes_keeps_that_of_its_first_event_if_others_are_skipped(
    first: BookMode,
) -> None:
    levels = [l2_record(DIFF, [(price, 4)], [], market=(2, 9)) for price in (5, 6)]
    orders = payloads(channel_records([9, 9, 8], [1, 2, 3]))
    events = [*levels, *orders] if first is BookMode.L2 else [*orders, *levels]
    books = BookSet(BookSettings(other_modes="skip"))
    results = books.apply_packed(packed(events))
    assert results[Market(2, 9)].events.tolist() == [0, 1]
    assert books.books[Market(2, 9)].top() == ((6, 4, 0, 0) if first is BookMode.L2 else (10, 2, 0, 0))
    assert books.books[Market(2, 8)].top() == (10, 1, 0, 0)
    other = BookMode.L3 if first is BookMode.L2 else BookMode.L2
    assert books.passed_over == {other: 2}
    later = levels[0] if first is BookMode.L3 else payloads(channel_records([9], [4]))[0]
    assert books.apply(later) is None
    with pytest.raises(Unsupported, match="mode"):
        BookSet().apply_packed(packed(events))


def test_markets_of_a_channel_share_its_numbers_and_a_gap_panics_before_anything_is_applied() -> None:
    books = BookSet()
    books.apply_packed(packed(payloads(channel_records([1, 2, 1], [5, 6, 7]))))
    with pytest.raises(BookGap) as caught:
        books.apply_packed(packed(payloads(channel_records([1, 2], [8, 10]))))
    assert (caught.value.seen, caught.value.found) == (8, 10)
    records = channel_records([1, 2], [8, 9])
    records["event"]["order_id"] += 50
    books.apply_packed(packed(payloads(records)))


def test_a_gap_under_quarantine_stops_every_market_of_the_channel_until_its_reset() -> None:
    books = BookSet(BookSettings(gap_policy="quarantine"))
    records = channel_records([1, 2, 1, 2, 1, 1, 3], [5, 6, 9, 10, 11, 12, 13])
    records["event"]["event_type"][4] = L3EventType.RESET
    other = channel_records([7], [90], channel=2012)
    results = books.apply_packed(packed(payloads(records) + payloads(other)), Outputs(statuses=True))
    skipped = EventStatus.QUARANTINED
    statuses = {
        market.market_id: result.statuses.tolist()
        for market, (_, result) in results.items()
        if result.statuses is not None
    }
    assert statuses == {1: [0, skipped, 0, 0], 2: [0, skipped], 3: [skipped], 7: [0]}
    assert results[Market(2, 1)].events.tolist() == [0, 2, 4, 5]


def test_a_checkpoint_lists_the_books_of_a_channel_by_symbol() -> None:
    def fed(order: list[int]) -> str:
        books = BookSet()
        records = channel_records([2, 1, 2], [5, 6, 7])
        for number in order:
            books.apply_packed(packed(payloads(records[number : number + 1])))
        return books.checkpoint(2011, lambda market_id: f"{market_id:06d}")

    document = json.loads(fed([0, 1, 2]))
    assert (document["channel"], document["last_seq"]) == (2011, 7)
    assert [row["symbol"] for row in document["symbols"]] == ["000001", "000002"]
    whole = BookSet()
    whole.apply_packed(packed(payloads(channel_records([2, 1, 2], [5, 6, 7]))))
    assert whole.checkpoint(2011, lambda market_id: f"{market_id:06d}") == fed([0, 1, 2])


@given(seqs=st.lists(st.integers(0, 6), max_size=20))
def test_the_validator_reports_every_number_that_does_not_follow_the_last(seqs: list[int]) -> None:
    numbers = SequenceValidator("ignore")
    gaps = [gap for gap in map(numbers.check, seqs) if gap is not None]
    assert [(gap.seen, gap.found) for gap in gaps] == [
        (before, after) for before, after in pairwise(seqs) if after != before + 1
    ]
    assert numbers.last == (seqs[-1] if seqs else None)
    numbers.reset()
    assert numbers.check(99) is None


def test_the_validator_panics_with_both_numbers_and_stays_where_it_was() -> None:
    numbers = SequenceValidator()
    numbers.check(4)
    with pytest.raises(BookGap, match="sequence number 6"):
        numbers.check(6)
    assert numbers.check(5) is None
