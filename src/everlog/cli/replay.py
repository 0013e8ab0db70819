"""The commands of `everlog replay`: serve.

Owns what they print, what signals do, and the commands that come from standard input.

    exit 0  everything was played, or stopped by a signal
    exit 1  a source cannot be read, or a destination cannot be written
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from everlog.cli import output
from everlog.cli.options import EndTime, StartTime
from everlog.cli.output import counted, group, reporting
from everlog.cli.session import Key, Url, connected
from everlog.errors import InvalidConfig

if TYPE_CHECKING:
    from everlog.bridge.replay_server import ReplayServer
    from everlog.client import Producer
    from everlog.market.replay import Replay

app = group(
    "Play recorded market data as if it came from the venues now.",
    "everlog replay serve ./history --speed 10 --into-queue ./live",
)
_READ_BYTES: Final = 4096


Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help="Queues and archives to play.", show_default=False),
]
Speed = Annotated[str, typer.Option(metavar="N|max", help="Seconds of the recording per second, up to 1000.")]
Symbols = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these symbols, or markets with these numbers.")
]
By = Annotated[
    str, typer.Option(metavar="receive|exchange", help="Which time orders and paces the messages.")
]
IntoQueue = Annotated[str | None, typer.Option("--into-queue", metavar="QUEUE", help="Queue to append to.")]
Topic = Annotated[str | None, typer.Option(metavar="NAME", help="Topic to append to.")]
WebSocket = Annotated[
    int | None,
    typer.Option("--ws", min=0, max=65535, metavar="PORT", help="WebSocket on 127.0.0.1; 0: any free port."),
]
Loop = Annotated[bool, typer.Option("--loop", help="Begin again at the end.")]
Paused = Annotated[bool, typer.Option("--paused", help="Wait for the command 'resume'.")]
Cold = Annotated[bool, typer.Option("--cold", help="Begin in the middle without the books of that time.")]
Snapshots = Annotated[
    str | None,
    typer.Option(metavar="QUEUE", help="Queue beside which the snapshots of the sources' books are."),
]
StatusLines = Annotated[bool, typer.Option("--json", help="Print the status as one JSON object a line.")]


@app.command(
    "serve", epilog="Example: everlog replay serve ./history --speed 10 --into-queue ./live --ws 8765"
)
def serve_command(  # noqa: PLR0913, PLR0917
    sources: Sources,
    speed: Speed = "1",
    start: StartTime = None,
    end: EndTime = None,
    symbols: Symbols = None,
    by: By = "receive",
    into_queue: IntoQueue = None,
    topic: Topic = None,
    url: Url = None,
    key: Key = None,
    ws: WebSocket = None,
    loop: Loop = False,
    paused: Paused = False,
    cold: Cold = False,
    snapshots: Snapshots = None,
    as_json: StatusLines = False,
) -> None:
    """Publish recorded messages in their order, with their spacing divided by the speed.

    Commands, as lines on standard input or as texts on the WebSocket: pause, resume, seek TIME, speed N|max,
    loop on|off, status. Ctrl-C or SIGTERM ends it with exit code 0.
    """
    from dataclasses import replace

    from everlog.archive.sources import replays
    from everlog.bridge.replay_server import ReplayServer, source_names
    from everlog.market.pacing import parse_speed
    from everlog.market.player import Player
    from everlog.market.times import LATEST_NS, parse_time_ns

    with reporting(as_json=as_json):
        if into_queue is None and topic is None and ws is None:
            raise InvalidConfig("nothing to publish into; name --into-queue, --topic or --ws")
        chosen: list[Replay] = [one for path in sources for one in replays(path)]
        if symbols is not None:
            chosen = [one.symbols(*symbols.split(",")) for one in chosen]
        if snapshots is not None:
            chosen = [replace(one, snapshots=snapshots) for one in chosen]
        player = Player(
            chosen,
            speed=parse_speed(speed),
            start_ns=parse_time_ns(start),
            end_ns=parse_time_ns(end, LATEST_NS),
            by=by,
            is_looping=loop,
            is_cold=cold,
        )
        if paused:
            player.command("pause")
        with _producer(topic, url, key) as producer:
            show = _shown(as_json=as_json)
            server = ReplayServer(
                player,
                source_names([one.path for one in chosen]),
                into_queue=into_queue,
                producer=producer,
                on_status=show,
            )
            asyncio.run(_serve(server, ws, as_json=as_json))


@contextlib.contextmanager
def _producer(topic: str | None, url: str | None, key: str | None) -> Iterator[Producer | None]:
    """Open a producer for the topic, if there is one."""
    if topic is None:
        yield None
        return
    from everlog.client import Producer

    with connected(url, key) as client, Producer(client, topic) as producer:
        yield producer


async def _serve(server: ReplayServer, port: int | None, *, as_json: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    try:
        if port is not None:
            address = f"ws://127.0.0.1:{await server.listen(port)}"
            print(output.json_line({"address": address}).strip() if as_json else address, flush=True)
        _read_commands(loop, lambda line: _answer(server, line, as_json=as_json))
        await server.run()
    finally:
        await server.close()


def _answer(server: ReplayServer, line: str, *, as_json: bool) -> None:
    if not line.strip():
        return
    answer = server.command(line)
    if (error := answer.get("error")) is not None:
        output.print_problem("error", error["code"], error["message"], as_json=as_json)
    else:
        _print_status(answer["status"], as_json=as_json, end="\n")


def _read_commands(loop: asyncio.AbstractEventLoop, handle: Callable[[str], None]) -> None:
    """Call `handle` for each line of standard input; a job in the background does not touch its terminal."""
    try:
        number = sys.stdin.fileno()
        if os.isatty(number) and os.tcgetpgrp(number) != os.getpgrp():
            return
    except (AttributeError, OSError, ValueError):
        return  # there is none

    def read() -> None:
        rest = b""
        with contextlib.suppress(OSError, RuntimeError):  # the loop has ended meanwhile
            while data := os.read(number, _READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    loop.call_soon_threadsafe(handle, line.decode("utf-8", "replace"))

    threading.Thread(target=read, name="replay-commands", daemon=True).start()


def _shown(*, as_json: bool) -> Callable[[dict[str, Any]], None]:
    is_terminal = output.is_terminal()

    def show(status: dict[str, Any]) -> None:
        if as_json or status["state"] == "done":
            _print_status(status, as_json=as_json, end="\n")
        elif is_terminal:
            _print_status(status, as_json=False, end="\r")

    return show


def _print_status(status: dict[str, Any], *, as_json: bool, end: str) -> None:
    if as_json:
        print(output.json_line(status), end="", flush=True)
        return
    when = datetime.fromtimestamp(status["position_ns"] / 1e9, UTC).isoformat(" ", "milliseconds")
    messages = counted(status["messages"], "message")
    print(f"{status['state']} at {when}, speed {status['speed']}, {messages}", end=end, flush=True)
