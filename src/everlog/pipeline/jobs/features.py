"""The job `features`: features of every market's book and bars of every symbol's trades, inside Spark tasks.

Books, formulas, triggers and bars are those of `everlog.market`, so the rows are those of
`Replay(queue).features(...)` and `BarBuilder` on one machine, bit for bit. Books and trades are ordered by
ingest time: a bar and the features of its interval are about the same time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from everlog.errors import DataLost
from everlog.market import BookSettings, Market
from everlog.market.bar_builder import SymbolBars
from everlog.market.feature_rows import Feature, row_dtype
from everlog.market.features import BAR_COLUMNS
from everlog.market.market_names import MarketNames
from everlog.market.protocol import TRADE, taker_sides
from everlog.market.replay import Messages, Replay
from everlog.market.triggers import Always, Trigger
from everlog.pipeline.jobs.market_tasks import (
    MARKET_FIELDS,
    Rows,
    TableSpec,
    TaskFilter,
    dates,
    fill_from_queue,
    market_batch,
    signed,
    task_messages,
)
from everlog.pipeline.jobs.report import RunReport
from everlog.pipeline.lake import LakeTable
from everlog.seq_ranges import Gap, SeqRange

BAR_SCHEMA: Final = pa.schema(
    [
        pa.field("date", pa.date32()),
        pa.field("symbol_hash", pa.int64()),
        *(pa.field(name, signed(pa.from_numpy_dtype(BAR_COLUMNS[name]))) for name in BAR_COLUMNS.names or ()),
    ]
)
"""A bar of one symbol's trades, in the partition of the day on which it began.

A symbol is known by the hash that trades carry (`everlog.market.protocol.symbol_hash`), with its bits as they
are: one above 2^63 is negative here.
"""

NAME_FIELDS: Final = (
    pa.field("venue", pa.string()),
    pa.field("symbol", pa.string()),
    pa.field("ingest_time", pa.timestamp("us", "UTC")),
    pa.field("exchange_time", pa.timestamp("us", "UTC")),
    pa.field("tick_size", pa.float64()),
)
"""The last columns of a table of features: names, the times as timestamps, the tick size if it is known."""
NS_PER_US: Final = 1000


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

    `GlobalTime` has to be among the features: it says to which day a row belongs. With `bars`, the table
    `<table>_bars` gets the bars of all trades; the last bar of a symbol is that of the trades so far. The
    tables always hold one whole run, as those of `replay_books`.
    """
    started_s = time.monotonic()
    work = FeatureWork(tuple(features), trigger or Always(), settings or BookSettings(), bars)
    path = os.path.abspath(queue)
    specs = [TableSpec(LakeTable(lake, table), work.schema)]
    if bars is not None:
        SymbolBars(*bars)  # refuses what is not possible before Spark has work
        specs.append(TableSpec(LakeTable(lake, f"{table}_bars"), BAR_SCHEMA, ("date",)))
    report = FeatureReport(job="features", source=path, table=specs[0].table.path)

    def task(held: SeqRange, tasks: int, number: int) -> Iterator[Rows]:
        yield from work.features(path, held, TaskFilter(tasks, number), specs[0].table.name)
        if bars is not None:
            yield from work.bars(path, held, TaskFilter(tasks, number, trades=True), specs[1].table.name)

    files = fill_from_queue(spark, path, specs, work.name(), report, partitions, task)
    if bars is not None and files is not None:
        report.bar_rows = sum(file["rows"] for file in files[specs[1].table.name])
    report.seconds = time.monotonic() - started_s
    return report


class FeatureWork:
    """What a task computes."""

    def __init__(
        self, chosen: tuple[Feature, ...], fired_by: Trigger, settings: BookSettings, bars: Bars | None
    ) -> None:
        self._chosen = chosen
        self._fired_by = fired_by
        self._settings = settings
        self._bars = bars
        dtype = row_dtype(chosen)
        self._names = dtype.names or ()
        fields = [pa.field(name, signed(pa.from_numpy_dtype(dtype[name]))) for name in self._names]
        self.schema = pa.schema([*MARKET_FIELDS, *fields, *NAME_FIELDS])

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

        names = MarketNames([path])
        replay = Replay(path, from_seq=held.first).where(keep)
        for market, rows, _ in replay.features(self._chosen, self._settings).trigger(self._fired_by).tables():
            columns = {name: rows[name] for name in self._names} | _named(names, market, rows)
            yield Rows(table, market, market_batch(self.schema, market, columns, rows["ingest_ts_ns"]))

    def bars(self, path: str, held: SeqRange, selects: TaskFilter, table: str) -> Iterator[Rows]:
        """Yield the bars of the task's symbols."""
        assert self._bars is not None, "called only if bars were asked for"
        building = SymbolBars(*self._bars)
        for some in task_messages(path, held, selects):
            if isinstance(some, Gap):
                raise DataLost(
                    f"messages {some.first} to {some.end - 1} of {path} are gone ({some.reason}) since the "
                    "run began; keep more of the queue, and run it again"
                )
            data, _ = some.batch.joined(some.chosen)
            trades = data.view(TRADE)
            for symbol, bars in building.add(some.timestamp_ns, trades, taker_sides(trades, some.flags)):
                yield _bar_rows(table, symbol, bars)
        for symbol, bars in building.finish():
            yield _bar_rows(table, symbol, bars)


def _named(names: MarketNames, market: Market, rows: np.ndarray[Any, Any]) -> dict[str, pa.Array]:
    """Return the columns of `NAME_FIELDS`."""
    count = len(rows)
    columns = {
        "venue": pa.repeat(pa.scalar(names.venue(market)), count),
        "symbol": pa.repeat(pa.scalar(names.symbol(market)), count),
        "tick_size": pa.repeat(pa.scalar(names.tick_size(market), pa.float64()), count),
    }
    for name in ("ingest", "exchange"):
        times_us = (rows[f"{name}_ts_ns"] // np.uint64(NS_PER_US)).astype(np.int64)
        columns[f"{name}_time"] = pa.array(times_us, mask=times_us == 0).cast(pa.timestamp("us", "UTC"))
    return columns


def _bar_rows(table: str, symbol: int, bars: np.ndarray[Any, np.dtype[np.void]]) -> Rows:
    hashes = np.full(len(bars), symbol, np.uint64).view(np.int64)
    columns = [
        bars[name].astype(BAR_SCHEMA.field(name).type.to_pandas_dtype()) for name in bars.dtype.names or ()
    ]
    arrays = [dates(bars["start_ts_ns"]), pa.array(hashes), *map(pa.array, columns)]
    return Rows(table, None, pa.RecordBatch.from_arrays(arrays, schema=BAR_SCHEMA))
