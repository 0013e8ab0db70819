"""Which messages of SZSE are one event of the exchange, and which begin a day.

An order that meets others is sent first and its trades after it, so the book is crossed between them. Owns
the rule for where such an event ends, and the flags that say so. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.market.protocol import BookFlags, L3EventType, L3Flags, MessageFlags, TypeId
from everlog.market.venues.interface import EventBlock, ImportContext

MARKED_EVENTS: Final = 1 << 16
"""Marked together at least, unless there are fewer: an event never reaches over a whole block."""
_AUCTION: Final = int(L3Flags.AUCTION_OPEN | L3Flags.AUCTION_CLOSE)


def mark_events(
    blocks: Iterable[NDArray[np.void]], date: str, context: ImportContext
) -> Iterator[EventBlock]:
    """Yield the messages with their flags: ends of events, first of a day, gaps that are to be expected."""
    known: set[int] = set()
    before: NDArray[np.void] | None = None
    for block in _gathered(blocks):
        if before is not None:
            yield _marked(before, block, known, date, context)
        before = block
    if before is not None:
        yield _marked(before, before[:0], known, date, context)


def _gathered(blocks: Iterable[NDArray[np.void]]) -> Iterator[NDArray[np.void]]:
    parts: list[NDArray[np.void]] = []
    for block in blocks:
        parts.append(block)
        if sum(map(len, parts)) >= MARKED_EVENTS:
            yield np.concatenate(parts)
            parts = []
    if parts:
        yield np.concatenate(parts)


def _marked(
    records: NDArray[np.void],
    following: NDArray[np.void],
    known: set[int],
    date: str,
    context: ImportContext,
) -> EventBlock:
    header = records["header"]
    header["flags"] |= np.uint16(BookFlags.MARKS_EVENT_ENDS)
    if not context.options.full_channel:
        header["flags"] |= np.uint16(BookFlags.SPARSE)
    markets, firsts = np.unique(header["market_id"], return_index=True)
    for market, first in zip(markets.tolist(), firsts.tolist(), strict=True):
        if market not in known:
            known.add(market)
            if not context.is_continued(f"{market:06d}", date):
                header["flags"][first] |= np.uint16(BookFlags.RESETS)
    flags = _ends(records, following) * np.uint16(MessageFlags.LAST_OF_EVENT)
    stamps = np.ascontiguousarray(header["ingest_ts_ns"])
    return EventBlock(TypeId.BOOK_EVENT, records, stamps, flags=flags)


def _ends(records: NDArray[np.void], following: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return after which of the records an event of the exchange ends."""
    _, firsts = np.unique(following["header"]["market_id"], return_index=True)
    both = np.concatenate([records, following[firsts]])
    order = np.argsort(both["header"]["market_id"], kind="stable")
    header, event = both["header"][order], both["event"][order]
    kinds = event["event_type"]
    # The order that came last is the one that met the other.
    actors = np.where(
        kinds == L3EventType.TRADE,
        np.maximum(event["bid_order_id"], event["ask_order_id"]),
        event["order_id"],
    )
    same_time = header["exchange_ts_ns"][1:] == header["exchange_ts_ns"][:-1]
    is_trade, is_cancel = kinds == L3EventType.TRADE, kinds == L3EventType.ORDER_CANCEL
    follows = is_trade[1:] & ~is_cancel[:-1]
    follows |= is_cancel[1:] & same_time & ~is_cancel[:-1]  # what is left of an order that may not rest
    follows &= actors[1:] == actors[:-1]
    in_auction = is_trade & ((event["flags"] & _AUCTION) != 0)
    follows |= in_auction[1:] & in_auction[:-1] & same_time  # all trades of an auction are one event
    follows &= header["market_id"][1:] == header["market_id"][:-1]
    ends = np.empty(len(both), dtype=np.bool_)
    ends[order] = np.concatenate((~follows, [True])) if len(both) else True
    return ends[: len(records)]
