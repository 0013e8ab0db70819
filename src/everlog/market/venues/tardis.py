"""Tardis files: `incremental_book_L2` to L2 events, `trades` to trades.

Owns the meaning of their columns. Rows with one `local_timestamp` are one event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.market.protocol import (
    MAX_DIFF_LEVELS,
    TRADE,
    TRADE_SIDE_UNKNOWN,
    MessageFlags,
    Side,
    TypeId,
    crypto_market_id,
    symbol_hash,
)
from everlog.market.venues.archives import Member
from everlog.market.venues.csv_blocks import (
    CHOICE,
    DECIMAL,
    HASH,
    IDENTIFIER,
    PRICE,
    UNSIGNED,
    Column,
    CsvReader,
    RowBlock,
)
from everlog.market.venues.interface import MULTI, EventBlock, ImportContext, TimeOrder, agree, find_date
from everlog.market.venues.l2_events import Groups, Levels, in_book_order, pack_diffs, pack_snapshots
from everlog.market.venues.registry import venue_id

NS_PER_US: Final = np.uint64(1000)
UNKNOWN_SIDE: Final = 3
SIDES: Final = (("bid", Side.BUY), ("ask", Side.SELL), ("buy", Side.BUY), ("sell", Side.SELL))
_TRUTHS: Final = (("false", 0), ("true", 1), ("0", 0), ("1", 1))
_POWERS: Final = np.array([10.0**exponent for exponent in range(19)])


class Opened(NamedTuple):
    """A file whose first row was looked at; `columns` are those that every kind of file has."""

    reader: CsvReader
    venue: str
    symbol: str
    date: str
    columns: list[Column]


def open_file(member: Member, context: ImportContext, *, fill_empty: bool = False) -> Opened:
    """Learn from the first row what the file is about; the exchange must be the same in every row."""
    reader = CsvReader(member, context.rejects, fill_empty=fill_empty)
    reader.require(["exchange", "symbol"])
    first, options = reader.first_row(), context.options
    venue = agree("exchange", first["exchange"], options.venue, member.label) if first else ""
    date = find_date(member.name, options) or find_date(member.path, options) or ""
    columns = [
        Column("exchange", CHOICE, choices=((venue, 0),)),
        Column("timestamp", UNSIGNED),
        Column("local_timestamp", UNSIGNED),
    ]
    return Opened(reader, venue, first.get("symbol", ""), date, columns)


def stamped(block: RowBlock, context: ImportContext, order: TimeOrder) -> RowBlock:
    """Refuse rows without a local time or out of order, and fill in missing exchange times."""
    block = block.refuse(
        block.values["local_timestamp"] == 0, "local_timestamp is 0: when did it arrive?", context.rejects
    )
    block = order.checked(block)
    stamps = block.values["timestamp"]
    block.values["timestamp"] = np.where(stamps == 0, block.values["local_timestamp"], stamps)
    context.tally.rows += len(block)
    return block


class TardisBook:
    """Importer of `incremental_book_L2` files."""

    name = "tardis-book"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield diffs, and one snapshot for each run of snapshot rows."""
        for member in members:
            file = open_file(member, context)
            symbol = agree(
                "symbol", file.symbol, context.options.symbol if file.symbol else None, member.label
            )
            context.tally.name(venue=file.venue, symbol=symbol, date=file.date, stream="book")
            columns = [
                *file.columns,
                Column("symbol", CHOICE, choices=((symbol, 0),)),
                Column("is_snapshot", CHOICE, choices=_TRUTHS),
                Column("side", CHOICE, choices=SIDES),
                Column("price", PRICE),
                Column("amount", DECIMAL),
            ]
            grouping = _Grouping(context, venue_id(file.venue), crypto_market_id(symbol))
            order = TimeOrder("local_timestamp", context)
            for block in file.reader.blocks(columns):
                yield from grouping.add(_Rows.of(stamped(block, context, order)))
            yield from grouping.finish()


class _Rows:
    """Rows of the book file as columns."""

    __slots__ = ("exchange_us", "is_snapshot", "levels", "local_us")

    def __init__(
        self,
        local_us: NDArray[np.uint64],
        exchange_us: NDArray[np.uint64],
        is_snapshot: NDArray[np.bool_],
        levels: Levels,
    ) -> None:
        self.local_us = local_us
        self.exchange_us = exchange_us
        self.is_snapshot = is_snapshot
        self.levels = levels

    @classmethod
    def of(cls, block: RowBlock) -> _Rows:
        levels = Levels(
            block.values["price"].view(np.int64),
            block.extras["price"],
            block.values["amount"],
            block.extras["amount"],
            block.extras["side"],
        )
        return cls(
            block.values["local_timestamp"],
            block.values["timestamp"],
            block.extras["is_snapshot"] != 0,
            levels,
        )

    def __len__(self) -> int:
        return len(self.local_us)

    def part(self, start: int, stop: int) -> _Rows:
        here = slice(start, stop)
        return _Rows(
            self.local_us[here], self.exchange_us[here], self.is_snapshot[here], self.levels.take(here)
        )

    def followed_by(self, other: _Rows) -> _Rows:
        return _Rows(
            np.concatenate([self.local_us, other.local_us]),
            np.concatenate([self.exchange_us, other.exchange_us]),
            np.concatenate([self.is_snapshot, other.is_snapshot]),
            self.levels.followed_by(other.levels),
        )


class _Grouping:
    """Cuts the stream of rows into events; a group may go on in the next block."""

    def __init__(self, context: ImportContext, venue: int, market: int) -> None:
        self._context = context
        self._carried: list[_Rows] = []
        self._started = False
        self._seq = 0
        self._venue_id = venue
        self._market_id = market

    def add(self, rows: _Rows) -> Iterator[EventBlock]:
        """Yield the events that are complete; the last ones wait for what follows."""
        if len(rows) == 0:
            return
        self._carried.append(rows)
        # The whole block may belong to one long snapshot: do not look at its start again and again.
        if len(self._carried) > 1 and rows.is_snapshot.all():
            return
        rows = self._joined()
        starts, snapshot = _groups(rows)
        # The last group may still become a snapshot, and then belong to a snapshot right before it.
        held = 2 if len(starts) > 1 and snapshot[-2] else 1
        if len(starts) > held:
            yield from self._emit(rows.part(0, int(starts[-held])), starts[:-held], snapshot[:-held])
        self._carried = [rows.part(int(starts[-held]), len(rows))]

    def finish(self) -> Iterator[EventBlock]:
        """Yield the last group."""
        if self._carried:
            rows = self._joined()
            self._carried = []
            yield from self._emit(rows, *_groups(rows))

    def _joined(self) -> _Rows:
        rows = self._carried[0]
        for more in self._carried[1:]:
            rows = rows.followed_by(more)
        return rows

    def _emit(
        self, rows: _Rows, starts: NDArray[np.int64], snapshot: NDArray[np.bool_]
    ) -> Iterator[EventBlock]:
        """Yield runs of diffs, and each snapshot by itself."""
        if not self._started:
            first = int(snapshot.argmax()) if snapshot.any() else len(starts)
            dropped = int(starts[first]) if first < len(starts) else len(rows)
            self._context.tally.dropped_rows += dropped
            if first == len(starts):
                return
            rows, starts, snapshot = rows.part(dropped, len(rows)), starts[first:] - dropped, snapshot[first:]
            self._started = True
        borders = np.append(starts, len(rows))
        at = 0
        for place in [*np.flatnonzero(snapshot).tolist(), len(starts)]:
            if place > at:
                part = rows.part(int(borders[at]), int(borders[place]))
                yield self._diffs(part, starts[at:place] - borders[at])
            if place < len(starts):
                yield self._snapshot(rows.part(int(borders[place]), int(borders[place + 1])))
            at = place + 1

    def _diffs(self, rows: _Rows, starts: NDArray[np.int64]) -> EventBlock:
        whole, starts = starts, _split_long(starts, len(rows))
        groups = self._numbered(rows, starts)
        groups.marks_event_ends = len(starts) > len(whole)
        previous = groups.seqs - np.minimum(groups.seqs, np.uint64(1))
        groups.update_ids = (groups.seqs, groups.seqs, previous)
        options = self._context.options
        block = pack_diffs(rows.levels, groups, options.price_scale, options.size_scale)
        if groups.marks_event_ends:
            # The parts of a long group are one event: the last is that before the next group.
            ends = np.isin(starts, whole[1:] if len(whole) > 1 else [])
            is_last = np.append(ends[1:], True)
            block.flags = is_last * np.uint16(MessageFlags.LAST_OF_EVENT)
        return block

    def _snapshot(self, rows: _Rows) -> EventBlock:
        groups = self._numbered(rows, np.zeros(1, dtype=np.int64))
        groups.ingest_ts_ns = rows.local_us[-1:] * NS_PER_US
        options = self._context.options
        return pack_snapshots(in_book_order(rows.levels), groups, options.price_scale, options.size_scale)

    def _numbered(self, rows: _Rows, starts: NDArray[np.int64]) -> Groups:
        seqs = np.arange(self._seq, self._seq + len(starts), dtype=np.uint64)
        self._seq += len(starts)
        return Groups(
            starts,
            rows.local_us[starts] * NS_PER_US,
            _last_of(rows.exchange_us, starts) * NS_PER_US,
            seqs,
            seqs,
            self._venue_id,
            self._market_id,
        )


def _groups(rows: _Rows) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return where events start and which are snapshots; snapshots in a row are one."""
    local = rows.local_us
    starts = np.flatnonzero(np.concatenate(([True], local[1:] != local[:-1])))
    if not rows.is_snapshot.any():
        return starts, np.zeros(len(starts), dtype=bool)
    snapshot = np.logical_or.reduceat(rows.is_snapshot, starts)
    goes_on = np.zeros(len(starts), dtype=bool)
    goes_on[1:] = snapshot[1:] & snapshot[:-1]
    return starts[~goes_on], snapshot[~goes_on]


def _last_of(stamps: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the largest time of each group, which is the last one where time does not go back."""
    largest: NDArray[np.uint64]
    if (stamps[1:] >= stamps[:-1]).all():
        largest = stamps[np.append(starts[1:], len(stamps)) - 1]
    else:
        largest = np.maximum.reduceat(stamps, starts)
    return largest


def _split_long(starts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Return the starts with more of them inside groups that one diff could not hold."""
    counts = np.diff(starts, append=total)
    if int(counts.max()) <= MAX_DIFF_LEVELS:
        return starts
    pieces = [
        np.arange(start, start + count, MAX_DIFF_LEVELS)
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
    ]
    return np.concatenate(pieces)


class TardisTrades:
    """Importer of `trades` files."""

    name = "tardis-trades"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield one trade a row. Files of a group of symbols hold several; `--symbol` picks one."""
        sides = (*SIDES, ("unknown", UNKNOWN_SIDE), ("", UNKNOWN_SIDE))
        for member in members:
            file = open_file(member, context)
            columns = [
                *file.columns,
                Column("symbol", HASH),
                Column("id", IDENTIFIER),
                Column("side", CHOICE, choices=sides),
                Column("price", PRICE),
                Column("amount", DECIMAL),
            ]
            choice = SymbolChoice(file, context)
            order = TimeOrder("local_timestamp", context)
            blocks = (_once(choice.take(block), order) for block in file.reader.blocks(columns))
            yield from _grouped(_trades(stamped(block, context, order)) for block in blocks)
            choice.finish()


class SymbolChoice:
    """Follows which symbols a file holds, and leaves out those that are not wanted."""

    def __init__(self, file: Opened, context: ImportContext, stream: str = "trades") -> None:
        """`file` may hold a group of symbols; its events are of one stream."""
        self._stream = stream
        self._file = file
        self._context = context
        self._wanted = context.options.symbol
        self._left_out = self._taken = 0
        self._hash = symbol_hash(self._wanted or file.symbol)
        self._name(self._wanted or file.symbol)

    def _name(self, symbol: str) -> None:
        file = self._file
        self._context.tally.name(venue=file.venue, symbol=symbol, date=file.date, stream=self._stream)

    def take(self, block: RowBlock) -> RowBlock:
        """Return the wanted rows."""
        same = block.values["symbol"] == np.uint64(self._hash)
        if same.all():
            self._taken += len(block)
        elif self._wanted is None:
            self._name(MULTI)
        else:
            block = block.take(same)
            self._taken += len(block)
            self._left_out += len(same) - len(block)
        return block

    def finish(self) -> None:
        """Say what was left out; a file without the wanted symbol is refused."""
        if self._left_out and not self._taken:
            agree("symbol", self._file.symbol, self._wanted, self._file.reader.label)
        if self._left_out:
            self._context.tally.notes.append(
                f"{self._file.reader.label}: {self._left_out} rows of other symbols than {self._wanted} were "
                "left out"
            )


def _once(block: RowBlock, order: TimeOrder) -> RowBlock:
    """Refuse trades whose id another of that time has."""
    ids = block.values["id"]
    return order.once(block, ids != 0, [ids, block.values["symbol"]])


def _trades(block: RowBlock) -> EventBlock:
    trades = np.zeros(len(block), dtype=TRADE)
    trades["timestamp_ns"] = block.values["timestamp"] * NS_PER_US
    trades["price"] = as_floats(block.values["price"].view(np.int64), block.extras["price"])
    trades["qty"] = as_floats(block.values["amount"], block.extras["amount"])
    trades["trade_id"] = block.values["id"]
    side = block.extras["side"]
    trades["is_buyer_maker"] = side == Side.SELL
    trades["symbol_hash"] = block.values["symbol"]
    flags = (side == UNKNOWN_SIDE).astype(np.uint16) * np.uint16(TRADE_SIDE_UNKNOWN)
    return EventBlock(TypeId.TRADE, trades, block.values["local_timestamp"] * NS_PER_US, flags=flags)


def _grouped(blocks: Iterable[EventBlock]) -> Iterator[EventBlock]:
    """Mark the last trade of each group: those of one symbol that arrived in one message."""
    before: EventBlock | None = None
    for block in blocks:
        if len(block) == 0:
            continue
        if before is not None:
            _mark_ends(before, block)
            yield before
        before = block
    if before is not None:
        _mark_ends(before, None)
        yield before


def _mark_ends(block: EventBlock, following: EventBlock | None) -> None:
    assert block.flags is not None
    times, symbols = block.timestamps_ns, block.payloads["symbol_hash"]
    goes_on = np.zeros(len(block), dtype=np.bool_)
    goes_on[:-1] = (times[1:] == times[:-1]) & (symbols[1:] == symbols[:-1])
    if following is not None:
        is_same = symbols[-1] == following.payloads["symbol_hash"][0]
        goes_on[-1] = times[-1] == following.timestamps_ns[0] and is_same
    block.flags |= np.where(goes_on, np.uint16(0), np.uint16(MessageFlags.LAST_OF_EVENT))


def as_floats(values: NDArray[Any], decimals: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the numbers as the nearest floats.

    One correctly rounded division of two exact floats, as long as the digits fit into 53 bits.
    """
    floats: NDArray[np.float64] = values / _POWERS[decimals]
    return floats
