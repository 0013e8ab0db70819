"""Binance: spot and USD-M futures. Diffs over combined streams, the book itself over REST.

Spot diffs have a range of update ids `U` to `u`, each beginning after the one before; futures also name the
one before in `pu`, and their ranges have holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final
from urllib.parse import quote

import msgspec

from everlog.feeds.venue import (
    NS_PER_MS,
    BookDiff,
    BookSnapshot,
    Item,
    Quote,
    Refusal,
    TradePrint,
    Venue,
)
from everlog.market.symbols import SymbolDefinition
from everlog.market.venues.binance_info import exchange_info

_STREAMS: Final = {"book": "depth@100ms", "trades": "trade", "quotes": "bookTicker"}


class _Diff(msgspec.Struct, gc=False):
    s: str
    U: int
    u: int
    b: list[tuple[str, str]]
    a: list[tuple[str, str]]
    E: int = 0
    T: int = 0
    pu: int | None = None


class _Trade(msgspec.Struct, gc=False):
    s: str
    p: str
    q: str
    t: int
    T: int
    m: bool


class _Ticker(msgspec.Struct, gc=False):
    s: str
    b: str
    B: str
    a: str
    A: str
    T: int = 0


class _Error(msgspec.Struct, gc=False):
    code: int
    msg: str


class _Frame(msgspec.Struct, gc=False):
    stream: str = ""
    data: msgspec.Raw = msgspec.Raw()
    error: _Error | None = None


class _Depth(msgspec.Struct, gc=False):
    lastUpdateId: int
    bids: list[tuple[str, str]]
    asks: list[tuple[str, str]]
    E: int = 0
    T: int = 0


class _Time(msgspec.Struct):
    serverTime: int


_FRAMES: Final = msgspec.json.Decoder(_Frame)
_DIFFS: Final = msgspec.json.Decoder(_Diff)
_TRADES: Final = msgspec.json.Decoder(_Trade)
_TICKERS: Final = msgspec.json.Decoder(_Ticker)
_DEPTHS: Final = msgspec.json.Decoder(_Depth)
_TIMES: Final = msgspec.json.Decoder(_Time)


class BinanceSpot(Venue):
    """Binance spot."""

    name = "binance"
    url = "wss://stream.binance.com:9443"
    rest_url = "https://api.binance.com"
    symbols_max = 300  # 1024 streams a connection, three a symbol
    stale_s = 60.0
    time_target = "/api/v3/time"
    depth_target: ClassVar[str] = "/api/v3/depth"

    def path(self, symbols: Sequence[str], channels: Sequence[str]) -> str:
        """All streams are named in the path."""
        streams = [f"{symbol.lower()}@{_STREAMS[channel]}" for symbol in symbols for channel in channels]
        return "/stream?streams=" + "/".join(streams)

    def snapshot_target(self, symbol: str) -> str | None:
        """The book with 1000 levels."""
        return f"{self.depth_target}?symbol={symbol}&limit=1000"

    def decode(self, frame: bytes) -> Sequence[Item]:
        """Diffs, trades and quotes, by the name of their stream; other streams are passed over."""
        whole = _FRAMES.decode(frame)
        if whole.error is not None:
            return (Refusal(f"{whole.error.code}: {whole.error.msg}"),)
        # `depth20@100ms` has the best levels again and again, from which no book can be kept.
        stream = whole.stream.partition("@")[2].partition("@")[0]
        if stream == "depth":
            diff = _DIFFS.decode(whole.data)
            exchange_ns = (diff.T or diff.E) * NS_PER_MS
            return (BookDiff(diff.s, diff.b, diff.a, diff.U, diff.u, diff.pu, exchange_ns),)
        if stream == "bookTicker":
            best = _TICKERS.decode(whole.data)
            return (Quote(best.s, best.b, best.B, best.a, best.A, best.T * NS_PER_MS),)
        if stream == "trade":
            trade = _TRADES.decode(whole.data)
            return (TradePrint(trade.s, trade.p, trade.q, trade.t, trade.m, trade.T * NS_PER_MS),)
        return ()

    def decode_snapshot(self, symbol: str, body: bytes) -> BookSnapshot:
        """Futures say when the book was so; spot does not."""
        depth = _DEPTHS.decode(body)
        return BookSnapshot(symbol, depth.bids, depth.asks, depth.lastUpdateId, depth.T * NS_PER_MS)

    def info_target(self, symbols: Sequence[str]) -> str | None:
        """Spot is asked for its symbols alone; futures have one answer for all."""
        names = quote(msgspec.json.encode(list(symbols)).decode())
        return f"/api/v3/exchangeInfo?symbols={names}"

    def decode_info(self, symbols: Sequence[str], body: bytes, at_ts: int) -> list[SymbolDefinition]:
        """Assets, tick and lot sizes."""
        return exchange_info(body, self.name, symbols, at_ts)

    def server_time_ns(self, body: bytes) -> int:
        """In milliseconds."""
        return _TIMES.decode(body).serverTime * NS_PER_MS


class BinanceUsdm(BinanceSpot):
    """Binance USD-M futures."""

    name = "binance-futures"
    url = "wss://fstream.binance.com"
    rest_url = "https://fapi.binance.com"
    symbols_max = 60  # 200 streams a connection, three a symbol
    time_target = "/fapi/v1/time"
    depth_target = "/fapi/v1/depth"

    def info_target(self, symbols: Sequence[str]) -> str | None:
        """All symbols at once."""
        return "/fapi/v1/exchangeInfo"
