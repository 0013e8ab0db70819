"""The job `replay`: the books of every market of a queue, built inside Spark tasks, into tables.

The run over a whole queue; the run that follows live data is `everlog.pipeline.jobs.live_replay`. Books are
those of `everlog.market`, so the numbers are the same as on one machine. Three tables: `<table>` has the top
of the book after each event, `<table>_depth` the best levels once in an interval, `<table>_report` every gap,
and every snapshot from which the book had drifted away.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from everlog.clock import NS_PER_S
from everlog.errors import DataLost, InvalidConfig
from everlog.market import BookSet, BookSettings, GapPolicy, Market, Outputs
from everlog.market.book_results import EventStatus
from everlog.market.book_set import MarketResult
from everlog.market.book_states import load_books, quarantine_books, save_books
from everlog.market.packing import PackedRecords, gather_field, gather_headers
from everlog.market.replay import Messages
from everlog.market.result_memory import ResultMemory
from everlog.market.triggers import MarketBars
from everlog.pipeline.jobs.market_tasks import (
    MARKET_FIELDS,
    Files,
    Rows,
    TableSpec,
    TaskFilter,
    TaskWork,
    computed_batch,
    fill_from_queue,
    task_messages,
)
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.jobs.time_spans import BookStates, Spans
from everlog.pipeline.market_sources import source_path
from everlog.pipeline.spark_tasks import run_in_tasks
from everlog.pipeline.tables import schemas as tables
from everlog.seq_ranges import Gap, SeqRange

DEPTH_LEVELS: Final = 10
TOP: Final = "top"
DEPTH: Final = "depth"
REPORT: Final = "report"

TOP_FIELDS: Final = pa.schema(
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
"""What books give: prices and sizes are integers. A size of 0 means an empty side."""

_LEVELS: Final = pa.list_(pa.struct([pa.field("price", pa.int64()), pa.field("size", pa.int64())]))
DEPTH_FIELDS: Final = pa.schema([*list(TOP_FIELDS)[:7], pa.field("bids", _LEVELS), pa.field("asks", _LEVELS)])
"""The best levels of both sides, the best one first; fewer where the book has fewer."""

REPORT_FIELDS: Final = pa.schema(
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

    def tables(self, lake: str, table: str, queue: str) -> dict[str, TableSpec]:
        """Return the tables by what they hold, with the names of markets as they are known now."""
        found = {TOP: TableSpec.computed(lake, table, tables.QUOTES, queue)}
        if self.depth:
            found[DEPTH] = TableSpec.computed(lake, f"{table}_depth", tables.DEPTH, queue)
        found[REPORT] = TableSpec.computed(lake, f"{table}_report", tables.FAULTS, queue)
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
    spans: int | None = None,
) -> ReplayReport:
    """Build the books of every market from all messages that the queue holds now; fill the three tables.

    `queue` may also be the raw archive of one, or one directory of an archive, here or at an address.
    The tables always hold one whole run: a run over the same messages changes nothing, one over more replaces
    them. Their columns are those of `quotes`, `quotes_depth` and `quotes_report`, whatever they are called.
    `partitions` are the tasks, which share the markets. Where a few markets have most of the events, tasks
    also take `spans` of the queue each; by default a sample of a large queue decides. The rows are the same.
    """
    started_s = time.monotonic()
    plan = ReplayPlan(settings or BookSettings(), depth, depth_interval_ns)
    path = source_path(queue)
    specs = plan.tables(lake, table, path)
    report = ReplayReport(job="replay", source=path, table=specs[TOP].table.path)
    names = {kind: spec.table.name for kind, spec in specs.items()}
    states = BookStates(specs[TOP].table.place.parent.below(f"{table}.spans"))

    def share(held: SeqRange, tasks: int) -> TaskWork:
        cut = Spans.of(path, held, tasks, spans)
        work = _SpannedReplay(path, plan, names, cut, states)
        if cut.parts == 1:
            return TaskWork(cut.groups, work.replay)
        prepare = partial(run_in_tasks, spark, cut.groups, work.store_books)
        return TaskWork(cut.parts * cut.groups, work.replay, cut.groups, prepare)

    try:
        files = fill_from_queue(spark, path, [*specs.values()], repr(plan), report, partitions, share)
    finally:
        states.drop()  # also those of a run that was killed
    count_replayed(report, specs, files)
    report.seconds = time.monotonic() - started_s
    return report


class _SpannedReplay(NamedTuple):
    """The work of tasks of which each has a span of the queue and a group of its markets."""

    path: str
    plan: ReplayPlan
    names: dict[str, str]
    spans: Spans
    states: BookStates

    def store_books(self, group: int) -> Iterator[None]:
        """Store the books of a group of markets before each span but the first."""
        books = BookTables(self.plan, self.names)
        for span in self.spans.ranges()[:-1]:
            books.advance(self.path, span, self.spans.filter(group))
            self.states.write(span.end, group, books.state())
        yield None

    def replay(self, number: int) -> Iterator[Rows]:
        """Yield the rows of a task."""
        span, group = self.spans.of_task(number)
        is_first = span.first == self.spans.held.first
        state = None if is_first else self.states.read(span.first, group)
        yield from BookTables(self.plan, self.names, state).replay(self.path, span, self.spans.filter(group))


def count_replayed(report: ReplayReport, specs: dict[str, TableSpec], files: Files | None) -> None:
    """Add the rows of depth and report tables to the report; None if the run had been committed before."""
    if files is None:
        return
    if DEPTH in specs:
        report.depth_rows += sum(file["rows"] for file in files[specs[DEPTH].table.name])
    faults = specs[REPORT].table
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
    began_in_middle: bool = False


class _Applied(NamedTuple):
    """The events of a batch in the order of markets, and what each did to its book.

    A batch may have a few events of each of thousands of markets, so nothing here is done market by market
    that can be done for all of them at once.
    """

    results: dict[Market, MarketResult]
    counts: NDArray[np.int64]
    """How many events there are of each market."""
    places: NDArray[np.int64]
    """The row of each event in the result of its market."""
    columns: dict[str, NDArray[Any]]
    """What all tables have of an event."""

    @classmethod
    def of(cls, some: Messages, packed: PackedRecords, results: dict[Market, MarketResult]) -> _Applied:
        """Return all events of the messages that were applied."""
        counts = np.fromiter((len(one.events) for one in results.values()), np.int64, len(results))
        events = np.concatenate([one.events for one in results.values()])

        def spread(values: Iterable[int]) -> NDArray[np.int64]:
            return np.repeat(np.fromiter(values, np.int64, len(results)), counts)

        columns = {
            "venue_id": spread(market.venue_id for market in results),
            "market_id": spread(market.market_id for market in results),
            "seq": some.seq[events],
            "ts_ns": some.timestamp_ns[events],
            "exchange_ts_ns": gather_field(packed, "exchange_ts_ns")[events],
            "ingest_ts_ns": gather_field(packed, "ingest_ts_ns")[events],
            "price_scale": spread(one.result.price_scale for one in results.values()),
            "size_scale": spread(one.result.size_scale for one in results.values()),
        }
        begins = np.cumsum(counts) - counts
        return cls(results, counts, np.arange(len(events)) - np.repeat(begins, counts), columns)

    def where(self, chosen: NDArray[np.bool_]) -> _Applied:
        """Return some of the events; markets may have none left."""
        market = np.repeat(np.arange(len(self.counts)), self.counts)[chosen]
        columns = {name: column[chosen] for name, column in self.columns.items()}
        counts = np.bincount(market, minlength=len(self.counts))
        return _Applied(self.results, counts, self.places[chosen], columns)

    def outputs(self, name: str) -> NDArray[Any]:
        """Return an output of the books, a row for each event."""
        ends = np.cumsum(self.counts)
        begins = (ends - self.counts).tolist()
        parts = []
        for one, begin, end in zip(self.results.values(), begins, ends.tolist(), strict=True):
            rows = getattr(one.result, name)
            # As bytes without fields: numpy compares the fields of every part that it joins.
            parts.append(rows.view(f"V{rows.itemsize}"))
            if end - begin < len(rows):
                parts[-1] = parts[-1][self.places[begin:end]]
        return np.concatenate(parts).view(rows.dtype)


class BookTables:
    """The books of a task, and the rows that its messages produce."""

    def __init__(self, plan: ReplayPlan, names: dict[str, str], state: bytes | None = None) -> None:
        """`names` are the tables by what they hold; `state` is from `state()` of an earlier one."""
        self._plan = plan
        self._names = names
        # Only in quarantine are events passed over; elsewhere books are faster without their statuses.
        can_skip = plan.settings.gap_policy == GapPolicy.QUARANTINE
        self._want = Outputs(depth=plan.depth, drift=True, statuses=can_skip)
        self._bars = MarketBars(plan.depth_interval_ns)
        self._memory = ResultMemory()
        self._is_new = state is None
        self._began_in_middle = False
        if state is None:
            self._books = BookSet(plan.settings)
            return
        known = msgspec.msgpack.decode(state, type=_State)
        self._books = load_books(known.books, plan.settings)
        if known.began_in_middle:
            self._begin_in_middle()
        for venue_id, market_id, bucket in known.buckets:
            self._bars.last[Market(venue_id, market_id)] = bucket

    def state(self) -> bytes:
        """Return everything that later rows depend on."""
        buckets = [(*market, bucket) for market, bucket in self._bars.last.items()]
        return msgspec.msgpack.encode(_State(save_books(self._books), buckets, self._began_in_middle))

    def replay(self, path: str, wanted: SeqRange, selects: TaskFilter) -> Iterator[Rows]:
        """Apply the messages of a range that belong to the task; yield rows."""
        for some in self._messages(path, wanted, selects):
            yield from self._apply(some)

    def advance(self, path: str, wanted: SeqRange, selects: TaskFilter) -> None:
        """Apply them for the state behind them alone: that of `replay`, at a fraction of the cost."""
        want = Outputs(top=False, statuses=self._want.statuses)
        for some in self._messages(path, wanted, selects):
            if isinstance(some, Gap):
                self._lost(some)
                continue
            results = self._books.apply_packed(some.packed, want, self._memory)
            if results:
                applied = self._shown(_Applied.of(some, some.packed, results))
                if len(applied.places):
                    self._fires(applied)

    def _messages(self, path: str, wanted: SeqRange, selects: TaskFilter) -> Iterator[Messages | Gap]:
        if self._is_new and wanted.first > 0:
            self._begin_in_middle()
        self._is_new = False
        return task_messages(path, wanted, selects, self._books)

    def _begin_in_middle(self) -> None:
        self._began_in_middle = True
        self._books.begin_in_middle()

    def _apply(self, some: Messages | Gap) -> Iterator[Rows]:
        """Apply messages or a gap; yield rows."""
        if isinstance(some, Gap):
            yield self._lost(some)
            return
        packed = some.packed
        results = self._books.apply_packed(packed, self._want, self._memory)
        if results:
            yield from self._faults(some, results)
            yield from self._states(_Applied.of(some, packed, results))
        for gap in self._books.channel_gaps:
            (head,) = gather_headers(packed.take(np.array([gap.event])))
            market = Market(gap.venue_id, int(head["market_id"]))
            row = {"kind": "gap", "stream_id": gap.stream_id, "seen": gap.seen, "found": gap.found}
            yield self._fault(market, int(some.seq[gap.event]), int(some.timestamp_ns[gap.event]), row)

    def _states(self, applied: _Applied) -> Iterator[Rows]:
        """Yield what the book was after each event."""
        applied = self._shown(applied)
        if not len(applied.places):
            return
        top = applied.outputs("top")
        yield self._rows(TOP, TOP_FIELDS, applied, {name: top[name] for name in top.dtype.names or ()})
        if not self._plan.depth:
            return
        fires = self._fires(applied)
        if fires.any():
            chosen = applied.where(fires)
            sides = {name: _levels(chosen.outputs(name)) for name in ("bids", "asks")}
            yield self._rows(DEPTH, DEPTH_FIELDS, chosen, sides)

    def _shown(self, applied: _Applied) -> _Applied:
        """Return the events that have rows: a book in quarantine is not that of its market."""
        if not self._want.statuses:
            return applied
        return applied.where(applied.outputs("statuses") != EventStatus.QUARANTINED)

    def _fires(self, applied: _Applied) -> NDArray[np.bool_]:
        """Return which events have a row of levels."""
        return self._bars.fires([*applied.results], applied.counts, applied.columns["ingest_ts_ns"])

    def _rows(self, kind: str, schema: pa.Schema, applied: _Applied, more: dict[str, Any]) -> Rows:
        columns = applied.columns | more
        return Rows(self._names[kind], applied.results.keys(), computed_batch(schema, columns))

    def _faults(self, some: Messages, results: dict[Market, MarketResult]) -> Iterator[Rows]:
        for market, (events, result) in results.items():
            for kind, reports, names in (
                ("gap", result.gaps, ("seen", "found")),
                ("drift", result.drifts, ("missing", "extra", "changed")),
            ):
                for one in reports:
                    at = int(events[int(one["index"])])
                    row = {"kind": kind, **{name: int(one[name]) for name in names}}
                    yield self._fault(market, int(some.seq[at]), int(some.timestamp_ns[at]), row)

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
            "venue_id": venue_id,
            "market_id": market_id,
            "seq": seq,
            "ts_ns": ts_ns or None,
            **row,
        }
        markets = () if market is None else (market,)
        return Rows(self._names[REPORT], markets, pa.RecordBatch.from_pylist([full], schema=REPORT_FIELDS))


def _levels(rows: NDArray[np.void]) -> pa.Array:
    """Return the levels of each row as a list; those of size 0 are beyond the end of the book."""
    is_level = rows["size"] != 0
    ends = np.concatenate(([0], np.cumsum(is_level.sum(axis=1)))).astype(np.int32)
    flat = rows[is_level]
    fields = [pa.array(np.ascontiguousarray(flat[name]).view(np.int64)) for name in ("price", "size")]
    return pa.ListArray.from_arrays(pa.array(ends), pa.StructArray.from_arrays(fields, ["price", "size"]))
