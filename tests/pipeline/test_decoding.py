"""Typed columns of market data: those of a plain twin, for every kind of message, and only what is asked."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from everlog.errors import Corrupt, InvalidConfig, UnsupportedVersion
from everlog.market.protocol import TRADE, TRADE_SIDE_UNKNOWN, TypeId
from everlog.pipeline.sources.base import BatchReader
from everlog.pipeline.sources.queue import QueueSource
from everlog.queue import Queue
from tests.pipeline.spark_payloads import BOOK_EVENT, HEADER, MARKETS, VENUES, Sample, book_events, samples
from tests.support.effort import effort

# Every example writes and opens a queue.
few = settings(max_examples=effort(25))
DECODED = ("book", "trade", "l3")


def write(path: str, messages: Sequence[Sample]) -> None:
    """Append messages; number n has the time 1000 + n."""
    with Queue.open_publisher(path, segment_size=1 << 16) as writer:
        for number, one in enumerate(messages):
            writer.append(one.type_id, one.payload, 1000 + number)


def rows_of(path: str, **options: str) -> list[dict[str, Any]]:
    """Read a queue with these options, as a task does."""
    reader = BatchReader(QueueSource.parse({"path": path, **options}))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@few
@given(samples)
def test_every_decoding_shows_its_messages_as_the_twin_does(messages: list[Sample]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "q")
        write(path, messages)
        for decode in DECODED:
            expected = [
                {"queue": path, "seq": seq, "ts_ns": 1000 + seq, **one.row}
                for seq, one in enumerate(messages)
                if one.decode == decode
            ]
            assert rows_of(path, decode=decode) == expected


@few
@given(samples)
def test_venues_and_markets_are_chosen_at_the_source(messages: list[Sample]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "q")
        write(path, messages)
        for decode, venue, market in product(("book", "l3", "raw"), VENUES, MARKETS):
            rows = rows_of(path, decode=decode, venue=f"{venue}", market=f"{market}", columns="seq")
            assert [row["seq"] for row in rows] == [
                seq
                for seq, one in enumerate(messages)
                if (one.row.get("venue_id"), one.row.get("market_id")) == (venue, market)
                and decode in (one.decode, "raw")
            ]


@few
@given(book_events())
def test_a_column_alone_is_the_same_as_among_all(message: Sample) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "q")
        write(path, [message, message])
        (whole, _) = rows_of(path, decode="book")
        for name in whole:
            assert rows_of(path, decode="book", columns=name)[0] == {name: whole[name]}


def test_a_trade_whose_side_the_source_did_not_tell_has_none(tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    payloads = np.zeros(3, TRADE)
    payloads["is_buyer_maker"] = (0, 1, 1)
    with Queue.open_publisher(path) as writer:
        ends = np.arange(1, 4, dtype=np.uint64) * np.uint64(TRADE.itemsize)
        flags = np.array([0, 0, TRADE_SIDE_UNKNOWN], dtype=np.uint16)
        stamps = np.arange(3, dtype=np.uint64)
        writer.append_packed(TypeId.TRADE, payloads.view(np.uint8), ends, stamps, flags)
    assert [row["is_buyer_maker"] for row in rows_of(path, decode="trade")] == [False, True, None]


def book_payload(*, version: int = 3, length: int = 64, kind: int = 3, mode: int = 0, rest: int = 0) -> bytes:
    """A book event with one thing wrong."""
    return HEADER.pack(version, length, 0, 1, 7, 0, 0, 0, 0, 0, kind, mode, 0) + bytes(rest)


@pytest.mark.parametrize(
    ("type_id", "payload", "decode", "error", "said"),
    [
        (TypeId.TRADE, bytes(63), "trade", Corrupt, "message 0 is a trade of 63 bytes; it must have 64"),
        (BOOK_EVENT, bytes(10), "book", Corrupt, "message 0 is a book event of 10 bytes"),
        (BOOK_EVENT, book_payload(version=5), "book", UnsupportedVersion, "schema version 5"),
        (BOOK_EVENT, book_payload(length=80), "l3", Corrupt, "says 80 bytes, its payload has 64"),
        (BOOK_EVENT, book_payload(mode=1), "l3", Corrupt, "order event of 64 bytes; it must have 128"),
        (BOOK_EVENT, book_payload(kind=2), "book", Corrupt, "too short for its body"),
        (BOOK_EVENT, book_payload(kind=1, length=92, rest=28), "book", Corrupt, "has 0 levels by its counts"),
    ],
)
def test_what_breaks_the_protocol_is_named(
    tmp_path: Path, type_id: int, payload: bytes, decode: str, error: type[Exception], said: str
) -> None:
    path = str(tmp_path / "q")
    write(path, [Sample(type_id, payload, None, {})])
    with pytest.raises(error, match=said):
        rows_of(path, decode=decode)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decode": "l2"}, "one of raw, book, trade, l3"),
        ({"decode": "book", "typeId": "1"}, "leave out typeId"),
        ({"decode": "trade", "market": "7"}, "symbol_hash instead of market"),
        ({"decode": "l3", "columns": "payload"}, r"some of \*, queue, seq, ts_ns, venue_id"),
        ({"venue": "binance"}, "numbers such as"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        QueueSource.parse({"path": "q", **options})


def test_a_relative_path_is_made_absolute_where_the_read_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks have the working directory of their executor."""
    monkeypatch.chdir(tmp_path)
    assert QueueSource.parse({"path": "feed"}).path == str(tmp_path / "feed")
