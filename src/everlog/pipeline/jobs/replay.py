"""The job `replay`: the books of every market of a queue, built inside Spark tasks, into tables.

The run over a whole queue; the run that follows live data is `everlog.pipeline.jobs.live_replay`. Books are
those of `everlog.market`, so the numbers are the same as on one machine. Three tables: `<table>` has the top
of the book after each event, `<table>_depth` the best levels once in an interval, `<table>_report` every gap,
and every snapshot from which the book had drifted away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from everlog.clock import NS_PER_S
from everlog.errors import DataLost, InvalidConfig
from everlog.market import BookResult, BookSet, BookSettings, GapPolicy, Market, Outputs
from everlog.market.book_results import EventStatus
from everlog.market.book_states import load_books, quarantine_books, save_books
from everlog.market.packing import PackedRecords, gather_field, gather_headers
from everlog.market.result_memory import ResultMemory
from everlog.market.triggers import Events, TimeBar
from everlog.pipeline.jobs.market_tasks import (
    MARKET_FIELDS,
    Files,
    Rows,
    TableSpec,
    TaskFilter,
    TaskMessages,
    dates,
    fill_from_queue,
    market_batch,
    task_messages,
)
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import LakeTable
from everlog.seq_ranges import Gap, SeqRange

DEPTH_LEVELS: Final = 10
TOP: Final = "top"
DEPTH: Final = "depth"
REPORT: Final = "report"

TOP_SCHEMA: Final = pa.schema(
    [
        *MARKET_FIELDS,
        pa.field("seq", pa.int64()),
        pa.field("ts_ns", pa.int64()),
        pa.field("exchange_ts_ns", pa.int64()),
        pa.field("price_scale", pa.int32()),
        pa.field("size_scale", pa.int32()),
        pa.field("bid_price", pa.int64()),
        pa.field("bid_size", pa.int64()),
        pa.field("ask_price", pa.int64()),
        pa.field("ask_size", pa.int64()),
    ]
)
"""Prices and sizes are integers, to be divided by ten to their scale. A size of 0 means an empty side."""

_LEVELS: Final = pa.list_(pa.struct([pa.field("price", pa.int64()), pa.field("size", pa.int64())]))
DEPTH_SCHEMA: Final = pa.schema([*list(TOP_SCHEMA)[:8], pa.field("bids", _LEVELS), pa.field("asks", _LEVELS)])
"""The best levels of both sides, the best one first; fewer where the book has fewer."""

REPORT_SCHEMA: Final = pa.schema(
    [
        *MARKET_FIELDS,
        pa.field("seq", pa.int64()),
        pa.field("ts_ns", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("stream_id", pa.int64()),
        pa.field("seen", pa.int64()),
        pa.field("found", pa.int64()),
        pa.field("missing", pa.int64()),
        pa.field("extra", pa.int64()),
        pa.field("changed", pa.int64()),
    ]
)
"""Problems in the events. The kind `gap`: number `found` followed `seen`, with a `stream_id` if they are
numbers of a channel. `drift`: the book differed from a snapshot by levels that were missing, extra, or of
another size. `lost`: messages from `seen` to `found`, both included, are gone from the queue.
"""


class ReplayReport(RunReport, kw_only=True):
    """One run: rows of the top table, and what the other tables got."""

    depth_rows: int = 0
    drifts: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What a replay writes; the same for all runs of one table."""

    settings: BookSettings = field(default_factory=BookSettings)
    depth: int = DEPTH_LEVELS
    """Levels a side in the depth table; 0 for no such table."""

    depth_interval_ns: int = NS_PER_S
    """A market has a row of levels after its first event in each interval of ingest time."""

    def __post_init__(self) -> None:
        """Refuse invalid numbers."""
        if self.depth < 0 or self.depth_interval_ns < 1:
            raise InvalidConfig(
                f"depth is {self.depth} and its interval {self.depth_interval_ns} ns; at least 0 and 1"
            )

    def tables(self, lake: str, table: str) -> dict[str, TableSpec]:
        """Return the tables by what they hold."""
        found = {TOP: TableSpec(LakeTable(lake, table), TOP_SCHEMA)}
        if self.depth:
            found[DEPTH] = TableSpec(LakeTable(lake, f"{table}_depth"), DEPTH_SCHEMA)
        found[REPORT] = TableSpec(LakeTable(lake, f"{table}_report"), REPORT_SCHEMA)
        return found


def replay_books(
    spark: SparkSession,
    queue: str,
    lake: str,
    table: str,
    *,
    settings: BookSettings | None = None,
    depth: int = DEPTH_LEVELS,
    depth_interval_ns: int = NS_PER_S,
    partitions: int | None = None,
) -> ReplayReport:
    """Build the books of every market from all messages that the queue holds now; fill the three tables.

    The tables always hold one whole run: a run over the same messages changes nothing, one over more replaces
    them. All are partitioned by date and venue.
    """
    started_s = time.monotonic()
    plan = ReplayPlan(settings or BookSettings(), depth, depth_interval_ns)
    path = os.path.abspath(queue)
    tables = plan.tables(lake, table)
    report = ReplayReport(job="replay", source=path, table=tables[TOP].table.path)
    names = {kind: spec.table.name for kind, spec in tables.items()}

    def work(held: SeqRange, tasks: int, number: int) -> Iterator[Rows]:
        yield from BookTables(plan, names).replay(path, held, TaskFilter(tasks, number))

    files = fill_from_queue(spark, path, [*tables.values()], repr(plan), report, partitions, work)
    count_replayed(report, tables, files)
    report.seconds = time.monotonic() - started_s
    return report


def count_replayed(report: ReplayReport, tables: dict[str, TableSpec], files: Files | None) -> None:
    """Add the rows of depth and report tables to the report; None if the run had been committed before."""
    if files is None:
        return
    if DEPTH in tables:
        report.depth_rows += sum(file["rows"] for file in files[tables[DEPTH].table.name])
    faults = tables[REPORT].table
    for file in files[faults.name]:
        with faults.place.filesystem().open_input_file(file["path"]) as stored:
            kinds = pq.ParquetFile(stored).read(["kind"]).column("kind").to_pylist()
        report.gaps += kinds.count("gap")
        report.drifts += kinds.count("drift")
        report.lost += kinds.count("lost")


class _State(msgspec.Struct):
    """The state of `BookTables`, as it is stored."""

    books: bytes
    buckets: list[tuple[int, int, int]]


class BookTables:
    """The books of a task, and the rows that its messages produce."""

    def __init__(self, plan: ReplayPlan, names: dict[str, str], state: bytes | None = None) -> None:
        """`names` are the tables by what they hold; `state` is from `state()` of an earlier one."""
        self._plan = plan
        self._names = names
        # Only in quarantine are events passed over; elsewhere books are faster without their statuses.
        can_skip = plan.settings.gap_policy == GapPolicy.QUARANTINE
        self._want = Outputs(depth=plan.depth, drift=True, statuses=can_skip)
        self._bars: dict[Market, TimeBar] = {}
        self._memory = ResultMemory()
        self._is_new = state is None
        if state is None:
            self._books = BookSet(plan.settings)
            return
        known = msgspec.msgpack.decode(state, type=_State)
        self._books = load_books(known.books, plan.settings)
        for venue_id, market_id, bucket in known.buckets:
            self._bar(Market(venue_id, market_id))._last_bucket = bucket

    def state(self) -> bytes:
        """Return everything that later rows depend on."""
        buckets = [(*market, bar._last_bucket) for market, bar in self._bars.items()]
        return msgspec.msgpack.encode(_State(save_books(self._books), buckets))

    def replay(self, path: str, wanted: SeqRange, selects: TaskFilter) -> Iterator[Rows]:
        """Apply the messages of a range that belong to the task; yield rows."""
        if self._is_new and wanted.first > 0:
            self._books.begin_in_middle()
        self._is_new = False
        for some in task_messages(path, wanted, selects, self._books):
            yield from self._apply(some)

    def _apply(self, some: TaskMessages | Gap) -> Iterator[Rows]:
        """Apply messages or a gap; yield rows."""
        if isinstance(some, Gap):
            yield self._lost(some)
            return
        packed = some.packed
        seqs, times_ns = some.seq, some.timestamp_ns
        exchange_ts_ns = gather_field(packed, "exchange_ts_ns")
        results = self._books.apply_packed(packed, self._want, self._memory)
        for market, (events, result) in results.items():
            base = {
                "seq": seqs[events],
                "ts_ns": times_ns[events],
                "exchange_ts_ns": exchange_ts_ns[events],
                "price_scale": np.full(len(events), result.price_scale, np.int32),
                "size_scale": np.full(len(events), result.size_scale, np.int32),
            }
            yield from self._faults(market, base, result)
            yield from self._states(market, base, packed.take(events), result)
        for gap in self._books.channel_gaps:
            (head,) = gather_headers(packed.take(np.array([gap.event])))
            market = Market(gap.venue_id, int(head["market_id"]))
            row = {"kind": "gap", "stream_id": gap.stream_id, "seen": gap.seen, "found": gap.found}
            yield self._fault(market, int(seqs[gap.event]), int(times_ns[gap.event]), row)

    def _states(
        self, market: Market, base: dict[str, Any], packed: PackedRecords, result: BookResult
    ) -> Iterator[Rows]:
        """Yield what the book was after each event; a book in quarantine is not that of its market."""
        if result.statuses is not None:
            sound = result.statuses != EventStatus.QUARANTINED
            if not sound.all():
                base = {name: column[sound] for name, column in base.items()}
                packed, result = packed.take(np.flatnonzero(sound)), _rows_of(result, sound)
        yield self._tops(market, base, result)
        if self._plan.depth:
            yield from self._depths(market, base, packed, result)

    def _tops(self, market: Market, base: dict[str, Any], result: BookResult) -> Rows:
        assert result.top is not None, "it was asked for"
        columns = base | {name: result.top[name] for name in result.top.dtype.names or ()}
        return Rows(self._names[TOP], market, market_batch(TOP_SCHEMA, market, columns, base["ts_ns"]))

    def _depths(
        self, market: Market, base: dict[str, Any], packed: PackedRecords, result: BookResult
    ) -> Iterator[Rows]:
        assert result.bids is not None and result.asks is not None, "they were asked for"
        kinds = gather_field(packed, "event_type")
        events = Events(gather_field(packed, "ingest_ts_ns"), base["exchange_ts_ns"], kinds)
        fires = self._bar(market).fires(events)
        if not fires.any():
            return
        columns = {name: column[fires] for name, column in base.items()}
        columns |= {"bids": _levels(result.bids[fires]), "asks": _levels(result.asks[fires])}
        yield Rows(self._names[DEPTH], market, market_batch(DEPTH_SCHEMA, market, columns, columns["ts_ns"]))

    def _bar(self, market: Market) -> TimeBar:
        if market not in self._bars:
            self._bars[market] = TimeBar(self._plan.depth_interval_ns)
        return self._bars[market]

    def _faults(self, market: Market, base: dict[str, Any], result: BookResult) -> Iterator[Rows]:
        for kind, reports, names in (
            ("gap", result.gaps, ("seen", "found")),
            ("drift", result.drifts, ("missing", "extra", "changed")),
        ):
            for one in reports:
                at = int(one["index"])
                row = {"kind": kind, **{name: int(one[name]) for name in names}}
                yield self._fault(market, int(base["seq"][at]), int(base["ts_ns"][at]), row)

    def _lost(self, lost: Gap) -> Rows:
        """Report lost messages; the gap policy decides what that means for the books."""
        policy = GapPolicy(self._plan.settings.gap_policy)
        if policy is GapPolicy.PANIC:
            raise DataLost(
                f"messages {lost.first} to {lost.end - 1} are gone from the queue ({lost.reason}), and books "
                "follow from all of them; keep more, or choose gap policy quarantine or ignore"
            )
        if policy is GapPolicy.QUARANTINE:
            quarantine_books(self._books)
        row = {"kind": "lost", "seen": lost.first, "found": lost.end - 1}
        return self._fault(None, lost.first, 0, row)

    def _fault(self, market: Market | None, seq: int, ts_ns: int, row: dict[str, Any]) -> Rows:
        venue_id, market_id = market or (None, None)
        full = {
            "date": dates(np.array([ts_ns]))[0].as_py() if ts_ns else None,
            "venue_id": venue_id,
            "market_id": market_id,
            "seq": seq,
            "ts_ns": ts_ns,
            **row,
        }
        return Rows(self._names[REPORT], market, pa.RecordBatch.from_pylist([full], schema=REPORT_SCHEMA))


def _rows_of(result: BookResult, chosen: NDArray[np.bool_]) -> BookResult:
    """Return the result with the best prices and levels of the chosen events."""
    return replace(
        result,
        **{
            name: rows[chosen]
            for name in ("top", "bids", "asks")
            if (rows := getattr(result, name)) is not None
        },
    )


def _levels(rows: NDArray[np.void]) -> pa.Array:
    """Return the levels of each row as a list; those of size 0 are beyond the end of the book."""
    is_level = rows["size"] != 0
    ends = np.concatenate(([0], np.cumsum(is_level.sum(axis=1)))).astype(np.int32)
    flat = rows[is_level]
    fields = [pa.array(np.ascontiguousarray(flat[name]).view(np.int64)) for name in ("price", "size")]
    return pa.ListArray.from_arrays(pa.array(ends), pa.StructArray.from_arrays(fields, ["price", "size"]))
