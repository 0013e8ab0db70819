"""Recorded frames of live feeds: from the text of a frame to events, beside the parser of cryptofeed.

Owns which frames are measured: those of books that both know, in memory before the clock runs. Both follow
the venue's update ids and check its checksums; cryptofeed keeps a book and calls back after every frame,
everlog makes the messages of a queue. The recordings are those of the tests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.books.contenders import Missing, Timed
from everlog.feeds.recordings import RecordedFrame, read_frames
from everlog.feeds.session import FeedSession
from everlog.feeds.venues import VENUES

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class FrameSource:
    """A recording, and what each of the two calls its venue."""

    file: str
    venue: str
    peer: str
    is_book: Callable[[dict[str, Any] | list[Any]], bool]
    has_checksums: bool = False


def _is_depth(frame: dict[str, Any] | list[Any]) -> bool:
    return isinstance(frame, dict) and frame.get("data", {}).get("e") == "depthUpdate"


def _is_list(frame: dict[str, Any] | list[Any]) -> bool:
    return isinstance(frame, list)


def _is_books(frame: dict[str, Any] | list[Any]) -> bool:
    return isinstance(frame, dict) and "data" in frame and frame["arg"]["channel"] == "books"


SOURCES: Final = {
    "Binance spot": FrameSource("binance-spot-btcusdt-20240808.raw.gz", "binance", "BINANCE", _is_depth),
    "Binance USD-M": FrameSource(
        "binance-usdm-ethusdt-20240808.raw.gz", "binance-futures", "BINANCE_FUTURES", _is_depth
    ),
    "Kraken": FrameSource("kraken-book1000-20210417.frames.gz", "kraken", "KRAKEN", _is_list, True),
    "OKX": FrameSource("okx-books-20220513.frames.gz", "okex", "OKX", _is_books, True),
}


class Frames:
    """The frames of books in a recording, and the answer of REST with which they begin."""

    def __init__(self, source: FrameSource) -> None:
        folder = Path(os.environ.get("EVERLOG_TEST_DATA", ROOT / ".." / "shared" / "data"))
        if not (folder / source.file).exists():
            raise Missing(f"no recording {source.file}; set EVERLOG_TEST_DATA")
        lines = [line for line in read_frames(folder / source.file) if line.kind in ("frame", "rest")]
        self.source = source
        self.rest = [line for line in lines if line.kind == "rest"]
        self.frames = [
            line for line in lines if line.kind == "frame" and source.is_book(json.loads(line.body))
        ]
        self.symbols = sorted({symbol for line in self.frames for symbol in _symbols_of(line)})

    def everlog(self) -> float:
        """Decode everything with a new session; return the seconds."""
        session = FeedSession(VENUES[self.source.venue](), self.symbols)
        session.connected(self.frames[0].received_ns, is_continued=False)
        started_s = time.process_time()
        messages = len(session.frame(self.frames[0].body, self.frames[0].received_ns))
        for line in self.rest:
            messages += len(session.snapshot(self.symbols[0], line.body, line.received_ns))
        for line in self.frames[1:]:
            messages += len(session.frame(line.body, line.received_ns))
        elapsed_s = time.process_time() - started_s
        _check_all_taken(messages, len(self.frames))
        return elapsed_s

    def cryptofeed(self) -> float:
        """Give everything to a new feed of cryptofeed; return the seconds."""
        logging.getLogger("feedhandler").disabled = True
        books = 0

        async def count(*_: object) -> None:
            nonlocal books
            books += 1

        feed = self._feed(count)
        texts = [(line.body.decode(), line.received_ns / 1e9) for line in self.frames]

        async def run() -> float:
            started_s = time.process_time()
            for text, received_s in texts:
                await feed.message_handler(text, None, received_s)
            return time.process_time() - started_s

        elapsed_s = asyncio.run(run())
        _check_all_taken(books, len(self.frames))
        return elapsed_s

    def _feed(self, call_back: Callable[..., Any]) -> Any:
        try:
            from cryptofeed.defines import L2_BOOK
            from cryptofeed.exchanges import EXCHANGE_MAP
            from cryptofeed.symbols import Symbols
        except ImportError:
            raise Missing("not installed: pip install '.[bench]'") from None
        kind = EXCHANGE_MAP[self.source.peer]
        names = {symbol.replace("/", "-"): symbol for symbol in self.symbols}
        Symbols.set(kind.id, names, {"instrument_type": dict.fromkeys(names, "spot")})
        feed = kind(
            symbols=[*names],
            channels=[L2_BOOK],
            callbacks={L2_BOOK: call_back},
            checksum_validation=self.source.has_checksums,
        )
        feed.http_conn = _Answers([line.body.decode() for line in self.rest])
        return feed

    def timed(self, run: Callable[[], float]) -> Timed:
        """Try a run, so that what cannot run is missing from the start."""
        run()
        return run


class _Answers:
    """Answers of REST that were recorded."""

    def __init__(self, bodies: list[str]) -> None:
        self._bodies = bodies

    async def read(self, *_: object, **__: object) -> str:
        return self._bodies.pop(0)


def _symbols_of(line: RecordedFrame) -> list[str]:
    frame = json.loads(line.body)
    if isinstance(frame, list):
        return [frame[-1]]
    return [frame["arg"]["instId"] if "arg" in frame else frame["data"]["s"]]


def _check_all_taken(taken: int, frames: int) -> None:
    if taken < 0.95 * frames:
        raise ValueError(f"{taken} of {frames} frames became events")
