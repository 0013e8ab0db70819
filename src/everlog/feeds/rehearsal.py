"""A venue on loopback that plays recorded frames: its WebSocket and its REST on one port, at any speed.

Owns the player, the faults, and the books of what was played so far, which answer requests for a snapshot as
the venue would at that moment. Frames are sent to all connections, as they were recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from everlog.clock import SystemClock
from everlog.errors import InvalidConfig, InvalidSource
from everlog.feeds.recordings import RecordedFrame, read_frames
from everlog.feeds.venue import UNREADABLE, BookDiff, BookSnapshot, Item, Levels, Venue
from everlog.feeds.venues import VENUES
from everlog.market.pacing import AS_FAST_AS_POSSIBLE, Pacer

HELD_FRAMES_MAX: Final = 5
"""A frame that is late comes after at most this many others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances per frame, or per request, that something goes wrong."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    cut: float = 0.0
    delay_s: float = 0.0
    """Every frame is late by up to this long."""
    refuse: float = 0.0
    """Requests to REST that are answered 429 or 418."""

    def __post_init__(self) -> None:
        """Refuse what is no chance."""
        for name in ("drop", "duplicate", "reorder", "cut", "refuse"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InvalidConfig(f"{name} is a chance from 0 to 1, got {getattr(self, name)}")
        if not 0.0 <= self.delay_s <= 60.0:
            raise InvalidConfig(f"delay_s is 0 to 60, got {self.delay_s}")


def parse_faults(texts: Sequence[str]) -> Faults:
    """Return the faults of texts such as `drop=0.01`."""
    values: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            if name not in Faults.__dataclass_fields__:
                raise ValueError
            values[name] = float(value)
        except ValueError:
            valid = ", ".join(Faults.__dataclass_fields__)
            raise InvalidConfig(f"a fault is NAME=NUMBER with a name of {valid}; got {text!r}") from None
    return Faults(**values)


class TrueBook:
    """The book of a symbol after what was played so far, in the venue's own text."""

    def __init__(self, depth: int | None) -> None:
        self.bids: dict[float, tuple[str, str]] = {}
        self.asks: dict[float, tuple[str, str]] = {}
        self.last_id = 0
        self.is_known = False
        self._depth = depth
        self._played: list[BookDiff] = []

    def snapshot(self, one: BookSnapshot) -> None:
        """Begin with a snapshot; diffs that were played before and are newer still count."""
        self.bids.clear()
        self.asks.clear()
        self._set(one.bids, one.asks)
        self.last_id, self.is_known = one.update_id, True
        played, self._played = self._played, []
        for diff in played:
            if diff.last_id > one.update_id:
                self.diff(diff)

    def diff(self, diff: BookDiff) -> None:
        """Apply a diff, or keep it until a snapshot comes."""
        if not self.is_known:
            self._played.append(diff)
            return
        if diff.last_id and diff.last_id <= self.last_id:
            return
        self._set(diff.bids, diff.asks)
        self.last_id = diff.last_id or self.last_id

    def levels(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return bids and asks from the best on."""
        bids = [self.bids[price] for price in sorted(self.bids, reverse=True)]
        return bids, [self.asks[price] for price in sorted(self.asks)]

    def _set(self, bids: Levels, asks: Levels) -> None:
        for kept, levels, worst in ((self.bids, bids, min), (self.asks, asks, max)):
            for level in levels:
                price = float(level[0])
                if float(level[1]):
                    kept[price] = (level[0], level[1])
                else:
                    kept.pop(price, None)
            while self._depth is not None and len(kept) > self._depth:
                del kept[worst(kept)]


def _binance_book(symbol: str, book: TrueBook) -> dict[str, Any]:
    bids, asks = book.levels()
    return {"lastUpdateId": book.last_id, "bids": bids[:1000], "asks": asks[:1000]}


def _binance_info(prices: Mapping[str, str]) -> dict[str, Any]:
    """Say of each symbol what its own text shows: the decimals of its prices."""
    symbols = []
    for symbol, price in prices.items():
        tick = f"1e-{len(price.rstrip('0').partition('.')[2])}"
        rules = [{"filterType": "PRICE_FILTER", "tickSize": tick}]
        symbols.append({"symbol": symbol, "baseAsset": "", "quoteAsset": "", "filters": rules})
    return {"symbols": symbols}


def _coinbase_book(symbol: str, book: TrueBook) -> Any:
    bids, asks = book.levels()
    return {"type": "snapshot", "product_id": symbol, "bids": bids, "asks": asks}


def _kraken_book(symbol: str, book: TrueBook) -> Any:
    bids, asks = ([[*level, "0.000000"] for level in side] for side in book.levels())
    return [0, {"as": asks, "bs": bids}, "book-1000", symbol]


def _okx_book(symbol: str, book: TrueBook) -> Any:
    bids, asks = ([[*level, "0", "1"] for level in side] for side in book.levels())
    row = {"bids": bids, "asks": asks, "ts": "0", "seqId": book.last_id, "prevSeqId": -1}
    return {"arg": {"channel": "books", "instId": symbol}, "action": "snapshot", "data": [row]}


_RENDERED: Final[dict[str, Callable[[str, TrueBook], Any]]] = {
    "coinbase": _coinbase_book,
    "kraken": _kraken_book,
    "okex": _okx_book,
}


def _asked_symbols(frame: Any) -> list[str]:
    """Return whose books a frame of a client asks for."""
    if not isinstance(frame, dict):
        return []
    if frame.get("op") == "subscribe":
        return [one["instId"] for one in frame["args"] if one["channel"] == "books"]
    if frame.get("type") == "subscribe" and "level2" in frame.get("channels", ()):
        return list(frame["product_ids"])
    if frame.get("event") == "subscribe" and frame.get("subscription", {}).get("name") == "book":
        return list(frame["pair"])
    return []


class Rehearsal:
    """The server; `finished` is set when everything was played."""

    def __init__(
        self,
        venue: str,
        files: Sequence[Path],
        *,
        speed: float = 1.0,
        faults: Faults | None = None,
        seed: int = 0,
    ) -> None:
        """`speed` 0 plays as fast as connections take it."""
        if venue not in VENUES:
            raise InvalidConfig(f"unknown venue {venue!r}; valid are {', '.join(VENUES)}")
        self.venue: Venue = VENUES[venue]()
        self.frames = sorted(
            (one for path in files for one in read_frames(path) if one.kind in ("frame", "rest")),
            key=lambda one: one.received_ns,
        )
        self._prices = self._first_prices()
        if not self._prices:
            names = ", ".join(map(str, files))
            raise InvalidSource(f"{names}: no frame holds a book of {venue}; say with --venue whose they are")
        self.symbols = [*self._prices]
        self.books = {symbol: TrueBook(self.venue.depth) for symbol in self.symbols}
        self.finished = asyncio.Event()
        self.position = 0
        self.faults = faults or Faults()
        self.played: dict[str, int] = dict.fromkeys(("drop", "duplicate", "reorder", "cut", "refuse"), 0)
        self._speed = speed
        self._random = random.Random(seed)
        self._clients: dict[ServerConnection, list[tuple[int, bytes]]] = {}
        self._begun = asyncio.Event()
        self._server: Server | None = None
        self._player: asyncio.Task[None] | None = None

    def _first_prices(self) -> dict[str, str]:
        """Return the symbols in their order, each with a price of its book."""
        found: dict[str, str] = {}
        for one in self.frames:
            for item in self._items(one):
                if isinstance(item, BookDiff | BookSnapshot) and not found.get(item.symbol):
                    found[item.symbol] = next((level[0] for level in (*item.bids, *item.asks)), "")
        return found

    def _items(self, one: RecordedFrame) -> Sequence[Item]:
        """Return what a frame holds; nothing of one that cannot be read, which is played all the same."""
        try:
            return self.venue.decode(one.body) if one.kind == "frame" else ()
        except UNREADABLE:
            return ()

    async def start(self, port: int = 0) -> str:
        """Listen on loopback; return host and port."""
        self._server = await serve(
            self._handle, "127.0.0.1", port, process_request=self._answer, max_size=1 << 20
        )
        self._player = asyncio.create_task(self._play())
        host, bound = next(iter(self._server.sockets)).getsockname()[:2]
        return f"{host}:{bound}"

    async def close(self) -> None:
        """Stop playing and listening."""
        if self._player is not None:
            self._player.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._player
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    # -- the player -----------------------------------------------------------------------

    async def _play(self) -> None:
        await self._begun.wait()
        pacer = Pacer(SystemClock(), self._speed or AS_FAST_AS_POSSIBLE)
        pacer.jump(self.frames[0].received_ns if self.frames else 0)
        for number, one in enumerate(self.frames, start=1):
            if self._speed:
                await asyncio.sleep(pacer.wait_s(one.received_ns) or 0.0)
            while not self._clients:  # as fast as connections take it: without one, nothing is played
                self._begun.clear()
                await self._begun.wait()
            self._note(one)
            if one.kind == "frame":
                for client in [*self._clients]:
                    await self._deliver(client, one.body)
            self.position = number
            await asyncio.sleep(0)
        for client in [*self._clients]:
            await self._release(client, everything=True)
        self.finished.set()

    def _note(self, one: RecordedFrame) -> None:
        """Keep the books of what was played."""
        if one.kind == "rest":
            symbol = self.symbols[0]
            if "symbol=" in one.address:
                symbol = one.address.partition("symbol=")[2].partition("&")[0]
            with contextlib.suppress(*UNREADABLE):  # the recording may be damaged, or of more symbols
                self.books[symbol].snapshot(self.venue.decode_snapshot(symbol, one.body))
        for item in self._items(one):
            with contextlib.suppress(*UNREADABLE):
                if isinstance(item, BookSnapshot):
                    self.books[item.symbol].snapshot(item)
                elif isinstance(item, BookDiff):
                    self.books[item.symbol].diff(item)

    def _happens(self, fault: str) -> bool:
        chance: float = getattr(self.faults, fault)
        happens = self._random.random() < chance
        self.played[fault] += happens
        return happens

    async def _deliver(self, client: ServerConnection, body: bytes) -> None:
        if self.faults.delay_s:
            await asyncio.sleep(self._random.uniform(0.0, self.faults.delay_s))
        if self._happens("drop"):
            return
        if self._happens("cut"):
            self._clients.pop(client, None)
            client.transport.abort()
            return
        held = self._clients.get(client)
        if held is None:
            return
        if self._happens("reorder"):
            held.append((self._random.randint(1, HELD_FRAMES_MAX), body))
            return
        with contextlib.suppress(ConnectionClosed):
            await client.send(body, text=True)
            if self._happens("duplicate"):
                await client.send(body, text=True)
        await self._release(client)

    async def _release(self, client: ServerConnection, *, everything: bool = False) -> None:
        """Send the frames that were held back long enough."""
        held = self._clients.get(client)
        if not held:
            return
        counted = [(left - 1, body) for left, body in held]
        held[:] = [] if everything else [one for one in counted if one[0] > 0]
        with contextlib.suppress(ConnectionClosed):
            for left, body in counted:
                if everything or left <= 0:
                    await client.send(body, text=True)

    # -- clients --------------------------------------------------------------------------

    async def _handle(self, client: ServerConnection) -> None:
        if self.venue.snapshot_target("X") is not None:  # streams are named in the path
            self._join(client)
        try:
            async for frame in client:
                if frame == "ping":
                    await client.send("pong")
                    continue
                asked = _asked_symbols(msgspec.json.decode(frame))
                for symbol in asked:
                    book = self.books.get(symbol)
                    if book is not None and book.is_known:
                        rendered = _RENDERED[self.venue.name](symbol, book)
                        await client.send(msgspec.json.encode(rendered), text=True)
                if asked:
                    self._join(client)
        except ConnectionClosed:
            return
        finally:
            self._clients.pop(client, None)

    def _join(self, client: ServerConnection) -> None:
        self._clients.setdefault(client, [])
        self._begun.set()

    async def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer a request to REST; None lets a WebSocket through."""
        if "Upgrade" in request.headers:
            return None
        if self._happens("refuse"):
            status = self._random.choice((HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.IM_A_TEAPOT))
            refusal = connection.respond(status, '{"code":-1003,"msg":"too many requests"}')
            refusal.headers["Retry-After"] = "0"
            return refusal
        if "exchangeInfo" in request.path:
            body = msgspec.json.encode(_binance_info(self._prices)).decode()
            return connection.respond(HTTPStatus.OK, body)
        if "symbol=" in request.path:
            symbol = request.path.partition("symbol=")[2].partition("&")[0]
            book = self.books.get(symbol)
            if book is None:
                return connection.respond(HTTPStatus.BAD_REQUEST, '{"code":-1121,"msg":"Invalid symbol."}')
            while not book.is_known and not self.finished.is_set():
                await asyncio.sleep(0.01)
            body = msgspec.json.encode(_binance_book(symbol, book)).decode()
            return connection.respond(HTTPStatus.OK, body)
        now_ms = self.frames[max(0, self.position - 1)].received_ns // 1_000_000
        times = {"serverTime": now_ms, "data": [{"ts": str(now_ms)}]}
        return connection.respond(HTTPStatus.OK, msgspec.json.encode(times).decode())
