"""Kraken (API version 1): `book` with a CRC-32 of the ten best levels, and `trade`.

The venue keeps a fixed number of levels up to date: what falls out of them is not removed by a message.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from everlog.feeds.venue import BadFrame, BookDiff, BookSnapshot, Item, Refusal, TradePrint, Venue
from everlog.market.books import L2Book
from everlog.market.protocol import LEVEL_BYTES

CHECKED_LEVELS: Final = 10
_FRAMES: Final = msgspec.json.Decoder()


class Kraken(Venue):
    """Kraken spot."""

    name = "kraken"
    url = "wss://ws.kraken.com"
    symbols_max = 50
    depth = 1000
    ping_text = '{"event":"ping"}'

    def subscriptions(self, symbols: Sequence[str], channels: Sequence[str]) -> list[str]:
        """One frame per channel."""
        frames = [_request("subscribe", symbols, {"name": "book", "depth": self.depth})]
        if "trades" in channels:
            frames.append(_request("subscribe", symbols, {"name": "trade"}))
        return frames

    def renewals(self, symbol: str) -> list[str]:
        """A new subscription begins with a snapshot."""
        book = {"name": "book", "depth": self.depth}
        return [_request(event, [symbol], book) for event in ("unsubscribe", "subscribe")]

    def decode(self, frame: bytes) -> Sequence[Item]:
        """Data are lists: channel id, one part or two, channel name, pair. Everything else has an event."""
        one = _FRAMES.decode(frame)
        if isinstance(one, dict):
            if one.get("status") == "error" or one.get("event") == "error":
                return (
                    Refusal(
                        str(one.get("errorMessage", one)),
                    ),
                )
            return ()
        if not isinstance(one, list) or len(one) < 4 or not isinstance(one[-1], str):
            raise BadFrame("neither an event nor data of a channel")
        symbol, name = one[-1], str(one[-2])
        if name.startswith("book"):
            return (_book(symbol, one[1:-2]),)
        if name == "trade":
            return [_trade(symbol, row) for row in one[1]]
        return ()

    def checksum(self, book: L2Book) -> int:
        """Digits of price and size of the best asks, then bids, without points and leading zeros."""
        bids, asks = book.best_packed(CHECKED_LEVELS)
        levels = asks + bids
        numbers = struct.unpack("<" + "qQ" * (len(levels) // LEVEL_BYTES), levels)
        return zlib.crc32(b"%d" * len(numbers) % numbers)


def _book(symbol: str, parts: list[dict[str, Any]]) -> BookSnapshot | BookDiff:
    merged = parts[0]
    for part in parts[1:]:
        merged = {**merged, **part}
    if "as" in merged or "bs" in merged:
        bids, asks = merged.get("bs", []), merged.get("as", [])
        return BookSnapshot(symbol, bids, asks, exchange_ns=_latest_ns(bids, asks))
    bids, asks = merged.get("b", []), merged.get("a", [])
    checksum = merged.get("c")
    return BookDiff(
        symbol,
        bids,
        asks,
        exchange_ns=_latest_ns(bids, asks),
        checksum=None if checksum is None else int(checksum),
    )


def _trade(symbol: str, row: list[str]) -> TradePrint:
    """Trades have no number; the taker's side is `b` or `s`."""
    return TradePrint(symbol, row[0], row[1], 0, row[3] == "s", _time_ns(row[2]))


def _latest_ns(*sides: Sequence[Sequence[str]]) -> int:
    # Seconds have ten digits from 2001 to 2286, so the latest is the last in the order of texts too.
    times = [level[2] for side in sides for level in side]
    return _time_ns(max(times)) if times else 0


def _time_ns(text: str) -> int:
    seconds, _, fraction = text.partition(".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0")[:9])


def _request(event: str, symbols: Sequence[str], subscription: dict[str, Any]) -> str:
    return msgspec.json.encode({"event": event, "pair": [*symbols], "subscription": subscription}).decode()
