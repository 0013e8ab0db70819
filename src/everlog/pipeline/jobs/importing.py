"""The job `import`: files of venues to canonical events, one file per task, each file once.

`everlog.market.venues` reads the files. Into queues, `everlog.market.importing` does the work, with a ledger
in each queue. Into the lake, tasks write the files of the tables themselves; the transactions of a table say
which imports it holds, and the ledger in the lake which are complete and what was in them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import structs
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from everlog.clock import NS_PER_DAY, SystemClock
from everlog.errors import InvalidConfig, ObjectNotFound
from everlog.feeds.captures import IMPORTERS
from everlog.market.decoding import DECODINGS
from everlog.market.importing import (
    ImportRequest,
    import_files,
    import_groups,
    joint_hash,
    ledger_entry,
)
from everlog.market.ledger import FINISHED_SUFFIX, QUARANTINE_SUFFIX, LedgerEntry
from everlog.market.symbols import SymbolCatalogue, SymbolDefinition, load_nearby
from everlog.market.venues.archives import file_hash, open_members
from everlog.market.venues.interface import (
    MULTI,
    EventBlock,
    ImportContext,
    ImportOptions,
    Rejects,
    Tally,
)
from everlog.market.venues.sniffing import chosen_members
from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_files import TableFiles
from everlog.pipeline.lake_places import LakePlace
from everlog.pipeline.spark_tasks import run_in_tasks
from everlog.pipeline.symbols import read_dim_symbol, update_dim_symbol
from everlog.pipeline.tables.payloads import decoded
from everlog.pipeline.tables.rows import Names, rows_of
from everlog.pipeline.tables.schemas import SCHEMAS, TABLE_OF_DECODING, Column, TableSchema
from everlog.seq_ranges import SeqRange

UNKNOWN_VENUE: Final = "unknown"
LEDGER: Final = "imports/v1"
DECODED_LEDGER: Final = "imports/tables"
"""Where the lake keeps an entry for each import, below the format: of raw events, and of decoded tables."""

EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field("date", pa.date32()),
        pa.field("venue", pa.string()),
        pa.field("symbol", pa.string()),
        pa.field("stream", pa.string()),
        pa.field("file_hash", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("ts_ns", pa.int64()),
        pa.field("type_id", pa.int32()),
        pa.field("flags", pa.int32()),
        pa.field("payload", pa.binary()),
    ]
)
"""A canonical event: `seq` counts in its file, `payload` is that of the market data protocol."""
EVENTS: Final = TableSchema("events", "an event", tuple(Column(f.name, f.type, "") for f in EVENT_SCHEMA))


class ImportReport(RunReport, kw_only=True):
    """One run: the ledger entries of all files, and how many files had been imported before."""

    entries: list[LedgerEntry] = msgspec.field(default_factory=list)
    known: int = 0


def import_to_queues(
    spark: SparkSession,
    format_name: str,
    files: Sequence[str],
    root: str,
    *,
    options: ImportOptions | None = None,
    lenient: bool = False,
) -> ImportReport:
    """Import each file into a queue of its own: `<root>/<name of the file>`.

    Files of formats that belong together become one queue, named after the first. A file that its queue
    holds already is skipped; the next attempt of a task that was killed repairs its queue.
    """
    started_s = time.monotonic()
    groups = _groups(format_name, files)
    queues = _queue_names(root, groups)
    chosen = options or ImportOptions()

    def task(number: int) -> Iterator[tuple[LedgerEntry, bool]]:
        request = ImportRequest(
            format=format_name, paths=groups[number], queue=queues[number], options=chosen, lenient=lenient
        )
        for result in import_files(request, importers=IMPORTERS):
            yield result.entry, result.imported

    done = run_in_tasks(spark, len(groups), task)
    report = ImportReport(job="import", source=f"{format_name}, {len(files)} files", table=root)
    return _completed(report, done, started_s)


def import_to_lake(
    spark: SparkSession,
    format_name: str,
    files: Sequence[str],
    lake: str,
    table: str | None = None,
    *,
    options: ImportOptions | None = None,
    lenient: bool = False,
) -> ImportReport:
    """Import files into the tables `trades`, `book_l2` and `orders_l3`, partitioned by date and venue.

    With a `table`, all events go there instead, undecoded. Each table gets what is new in one transaction.
    Files that the lake holds are skipped; its ledger is in `<lake>/imports`. A run that was killed is
    repeated, and commits to those tables that do not have the files yet.
    """
    started_s = time.monotonic()
    groups = _groups(format_name, files)
    place = LakePlace.of(lake)
    plan = _LakeImport(format_name, place, table, options or ImportOptions(), lenient, read_dim_symbol(place))
    hashes = _hashes(spark, groups)
    entries = {number: plan.entry(digest) for number, digest in enumerate(hashes)}
    first = {digest: number for number, digest in reversed([*enumerate(hashes)])}  # of equal files
    wanted = sorted(number for number in first.values() if entries[number] is None)
    report = ImportReport(job="import", source=f"{format_name}, {len(files)} files", table=place.path)

    def task(number: int) -> Iterator[_Imported]:
        yield plan.write(wanted[number], groups[wanted[number]], hashes[wanted[number]])

    imported = run_in_tasks(spark, len(wanted), task)
    plan.commit(imported, hashes, report)
    for one in imported:
        plan.store(one.entry)
        entries[one.number] = one.entry
    there = [(number, entries[first[digest]]) for number, digest in enumerate(hashes)]
    done = [(entry, number in wanted) for number, entry in there if entry is not None]
    update_dim_symbol(place, [one for entry, _ in done for one in entry.symbols])
    return _completed(report, done, started_s)


class _LakeEntry(LedgerEntry, kw_only=True, frozen=True):
    """A finished import, and the tables that it has rows in."""

    tables: list[str] = msgspec.field(default_factory=list)


class _Imported(NamedTuple):
    """What a task has done: the files that it wrote for each table, and the entry for the ledger."""

    number: int
    files: dict[str, list[dict[str, Any]]]
    entry: _LakeEntry


class _NamesOfFile:
    """Names of the markets of a file: those of a catalogue, and those that the file has told so far."""

    def __init__(self, catalogue: SymbolCatalogue) -> None:
        self._catalogue = catalogue
        self._told: set[tuple[str, str]] = set()
        self._names = Names(catalogue)

    def after(self, tally: Tally) -> Names:
        """Return the names that are known when a file was read so far."""
        channels = {name for some in tally.channel_symbols.values() for name in some}
        told = tally.symbols | {(tally.venue, name) for name in channels}
        told |= {(one.exchange, one.exchange_symbol) for one in tally.definitions}
        if told != self._told or self._names.venue is None:
            known = SymbolCatalogue()
            plain = [SymbolDefinition(exchange=venue, exchange_symbol=name) for venue, name in sorted(told)]
            known.record([*tally.definitions, *plain], 0)
            symbol = None if tally.symbol == MULTI else tally.symbol or None
            self._names = Names(self._catalogue.completed_by(known), tally.venue or UNKNOWN_VENUE, symbol)
            self._told = told
        return self._names


class _LakeImport(NamedTuple):
    """An import into the tables of a lake: what a task needs, and what the driver commits."""

    format: str
    place: LakePlace
    raw: str | None
    options: ImportOptions
    lenient: bool
    catalogue: SymbolCatalogue

    def write(self, number: int, paths: Sequence[str], digest: str) -> _Imported:
        """Write the events of files that are one import to files of the tables."""
        freeze_loaded_modules()
        tally, names = (
            Tally(),
            _NamesOfFile(self.catalogue.completed_by(load_nearby(os.path.dirname(paths[0])))),
        )
        writers: dict[str, TableFiles] = {}
        written: dict[str, list[dict[str, Any]]] = {}
        with ExitStack() as opened:
            context = ImportContext(self.options, tally, opened.enter_context(self._rejects(digest, tally)))
            members = [member for path in paths for member in opened.enter_context(open_members(path))]
            members = chosen_members(members, self.format, tally.notes)
            for block in IMPORTERS[self.format].events(members, context):
                if not len(block):
                    continue
                for name, rows in self._rows(block, tally, names, paths[0], digest):
                    if name not in writers:
                        schema = self._schema(name)
                        writers[name] = TableFiles(self.place.below(name), schema.partition_by)
                    written.setdefault(name, []).extend(writers[name].write(rows))
                tally.count(block)
        for name, files in writers.items():
            written.setdefault(name, []).extend(files.finish())
        now_ns, seqs, segments = SystemClock().wall_ns(), SeqRange(0, tally.groups), SeqRange(0, 0)
        entry = ledger_entry(self.format, paths, digest, tally, self.options, now_ns, seqs, segments)
        return _Imported(number, written, _LakeEntry(**structs.asdict(entry), tables=sorted(written)))

    def _schema(self, name: str) -> TableSchema:
        return EVENTS._replace(name=name) if name == self.raw else SCHEMAS[name]

    def _rows(
        self, block: EventBlock, tally: Tally, named: _NamesOfFile, path: str, digest: str
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of a block for each table that it has some of."""
        if self.raw is not None:
            yield self.raw, _rows(block, tally, digest)
            return
        names = named.after(tally)
        for kind, schema in TABLE_OF_DECODING.items():
            found = decoded(block, DECODINGS[kind], tally.groups)
            count = len(found["seq"])
            if count:
                for name, text in (("source", path), ("instance", digest), ("kind", "record")):
                    found[name] = pa.repeat(pa.scalar(text), count)
                yield schema.name, rows_of(schema, found, names)

    @contextmanager
    def _rejects(self, digest: str, tally: Tally) -> Iterator[Rejects]:
        """What happens to bad rows; those that are set aside are in the lake afterwards."""
        with TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows") if self.lenient else None
            rejects = Rejects(path, tally)
            with closing(rejects):
                yield rejects
            if path is not None and os.path.exists(path):
                with open(path, "rb") as file:
                    self.place.objects().put(self._key(digest, QUARANTINE_SUFFIX), file.read())

    def commit(self, imported: Sequence[_Imported], hashes: Sequence[str], report: ImportReport) -> None:
        """Commit to each table the imports that it does not hold yet."""
        for name in sorted({name for one in imported for name in one.files}):
            target, schema = LakeTable(self.place, name), self._schema(name)
            table = target.open()
            files: list[dict[str, Any]] = []
            applications = []
            for one in imported:
                application = f"import-{self.format}-{hashes[one.number]}"
                if name in one.files and (table is None or table.transaction_version(application) is None):
                    files += one.files[name]
                    applications.append(application)
            if applications:
                first, *others = applications
                by = schema.partition_by
                done = target.commit(files, schema.arrow, first, 1, by, also=others)
                report.files += done.files
                report.version = done.version

    def _key(self, digest: str, suffix: str = FINISHED_SUFFIX) -> str:
        return f"{DECODED_LEDGER if self.raw is None else LEDGER}/{self.format}/{digest}{suffix}"

    def entry(self, digest: str) -> _LakeEntry | None:
        """Return the entry of an import that is in all of its tables; None if it is not complete."""
        try:
            entry = msgspec.json.decode(self.place.objects().get(self._key(digest)).data, type=_LakeEntry)
        except ObjectNotFound:
            return None
        application = f"import-{self.format}-{digest}"
        tables = entry.tables if self.raw is None else [self.raw]
        held = [LakeTable(self.place, name).committed_batch(application) for name in tables]
        return None if None in held else entry

    def store(self, entry: _LakeEntry) -> None:
        """Note that an import is complete."""
        self.place.objects().put(self._key(entry.file_hash), msgspec.json.encode(entry))


# --- Assigning files to tasks ----------------------------------------------------------------------------


def _groups(format_name: str, files: Sequence[str]) -> list[list[str]]:
    """Return the absolute paths of each import; tasks may have another working directory."""
    if format_name not in IMPORTERS:
        raise InvalidConfig(f"unknown format {format_name!r}; valid are {', '.join(IMPORTERS)}")
    paths = [os.path.abspath(path) for path in files]
    if not paths:
        raise InvalidConfig("an import needs at least one file")
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise InvalidConfig(f"there is no file {missing[0]}")
    importer = IMPORTERS[format_name]
    return import_groups(importer, paths if importer.merges_files else list(dict.fromkeys(paths)))


def _queue_names(root: str, groups: list[list[str]]) -> list[str]:
    """Return a queue for each import; two tasks must not write into one."""
    names: dict[str, str] = {}
    for group in groups:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(group[0])).strip(".-")
        if name in names:
            raise InvalidConfig(
                f"{group[0]} and {names[name]} would share the queue {name!r}; import them in two runs, or "
                "into two directories"
            )
        names[name] = group[0]
    return [os.path.join(os.path.abspath(root), name) for name in names]


def _completed(
    report: ImportReport, done: Sequence[tuple[LedgerEntry, bool]], started_s: float
) -> ImportReport:
    report.entries = sorted((entry for entry, _ in done), key=lambda entry: entry.source_path)
    report.known = sum(not imported for _, imported in done)
    new = [entry for entry, imported in done if imported]
    report.rows = sum(entry.groups for entry in new)
    report.gaps = sum(entry.gaps for entry in new)
    report.batches = 1 if new else 0
    report.seconds = time.monotonic() - started_s
    return report


# --- Into the lake ---------------------------------------------------------------------------------------


def _hashes(spark: SparkSession, groups: list[list[str]]) -> list[str]:
    """Return the hash of each import's files, computed in tasks."""
    paths = sorted({path for group in groups for path in group})

    def task(number: int) -> Iterator[tuple[str, str]]:
        yield paths[number], file_hash(paths[number])

    found = dict(run_in_tasks(spark, len(paths), task))
    return [joint_hash([found[path] for path in group]) for group in groups]


def _rows(block: EventBlock, tally: Tally, digest: str) -> pa.RecordBatch:
    """Return a block of events as rows; payloads are copied only if they are not contiguous."""
    count = len(block)
    stamps = np.ascontiguousarray(block.timestamps_ns)
    flags = np.zeros(count, dtype=np.int32) if block.flags is None else block.flags.astype(np.int32)
    kinds = np.broadcast_to(np.asarray(block.type_id), count).astype(np.int32)
    texts = (tally.venue or UNKNOWN_VENUE, tally.symbol, tally.stream, digest)
    arrays = [
        pa.array((stamps // np.uint64(NS_PER_DAY)).astype(np.int32)).cast(pa.date32()),
        *(pa.repeat(pa.scalar(text, pa.string()), count) for text in texts),
        pa.array(np.arange(tally.groups, tally.groups + count)),
        pa.array(stamps.view(np.int64)),
        pa.array(kinds),
        pa.array(flags),
        _payloads(block),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def _payloads(block: EventBlock) -> pa.Array:
    count = len(block)
    data: NDArray[np.uint8] = np.ascontiguousarray(block.payloads).view(np.uint8).reshape(-1)
    if block.ends is None:
        begins = np.arange(count + 1, dtype=np.int64) * (len(data) // count)
    else:
        begins = np.concatenate(([0], block.ends.astype(np.int64)))
    if block.starts is not None and block.ends is not None:
        starts = block.starts.astype(np.int64)
        lengths = block.ends.astype(np.int64) - starts
        begins = np.concatenate(([0], np.cumsum(lengths)))
        data = data[np.repeat(starts - begins[:-1], lengths) + np.arange(int(begins[-1]))]
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(begins.astype(np.int32)), pa.py_buffer(data)]
    )
