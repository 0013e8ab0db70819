"""Damaged market data: importers and books name what is wrong or go on, whatever a file or an event holds."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zstandard

from everlog.errors import EverlogError
from everlog.market.book_results import Outputs
from everlog.market.books import L2Book, L3Book
from everlog.market.packing import PackedRecords
from everlog.market.protocol import L3_RECORD
from everlog.market.venues.simulated import SimulatedVenue
from everlog.native.market.events import (
    CHOICE,
    DECIMAL,
    HASH,
    IDENTIFIER,
    PRICE,
    SIGNED,
    UNSIGNED,
    RowParser,
    split_markets,
)
from tests.market.venues.dbn_files import dbn_file, made_up_day, mbo, package, records
from tests.market.venues.tardis_files import write_tardis_files
from tests.market.venues.test_itch import made_up_day as made_up_messages
from tests.market.venues.test_itch import opening
from tests.support.book_twins import L3Row, l3_records
from tests.support.fuzzing import fuzz, mutated
from tests.support.import_runs import payloads_of, run_importer

NUMBERS = (b",", b"\n", b"\r\n", b'"', b"-", b".", b"e-9", b"9" * 20, b"18446744073709551616", b"\xff", b"\0")
LOBSTER = (
    b"34200.1,1,10,100,5853300,1\n34201.5,1,11,50,5853300,-1\n34202,2,10,40,5853300,1\n34205,7,0,0,-1,-1\n"
)
BINANCE = (
    (
        "binance-trades",
        "trades",
        b"1,10.5,2,21,1723075200000,True,True\n2,9,1,1,1723075200001,False,True\n",
    ),
    (
        "binance-agg-trades",
        "aggTrades",
        b"1,10.5,2,1,1,1723075200000,True,True\n3,9,1,2,2,1723075200001,False,True\n",
    ),
    (
        "binance-book-depth",
        "bookDepth",
        b"timestamp,percentage,depth,notional\n2024-08-08 00:00:07,-1,2.5,100\n2024-08-08 00:00:07,1,2,90\n",
    ),
    ("binance-klines", "1m", b"1723075200000,1,3,1,2,9.5,1723075259999,19,4,5,10,0\n"),
)
_TARDIS_HEAD = b"exchange,symbol,timestamp,local_timestamp,"
TARDIS = (
    (
        "tardis-quotes",
        _TARDIS_HEAD
        + b"ask_amount,ask_price,bid_price,bid_amount\nbinance,BTCUSDT,1,2,3,4.5,4,1\n"
        + b"binance,BTCUSDT,2,3,,,4,1\n",
    ),
    (
        "tardis-snapshots",
        _TARDIS_HEAD
        + b"asks[0].price,asks[0].amount,bids[0].price,bids[0].amount\nbinance,BTCUSDT,1,2,4.5,1,4,1\n",
    ),
)
LOBSTER_NAME = "AAPL_2012-06-21_34200000_57600000_message_50.csv"
KINDS = (UNSIGNED, SIGNED, DECIMAL, PRICE, IDENTIFIER, HASH)
ROWS = (
    b'1,-2,3.25,-4.5,abc,"d,e",buy\n7,8,0.0001,1e3,x-1,y,sell\n18446744073709551615,0,.5,9,z,"q ""r""",buy\n'
)


def test_rows_of_any_text_are_parsed_or_named() -> None:
    columns = [(place, kind, []) for place, kind in enumerate(KINDS)]
    choices = [(b"buy", 1), (b"sell", 2)]

    def check(rng: random.Random) -> None:
        text = mutated(rng, [ROWS], NUMBERS)
        parser = RowParser([*columns, (6, CHOICE, choices)], 7)
        capacity = rng.choice((1, 3, text.count(b"\n") + 1))
        values = [np.zeros(capacity, np.uint64) for _ in range(7)]
        extras = [np.zeros(capacity, np.uint8) for _ in range(7)]
        result = parser.parse(text, values, extras, np.zeros(capacity, np.uint32))
        assert result[0] <= capacity
        assert result[1] <= len(text)

    fuzz(check)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, bytes]]:
    """A small file of each format: its format, its name and its content."""
    folder = tmp_path_factory.mktemp("files")
    book, trades = write_tardis_files(
        SimulatedVenue(1, seed=3, kinds=("l2", "trades"), resting_orders=10), 40, folder
    )
    orders = dbn_file(folder, "mbo", mbo(made_up_day(5, 60)))
    bars = dbn_file(
        folder, "ohlcv-1m", records(package.OHLCVMsg, 0x21, [{"volume": 3}, {"instrument_id": 42}])
    )
    defined = {"raw_symbol": b"ESH4", "min_price_increment": 250_000_000}
    definitions = dbn_file(folder, "definition", records(package.InstrumentDefMsg, 0x13, [defined] * 3))
    return [
        ("dbn", bars.name, bars.read_bytes()),
        ("dbn", definitions.name, definitions.read_bytes()),
        ("itch", "01302019.NASDAQ_ITCH50", opening() + made_up_messages(5, 60)[0]),
        *((name, f"BTCUSDT-{kind}-2024-08-08.csv", text) for name, kind, text in BINANCE),
        *((name, "binance_quotes_2024-01-02_BTCUSDT.csv", text) for name, text in TARDIS),
        ("tardis-book", book.name, book.read_bytes()),
        ("tardis-trades", trades.name, trades.read_bytes()),
        ("lobster", LOBSTER_NAME, LOBSTER),
        ("dbn", orders.name, orders.read_bytes()),
        ("dbn", "packed.dbn.zst", zstandard.ZstdCompressor().compress(orders.read_bytes())),
    ]


def test_damaged_files_are_imported_or_refused(files: list[tuple[str, str, bytes]], tmp_path: Path) -> None:
    for kind, name, content in files:
        (tmp_path / name).write_bytes(content)
        assert run_importer(kind, [tmp_path / name]).tally.rows > 0

    def check(rng: random.Random) -> None:
        kind, name, content = rng.choice(files)
        pieces = NUMBERS if name.endswith(".csv") else (b"\0", b"\xff", b"\x0e\xa0")
        (tmp_path / name).write_bytes(mutated(rng, [content], pieces))
        with suppress(EverlogError):
            run_importer(kind, [tmp_path / name])

    fuzz(check)


def l2_payloads() -> list[bytes]:
    """Snapshots and diffs of one market."""
    blocks = SimulatedVenue(1, seed=4, kinds=("l2",), resting_orders=10).blocks(60)
    return [payload for block in blocks for payload in payloads_of(block) if len(payload) > 64]


def packed(payloads: list[bytes], rng: random.Random) -> PackedRecords:
    """Payloads in one buffer; now and then a length or an offset is wrong."""
    lengths = np.array([len(payload) for payload in payloads], np.uint64)
    offsets = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.uint64)
    if rng.random() < 0.2:
        rng.choice((lengths, offsets))[rng.randrange(len(payloads))] = rng.choice((0, 1, 2**32, 2**64 - 1))
    return PackedRecords(np.frombuffer(b"".join(payloads), np.uint8), offsets, lengths)


def test_damaged_level_events_leave_a_book_that_can_be_read() -> None:
    payloads = l2_payloads()

    def check(rng: random.Random) -> None:
        book = L2Book(gap_policy=rng.choice(("panic", "quarantine", "ignore")), max_levels=200)
        first = rng.randrange(len(payloads))
        events = payloads[first : first + 20]
        for _ in range(rng.choice((1, 3))):
            events[rng.randrange(len(events))] = mutated(rng, payloads)
        want = Outputs(top=True, depth=rng.choice((0, 3)))
        array = packed(events, rng)
        split_markets(array.buffer, array.offsets, array.lengths)
        with suppress(EverlogError):
            book.apply_array(array, want)
        for event in events:
            with suppress(EverlogError):
                book.apply_and_top(event)
        book.load_payload(book.snapshot_payload())

    fuzz(check)


def random_orders(rng: random.Random, count: int) -> bytes:
    """Order events of which most name orders that exist."""
    rows: list[L3Row] = []
    for _ in range(count):
        kind = rng.choice((1, 1, 1, 2, 3, 4, 6))
        order = rng.randrange(1, 20)
        other = rng.randrange(20) if kind == 4 else 0
        rows.append(
            (kind, rng.choice((1, 2)), order, other, other, rng.randrange(1, 30), rng.randrange(9), 0)
        )
    return l3_records(rows).tobytes()


def test_damaged_order_events_leave_a_book_that_can_be_read() -> None:
    def check(rng: random.Random) -> None:
        book = L3Book(
            gap_policy=rng.choice(("panic", "quarantine", "ignore")),
            unknown_orders=rng.choice(("fail", "skip")),
            max_levels=200,
            max_orders=100,
        )
        data = bytearray(random_orders(rng, 60))
        for _ in range(rng.choice((1, 4))):
            at = rng.randrange(60) * L3_RECORD.itemsize
            data[at : at + L3_RECORD.itemsize] = mutated(rng, [bytes(data[at : at + L3_RECORD.itemsize])])[
                : L3_RECORD.itemsize
            ].ljust(L3_RECORD.itemsize, b"\0")
        events = np.frombuffer(bytes(data), L3_RECORD)
        with suppress(EverlogError):
            book.apply_array(events, Outputs(top=True, places=rng.random() < 0.5, depth=rng.choice((0, 3))))
        for event in events[-20:]:
            with suppress(EverlogError):
                book.apply(event.tobytes()[: rng.choice((128, 128, 127, 64, 0))])
        for row in book.orders():
            book.queue_place(int(row["order_id"]))
        copy = L3Book()
        copy.load_payload(book.snapshot_payload())
        assert copy.book_hash() == book.book_hash()

    fuzz(check)
