"""Reads of a lake table inside Spark tasks: which files may have wanted rows, and these as Arrow batches.

Spark opens no file itself here, so a table may be wherever `deltalake` reaches it. Knows no Delta log: the
caller hands over what the log says of the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.lake_places import LakePlace

TASK_BYTES: Final = 64 << 20
"""How much of a table one task reads: small files together, a large one alone."""

BATCH_ROWS: Final = 1 << 16
OF_PARTITIONS: Final = "partition."


class LakeFile(NamedTuple):
    """A file of a table, and the values of the partition that it is in."""

    path: str
    size: int
    values: Mapping[str, Any]


class Selection(NamedTuple):
    """Which rows: those with one of the values in each column, and within each range, both ends included."""

    values: Mapping[str, Sequence[Any]] = {}
    ranges: Mapping[str, tuple[Any, Any]] = {}

    def pruned(self, files: pa.Table) -> pa.Table:
        """Return the files that may have such rows, by their partitions and statistics; opens none."""
        for name, values in self.values.items():
            found = [_may_hold(files, name, one, one) for one in values]
            files = files.filter(reduce(pc.or_, found)) if found else files.slice(0, 0)
        for name, (low, high) in self.ranges.items():
            files = files.filter(_may_hold(files, name, low, high))
        return files

    def expression(self, schema: pa.Schema) -> pc.Expression | None:
        """Return the condition of a row, None if all are wanted."""
        conditions = [
            pc.field(name).isin(pa.array(values).cast(schema.field(name).type))
            for name, values in self.values.items()
        ]
        for name, ends in self.ranges.items():
            low, high = (pa.scalar(end).cast(schema.field(name).type) for end in ends)
            conditions.append((pc.field(name) >= low) & (pc.field(name) <= high))
        return reduce(lambda one, other: one & other, conditions) if conditions else None


class Scan(NamedTuple):
    """A read of some columns and rows of a table; tasks get it with their files."""

    place: LakePlace
    schema: pa.Schema
    """The columns of the table."""
    wanted: pa.Schema
    """Those of the result, in its order."""
    selection: Selection

    def batches(self, files: Sequence[LakeFile]) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of some files."""
        freeze_loaded_modules()
        names, filesystem = self.wanted.names, self.place.filesystem()
        for file in files:
            with self.place.reported(f"read {file.path} of"):
                fragment = ds.ParquetFileFormat().make_fragment(
                    file.path, filesystem, partition_expression=_partition(self.schema, file.values)
                )
                rows = ds.FileSystemDataset([fragment], self.schema, fragment.format, filesystem)
                condition = self.selection.expression(self.schema)
                for batch in rows.to_batches(columns=names, filter=condition, batch_size=BATCH_ROWS):
                    if batch.num_rows:
                        yield batch.cast(self.wanted)


def files_of(actions: pa.Table) -> list[LakeFile]:
    """Return the files that a table of the log's add actions names; the log has their paths as URLs."""
    names = [name for name in actions.column_names if name.startswith(OF_PARTITIONS)]
    rows = actions.select(["path", "size_bytes", *names]).to_pylist()
    return [
        LakeFile(
            unquote(row["path"]),
            row["size_bytes"],
            {name.removeprefix(OF_PARTITIONS): row[name] for name in names},
        )
        for row in rows
    ]


def in_tasks(files: Sequence[LakeFile]) -> list[tuple[LakeFile, ...]]:
    """Deal files to tasks by their sizes, in their order."""
    tasks: list[list[LakeFile]] = []
    room = 0
    for file in files:
        if file.size > room:
            tasks.append([])
            room = TASK_BYTES
        tasks[-1].append(file)
        room -= file.size
    return [tuple(task) for task in tasks]


def scan_in_tasks(spark: SparkSession, scan: Scan, files: Sequence[LakeFile]) -> DataFrame:
    """Return the rows of a scan as a DataFrame."""
    tasks, schema = in_tasks(files), from_arrow_schema(scan.wanted)
    if not tasks:
        return spark.createDataFrame([], schema)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from scan.batches(tasks[number])

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(task, schema)


def _partition(schema: pa.Schema, values: Mapping[str, Any]) -> pc.Expression | None:
    conditions = [
        pc.field(name).is_null()
        if value is None
        else pc.field(name) == pa.scalar(value).cast(schema.field(name).type)
        for name, value in values.items()
    ]
    return reduce(lambda one, other: one & other, conditions) if conditions else None


def _may_hold(files: pa.Table, column: str, low: Any, high: Any) -> pa.ChunkedArray:
    """Return for each file whether it may have a value of the column from `low` to `high`."""
    names = (f"{OF_PARTITIONS}{column}",) * 2 if f"{OF_PARTITIONS}{column}" in files.column_names else ()
    smallest, largest = names or (f"min.{column}", f"max.{column}")
    if smallest not in files.column_names or largest not in files.column_names:
        return pa.chunked_array([pa.repeat(True, files.num_rows)])
    # Without statistics nothing is known, so the file stays; a partition without a value has no such row.
    starts, ends = files.column(smallest), files.column(largest)
    reaches = pc.fill_null(pc.greater_equal(ends, pa.scalar(low).cast(ends.type)), not names)
    begins = pc.fill_null(pc.less_equal(starts, pa.scalar(high).cast(starts.type)), not names)
    return pc.and_(reaches, begins)
