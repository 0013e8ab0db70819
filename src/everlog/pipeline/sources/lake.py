"""The format `everlog.lake`: a table of the lake as rows, in a directory or in an object store.

Read by tasks through `everlog.pipeline.lake_reading`, so Spark needs no file system of the store. What is
wanted is said by options, from which the table's log rules out files. Batch only, and read only: jobs write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from everlog.errors import InvalidConfig
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_reading import LakeFile, Scan, Selection, in_tasks
from everlog.pipeline.options import Options
from everlog.pipeline.sources.base import LOCAL_SCHEME, OF_A_TABLE, TABLE_OPTIONS

NAME: Final = "everlog.lake"
VALUES: Final = ("venue", "symbol", "topic")
"""Columns of which an option names the wanted values, separated by commas."""
RANGES: Final = {
    "seq": ("fromSeq", "toSeq"),
    "ts_ns": ("fromTs", "toTs"),
    "date": ("fromDate", "toDate"),
}
"""Columns of which two options name the first and the last wanted value."""
KINDS: Final = {"records": ("record", "computed"), "gaps": ("gap",)}
"""The kinds of rows that the values of the option `rows` stand for."""
ROWS: Final = ("all", *KINDS)
OPTIONS: Final = (
    *("path", "lake", "table", "version", "columns", "rows", "date"),
    *VALUES,
    *(name for ends in RANGES.values() for name in ends),
)
LONGS: Final = (-(2**63), 2**63 - 1)


class LakeRead(NamedTuple):
    """A checked read of one table."""

    path: str
    table: str
    version: int | None
    columns: tuple[str, ...]
    selection: Selection

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check the options; an error names the valid ones."""
        options = Options(given, OPTIONS, NAME)
        values: dict[str, list[Any]] = {name: [*options.names(name)] for name in VALUES if name in options}
        kind = options.choice("rows", ROWS)
        if kind != "all":
            values["kind"] = [*KINDS[kind]]
        ranges: dict[str, tuple[Any, Any]] = {}
        for column, (first, last) in RANGES.items():
            if column != "date" and (first in options or last in options):
                ends = options.whole(first, LONGS[0]), options.whole(last, LONGS[1])
                ranges[column] = (ends[0], ends[1])
        if "date" in options:
            values["date"] = [_day(options, "date")]
        if "fromDate" in options or "toDate" in options:
            ends_of_days = (("fromDate", date.min), ("toDate", date.max))
            low, high = (_day(options, name) if name in options else end for name, end in ends_of_days)
            ranges["date"] = (low, high)
        table = options.text("table")
        version = options.whole("version")
        # Spark itself resolves the path of a table of SQL, for which it would need the store's file system.
        path = options.text("lake") if "lake" in options else options.text("path")
        return cls(path, table, version, options.names("columns"), Selection(values, ranges))

    def scan(self, wanted: pa.Schema | None = None) -> tuple[Scan, list[LakeFile]]:
        """Return the read as of now, and the files that it opens."""
        table = LakeTable(self.path, self.table)
        if wanted is None and self.columns:
            scan, _ = table.scan(version=self.version)
            missing = [name for name in self.columns if name not in scan.schema.names]
            if missing:
                raise InvalidConfig(
                    f"table {table.path} has no column {missing[0]!r}; it has {', '.join(scan.schema.names)}"
                )
            wanted = pa.schema([scan.schema.field(name) for name in self.columns])
        return table.scan(self.selection, wanted, self.version)


def _day(options: Options, name: str) -> date:
    text = options.text(name)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise options.wrong(name, text, "a day like 2024-12-01") from None


class LakeFormat(DataSource):
    """The format as Spark registers it."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        path = self.options.get("path", "")
        if path.startswith(LOCAL_SCHEME):  # of a table of SQL, whose path Spark makes a URL
            self.options["path"] = url2pathname(urlsplit(path).path)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """The columns of a read; those of a table of SQL keep its options, since Spark reads it without."""
        schema = from_arrow_schema(LakeRead.parse(self.options).scan()[0].wanted)
        if OF_A_TABLE in self.options:
            schema.fields[0].metadata = {TABLE_OPTIONS: json.dumps(dict(self.options))}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once; a schema of the user selects columns."""
        kept = next((one.metadata[TABLE_OPTIONS] for one in schema if TABLE_OPTIONS in one.metadata), "{}")
        return _LakeReader(LakeRead.parse({**json.loads(kept), **self.options}), schema)


class _LakeReader(DataSourceReader):
    """One read of a table, as it is when the read is planned."""

    def __init__(self, read: LakeRead, schema: StructType) -> None:
        self._scan, self._files = read.scan(to_arrow_schema(schema, timezone="UTC"))

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks; Spark runs one even if there is nothing to read."""
        return [InputPartition(files) for files in in_tasks(self._files)] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run one task."""
        yield from self._scan.batches(partition.value or ())
