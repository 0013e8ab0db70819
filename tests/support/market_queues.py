"""A small queue of market data that replays agree on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from everlog.market.packing import pack_l2_diffs, pack_l2_snapshots
from everlog.market.protocol import (
    L2_DIFF,
    L2_SNAPSHOT,
    LEVEL,
    TRADE,
    BookEventType,
    BookMode,
    TypeId,
    new_headers,
)
from everlog.market.venues.simulated import SimulatedVenue
from everlog.queue import Queue, WriterConfig

DAY_NS = 86_400_000_000_000
START_NS = 20_000 * DAY_NS
SECOND_NS = 1_000_000_000
MARKETS = (7, 9)
DIFFS = 400


def levels(rows: list[tuple[int, int]]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return prices and sizes as levels."""
    return np.array(rows, dtype=LEVEL)


def write_market_queue(path: str) -> None:
    """Two markets, a snapshot each, then diffs in turn around midnight, and a trade after every tenth."""
    random = np.random.default_rng(4)
    with Queue.open_publisher(path, segment_size=1 << 16) as writer:
        start_ns = START_NS - DIFFS // 2 * SECOND_NS // 10
        for market in MARKETS:
            head = new_headers(1, BookEventType.SNAPSHOT, BookMode.L2, venue_id=1, market_id=market)
            head["ingest_ts_ns"] = head["exchange_ts_ns"] = start_ns
            body = np.zeros(1, L2_SNAPSHOT)
            body["price_scale"], body["bid_count"], body["ask_count"] = 2, 3, 3
            book = levels([(9990, 5), (9980, 7), (9970, 9), (10010, 4), (10020, 6), (10030, 8)])
            writer.append(TypeId.BOOK_EVENT, bytes(next(iter(pack_l2_snapshots(head, body, book)))), start_ns)
        for number in range(DIFFS):
            market = MARKETS[number % 2]
            now_ns = start_ns + number * SECOND_NS // 10
            head = new_headers(1, BookEventType.DIFF, BookMode.L2, venue_id=1, market_id=market)
            head["ingest_ts_ns"], head["exchange_ts_ns"] = now_ns, now_ns - 500
            body = np.zeros(1, L2_DIFF)
            body["first_update_id"] = body["last_update_id"] = number // 2 + 1
            body["previous_update_id"] = number // 2
            body["price_scale"], body["bid_count"], body["ask_count"], body["flags"] = 2, 1, 1, 1
            change = levels(
                [
                    (9950 + 10 * int(random.integers(5)), int(random.integers(10))),
                    (10010 + 10 * int(random.integers(5)), 1 + int(random.integers(10))),
                ]
            )
            writer.append(TypeId.BOOK_EVENT, bytes(next(iter(pack_l2_diffs(head, body, change)))), now_ns)
            if number % 10 == 9:
                trade = np.zeros(1, TRADE)
                trade["price"], trade["qty"] = 99 + number / 100, 1 + number % 3
                trade["is_buyer_maker"] = number % 4 == 1
                writer.append(TypeId.TRADE, trade.tobytes(), now_ns)


def simulated_queue(
    path: Path, *, symbols: int, seconds: float, rate: float, kinds: str, resting_orders: int = 50
) -> None:
    """Write so much simulated time of a venue to a queue, in segments of which it has several."""
    venue = SimulatedVenue(
        symbols, rate=rate, kinds=kinds.split(","), resting_orders=resting_orders, block_events=1000
    )
    end_ns = venue.now_ns + int(seconds * 1e9)
    with Queue.open_publisher(path, WriterConfig.archive().replace(segment_size=1 << 20)) as writer:
        for block in venue.blocks():
            block.append_to(writer)
            if venue.now_ns >= end_ns:
                return
