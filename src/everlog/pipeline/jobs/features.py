"""The job `features`: features of every market's book and bars of every symbol's trades, inside Spark tasks.

Books, formulas, triggers and bars are those of `everlog.market`, so the rows are those of
`Replay(queue).features(...)` and `BarBuilder` on one machine, bit for bit. Books and trades are ordered by
ingest time: a bar and the features of its interval are about the same time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from everlog.errors import DataLost
from everlog.market import BookSettings, Market
from everlog.market.bar_builder import SymbolBars
from everlog.market.feature_engine import MarketRows
from everlog.market.feature_rows import Feature, Seq, row_dtype
from everlog.market.features import BAR_COLUMNS
from everlog.market.packing import by_key
from everlog.market.protocol import TRADE, taker_sides
from everlog.market.replay import Messages
from everlog.market.triggers import Always, Trigger
from everlog.pipeline.jobs.market_tasks import (
    LARGEST_BATCH_RECORDS,
    MARKET_FIELDS,
    Rows,
    TableSpec,
    TaskFilter,
    TaskWork,
    computed_batch,
    fill_from_queue,
    signed,
    task_messages,
)
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.market_sources import replay_from, source_path
from everlog.pipeline.tables import schemas
from everlog.pipeline.tables.schemas import FEATURES, with_features
from everlog.seq_ranges import Gap, SeqRange

BAR_FIELDS: Final = pa.schema(
    [
        pa.field("symbol_hash", pa.int64()),
        pa.field("first_seq", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("ts_ns", pa.int64()),
        *(pa.field(name, signed(pa.from_numpy_dtype(BAR_COLUMNS[name]))) for name in BAR_COLUMNS.names or ()),
    ]
)
"""What a bar has before it gets names; a symbol is known by the hash that trades carry."""
BARS: Final = "bars"


class Bars(NamedTuple):
    """Which bars to make of trades: by `time` (in ns), `count` of trades, `volume` or value (`dollar`)."""

    kind: str
    size: float


class FeatureReport(RunReport, kw_only=True):
    """One run: rows of the feature table, and of the bar table."""

    bar_rows: int = 0


def features_of_books(
    spark: SparkSession,
    queue: str,
    lake: str,
    table: str,
    features: Sequence[Feature],
    *,
    trigger: Trigger | None = None,
    settings: BookSettings | None = None,
    bars: Bars | None = None,
    partitions: int | None = None,
) -> FeatureReport:
    """Write the features of every market, a row whenever the trigger fires, partitioned by date and venue.

    `queue` may also be the raw archive of one, or one directory of an archive, here or at an address.
    `GlobalTime` has to be among the features: it says to which day a row belongs. With `bars`, the table
    `bars`, or `<table>_bars` beside a table of another name, gets the bars of all trades; the last bar of a
    symbol is that of the trades so far. The tables always hold one whole run, as those of `replay_books`.
    """
    started_s = time.monotonic()
    work = FeatureWork(tuple(features), trigger or Always(), settings or BookSettings(), bars)
    path = source_path(queue)
    specs = [TableSpec.computed(lake, table, work.schema, path)]
    if bars is not None:
        SymbolBars(*bars)  # refuses what is not possible before Spark has work
        beside = BARS if table == FEATURES.name else f"{table}_{BARS}"
        specs.append(TableSpec.computed(lake, beside, schemas.BARS, path))
    report = FeatureReport(job="features", source=path, table=specs[0].table.path)

    def task(held: SeqRange, tasks: int, number: int) -> Iterator[Rows]:
        yield from work.features(path, held, TaskFilter(tasks, number), specs[0].table.name)
        if bars is not None:
            yield from work.bars(path, held, TaskFilter(tasks, number, trades=True), specs[1].table.name)

    def share(held: SeqRange, tasks: int) -> TaskWork:
        return TaskWork(tasks, partial(task, held, tasks))

    files = fill_from_queue(spark, path, specs, work.name(), report, partitions, share)
    if bars is not None and files is not None:
        report.bar_rows = sum(file["rows"] for file in files[specs[1].table.name])
    report.seconds = time.monotonic() - started_s
    return report


class FeatureWork:
    """What a task computes."""

    def __init__(
        self, chosen: tuple[Feature, ...], fired_by: Trigger, settings: BookSettings, bars: Bars | None
    ) -> None:
        if not any(column.name == "seq" for one in chosen for column in one.columns):
            chosen = (*chosen, Seq())
        self._chosen = chosen
        self._fired_by = fired_by
        self._settings = settings
        self._bars = bars
        dtype = row_dtype(chosen)
        self._names = dtype.names or ()
        fields = [pa.field(name, signed(pa.from_numpy_dtype(dtype[name]))) for name in self._names]
        self.fields = pa.schema([*MARKET_FIELDS, pa.field("ts_ns", pa.int64()), *fields])
        """What tasks compute, before it gets names."""
        self.schema = with_features(fields)

    def name(self) -> str:
        """Return a description that is different for different work."""
        fired_by = type(self._fired_by).__name__, sorted(vars(self._fired_by).items(), key=str)
        return repr([self._names, self._settings, *fired_by, self._bars])

    def features(self, path: str, held: SeqRange, selects: TaskFilter, table: str) -> Iterator[Rows]:
        """Yield the rows of the task's markets."""
        selects_trades = selects.of_trades()
        reads_trades = any(getattr(one, "reads_trades", False) for one in self._chosen)

        def keep(some: Messages) -> np.ndarray[Any, Any]:
            chosen = selects(some) | selects_trades(some) if reads_trades else selects(some)
            return chosen & (some.seq < np.uint64(held.end))

        replay = replace(replay_from(path, held.first), batch_messages=LARGEST_BATCH_RECORDS).where(keep)
        for found in replay.features(self._chosen, self._settings).trigger(self._fired_by).batches():
            if found:
                yield self._joined(table, found)

    def _joined(self, table: str, found: list[MarketRows]) -> Rows:
        """Return the rows of all markets of a batch: one for each market would cost more than its rows."""
        markets = [one.market for one in found]
        dtype = found[0].rows.dtype
        # As bytes without fields: numpy compares the fields of every part that it joins.
        rows = np.concatenate([one.rows.view(f"V{dtype.itemsize}") for one in found]).view(dtype)
        columns = {name: rows[name] for name in self._names} | {"ts_ns": rows["ingest_ts_ns"]}
        counts = [len(one.rows) for one in found]
        for name in Market._fields:
            columns[name] = np.repeat([getattr(market, name) for market in markets], counts)
        return Rows(table, markets, computed_batch(self.fields, columns))

    def bars(self, path: str, held: SeqRange, selects: TaskFilter, table: str) -> Iterator[Rows]:
        """Yield the bars of the task's symbols."""
        assert self._bars is not None, "called only if bars were asked for"
        building, seqs = SymbolBars(*self._bars), _TradeSeqs()
        for some in task_messages(path, held, selects):
            if isinstance(some, Gap):
                raise DataLost(
                    f"messages {some.first} to {some.end - 1} of {path} are gone ({some.reason}) since the "
                    "run began; keep more of the queue, and run it again"
                )
            data, _ = some.batch.joined(None if some.is_whole else some.chosen)
            trades = data.view(TRADE)
            seqs.add(trades["symbol_hash"], some.seq)
            for symbol, bars in building.add(some.timestamp_ns, trades, taker_sides(trades, some.flags)):
                yield _bar_rows(table, symbol, bars, seqs)
        for symbol, bars in building.finish():
            yield _bar_rows(table, symbol, bars, seqs)


class _TradeSeqs:
    """The seqs of the trades of bars: each bar has the next ones of its symbol."""

    def __init__(self) -> None:
        self._waiting: dict[int, NDArray[np.uint64]] = {}

    def add(self, symbols: NDArray[np.uint64], seqs: NDArray[np.uint64]) -> None:
        """Take the trades of a batch."""
        for symbol, places in by_key(symbols):
            before = self._waiting.get(symbol)
            mine = seqs[places]
            self._waiting[symbol] = mine if before is None else np.concatenate((before, mine))

    def take(self, symbol: int, counts: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the first and the last seq of bars with so many trades."""
        waiting, ends = self._waiting[symbol], np.cumsum(counts.astype(np.int64))
        self._waiting[symbol] = waiting[ends[-1] if len(ends) else 0 :]
        return waiting[ends - counts.astype(np.int64)], waiting[ends - 1]


def _bar_rows(table: str, symbol: int, bars: NDArray[np.void], seqs: _TradeSeqs) -> Rows:
    first, last = seqs.take(symbol, bars["trades"])
    hashes = np.full(len(bars), symbol, np.uint64)
    columns = [one.view(np.int64) for one in (hashes, first, last, bars["end_ts_ns"].copy())]
    for name in bars.dtype.names or ():
        columns.append(bars[name].astype(BAR_FIELDS.field(name).type.to_pandas_dtype()))
    return Rows(table, (), pa.RecordBatch.from_arrays([*map(pa.array, columns)], schema=BAR_FIELDS))
