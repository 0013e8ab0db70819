"""Parquet files that Spark tasks write for the lake: names, partition directories and statistics.

Runs inside tasks; commits nothing.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everlog.pipeline.accounts import RangeCollector
from everlog.pipeline.lake_places import LakePlace

OPEN_FILES_MAX: Final = 32
"""With more partitions than this, the file that was opened first is closed."""

ROW_GROUP_BYTES: Final = 8 << 20
"""Bytes of a row group: small ones make files large and slow to read."""

STATISTICS_TEXT_MAX: Final = 64
"""Longer texts have no statistics: truncated ones would not bound the values."""

WRITTEN_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("modified_ms", pa.int64()),
        pa.field("partition_values", pa.map_(pa.string(), pa.string())),
        pa.field("stats", pa.string()),
        pa.field("ranges", pa.string()),
    ]
)
"""A file that a task has written; or, without a path, the ranges of seqs that are in the files of a task."""

Values = tuple[str | None, ...]


class _File:
    """One Parquet file that is being written; rows are buffered up to a row group."""

    def __init__(
        self, place: LakePlace, partition_by: tuple[str, ...], values: Values, schema: pa.Schema
    ) -> None:
        self.values = values
        folders = [f"{name}={_escaped(value)}" for name, value in zip(partition_by, values, strict=True)]
        self.relative = "/".join([*folders, f"part-{uuid.uuid4().hex}.parquet"])
        self._file: Any = None
        self._local = os.path.join(place.path, self.relative) if place.is_local else None
        if self._local is not None:
            os.makedirs(os.path.dirname(self._local), exist_ok=True)
        else:  # in parts while rows come; the object appears when it is closed
            self._file = place.filesystem().open_output_stream(self.relative)
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._local or self._file, schema, compression="zstd", metadata_collector=self._metadata
        )
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0

    def write(self, rows: pa.Table) -> None:
        """Add rows."""
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    def finish(self, partition_by: tuple[str, ...]) -> dict[str, Any]:
        """Close and sync it; return its description for the log."""
        self._flush()
        self._writer.close()
        (metadata,) = self._metadata
        if self._local is not None:
            with open(self._local, "rb+") as file:
                os.fsync(file.fileno())
            size = os.path.getsize(self._local)
        else:
            size = self._file.tell()
            self._file.close()
        return {
            "path": self.relative,
            "size": size,
            "rows": metadata.num_rows,
            "modified_ms": int(time.time() * 1000),
            "partition_values": dict(zip(partition_by, self.values, strict=True)),
            "stats": msgspec.json.encode(statistics(metadata)).decode(),
        }


class TableFiles:
    """The files that one task writes for one table: one for each partition, a few open at a time."""

    def __init__(self, place: LakePlace, partition_by: tuple[str, ...]) -> None:
        self._place = place
        self._partition_by = partition_by
        self._open: dict[Values, _File] = {}

    def write(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Add rows; yields the descriptions of files that had to be closed for it."""
        if not batch.num_rows:
            return
        for values, rows in _by_partition(pa.Table.from_batches([batch]), self._partition_by):
            if values not in self._open and len(self._open) >= OPEN_FILES_MAX:
                yield self._open.pop(next(iter(self._open))).finish(self._partition_by)
            if values not in self._open:
                self._open[values] = _File(self._place, self._partition_by, values, rows.schema)
            self._open[values].write(rows)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Close all files; yields the description of each."""
        while self._open:
            yield self._open.pop(next(iter(self._open))).finish(self._partition_by)


def write_files(
    batches: Iterator[pa.RecordBatch],
    place: LakePlace,
    partition_by: tuple[str, ...],
    stream: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task into one file per partition; yield a row for each file.

    With the name of the `stream` column, rows come with their digests, and a last row has their ranges.
    """
    files = TableFiles(place, partition_by)
    ranges = None if stream is None else RangeCollector(stream)
    for batch in batches:
        for row in files.write(batch if ranges is None else ranges.add(batch)):
            yield written(row)
    for row in files.finish():
        yield written(row)
    if ranges is not None:
        yield written({"ranges": ranges.to_json()})


def written(row: dict[str, Any]) -> pa.RecordBatch:
    """Return the description of a file as the row that a task returns."""
    return pa.RecordBatch.from_pylist([row], schema=WRITTEN_SCHEMA)


def _by_partition(rows: pa.Table, partition_by: tuple[str, ...]) -> Iterator[tuple[Values, pa.Table]]:
    """Split rows by the values of the partition columns, which are then left out."""
    if not partition_by:
        yield (), rows
        return
    keys = rows.select(partition_by).group_by(list(partition_by)).aggregate([]).to_pylist()
    for key in keys:
        values = tuple(None if key[name] is None else str(key[name]) for name in partition_by)
        if len(keys) == 1:
            yield values, rows.drop_columns(list(partition_by))
            return
        mask = None
        for name in partition_by:
            column = rows.column(name)
            equal = pc.is_null(column) if key[name] is None else pc.equal(column, pa.scalar(key[name]))
            mask = equal if mask is None else pc.and_(mask, equal)
        yield values, rows.filter(mask).drop_columns(list(partition_by))


def _escaped(value: str | None) -> str:
    """Return the value of a partition for a directory name; null has the name that Hive gave it."""
    return "__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="-_.+@")


def statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return the statistics that allow a reader to skip the file, by column."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    missing: dict[str, int] = {}
    skipped: set[str] = set()
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            found, name = column.statistics, column.path_in_schema
            if "." in name or found is None:
                continue
            if found.has_null_count:
                missing[name] = missing.get(name, 0) + found.null_count
            if not found.has_min_max:
                if found.null_count != column.num_values:
                    skipped.add(name)
                continue
            low, high = _plain(found.min), _plain(found.max)
            if low is None or high is None:
                skipped.add(name)
                continue
            lowest[name] = min(lowest.get(name, low), low)
            highest[name] = max(highest.get(name, high), high)
    for name in skipped:
        lowest.pop(name, None)
        highest.pop(name, None)
    return {
        "numRecords": metadata.num_rows,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": missing,
    }


def _plain(value: Any) -> Any:
    """Return a value as the log encodes it, None if the log cannot use it."""
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, date):
        return value.isoformat()
    return value if isinstance(value, str) and len(value) <= STATISTICS_TEXT_MAX else None
