"""The refinery: queues by symbol, day and stream with the messages of the raw one, however often it runs."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import Corrupt, DataLost, InvalidConfig
from everlog.market import L2Book
from everlog.market.protocol import (
    BOOK_EVENT_HEADER,
    TRADE,
    BookEventType,
    BookMode,
    TypeId,
    crypto_market_id,
    new_headers,
    symbol_hash,
)
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline import queue_ranges
from everlog.pipeline.jobs.refine import refine_symbols
from everlog.pipeline.refinery import Counts, Refinery, RefinerySettings, Symbols, symbol_code
from everlog.queue import Message, Queue
from everlog.seq_ranges import SeqRange
from tests.support.import_runs import messages_of

DAY_NS = 86_400_000_000_000
HOUR_NS = 3_600_000_000_000
SECOND_NS = 1_000_000_000
MIDNIGHT_NS = 19_725 * DAY_NS
NAMES = ("SIM0000", "SIM0001", "SIM0002")
SMALL = RefinerySettings(segment_size=1 << 20)
Tree = dict[str, list[tuple[int, int, bytes]]]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A raw queue of three symbols, some minutes around midnight."""
    path = str(tmp_path_factory.mktemp("raw") / "queue")
    start_ns = MIDNIGHT_NS - 100 * SECOND_NS
    venue = SimulatedVenue(
        NAMES, rate=60.0, kinds=("l2", "trades"), start_ns=start_ns, resting_orders=20, block_events=500
    )
    with Queue.open_publisher(path, segment_size=1 << 20) as writer:
        for block in venue.blocks(3000):
            block.append_to(writer)
    return path


def refine(raw: str, root: Path | str, end: int | None = None, mine: range = range(3)) -> Counts:
    """Refine a raw queue, or the beginning of it."""
    wanted = SeqRange(0, queue_ranges.bounds(raw).end if end is None else end)
    return refine_symbols(raw, wanted, Refinery(str(root), Symbols("simulated", NAMES), mine, SMALL))


def tree(root: Path | str) -> Tree:
    """Every message of every refined queue."""
    return {
        str(control.parent.relative_to(root)): [
            (one.type_id, one.timestamp_ns, bytes(one.payload)) for one in messages_of(control.parent)
        ]
        for control in sorted(Path(root).rglob("control.meta"))
    }


def header_of(message: Message) -> np.void:
    """The header of a book event."""
    return np.frombuffer(message.payload, BOOK_EVENT_HEADER, 1)[0]


def is_book(message: Message) -> bool:
    """Tell whether a message is a book event."""
    return message.type_id == TypeId.BOOK_EVENT


def test_each_day_alone_gives_the_books_of_the_raw_queue_after_every_event(raw: str, tmp_path: Path) -> None:
    refine(raw, tmp_path)
    books = {name: L2Book() for name in NAMES}
    by_market = {crypto_market_id(name): name for name in NAMES}
    expected: dict[tuple[int, str], list[tuple[bytes, bytes, bytes]]] = defaultdict(list)
    for message in filter(is_book, messages_of(Path(raw))):
        header = header_of(message)
        name = by_market[int(header["market_id"])]
        before = books[name].book_hash()
        books[name].apply(message.payload)
        day = int(header["exchange_ts_ns"]) // DAY_NS
        expected[day, name].append((bytes(message.payload), before, books[name].book_hash()))
    assert {day for day, _ in expected} == {MIDNIGHT_NS // DAY_NS - 1, MIDNIGHT_NS // DAY_NS}
    for (day, name), events in expected.items():
        date = str(np.datetime64(day, "D"))
        alone, at = L2Book(), 0
        for message in messages_of(tmp_path / "v1" / "simulated" / name.lower() / date / "book"):
            alone.apply(message.payload)
            payload, before, after = events[at]
            is_copy = bytes(message.payload) == payload
            # What is no copy is a snapshot that was put in: the book before the next event.
            assert alone.book_hash() == (after if is_copy else before)
            at += is_copy
        assert at == len(events)


def test_every_raw_message_is_copied_once_in_its_order_with_its_time(raw: str, tmp_path: Path) -> None:
    counts = refine(raw, tmp_path)
    expected: dict[tuple[str, int, str], list[tuple[int, bytes]]] = defaultdict(list)
    by_market = {crypto_market_id(name): name for name in NAMES}
    by_hash = {symbol_hash(name): name for name in NAMES}
    for message in messages_of(Path(raw)):
        if is_book(message):
            header = header_of(message)
            key = (by_market[int(header["market_id"])], int(header["exchange_ts_ns"]) // DAY_NS, "book")
        else:
            trade = np.frombuffer(message.payload, TRADE, 1)[0]
            key = (by_hash[int(trade["symbol_hash"])], int(trade["timestamp_ns"]) // DAY_NS, "trades")
        expected[key].append((message.timestamp_ns, bytes(message.payload)))
    copied = 0
    for (name, day, stream), messages in expected.items():
        path = tmp_path / "v1" / "simulated" / name.lower() / str(np.datetime64(day, "D")) / stream
        found = [(one.timestamp_ns, bytes(one.payload)) for one in messages_of(path)]
        remaining = iter(found)
        assert all(message in remaining for message in messages)
        copied += len(messages)
        assert stream == "book" or found == messages
    assert counts.books + counts.trades == copied
    assert len(tree(tmp_path)) == len(expected)
    assert sum(map(len, tree(tmp_path).values())) == copied + counts.snapshots


def test_a_snapshot_is_put_in_at_the_beginning_of_a_day_and_every_minute(raw: str, tmp_path: Path) -> None:
    refine(raw, tmp_path)
    for path in tmp_path.rglob("book"):
        headers = [header_of(message) for message in messages_of(path)]
        assert headers[0]["event_type"] == BookEventType.SNAPSHOT
        last_ns = 0
        for header in headers:
            now_ns = int(header["exchange_ts_ns"])
            if header["event_type"] == BookEventType.SNAPSHOT:
                assert now_ns - last_ns >= 60 * SECOND_NS
                last_ns = now_ns
            assert now_ns - last_ns < 60 * SECOND_NS


def test_a_second_run_writes_nothing(raw: str, tmp_path: Path) -> None:
    first = refine(raw, tmp_path)
    before = tree(tmp_path)
    second = refine(raw, tmp_path)
    assert second == Counts(known=sum(first))
    assert tree(tmp_path) == before


@pytest.fixture(scope="module")
def whole(raw: str, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """What one run over the raw queue makes of it."""
    root = tmp_path_factory.mktemp("whole")
    refine(raw, root)
    return tree(root)


@settings(max_examples=5)
@given(st.lists(st.integers(0, 3000), max_size=2))
def test_runs_that_end_anywhere_make_the_same_queues_as_one(raw: str, whole: Tree, ends: list[int]) -> None:
    with tempfile.TemporaryDirectory() as pieces:
        for end in sorted(ends):
            refine(raw, pieces, end)
        for number in range(3):
            refine(raw, pieces, mine=range(number, number + 1))
        assert tree(pieces) == whole


def write_events(path: str, times_ns: list[int], *, with_trades: bool = False) -> None:
    """Write heartbeats of the first symbol, or trades, with these times of the exchange."""
    with Queue.open_publisher(path, segment_size=1 << 16) as writer:
        for place, time_ns in enumerate(times_ns):
            if with_trades:
                trade = np.zeros(1, TRADE)
                trade["timestamp_ns"], trade["symbol_hash"] = time_ns, symbol_hash(NAMES[0])
                writer.append(TypeId.TRADE, trade.tobytes(), MIDNIGHT_NS + place)
                continue
            market = crypto_market_id(NAMES[0])
            header = new_headers(1, BookEventType.HEARTBEAT, BookMode.L2, market_id=market)
            header["exchange_ts_ns"] = time_ns
            writer.append(TypeId.BOOK_EVENT, header.tobytes(), MIDNIGHT_NS + place)


@pytest.mark.parametrize("with_trades", [False, True])
def test_what_comes_an_hour_after_its_day_is_late(tmp_path: Path, with_trades: bool) -> None:
    path = str(tmp_path / "raw")
    open_ns, closed_ns = MIDNIGHT_NS + HOUR_NS - 1, MIDNIGHT_NS + HOUR_NS
    evening_ns = MIDNIGHT_NS - 1
    times = [evening_ns, open_ns, evening_ns, closed_ns, evening_ns, 0]
    write_events(path, times, with_trades=with_trades)
    counts = refine(path, tmp_path / "out")
    assert counts.late == 1
    found = tree(tmp_path / "out" / "v1" / "simulated" / "sim0000")
    stream, extra = ("trades", 0) if with_trades else ("book", 1)
    evening, morning = (str(np.datetime64(MIDNIGHT_NS // DAY_NS + shift, "D")) for shift in (-1, 0))
    # Each book begins with a snapshot, and one is due after a minute of the exchange's time.
    assert len(found[f"{evening}/late"]) == 1
    assert len(found[f"{evening}/{stream}"]) == 2 + extra
    assert len(found[f"{morning}/{stream}"]) == 3 + extra


def test_a_symbol_that_is_not_named_ends_the_run(tmp_path: Path, raw: str) -> None:
    refinery = Refinery(str(tmp_path), Symbols("simulated", NAMES[:2]), range(2), SMALL)
    with pytest.raises(InvalidConfig, match="no symbol of simulated has the market id"):
        refine_symbols(raw, SeqRange(0, 100), refinery)


def test_a_root_that_was_made_from_another_queue_is_refused(tmp_path: Path, raw: str) -> None:
    refine(raw, tmp_path)
    with pytest.raises(Corrupt, match="was it made from another queue"):
        refine(raw, tmp_path, 50)


def test_raw_messages_that_are_gone_end_the_run(tmp_path: Path) -> None:
    path = str(tmp_path / "raw")
    write_events(path, [MIDNIGHT_NS + number for number in range(2000)])
    os.unlink(min(Path(path).glob("*.q")))
    with pytest.raises(DataLost, match="messages 0 to"):
        refine(path, tmp_path / "out", 2000)


@pytest.mark.parametrize(
    ("name", "code"),
    [("BTCUSDT", "btcusdt"), ("BTC/USDT:PERP", "btc-usdt-perp"), ("a  -b!", "a-b"), ("000001", "000001")],
)
def test_symbols_have_one_form_in_paths(name: str, code: str) -> None:
    assert symbol_code(name) == code
