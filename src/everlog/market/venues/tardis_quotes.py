"""Tardis `quotes` to best bids and asks, `book_snapshot_5` and `book_snapshot_25` to L2 snapshots.

Owns the meaning of their columns. A row is one event; the fields of a level that is not there are empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidSource
from everlog.market.protocol import BOOK_TICKER, MessageFlags, Side, TypeId, crypto_market_id
from everlog.market.venues.archives import Member
from everlog.market.venues.csv_blocks import CHOICE, DECIMAL, HASH, PRICE, Column, RowBlock
from everlog.market.venues.interface import EventBlock, ImportContext, TimeOrder, agree
from everlog.market.venues.l2_events import Groups, Levels, pack_snapshots
from everlog.market.venues.registry import venue_id
from everlog.market.venues.tardis import NS_PER_US, SymbolChoice, as_floats, open_file, stamped

_LEVEL: Final = re.compile(r"(ask|bid)s\[(\d+)\]\.price")
_SIDES: Final = {"bid": Side.BUY, "ask": Side.SELL}


class TardisQuotes:
    """Importer of `quotes` files."""

    name = "tardis-quotes"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield one quote a row. Files of a group of symbols hold several; `--symbol` picks one."""
        for member in members:
            file = open_file(member, context, fill_empty=True)
            prices = [Column(f"{side}_price", PRICE) for side in _SIDES]
            sizes = [Column(f"{side}_amount", DECIMAL) for side in _SIDES]
            choice = SymbolChoice(file, context, "quotes")
            order = TimeOrder("local_timestamp", context)
            for block in file.reader.blocks([*file.columns, Column("symbol", HASH), *prices, *sizes]):
                yield _quotes(stamped(choice.take(block), context, order))
            choice.finish()


def _quotes(block: RowBlock) -> EventBlock:
    quotes = np.zeros(len(block), dtype=BOOK_TICKER)
    quotes["timestamp_ns"] = block.values["timestamp"] * NS_PER_US
    for side in _SIDES:
        price, size = f"{side}_price", f"{side}_amount"
        quotes[price] = as_floats(block.values[price].view(np.int64), block.extras[price])
        quotes[f"{side}_qty"] = as_floats(block.values[size], block.extras[size])
    quotes["symbol_hash"] = block.values["symbol"]
    return EventBlock(TypeId.BOOK_TICKER, quotes, block.values["local_timestamp"] * NS_PER_US)


class TardisSnapshots:
    """Importer of `book_snapshot_5` and `book_snapshot_25` files."""

    name = "tardis-snapshots"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield one snapshot a row, of as many levels as the header names."""
        for member in members:
            file = open_file(member, context, fill_empty=True)
            wanted = context.options.symbol if file.symbol else None
            symbol = agree("symbol", file.symbol, wanted, member.label)
            context.tally.name(venue=file.venue, symbol=symbol, date=file.date, stream="l2")
            found = _LEVEL.findall(",".join(file.reader.names))
            places = sorted({(side, int(number)) for side, number in found})
            if not places:
                raise InvalidSource(f"{member.label}:1: no column like bids[0].price", member.label, 1)
            names = [f"{side}s[{number}]" for side, number in places]
            columns = [
                *file.columns,
                Column("symbol", CHOICE, choices=((symbol, 0),)),
                *(Column(f"{name}.price", PRICE) for name in names),
                *(Column(f"{name}.amount", DECIMAL) for name in names),
            ]
            sides = np.array([_SIDES[side] for side, _ in places], dtype=np.uint8)
            order, seq = TimeOrder("local_timestamp", context), 0
            for block in file.reader.blocks(columns):
                rows = stamped(block, context, order)
                if len(rows):
                    groups = _groups(rows, seq, venue_id(file.venue), crypto_market_id(symbol))
                    yield _snapshots(rows, names, sides, groups, context)
                    seq += len(rows)


def _groups(block: RowBlock, seq: int, venue: int, market: int) -> Groups:
    """Return the events of the rows; where their levels start is not known yet."""
    seqs = np.arange(seq, seq + len(block), dtype=np.uint64)
    local, exchange = (block.values[name] * NS_PER_US for name in ("local_timestamp", "timestamp"))
    return Groups(np.zeros(0, dtype=np.int64), local, exchange, seqs, seqs, venue, market)


def _snapshots(
    block: RowBlock, names: Sequence[str], sides: NDArray[np.uint8], groups: Groups, context: ImportContext
) -> EventBlock:
    prices, price_decimals, sizes, size_decimals = (
        np.stack([columns[f"{name}.{what}"] for name in names], axis=1)
        for what in ("price", "amount")
        for columns in (block.values, block.extras)
    )
    used: NDArray[np.bool_] = sizes.astype(np.uint64) > 0
    counts = used.sum(axis=1)
    groups.starts = np.cumsum(counts) - counts
    levels = Levels(
        prices[used].view(np.int64),
        price_decimals[used].astype(np.uint8),
        sizes[used].astype(np.uint64),
        size_decimals[used].astype(np.uint8),
        np.broadcast_to(sides, used.shape)[used],
    )
    options = context.options
    events = pack_snapshots(levels, groups, options.price_scale, options.size_scale)
    events.flags = np.full(len(block), MessageFlags.LAST_OF_EVENT, dtype=np.uint16)
    return events
