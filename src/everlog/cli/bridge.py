"""The commands of `everlog bridge`: records across, from a queue into a topic or from a topic into a queue.

Owns the flags, the line of progress on a terminal, the report at the end and what signals do. Forwarding
itself is in `everlog.bridge`.

    exit 0  stopped by a signal, or everything there was is across (--once)
    exit 1  an error that trying again does not mend
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

import typer

from everlog.cli.options import AsJson
from everlog.cli.output import (
    counted,
    group,
    handled_signals,
    human_bytes,
    print_fields,
    print_json,
    print_warning,
    reporting,
)
from everlog.cli.session import ContextName, Key, Url, connected

if TYPE_CHECKING:
    from everlog.bridge.base import Progress
    from everlog.bridge.metrics import BridgeMetrics

app = group(
    "Forward a queue to a topic, or a topic to a queue, each record exactly once.",
    "everlog bridge queue-to-topic --queue ./queue --topic orders",
)

Form = Literal["auto", "json", "base64"]
Direction = Literal["queue-to-topic", "topic-to-queue"]
BATCH_DEFAULT: Final = 10_000
BATCH_KIB_DEFAULT: Final = 4096


class _Bridge(Protocol):
    """What both directions offer."""

    stop: Any

    def run(self) -> Progress:
        """Forward."""
        ...


QueueDir = Annotated[str, typer.Option(metavar="DIR", help="Directory of the queue.")]
TopicName = Annotated[str, typer.Option(metavar="TOPIC", help="Name of the topic.")]
BridgeName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Name under which the bridge remembers how far it is. Default: the topic's name."
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Stop at the end of what is there.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Serve metrics on 127.0.0.1 at this port; 0: any free one."),
]
MetricsPortFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Gets host:port of the metrics; implies --metrics-port 0.")
]
Start = Annotated[
    Literal["earliest", "latest"], typer.Option("--from", help="Where a bridge that never ran begins.")
]


@app.command(
    "queue-to-topic", epilog="Example: everlog bridge queue-to-topic --queue ./queue --topic orders --once"
)
def queue_to_topic_command(  # noqa: PLR0913, PLR0917
    queue: QueueDir,
    topic: TopicName,
    name: BridgeName = None,
    url: Url = None,
    key: Key = None,
    context: ContextName = None,
    once: Once = False,
    metrics_port: MetricsPort = None,
    metrics_port_file: MetricsPortFile = None,
    as_json: AsJson = False,
    form: Annotated[
        Form,
        typer.Option(
            "--format",
            help="auto: JSON as it is, market messages as JSON, the rest as base64. json: refuse the "
            "rest. base64: everything.",
        ),
    ] = "auto",
    batch: Annotated[
        int, typer.Option(min=1, max=10_000, help="Records in one request at most.")
    ] = BATCH_DEFAULT,
    batch_kib: Annotated[
        int, typer.Option(min=1, max=32_768, help="KiB of payloads in one request at most.")
    ] = BATCH_KIB_DEFAULT,
    start: Start = "earliest",
    durability: Annotated[
        Literal["ephemeral", "memory", "disk", "fsync"] | None,
        typer.Option(help="Class of the topic if it is created; needs the scope admin."),
    ] = None,
    origin: Annotated[
        bool,
        typer.Option(
            "--origin/--no-origin",
            help="Put source, seq, ts_ns and type of each message into the meta of its record.",
        ),
    ] = True,
    in_doubt: Annotated[
        Literal["stop", "send", "skip"],
        typer.Option(help="What to do with a batch of which it is unknown whether it arrived."),
    ] = "stop",
) -> None:
    """Forward the messages of a queue to a topic, each exactly once, until Ctrl-C or SIGTERM.

    The bridge may be killed and started again at any time, and so may the server.
    """
    from everlog.bridge.queue_to_topic import QueueToTopic, QueueToTopicSettings
    from everlog.bridge.rendering import Format

    def build(metrics: BridgeMetrics, progress: _ProgressLine) -> _Bridge:
        settings = QueueToTopicSettings(
            queue=queue,
            topic=topic,
            name=name or topic,
            form=Format(form),
            batch_records=batch,
            batch_bytes=batch_kib << 10,
            start=start,
            once=once,
            durability=durability,
            origin=origin,
            in_doubt=in_doubt,
        )
        client = connected(url, key, context)
        return QueueToTopic(client, settings, metrics=metrics, warn=progress.warn, on_progress=progress.show)

    _run("queue-to-topic", name or topic, build, as_json, metrics_port, metrics_port_file)


@app.command(
    "topic-to-queue", epilog="Example: everlog bridge topic-to-queue --topic orders --queue ./queue --once"
)
def topic_to_queue_command(  # noqa: PLR0913, PLR0917
    queue: QueueDir,
    topic: TopicName,
    name: BridgeName = None,
    url: Url = None,
    key: Key = None,
    context: ContextName = None,
    once: Once = False,
    metrics_port: MetricsPort = None,
    metrics_port_file: MetricsPortFile = None,
    as_json: AsJson = False,
    form: Annotated[
        Literal["auto", "json", "base64", "record"],
        typer.Option(
            "--format",
            help="auto: data as JSON, what a bridge made base64 turned back. json: data as JSON. base64: "
            "data decoded. record: the whole record as JSON.",
        ),
    ] = "auto",
    batch: Annotated[
        int, typer.Option(min=1, max=4000, help="Records appended under one plan at most.")
    ] = 4000,
    start: Start = "earliest",
    type_id: Annotated[
        int, typer.Option("--type", min=0, max=0xFFFE, help="Type id of records that bring none along.")
    ] = 0x3000,
    segment_mib: Annotated[
        int, typer.Option(min=1, max=4096, help="Size of segments if the queue is created.")
    ] = 128,
    keep: Annotated[
        bool, typer.Option("--keep", help="Delete no segment, whatever its readers have read.")
    ] = False,
) -> None:
    """Forward the records of a topic to a queue, each exactly once, until Ctrl-C or SIGTERM.

    The bridge is the queue's writer. Records that the topic lost before they were read become gap messages.
    """
    from everlog.bridge.topic_to_queue import PayloadFormat, TopicToQueue, TopicToQueueSettings
    from everlog.queue import WriterConfig

    def build(metrics: BridgeMetrics, progress: _ProgressLine) -> _Bridge:
        settings = TopicToQueueSettings(
            queue=queue,
            topic=topic,
            name=name or topic,
            form=PayloadFormat(form),
            batch_records=batch,
            start=start,
            once=once,
            type_id=type_id,
            writer=WriterConfig(segment_size=segment_mib << 20, retention=not keep),
        )
        client = connected(url, key, context)
        return TopicToQueue(client, settings, metrics=metrics, warn=progress.warn, on_progress=progress.show)

    _run("topic-to-queue", name or topic, build, as_json, metrics_port, metrics_port_file)


# --- Running ---------------------------------------------------------------------------------------------


class _ProgressLine:
    """One line on standard error, rewritten as the bridge moves on; only on a terminal."""

    def __init__(self, as_json: bool, direction: Direction) -> None:
        self._as_json = as_json
        self._unit_is_bytes = direction == "queue-to-topic"
        self._shows = sys.stderr.isatty() and not as_json
        self._has_line = False

    def warn(self, code: str, message: str) -> None:
        """Print a warning below the line."""
        self.end_line()
        print_warning(code, message, as_json=self._as_json)

    def show(self, progress: Progress) -> None:
        """Rewrite the line."""
        if not self._shows:
            return
        rate = progress.forwarded / progress.elapsed_s if progress.elapsed_s else 0.0
        lag = human_bytes(progress.lag) if self._unit_is_bytes else f"{progress.lag} records"
        line = f"\r\x1b[Kforwarded {progress.forwarded:,}  {rate:,.0f}/s  lag {lag}"
        sys.stderr.write(line)
        sys.stderr.flush()
        self._has_line = True

    def end_line(self) -> None:
        """End the line."""
        if self._has_line:
            sys.stderr.write("\n")
            self._has_line = False


def _run(
    direction: Direction,
    name: str,
    build: Callable[[BridgeMetrics, _ProgressLine], _Bridge],
    as_json: bool,
    metrics_port: int | None,
    metrics_port_file: str | None,
) -> None:
    from everlog.bridge.metrics import BridgeMetrics, MetricsServer

    line = _ProgressLine(as_json, direction)
    with reporting(as_json=as_json), contextlib.ExitStack() as held:
        metrics = BridgeMetrics(name, direction)
        bridge = build(metrics, line)
        if metrics_port is not None or metrics_port_file is not None:
            server = held.enter_context(MetricsServer(metrics, metrics_port or 0, metrics_port_file))
            if metrics_port_file is None and not as_json:
                print(f"metrics: http://127.0.0.1:{server.port}/metrics", file=sys.stderr)
        held.enter_context(_stopping_on_signals(bridge))
        try:
            progress = bridge.run()
        finally:
            line.end_line()
        _report(direction, name, progress, as_json)


def _report(direction: Direction, name: str, progress: Progress, as_json: bool) -> None:
    rate = progress.forwarded / progress.elapsed_s if progress.elapsed_s else 0.0
    document = {"bridge": name, "direction": direction, **asdict(progress), "records_per_s": round(rate, 1)}
    if as_json:
        print_json(document)
        return
    fields = [
        ("bridge", f"{name} ({direction})"),
        ("forwarded", f"{counted(progress.forwarded, 'record')} in {_batches(progress.batches)}"),
        ("rate", f"{rate:.0f} records/s"),
        ("last seq", str(progress.last_seq) if progress.last_seq is not None else "none"),
        ("there already", _batches(progress.deduplicated)),
        ("retries", str(progress.retries)),
        ("gaps", str(progress.gaps)),
    ]
    if progress.is_in_doubt:
        fields.append(("under way", "one batch; the next start finds out what became of it"))
    print_fields(fields)


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"


@contextlib.contextmanager
def _stopping_on_signals(bridge: _Bridge) -> Iterator[None]:
    """The first signal lets the batch under way arrive; the second ends the process at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if bridge.stop.is_set():
            os._exit(128 + number)  # nothing is lost: the next start finds out what became of the batch
        bridge.stop.set()

    with handled_signals(stop):
        yield
