"""Imports: files of a venue to a queue, once each, whatever happens on the way.

Owns the order of the steps: hash, ledger, mark of the beginning, events, sync, ledger entry. An
import that fails leaves nothing behind; one that was killed is removed when the next begins. What
the files mean is known to the importers of `everlog.market.venues`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec

from everlog.clock import Clock, SystemClock
from everlog.errors import EverlogError, InvalidConfig, Unsupported
from everlog.fs import Fs, OsFs, replace_file
from everlog.market.ledger import BegunEntry, Ledger, LedgerEntry
from everlog.market.removal import finish_rewrite, remove_messages
from everlog.market.symbols import record_symbols
from everlog.market.venues.archives import file_hash, open_members, stored_hash
from everlog.market.venues.binance_files import (
    BinanceAggTrades,
    BinanceBookDepth,
    BinanceKlines,
    BinanceTrades,
)
from everlog.market.venues.bybit import Bybit
from everlog.market.venues.dbn import Dbn
from everlog.market.venues.interface import (
    ImportContext,
    Importer,
    ImportOptions,
    JoinsFiles,
    Rejects,
    Tally,
)
from everlog.market.venues.itch import Itch
from everlog.market.venues.lobster import Lobster
from everlog.market.venues.sniffing import chosen_members
from everlog.market.venues.szse import Szse
from everlog.market.venues.szse_channels import ChannelFiles
from everlog.market.venues.tardis import TardisBook, TardisTrades
from everlog.market.venues.tardis_quotes import TardisQuotes, TardisSnapshots
from everlog.queue import Queue, QueueWriter
from everlog.queue.config import MIB, WriterConfig
from everlog.queue.control import ControlBlock
from everlog.queue.faults import io_errors
from everlog.seq_ranges import SeqRange

_IMPORTERS: Final[tuple[Importer, ...]] = (
    TardisBook(),
    TardisTrades(),
    TardisQuotes(),
    TardisSnapshots(),
    Szse(),
    Dbn(),
    Lobster(),
    Itch(),
    Bybit(),
    BinanceTrades(),
    BinanceAggTrades(),
    BinanceBookDepth(),
    BinanceKlines(),
)
FORMATS: Final[dict[str, Importer]] = {importer.name: importer for importer in _IMPORTERS}
"""The importers by the names they have on the command line."""

SEGMENT_SIZE: Final = 32 * MIB
"""Filling new segments is most of an import's work, and smaller ones cost the kernel less: a third
of the system time at 32 MiB compared with 128 MiB."""
SEGMENT_SIZE_MIN_IMPORT: Final = 1 * MIB
BYTES_PER_BYTE: Final = 32
"""Bytes of a queue that one byte of a file may become: text that was compressed to a fourth of its size, and
rows of 24 bytes that become messages of 192."""
CHANNEL_INDEX: Final = "channel_index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What to import, and where to."""

    format: str
    paths: Sequence[str]
    queue: str
    options: ImportOptions = field(default_factory=ImportOptions)
    force: bool = False
    """Import again what was imported before; the earlier events are removed first."""
    lenient: bool = False
    """Set bad rows aside in a quarantine file instead of stopping."""
    segment_size: int = SEGMENT_SIZE
    """Of a queue that is made for this import."""
    channel_dir: str | None = None
    """SZSE: where the merged rows of each channel are written as well, as `channel_<n>.csv`."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """One import: its ledger entry, and whether it took place now or before."""

    entry: LedgerEntry
    imported: bool
    notes: tuple[str, ...] = ()
    quarantine_path: str | None = None


class ImportRun:
    """Carries out a request, file by file; `advance` is called with the bytes read."""

    def __init__(
        self,
        request: ImportRequest,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        advance: Callable[[int], None] = lambda count: None,
        importers: Mapping[str, Importer] | None = None,
    ) -> None:
        """Check the format; nothing is read or written yet. `importers` is FORMATS by default."""
        known = importers or FORMATS
        if request.format not in known:
            raise InvalidConfig(f"unknown format {request.format!r}; valid are {', '.join(known)}")
        if request.channel_dir is not None and request.format != Szse.name:
            raise InvalidConfig(f"channel files are made of {Szse.name} files, not of {request.format}")
        self._request = request
        self._importer = known[request.format]
        self._clock = clock or SystemClock()
        self._fs = fs or OsFs()
        self._advance = advance
        self._queue = request.queue.rstrip("/") or request.queue
        self._ledger = Ledger(self._fs, self._queue)

    def run(self) -> list[ImportResult]:
        """Import everything and return one result per import."""
        paths = list(self._request.paths)
        for path in paths:
            _check_file(path)
        finish_rewrite(self._fs, self._queue)
        self._remove_interrupted()
        return [self._import(group) for group in import_groups(self._importer, paths)]

    def _import(self, paths: Sequence[str]) -> ImportResult:
        """Import one file, or the files that are one import together."""
        digest = joint_hash([file_hash(path) for path in paths])
        earlier = self._ledger.finished(self._importer.name, digest)
        if earlier is None:  # earlier versions hashed compressed files as they are
            stored = joint_hash([stored_hash(path) for path in paths])
            earlier = self._ledger.finished(self._importer.name, stored)
        if earlier is not None and not self._request.force:
            for path in paths:
                self._advance(_size(path))
            return ImportResult(earlier, imported=False, notes=self._other_options(earlier))
        if earlier is not None:
            self._remove(earlier.first_seq, earlier.end_seq, earlier.file_hash)
        return self._write(paths, digest)

    def _other_options(self, earlier: LedgerEntry) -> tuple[str, ...]:
        if {**asdict(ImportOptions()), **earlier.options} == asdict(self._request.options):
            return ()
        return ("it was imported with other options; --force imports it again with these",)

    def _is_continued(self, symbol: str, date: str) -> bool:
        """Whether the queue holds events of this symbol and day from another file."""
        return any(
            (other.format, other.symbol, other.date) == (self._importer.name, symbol, date)
            for other in self._ledger.all_finished()
        )

    def _holds(self, venue: str, symbol: str) -> bool:
        """Whether the queue holds events of this symbol from any file."""
        return any(
            (one.exchange, one.exchange_symbol) == (venue, symbol)
            for other in self._ledger.all_finished()
            for one in other.symbols
        )

    def _write(self, paths: Sequence[str], digest: str) -> ImportResult:
        # The index is refreshed every second; every few thousand events would be too often at this rate.
        config = WriterConfig.archive().replace(
            segment_size=self._segment_size(paths), index_flush_records=None, large_blocks=True
        )
        tally = Tally()
        name = self._importer.name
        was_there = self._fs.exists(self._queue)
        quarantine = self._ledger.quarantine_path(name, digest) if self._request.lenient else None
        rejects = Rejects(quarantine, tally)
        first_seq = None
        try:
            with Queue.open_publisher(self._queue, config, clock=self._clock, fs=self._fs) as writer:
                first_seq, first_segment = writer.next_seq, writer.segment_id
                self._ledger.begin(
                    BegunEntry(
                        format=name,
                        source_path=_source_path(paths),
                        file_hash=digest,
                        first_seq=first_seq,
                        writer_epoch=writer.epoch,
                        begun_at_ns=self._clock.wall_ns(),
                    )
                )
                context = ImportContext(
                    self._request.options,
                    tally,
                    rejects,
                    is_continued=self._is_continued,
                    holds=self._holds,
                )
                self._append_all(paths, context, writer)
                rejects.close()
                writer.flush_sync()
                entry = ledger_entry(
                    self._importer.name,
                    paths,
                    digest,
                    tally,
                    self._request.options,
                    self._clock.wall_ns(),
                    SeqRange(first_seq, writer.next_seq),
                    SeqRange(first_segment, writer.segment_id + 1),
                )
        except Exception:
            rejects.discard()
            if first_seq is not None:
                # If even this fails the mark stays, and the next import removes the events.
                with contextlib.suppress(EverlogError):
                    self._remove(first_seq, 2**64, digest)
                    if not was_there and not self._ledger.all_finished():
                        shutil.rmtree(self._queue, ignore_errors=True)
            raise
        if self._is_continued(entry.symbol, entry.date):
            tally.notes.append(
                f"the queue holds {entry.symbol} of {entry.date} from another file already; if it is the "
                "same data, import into a new queue"
            )
        self._store_channel_index(tally)
        record_symbols(self._queue, entry.symbols, fs=self._fs)
        self._ledger.finish(entry)
        return ImportResult(entry, True, tuple(tally.notes), quarantine if tally.quarantined else None)

    def _segment_size(self, paths: Sequence[str]) -> int:
        """Return the size of segments of a new queue: no larger than a small import can fill."""
        size = SEGMENT_SIZE_MIN_IMPORT
        while size < self._request.segment_size and size < BYTES_PER_BYTE * sum(map(_size, paths)):
            size *= 2
        return min(size, self._request.segment_size)

    def _append_all(self, paths: Sequence[str], context: ImportContext, writer: QueueWriter) -> None:
        with contextlib.ExitStack() as opened:
            members = [
                member for path in paths for member in opened.enter_context(open_members(path, self._advance))
            ]
            members = chosen_members(members, self._importer.name, context.tally.notes)
            folder = self._request.channel_dir
            channels = None if folder is None else opened.enter_context(ChannelFiles(folder))
            for block in self._importer.events(members, context):
                block.append_to(writer)
                context.tally.count(block)
                if channels is not None:
                    channels.add(block.payloads)
        if context.tally.saturated:
            context.tally.notes.append(
                f"{context.tally.saturated} prices or sizes are too large for 64 bits with as many decimals "
                "as their events have, and became the largest that fit; --price-scale or --size-scale with "
                "fewer keeps them"
            )
        if context.tally.cut:
            context.tally.notes.append(
                f"{context.tally.cut} prices or sizes have more decimals than --price-scale or --size-scale "
                "keeps; the digits beyond were cut off"
            )
        if context.tally.unordered:
            context.tally.notes.append(
                f"{context.tally.unordered} rows are out of order or there twice, and were kept as they are"
            )
        if context.tally.rows == context.tally.quarantined == 0:
            context.tally.notes.append("the file has no rows")
        elif context.tally.dropped_rows and not context.tally.groups:
            context.tally.notes.append("the file has no snapshot, so none of its rows became an event")

    # -- removing ------------------------------------------------------------------------

    def _remove(self, first_seq: int, end_seq: int, digest: str) -> None:
        remove_messages(self._fs, self._clock, self._queue, first_seq, end_seq, (self._importer.name, digest))

    def _remove_interrupted(self) -> None:
        """Remove what imports that were killed have left behind."""
        for begun in self._ledger.begun():
            if self._ledger.finished(begun.format, begun.file_hash) is not None:
                self._ledger.forget_begun(begun.format, begun.file_hash)  # killed at the very end
                continue
            epoch = self._writer_epoch()
            if epoch != begun.writer_epoch:
                raise Unsupported(
                    f"the import of {begun.source_path} into {self._queue} was interrupted at seq "
                    f"{begun.first_seq} or later, and another writer has used the queue since, so its "
                    "events cannot be identified any more; import into a new queue"
                )
            forget = (begun.format, begun.file_hash)
            remove_messages(self._fs, self._clock, self._queue, begun.first_seq, 2**64, forget)

    def _writer_epoch(self) -> int:
        with io_errors(f"look at {self._queue}"):
            control = ControlBlock.open(self._fs, self._clock, self._queue, wait_ready=False)
            try:
                return control.writer_epoch
            finally:
                control.close()

    # -- the channel index of SZSE -------------------------------------------------------

    def _store_channel_index(self, tally: Tally) -> None:
        """Add the channels of this import to those that the queue holds already."""
        if not tally.channel_symbols:
            return
        path = os.path.join(self._queue, CHANNEL_INDEX)
        channels: dict[str, set[str]] = {}
        with io_errors(f"write {path}"):
            if self._fs.exists(path):
                with open(path, "rb") as file:
                    stored: dict[str, Any] = msgspec.json.decode(file.read())
                if stored.get("date") == tally.date:
                    channels = {number: set(names) for number, names in stored["channel_to_symbols"].items()}
            for number, names in tally.channel_symbols.items():
                channels.setdefault(str(number), set()).update(names)
            index = {
                "date": tally.date,
                "updated_at_ns": self._clock.wall_ns(),
                "channel_to_symbols": {number: sorted(channels[number]) for number in sorted(channels)},
                "symbol_to_channel": {
                    name: int(number) for number, names in sorted(channels.items()) for name in sorted(names)
                },
            }
            replace_file(self._fs, path, msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n")


def import_files(
    request: ImportRequest,
    advance: Callable[[int], None] = lambda count: None,
    importers: Mapping[str, Importer] | None = None,
) -> list[ImportResult]:
    """Import files into a queue and return one result per import.

    `importers` is FORMATS by default; `everlog.feeds.captures.IMPORTERS` has raw captures too.
    """
    return ImportRun(request, advance=advance, importers=importers).run()


def import_groups(importer: Importer, paths: Sequence[str]) -> list[list[str]]:
    """Return the files of each import: all, each alone, or those that belong together."""
    if importer.merges_files:
        return [list(paths)]
    return importer.groups(paths) if isinstance(importer, JoinsFiles) else [[path] for path in paths]


def ledger_entry(
    format_name: str,
    paths: Sequence[str],
    digest: str,
    tally: Tally,
    options: ImportOptions,
    imported_at_ns: int,
    seqs: SeqRange,
    segments: SeqRange,
) -> LedgerEntry:
    """Return the ledger entry of a finished import; `segments` is empty if it did not write a queue."""
    return LedgerEntry(
        format=format_name,
        source_path=_source_path(paths),
        file_hash=digest,
        rows=tally.rows,
        groups=tally.groups,
        segments=segments.size,
        min_ts_ns=tally.min_ts_ns,
        max_ts_ns=tally.max_ts_ns,
        imported_at_ns=imported_at_ns,
        venue=tally.venue,
        symbol=tally.symbol,
        date=tally.date,
        stream=tally.stream,
        first_seq=seqs.first,
        end_seq=seqs.end,
        first_segment=segments.first,
        last_segment=max(segments.first, segments.end - 1),
        dropped_rows=tally.dropped_rows,
        gaps=tally.gaps,
        quarantined=tally.quarantined,
        cut=tally.cut,
        options=asdict(options),
        symbols=tally.learned(),
    )


def joint_hash(hashes: Sequence[str]) -> str:
    """Return the hash of a file, or one of the hashes of several, whatever their order."""
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.blake2b("".join(sorted(hashes)).encode(), digest_size=32).hexdigest()


def _source_path(paths: Sequence[str]) -> str:
    return ", ".join(os.path.abspath(path) for path in paths)


def _check_file(path: str) -> None:
    """Refuse what cannot be read, before the first file is imported and not when its turn comes."""
    with io_errors(f"read {path}"):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            advice = (
                "it is a directory; name the files in it"
                if stat.S_ISDIR(mode)
                else "it is not a regular file"
            )
            raise InvalidConfig(f"cannot import {path}: {advice}")
        with open(path, "rb"):
            pass


def _size(path: str) -> int:
    with io_errors(f"look at {path}"):
        return os.stat(path).st_size
