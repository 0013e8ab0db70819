"""OKX: `books` with a checksum of the 25 best levels and numbers where the venue sends them; `trades`."""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from everlog.feeds.encoding import PACKED_LEVEL
from everlog.feeds.venue import NS_PER_MS, BookDiff, BookSnapshot, Item, Refusal, TradePrint, Venue
from everlog.market.books import L2Book
from everlog.market.decimals import render_scaled
from everlog.market.protocol import LEVEL_BYTES

CHECKED_LEVELS: Final = 25
TEXTS_MAX: Final = 8192
_CHANNELS: Final = {"book": "books", "trades": "trades", "quotes": "bbo-tbt"}


class _Row(msgspec.Struct, gc=False):
    asks: list[list[str]] = []
    bids: list[list[str]] = []
    ts: str = "0"
    checksum: int | None = None
    seqId: int = 0
    prevSeqId: int = 0
    tradeId: str = "0"
    px: str = ""
    sz: str = ""
    side: str = ""


class _Argument(msgspec.Struct, gc=False):
    channel: str = ""
    instId: str = ""


class _Frame(msgspec.Struct, gc=False):
    arg: _Argument | None = None
    action: str = ""
    data: list[_Row] = []
    event: str = ""
    code: str = ""
    msg: str = ""


_FRAMES: Final = msgspec.json.Decoder(_Frame)


class Okx(Venue):
    """OKX spot, futures and swaps."""

    name = "okex"
    url = "wss://ws.okx.com:8443/ws/v5/public"
    symbols_max = 100
    frames_per_s = 2.0
    ping_text = "ping"
    time_target = "/api/v5/public/time"
    rest_url = "https://www.okx.com"

    def subscriptions(self, symbols: Sequence[str], channels: Sequence[str]) -> list[str]:
        """All channels of all instruments in one frame."""
        return [_request("subscribe", symbols, [_CHANNELS[channel] for channel in channels])]

    def renewals(self, symbol: str) -> list[str]:
        """A new subscription begins with a snapshot."""
        return [_request(kind, [symbol], ["books"]) for kind in ("unsubscribe", "subscribe")]

    def decode(self, frame: bytes) -> Sequence[Item]:
        """Data name their channel; `pong` answers a ping."""
        if frame == b"pong":
            return ()
        one = _FRAMES.decode(frame)
        if one.event == "error":
            return (Refusal(f"{one.code}: {one.msg}"),)
        if one.arg is None or not one.data:
            return ()
        if one.arg.channel == "books":
            return [_book(one.arg.instId, one.action, row) for row in one.data]
        if one.arg.channel == "trades":
            return [_trade(one.arg.instId, row) for row in one.data]
        return ()

    def checksum(self, book: L2Book) -> int:
        """Bid and ask in turn, from the best on, price and size in the venue's text; signed 32 bits."""
        text_of = _texts(book.price_scale, book.size_scale).__getitem__
        bids, asks = (
            [*map(text_of, struct.unpack("16s" * (len(side) // LEVEL_BYTES), side))]
            for side in book.best_packed(CHECKED_LEVELS)
        )
        words = itertools.chain.from_iterable(itertools.zip_longest(bids, asks))
        value = zlib.crc32(":".join(words if len(bids) == len(asks) else filter(None, words)).encode())
        return value - 2**32 if value >= 2**31 else value

    def server_time_ns(self, body: bytes) -> int:
        """In milliseconds, as text."""
        return int(msgspec.json.decode(body)["data"][0]["ts"]) * NS_PER_MS


class _Texts(dict[bytes, str]):
    """Levels as they stand in the checksum's text; most of the best stood there after the update before."""

    def __init__(self, price_scale: int, size_scale: int) -> None:
        super().__init__()
        self._scales = price_scale, size_scale

    def __missing__(self, packed: bytes) -> str:
        if len(self) >= TEXTS_MAX:
            self.clear()
        words = map(render_scaled, PACKED_LEVEL.unpack(packed), self._scales)
        self[packed] = text = ":".join(words)
        return text


_texts: Final = lru_cache(maxsize=64)(_Texts)


def _book(symbol: str, action: str, row: _Row) -> BookSnapshot | BookDiff:
    exchange_ns = int(row.ts) * NS_PER_MS
    if action == "snapshot":
        return BookSnapshot(symbol, row.bids, row.asks, row.seqId, exchange_ns, row.checksum)
    previous = row.prevSeqId if row.seqId else None
    return BookDiff(symbol, row.bids, row.asks, row.seqId, row.seqId, previous, exchange_ns, row.checksum)


def _trade(symbol: str, row: _Row) -> TradePrint:
    """The side is the taker's."""
    return TradePrint(symbol, row.px, row.sz, int(row.tradeId), row.side == "sell", int(row.ts) * NS_PER_MS)


def _request(kind: str, symbols: Sequence[str], channels: Sequence[str]) -> str:
    arguments: list[dict[str, Any]] = [
        {"channel": channel, "instId": symbol} for channel in channels for symbol in symbols
    ]
    return msgspec.json.encode({"op": kind, "args": arguments}).decode()
