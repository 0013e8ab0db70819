"""The lake: Delta tables that Spark tasks fill and one transaction commits.

A table is an ordinary Delta table. Tasks write Parquet files with unique names; they are not visible until
the driver commits all files of a batch at once, with the batch's number as the transaction id, so a batch
that runs again changes nothing. `vacuum` removes the files of failed tasks.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from glob import escape, glob
from typing import Any, Final, NamedTuple

import deltalake
import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, Transaction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from everlog.errors import Corrupt, EverlogError, InvalidConfig
from everlog.fs import Fs, OsFs, sync_path
from everlog.lake_reports import ArchiveProgress, AuditSummary, report_key, write_report
from everlog.pipeline.accounts import (
    DIGEST,
    METADATA_KEY,
    CommitAccount,
    Key,
    RangeAccount,
    digest_of,
    hashed_columns,
    merge_ranges,
)
from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.lake_files import WRITTEN_SCHEMA, write_files
from everlog.pipeline.lake_places import LakePlace
from everlog.pipeline.lake_reading import LakeFile, Scan, Selection, files_of, scan_in_tasks

KEEP_ACCOUNTS: Final = {"delta.enableExpiredLogCleanup": "false"}
"""The log holds the accounts of commits, so old entries of it are not deleted."""
VACUUM_KEEP: Final = timedelta(days=7)
UNCOMMITTED_KEEP: Final = timedelta(days=1)
STORED_KINDS: Final = frozenset({"record", "gap"})
"""Kinds of rows that are kept, not computed."""
COMPACT_BYTES: Final = 256 << 20
HISTORY_TRIES: Final = 100
"""The history begins with the newest commit, but is numbered from the table's version: both must be one."""
_MS_PER_S: Final = 1000


class Appended(NamedTuple):
    """What one batch added to a table; nothing if it had been committed before."""

    version: int
    rows: int
    files: int
    is_repeat: bool
    ranges: list[RangeAccount]
    """The seqs of each stream, if the batch was committed with an account of them."""
    days: frozenset[str] = frozenset()
    """The values of the partition `date` that it added rows to."""


Written = Sequence[Mapping[str, Any]]
"""Descriptions of files that tasks have written: rows of `WRITTEN_SCHEMA`."""

Ranges = Mapping[str, tuple[Any, Any]]
"""Columns, and the smallest and the largest value that is wanted of each."""


class LakeTable:
    """One Delta table below the root of a lake."""

    def __init__(self, root: str | os.PathLike[str] | LakePlace, name: str, fs: Fs | None = None) -> None:
        """`root` is a directory, or a URL such as `s3://bucket/prefix`."""
        if not name or name.startswith((".", "_")) or "/" in name:
            raise InvalidConfig(f"a table cannot be called {name!r}; use letters, digits, - and _")
        self.name = name
        self.place = LakePlace.of(root).below(name)
        self.path = self.place.path
        self._fs = fs or OsFs()

    def open(self, version: int | None = None) -> deltalake.DeltaTable | None:
        """Return the table as Delta has it, now or as of a version; None if there is none."""
        storage = self.place.storage_options
        try:
            with self.place.reported("open the table"):
                return deltalake.DeltaTable(self.path, version=version, storage_options=storage)
        except TableNotFoundError:
            return None
        except DeltaError:
            damaged = self.damaged_commits()
            if not damaged:
                raise
            raise Corrupt(
                f"commit {damaged[0]} of table {self.path} is not whole; 'everlog pipeline repair' sets it "
                "aside"
            ) from None

    def damaged_commits(self) -> list[str]:
        """Return the files of the log that are not JSON to their end, the oldest first.

        An object store has none: an object appears whole or not at all.
        """
        return [path for path in sorted(glob(self._log_path("*.json"))) if not _is_whole(path)]

    def repair(self) -> list[str]:
        """Set aside the newest commits of the log if they are not whole; return their files.

        A power loss leaves such a commit when it was not synced, so nothing that was reported as committed is
        in it: the job that wrote it commits its batch again. A damaged commit below whole ones is refused.
        """
        damaged = self.damaged_commits()
        newest = sorted(glob(self._log_path("*.json")))[-len(damaged) :] if damaged else []
        if damaged != newest:
            raise Corrupt(
                f"commit {damaged[0]} of table {self.path} is not whole, and later ones build on it; restore "
                "it from a backup"
            )
        for path in reversed(damaged):
            self._fs.rename(path, f"{path}.damaged")
        if damaged:
            self._fs.fsync_dir(os.path.dirname(damaged[0]))
        return damaged

    def _log_path(self, name: str) -> str:
        return os.path.join(escape(self.path), "_delta_log", name)

    def partition_columns(self) -> tuple[str, ...] | None:
        """Return by which columns the table is partitioned, None if there is no table."""
        table = self.open()
        return None if table is None else tuple(table.metadata().partition_columns)

    def columns(self) -> tuple[str, ...] | None:
        """Return the names of the columns, None if there is no table."""
        table = self.open()
        return None if table is None else tuple(field.name for field in table.schema().fields)

    def committed_batch(self, application: str) -> int | None:
        """Return the number of the last batch that an application has committed, None if there is none."""
        table = self.open()
        return None if table is None else table.transaction_version(application)

    def append(
        self,
        frame: DataFrame,
        application: str,
        batch: int,
        partition_by: Sequence[str] = (),
        *,
        replace: bool = False,
        also: Sequence[str] = (),
        stream: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Appended:
        """Write a batch and commit it, unless this application has committed it already.

        With `replace` the table holds nothing but this batch afterwards; earlier versions stay readable.
        `also` are further applications whose batch of this number is part of it. With the name of the
        column that names the `stream` of a row, the commit carries the range and the digest of each, and
        the `options` by which the rows were selected: an audit compares the table with them.
        """
        repeat = self.repeated(application, batch)
        if repeat is not None:
            return repeat
        given = to_arrow_schema(frame.schema, timezone="UTC")
        hashed = hashed_columns(frame.columns)
        if stream is not None:
            frame = frame.withColumn(DIGEST, digest_of(hashed))
        written = self._write(frame, tuple(partition_by), stream)
        account = None
        if stream is not None:
            ranges = merge_ranges([row["ranges"] for row in written if row["ranges"] is not None])
            account = CommitAccount(hashed, ranges, dict(options or {}))
        files = [row for row in written if row["path"] is not None]
        return self.commit(
            files, given, application, batch, partition_by, replace=replace, also=also, account=account
        )

    def repeated(self, application: str, batch: int) -> Appended | None:
        """Return the result of a batch that this application has committed already, None if it has not."""
        table = self.open()
        if table is None:
            return None
        committed = table.transaction_version(application)
        if committed is None or committed < batch:
            return None
        # The run that committed it may have been killed before the sync.
        self._sync_log(0, table.version())
        ranges = [one for account in self.accounts()[-1:] for one in account.ranges]
        return Appended(table.version(), 0, 0, True, ranges)

    def commit(
        self,
        written: Written,
        given: pa.Schema,
        application: str,
        batch: int,
        partition_by: Sequence[str] = (),
        *,
        replace: bool | Mapping[str, str] = False,
        also: Sequence[str] = (),
        account: CommitAccount | None = None,
    ) -> Appended:
        """Add files that tasks wrote and synced below `path` to the table, in one durable transaction.

        The caller has checked `repeated` before; the arguments are those of `append`. `replace` may name
        partitions: only these are replaced. A table that is replaced as a whole gets the batch's columns.
        """
        # Earlier files do not have columns that are added later, so every column is nullable.
        schema = pa.schema([field.with_nullable(True) for field in given])
        actions = [_add_action(row) for row in written]
        properties = CommitProperties(
            None if account is None else {METADATA_KEY: msgspec.json.encode(account).decode()},
            app_transactions=[Transaction(name, batch, _now_ms()) for name in (application, *also)],
        )
        self._sync_names(written)
        table = self.open()
        first = 0 if table is None else table.version() + 1
        with self.place.reported("commit to the table"):
            if table is None or (replace is True and not _has(table, schema, partition_by)):
                deltalake.transaction.create_table_with_add_actions(
                    self.path,
                    deltalake.Schema.from_arrow(schema),
                    actions,
                    "error" if table is None else "overwrite",
                    list(partition_by),
                    configuration=None if account is None else KEEP_ACCOUNTS,
                    storage_options=self.place.storage_options,
                    commit_properties=properties,
                )
                table = self.existing(None)
            else:
                self._evolve(table, schema)
                replaced = replace if isinstance(replace, Mapping) else {}
                table.create_write_transaction(
                    [*actions],
                    "overwrite" if replace else "append",
                    deltalake.Schema.from_arrow(schema),
                    list(partition_by),
                    [(name, "=", value) for name, value in replaced.items()] or None,
                    commit_properties=properties,
                )
                table.update_incremental()
        self._sync_log(first, table.version())
        rows = sum(row["rows"] for row in written)
        ranges = [] if account is None else account.ranges
        days = frozenset(day for row in written if (day := dict(row["partition_values"]).get("date")))
        return Appended(table.version(), rows, len(actions), False, ranges, days)

    def accounts(self, version: int | None = None) -> list[CommitAccount]:
        """Return what each commit, up to a version, says that it added, the oldest first."""
        for _ in range(HISTORY_TRIES):
            table = self.existing(None)
            newest = table.version()
            history = table.history()
            if self.existing(None).version() == newest:
                return _accounts(history, newest if version is None else version)
        raise InvalidConfig(f"table {self.path} changes too fast for its history to be read; try again")

    def may_have_archived(self, source: Key) -> bool:
        """Whether an archive of a queue may have added rows: a commit says so, or none says anything."""
        ranges = [one for account in self.accounts() for one in account.ranges]
        if not ranges:  # the commits of imports have no account, and those of earlier versions
            return "source" not in (self.columns() or ())
        return any(one.stream == source[0] or one.instance == source[1] for one in ranges)

    def store_report(self, report: ArchiveProgress | AuditSummary) -> None:
        """Leave in the lake what a job last did; a full disk or a store that is away stops no job."""
        root = self.place.parent
        if root.is_local:
            write_report(root.path, self.name, report)
            return
        with contextlib.suppress(EverlogError):
            root.objects().put(report_key(self.name, type(report)), msgspec.json.encode(report))

    def _write(
        self, frame: DataFrame, partition_by: tuple[str, ...], stream: str | None
    ) -> list[dict[str, Any]]:
        """Write the rows in tasks; return the descriptions of the files."""
        place = self.place

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            freeze_loaded_modules()
            return write_files(batches, place, partition_by, stream)

        rows = frame.mapInArrow(task, from_arrow_schema(WRITTEN_SCHEMA)).collect()
        return [row.asDict() for row in rows]

    def _sync_names(self, written: Written) -> None:
        """Sync the directories of new files, before the log names them; objects are durable at once."""
        if not self.place.is_local:
            return
        os.makedirs(self.path, exist_ok=True)
        folders = {self.path}
        for row in written:
            folder = os.path.dirname(os.path.join(self.path, row["path"]))
            while folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)
        for folder in sorted(folders):
            self._fs.fsync_dir(folder)

    def _sync_folders_above(self) -> None:
        """Sync the directories above the table: tasks may have created them."""
        folder = self.path
        while (above := os.path.dirname(folder)) != folder:
            folder = above
            with contextlib.suppress(PermissionError):  # then this user has created nothing in it
                self._fs.fsync_dir(folder)

    def _sync_log(self, first: int, last: int) -> None:
        """Sync these versions of the log; the library that writes them does not."""
        if not self.place.is_local:
            return
        log = os.path.join(self.path, "_delta_log")
        for version in range(first, last + 1):
            sync_path(self._fs, os.path.join(log, f"{version:020}.json"))
        self._fs.fsync_dir(log)
        if first == 0:
            self._fs.fsync_dir(self.path)
            self._sync_folders_above()

    def check_append(self, schema: pa.Schema) -> None:
        """Refuse rows of this schema if a column of the table has another type."""
        table = self.open()
        if table is not None:
            self._new_columns(table, schema)

    def check_replace(self) -> None:
        """Refuse to replace rows that are not computed: those of archives and imports are nowhere else."""
        table = self.open()
        if table is None or "gap_to" not in {field.name for field in table.schema().fields}:
            return
        files = pa.table(table.get_add_actions(flatten=True))
        kinds = {
            kind
            for name in ("min.kind", "max.kind")
            if name in files.column_names
            for kind in files[name].to_pylist()
        }
        if kinds & STORED_KINDS:
            raise InvalidConfig(
                f"table {self.path} has rows that were archived or imported, which this run would replace; "
                "name another table (--table)"
            )

    def _evolve(self, table: deltalake.DeltaTable, schema: pa.Schema) -> None:
        """Add columns that the table does not have yet; a column of another type is refused."""
        new = self._new_columns(table, schema)
        if new:
            table.alter.add_columns([deltalake.Field.from_arrow(field) for field in new])

    def _new_columns(self, table: deltalake.DeltaTable, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns that the table does not have yet."""
        known = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
        new = []
        for field in schema:
            if field.name not in known:
                new.append(field)
            elif known[field.name] != field.type:
                raise InvalidConfig(
                    f"column {field.name!r} of table {self.name!r} is {known[field.name]}, the batch has "
                    f"{field.type}; write to another table or cast it"
                )
        return new

    def files(
        self,
        where: Mapping[str, str] | None = None,
        version: int | None = None,
        ranges: Ranges | None = None,
    ) -> list[str]:
        """Return the active files: of the named partitions only, and with rows in these ranges only.

        A file whose statistics say that it has no row in a range is left out; no file is opened for that.
        """
        table = self.existing(version)
        # Names of files are unique; whole paths differ in how often a partition's value was escaped.
        chosen = self._chosen(
            table, Selection({name: [one] for name, one in (where or {}).items()}, ranges or {})
        )
        wanted = {os.path.basename(file.path) for file in files_of(chosen)}
        return [file for file in table.file_uris() if os.path.basename(file) in wanted]

    def scan(
        self,
        selection: Selection | None = None,
        wanted: pa.Schema | None = None,
        version: int | None = None,
    ) -> tuple[Scan, list[LakeFile]]:
        """Return a read of selected rows and columns by tasks, and the files that it has to open."""
        table, some = self.existing(version), selection or Selection()
        schema = pa.schema(table.schema().to_arrow())
        unknown = sorted({*some.values, *some.ranges, *(wanted or schema).names} - {*schema.names})
        if unknown:
            raise InvalidConfig(
                f"table {self.path} has no column {unknown[0]!r}; it has {', '.join(schema.names)}"
            )
        return Scan(self.place, schema, wanted or schema, some), files_of(self._chosen(table, some))

    def _chosen(self, table: deltalake.DeltaTable, selection: Selection) -> pa.Table:
        """Return what the log says of the files that may have such rows."""
        return selection.pruned(pa.table(table.get_add_actions(flatten=True)))

    def existing(self, version: int | None = None) -> deltalake.DeltaTable:
        """Return the table as Delta has it, now or as of a version; refuse one that is not there."""
        table = self.open(version)
        if table is None:
            raise InvalidConfig(f"there is no table {self.name!r} at {self.path}; run the job that fills it")
        return table

    def read(
        self,
        spark: SparkSession,
        *,
        where: Mapping[str, str] | None = None,
        ranges: Ranges | None = None,
        version: int | None = None,
    ) -> DataFrame:
        """Return the table as of a version or of now: those partitions, and rows in those ranges, of it.

        No file is opened that the log's partitions or statistics rule out. Spark reads a directory itself;
        tasks read what is in an object store.
        """
        if not self.place.is_local:
            some = Selection({name: [one] for name, one in (where or {}).items()}, ranges or {})
            return scan_in_tasks(spark, *self.scan(some, version=version))
        table = self.existing(version)
        files = self.files(where, table.version(), ranges)
        schema = from_arrow_schema(pa.schema(table.schema().to_arrow()))
        if not files:
            return spark.createDataFrame([], schema)
        frame = spark.read.schema(schema).option("basePath", self.path).parquet(*files)
        frame = frame.select(*schema.names)  # Spark has the columns of partitions behind the others
        for name, value in (where or {}).items():
            frame = frame.where(fn.col(name) == value)
        for name, (low, high) in (ranges or {}).items():
            frame = frame.where(fn.col(name).between(low, high))
        return frame

    def compact(
        self,
        target_bytes: int = COMPACT_BYTES,
        order_by: Sequence[str] = (),
        where: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Join small files into larger ones; the content stays the same.

        With columns to `order_by`, all files of a partition are written anew, in an order in which rows that
        are close in these columns are close in the files (z-order). `where` names the partitions.
        """
        table = self.open()
        if table is None:
            return {}
        chosen = [(name, "=", value) for name, value in (where or {}).items()] or None
        with self.place.reported("join the files of"):
            if order_by:
                return table.optimize.z_order(order_by, chosen, target_size=target_bytes)
            return table.optimize.compact(chosen, target_size=target_bytes)

    def vacuum(self, keep: timedelta = VACUUM_KEEP) -> list[str]:
        """Remove files that no version of the last `keep` needs, and those of tasks that failed.

        Files that no version names may be those of a batch that is not committed yet, so they stay for
        `UNCOMMITTED_KEEP` at least.
        """
        table = self.open()
        if table is None:
            return []
        # The joined files must be on disk before the small ones are deleted.
        if self.place.is_local:
            self._fs.sync_file_system(self.path)
        hours = _hours(max(keep, UNCOMMITTED_KEEP))
        with self.place.reported("remove files of"):
            replaced = table.vacuum(_hours(keep), dry_run=False, enforce_retention_duration=False)
            failed = table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        return [*replaced, *failed]


def read(
    spark: SparkSession,
    root: str | os.PathLike[str],
    table: str,
    *,
    ranges: Ranges | None = None,
    version: int | None = None,
    **where: str,
) -> DataFrame:
    """Return a table of the lake, of the named partitions and ranges only.

    `read(spark, root, "orders", date="2024-12-01", ranges={"seq": (10, 20)})` opens no file of another day,
    and none whose statistics say that it has no such seq.
    """
    return LakeTable(root, table).read(spark, where=where, ranges=ranges, version=version)


def _accounts(history: list[dict[str, Any]], version: int) -> list[CommitAccount]:
    """Return the accounts of the commits up to a version, the oldest first."""
    texts = [
        entry[METADATA_KEY] for entry in history if METADATA_KEY in entry and entry["version"] <= version
    ]
    return [msgspec.json.decode(text, type=CommitAccount) for text in reversed(texts)]


def _has(table: deltalake.DeltaTable, schema: pa.Schema, partition_by: Sequence[str]) -> bool:
    """Return whether a table has exactly these columns, and is partitioned by these of them."""
    known = {field.name: field.type for field in pa.schema(table.schema().to_arrow())}
    by = table.metadata().partition_columns
    return known == {field.name: field.type for field in schema} and by == list(partition_by)


def _add_action(row: Mapping[str, Any]) -> AddAction:
    return AddAction(
        row["path"], row["size"], row["partition_values"], row["modified_ms"], True, row["stats"]
    )


def _is_whole(path: str) -> bool:
    """Whether a file has a JSON object in every line, and its end."""
    with open(path, "rb") as file:
        lines = file.read().splitlines()
    try:
        return bool([msgspec.json.decode(line) for line in lines if line])
    except msgspec.MsgspecError:
        return False


def _hours(time: timedelta) -> int:
    return int(time.total_seconds() // 3600)


def _now_ms() -> int:
    return int(time.time() * _MS_PER_S)
