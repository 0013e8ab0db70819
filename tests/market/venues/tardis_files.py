"""Tardis files written from the events of the simulated venue, whose truth is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from everlog.market.decimals import render_scaled
from everlog.market.protocol import TRADE, BookEventType, TypeId
from everlog.market.venues.simulated import PRICE_SCALE, SIZE_SCALE, SimulatedVenue
from tests.support.import_runs import l2_event, payloads_of

EXCHANGE = "simulated"
BOOK_HEADER = "exchange,symbol,timestamp,local_timestamp,is_snapshot,side,price,amount"
TRADE_HEADER = "exchange,symbol,timestamp,local_timestamp,id,side,price,amount"


def write_tardis_files(venue: SimulatedVenue, events: int, folder: Path) -> tuple[Path, Path]:
    """Write at least `events` events of a venue with one symbol as a book file and a file of trades."""
    (symbol,) = venue.symbols
    book_rows, trade_rows = [BOOK_HEADER], [TRADE_HEADER]
    for block in venue.blocks(events):
        kinds = np.broadcast_to(np.asarray(block.type_id), len(block)).tolist()
        for kind, stamp_ns, payload in zip(
            kinds, block.timestamps_ns.tolist(), payloads_of(block), strict=True
        ):
            head = f"{EXCHANGE},{symbol},{stamp_ns // 1000},{stamp_ns // 1000 + 1}"
            if kind == TypeId.TRADE:
                trade = np.frombuffer(payload, TRADE, 1)[0]
                side = "sell" if trade["is_buyer_maker"] else "buy"
                trade_rows.append(f"{head},{trade['trade_id']},{side},{trade['price']},{trade['qty']}")
            else:
                book_rows += [f"{head},{row}" for row in _book_rows(payload)]
    book, trades = (folder / f"{EXCHANGE}_{name}_2024-01-02_{symbol}.csv" for name in ("book", "trades"))
    book.write_text("\n".join(book_rows) + "\n")
    trades.write_text("\n".join(trade_rows) + "\n")
    return book, trades


def _book_rows(payload: bytes) -> list[str]:
    event = l2_event(payload)
    snapshot = "true" if event.header["event_type"] == BookEventType.SNAPSHOT else "false"
    return [
        f"{snapshot},{side},{render_scaled(price, PRICE_SCALE)},{render_scaled(size, SIZE_SCALE)}"
        for side, levels in (("bid", event.bids), ("ask", event.asks))
        for price, size in levels
    ]
