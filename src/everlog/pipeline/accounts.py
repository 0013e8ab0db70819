"""What a table should hold: ranges of seqs with a digest of their rows, and the count of what it does hold.

A job writes the range of each stream with every commit. The digest of a range is the exclusive or of the
hashes of its rows, so it does not depend on their order or on the files that they are in. Tasks count, the
driver merges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema

from everlog.clock import NS_PER_DAY
from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.intervals import EMPTY, Intervals, runs_of, union
from everlog.pipeline.tables.schemas import NAMED

DIGEST: Final = "_digest"
METADATA_KEY: Final = "everlog.ranges"
NOT_HASHED: Final = NAMED | {"date"}
"""Names may become known later; the day is made from other columns, and of a gap it is when it was found."""

_FOUND: Final = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("instance", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("gap_seqs", pa.int64()),
        pa.field("records", pa.binary()),
        pa.field("gaps", pa.binary()),
        pa.field("misdated", pa.binary()),
        pa.field("pieces", pa.binary()),
    ]
)
US_PER_DAY: Final = 86_400_000_000

Key = tuple[str, str | None]
"""A stream and its instance."""


class RangeAccount(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a stream from seq `first` up to before `end`: how many, and their digest."""

    stream: str
    instance: str | None
    first: int
    end: int
    rows: int
    digest: int


class CommitAccount(msgspec.Struct, frozen=True):
    """What one commit added: the columns that were hashed, and the range of each stream."""

    columns: list[str]
    ranges: list[RangeAccount]
    options: dict[str, str] = {}
    """What the job selected from the source."""


def hashed_columns(columns: Sequence[str]) -> list[str]:
    """Return which columns of a table are hashed, in order."""
    return sorted(set(columns) - NOT_HASHED)


def digest_of(columns: Sequence[str]) -> Column:
    """Return the hash of a row; Spark leaves out what is null, so which columns are is hashed as well."""
    nulls = fn.lit(0).cast("long")
    for place, name in enumerate(columns):
        nulls += fn.when(fn.col(name).isNull(), 1 << place).otherwise(0)
    return fn.xxhash64(nulls, *columns)


def day_of(stream: str, columns: Sequence[str]) -> Column:
    """Return the UTC day of a record, whatever the session's time zone is; a gap has none."""
    time_us = f"unix_micros({'start_ts' if 'start_ts' in columns else 'ts'})"
    days = f"ts_ns div {NS_PER_DAY}" if stream == "queue" else f"{time_us} div {US_PER_DAY}"
    return fn.date_from_unix_date(fn.expr(days).cast("int"))


class RangeCollector:
    """The ranges of the rows that one task writes."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._found: dict[Key, RangeAccount] = {}

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count rows; return them without their hashes."""
        for key, rows in by_stream(batch, self._stream):
            seqs = rows.column("seq").to_numpy()
            ends = seqs + 1
            if "gap_to" in rows.schema.names:
                ends = pc.coalesce(rows.column("gap_to"), rows.column("seq")).to_numpy() + 1
            digest = int(np.bitwise_xor.reduce(rows.column(DIGEST).to_numpy()))
            one = RangeAccount(*key, int(seqs.min()), int(ends.max()), len(seqs), digest)
            self._found[key] = one if key not in self._found else _joined(self._found[key], one)
        return batch.drop_columns([DIGEST])

    def to_json(self) -> str:
        """Return the ranges as the task reports them."""
        return msgspec.json.encode(list(self._found.values())).decode()


def _joined(one: RangeAccount, other: RangeAccount) -> RangeAccount:
    first, end = min(one.first, other.first), max(one.end, other.end)
    return RangeAccount(
        one.stream, one.instance, first, end, one.rows + other.rows, one.digest ^ other.digest
    )


def merge_ranges(reports: Sequence[str]) -> list[RangeAccount]:
    """Return the ranges of a batch from what its tasks reported."""
    found: dict[Key, RangeAccount] = {}
    for report in reports:
        for one in msgspec.json.decode(report, type=list[RangeAccount]):
            key = (one.stream, one.instance)
            found[key] = one if key not in found else _joined(found[key], one)
    return [found[key] for key in sorted(found, key=str)]


def by_stream(batch: pa.RecordBatch, stream: str) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """Split rows by stream and instance; usually there is one of each."""
    names = [stream, *(["instance"] if "instance" in batch.schema.names else [])]
    keys = pa.Table.from_batches([batch.select(names)]).group_by(names).aggregate([]).to_pylist()
    for key in keys:
        found = (key[stream], key.get("instance"))
        if len(keys) == 1:
            yield found, batch
            return
        mask = pc.equal(batch.column(stream), key[stream])
        if "instance" in names:
            column = batch.column("instance")
            same = pc.is_null(column) if found[1] is None else pc.equal(column, found[1])
            mask = pc.and_(mask, pc.fill_null(same, False))
        yield found, batch.filter(mask)


# --- Counting what is there ---------------------------------------------------------------------------------


Pieces = NDArray[np.int64]
"""Where the pieces of a stream begin, sorted."""


@dataclass
class Counted:
    """What was found of one instance of a stream."""

    rows: int = 0
    records: Intervals = field(default_factory=lambda: EMPTY)
    gap_seqs: int = 0
    """The seqs of all gap rows, those in two of them twice; a gap without an end has none."""
    gaps: Intervals = field(default_factory=lambda: EMPTY)
    misdated: Intervals = field(default_factory=lambda: EMPTY)
    """Records in the partition of another day: a query of their day does not find them."""
    pieces: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The rows and the digest of each piece, by its place."""

    def add(self, other: Counted) -> None:
        """Count what another task has found."""
        self.rows += other.rows
        self.gap_seqs += other.gap_seqs
        self.records = union([self.records, other.records])
        self.gaps = union([self.gaps, other.gaps])
        self.misdated = union([self.misdated, other.misdated])
        for place, (rows, digest) in other.pieces.items():
            known = self.pieces.get(place, (0, 0))
            self.pieces[place] = (known[0] + rows, known[1] ^ digest)


def count_rows(
    frame: DataFrame, stream: str, columns: Sequence[str], pieces: Mapping[Key, Pieces]
) -> dict[Key, Counted]:
    """Count the rows of a table or of a source: intervals, gaps, and the digest of each piece."""
    nothing = fn.lit(None).cast("string")
    misdated = fn.coalesce(fn.col("date") != day_of(stream, frame.columns), fn.lit(False))
    chosen = frame.select(
        fn.col(stream).alias("stream"),
        (fn.col("instance") if "instance" in frame.columns else nothing).alias("instance"),
        "seq",
        (fn.col("gap_to") if "gap_to" in frame.columns else fn.lit(None).cast("long")).alias("gap_to"),
        (fn.col("kind") == "gap" if "kind" in frame.columns else fn.lit(False)).alias("is_gap"),
        (misdated if "date" in frame.columns else fn.lit(False)).alias("is_misdated"),
        digest_of(columns).alias(DIGEST),
    )

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        found: dict[Key, Counted] = {}
        for batch in batches:
            for key, rows in by_stream(batch, "stream"):
                _count(found.setdefault(key, Counted()), rows, pieces.get(key))
        for key, one in found.items():
            yield _to_batch(key, one)

    total: dict[Key, Counted] = {}
    for row in chosen.mapInArrow(task, from_arrow_schema(_FOUND)).collect():
        total.setdefault((row.stream, row.instance), Counted()).add(_from_row(row))
    return total


def _count(into: Counted, rows: pa.RecordBatch, pieces: Pieces | None) -> None:
    seqs = rows.column("seq").to_numpy()
    is_gap = rows.column("is_gap").to_numpy(zero_copy_only=False)
    into.rows += int((~is_gap).sum())
    into.records = union([into.records, runs_of(seqs[~is_gap])])
    misdated = rows.column("is_misdated").to_numpy(zero_copy_only=False) & ~is_gap
    into.misdated = union([into.misdated, runs_of(seqs[misdated])])
    if is_gap.any():
        ends = pc.fill_null(pc.add(rows.column("gap_to"), 1), 0).to_numpy()[is_gap]
        firsts = seqs[is_gap]
        into.gap_seqs += int(np.maximum(ends - firsts, 0).sum())
        into.gaps = union([into.gaps, np.column_stack([firsts, ends])])
    if pieces is None or not len(pieces):
        return
    places = np.searchsorted(pieces, seqs, side="right") - 1
    hashes = rows.column(DIGEST).to_numpy()
    for place in np.unique(places[places >= 0]).tolist():
        chosen = hashes[places == place]
        count, digest = into.pieces.get(place, (0, 0))
        into.pieces[place] = (count + len(chosen), digest ^ int(np.bitwise_xor.reduce(chosen)))


def _to_batch(key: Key, one: Counted) -> pa.RecordBatch:
    """Return what a task has found of a stream as one row; the arrays as bytes."""
    places = np.array([(place, *found) for place, found in one.pieces.items()], np.int64)
    row: dict[str, Any] = {"stream": key[0], "instance": key[1], "rows": one.rows, "gap_seqs": one.gap_seqs}
    row |= {"records": one.records.tobytes(), "gaps": one.gaps.tobytes()}
    row |= {"misdated": one.misdated.tobytes(), "pieces": places.tobytes()}
    return pa.RecordBatch.from_pylist([row], schema=_FOUND)


def _from_row(row: Any) -> Counted:
    records, gaps, misdated = (
        np.frombuffer(some, np.int64).reshape(-1, 2) for some in (row.records, row.gaps, row.misdated)
    )
    pieces = np.frombuffer(row.pieces, np.int64).reshape(-1, 3).tolist()
    found = {place: (rows, digest) for place, rows, digest in pieces}
    return Counted(row.rows, records, row.gap_seqs, gaps, misdated, found)
