"""The lake: Delta tables that Spark tasks fill and one transaction commits.

Owns how files of a table are written, committed, listed and read back. A table is an ordinary Delta table,
to be read by whatever reads Delta. Tasks write Parquet files with unique names; nobody sees them until the
driver commits all of a batch at once, with the batch's number as the transaction id, so that a batch which is
run again changes nothing. What failed tasks leave is removed by `vacuum`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import deltalake
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, Transaction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from everlog.errors import InvalidConfig
from everlog.pipeline.lake_files import WRITTEN_SCHEMA, write_files

VACUUM_KEEP: Final = timedelta(days=7)
COMPACT_BYTES: Final = 256 << 20
_MS_PER_S: Final = 1000


class Appended(NamedTuple):
    """What one batch added to a table; nothing if it had been committed before."""

    version: int
    rows: int
    files: int
    is_repeat: bool


class LakeTable:
    """One Delta table below the root of a lake."""

    def __init__(self, root: str | os.PathLike[str], name: str) -> None:
        if not name or name.startswith((".", "_")) or "/" in name:
            raise InvalidConfig(f"a table cannot be called {name!r}; use letters, digits, - and _")
        self.name = name
        self.path = os.path.join(os.path.abspath(root), name)

    def open(self, version: int | None = None) -> deltalake.DeltaTable | None:
        """Return the table as Delta has it, now or as of a version; None if there is none."""
        try:
            return deltalake.DeltaTable(self.path, version=version)
        except TableNotFoundError:
            return None

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
    ) -> Appended:
        """Write a batch and commit it, unless this application has committed it already.

        With `replace` the table holds nothing but this batch afterwards; earlier versions stay readable.
        `also` are further applications whose batch of this number is part of it.
        """
        table = self.open()
        if table is not None:
            committed = table.transaction_version(application)
            if committed is not None and committed >= batch:
                return Appended(table.version(), 0, 0, True)
        # Columns that come later are missing in earlier files, so every column may be empty.
        given = to_arrow_schema(frame.schema, timezone="UTC")
        schema = pa.schema([field.with_nullable(True) for field in given])
        written = self._write(frame, tuple(partition_by))
        actions = [_add_action(row) for row in written]
        properties = CommitProperties(
            app_transactions=[Transaction(name, batch, _now_ms()) for name in (application, *also)]
        )
        if table is None:
            deltalake.transaction.create_table_with_add_actions(
                self.path,
                deltalake.Schema.from_arrow(schema),
                actions,
                "error",
                list(partition_by),
                commit_properties=properties,
            )
            table = deltalake.DeltaTable(self.path)
        else:
            self._evolve(table, schema)
            table.create_write_transaction(
                [*actions],
                "overwrite" if replace else "append",
                deltalake.Schema.from_arrow(schema),
                list(partition_by),
                commit_properties=properties,
            )
            table.update_incremental()
        return Appended(table.version(), sum(row["rows"] for row in written), len(actions), False)

    def _write(self, frame: DataFrame, partition_by: tuple[str, ...]) -> list[dict[str, Any]]:
        """Let the tasks write their files; return what they say of them."""
        os.makedirs(self.path, exist_ok=True)
        path = self.path

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_files(batches, path, partition_by)

        rows = frame.mapInArrow(task, from_arrow_schema(WRITTEN_SCHEMA)).collect()
        return [row.asDict() for row in rows]

    def _evolve(self, table: deltalake.DeltaTable, schema: pa.Schema) -> None:
        """Add columns that the table does not have yet; a column of another type is refused."""
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
        if new:
            table.alter.add_columns([deltalake.Field.from_arrow(field) for field in new])

    def files(self, where: Mapping[str, str] | None = None, version: int | None = None) -> list[str]:
        """Return the active files, those of the named partitions only if `where` says so."""
        table = self.open(version)
        if table is None:
            raise InvalidConfig(f"there is no table {self.name!r} at {self.path}; run the job that fills it")
        conditions = [(name, "=", value) for name, value in (where or {}).items()]
        return table.file_uris(file_pruning_predicate=conditions or None)

    def read(
        self, spark: SparkSession, *, where: Mapping[str, str] | None = None, version: int | None = None
    ) -> DataFrame:
        """Return the table, or those partitions of it, as of a version or of now."""
        files = self.files(where, version)
        table = self.open(version)
        assert table is not None, "its files were just listed"
        schema = from_arrow_schema(pa.schema(table.schema().to_arrow()))
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).option("basePath", self.path).parquet(*files)

    def compact(self) -> dict[str, Any]:
        """Join small files into larger ones; the content stays, readers notice nothing."""
        table = self.open()
        return {} if table is None else table.optimize.compact(target_size=COMPACT_BYTES)

    def vacuum(self, keep: timedelta = VACUUM_KEEP) -> list[str]:
        """Remove files that no version of the last `keep` needs, and those of tasks that failed."""
        table = self.open()
        if table is None:
            return []
        hours = int(keep.total_seconds() // 3600)
        return table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)


def read(spark: SparkSession, root: str | os.PathLike[str], table: str, **where: str) -> DataFrame:
    """Return a table of the lake, of the named partitions only.

    `read(spark, root, "orders", date="2024-12-01")` opens no file of another day.
    """
    return LakeTable(root, table).read(spark, where=where)


def _add_action(row: Mapping[str, Any]) -> AddAction:
    return AddAction(
        row["path"], row["size"], row["partition_values"], row["modified_ms"], True, row["stats"]
    )


def _now_ms() -> int:
    return int(time.time() * _MS_PER_S)
