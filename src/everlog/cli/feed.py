"""The commands of `everlog feed`: run, status, rehearse.

Owns what they print and what signals do. Capturing itself is in `everlog.feeds`.

    exit 0  stopped by a signal, or everything was played (rehearse --once)
    exit 1  the configuration or a recording cannot be used
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from everlog.cli.options import AsJson
from everlog.cli.output import Table, group, handled_signals, print_json, print_table, reporting

if TYPE_CHECKING:
    from everlog.bus.feed_status import FeedStatus
    from everlog.feeds.rehearsal import Rehearsal

app = group(
    "Capture live market data of exchanges, and rehearse it with recorded frames.",
    "everlog feed run feeds.toml",
)

DEAD_AFTER_S: Final = 5.0
ConfigPath = Annotated[str, typer.Argument(metavar="FILE", help="Which venues and symbols, as TOML.")]
BusRoot = Annotated[str, typer.Argument(metavar="ROOT", help="Root of the bus that `feed run` writes to.")]
Recordings = Annotated[list[str], typer.Argument(metavar="FILE...", help="Recorded frames, also gzipped.")]


@app.command(epilog="Example: everlog feed run feeds.toml")
def run(path: ConfigPath) -> None:
    """Capture until Ctrl-C or SIGTERM: one process per connection, started again if it dies."""
    from everlog.feeds.config import read_config
    from everlog.feeds.supervisor import Supervisor

    with reporting(as_json=False):
        config = read_config(Path(path))
        supervisor = Supervisor(config.connections(), config.root)
        print(f"{len(config.connections())} connections, queues below {config.root}/streams", flush=True)
        with handled_signals(lambda *_: supervisor.stop.set()):
            supervisor.run()


@app.command(epilog="Example: everlog feed status ./bus")
def status(
    root: BusRoot,
    as_json: AsJson = False,
    prometheus: Annotated[bool, typer.Option(help="Print the counters as Prometheus text.")] = False,
) -> None:
    """Show each symbol's state, counts, gaps and lag as its process last wrote them."""
    from everlog.bus.feed_status import read_statuses

    with reporting(as_json=as_json):
        statuses = read_statuses(root)
        if prometheus:
            print("\n".join(line for one in statuses for line in _metrics(one)))
        elif as_json:
            import msgspec

            print_json([msgspec.to_builtins(one) for one in statuses])
        else:
            for one in statuses:
                print_table(_table(one))


def _table(one: FeedStatus) -> Table:
    age_s = time.time() - one.updated_ns / 1e9
    state = "connected" if one.is_connected else "not connected"
    if age_s > DEAD_AFTER_S:
        state = f"not running: last heard of {age_s:.0f} s ago"
    offset = "" if one.clock_offset_ms is None else f", clock of the venue {one.clock_offset_ms:+.0f} ms"
    title = f"{one.name} ({one.venue}): {state}, {one.frames_per_s:.0f} frames/s{offset}"
    rows = [
        [
            symbol,
            "live" if state.is_live else "waiting",
            *(str(state.counts.get(name, 0)) for name in ("diffs", "trades", "snapshots", "gaps")),
            f"{state.lag_ms:.0f}",
        ]
        for symbol, state in one.symbols.items()
    ]
    return Table(title, ["symbol", "state", "diffs>", "trades>", "snapshots>", "gaps>", "lag ms>"], rows)


def _metrics(one: FeedStatus) -> list[str]:
    lines = [
        f'everlog_feed_connected{{feed="{one.name}"}} {int(one.is_connected)}',
        f'everlog_feed_updated_seconds{{feed="{one.name}"}} {one.updated_ns / 1e9:.3f}',
    ]
    lines += [
        f'everlog_feed_events_total{{feed="{one.name}",kind="{kind}"}} {count}'
        for kind, count in sorted(one.counts.items())
    ]
    for symbol, state in one.symbols.items():
        labels = f'feed="{one.name}",symbol="{symbol}"'
        lines.append(f"everlog_feed_live{{{labels}}} {int(state.is_live)}")
        lines.append(f"everlog_feed_lag_seconds{{{labels}}} {state.lag_ms / 1e3:.6f}")
        lines += [
            f'everlog_feed_symbol_events_total{{{labels},kind="{kind}"}} {count}'
            for kind, count in sorted(state.counts.items())
        ]
    return lines


@app.command(
    epilog="Example: everlog feed rehearse kraken.frames.gz --venue kraken --speed 10 --fault drop=0.001"
)
def rehearse(
    files: Recordings,
    venue: Annotated[str, typer.Option(help="Whose frames they are.")],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1; 0: any free one.")] = 0,
    speed: Annotated[float, typer.Option(min=0.0, help="Times as fast as recorded; 0: at once.")] = 1.0,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="drop, duplicate, reorder, cut (chance per frame), refuse (chance of 429 or 418 of REST), "
            "delay_s (each frame is late by up to this). May be given several times.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the chances: equal seeds, equal faults.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="End when everything was played.")] = False,
) -> None:
    """Be a venue on loopback that plays recorded frames, with faults if wanted."""
    from everlog.feeds.rehearsal import Rehearsal, parse_faults

    with reporting(as_json=False):
        faults = parse_faults(fault or [])
        server = Rehearsal(venue, [Path(one) for one in files], speed=speed, faults=faults, seed=seed)
        asyncio.run(_rehearsed(server, port, once))


async def _rehearsed(server: Rehearsal, port: int, once: bool) -> None:
    address = await server.start(port)
    symbols = ", ".join(f'"{symbol}"' for symbol in server.symbols)
    print(
        f'[[feed]]\nvenue = "{server.venue.name}"\nsymbols = [{symbols}]\n'
        f'url = "ws://{address}"\nrest_url = "http://{address}"',
        flush=True,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ends: list[Any] = [asyncio.create_task(stop.wait())]
    if once:
        ends.append(asyncio.create_task(server.finished.wait()))
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in ends:
        task.cancel()
    await server.close()
