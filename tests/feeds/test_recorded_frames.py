"""Recorded frames of every venue through a session into books, against what the exchanges said themselves."""

from __future__ import annotations

import bisect
import json
import zlib
from typing import Any

import pytest

from everlog.feeds.venue import Venue
from everlog.feeds.venues import VENUES
from everlog.market.books import L2Book
from everlog.market.protocol import MessageFlags, TypeId
from tests.support.feed_runs import RECORDINGS, FedBooks, new_session, played, sides_of


def kraken_text(book: L2Book, symbol_digits: tuple[int, int]) -> str:
    """The text of Kraken's checksum, made of decimal text alone."""
    words = []
    bids, asks = sides_of(book, 10)
    for price, size in (*asks, *bids):
        for text, digits in ((price, symbol_digits[0]), (size, symbol_digits[1])):
            whole, _, fraction = text.partition(".")
            words.append((whole + fraction.ljust(digits, "0")).lstrip("0"))
    return "".join(words)


def test_every_kraken_update_leaves_the_book_of_the_exchange_s_checksum() -> None:
    recording = RECORDINGS["kraken"]
    session, books = new_session(recording), FedBooks(recording.venue)
    digits: dict[str, tuple[int, int]] = {}
    checked = 0
    for line, messages in played(recording, session):
        books.apply(messages)
        frame = json.loads(line.body)
        if not isinstance(frame, list):
            continue
        merged: dict[str, Any] = {name: value for part in frame[1:-2] for name, value in part.items()}
        if "as" in merged:
            price, size = merged["as"][0][:2]
            digits[frame[-1]] = len(price.partition(".")[2]), len(size.partition(".")[2])
        elif "c" in merged:
            text = kraken_text(books.book(frame[-1]), digits[frame[-1]])
            assert zlib.crc32(text.encode()) == int(merged["c"])
            checked += 1
    assert checked == 4269
    assert not any(state.counts["gaps"] for state in session.symbols.values())
    assert all(books.book(symbol).bid_count <= 1000 for symbol in recording.symbols)


def test_every_okx_update_leaves_the_book_of_the_exchange_s_checksum() -> None:
    recording = RECORDINGS["okx"]
    session, books = new_session(recording), FedBooks(recording.venue)
    checked = 0
    for line, messages in played(recording, session):
        books.apply(messages)
        frame = json.loads(line.body)
        if frame.get("arg", {}).get("channel") != "books" or "data" not in frame:
            continue
        bids, asks = sides_of(books.book(frame["arg"]["instId"]), 25)
        words = []
        for at in range(25):
            words += [word for side in (bids, asks) if at < len(side) for word in side[at]]
        value = zlib.crc32(":".join(words).encode())
        assert (value - 2**32 if value >= 2**31 else value) == frame["data"][0]["checksum"]
        checked += 1
    assert checked == 290
    assert sum(state.counts["checked"] for state in session.symbols.values()) == 287
    assert not any(state.counts["gaps"] for state in session.symbols.values())


@pytest.mark.parametrize(("name", "least"), [("spot", 3300), ("usdm", 6400), ("four", 20)])
def test_every_binance_top_is_the_exchange_s_own_quote_of_the_same_update(name: str, least: int) -> None:
    recording = RECORDINGS[name]
    lines = recording.lines()
    quotes: dict[str, list[tuple[int, tuple[str, ...]]]] = {symbol: [] for symbol in recording.symbols}
    for line in lines:
        frame = json.loads(line.body)
        if frame.get("stream", "").endswith("@bookTicker"):
            data = frame["data"]
            texts = tuple(_plain(data[field]) for field in ("b", "B", "a", "A"))
            quotes[data["s"]].append((data["u"], texts))
    for rows in quotes.values():
        rows.sort()
    session, books = new_session(recording), FedBooks(recording.venue)
    checked = 0
    for line, messages in played(recording, session):
        books.apply(messages)
        frame = json.loads(line.body)
        data = frame.get("data", {})
        if not messages or data.get("e") != "depthUpdate":
            continue
        # The quote in force after update u is the last one whose id is not larger.
        rows = quotes[data["s"]]
        place = bisect.bisect_right(rows, (data["u"], ("~",))) - 1
        if place < 0:
            continue
        bids, asks = sides_of(books.book(data["s"]), 1)
        assert (*bids[0], *asks[0]) == rows[place][1], f"update {data['u']}"
        checked += 1
    assert checked >= least
    assert not any(state.counts["gaps"] for state in session.symbols.values())
    assert all(state.is_live for state in session.symbols.values())


def _plain(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def test_coinbase_books_equal_a_plain_replay_and_matches_are_trades() -> None:
    recording = RECORDINGS["coinbase"]
    session, books = new_session(recording), FedBooks(recording.venue)
    plain: dict[str, tuple[dict[float, str], dict[float, str]]] = {}
    matches = trades = 0
    for number, (line, messages) in enumerate(played(recording, session)):
        books.apply(messages)
        trades += sum(kind == TypeId.TRADE for kind, _, _ in messages)
        frame = json.loads(line.body)
        matches += frame["type"] == "match"
        if frame["type"] == "snapshot":
            plain[frame["product_id"]] = tuple(  # type: ignore[assignment]
                {float(price): _plain(size) for price, size in frame[side]} for side in ("bids", "asks")
            )
        for side, price, size in frame.get("changes", ()):
            kept = plain[frame["product_id"]][side == "sell"]
            kept.pop(float(price), None)
            if float(size):
                kept[float(price)] = _plain(size)
        if number % 500 == 0 or number > 9900:
            for symbol, sides in plain.items():
                found = sides_of(books.book(symbol))
                assert [{float(price): size for price, size in side} for side in found] == [*sides]
    assert matches == trades == 97
    assert len(plain) == 10


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_frame_ends_one_event(name: str) -> None:
    recording = RECORDINGS[name]
    for _, messages in played(recording, new_session(recording)):
        books = [flags for kind, _, flags in messages if kind == TypeId.BOOK_EVENT]
        ends = [bool(flags & MessageFlags.LAST_OF_EVENT) for flags in books]
        assert ends in ([], [*[False] * (len(ends) - 1), True])


def test_a_venue_is_small() -> None:
    for venue in VENUES.values():
        assert issubclass(venue, Venue)
        with open(str(__import__(venue.__module__, fromlist=["_"]).__file__), encoding="utf-8") as file:
            assert len(file.readlines()) <= 300
