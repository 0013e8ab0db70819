"""The refinery: a raw queue with many symbols becomes queues of one symbol, day and stream each.

Does not depend on Spark. Below `<root>/v1/<venue>/<symbol>/<date>/` the stream `book` holds the book events
of that UTC day of exchange time, with an L2 snapshot of the book before the first of them and then every
minute; `trades` its trades; `late` what arrived more than an hour after the end of the day.

What goes into a queue depends on the raw messages alone, in their order. So a queue that has n messages has
the first n of them: a run that is repeated appends nothing, and one that was killed is carried on exactly.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.clock import NS_PER_DAY, NS_PER_S
from everlog.errors import Corrupt, InvalidConfig
from everlog.fs import OsFs
from everlog.market.books import L2Book
from everlog.market.decoding import (
    HEADER_FIELDS,
    MESSAGE_FIELDS,
    RAW,
    TRADES,
    FieldLayout,
    MessageSelection,
    select,
    select_all,
)
from everlog.market.packing import PackedRecords, by_key
from everlog.market.protocol import (
    HEADER_BYTES,
    BookEventType,
    BookMode,
    TypeId,
    new_headers,
    symbol_hash,
)
from everlog.market.symbols import market_id_of
from everlog.pipeline import queue_ranges
from everlog.queue import Queue, QueueWriter
from everlog.queue.batch import Batch
from everlog.queue.config import MIB, WriterConfig
from everlog.queue.control import ControlBlock
from everlog.queue.layout import HEADER_SIZE
from everlog.queue.names import check_component

SNAPSHOT_INTERVAL_NS: Final = 60 * NS_PER_S
STAYS_OPEN_NS: Final = 3600 * NS_PER_S
"""How long after its end a day still accepts messages."""

SEGMENT_SIZE: Final = 4 * MIB
OPEN_QUEUES_MAX: Final = 64
LAYOUT_VERSION: Final = "v1"


class RefinerySettings(NamedTuple):
    """How a refinery works; the same for all runs into one root."""

    interval_ns: int = SNAPSHOT_INTERVAL_NS
    stays_open_ns: int = STAYS_OPEN_NS
    gap_policy: str = "panic"
    segment_size: int = SEGMENT_SIZE


class Counts(NamedTuple):
    """Messages that a refinery has written in this run, and those that it had written before."""

    books: int = 0
    trades: int = 0
    late: int = 0
    snapshots: int = 0
    known: int = 0

    def __add__(self, other: tuple[Any, ...]) -> Counts:
        """Return the sums."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class Symbols:
    """The symbols of a venue: how messages name them, and how paths do."""

    def __init__(self, venue: str, names: Sequence[str]) -> None:
        self.venue = check_component(venue, "venue")
        self.names = tuple(dict.fromkeys(names))
        self.codes = tuple(symbol_code(name) for name in self.names)
        if len(set(self.codes)) != len(self.codes):
            raise InvalidConfig(f"two symbols of {', '.join(self.names)} have the same name in paths")
        ids = [market_id_of(venue, name) for name in self.names]
        self._markets = np.array(ids, dtype=np.uint64)
        self._hashes = np.array([symbol_hash(name) for name in self.names], dtype=np.uint64)

    def of_markets(self, ids: NDArray[Any]) -> NDArray[np.intp]:
        """Return the number of each market's symbol."""
        return self._find(self._markets, ids, "market id")

    def of_hashes(self, hashes: NDArray[Any]) -> NDArray[np.intp]:
        """Return the number of each hash's symbol."""
        return self._find(self._hashes, hashes, "symbol hash")

    def _find(self, known: NDArray[np.uint64], wanted: NDArray[Any], what: str) -> NDArray[np.intp]:
        order = np.argsort(known)
        places = np.searchsorted(known, wanted, sorter=order)
        found = order[np.minimum(places, len(known) - 1)]
        is_unknown = known[found] != wanted
        if is_unknown.any():
            raise InvalidConfig(
                f"no symbol of {self.venue} has the {what} {int(wanted[int(is_unknown.argmax())])}; name all "
                "symbols of the queue"
            )
        return found


def symbol_code(name: str) -> str:
    """Return a symbol as paths have it: lower case, with `-` for `/`, `:` and spaces."""
    code = re.sub(r"[/: ]", "-", name.lower())
    code = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9._-]", "", code)).strip("-")
    return check_component(code, "symbol")


class Refinery:
    """Refines some symbols of a raw queue; needs every batch from the first message on."""

    def __init__(
        self,
        root: str,
        symbols: Symbols,
        mine: Sequence[int],
        settings: RefinerySettings | None = None,
    ) -> None:
        self._settings = settings or RefinerySettings()
        self._symbols = symbols
        self._outputs = _Outputs(self._settings.segment_size)
        parent = os.path.join(root, LAYOUT_VERSION, symbols.venue)
        self._mine = {
            number: _Symbol(os.path.join(parent, symbols.codes[number]), self._settings, self._outputs)
            for number in mine
        }

    def add(self, batch: Batch) -> None:
        """Write what belongs to these symbols."""
        everything = select_all(batch)
        books = select(RAW._replace(type_id=TypeId.BOOK_EVENT), everything)
        trades = select(TRADES, everything)
        for number, some in self._by_symbol(self._symbols.of_markets, books, HEADER_FIELDS["market_id"]):
            self._mine[number].add_books(some)
        for number, some in self._by_symbol(self._symbols.of_hashes, trades, TRADES.fields["symbol_hash"]):
            self._mine[number].add_trades(some)

    def _by_symbol(
        self, find: Any, some: MessageSelection, field: FieldLayout
    ) -> Iterator[tuple[int, MessageSelection]]:
        if not len(some):
            return
        for number, places in by_key(find(some.values(field))):
            if number in self._mine:
                yield number, some.take(places)

    def close(self) -> Counts:
        """Make everything durable; return what was done."""
        self._outputs.close()
        return sum((one.counts for one in self._mine.values()), Counts())


class _Events(NamedTuple):
    """Messages of one type, where they lie."""

    type_id: int
    packed: PackedRecords
    stamps_ns: NDArray[np.uint64]
    flags: NDArray[np.uint16]

    def part(self, first: int, end: int) -> _Events:
        """Return some that follow each other."""
        some = slice(first, end)
        packed = PackedRecords(self.packed.buffer, self.packed.offsets[some], self.packed.lengths[some])
        return _Events(self.type_id, packed, self.stamps_ns[some], self.flags[some])


def _events(type_id: int, some: MessageSelection) -> _Events:
    starts = (some.offsets + HEADER_SIZE).astype(np.uint64)
    packed = PackedRecords(some.batch.segment, starts, some.lengths.astype(np.uint64))
    return _Events(type_id, packed, some.values(MESSAGE_FIELDS["ts_ns"]), some.values(RAW.fields["flags"]))


class _Days:
    """The day of each message, and whether it arrived too late for it."""

    def __init__(self, stays_open_ns: int) -> None:
        self._stays_open_ns = stays_open_ns
        self._newest_ns = 0

    def runs(self, times_ns: NDArray[np.int64]) -> Iterator[tuple[int, int, int, bool]]:
        """Yield first, end, day and lateness of each run of messages with the same ones."""
        newest = np.maximum.accumulate(np.concatenate(([self._newest_ns], times_ns)))
        self._newest_ns = int(newest[-1])
        days = times_ns // NS_PER_DAY
        is_late = (days + 1) * NS_PER_DAY + self._stays_open_ns <= newest[:-1]
        cuts = np.flatnonzero((np.diff(days) != 0) | (np.diff(is_late) != 0)) + 1
        bounds = [0, *cuts.tolist(), len(times_ns)]
        for first, end in pairwise(bounds):
            yield first, end, int(days[first]), bool(is_late[first])


class _Symbol:
    """One symbol: its book, when the last snapshot was written, and what it has written."""

    def __init__(self, path: str, settings: RefinerySettings, outputs: _Outputs) -> None:
        self._path = path
        self._interval_ns = settings.interval_ns
        self._outputs = outputs
        self._book = L2Book(gap_policy=settings.gap_policy)
        self._book_days = _Days(settings.stays_open_ns)
        self._trade_days = _Days(settings.stays_open_ns)
        self._snapshot_ns: dict[int, int] = {}
        self.counts = Counts()

    def add_trades(self, some: MessageSelection) -> None:
        """Copy trades."""
        events = _events(TypeId.TRADE, some)
        times_ns = _times(some, TRADES.fields["exchange_ts_ns"])
        for first, end, day, is_late in self._trade_days.runs(times_ns):
            stream = "late" if is_late else "trades"
            self._append(day, stream, events.part(first, end), counted_as=stream)

    def add_books(self, some: MessageSelection) -> None:
        """Copy book events, and put snapshots in."""
        events = _events(TypeId.BOOK_EVENT, some)
        times_ns = _times(some, HEADER_FIELDS["exchange_ts_ns"])
        kinds = some.values(HEADER_FIELDS["event_type"])
        is_l2 = some.values(HEADER_FIELDS["book_mode"]) == BookMode.L2
        is_snapshot = is_l2 & (kinds == BookEventType.SNAPSHOT)
        for first, end, day, is_late in self._book_days.runs(times_ns):
            if is_late:
                self._append(day, "late", events.part(first, end), counted_as="late")
                self._apply(events, is_l2, first, end)
                continue
            at = first
            while at < end:
                if is_l2[at]:
                    self._refresh(day, some, at, int(times_ns[at]), bool(is_snapshot[at]))
                stop = self._next_stop(day, times_ns, is_l2, is_snapshot, at, end)
                self._append(day, "book", events.part(at, stop), counted_as="books")
                self._apply(events, is_l2, at, stop)
                at = stop

    def _refresh(self, day: int, some: MessageSelection, at: int, time_ns: int, is_snapshot: bool) -> None:
        """Write a snapshot of the book before an event if one is due; an event that is one will do."""
        last_ns = self._snapshot_ns.get(day)
        if not is_snapshot and last_ns is not None and time_ns < last_ns + self._interval_ns:
            return
        if is_snapshot or not self._book.quarantined:
            self._snapshot_ns[day] = time_ns
        if is_snapshot or self._book.quarantined:
            # After a gap the book is unknown until the source itself sends a snapshot.
            return
        body = self._book.snapshot_payload()
        header = new_headers(1, BookEventType.SNAPSHOT, BookMode.L2)
        one = some.part(at, at + 1)
        for name in ("venue_id", "market_id", "stream_id", "ingest_ts_ns", "exchange_ts_ns"):
            header[name] = one.values(HEADER_FIELDS[name])
        header["record_len"] = HEADER_BYTES + len(body)
        data = np.frombuffer(header.tobytes() + body, dtype=np.uint8)
        packed = PackedRecords(data, np.zeros(1, np.uint64), np.full(1, len(data), np.uint64))
        stamps = one.values(MESSAGE_FIELDS["ts_ns"])
        snapshot = _Events(TypeId.BOOK_EVENT, packed, stamps, np.zeros(1, np.uint16))
        self._append(day, "book", snapshot, counted_as="snapshots")

    def _next_stop(
        self,
        day: int,
        times_ns: NDArray[np.int64],
        is_l2: NDArray[np.bool_],
        is_snapshot: NDArray[np.bool_],
        at: int,
        end: int,
    ) -> int:
        """Return the next event before which `_refresh` has something to do, or the end."""
        last_ns = self._snapshot_ns.get(day)
        some = slice(at + 1, end)
        due = (
            is_l2[some] if last_ns is None else is_l2[some] & (times_ns[some] >= last_ns + self._interval_ns)
        )
        stops = due | is_snapshot[some]
        return at + 1 + int(stops.argmax()) if stops.any() else end

    def _apply(self, events: _Events, is_l2: NDArray[np.bool_], first: int, end: int) -> None:
        """Bring the book up to date; order-by-order events are copied, but have no L2 book."""
        chosen = np.flatnonzero(is_l2[first:end]) + first
        if len(chosen):
            self._book.apply_array(events.packed.take(chosen))

    def _append(self, day: int, stream: str, events: _Events, counted_as: str) -> None:
        date = datetime.fromtimestamp(day * NS_PER_DAY // NS_PER_S, UTC).date().isoformat()
        new = self._outputs.append(os.path.join(self._path, date, stream), events)
        self.counts += Counts(**{counted_as: new, "known": len(events.stamps_ns) - new})


class _Outputs:
    """All queues that are written, a few of them open at a time; appends only what they do not have."""

    def __init__(self, segment_size: int) -> None:
        self._config = WriterConfig.archive().replace(segment_size=segment_size, large_blocks=True)
        self._open: OrderedDict[str, QueueWriter] = OrderedDict()
        self._produced: dict[str, int] = {}
        self._held: dict[str, int] = {}

    def append(self, path: str, events: _Events) -> int:
        """Append messages unless the queue has them; return how many were appended."""
        before = self._produced.get(path, 0)
        self._produced[path] = before + len(events.stamps_ns)
        if path not in self._held:
            self._held[path] = _messages_in(path)
        skipped = min(len(events.stamps_ns), max(0, self._held[path] - before))
        new = events.part(skipped, len(events.stamps_ns))
        if not len(new.stamps_ns):
            return 0
        stamps = np.ascontiguousarray(new.stamps_ns)
        packed = new.packed
        writer = self._writer(path)
        if writer.next_seq != before + skipped:
            raise Corrupt(
                f"{path} was repaired and has {writer.next_seq} messages, not {before + skipped}; run again"
            )
        writer.append_packed(
            new.type_id, packed.buffer, packed.ends, stamps, np.ascontiguousarray(new.flags), packed.offsets
        )
        return len(stamps)

    def _writer(self, path: str) -> QueueWriter:
        writer = self._open.pop(path, None)
        if writer is None:
            if len(self._open) >= OPEN_QUEUES_MAX:
                _finish(self._open.popitem(last=False)[1])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            writer = Queue.open_publisher(path, self._config)
        self._open[path] = writer
        return writer

    def close(self) -> None:
        """Make all queues durable and close them."""
        while self._open:
            _finish(self._open.popitem()[1])
        short = [path for path, count in self._held.items() if count > self._produced[path]]
        if short:
            raise Corrupt(
                f"{short[0]} has {self._held[short[0]]} messages, but the raw queue gives only "
                f"{self._produced[short[0]]}; was it made from another queue? Refine into another directory"
            )


def _finish(writer: QueueWriter) -> None:
    writer.flush_sync()
    writer.close()


def _messages_in(path: str) -> int:
    """Return how many messages a refined queue has; none are ever removed from one."""
    if not ControlBlock.is_ready(OsFs(), path):
        return 0
    return queue_ranges.bounds(path).end


def _times(some: MessageSelection, field: FieldLayout) -> NDArray[np.int64]:
    """Return the exchange's times; where it gave none, the time of arrival."""
    times = some.values(field)
    return np.where(times == 0, some.values(MESSAGE_FIELDS["ts_ns"]), times).astype(np.int64)
