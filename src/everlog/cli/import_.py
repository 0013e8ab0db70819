"""The commands `everlog import` and `everlog simulate`: market data into a queue.

Owns what they print and the shape of their JSON. The work is done by `everlog.market.importing` and
`everlog.market.venues.simulated`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.progress import (
    DownloadColumn,
    TaskProgressColumn,
    TimeRemainingColumn,
)

from everlog.cli import output
from everlog.cli.options import AsJson
from everlog.cli.output import Table, human_bytes, printable, reporting
from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.errors import InvalidConfig
from everlog.market.importing import SEGMENT_SIZE, ImportRequest, ImportResult, ImportRun
from everlog.market.symbols import record_symbols
from everlog.market.venues.interface import ImportOptions
from everlog.market.venues.simulated import KINDS, START_NS, SimulatedVenue
from everlog.queue import Queue, QueueWriter
from everlog.queue.config import WriterConfig


class FormatName(StrEnum):
    """The formats on the command line; each is one of `everlog.feeds.captures.IMPORTERS`."""

    TARDIS_BOOK = "tardis-book"
    TARDIS_TRADES = "tardis-trades"
    TARDIS_QUOTES = "tardis-quotes"
    TARDIS_SNAPSHOTS = "tardis-snapshots"
    SZSE = "szse"
    DBN = "dbn"
    LOBSTER = "lobster"
    ITCH = "itch"
    BYBIT = "bybit"
    BINANCE_TRADES = "binance-trades"
    BINANCE_AGG_TRADES = "binance-agg-trades"
    BINANCE_BOOK_DEPTH = "binance-book-depth"
    BINANCE_KLINES = "binance-klines"
    CAPTURE = "capture"


_READ_COLUMNS = (DownloadColumn(binary_units=True), TimeRemainingColumn())

QueueOption = Annotated[
    str, typer.Option("--queue", help="Directory of the queue; made if there is none.", metavar="DIR")
]


# -- import --------------------------------------------------------------------------------


def import_command(  # noqa: PLR0913, PLR0917
    format_name: Annotated[FormatName, typer.Argument(metavar="FORMAT", help="What the files are.")],
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files, plain, .gz, .zst, .zip or .7z as they are.")
    ],
    queue: QueueOption,
    force: Annotated[
        bool, typer.Option("--force", help="Import again: remove the earlier import's events first.")
    ] = False,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Set bad rows aside in a quarantine file and go on.")
    ] = False,
    symbol: Annotated[str | None, typer.Option(help="Symbol, where the file does not tell it.")] = None,
    venue: Annotated[str | None, typer.Option(help="Venue, where the file does not tell it.")] = None,
    date: Annotated[
        str | None, typer.Option(help="Day as YYYY-MM-DD, where the file does not tell it.")
    ] = None,
    price_scale: Annotated[
        int | None,
        typer.Option(min=0, max=18, help="Decimals of L2 prices; default: as many as each event needs."),
    ] = None,
    size_scale: Annotated[
        int | None,
        typer.Option(min=0, max=18, help="Decimals of L2 sizes; default: as many as each event needs."),
    ] = None,
    full_channel: Annotated[
        bool, typer.Option("--full-channel", help="szse: the files hold whole channels; a gap is an error.")
    ] = False,
    channel_dir: Annotated[
        str | None,
        typer.Option("--channels", metavar="DIR", help="szse: also write channel_<n>.csv files here."),
    ] = None,
    allow_unordered: Annotated[
        bool, typer.Option("--allow-unordered", help="Keep and count rows that are out of order or repeated.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import market data files into a queue, each file once.

    A file that the queue holds already is not imported again; its earlier numbers are shown. An
    import that fails leaves nothing in the queue, and one that was killed is removed by the next.
    """
    with reporting(as_json=as_json):
        from everlog.feeds.captures import IMPORTERS

        options = ImportOptions(
            venue=venue,
            symbol=symbol,
            date=date,
            price_scale=price_scale,
            size_scale=size_scale,
            full_channel=full_channel,
            allow_unordered=allow_unordered,
        )
        request = ImportRequest(
            format=format_name.value,
            paths=files,
            queue=queue,
            options=options,
            force=force,
            lenient=lenient,
            channel_dir=channel_dir,
        )
        clock = SystemClock()
        started_ns = clock.monotonic_ns()
        total = sum(os.stat(path).st_size for path in files if os.path.exists(path))
        with output.progress("importing", total, *_READ_COLUMNS, as_json=as_json) as advance:
            results = ImportRun(request, clock=clock, advance=advance, importers=IMPORTERS).run()
        elapsed_s = (clock.monotonic_ns() - started_ns) / NS_PER_S
        _report(queue, files, results, elapsed_s, as_json=as_json)


def _report(
    queue: str, files: list[str], results: list[ImportResult], elapsed_s: float, *, as_json: bool
) -> None:
    for result in results:
        for note in result.notes:
            named = note if note.startswith(tuple(files)) else f"{result.entry.source_path}: {note}"
            output.print_warning("import_note", named, as_json=as_json)
    if as_json:
        output.print_json({"queue": queue, "imports": [_result_json(result) for result in results]})
    else:
        _print_results(queue, results, elapsed_s)


def _print_results(queue: str, results: list[ImportResult], elapsed_s: float) -> None:
    columns = (
        "file",
        "state",
        "venue",
        "symbol",
        "date",
        "rows>",
        "events>",
        "dropped>",
        "gaps>",
        "quarantined>",
    )
    rows = [
        (
            _names_of(entry.source_path),
            "imported" if result.imported else "was there",
            *(entry.venue, entry.symbol, entry.date),
            *(str(count) for count in (entry.rows, entry.groups)),
            *(str(count or "") for count in (entry.dropped_rows, entry.gaps, entry.quarantined)),
        )
        for result in results
        for entry in (result.entry,)
    ]
    output.print_table(Table(f"queue at {printable(queue)}", columns, rows))
    done = sum(result.entry.rows for result in results if result.imported)
    if done:
        print(f"{done} rows in {elapsed_s:.2f} s ({done / max(elapsed_s, 1e-9):,.0f} rows/s)")
    for result in results:
        if result.quarantine_path is not None:
            print(f"bad rows are in {printable(result.quarantine_path)}")


def _names_of(source_path: str) -> str:
    """Return the file's name; of an import of several, which it lists, the first one's."""
    first, *others = source_path.split(", /")
    return printable(os.path.basename(first)) + (f" and {len(others)} more" if others else "")


def _result_json(result: ImportResult) -> dict[str, Any]:
    return {
        "imported": result.imported,
        "quarantine_path": result.quarantine_path,
        "notes": list(result.notes),
        **msgspec.to_builtins(result.entry),
    }


# -- simulate ------------------------------------------------------------------------------


def simulate_command(
    queue: QueueOption,
    symbols: Annotated[int, typer.Option(min=1, help="Number of symbols.")] = 10,
    events: Annotated[
        int | None,
        typer.Option(min=1, help="Write at least this many events: the opening, then whole blocks."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Write this much simulated time.")] = None,
    rate: Annotated[
        float, typer.Option(help="Changes of orders per simulated second, all symbols.")
    ] = 100_000.0,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal events.")] = 0,
    speed: Annotated[
        float, typer.Option(min=0, help="Simulated seconds per second; 0 is as fast as possible.")
    ] = 0.0,
    kinds: Annotated[
        str, typer.Option(help=f"What to write, separated by commas: {', '.join(KINDS)}.")
    ] = ",".join(KINDS),
    as_json: AsJson = False,
) -> None:
    """Write the events of a simulated venue to a queue: orders, price levels and trades.

    Timestamps are simulated and begin at a fixed day, or now if `--speed` is given.
    """
    with reporting(as_json=as_json):
        if (events is None) == (seconds is None):
            raise InvalidConfig("say how much: either --events or --seconds")
        clock = SystemClock()
        venue = SimulatedVenue(
            symbols,
            seed=seed,
            rate=rate,
            start_ns=clock.wall_ns() if speed else START_NS,
            kinds=[kind.strip() for kind in kinds.split(",") if kind.strip()],
            block_events=max(64, int(rate / 20)) if speed else None,
        )
        started_ns = clock.monotonic_ns()
        config = WriterConfig.archive().replace(segment_size=SEGMENT_SIZE)
        with Queue.open_publisher(queue, config, clock=clock) as writer:
            first_seq = writer.next_seq
            if first_seq:
                raise InvalidConfig(
                    f"{queue} holds {first_seq} messages, and a simulated venue begins with empty books; "
                    "name a new queue"
                )
            columns = (TaskProgressColumn(), TimeRemainingColumn())
            with output.progress("simulating", 1.0, *columns, as_json=as_json) as advance:
                _run_venue(venue, writer, clock, events, seconds, speed, advance)
            writer.flush_sync()
            written = writer.next_seq - first_seq
            size = writer.bytes_written
            record_symbols(queue, venue.definitions())
        elapsed_s = (clock.monotonic_ns() - started_ns) / NS_PER_S
        summary = {
            "queue": queue,
            "symbols": symbols,
            "seed": seed,
            "events": written,
            "first_seq": first_seq,
            "end_seq": first_seq + written,
            "bytes": size,
            "elapsed_s": round(elapsed_s, 3),
            "events_per_s": round(written / max(elapsed_s, 1e-9)),
        }
        text = (
            f"{written} events of {symbols} symbols ({human_bytes(size)}) in {elapsed_s:.2f} s "
            f"({summary['events_per_s']:,} events/s) to {printable(queue)}"
        )
        output.print_result(summary, text, as_json=as_json)


def _run_venue(
    venue: SimulatedVenue,
    writer: QueueWriter,
    clock: Clock,
    events: int | None,
    seconds: float | None,
    speed: float,
    advance: Callable[[float], None],
) -> None:
    """Append block after block until enough events or time are written; `advance` by the share of each."""
    share = 0.0
    start_ns, began_ns, first_seq = venue.now_ns, clock.monotonic_ns(), writer.next_seq
    stop_ns = None if seconds is None else start_ns + int(seconds * NS_PER_S)
    while True:
        if events is not None and writer.next_seq - first_seq >= events:
            return
        if stop_ns is not None and venue.now_ns >= stop_ns:
            return
        for block in venue.next_blocks():
            block.append_to(writer)
        before = share
        if events is not None:
            share = (writer.next_seq - first_seq) / events
        elif stop_ns is not None and stop_ns > start_ns:
            share = (venue.now_ns - start_ns) / (stop_ns - start_ns)
        advance(share - before)
        if speed:
            ahead_ns = int((venue.now_ns - start_ns) / speed) - (clock.monotonic_ns() - began_ns)
            if ahead_ns > 0:
                clock.sleep_ns(ahead_ns)
