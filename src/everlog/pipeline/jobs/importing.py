"""The job `import`: files of venues to canonical events, one file per task, each file once.

Owns how files are dealt to tasks, and how a run that is repeated finds out what is there already. What the
files mean is known to `everlog.market.venues`; into queues, the work is `everlog.market.importing`, with the
ledger of each queue. Into the lake, the table's own transactions say which files it holds, and the ledger
beside it says what was in them.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from everlog.clock import SystemClock
from everlog.errors import InvalidConfig
from everlog.fs import OsFs, create_directory, replace_file
from everlog.market.importing import FORMATS, ImportRequest, import_files
from everlog.market.ledger import Ledger, LedgerEntry
from everlog.market.venues.archives import file_hash, open_members
from everlog.market.venues.interface import EventBlock, ImportContext, ImportOptions, Rejects, Tally
from everlog.market.venues.sniffing import chosen_members
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.rdd_tasks import run_in_tasks

NS_PER_DAY: Final = 86_400_000_000_000
UNKNOWN_VENUE: Final = "unknown"
PENDING: Final = os.path.join("imports", "pending")
"""What a task has found in a file; it becomes a ledger entry when the table holds the events."""

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
    """One run: the ledger entries of all files, and how many of these were there before."""

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

    Formats whose files belong together become one queue, named after the first. A file that its queue holds
    already is left alone; a task that was killed is made good by the next attempt.
    """
    started_s = time.monotonic()
    groups = _groups(format_name, files)
    queues = _queue_names(root, groups)
    chosen = options or ImportOptions()

    def task(number: int) -> Iterator[tuple[LedgerEntry, bool]]:
        request = ImportRequest(
            format=format_name, paths=groups[number], queue=queues[number], options=chosen, lenient=lenient
        )
        for result in import_files(request):
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

    Files that the table holds are left alone; the ledger is in `<lake>/imports`.
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
    return _completed(report, done, started_s)


class _LakeImport:
    """What a task needs to turn files into rows."""

    def __init__(self, format_name: str, lake: str, options: ImportOptions, lenient: bool) -> None:
        self._format = format_name
        self._lake = lake
        self._options = options
        self._lenient = lenient

    def events(self, paths: Sequence[str], digest: str) -> Batches:
        """Yield the events of files that are one import; at their end, leave the tally for the ledger."""
        tally = Tally()
        ledger = Ledger(OsFs(), self._lake)
        quarantine = ledger.quarantine_path(self._format, digest) if self._lenient else None
        rejects = Rejects(quarantine, tally)
        with ExitStack() as opened:
            opened.callback(rejects.close)
            members = [member for path in paths for member in opened.enter_context(open_members(path))]
            members = chosen_members(members, self._format, tally.notes)
            context = ImportContext(self._options, tally, rejects)
            for block in FORMATS[self._format].events(members, context):
                if len(block):
                    yield _rows(block, tally, digest)
                    tally.count(block)
        path = _pending_path(self._lake, self._format, digest)
        create_directory(OsFs(), os.path.dirname(path))
        replace_file(OsFs(), path, msgspec.json.encode(self._ledger_entry(paths, digest, tally)))

    def _ledger_entry(self, paths: Sequence[str], digest: str, tally: Tally) -> LedgerEntry:
        return LedgerEntry(
            format=self._format,
            source_path=", ".join(os.path.abspath(path) for path in paths),
            file_hash=digest,
            rows=tally.rows,
            groups=tally.groups,
            segments=0,
            min_ts_ns=tally.min_ts_ns,
            max_ts_ns=tally.max_ts_ns,
            imported_at_ns=SystemClock().wall_ns(),
            venue=tally.venue,
            symbol=tally.symbol,
            date=tally.date,
            stream=tally.stream,
            first_seq=0,
            end_seq=tally.groups,
            first_segment=0,
            last_segment=0,
            dropped_rows=tally.dropped_rows,
            gaps=tally.gaps,
            quarantined=tally.quarantined,
            options=asdict(self._options),
        )


# --- Dealing the files -----------------------------------------------------------------------------------


def _groups(format_name: str, files: Sequence[str]) -> list[list[str]]:
    """Return the files of each import, as tasks anywhere find them."""
    if format_name not in FORMATS:
        raise InvalidConfig(f"unknown format {format_name!r}; valid are {', '.join(FORMATS)}")
    paths = [os.path.abspath(path) for path in files]
    if not paths:
        raise InvalidConfig("an import needs at least one file")
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise InvalidConfig(f"there is no file {missing[0]}")
    return [paths] if FORMATS[format_name].merges_files else [[path] for path in dict.fromkeys(paths)]


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


# --- The lake's side -------------------------------------------------------------------------------------


def _hashes(spark: SparkSession, groups: list[list[str]]) -> list[str]:
    """Return the hash of each import's files, computed where the files are read anyway."""
    paths = sorted({path for group in groups for path in group})

    def task(number: int) -> Iterator[tuple[str, str]]:
        yield paths[number], file_hash(paths[number])

    found = dict(run_in_tasks(spark, len(paths), task))
    return [_joint([found[path] for path in group]) for group in groups]


def _joint(hashes: list[str]) -> str:
    """Return one hash for all files of an import, in whatever order they were named; it names files."""
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.blake2b("".join(sorted(hashes)).encode(), digest_size=32).hexdigest()


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
    """Return the ledger's entry of files that the table holds; make it if the last run could not."""
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
    """Return a block of events as rows; their bytes are copied only if they lie apart."""
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
