"""Orders that go from a queue straight into a book: always the same as read first and then applied."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.errors import BookGap, Corrupt, Unsupported
from everlog.market import BookSet, BookSettings, Market, Outputs, PackedRecords
from everlog.market.book_feed import take_orders
from everlog.market.book_results import BookResult
from everlog.market.protocol import TypeId
from everlog.queue import Batch, Queue, QueueReader
from everlog.queue.layout import HEADER_SIZE
from tests.support.book_twins import l3_records

SEGMENT = 1 << 16
"""About 340 orders: more than one block of the short way, and few enough for several segments."""

OTHER_TYPE = 77


class Stretch(NamedTuple):
    """Orders of one market in a row; before them, if asked for, a hole in the numbers or another message."""

    market: int
    orders: int
    after_gap: bool = False
    after_other: bool = False


class Told(NamedTuple):
    """What books did: rows by message, their hashes, gaps of channels; and how much went the short way."""

    rows: dict[int, tuple[Any, ...]]
    hashes: dict[Market, bytes]
    gaps: list[tuple[int, ...]]
    short: int


def orders(stretches: list[Stretch], own_channels: bool) -> list[NDArray[np.void]]:
    """The orders of each stretch; ids are never used twice."""
    numbers: dict[int, int] = {}
    found, used = [], 0
    for stretch in stretches:
        channel = stretch.market if own_channels else 1
        first = numbers.get(channel, 0) + (2 if stretch.after_gap else 1)
        rows = [
            (1, 1 + at % 2, used + at + 1, 0, 0, 50 + (at * 7) % 40 * (1 if at % 2 else -1), 1 + at % 9, 0)
            for at in range(stretch.orders)
        ]
        records = l3_records(rows, first)
        records["header"]["market_id"], records["header"]["stream_id"] = stretch.market, channel
        numbers[channel] = first + stretch.orders - 1
        used += stretch.orders
        found.append(records)
    return found


def write(path: str, stretches: list[Stretch], own_channels: bool = False) -> None:
    """Write the stretches to a queue."""
    with Queue.open_publisher(path, segment_size=SEGMENT) as writer:
        for stretch, records in zip(stretches, orders(stretches, own_channels), strict=True):
            if stretch.after_other:
                writer.append(OTHER_TYPE, b"something else")
            if len(records):
                writer.append_array(TypeId.BOOK_EVENT, records)


def packed(batch: Batch) -> tuple[PackedRecords, NDArray[np.intp]]:
    """The book events of a batch, and which messages they are."""
    chosen = np.flatnonzero(batch.type_id == TypeId.BOOK_EVENT)
    offsets = batch.offset[chosen] + np.uint64(HEADER_SIZE)
    return PackedRecords(batch.segment, offsets, batch.length[chosen].astype(np.uint64)), chosen


def row_of(result: BookResult, at: int) -> tuple[Any, ...]:
    """Everything that the result says of one event, apart from reports."""
    parts = (result.top, result.bids, result.asks, result.statuses, result.places)
    return tuple(None if part is None else part[at].tolist() for part in parts)


def feed(path: str, policy: str, want: Outputs, at_most: int, *, short: bool) -> Told:
    """Feed books with all of a queue."""
    books = BookSet(BookSettings(gap_policy=policy))
    told = Told({}, {}, [], 0)
    with Queue.open_subscriber(path, None, "earliest") as reader:
        while (step := advance(reader, books, want, at_most, short=short)) is not None:
            batch, chosen, results, is_short = step
            told = told._replace(short=told.short + (len(batch) if is_short else 0))
            seqs = batch.seq[chosen]
            told.gaps.extend((int(seqs[gap.event]), gap.seen, gap.found) for gap in books.channel_gaps)
            for market, (events, result) in results.items():
                for at, event in enumerate(events.tolist()):
                    told.rows[int(seqs[event])] = (market, *row_of(result, at))
    return told._replace(hashes={market: book.book_hash() for market, book in books.books.items()})


def advance(reader: QueueReader, books: BookSet, want: Outputs, at_most: int, *, short: bool) -> Any:
    """Apply the next messages: the batch, which of it were book events, what they did, and by which way."""
    taken = take_orders(reader, books, at_most, want) if short else None
    if taken is not None:
        return taken.batch, np.arange(len(taken.batch)), taken.results, True
    batch = reader.read_batch(at_most)
    if not len(batch):
        return None
    records, chosen = packed(batch)
    return batch, chosen, books.apply_packed(records, want), False


stretch = st.builds(Stretch, st.integers(1, 3), st.integers(0, 700), st.booleans(), st.booleans())


@given(
    stretches=st.lists(stretch, max_size=5),
    own_channels=st.booleans(),
    policy=st.sampled_from(["quarantine", "ignore"]),
    want=st.sampled_from([Outputs(), Outputs(places=True), Outputs(depth=2, statuses=True)]),
    at_most=st.sampled_from([1, 100, 255, 256, 300, 1024, 65536]),
)
@settings(max_examples=60, deadline=None)
def test_the_short_way_does_what_reading_and_applying_does(
    stretches: list[Stretch], own_channels: bool, policy: str, want: Outputs, at_most: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "queue")
        write(path, stretches, own_channels)
        shortly = feed(path, policy, want, at_most, short=True)
        plainly = feed(path, policy, want, at_most, short=False)
        assert shortly[:3] == plainly[:3]
        assert plainly.short == 0


def test_orders_of_one_market_take_the_short_way_through_all_segments(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    write(path, [Stretch(1, 2000)])
    told = feed(path, "panic", Outputs(), 50, short=True)
    assert len(told.rows) == 2000
    assert 2000 - told.short <= 50 * 6, "only the first batch of each segment is read plainly"


def test_nothing_is_taken_if_the_orders_do_not_go_on(tmp_path: Path) -> None:
    for number, later in enumerate(
        (Stretch(2, 9), Stretch(1, 9, after_gap=True), Stretch(1, 9, after_other=True), Stretch(1, 0))
    ):
        path = str(tmp_path / str(number))
        write(path, [Stretch(1, 5), later])
        with Queue.open_subscriber(path, None, "earliest") as reader:
            books = BookSet(BookSettings(gap_policy="ignore"))
            assert take_orders(reader, books, 100) is None, "there was no run yet"
            books.apply_packed(packed(reader.read_batch(5))[0])
            before, hashes = reader.position, books.books[Market(2, 1)].book_hash()
            assert take_orders(reader, books, 100) is None
            assert reader.position == before
            assert books.books[Market(2, 1)].book_hash() == hashes


def test_a_gap_on_the_short_way_panics_with_both_numbers_and_changes_nothing_of_its_batch(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "queue")
    write(path, [Stretch(1, 40), Stretch(1, 9, after_gap=True)])
    with Queue.open_subscriber(path, None, "earliest") as reader:
        books = BookSet()
        assert advance(reader, books, Outputs(), 30, short=True) is not None
        assert advance(reader, books, Outputs(), 10, short=True)[3]
        with pytest.raises(BookGap) as caught:
            advance(reader, books, Outputs(), 100, short=True)
        assert (caught.value.seen, caught.value.found) == (40, 42)


def test_damage_is_met_after_everything_before_it_was_applied(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    write(str(path), [Stretch(1, 300)])
    segment = min(path.glob("*.q"))
    data = bytearray(segment.read_bytes())
    with Queue.open_subscriber(str(path), None, "earliest") as reader:
        damaged = int(reader.read_batch(300).offset[200]) + HEADER_SIZE + 100
    data[damaged] ^= 0xFF
    segment.write_bytes(data)
    with Queue.open_subscriber(str(path), None, "earliest") as reader:
        books = BookSet()
        advance(reader, books, Outputs(), 10, short=True)
        batch, _, _, is_short = advance(reader, books, Outputs(), 1000, short=True)
        assert is_short and len(batch) == 190
        with pytest.raises(Corrupt, match="checksum"):
            advance(reader, books, Outputs(), 1000, short=True)


def test_an_order_that_the_book_refuses_is_named_by_its_place(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    (records,) = orders([Stretch(1, 50)], False)
    records["event"]["event_type"][30], records["event"]["order_id"][30] = 2, 9999
    with Queue.open_publisher(path, segment_size=SEGMENT) as writer:
        writer.append_array(TypeId.BOOK_EVENT, records)
    with Queue.open_subscriber(path, None, "earliest") as reader:
        books = BookSet()
        advance(reader, books, Outputs(), 10, short=True)
        with pytest.raises((Corrupt, Unsupported), match="20"):
            advance(reader, books, Outputs(), 1000, short=True)
