"""The command `everlog book plot`: a market's prices, imbalance, depth, or an order's place in its queue.

Owns its options and what it prints; the numbers are taken by `everlog.market.book_pictures`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from everlog.cli import output
from everlog.cli.book_options import Mode, book_settings
from everlog.cli.export import chosen_replays
from everlog.cli.options import AsJson, EndTime, QueuePath, StartTime
from everlog.cli.output import counted, printable, reporting
from everlog.queue import Queue, StartMode
from everlog.queue.seq_bounds import SeqBounds


def plot_command(  # noqa: PLR0913, PLR0917
    path: QueuePath,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The plot: .svg or .png.")],
    kind: Annotated[
        str,
        typer.Option("--kind", metavar="KIND", help="depth (a heat map), mid, imbalance or queue-position."),
    ] = "depth",
    symbol: Annotated[
        str | None, typer.Option("--symbol", metavar="S", help="BTCUSDT, binance:BTCUSDT, or its number.")
    ] = None,
    start: StartTime = None,
    end: EndTime = None,
    levels: Annotated[int, typer.Option("--levels", "-n", min=1, max=1000, help="Levels of each side.")] = 20,
    points: Annotated[
        int, typer.Option("--points", min=2, max=10_000, help="So many points in time at most.")
    ] = 600,
    order: Annotated[
        int | None,
        typer.Option(
            "--order", metavar="ID", help="Whose queue position. Default: the order that waited longest."
        ),
    ] = None,
    mode: Mode = None,
    as_json: AsJson = False,
) -> None:
    """Draw a market of a queue: depth, mid and spread, imbalance, or the queue position of an order.

    Books go on over gaps and unknown orders, as `everlog book show` does.
    """
    from everlog.market.book_pictures import picture
    from everlog.market.market_names import MarketChoice, MarketNames
    from everlog.market.plots import check_plots, draw

    with reporting(as_json=as_json):
        check_plots(out)
        if kind == "queue-position" and mode is None:
            mode = "l3"
        names = MarketNames([path], [] if symbol is None else [MarketChoice.parse(symbol)])
        (replay,) = chosen_replays([path], start, end, symbol)
        step_ns = max(1, _span_ns(path, start, end) // points)
        drawn = picture(
            kind,
            replay,
            book_settings("ignore", "skip", mode),
            step_ns,
            levels,
            order,
            names.symbol,
        )
        title = f"{names.venue(drawn.market)} {names.symbol(drawn.market)}: {drawn.what}"
        draw(out, title, drawn.panels, drawn.depth)
        count = len(drawn.panels[0].series[0].times_ns)
        venue, shown = names.venue(drawn.market), names.symbol(drawn.market)
        document = {"out": out, "kind": kind, "venue": venue, "symbol": shown, "points": count}
        text = f"{title}: {counted(count, 'point')} in {printable(out)}"
        output.print_result(document, text, as_json=as_json)


def _span_ns(path: str, start: str | None, end: str | None) -> int:
    """Return how much time a plot is about."""
    from everlog.market.times import parse_time_ns

    times = [0, 0]
    with Queue.open_subscriber(path, None, StartMode.EARLIEST) as reader:
        bounds = SeqBounds(reader)
        for place, seq in enumerate((bounds.first, bounds.last)):
            if seq is not None and reader.seek_seq(seq) and (view := reader.next()) is not None:
                times[place] = view.timestamp_ns
    return max(0, min(times[1], parse_time_ns(end, times[1])) - max(times[0], parse_time_ns(start)))
