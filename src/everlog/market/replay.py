"""Replaying a queue or an archive on one machine: source, filters, books and features, where the rows go.

Owns the order of these steps and the counts; time comes from the messages only, never from the wall clock.
A replay is described first (`Replay(path).between(...).markets(...)`) and runs when its end is named.

    Replay(queue).features(standard_features()).trigger(TimeBar(1_000_000_000)).to_parquet("features")
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from everlog.errors import InvalidConfig
from everlog.market.book_set import BookSettings, Market
from everlog.market.feature_engine import FeatureEngine, MarketRows
from everlog.market.feature_rows import Feature, row_dtype
from everlog.market.import_runs import NO_SEQ, ImportRun, import_runs
from everlog.market.market_names import MarketChoice, OfSymbols
from everlog.market.packing import PackedRecords, gather_field
from everlog.market.protocol import BOOK_TICKER, TRADE, TypeId, folded_hash, taker_sides
from everlog.market.triggers import Always, Trigger
from everlog.market.warm_start import begin
from everlog.queue import Batch, Queue
from everlog.queue.layout import HEADER_SIZE

BATCH_MESSAGES: Final = 16384
WARM_UP_NS: Final = 60_000_000_000
"""How long before a time range the events are replayed at least, so that sums and time bars are whole."""
CLOCK_STEP_NS: Final = 60_000_000_000
"""Messages of a time range are looked for so far around it: a writer's clock may have been set back."""


class MessageReader(Protocol):
    """What a replay reads: a `QueueReader`, or the `ArchiveReader` or `HistoryReader` of an archive."""

    def read_batch(self, max: int, /) -> Batch:
        """Return up to `max` messages; an empty batch is the end."""
        ...

    def seek_seq(self, seq: int, /) -> bool:
        """Stand before the first message with at least this seq."""
        ...

    def seek_time(self, timestamp_ns: int, /) -> bool:
        """Stand before the first message at or after a time."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class Messages(NamedTuple):
    """Some messages of a batch, in order; the arrays have one value per message."""

    batch: Batch
    chosen: npt.NDArray[np.intp]

    @property
    def is_whole(self) -> bool:
        """Whether these are all messages of the batch."""
        return len(self.chosen) == len(self.batch)

    def _of(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of what a column of the batch has for these."""
        return np.array(column) if self.is_whole else column[self.chosen]

    @property
    def seq(self) -> npt.NDArray[np.uint64]:
        """Each message's seq."""
        return self._of(self.batch.seq)

    @property
    def timestamp_ns(self) -> npt.NDArray[np.uint64]:
        """Each message's ingest time."""
        return self._of(self.batch.timestamp_ns)

    @property
    def type_id(self) -> npt.NDArray[np.uint16]:
        """Each message's type."""
        return self._of(self.batch.type_id)

    @property
    def length(self) -> npt.NDArray[np.uint32]:
        """Each message's payload length."""
        return self._of(self.batch.length)

    @property
    def flags(self) -> npt.NDArray[np.uint16]:
        """Each message's flags (`protocol.MessageFlags`)."""
        return self._of(self.batch.flags)

    @property
    def offset(self) -> npt.NDArray[np.uint64]:
        """Where each message's record starts in its segment."""
        return self._of(self.batch.offset)

    @property
    def packed(self) -> PackedRecords:
        """The payloads, without a copy."""
        stride = 0 if self.batch.common_length is None or not self.is_whole else self.batch.stride
        offsets = self.offset + np.uint64(HEADER_SIZE)
        return PackedRecords(self.batch.segment, offsets, self.length.astype(np.uint64), stride)

    def where(self, keep: npt.NDArray[Any]) -> Messages:
        """Return those for which `keep` is true."""
        return Messages(self.batch, self.chosen[keep])


Filter = Callable[[Messages], npt.NDArray[Any]]
"""Says for each message whether it goes on."""


@dataclass(slots=True)
class ReplayStats:
    """What a replay did."""

    read: int = 0
    filtered: int = 0
    written: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    """Of features: gaps, unknown orders, skipped events, and ends of events with a crossed book."""


class TradeBatch(NamedTuple):
    """Trades of one batch; `side` is the taker's as `protocol.Side`, unknown where the source gave none."""

    timestamp_ns: npt.NDArray[np.uint64]
    trades: npt.NDArray[np.void]
    side: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Replay:
    """The messages of a queue that are replayed, from the oldest to the last that is there.

    `reader` opens another source than the queue at `path`; `everlog.archive.replays` makes such replays.
    `snapshots` is the queue beside which snapshots of its books are, if that is not `path`.
    """

    path: str
    filters: tuple[Callable[[], Filter], ...] = ()
    from_seq: int = 0
    batch_messages: int = BATCH_MESSAGES
    reader: Callable[[], MessageReader] | None = None
    snapshots: str | None = None
    end_seq: int = NO_SEQ

    def between(self, start_ns: int, end_ns: int) -> Replay:
        """Only messages with an ingest time from `start_ns` up to, but not including, `end_ns`."""
        if not 0 <= start_ns <= end_ns:
            raise InvalidConfig(f"the time range {start_ns} to {end_ns} is empty or negative")
        return self._also(_Between(start_ns, end_ns))

    def types(self, *type_ids: int) -> Replay:
        """Only messages of these types."""
        return self._also(_OfTypes(type_ids))

    def every(self, n: int) -> Replay:
        """Only the messages n, 2n, 3n and so on of those that come so far."""
        if n < 1:
            raise InvalidConfig(f"every {n}th message cannot be taken; n must be at least 1")
        return self._also(lambda: _EveryNth(n))

    def markets(self, *market_ids: int) -> Replay:
        """Only book events of these markets; other messages than book events go on."""
        return self._also(_OfMarkets(market_ids))

    def symbols(self, *symbols: str) -> Replay:
        """Only book events, trades and tickers of these symbols, or of markets with these numbers.

        A venue may stand before a symbol, as in `binance:BTCUSDT`.
        """
        choices = [MarketChoice.parse(symbol) for symbol in symbols]
        if any(one.venue_id is not None for one in choices):
            return self._also(OfSymbols.Maker(tuple(choices)))
        ids = {number for one in choices for number in one.market_ids}
        return self._also(_OfMarkets(tuple(sorted(ids)), has_others=False))

    def where(self, keep: Filter) -> Replay:
        """Only messages for which `keep` returns True."""
        return self._also(lambda: keep)

    def _also(self, make: Callable[[], Filter]) -> Replay:
        return replace(self, filters=(*self.filters, make))

    def open(self) -> MessageReader:
        """Open the source, before its first message."""
        if self.reader is not None:
            return self.reader()
        return Queue.open_subscriber(self.path, None, "earliest")

    def runs(self) -> Sequence[ImportRun]:
        """Return the parts of the queue within which times rise; an archive is one of them."""
        return [run for run in import_runs(self.path) if run.first < self.end_seq and self.from_seq < run.end]

    def in_order(self) -> list[Replay]:
        """Return replays which, merged, are the messages in the order of time: one for each run."""
        runs = self.runs()
        if len(runs) == 1:
            return [self]
        return [
            replace(self, from_seq=max(self.from_seq, run.first), end_seq=min(self.end_seq, run.end))
            for run in runs
        ]

    def begins_in_middle(self) -> bool:
        """Whether the source does not have its first message any more, or it is not replayed."""
        with closing(self.open()) as reader, reader.read_batch(1) as batch:
            return self.from_seq > 0 or (len(batch) > 0 and int(batch.seq[0]) > 0)

    def from_the_start(self) -> tuple[Replay, int]:
        """Return the replay without the beginnings of its time ranges, and the latest of these."""
        start_ns = max((one.start_ns for one in self.filters if isinstance(one, _Between)), default=0)
        filters = tuple(
            replace(one, start_ns=0) if isinstance(one, _Between) else one for one in self.filters
        )
        return replace(self, filters=filters), start_ns

    @property
    def has_whole_markets(self) -> bool:
        """Whether all book events of the chosen markets pass, as far as they are in the time range."""
        return not self.from_seq and all(
            isinstance(one, _Between | _OfMarkets)
            or (isinstance(one, _OfTypes) and TypeId.BOOK_EVENT in one.type_ids)
            for one in self.filters
        )

    @property
    def has_all_markets(self) -> bool:
        """Whether no market was chosen: else numbers that a channel's orders lack may be those of others."""
        return not any(isinstance(one, _OfMarkets | OfSymbols.Maker) for one in self.filters)

    @property
    def market_ids(self) -> Collection[int] | None:
        """The markets whose book events pass; None: all."""
        chosen = [set(one.market_ids) for one in self.filters if isinstance(one, _OfMarkets)]
        return set.intersection(*chosen) if chosen else None

    def _searched(self) -> tuple[int, int]:
        """Return the times between which messages are looked for, inclusive.

        Only time ranges before a filter that may count messages narrow it.
        """
        start_ns, end_ns = 0, 2**64 - 1
        for one in self.filters:
            if isinstance(one, _Between):
                start_ns, end_ns = max(start_ns, one.start_ns), min(end_ns, one.end_ns)
            elif not isinstance(one, _OfMarkets | _OfTypes):
                break
        return start_ns - CLOCK_STEP_NS, end_ns + CLOCK_STEP_NS

    def batches(self, stats: ReplayStats | None = None) -> Generator[Messages]:
        """Yield what passes in the order of the queue; a batch is valid until the next one is asked for."""
        counts = stats if stats is not None else ReplayStats()
        filters = [make() for make in self.filters]
        first_ns, last_ns = self._searched()
        runs = self.runs()
        with closing(self.open()) as reader:
            for run in runs:
                if not run.may_hold(first_ns, last_ns):
                    continue
                first, end = max(self.from_seq, run.first), min(self.end_seq, run.end)
                if first:
                    reader.seek_seq(first)
                elif first_ns > 0 and run.rises and len(runs) == 1:
                    reader.seek_time(first_ns)
                for whole in self._of_run(reader, end, last_ns if run.rises else NO_SEQ):
                    some = whole
                    for keep in filters:
                        some = some.where(keep(some))
                    counts.read += len(whole.chosen)
                    counts.filtered += len(whole.chosen) - len(some.chosen)
                    if len(some.chosen):
                        yield some

    def _of_run(self, reader: MessageReader, end: int, last_ns: int) -> Generator[Messages]:
        """Yield the messages before seq `end`, up to the first batch that begins later than a time."""
        while True:
            with reader.read_batch(self.batch_messages) as batch:
                if not len(batch) or int(batch.timestamp_ns[0]) > last_ns or int(batch.seq[0]) >= end:
                    return
                is_last = int(batch.seq[-1]) + 1 >= end
                count = end - int(batch.seq[0]) if is_last else len(batch)
                yield Messages(batch, np.arange(count))
                if is_last:
                    return

    # --- Where messages go -------------------------------------------------------------------------------

    def to_queue(self, path: str, **config: Any) -> ReplayStats:
        """Copy the messages to another queue in the order of time; they keep their times, types and flags."""
        from everlog.market.merge import in_time_order  # which replays

        stats, started_s = ReplayStats(), time.monotonic()
        with Queue.open_publisher(path, **config) as writer:
            for some in in_time_order([self], stats):
                packed = some.packed
                times = np.ascontiguousarray(some.timestamp_ns)
                kinds = np.ascontiguousarray(some.type_id)
                writer.append_packed(kinds, packed.buffer, packed.ends, times, some.flags, packed.offsets)
                stats.written += len(packed)
        stats.seconds = time.monotonic() - started_s
        return stats

    def to_csv(self, path: str) -> ReplayStats:
        """Write a line per message: seq, timestamp_ns, type_id, payload_len."""

        def write_batch(some: Messages) -> int:
            columns = (some.seq, some.timestamp_ns, some.type_id, some.length)
            lines.writerows(zip(*(column.tolist() for column in columns), strict=True))
            return len(some.chosen)

        with open(path, "w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(("seq", "timestamp_ns", "type_id", "payload_len"))
            return self._run(write_batch)

    def for_each(self, handle: Callable[[Messages], object]) -> ReplayStats:
        """Call `handle` with every batch."""

        def handle_batch(some: Messages) -> int:
            handle(some)
            return len(some.chosen)

        return self._run(handle_batch)

    def trades(self) -> Iterator[TradeBatch]:
        """Yield ingest times, trades (`protocol.TRADE`) and the takers' sides, batch by batch, as copies."""
        for some in self.types(TypeId.TRADE).batches():
            data, _ = some.batch.joined(some.chosen)
            trades = data.view(TRADE)
            yield TradeBatch(some.timestamp_ns.copy(), trades, taker_sides(trades, some.flags))

    def features(self, chosen: Sequence[Feature], settings: BookSettings | None = None) -> FeatureReplay:
        """Build the books and compute features after every event.

        The books of `between` are those of all events before it, its rows those of a whole replay in the
        range. The books begin with the newest set of snapshots that `everlog queue snapshotter` wrote
        `warm_up_ns` before the range, else with the first message of the source. Where that one is gone, a
        market has no rows before its next snapshot or reset.
        """
        return FeatureReplay(self, tuple(chosen), settings or BookSettings())

    def _run(self, write: Callable[[Messages], int]) -> ReplayStats:
        stats = ReplayStats()
        started_s = time.monotonic()
        for some in self.batches(stats):
            stats.written += write(some)
        stats.seconds = time.monotonic() - started_s
        return stats


@dataclass(frozen=True, slots=True)
class FeatureReplay:
    """A replay whose end is a table of features, one row whenever the trigger fires."""

    replay: Replay
    chosen: tuple[Feature, ...]
    settings: BookSettings = field(default_factory=BookSettings)
    fired_by: Trigger = field(default_factory=Always)
    warm_up_ns: int = WARM_UP_NS
    others: tuple[Replay, ...] = ()

    def trigger(self, trigger: Trigger) -> FeatureReplay:
        """Write a row only where this trigger fires; each market has its own.

        It is shown the last messages of the venue's events alone: in between, a book may be crossed, and no
        one could trade on it. `triggers.EveryMessage` around it shows it all messages.
        """
        return replace(self, fired_by=trigger)

    def warm_up(self, duration_ns: int) -> FeatureReplay:
        """Replay at least so long before the range, for features and triggers that remember longer."""
        if duration_ns < 0:
            raise InvalidConfig(f"a warm-up of {duration_ns} ns is negative")
        return replace(self, warm_up_ns=duration_ns)

    def also(self, *replays: Replay) -> FeatureReplay:
        """Replay the messages of these as well, all in the order of their receive times."""
        return replace(self, others=(*self.others, *replays))

    def tables(self, stats: ReplayStats | None = None) -> Iterator[MarketRows]:
        """Yield rows, market by market within a batch, in the order of the events of each market."""
        for batch in self.batches(stats):
            yield from batch

    def batches(self, stats: ReplayStats | None = None) -> Iterator[list[MarketRows]]:
        """Yield the rows of each batch, market by market."""
        from everlog.market.merge import in_time_order  # which replays

        start = begin((self.replay, *self.others), self.settings, self.warm_up_ns)
        engine = FeatureEngine(self.chosen, self.settings, self.fired_by, start.start_ns)
        engine.begin_with(start.books, start.sources)
        if stats is not None:
            stats.faults = engine.faults
        for some in in_time_order([one.types(*engine.type_ids) for one in start.rests], stats):
            yield engine.rows(some)

    def for_each(self, handle: Callable[[MarketRows], object]) -> ReplayStats:
        """Call `handle` with the rows of every batch."""
        stats = ReplayStats()
        started_s = time.monotonic()
        for row in self.tables(stats):
            handle(row)
            stats.written += len(row.rows)
        stats.seconds = time.monotonic() - started_s
        return stats

    def to_parquet(self, directory: str, names: Callable[[Market], str] | None = None) -> ReplayStats:
        """Write one file per day and market: `<directory>/date=2024-12-01/symbol=<name>/features.parquet`.

        A file appears when it is complete. `names` gives the symbol of a market, its number by default.
        """
        from everlog.market.feature_files import FeatureFiles

        with FeatureFiles(
            directory, row_dtype(self.chosen), names or (lambda one: str(one.market_id))
        ) as files:
            return self.for_each(lambda row: files.write(row.market, row.rows))


@dataclass(frozen=True, slots=True)
class _Between:
    """Passes the messages of a time range."""

    start_ns: int
    end_ns: int

    def __call__(self) -> Filter:
        low, high = np.uint64(self.start_ns), np.uint64(self.end_ns)
        return lambda some: (some.timestamp_ns >= low) & (some.timestamp_ns < high)


@dataclass(frozen=True, slots=True)
class _OfTypes:
    """Passes messages of some types."""

    type_ids: tuple[int, ...]

    def __call__(self) -> Filter:
        return lambda some: np.isin(some.type_id, self.type_ids)


@dataclass(frozen=True, slots=True)
class _OfMarkets:
    """Passes book events of some markets, and all other messages, or of those trades and tickers alone."""

    market_ids: tuple[int, ...]
    has_others: bool = True

    def __call__(self) -> Filter:
        return self._keep

    def _keep(self, some: Messages) -> npt.NDArray[Any]:
        is_book = some.type_id == TypeId.BOOK_EVENT
        passes: npt.NDArray[np.bool_] = ~is_book
        passes[is_book] = np.isin(gather_field(some.where(is_book).packed, "market_id"), self.market_ids)
        if self.has_others:
            return passes
        for type_id, layout in ((TypeId.TRADE, TRADE), (TypeId.BOOK_TICKER, BOOK_TICKER)):
            is_kind = (some.type_id == type_id) & (some.length == layout.itemsize)
            data, _ = some.batch.joined(some.chosen[is_kind])
            passes[is_kind] = np.isin(folded_hash(data.view(layout)["symbol_hash"]), self.market_ids)
        is_known = np.isin(some.type_id, (TypeId.BOOK_EVENT, TypeId.TRADE, TypeId.BOOK_TICKER))
        return passes & is_known


class _EveryNth:
    """Passes the messages n, 2n, 3n, counted over all batches."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._seen = 0

    def __call__(self, some: Messages) -> npt.NDArray[Any]:
        numbers = np.arange(self._seen + 1, self._seen + 1 + len(some.chosen))
        self._seen += len(some.chosen)
        passes: npt.NDArray[np.bool_] = numbers % self._n == 0
        return passes
