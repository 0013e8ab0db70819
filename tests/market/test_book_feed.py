"""Books fed from a queue: how the queue is cut into batches changes nothing."""

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
from everlog.market import BookSet, BookSettings, Market, Outputs
from everlog.market.book_feed import BookFeed
from everlog.market.book_results import BookResult
from everlog.market.protocol import TypeId
from everlog.queue import Queue
from everlog.queue.layout import HEADER_SIZE
from tests.support.book_twins import l3_records
from tests.support.effort import effort

SEGMENT = 1 << 16
"""About 340 orders, so that a queue has several segments."""

OTHER_TYPE = 77


class Stretch(NamedTuple):
    """Orders of one market in a row; before them, if asked for, a hole in the numbers or another message."""

    market: int
    orders: int
    after_gap: bool = False
    after_other: bool = False


class Fed(NamedTuple):
    """What books did: rows by message, their hashes, gaps of channels."""

    rows: dict[int, tuple[Any, ...]]
    hashes: dict[Market, bytes]
    gaps: list[tuple[int, ...]]


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


def row_of(result: BookResult, at: int) -> tuple[Any, ...]:
    """Everything that the result says of one event, apart from reports."""
    parts = (result.top, result.bids, result.asks, result.statuses, result.places)
    return tuple(None if part is None else part[at].tolist() for part in parts)


def feed(path: str, policy: str, want: Outputs, at_most: int) -> Fed:
    """Feed books with all of a queue."""
    books = BookSet(BookSettings(gap_policy=policy))
    fed = Fed({}, {}, [])
    with Queue.open_subscriber(path, None, "earliest") as reader:
        feeder = BookFeed(reader, books)
        while (step := feeder.advance(at_most, want)) is not None:
            fed.gaps.extend((int(step.seq[gap.event]), gap.seen, gap.found) for gap in books.channel_gaps)
            for market, (events, result) in step.results.items():
                for at, event in enumerate(events.tolist()):
                    fed.rows[int(step.seq[event])] = (market, *row_of(result, at))
    return fed._replace(hashes={market: book.book_hash() for market, book in books.books.items()})


stretch = st.builds(Stretch, st.integers(1, 3), st.integers(0, 700), st.booleans(), st.booleans())


@given(
    stretches=st.lists(stretch, max_size=5),
    own_channels=st.booleans(),
    policy=st.sampled_from(["quarantine", "ignore"]),
    want=st.sampled_from([Outputs(), Outputs(places=True), Outputs(depth=2, statuses=True)]),
    at_most=st.sampled_from([1, 100, 255, 256, 300, 1024]),
)
@settings(max_examples=effort(60), deadline=None)
def test_the_size_of_batches_changes_nothing(
    stretches: list[Stretch], own_channels: bool, policy: str, want: Outputs, at_most: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "queue")
        write(path, stretches, own_channels)
        assert feed(path, policy, want, at_most) == feed(path, policy, want, 65536)


def test_a_gap_panics_with_both_numbers_and_changes_nothing_of_its_batch(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    write(path, [Stretch(1, 40), Stretch(1, 9, after_gap=True)])
    with Queue.open_subscriber(path, None, "earliest") as reader:
        books = BookSet()
        feeder = BookFeed(reader, books)
        assert feeder.advance(30) is not None
        before = books.books[Market(2, 1)].book_hash()
        with pytest.raises(BookGap) as caught:
            feeder.advance(100)
        assert (caught.value.seen, caught.value.found) == (40, 42)
        assert books.books[Market(2, 1)].book_hash() == before


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
        feeder = BookFeed(reader, BookSet())
        step = feeder.advance(1000)
        assert step is not None and len(step.seq) == 200
        with pytest.raises(Corrupt, match="checksum"):
            feeder.advance(1000)


def test_an_order_that_the_book_refuses_is_named_by_its_place(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    (records,) = orders([Stretch(1, 50)], False)
    records["event"]["event_type"][30], records["event"]["order_id"][30] = 2, 9999
    with Queue.open_publisher(path, segment_size=SEGMENT) as writer:
        writer.append_array(TypeId.BOOK_EVENT, records)
    with Queue.open_subscriber(path, None, "earliest") as reader:
        feeder = BookFeed(reader, BookSet())
        feeder.advance(10)
        with pytest.raises((Corrupt, Unsupported), match="20"):
            feeder.advance(1000)
