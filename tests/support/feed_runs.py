"""Live feeds in tests: recordings, a session driven by them, a venue on loopback, and books of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everlog.feeds.config import FeedConfig
from everlog.feeds.connection import FeedRunner
from everlog.feeds.recordings import RecordedFrame, read_frames
from everlog.feeds.rehearsal import Rehearsal, TrueBook
from everlog.feeds.session import FeedSession, Flagged
from everlog.feeds.venues import VENUES
from everlog.market.book_set import BookSet, Market
from everlog.market.books import L2Book
from everlog.market.protocol import TypeId, crypto_market_id
from everlog.market.venues.registry import venue_id
from tests.support.import_runs import real_file

KRAKEN = [
    "WAVES/EUR",
    "XMR/USD",
    "KSM/XBT",
    "GRT/ETH",
    "SC/EUR",
    "ETH/CHF",
    "OCEAN/XBT",
    "OMG/USD",
    "XBT/CHF",
    "ADA/XBT",
]
COINBASE = [
    "SKL-USD",
    "SKL-BTC",
    "BAND-GBP",
    "NMR-EUR",
    "BAND-BTC",
    "YFI-BTC",
    "DASH-BTC",
    "NU-GBP",
    "CRV-EUR",
    "SKL-GBP",
]
OKX = ["BTC-USD-220527", "UNI-USD-SWAP", "BTC-USDT"]
FOUR = ["NKNUSDT", "BLZETH", "LRCBTC", "RUNEEUR"]


@dataclass(frozen=True)
class Recording:
    """Recorded frames of a venue."""

    venue: str
    symbols: list[str]
    names: tuple[str, ...]

    def paths(self) -> list[Path]:
        return [real_file(name) for name in self.names]

    def lines(self) -> list[RecordedFrame]:
        """Frames and answers of REST, in the order in which they came."""
        lines = [line for path in self.paths() for line in read_frames(path)]
        chosen = [line for line in lines if line.kind in ("frame", "rest")]
        return sorted(chosen, key=lambda line: line.received_ns)

    def symbol_of(self, line: RecordedFrame) -> str:
        """Whose book an answer of REST is."""
        asked = line.address.partition("symbol=")[2].partition("&")[0]
        return asked or self.symbols[0]


RECORDINGS = {
    "kraken": Recording("kraken", KRAKEN, ("kraken-book1000-20210417.frames.gz",)),
    "okx": Recording("okex", OKX, ("okx-books-20220513.frames.gz",)),
    "coinbase": Recording("coinbase", COINBASE, ("coinbase-level2-20210417.frames.gz",)),
    "spot": Recording("binance", ["BTCUSDT"], ("binance-spot-btcusdt-20240808.raw.gz",)),
    "usdm": Recording("binance-futures", ["ETHUSDT"], ("binance-usdm-ethusdt-20240808.raw.gz",)),
    "four": Recording(
        "binance",
        FOUR,
        ("binance-spot-depth-20211012.frames.gz", "binance-spot-depth-20211012.snapshots.gz"),
    ),
}


def played(recording: Recording, session: FeedSession) -> Iterator[tuple[RecordedFrame, list[Flagged]]]:
    """Drive a session with a recording; yield each line with the messages it led to."""
    lines = recording.lines()
    session.connected(lines[0].received_ns, is_continued=False)
    for line in lines:
        if line.kind == "rest":
            yield line, session.snapshot(recording.symbol_of(line), line.body, line.received_ns)
        else:
            yield line, session.frame(line.body, line.received_ns)


def new_session(recording: Recording) -> FeedSession:
    return FeedSession(VENUES[recording.venue](), recording.symbols)


class FedBooks:
    """Books of the messages of a feed; a gap in their numbers raises."""

    def __init__(self, venue: str) -> None:
        self.books = BookSet()
        self._venue_id = venue_id(venue)

    def apply(self, messages: Sequence[tuple[int, bytes, Any]]) -> None:
        for kind, payload, _ in messages:
            if kind == TypeId.BOOK_EVENT:
                self.books.apply(payload)

    def book(self, symbol: str) -> L2Book:
        found = self.books.books[Market(self._venue_id, crypto_market_id(symbol))]
        assert isinstance(found, L2Book)
        return found


def sides_of(book: L2Book, depth: int = 2**31) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The best levels as text without trailing zeros."""
    bids, asks = (
        [(book.render_price(price), book.render_size(size)) for price, size in side.tolist()]
        for side in book.depth(depth)
    )
    return bids, asks


def true_sides(book: TrueBook) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The levels of a rehearsal's book in the same form."""
    bids, asks = ([(_plain(price), _plain(size)) for price, size in side] for side in book.levels())
    return bids, asks


def _plain(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


@asynccontextmanager
async def running(server: Rehearsal, root: Path, **settings: Any) -> AsyncIterator[FeedRunner]:
    """A venue on loopback and a connection to it; both end with the block."""
    address = await server.start()
    feed = FeedConfig(
        venue=server.venue.name,
        name="feed",
        symbols=server.symbols,
        url=f"ws://{address}",
        rest_url=f"http://{address}",
        segment_mib=1,
        **{"retry_s": 0.05, "backoff_max_s": 0.1, **settings},
    )
    runner = FeedRunner(feed, str(root))
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        runner.stop.set()
        await task
        await server.close()


async def until_live(server: Rehearsal, runner: FeedRunner, timeout_s: float = 60.0) -> None:
    """Wait until everything was played and every symbol has its book."""
    async with asyncio.timeout(timeout_s):
        await server.finished.wait()
        while not all(state.is_live for state in runner.session.symbols.values()):
            await asyncio.sleep(0.02)
