"""What an importer is: the one interface behind `everlog import`, and the words it is made of.

Owns options, blocks of events, the tally of an import and what happens to bad rows. Knows no
format and opens no queue: `everlog.market.importing` does.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig, InvalidSource
from everlog.market.protocol import MessageFlags
from everlog.market.symbols import SymbolDefinition
from everlog.queue.faults import io_errors

if TYPE_CHECKING:
    from everlog.market.venues.archives import Member
    from everlog.market.venues.csv_blocks import RowBlock
    from everlog.queue import QueueWriter

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
MULTI = "MULTI"
"""What the ledger calls the symbol of an import that has several."""
_DATE_PART = re.compile(r"(?:^|/)date=(\d{4}-\d{2}-\d{2})(?:/|$)")
_DATE_IN_NAME = re.compile(r"(?:^|_)(\d{4}-\d{2}-\d{2})(?:_|\.|$)")
_COMPACT_DATE_IN_NAME = re.compile(r"_(\d{4})(\d{2})(\d{2})(?:_|\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """What the user may say about a file beyond its content; None: taken from the file."""

    venue: str | None = None
    symbol: str | None = None
    date: str | None = None
    price_scale: int | None = None
    size_scale: int | None = None
    full_channel: bool = False
    """SZSE: the files hold every message of their channels, so that a gap is an error."""
    allow_unordered: bool = False
    """Keep and count rows whose time or number goes back or is there twice, instead of refusing them."""

    def __post_init__(self) -> None:
        """Refuse scales and dates that cannot be."""
        for name in ("price_scale", "size_scale"):
            scale = getattr(self, name)
            if scale is not None and not 0 <= scale <= 18:
                raise InvalidConfig(f"{name} must be 0 to 18, got {scale}")
        if self.date is not None and not DATE.fullmatch(self.date):
            raise InvalidConfig(f"a date is written YYYY-MM-DD, got {self.date!r}")


@dataclass(slots=True)
class EventBlock:
    """Events in the order in which they go to the queue, of one type or with one type id each.

    Either `payloads` is a structured array with one element per event, or it is the bytes of all
    events and `ends` is where each ends, `starts` where it starts if not where the last ended.
    """

    type_id: int | NDArray[np.uint16]
    payloads: NDArray[Any]
    timestamps_ns: NDArray[np.uint64]
    ends: NDArray[np.uint64] | None = None
    flags: NDArray[np.uint16] | None = None
    """`protocol.MessageFlags` of each; None: each is an event of the venue by itself."""
    starts: NDArray[np.uint64] | None = None
    saturated: int = 0
    """Prices and sizes that did not fit into 64 bits at the scale of their event."""
    cut: int = 0
    """Prices and sizes that lost digits at the scale that the user chose."""
    scales: tuple[int, int] | None = None
    """The most decimals that the text of prices and of sizes had; None: the format has a scale of its own."""

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.timestamps_ns)

    def append_to(self, writer: QueueWriter) -> None:
        """Append every event with its own timestamp."""
        if len(self) == 0:
            return
        stamps = np.ascontiguousarray(self.timestamps_ns)
        ends, payloads, flags = self.ends, self.payloads, self.flags
        if flags is None:
            flags = np.full(len(self), MessageFlags.LAST_OF_EVENT, dtype=np.uint16)
        if ends is None:
            payloads = np.ascontiguousarray(payloads)
            ends = np.arange(1, len(self) + 1, dtype=np.uint64) * np.uint64(payloads.dtype.itemsize)
        writer.append_packed(self.type_id, payloads.view(np.uint8), ends, stamps, flags, self.starts)


@dataclass(slots=True)
class Tally:
    """What an import has seen so far; the ledger is made of it."""

    venue: str = ""
    symbol: str = ""
    date: str = ""
    stream: str = ""
    rows: int = 0
    """Rows (or messages) read, without those in quarantine."""
    groups: int = 0
    """Events written."""
    dropped_rows: int = 0
    """Rows before the first snapshot: there is no book they could change."""
    gaps: int = 0
    """Places where the source's own sequence has a hole."""
    quarantined: int = 0
    saturated: int = 0
    """Prices and sizes that became the largest number there is."""
    cut: int = 0
    """Prices and sizes that lost digits at the scale that the user chose."""
    unordered: int = 0
    """Rows whose time or number goes back or is there twice, and that were kept because that is allowed."""
    beyond_rows: int = 0
    """LOBSTER: rows about orders that rested before, beyond the levels of the order book."""
    min_ts_ns: int | None = None
    max_ts_ns: int | None = None
    notes: list[str] = field(default_factory=list)
    """Things a person should know; printed once at the end."""
    channel_symbols: dict[int, set[str]] = field(default_factory=dict)
    """SZSE: which symbols each channel carries."""
    scales: tuple[int, int] | None = None
    """The most decimals of prices and of sizes in text."""
    symbols: set[tuple[str, str]] = field(default_factory=set)
    """Venue and symbol of every market that the files name."""
    definitions: list[SymbolDefinition] = field(default_factory=list)
    """What the files say of symbols beyond their names."""

    def name(self, *, venue: str, symbol: str, date: str, stream: str) -> None:
        """Record what a file holds; files of different symbols are MULTI, of the first file's day."""
        self.venue = venue
        self.stream = stream
        self.symbol = symbol if self.symbol in ("", symbol) else MULTI
        self.date = min(filter(None, (self.date, date)), default="")
        if symbol not in ("", MULTI):
            self.symbols.add((venue, symbol))

    def count(self, block: EventBlock) -> None:
        """Add a block of events."""
        if len(block) == 0:
            return
        low, high = int(block.timestamps_ns.min()), int(block.timestamps_ns.max())
        self.groups += len(block)
        self.saturated += block.saturated
        self.cut += block.cut
        if block.scales is not None:
            known = self.scales or (0, 0)
            self.scales = max(known[0], block.scales[0]), max(known[1], block.scales[1])
        self.min_ts_ns = low if self.min_ts_ns is None else min(low, self.min_ts_ns)
        self.max_ts_ns = high if self.max_ts_ns is None else max(high, self.max_ts_ns)

    def learned(self) -> list[SymbolDefinition]:
        """Return what the symbol catalogue is to know: definitions, else names and the decimals seen."""
        defined = {(one.exchange, one.exchange_symbol) for one in self.definitions}
        named = self.symbols | {(self.venue, name) for some in self.channel_symbols.values() for name in some}
        prices, sizes = self.scales if self.scales is not None and len(named) == 1 else (None, None)
        at_ts = None if self.min_ts_ns is None else self.min_ts_ns // 1000
        plain = [
            SymbolDefinition(
                exchange=venue,
                exchange_symbol=symbol,
                price_increment=None if prices is None else float(f"1e-{prices}"),
                amount_increment=None if sizes is None else float(f"1e-{sizes}"),
                at_ts=at_ts,
            )
            for venue, symbol in sorted(named - defined)
            if at_ts is not None
        ]
        return self.definitions + plain


class Rejects:
    """What happens to a bad row: an error with file and line, or a line in the quarantine file."""

    def __init__(self, quarantine_path: str | None, tally: Tally) -> None:
        """`quarantine_path` None makes every bad row an error; the file is made at the first one."""
        self.path = quarantine_path
        self._tally = tally
        self._opened = contextlib.ExitStack()
        self._writer: Any = None

    def reject(self, label: str, line: int, reason: str, text: str) -> None:
        """Raise InvalidSource, or keep the row aside with the reason."""
        if self.path is None:
            raise InvalidSource(
                f"{label}:{line}: {reason}; correct the file, or import with --lenient to set bad rows aside",
                label,
                line,
            )
        with io_errors(f"write {self.path}"):
            if self._writer is None:
                file = self._opened.enter_context(
                    io.TextIOWrapper(io.FileIO(self.path, "w"), "utf-8", newline="")
                )
                self._writer = csv.writer(file)
                self._writer.writerow(("file", "line", "reason", "row"))
            self._writer.writerow((label, line, reason, text))
        self._tally.quarantined += 1

    def close(self) -> None:
        """Finish the quarantine file."""
        with io_errors(f"write {self.path}"):
            self._opened.close()

    def discard(self) -> None:
        """Remove the quarantine file of an import that failed."""
        self.close()
        if self.path is not None and self._writer is not None:
            with io_errors(f"remove {self.path}"):
                os.unlink(self.path)


@dataclass(slots=True)
class ImportContext:
    """Everything an importer is given besides the files."""

    options: ImportOptions
    tally: Tally
    rejects: Rejects
    advance: Callable[[int], None] = lambda count: None
    is_continued: Callable[[str, str], bool] = lambda symbol, date: False
    """Whether events of this symbol and day are in the queue already, so that books go on with these."""
    holds: Callable[[str, str], bool] = lambda venue, symbol: False
    """Whether events of this venue's symbol are in the queue already, of any day."""


class TimeOrder:
    """Watches that the times of a file never go back: rows that do are out of order, or there twice."""

    def __init__(self, column: str, context: ImportContext) -> None:
        self._column = column
        self._context = context
        self._latest = np.uint64(0)
        self._seen: tuple[int, set[tuple[int, ...]]] = (0, set())
        """Rows of the latest time."""

    def checked(self, block: RowBlock) -> RowBlock:
        """Return the rows in order; others are refused, or counted if they are allowed."""
        times = block.values[self._column]
        latest = np.maximum.accumulate(np.concatenate(([self._latest], times)))
        self._latest = latest[-1]
        return self._without(block, times < latest[:-1], "goes back: rows are out of order or there twice")

    def once(
        self, block: RowBlock, is_unique: NDArray[np.bool_], columns: Sequence[NDArray[np.uint64]]
    ) -> RowBlock:
        """Return the rows without those of one time that are alike in `columns`, or count these.

        Only rows where `is_unique` is true cannot be there twice.
        """
        times = block.values[self._column]
        if not len(times):
            return block
        crowded = np.ones(len(times), dtype=np.bool_)
        crowded[1:] = times[1:] == times[:-1]
        if not (crowded[1:] & (columns[0][1:] <= columns[0][:-1])).any():
            crowded[:] = False  # all of one time have rising numbers
        crowded[:-1] |= crowded[1:]
        crowded |= (times == np.uint64(self._seen[0])) | (times == times[-1])
        rows = np.flatnonzero(crowded & is_unique)
        repeated = np.zeros(len(times), dtype=np.bool_)
        keys = zip(*(column[rows].tolist() for column in columns), strict=True)
        for row, time, key in zip(rows.tolist(), times[rows].tolist(), keys, strict=True):
            if time != self._seen[0]:
                self._seen = (time, set())
            repeated[row] = key in self._seen[1]
            self._seen[1].add(key)
        return self._without(block, repeated, "is that of an equal row: the row is there twice")

    def _without(self, block: RowBlock, bad: NDArray[np.bool_], reason: str) -> RowBlock:
        if self._context.options.allow_unordered:
            self._context.tally.unordered += int(bad.sum())
            return block
        text = f"{self._column} {reason}; --allow-unordered keeps them"
        return block.refuse(bad, text, self._context.rejects)


class Importer(Protocol):
    """One format. Importers hold no state between calls."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        ...

    @property
    def merges_files(self) -> bool:
        """Whether all files of a command are one import instead of one each."""
        ...

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield the events of the files in order, and fill `context.tally` on the way.

        Equal files and options give equal events.
        """
        ...


@runtime_checkable
class JoinsFiles(Protocol):
    """An importer some of whose files are one import together."""

    def groups(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the files of each import."""
        ...


def find_date(path: str, options: ImportOptions) -> str | None:
    """Return the day of a file: from the options, a `date=` folder, or the file's name."""
    if options.date is not None:
        return options.date
    part = _DATE_PART.search(path)
    if part:
        return part.group(1)
    name = path.rsplit("/", 1)[-1]
    dated = _DATE_IN_NAME.search(name)
    if dated:
        return dated.group(1)
    compact = _COMPACT_DATE_IN_NAME.search(name)
    return "-".join(compact.groups()) if compact else None


def agree(what: str, found: str, wanted: str | None, label: str) -> str:
    """Return what the file says, or raise InvalidSource if the user has said something else."""
    if wanted is not None and wanted != found:
        raise InvalidSource(f"{label} holds {what} {found!r}, not {wanted!r} as the command says")
    return found
