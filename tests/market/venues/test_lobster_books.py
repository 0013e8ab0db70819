"""The opening book of LOBSTER: an order-book file seeds it, and the best prices are LOBSTER's."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.errors import EverlogError, InvalidSource
from everlog.market.book_set import BookSet, BookSettings, Market
from everlog.market.books import L3Book, Outputs
from everlog.market.protocol import BookFlags, MessageFlags, crypto_market_id
from everlog.queue import Queue
from tests.support.import_runs import (
    import_into,
    l3_records_of,
    messages_of,
    packed,
    real_file,
    run_importer,
    write_archive,
)

REAL = "AAPL_2012-06-21_message_50.first-25000.csv.gz"
MESSAGES, BOOK = (
    "AAPL_2012-06-21_34200000_57600000_message_5.csv",
    "AAPL_2012-06-21_34200000_57600000_orderbook_5.csv",
)
BUY, SELL = 1, -1


class Row(NamedTuple):
    """A message as LOBSTER writes it."""

    time: str
    kind: int
    order_id: int
    size: int
    price: int
    side: int

    def text(self) -> str:
        return ",".join(map(str, self))


Levels = dict[tuple[int, int], int]


def replayed(opening: Levels, rows: Sequence[Row]) -> Iterator[Levels]:
    """The plain model: sizes by side and price after each message."""
    sizes = defaultdict(int, opening)
    for row in rows:
        if row.kind <= 4:
            sizes[row.side, row.price] += row.size if row.kind == 1 else -row.size
            assert sizes[row.side, row.price] >= 0
        yield {level: size for level, size in sizes.items() if size}


def side_of(levels: Levels, side: int, depth: int) -> list[tuple[int, int]]:
    """The best levels of a side, best first."""
    own = sorted(((price, size) for (of, price), size in levels.items() if of == side), reverse=side == BUY)
    return own[:depth]


def book_line(levels: Levels, depth: int) -> str:
    """A row of an order-book file."""
    asks, bids = side_of(levels, SELL, depth), side_of(levels, BUY, depth)
    asks += [(9999999999, 0)] * (depth - len(asks))
    bids += [(-9999999999, 0)] * (depth - len(bids))
    return ",".join(f"{a},{b},{c},{d}" for (a, b), (c, d) in zip(asks, bids, strict=True))


def write_pair(folder: Path, rows: Sequence[Row], states: Sequence[Levels], depth: int) -> tuple[Path, Path]:
    (folder / MESSAGES).write_text("".join(f"{row.text()}\n" for row in rows))
    (folder / BOOK).write_text("".join(f"{book_line(state, depth)}\n" for state in states))
    return folder / MESSAGES, folder / BOOK


def tops_of(queue: Path, count: int) -> tuple[NDArray[np.void], L3Book]:
    """The best prices after each of the last `count` messages of the queue."""
    book = L3Book(unknown_orders="skip")
    result = book.apply_array(packed([one.payload for one in messages_of(queue)]), Outputs(top=True))
    assert result.top is not None
    return result.top[len(result.top) - count :], book


def levels_of(book: L3Book) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    bids, asks = book.depth(9)
    return bids.tolist(), asks.tolist()


def real_day() -> tuple[list[Row], Levels]:
    """Real messages, and an opening book that holds at least the orders they are about."""
    rows = []
    for line in gzip.decompress(real_file(REAL).read_bytes()).decode().splitlines():
        time, *numbers = line.split(",")
        rows.append(Row(time, *map(int, numbers)))
    added = {row.order_id for row in rows if row.kind == 1}
    opening: Levels = defaultdict(int)
    for row in rows:
        if row.kind in (2, 3, 4) and row.order_id not in added:
            opening[row.side, row.price] += row.size
    # Sizes that no message names lie beyond the prices of the day.
    for place in range(1, 30):
        opening[BUY, 5_000_000 - 100 * place] += 7
        opening[SELL, 7_000_000 + 100 * place] += 9
    return rows, dict(opening)


@pytest.mark.parametrize("depth", [5, 50])
def test_with_the_order_book_the_best_prices_are_those_of_lobster(tmp_path: Path, depth: int) -> None:
    rows, opening = real_day()
    states = list(replayed(opening, rows))
    files = write_pair(tmp_path, rows, states[:1], depth)
    (result,) = import_into(tmp_path / "queue", "lobster", *files)
    top, book = tops_of(tmp_path / "queue", len(rows))
    low, high = side_of(states[0], BUY, depth)[-1][0], side_of(states[0], SELL, depth)[-1][0]
    reached = 0
    for row, state in zip(top, states, strict=True):
        (bid, bid_size), (ask, ask_size) = side_of(state, BUY, 1)[0], side_of(state, SELL, 1)[0]
        if bid >= low:
            assert (row["bid_price"], row["bid_size"]) == (bid, bid_size)
            reached += 1
        if ask <= high:
            assert (row["ask_price"], row["ask_size"]) == (ask, ask_size)
            reached += 1
    assert reached > len(rows)
    assert result.entry.rows == len(rows)
    beyond = beyond_rows(rows, states[0], depth)
    assert book.unknown_order_count == beyond
    assert any(note.startswith(f"{beyond} rows are about orders beyond") for note in result.notes) == (
        beyond > 0
    )


def beyond_rows(rows: Sequence[Row], seen: Levels, depth: int) -> int:
    """Messages about orders that rested before, at prices that are not among the best levels."""
    seeded = {(side, price) for side in (BUY, SELL) for price, _ in side_of(seen, side, depth)}
    added = {row.order_id for row in rows if row.kind == 1}
    return sum(
        row.kind in (2, 3, 4) and row.order_id not in added and (row.side, row.price) not in seeded
        for row in rows
    )


OPENING: Levels = {(BUY, 100): 10, (BUY, 99): 20, (SELL, 102): 5, (SELL, 104): 8}
AFTER = (
    Row("34200.2", 1, 11, 4, 101, BUY),
    Row("34200.3", 3, 2, 6, 99, BUY),
    Row("34200.4", 4, 11, 4, 101, BUY),
    Row("34200.5", 5, 0, 7, 101, BUY),
    Row("34200.6", 4, 5, 5, 102, SELL),
)


@pytest.mark.parametrize(
    "first",
    [
        Row("34200.1", 1, 10, 3, 100, BUY),  # joins a level
        Row("34200.1", 1, 10, 3, 103, SELL),  # makes one
        Row("34200.1", 1, 10, 3, 50, BUY),  # beyond the levels
        Row("34200.1", 2, 1, 3, 100, BUY),
        Row("34200.1", 3, 1, 10, 100, BUY),  # empties a level
        Row("34200.1", 4, 3, 5, 102, SELL),
        Row("34200.1", 5, 0, 3, 101, SELL),
        Row("34200.1", 6, -1, 3, 101, SELL),
        Row("34200.1", 7, 0, 0, -1, -1),
    ],
)
def test_the_first_message_is_undone(tmp_path: Path, first: Row) -> None:
    after = AFTER if first[1:4] != (4, 3, 5) else AFTER[:-1]
    states = list(replayed(OPENING, [first, *after]))
    files = write_pair(tmp_path, [first, *after], states, 3)
    import_into(tmp_path / "queue", "lobster", *reversed(files))
    messages = messages_of(tmp_path / "queue")
    seeds = messages[: len(OPENING)]
    with Queue.open_subscriber(tmp_path / "queue", None, "earliest") as reader:
        flags = [view.flags for view in reader]
    part, last = MessageFlags.SNAPSHOT_PART, MessageFlags.LAST_OF_EVENT
    assert flags == [part, part, part, part | last] + [last] * (1 + len(after))
    books = BookSet(BookSettings())
    for message in seeds:
        books.apply(message.payload)
    book = books.books[Market(4, crypto_market_id("AAPL"))]
    assert isinstance(book, L3Book)
    assert levels_of(book) == ([(100, 10), (99, 20)], [(102, 5), (104, 8)])
    for message, state in zip(messages[len(OPENING) :], states, strict=True):
        books.apply(message.payload)  # no order is unknown, and no number is missing
        assert levels_of(book) == (side_of(state, BUY, 9), side_of(state, SELL, 9))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), depth=st.integers(1, 4))
def test_any_day_has_the_sizes_of_the_plain_replay_where_the_levels_reach(
    tmp_path: Path, data: st.DataObject, depth: int
) -> None:
    opening: Levels = {}
    resting: dict[int, tuple[int, int, int]] = {}
    for order_id in range(1, data.draw(st.integers(1, 8)) + 1):
        side = data.draw(st.sampled_from((BUY, SELL)))
        price = data.draw(st.integers(90, 99) if side == BUY else st.integers(101, 110))
        size = data.draw(st.integers(1, 5))
        resting[order_id] = (side, price, size)
        opening[side, price] = opening.get((side, price), 0) + size
    live, rows = dict(resting), []
    for number in range(data.draw(st.integers(1, 20))):
        if live and data.draw(st.booleans()):
            order_id = data.draw(st.sampled_from(sorted(live)))
            side, price, left = live[order_id]
            size = data.draw(st.integers(1, left))
            rows.append(Row(f"{34200 + number}", 3 if size == left else 2, order_id, size, price, side))
            live[order_id] = (side, price, left - size)
            if size == left:
                del live[order_id]
        else:
            side = data.draw(st.sampled_from((BUY, SELL)))
            price = data.draw(st.integers(90, 99) if side == BUY else st.integers(101, 110))
            live[100 + number] = (side, price, 2)
            rows.append(Row(f"{34200 + number}", 1, 100 + number, 2, price, side))
    states = list(replayed(opening, rows))
    blocks, tally = run_importer("lobster", write_pair(tmp_path, rows, states, depth))
    book = L3Book(unknown_orders="skip")
    book.apply_array(l3_records_of(blocks))
    seeded = {
        (1 if record["side"] == 1 else -1, int(record["price"]))
        for record in l3_records_of(blocks)["event"]
        if record["exec_type"] == 0
    }
    for side, found in zip((BUY, SELL), book.depth(99), strict=True):
        reach = [price for of, price in seeded if of == side]
        limit = (min(reach) if side == BUY else max(reach)) if reach else None
        if limit is None:
            continue
        want = [level for level in side_of(states[-1], side, 99) if (level[0] - limit) * side >= 0]
        assert [level for level in found.tolist() if (level[0] - limit) * side >= 0] == want
    gone = sum(row.order_id < 100 and (row.side, row.price) not in seeded for row in rows)
    assert tally.beyond_rows == gone == book.unknown_order_count


def test_an_archive_of_messages_and_order_books_is_seeded_too(tmp_path: Path) -> None:
    states = list(replayed(OPENING, AFTER))
    write_archive(tmp_path / "day.zip", write_pair(tmp_path, AFTER, states, 3))
    (result,) = import_into(tmp_path / "queue", "lobster", tmp_path / "day.zip")
    assert (result.entry.rows, result.entry.groups, result.notes) == (5, 9, ())


def test_a_second_day_begins_with_its_own_book(tmp_path: Path) -> None:
    states = list(replayed(OPENING, AFTER))
    first = write_pair(tmp_path, AFTER, states, 3)
    second = [tmp_path / path.name.replace("06-21", "06-22") for path in first]
    for old, new in zip(first, second, strict=True):
        new.write_text(old.read_text().replace("34200.", "34300."))
    import_into(tmp_path / "queue", "lobster", *first, *second)
    books = BookSet()
    for message in messages_of(tmp_path / "queue"):
        books.apply(message.payload)
    book = books.books[Market(4, crypto_market_id("AAPL"))]
    assert isinstance(book, L3Book)
    assert levels_of(book) == (side_of(states[-1], BUY, 9), side_of(states[-1], SELL, 9))
    payloads = [one.payload for one in messages_of(tmp_path / "queue")]
    resets = [np.frombuffer(one[58:60], "<u2")[0] & BookFlags.RESETS for one in payloads]
    assert [place for place, flag in enumerate(resets) if flag] == [0, 9]


def test_an_order_book_without_its_messages_is_refused(tmp_path: Path) -> None:
    states = list(replayed(OPENING, AFTER))
    _, book = write_pair(tmp_path, AFTER, states, 3)
    with pytest.raises(
        InvalidSource, match="is the LOBSTER order book of a message file: name the message file too"
    ):
        import_into(tmp_path / "queue", "lobster", book)
    assert not (tmp_path / "queue").exists()
    book.write_text("102,5,-3,10\n")
    with pytest.raises(InvalidSource, match=":1: level 1 has bid price -3 and size 10"):
        import_into(tmp_path / "queue", "lobster", tmp_path / MESSAGES, book)


def test_without_the_order_book_the_orders_that_rested_before_are_unknown(tmp_path: Path) -> None:
    messages, _ = write_pair(tmp_path, AFTER, [OPENING], 2)
    blocks, _ = run_importer("lobster", [messages])
    with pytest.raises(EverlogError, match="order"):
        L3Book().apply_array(l3_records_of(blocks))
