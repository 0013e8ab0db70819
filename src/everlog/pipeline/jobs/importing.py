"""The job `import`: files of venues to canonical events, one file per task, each file once.

`everlog.market.venues` reads the files. Into queues, `everlog.market.importing` does the work, with a ledger
in each queue. Into the lake, the transactions of the table say which files it holds, and the ledger beside it
what was in them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from everlog.clock import SystemClock
from everlog.errors import InvalidConfig
from everlog.feeds.captures import IMPORTERS
from everlog.fs import OsFs, create_directory, replace_file
from everlog.market.importing import (
    ImportRequest,
    import_files,
    import_groups,
    joint_hash,
    ledger_entry,
)
from everlog.market.ledger import Ledger, LedgerEntry
from everlog.market.venues.archives import file_hash, open_members
from everlog.market.venues.interface import EventBlock, ImportContext, ImportOptions, Rejects, Tally
from everlog.market.venues.sniffing import chosen_members
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.spark_tasks import run_in_tasks
from everlog.pipeline.symbols import update_dim_symbol
from everlog.seq_ranges import SeqRange

NS_PER_DAY: Final = 86_400_000_000_000
UNKNOWN_VENUE: Final = "unknown"
PENDING: Final = os.path.join("imports", "pending")
"""What a task has counted in a file; it becomes a ledger entry when the table holds the events."""

PARTITION_BY: Final = ("date", "venue")
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

Batches = Iterator[pa.RecordBatch]


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
    table: str,
    *,
    options: ImportOptions | None = None,
    lenient: bool = False,
) -> ImportReport:
    """Import files into one table, partitioned by date and venue, in one transaction for all of them.

    Files that the table holds are skipped; the ledger is in `<lake>/imports`.
    """
    started_s = time.monotonic()
    groups = _groups(format_name, files)
    target = LakeTable(lake, table)
    hashes = _hashes(spark, groups)
    applications = [f"import-{format_name}-{one}" for one in hashes]
    wanted = _wanted(target, applications)
    report = ImportReport(job="import", source=f"{format_name}, {len(files)} files", table=target.path)
    if wanted:
        plan = _LakeImport(format_name, os.path.abspath(lake), options or ImportOptions(), lenient)
        work = [(groups[number], hashes[number]) for number in wanted]

        def task(batches: Batches) -> Batches:
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from plan.events(*work[number])

        frame = spark.range(len(work), numPartitions=len(work)).mapInArrow(
            task, from_arrow_schema(EVENT_SCHEMA)
        )
        names = [applications[number] for number in wanted]
        written = target.append(frame, names[0], 1, PARTITION_BY, also=names[1:])
        report.files, report.version = written.files, written.version
    new = set(wanted)
    done = [(_entry(lake, format_name, one), number in new) for number, one in enumerate(hashes)]
    update_dim_symbol(lake, [one for entry, _ in done for one in entry.symbols])
    return _completed(report, done, started_s)


class _LakeImport(NamedTuple):
    """What a task needs to turn files into rows."""

    format: str
    lake: str
    options: ImportOptions
    lenient: bool

    def events(self, paths: Sequence[str], digest: str) -> Batches:
        """Yield the events of files that are one import; then store the tally for the ledger."""
        tally = Tally()
        quarantine = Ledger(OsFs(), self.lake).quarantine_path(self.format, digest) if self.lenient else None
        rejects = Rejects(quarantine, tally)
        with ExitStack() as opened:
            opened.callback(rejects.close)
            members = [member for path in paths for member in opened.enter_context(open_members(path))]
            members = chosen_members(members, self.format, tally.notes)
            context = ImportContext(self.options, tally, rejects)
            for block in IMPORTERS[self.format].events(members, context):
                if len(block):
                    yield _rows(block, tally, digest)
                    tally.count(block)
        now_ns, seqs, segments = SystemClock().wall_ns(), SeqRange(0, tally.groups), SeqRange(0, 0)
        entry = ledger_entry(self.format, paths, digest, tally, self.options, now_ns, seqs, segments)
        path = _pending_path(self.lake, self.format, digest)
        create_directory(OsFs(), os.path.dirname(path))
        replace_file(OsFs(), path, msgspec.json.encode(entry))


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


def _completed(report: ImportReport, done: list[tuple[LedgerEntry, bool]], started_s: float) -> ImportReport:
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


def _wanted(target: LakeTable, applications: list[str]) -> list[int]:
    """Return the imports that the table does not hold; of equal files only the first."""
    table = target.open()
    wanted: dict[str, int] = {}
    for number, name in enumerate(applications):
        if table is None or table.transaction_version(name) is None:
            wanted.setdefault(name, number)
    return list(wanted.values())


def _pending_path(lake: str, format_name: str, digest: str) -> str:
    return os.path.join(lake, PENDING, f"{format_name}-{digest}.json")


def _entry(lake: str, format_name: str, digest: str) -> LedgerEntry:
    """Return the ledger entry of files that the table holds; make it if the last run was killed before."""
    ledger = Ledger(OsFs(), os.path.abspath(lake))
    entry = ledger.finished(format_name, digest)
    if entry is None:
        path = _pending_path(os.path.abspath(lake), format_name, digest)
        with open(path, "rb") as file:
            entry = msgspec.json.decode(file.read(), type=LedgerEntry)
        ledger.finish(entry)
        OsFs().unlink(path)
    return entry


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
