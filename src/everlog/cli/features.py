"""The command `everlog features`: features or bars of queues as one table, as files by day, or as a plot.

Owns what it prints and which options go together. The rows are those of `everlog.market.replay`, which the
Spark job uses too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from everlog.cli import output
from everlog.cli.book_options import (
    BAR_KINDS,
    ChosenFeatures,
    Gaps,
    Mode,
    UnknownOrders,
    book_settings,
    parse_bars,
    parse_duration_ns,
)
from everlog.cli.export import chosen_replays
from everlog.cli.options import AsJson, EndTime, StartTime
from everlog.cli.output import counted, printable, reporting
from everlog.clock import NS_PER_S, SystemClock
from everlog.errors import InvalidConfig
from everlog.market.replay import FeatureReplay, Replay, ReplayStats

if TYPE_CHECKING:
    from everlog.market.book_set import BookSettings, Market
    from everlog.market.feature_engine import MarketRows
    from everlog.market.market_names import MarketNames
    from everlog.market.plots import Panel

POINTS_MAX: Final = 4000
"""Of a line in a plot; of more rows every second one is left out, again and again."""
FAULTS: Final = {
    "crossed": "events with a crossed book (an auction, or events are missing)",
    "gaps": "gaps",
    "skipped": "skipped events",
    "unknown_orders": "unknown orders",
}
_UNPLOTTED: Final = frozenset({"seq", "ingest_ts_ns", "exchange_ts_ns"})

Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help="Queues and archives, which are merged by receive time."),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", metavar="FILE|DIR", help="A table (.parquet, .csv, .arrow), or a folder of files by day."
    ),
]
Symbols = Annotated[
    str | None,
    typer.Option(
        "--symbols", metavar="NAMES", help="Only these: BTCUSDT,binance:ETHUSDT, or numbers of markets."
    ),
]
Every = Annotated[
    str,
    typer.Option(
        "--every",
        metavar="EVENT|TRADE|TIME",
        help="A row after every event, every trade, or once in 1s, 100ms.",
    ),
]


@dataclass
class _Result:
    """What was written, for the report."""

    rows: int = 0
    columns: list[str] = field(default_factory=list)
    markets: dict[tuple[str, str], int] = field(default_factory=dict)
    """Rows by venue and symbol."""
    faults: dict[str, int] = field(default_factory=dict)


def features_command(  # noqa: PLR0913, PLR0917
    sources: Sources,
    out: Out = None,
    chosen: ChosenFeatures = None,
    every: Every = "event",
    bars: Annotated[
        str | None,
        typer.Option("--bars", metavar="KIND:SIZE", help=f"Bars of trades instead of features: {BAR_KINDS}."),
    ] = None,
    start: StartTime = None,
    end: EndTime = None,
    symbols: Symbols = None,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Also draw the columns: .svg or .png.")
    ] = None,
    gaps: Gaps = "panic",
    unknown_orders: UnknownOrders = "fail",
    mode: Mode = None,
    as_json: AsJson = False,
) -> None:
    """Compute features of order books and trades, or bars of trades, without Spark.

    A table has the rows of all symbols in the order of time, with seq, symbol, venue and times. The numbers
    are those of `everlog pipeline features`, bit for bit.
    """
    with reporting(as_json=as_json):
        clock = SystemClock()
        started_ns = clock.monotonic_ns()
        replays = chosen_replays(sources, start, end, symbols)
        if out is None and plot is None:
            raise InvalidConfig("say where to: --out FILE, --plot FILE, or both")
        if plot is not None:
            from everlog.market.plots import check_plots

            check_plots(plot)
        names = _names(sources, symbols)
        if bars is not None:
            if plot is not None or out is None:
                raise InvalidConfig("bars go to a table: --bars needs --out FILE, and has no --plot")
            result = _write_bars(replays, parse_bars(bars), out, names, shows=not as_json)
        else:
            settings = book_settings(gaps, unknown_orders, mode)
            features = _features(replays, chosen, every, settings).also(*replays[1:])
            result = _write_features(features, out, plot, names, shows=not as_json)
        _report(result, out, plot, (clock.monotonic_ns() - started_ns) / NS_PER_S, as_json=as_json)


def _names(sources: Sequence[str], symbols: str | None) -> MarketNames:
    from everlog.market.market_names import MarketChoice, MarketNames

    return MarketNames(sources, [MarketChoice.parse(name) for name in symbols.split(",")] if symbols else [])


def _features(replays: list[Replay], chosen: str | None, every: str, settings: BookSettings) -> FeatureReplay:
    from everlog.market.feature_choice import parse_features
    from everlog.market.triggers import TRADE_MESSAGE, Always, EventTypes, TimeBar, Trigger

    trigger: Trigger = Always()
    if every == "trade":
        trigger = EventTypes(TRADE_MESSAGE)
    elif every != "event":
        trigger = TimeBar(parse_duration_ns(every))
    features = parse_features(f"seq,time,{chosen or 'best,standard'}")
    return replays[0].features(features, settings).trigger(trigger)


# --- Writing --------------------------------------------------------------------------------------------


def _write_features(
    features: FeatureReplay, out: str | None, plot: str | None, names: MarketNames, *, shows: bool
) -> _Result:
    """Write the table or the files, then the plot; a replay that fails leaves none of them."""
    from everlog.market.feature_files import FeatureFiles
    from everlog.market.feature_rows import row_dtype
    from everlog.market.feature_table import FeatureTable, TableFile

    dtype = row_dtype(features.chosen)
    result = _Result(columns=list(dtype.names or ()))
    lines = None if plot is None else _Lines(result.columns)

    def seen(stats: ReplayStats) -> Iterator[list[MarketRows]]:
        for parts in features.batches(stats):
            for market, rows, _ in parts:
                key = names.venue(market), names.symbol(market)
                result.markets[key] = result.markets.get(key, 0) + len(rows)
                result.rows += len(rows)
                if lines is not None:
                    lines.add(market, rows)
            yield parts

    replays = (features.replay, *features.others)
    with _progress(replays, shows=shows) as (stats, follow):
        if out is None:
            for _ in follow(seen(stats)):
                pass
        elif os.path.splitext(out)[1] and not os.path.isdir(out):
            table = FeatureTable(dtype, names)
            result.columns = list(table.schema.names)
            with TableFile(out, table.schema) as file:
                for parts in follow(seen(stats)):
                    file.write(table.batch(parts))
        else:
            with FeatureFiles(out, dtype, names.symbol) as files:
                for parts in follow(seen(stats)):
                    for market, rows, _ in parts:
                        files.write(market, rows)
    result.faults = {name: count for name, count in stats.faults.items() if count}
    if plot is not None and lines is not None:
        from everlog.market.plots import draw

        draw(plot, ", ".join(symbol for _, symbol in sorted(result.markets)), lines.panels(names))
    return result


def _write_bars(
    replays: list[Replay], bars: tuple[str, float], out: str, names: MarketNames, *, shows: bool
) -> _Result:
    from everlog.market.bar_builder import SymbolBars, trades_of
    from everlog.market.feature_table import TableFile, bar_batch, bar_schema

    building = SymbolBars(*bars)
    schema = bar_schema()
    result = _Result(columns=list(schema.names))
    with _progress(replays, shows=shows) as (stats, follow), TableFile(out, schema) as file:

        def write(complete: Iterator[tuple[int, NDArray[np.void]]]) -> None:
            for value, rows in complete:
                symbol = names.symbol_of_trades(value)
                file.write(bar_batch(symbol, rows))
                result.rows += len(rows)
                result.markets[("", symbol)] = result.markets.get(("", symbol), 0) + len(rows)

        for batch in follow(trades_of(replays)):
            stats.read += len(batch.trades)
            write(building.add(*batch))
        write(building.finish())
    return result


class _Lines:
    """The columns of each market for a plot, thinned out."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = [name for name in columns if name not in _UNPLOTTED]
        self._parts: dict[Market, list[NDArray[np.void]]] = {}

    def add(self, market: Market, rows: NDArray[np.void]) -> None:
        """Take rows, and drop every second one while there are too many."""
        parts = self._parts.setdefault(market, [])
        parts.append(rows)
        if sum(map(len, parts)) > 4 * POINTS_MAX:
            parts[:] = [np.concatenate(parts)[::2]]

    def panels(self, names: MarketNames) -> list[Panel]:
        """Return a panel for each column, with a line for each market."""
        from everlog.market.plots import Panel, Series

        found = {market: np.concatenate(parts) for market, parts in sorted(self._parts.items())}
        thin = {market: rows[:: -(-len(rows) // POINTS_MAX)] for market, rows in found.items()}
        shown = [
            name for name in self._columns if not name.endswith(("_size", "_price")) or name == "mid_price"
        ]
        return [
            Panel(
                name,
                [
                    Series(
                        f"{names.symbol(market)} {name}", rows["ingest_ts_ns"], rows[name].astype(np.float64)
                    )
                    for market, rows in thin.items()
                ],
            )
            for name in shown or self._columns
        ]


# --- What a person sees ---------------------------------------------------------------------------------


@contextmanager
def _progress(replays: Sequence[Replay], *, shows: bool) -> Iterator[tuple[ReplayStats, Any]]:
    """Give counts, and a function that shows them while an iterator runs, on standard error."""
    stats = ReplayStats()
    is_shown = shows and sys.stderr.isatty()
    columns = (TextColumn("messages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not is_shown) as progress:
        total = _messages_in(replays) if is_shown else None
        task = progress.add_task("messages", total=total)

        def follow(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                progress.update(task, completed=stats.read)
                yield batch

        yield stats, follow


def _messages_in(replays: Sequence[Replay]) -> int | None:
    """Return how many messages queues hold; None if one is an archive."""
    from everlog.queue import Queue, StartMode
    from everlog.queue.seq_bounds import SeqBounds

    count = 0
    for one in replays:
        if one.reader is not None:
            return None
        with Queue.open_subscriber(one.path, None, StartMode.EARLIEST) as reader:
            bounds = SeqBounds(reader)
        count += 0 if bounds.first is None or bounds.last is None else bounds.last - bounds.first + 1
    return count


def _report(result: _Result, out: str | None, plot: str | None, elapsed_s: float, *, as_json: bool) -> None:
    markets = [
        {"venue": venue, "symbol": symbol, "rows": rows}
        for (venue, symbol), rows in sorted(result.markets.items())
    ]
    document: dict[str, Any] = {"out": out, "plot": plot, "rows": result.rows, "columns": result.columns}
    rate = result.rows / max(elapsed_s, 1e-9)
    where = " and ".join(printable(path) for path in (out, plot) if path is not None)
    text = (
        f"{counted(result.rows, 'row')} of {counted(len(markets), 'symbol')} in {elapsed_s:.2f} s "
        f"({rate:,.0f} rows/s) in {where}"
    )
    document |= {"markets": markets, "elapsed_s": round(elapsed_s, 3), "faults": result.faults}
    output.print_result(document, text, as_json=as_json)
    if result.faults and not as_json:
        words = ", ".join(f"{count} {FAULTS[name]}" for name, count in sorted(result.faults.items()))
        output.print_warning("book_faults", f"behind the rows are {words}", as_json=False)
    if not result.rows and not as_json:
        output.print_warning("no_rows", "nothing that was chosen is in these sources", as_json=False)
