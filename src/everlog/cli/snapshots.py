"""The commands `everlog queue snapshots` and `everlog queue snapshotter`: snapshots of books beside a queue.

Owns what they print; the work is done by `everlog.archive.snapshotter` and `everlog.market.snapshots`, which
are loaded when they are needed, so that other commands of queues do not wait for books.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from everlog.cli import output
from everlog.cli.options import AsJson, QueuePath
from everlog.cli.output import Table, counted, human_bytes, printable, reporting, stopped_by_signals
from everlog.clock import NS_PER_S
from everlog.errors import InvalidConfig, QueueNotFound
from everlog.queue import StartMode

WAIT_S = 0.2


def snapshots_command(queue: QueuePath, as_json: AsJson = False) -> None:
    """List the snapshots of books beside a queue; damaged ones are left out."""
    from everlog.market.snapshots import SnapshotStore

    with reporting(as_json=as_json):
        if not os.path.isdir(queue):
            raise QueueNotFound(f"there is no directory {queue}; check the path")
        store = SnapshotStore(queue)
        found = [info for market in store.markets() for info in store.of_market(market)]
        if as_json:
            rows = [
                {
                    "venue_id": info.market.venue_id,
                    "market_id": info.market.market_id,
                    "mode": info.mode.name,
                    "seq": info.seq,
                    "ingest_ts_ns": info.ingest_ts_ns,
                    "exchange_ts_ns": info.exchange_ts_ns,
                    "bytes": info.payload_len,
                    "path": info.path,
                }
                for info in found
            ]
            output.print_json({"queue": queue, "snapshots": rows})
        elif found:
            cells = [
                (
                    str(info.market.venue_id),
                    str(info.market.market_id),
                    info.mode.name,
                    str(info.seq),
                    str(info.ingest_ts_ns[1]),
                    human_bytes(info.payload_len),
                )
                for info in found
            ]
            columns = ("venue>", "market>", "mode", "seq>", "ingest time>", "size>")
            output.print_table(Table(f"snapshots of {printable(queue)}", columns, cells))
        else:
            print(f"no snapshots in {printable(queue)}")


def snapshotter_command(
    queue: QueuePath,
    market: Annotated[
        list[str] | None,
        typer.Option(
            "--market", metavar="VENUE:MARKET", help="Only this market, by its ids; may be repeated."
        ),
    ] = None,
    start: Annotated[
        StartMode, typer.Option("--start", help="Where to start if the reader has no usable position.")
    ] = StartMode.RESUME_SNAPSHOT,
    interval: Annotated[
        float, typer.Option("--interval", min=0, help="Seconds between snapshots; 0: none.")
    ] = 10,
    records: Annotated[int, typer.Option("--records", min=0, help="Also after so many events; 0: no.")] = 0,
    size: Annotated[int, typer.Option("--bytes", min=0, help="Also after so many bytes; 0: no.")] = 0,
    keep: Annotated[int | None, typer.Option("--keep", min=1, help="How many to keep of a market.")] = None,
    keep_bytes: Annotated[
        int | None, typer.Option("--keep-bytes", min=1, help="Bytes to keep of a market.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop at the end of what is there now.")] = False,
    as_json: AsJson = False,
) -> None:
    """Follow a queue of market data and write snapshots of its L2 and L3 books beside it, until stopped."""
    from everlog.archive.snapshotter import Snapshotter
    from everlog.market.book_set import Market
    from everlog.market.snapshots import SnapshotPlanner, SnapshotRetention

    with reporting(as_json=as_json), stopped_by_signals() as stopped:
        markets = None if not market else [Market(*_ids(text)) for text in market]
        planner = SnapshotPlanner(records, size, int(interval * NS_PER_S))
        retention = SnapshotRetention(max_snapshots=keep, max_bytes=keep_bytes)
        with Snapshotter(
            queue, planner=planner, retention=retention, markets=markets, start=start
        ) as snapshotter:
            while not stopped.is_set():
                if not snapshotter.run_once():
                    if once:
                        break
                    snapshotter.reader.wait(WAIT_S)
            document = {"queue": queue, "events": snapshotter.events, "snapshots": snapshotter.written}
            events = counted(snapshotter.events, "event")
            text = f"wrote {counted(snapshotter.written, 'snapshot')} of {events}"
            output.print_result(document, text, as_json=as_json)


def _ids(text: str) -> tuple[int, int]:
    venue, _, market = text.partition(":")
    if not (venue.isdigit() and market.isdigit()):
        raise InvalidConfig(
            f"--market {text!r} is not VENUE:MARKET; both are numbers, see 'everlog queue snapshots'"
        )
    return int(venue), int(market)


def main() -> None:
    """Run `snapshotter`, which takes the queue as --archive and the market as --venue and --market."""
    words = sys.argv[1:]
    values = {
        name: words[words.index(name) + 1]
        for name in ("--archive", "--venue", "--market")
        if name in words[:-1]
    }
    for name in values:
        at = words.index(name)
        del words[at : at + 2]
    chosen = (
        [f"--market={values['--venue']}:{values['--market']}"]
        if {"--venue", "--market"} <= values.keys()
        else []
    )
    sys.argv[1:] = [
        "queue",
        "snapshotter",
        *([values["--archive"]] if "--archive" in values else []),
        *chosen,
        *words,
    ]
    from everlog.cli.main import main as run

    run()
