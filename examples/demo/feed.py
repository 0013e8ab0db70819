"""The feed: a simulated venue in real time, every event appended to one queue when it is due.

    python -m examples.demo.feed ROOT SECONDS SYMBOLS RATE

Owns the queue of market data and knows none of its readers. Messages carry the time of their append,
so that what is measured later is the way of a message and not the venue's clock. At the end the venue
writes the true state of its books to a file, not to the queue, so that rebuilt books can be compared with it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from everlog.bus import IpcLayout, mark_ready
from everlog.market.protocol import BookMode, TypeId, crypto_market_id, symbol_hash
from everlog.market.venues.interface import EventBlock
from everlog.market.venues.simulated import PRICE_SCALE, SIZE_SCALE, SimulatedVenue
from everlog.queue import Queue, QueueWriter
from examples.demo.records import CONFIG, SESSION_END, SESSION_END_TYPE_ID, ticks_dir, truth_file

SEED = 7  # the same market every time
BLOCKS_PER_S = 20
CHANGES_PER_DIFF = 4
PAUSE_S = 0.0002
BOOK_MODE_AT = 57


class Feed:
    """Appends what the venue sends at the time at which it happens there."""

    def __init__(self, venue: SimulatedVenue, writer: QueueWriter) -> None:
        self._venue = venue
        self._writer = writer
        self._started_ns = venue.now_ns
        self._ahead_ns = venue.now_ns - time.monotonic_ns()
        self.counts = {"l3_events": 0, "l2_events": 0, "trades": 0}

    def run(self, seconds: float) -> None:
        """Let the venue trade for so long."""
        while self._venue.now_ns < self._started_ns + int(seconds * 1e9):
            for block in self._venue.next_blocks():
                self._send(block)

    def _send(self, block: EventBlock) -> None:
        events = list(_events(block))
        due_ns = block.timestamps_ns
        number = 0
        while number < len(events):
            now_ns = time.monotonic_ns() + self._ahead_ns
            due = int(np.searchsorted(due_ns, np.uint64(now_ns), "right"))
            for type_id, payload in events[number:due]:
                self._writer.append(type_id, payload)
                self.counts[_kind(type_id, payload)] += 1
            number = max(number, due)
            if number < len(events):
                time.sleep(PAUSE_S)  # sets the pace; how late it wakes decides nothing


def _events(block: EventBlock) -> Iterator[tuple[int, memoryview]]:
    """Yield type and payload of each event of a block."""
    data = memoryview(np.ascontiguousarray(block.payloads).view(np.uint8).data)
    count = len(block)
    types = np.broadcast_to(np.asarray(block.type_id), (count,)).tolist()
    if block.ends is None:
        size = block.payloads.dtype.itemsize
        ends = range(size, size * count + 1, size)
    else:
        ends = block.ends.tolist()
    starts = [0, *ends[:-1]] if block.starts is None else block.starts.tolist()
    for type_id, start, end in zip(types, starts, ends, strict=True):
        yield type_id, data[start:end]


def _kind(type_id: int, payload: memoryview) -> str:
    if type_id == TypeId.TRADE:
        return "trades"
    return "l3_events" if payload[BOOK_MODE_AT] == BookMode.L3 else "l2_events"


def truth_of(venue: SimulatedVenue, counts: dict[str, int]) -> dict[str, Any]:
    """Return what a correct replay must find at the end: counts, and every level of every book."""
    books = []
    for symbol in venue.symbols:
        bids, asks = venue.levels(symbol)
        books.append(
            {
                "symbol": symbol,
                "market_id": crypto_market_id(symbol),
                "symbol_hash": symbol_hash(symbol),
                "orders": len(venue.orders(symbol)),
                "bids": sorted(bids.items(), reverse=True),
                "asks": sorted(asks.items()),
            }
        )
    return {"counts": counts, "price_scale": PRICE_SCALE, "size_scale": SIZE_SCALE, "books": books}


def run(root: str, seconds: float, symbols: int, rate_per_s: float) -> None:
    """Trade, say good-bye in the queue, and leave the truth beside it."""
    layout = IpcLayout(root)
    with Queue.open_publisher(ticks_dir(layout), CONFIG) as writer:
        mark_ready(ticks_dir(layout))
        started_ns = time.time_ns()
        venue = SimulatedVenue(
            symbols,
            seed=SEED,
            rate=rate_per_s,
            start_ns=started_ns,
            block_events=max(64, int(rate_per_s / BLOCKS_PER_S)),
            changes_per_diff=CHANGES_PER_DIFF,
        )
        feed = Feed(venue, writer)
        feed.run(seconds)
        counts = feed.counts
        end = SESSION_END.pack(
            sum(counts.values()),
            counts["l3_events"],
            counts["l2_events"],
            counts["trades"],
            started_ns,
            time.time_ns(),
            symbols,
            SEED,
        )
        writer.append(SESSION_END_TYPE_ID, end)
        writer.flush_sync()
    truth_file(Path(root)).write_text(json.dumps(truth_of(venue, counts)))


if __name__ == "__main__":
    run(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
