"""The book before the first message of a LOBSTER file, from the order-book file beside it.

Owns the layout of order-book rows and which message belongs to an order that rested before. A row is the
book after the message of the same line: ask price, ask size, bid price, bid size for each level, best first.
The ids of orders that rested before are not in it, so each level of the opening book is one order; it stands
at the front of its queue, and messages about orders that were never added reduce the order of their level.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidSource
from everlog.market.protocol import (
    BookFlags,
    L3EventType,
    MessageFlags,
    Side,
    TypeId,
    new_l3_records,
)
from everlog.market.venues.archives import Member, data_name
from everlog.market.venues.csv_blocks import SIGNED, UNSIGNED, Column, CsvReader, RowBlock
from everlog.market.venues.interface import EventBlock, ImportContext
from everlog.market.venues.sniffing import LOBSTER_BOOK, LOOKED_AT_BYTES, looks_like

NEW, PARTIAL_CANCEL, DELETE, EXECUTION, HIDDEN_EXECUTION, CROSS, HALT = range(1, 8)
PRICE_SCALE: Final = 4
FIRST_OPENING_ID: Final = 1 << 62
"""Ids of the orders that stand for levels; the venue's own are far below."""
LEVEL_FIELDS: Final = 4
_PART: Final = re.compile(r"_(?:message|orderbook)(?:_|\.|$)")


def with_order_books(paths: Sequence[str]) -> list[list[str]]:
    """Return one group a path; an order book joins the message file of its folder that is named like it."""
    groups = [[path] for path in paths if not _is_book_name(path)]
    by_stem = {(os.path.dirname(group[0]), _stem(group[0])): group for group in groups}
    for path in filter(_is_book_name, paths):
        group = by_stem.get((os.path.dirname(path), _stem(path)))
        if group is None:
            groups.append([path])
        else:
            group.append(path)
    return groups


def paired(members: Sequence[Member], context: ImportContext) -> list[tuple[Member, Member | None]]:
    """Return the message files, each with its order book if that is there."""
    books = [one for one in members if looks_like(one.peek(LOOKED_AT_BYTES)) == LOBSTER_BOOK]
    messages = [one for one in members if one not in books]
    if books and not messages:
        label = books[0].label
        raise InvalidSource(f"{label} is {LOBSTER_BOOK}: name the message file too", label)
    if len(books) == len(messages) == 1:
        return [(messages[0], books[0])]
    by_stem = {_stem(book.name): book for book in books}
    pairs = [(message, by_stem.pop(_stem(message.name), None)) for message in messages]
    for book in by_stem.values():
        context.tally.notes.append(f"{book.label} is {LOBSTER_BOOK}, which is absent; it was left out")
    return pairs


def _is_book_name(path: str) -> bool:
    found = _PART.search(data_name(path))
    return found is not None and "orderbook" in found.group()


def _stem(path: str) -> str:
    """Return what the names of a message file and its order book have in common."""
    return _PART.split(data_name(path))[0]


@dataclass(slots=True)
class _Level:
    order_id: int
    size: int


class OpeningBook:
    """The levels before the first message, and what is left of them."""

    def __init__(self, member: Member, first: RowBlock, context: ImportContext) -> None:
        """Read the row of the first message from the order book `member`, and undo that message."""
        self._context = context
        self._live: dict[int, int] = {}
        """Sizes of the orders that were added since."""
        sizes, self.depth = _book_row(member, int(first.lines[0]), context)
        _undo(sizes, self.depth, first)
        best_first = sorted(
            sizes, key=lambda level: (level[0], -level[1] if level[0] == Side.BUY else level[1])
        )
        self._levels = {
            level: _Level(FIRST_OPENING_ID + place, sizes[level]) for place, level in enumerate(best_first)
        }

    def __len__(self) -> int:
        """Return the number of levels, which is that of the opening's events."""
        return len(self._levels)

    def opening(self, stamp_ns: np.uint64, venue: int, market: int) -> EventBlock:
        """Return an order for each level, as one event that begins the book anew."""
        records = new_l3_records(len(self), venue_id=venue, market_id=market)
        header, event = records["header"], records["event"]
        header["ingest_ts_ns"] = header["exchange_ts_ns"] = stamp_ns
        header["seq"] = np.arange(1, len(self) + 1)
        header["stream_id"] = market
        header["flags"] = BookFlags.MARKS_EVENT_ENDS
        header["flags"][:1] |= np.uint16(BookFlags.RESETS)
        event["event_type"] = L3EventType.ORDER_ADD
        event["side"] = [side for side, _ in self._levels]
        event["price"] = [price for _, price in self._levels]
        event["price_scale"] = PRICE_SCALE
        event["order_id"] = [level.order_id for level in self._levels.values()]
        event["qty"] = [level.size for level in self._levels.values()]
        flags = np.full(len(self), MessageFlags.SNAPSHOT_PART, dtype=np.uint16)
        flags[-1:] |= np.uint16(MessageFlags.LAST_OF_EVENT)
        stamps = np.full(len(self), stamp_ns, dtype=np.uint64)
        return EventBlock(TypeId.BOOK_EVENT, records, stamps, flags=flags)

    def assign(self, block: RowBlock) -> None:
        """Point rows about orders that rested before at their level; count those beyond the levels."""
        order_ids = block.values["order_id"]
        rows = zip(
            block.extras["type"].tolist(),
            order_ids.tolist(),
            block.values["size"].tolist(),
            block.values["price"].tolist(),
            block.extras["direction"].tolist(),
            strict=True,
        )
        for row, (kind, order_id, size, price, side) in enumerate(rows):
            if kind > EXECUTION:
                continue
            if kind == NEW:
                self._live[order_id] = size
                continue
            left = self._live.get(order_id)
            if left is not None:
                if left > size:
                    self._live[order_id] = left - size
                else:
                    del self._live[order_id]
                continue
            level = self._levels.get((side, price))
            if level is None or level.size < size:
                self._context.tally.beyond_rows += 1
                continue
            level.size -= size
            order_ids[row] = level.order_id


def _book_row(member: Member, line: int, context: ImportContext) -> tuple[dict[tuple[int, int], int], int]:
    """Return the sizes by side and price in a line of an order book, and its levels a side."""
    depth = len(member.peek(LOOKED_AT_BYTES).partition(b"\n")[0].split(b",")) // LEVEL_FIELDS
    columns = [
        Column(f"{side}_{what}_{place}", SIGNED if what == "price" else UNSIGNED)
        for place in range(1, depth + 1)
        for side in ("ask", "bid")
        for what in ("price", "size")
    ]
    reader = CsvReader(member, context.rejects, [column.name for column in columns])
    for block in reader.blocks(columns):
        found = np.flatnonzero(block.lines == line)
        if len(found):
            return _sizes(block, int(found[0]), depth), depth
    raise InvalidSource(
        f"{member.label} has no line {line}, where the first message is; name the order book of that file",
        member.label,
    )


def _sizes(block: RowBlock, row: int, depth: int) -> dict[tuple[int, int], int]:
    sizes: dict[tuple[int, int], int] = {}
    for name, side in (("ask", Side.SELL), ("bid", Side.BUY)):
        for place in range(1, depth + 1):
            prices: NDArray[np.int64] = block.values[f"{name}_price_{place}"].view(np.int64)
            price, size = int(prices[row]), int(block.values[f"{name}_size_{place}"][row])
            if not size:  # levels that do not exist have size 0 and a price of 9999999999 or its negative
                continue
            if price <= 0:
                raise InvalidSource(
                    f"{block.label}:{block.lines[row]}: level {place} has {name} price {price} and size "
                    f"{size}; fetch the file again",
                    block.label,
                )
            sizes[side, price] = size
    return sizes


def _undo(sizes: dict[tuple[int, int], int], depth: int, first: RowBlock) -> None:
    """Take back the first message: the row of the order book is the state after it."""
    kind, side = int(first.extras["type"][0]), int(first.extras["direction"][0])
    price, size = int(first.values["price"][0]), int(first.values["size"][0])
    level = (side, price)
    if kind == NEW and level in sizes:
        sizes[level] -= size
        if sizes[level] <= 0:
            del sizes[level]
    elif PARTIAL_CANCEL <= kind <= EXECUTION:
        others = [other for own, other in sizes if own == side]
        reaches = len(others) < depth or (price >= min(others) if side == Side.BUY else price <= max(others))
        if reaches:
            sizes[level] = sizes.get(level, 0) + size
