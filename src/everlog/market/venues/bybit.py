"""Bybit order-book files to L2 events: one JSON message a line.

Owns the meaning of the messages. The event's `seq` and `native_seq` are the update id `u`, which rises
by one and by which a book knows what follows a snapshot; the cross sequence is not kept. A hole in
the update ids stays visible: the diff after it names the id that is missing as its previous one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from everlog.market.protocol import MAX_DIFF_LEVELS, Side, crypto_market_id
from everlog.market.venues.archives import Member
from everlog.market.venues.csv_blocks import DECIMAL
from everlog.market.venues.interface import EventBlock, ImportContext, agree, find_date
from everlog.market.venues.l2_events import Groups, Levels, in_book_order, pack_diffs, pack_snapshots
from everlog.market.venues.registry import venue_id
from everlog.native.market.events import PRICE, PROBLEMS, RowParser

VENUE: Final = "bybit"
NS_PER_MS: Final = 1_000_000
MESSAGES_MAX: Final = 4096
"""Messages packed at once."""
LEVELS_MAX: Final = 1 << 18
"""Levels packed at once."""
GAPS_NOTED_MAX: Final = 10
UNORDERED: Final = "messages are out of order or there twice; --allow-unordered keeps them"


class _Data(msgspec.Struct):
    s: str
    u: int
    b: list[tuple[str, str]] | None = None
    a: list[tuple[str, str]] | None = None


class _Message(msgspec.Struct):
    type: str
    ts: int
    data: _Data
    cts: int | None = None


class Bybit:
    """Importer of Bybit order-book files."""

    name = "bybit"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield a snapshot or a diff for each message."""
        for member in members:
            reading = _Reading(member, context)
            for line, text in member.lines():
                yield from reading.add(line, text)
            yield from reading.flush()


class _Stamp(NamedTuple):
    """What is kept of a message besides its levels."""

    update_id: int
    ts_ms: int
    exchange_ms: int


class _Reading:
    """Gathers messages of one file until they are packed together."""

    def __init__(self, member: Member, context: ImportContext) -> None:
        self._label = member.label
        self._context = context
        self._venue = context.options.venue or VENUE
        self._date = find_date(member.name, context.options) or find_date(member.path, context.options) or ""
        self._symbol: str | None = None
        self._decoder = msgspec.json.Decoder(_Message)
        self._levels = RowParser([(0, PRICE, []), (1, DECIMAL, [])], 2)
        self._diffs: list[tuple[_Stamp, Levels]] = []
        self._level_count = 0
        self._last_id: int | None = None
        self._snapshot_ms = 0
        context.tally.venue, context.tally.stream = self._venue, "book"

    def add(self, line: int, text: bytes) -> Iterator[EventBlock]:
        """Take in one line; yield what must be written before or with it."""
        if not text.strip():
            return
        try:
            message = self._decoder.decode(text)
            levels = self._parse_levels(message)
            self._check_symbol(message)
        except (msgspec.DecodeError, ValueError) as error:
            self._context.rejects.reject(
                self._label, line, f"no order-book message: {error}", text.decode("utf-8", "backslashreplace")
            )
            return
        stamp = _Stamp(message.data.u, message.ts, message.cts or message.ts)
        if self._is_unordered(message):
            if not self._context.options.allow_unordered:
                reason = f"update id {stamp.update_id} follows {self._last_id}: {UNORDERED}"
                self._context.rejects.reject(self._label, line, reason, text.decode("utf-8", "replace"))
                return
            self._context.tally.unordered += 1
        self._context.tally.rows += 1
        if message.type == "snapshot":
            yield from self.flush()
            self._last_id, self._snapshot_ms = stamp.update_id, stamp.ts_ms
            options = self._context.options
            groups = self._groups([stamp], np.zeros(1, dtype=np.int64))
            yield pack_snapshots(in_book_order(levels), groups, options.price_scale, options.size_scale)
        elif self._last_id is None:
            self._context.tally.dropped_rows += 1  # there is no book yet that it could change
        else:
            self._follow(line, stamp.update_id)
            self._diffs.append((stamp, levels))
            self._level_count += len(levels)
            if len(self._diffs) >= MESSAGES_MAX or self._level_count >= LEVELS_MAX:
                yield from self.flush()

    def _is_unordered(self, message: _Message) -> bool:
        """Whether the update id goes back or is there twice.

        After a restart of the service a snapshot begins with 1; one that is sent again has a later time.
        """
        number, last = message.data.u, self._last_id
        if last is None or number > last:
            return False
        if message.type != "snapshot":
            return True
        is_restart = number == 1 and last != 1
        return not is_restart and message.ts <= self._snapshot_ms

    def _check_symbol(self, message: _Message) -> None:
        """Learn the symbol from the first message; ValueError if another one follows."""
        symbol, tally = message.data.s, self._context.tally
        if self._symbol is None:
            self._symbol = agree("symbol", symbol, self._context.options.symbol, self._label)
            tally.name(venue=self._venue, symbol=symbol, date=self._date, stream="book")
        if symbol != self._symbol:
            raise ValueError(f"symbol {symbol!r} in a file of {self._symbol!r}")

    def _follow(self, line: int, update_id: int) -> None:
        """Note a hole in the update ids."""
        tally = self._context.tally
        if self._last_id is not None and update_id <= self._last_id:
            return  # counted as out of order
        if self._last_id is not None and update_id != self._last_id + 1:
            tally.gaps += 1
            if tally.gaps <= GAPS_NOTED_MAX:
                tally.notes.append(
                    f"{self._label}:{line}: update id {update_id} follows {self._last_id}; "
                    "the book is uncertain until the next snapshot"
                )
        self._last_id = update_id

    def _parse_levels(self, message: _Message) -> Levels:
        """Return the levels as columns, exactly; ValueError if one is no number."""
        if message.type not in ("snapshot", "delta"):
            raise ValueError(f"type {message.type!r} is neither snapshot nor delta")
        bids, asks = message.data.b or [], message.data.a or []
        if max(len(bids), len(asks)) > MAX_DIFF_LEVELS:
            raise ValueError(f"{max(len(bids), len(asks))} levels a side")
        if min(message.ts, message.data.u, message.cts or 0) < 0:
            raise ValueError("ts, cts and u cannot be negative")
        count = len(bids) + len(asks)
        values: list[NDArray[Any]] = [np.empty(count, dtype=np.uint64) for _ in range(2)]
        extras: list[NDArray[Any]] = [np.empty(count, dtype=np.uint8) for _ in range(2)]
        if count:
            text = ("\n".join(map(",".join, [*bids, *asks])) + "\n").encode()
            lines: NDArray[np.uint32] = np.empty(count, dtype=np.uint32)
            rows, _, _, problem, field = self._levels.parse(text, values, extras, lines)
            if problem or rows != count:
                level = [*bids, *asks][min(rows, count - 1)]
                raise ValueError(f"{('price', 'size')[min(field, 1)]} in {list(level)} {PROBLEMS[problem]}")
        sides = np.full(count, Side.SELL, dtype=np.uint8)
        sides[: len(bids)] = Side.BUY
        return Levels(values[0].view(np.int64), extras[0], values[1], extras[1], sides)

    def flush(self) -> Iterator[EventBlock]:
        """Yield the gathered diffs."""
        if not self._diffs:
            return
        stamps = [stamp for stamp, _ in self._diffs]
        parts = [levels for _, levels in self._diffs]
        self._diffs, self._level_count = [], 0
        counts = np.array([len(levels) for levels in parts], dtype=np.int64)
        levels = Levels(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("prices", "price_decimals", "sizes", "size_decimals", "sides")
            )
        )
        groups = self._groups(stamps, np.cumsum(counts) - counts)
        ids = groups.seqs
        groups.update_ids = (ids, ids, ids - np.minimum(ids, np.uint64(1)))
        options = self._context.options
        yield pack_diffs(levels, groups, options.price_scale, options.size_scale)

    def _groups(self, stamps: Sequence[_Stamp], starts: NDArray[np.int64]) -> Groups:
        assert self._symbol is not None
        ids, ingest_ms, exchange_ms = np.array(stamps, dtype=np.uint64).T.copy()
        return Groups(
            starts,
            ingest_ms * np.uint64(NS_PER_MS),
            exchange_ms * np.uint64(NS_PER_MS),
            ids,
            ids,
            venue_id(self._venue),
            crypto_market_id(self._symbol),
        )
