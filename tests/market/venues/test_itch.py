"""NASDAQ ITCH 5.0: messages built byte by byte, the book of a made-up day against a plain one."""

from __future__ import annotations

import random
import struct
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidSource
from everlog.market.book_set import BookSet, BookSettings, Market
from everlog.market.books import UnknownOrders
from everlog.market.protocol import BookFlags, L3EventType, MessageFlags, Side, crypto_market_id
from everlog.market.venues.interface import ImportOptions
from everlog.market.venues.itch import SIZES
from everlog.market.venues.lobster import midnight_ns
from everlog.market.venues.sniffing import looks_like
from tests.support.import_runs import import_into, l3_records_of, packed, payloads_of, run_importer

AAPL, MSFT = 1, 2
NAMES = {AAPL: b"AAPL    ", MSFT: b"MSFT    "}
MIDNIGHT_NS = midnight_ns("2019-01-30")


def message(kind: str, locate: int, time: int, body: bytes) -> bytes:
    """One message behind its length."""
    data = kind.encode() + struct.pack(">HH", locate, 0) + time.to_bytes(6, "big") + body
    assert len(data) == SIZES[kind], kind
    return struct.pack(">H", len(data)) + data


def opening() -> bytes:
    """What a day begins with: the start of messages and two symbols."""
    listed = (message("R", locate, 1, name + bytes(20)) for locate, name in NAMES.items())
    return message("S", 0, 1, b"O") + b"".join(listed)


def add(locate: int, time: int, number: int, side: bytes, shares: int, price: int, kind: str = "A") -> bytes:
    tail = b"MMID" if kind == "F" else b""
    return message(
        kind, locate, time, struct.pack(">QcI8sI", number, side, shares, NAMES[locate], price) + tail
    )


def executed(locate: int, time: int, number: int, shares: int) -> bytes:
    return message("E", locate, time, struct.pack(">QIQ", number, shares, 9))


def itch_file(folder: Path, *messages: bytes) -> Path:
    path = folder / "01302019.NASDAQ_ITCH50"
    path.write_bytes(opening() + b"".join(messages))
    return path


def made_up_day(seed: int, count: int) -> tuple[bytes, dict[int, dict[int, tuple[bytes, int, int]]]]:
    """Orders of two symbols, and those that are left: number to side, price and shares."""
    choose = random.Random(seed)
    live: dict[int, dict[int, tuple[bytes, int, int]]] = defaultdict(dict)
    parts, numbers = [], iter(range(1, 10**6))
    for time in range(2, count + 2):
        locate = choose.choice((AAPL, MSFT))
        orders = live[locate]
        kind = choose.choice("AAFECXDUP") if orders else "A"
        number = next(numbers) if kind in "AF" else choose.choice(list(orders))
        if kind in "AF":
            side = choose.choice((b"B", b"S"))
            price = 10_000 + (-1 if side == b"B" else 1) * choose.randint(1, 20)
            orders[number] = side, price, choose.randint(1, 300)
            parts.append(add(locate, time, number, side, orders[number][2], price, kind))
            continue
        side, price, shares = orders[number]
        gone = choose.randint(1, shares)
        if kind == "P":
            parts.append(
                message("P", locate, time, struct.pack(">QcI8sIQ", 0, b"B", 5, NAMES[locate], price, 1))
            )
            continue
        if kind == "U":
            del orders[number]
            new = next(numbers)
            orders[new] = side, price + 1, shares + 5
            parts.append(message("U", locate, time, struct.pack(">QQII", number, new, shares + 5, price + 1)))
            continue
        if kind == "D":
            gone = shares
            body = struct.pack(">Q", number)
        elif kind == "E":
            body = struct.pack(">QIQ", number, gone, 1)
        elif kind == "C":
            body = struct.pack(">QIQcI", number, gone, 1, choose.choice((b"Y", b"N")), price + 7)
        else:
            body = struct.pack(">QI", number, gone)
        parts.append(message(kind, locate, time, body))
        orders[number] = side, price, shares - gone
        if gone == shares:
            del orders[number]
    return b"".join(parts), live


@given(st.integers(0, 10**6), st.integers(1, 200))
def test_books_of_a_made_up_day_hold_the_orders_that_are_left(seed: int, count: int) -> None:
    data, live = made_up_day(seed, count)
    with tempfile.TemporaryDirectory() as folder:
        path = itch_file(Path(folder), data)
        assert looks_like(path.read_bytes()) == "itch"
        blocks, tally = run_importer("itch", [path])
    books = BookSet(BookSettings(unknown_orders=UnknownOrders.FAIL))
    books.apply_packed(packed([payload for block in blocks for payload in payloads_of(block)]))
    assert tally.rows == count and tally.date == "2019-01-30"
    for locate, name in NAMES.items():
        wanted: dict[tuple[bytes, int], int] = defaultdict(int)
        for side, price, shares in live[locate].values():
            wanted[side, price] += shares
        book = books.books.get(Market(4, crypto_market_id(name.decode().strip())))
        found = {}
        if book is not None:
            bids, asks = book.depth(1000)
            for side, levels in ((b"B", bids), (b"S", asks)):
                found |= {(side, int(level["price"])): int(level["size"]) for level in levels}
        assert found == dict(wanted)


def test_a_replace_is_one_event_and_executions_have_side_and_price_of_their_order(tmp_path: Path) -> None:
    replace = message("U", AAPL, 12, struct.pack(">QQII", 7, 8, 50, 1_010_000))
    halt = message("H", AAPL, 20, NAMES[AAPL] + b"H" + b" " + b"T1  ")
    path = itch_file(
        tmp_path,
        add(AAPL, 10, 7, b"S", 100, 1_000_000),
        executed(AAPL, 11, 7, 40),
        replace,
        message("Q", AAPL, 13, struct.pack(">Q8sIQc", 900, NAMES[AAPL], 999_000, 4, b"O")),
        halt,
        message("I", AAPL, 21, bytes(39)),
        message("S", 0, 22, b"C"),
    )
    blocks, tally = run_importer("itch", [path])
    found = l3_records_of(blocks)
    event = found["event"]
    assert event["event_type"].tolist() == [
        L3EventType.ORDER_ADD,
        L3EventType.TRADE,
        L3EventType.ORDER_CANCEL,
        L3EventType.ORDER_ADD,
        L3EventType.TRADE,
        L3EventType.HEARTBEAT,
    ]
    assert event["price"].tolist() == [1_000_000, 1_000_000, 1_000_000, 1_010_000, 999_000, 0]
    assert event["qty"].tolist() == [100, 40, 60, 50, 900, 0]
    assert event["side"].tolist() == [Side.SELL] * 4 + [Side.UNKNOWN] * 2
    assert event["ask_order_id"].tolist() == [0, 7, 0, 0, 0, 0]
    flags = np.concatenate([block.flags for block in blocks if block.flags is not None])
    assert (flags & MessageFlags.LAST_OF_EVENT != 0).tolist() == [True, True, False, True, True, True]
    header = found["header"]
    assert (header["flags"] & BookFlags.RESETS != 0).tolist() == [True] + [False] * 5
    assert (header["flags"] & BookFlags.MARKS_EVENT_ENDS).all()
    assert header["exchange_ts_ns"].tolist() == [MIDNIGHT_NS + at for at in (10, 11, 12, 12, 13, 20)]
    assert (tally.rows, tally.symbols) == (5, {("nasdaq", "AAPL")})
    assert any("other kinds were not imported: 1 I" in note for note in tally.notes)


def test_one_symbol_is_picked_and_one_that_is_not_there_refused(tmp_path: Path) -> None:
    path = itch_file(tmp_path, add(AAPL, 2, 1, b"B", 1, 10), add(MSFT, 3, 2, b"B", 1, 20))
    (result,) = import_into(tmp_path / "queue", "itch", path, options=ImportOptions(symbol="MSFT"))
    assert (result.entry.symbol, result.entry.groups) == ("MSFT", 1)
    with pytest.raises(InvalidSource, match="holds no symbol 'TSLA'"):
        run_importer("itch", [path], ImportOptions(symbol="TSLA"))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((add(AAPL, 5, 1, b"B", 1, 10), add(AAPL, 4, 2, b"B", 1, 10)), ":5: the time goes back"),
        ((add(AAPL, 5, 1, b"B", 1, 10), add(AAPL, 5, 1, b"B", 1, 10)), ":5: the order is added twice"),
        ((add(AAPL, 5, 1, b"B", 0, 10),), ":4: it is of no shares"),
        ((add(AAPL, 5, 1, b"B", 1, 10), executed(AAPL, 6, 1, 0)), ":5: it is of no shares"),
        ((message("X", AAPL, 5, struct.pack(">QI", 1, 0)),), ":4: it is of no shares"),
        ((message("U", AAPL, 5, struct.pack(">QQII", 1, 2, 0, 10)),), ":4: it is of no shares"),
        ((struct.pack(">H", 12) + b"A" + bytes(11),), "message 4 is of kind b'A' and has 12 bytes"),
        ((add(AAPL, 5, 1, b"B", 1, 10)[:-3],), "ends in the middle of message 4"),
        ((message("A", 9, 5, struct.pack(">QcI8sI", 1, b"B", 1, b"X" * 8, 1)),), "no directory message"),
    ],
)
def test_a_file_that_is_damaged_or_out_of_order_is_refused(
    tmp_path: Path, messages: tuple[bytes, ...], reason: str
) -> None:
    with pytest.raises(InvalidSource, match=reason):
        run_importer("itch", [itch_file(tmp_path, *messages)])


def test_unordered_messages_are_counted_if_allowed_and_unknown_orders_noted(tmp_path: Path) -> None:
    path = itch_file(tmp_path, add(AAPL, 5, 1, b"B", 9, 10), executed(AAPL, 4, 77, 3))
    _, tally = run_importer("itch", [path], ImportOptions(allow_unordered=True))
    assert (tally.rows, tally.unordered) == (2, 1)
    assert any("1 messages name an order that was never added" in note for note in tally.notes)
