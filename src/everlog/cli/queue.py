"""The commands of `everlog queue`: ls, inspect, tail, doctor, bench; others are in `snapshots` and `merge`.

Owns what they print and the shape of their JSON. The looking itself is done by
`everlog.queue.inspect` and `everlog.queue.doctor`, the loops by `tail` and `bench`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from everlog.cli import output
from everlog.cli.bench import BenchRequest, BenchResult, Rate, bench
from everlog.cli.merge import merge_command
from everlog.cli.options import (
    AsJson,
    BenchPath,
    Deep,
    Follow,
    From,
    Keep,
    Limit,
    Messages,
    QueuePath,
    ReadBack,
    ReaderName,
    RootPath,
    parse_start,
)
from everlog.cli.output import Table, counted, group, human_age, human_bytes, printable, reporting
from everlog.cli.snapshots import snapshots_command, snapshotter_command
from everlog.cli.tail import TailRequest, tail
from everlog.clock import NS_PER_S, SystemClock
from everlog.errors import EverlogError, QueueNotFound
from everlog.fs import OsFs
from everlog.queue import MessageView, doctor, inspect
from everlog.queue.doctor import QueueFindings
from everlog.queue.findings import Severity
from everlog.queue.inspect import LockInfo, QueueInfo, ReaderInfo, SegmentInfo
from everlog.queue.reader_lags import QueueLags, ReaderLag, lags_if_readable

FINDINGS_EXIT_CODE = 3
SEGMENT_ROWS_MAX = 20
HEX_ROW_BYTES = 16

app = group("Look at memory-mapped queues, follow and measure them.", "everlog queue inspect ./queue")


class PayloadFormat(StrEnum):
    """How `tail` shows payloads."""

    HEX = "hex"
    TEXT = "text"
    JSON = "json"
    MARKET = "market"


# -- ls ------------------------------------------------------------------------------------


@app.command("ls", epilog="Example: everlog queue ls /dev/shm/bus")
def ls_command(root: RootPath = ".", as_json: AsJson = False) -> None:
    """List the queues in and below a directory: messages, size, writer, readers and their lag."""
    with reporting(as_json=as_json):
        infos = _look_at_all(root, as_json=as_json)
        looked = [(info, lags_if_readable(info.path, info.readers, info.seen_ns)) for info in infos]
        if as_json:
            output.print_json({"root": root, "queues": [_listed_json(*each) for each in looked]})
        elif infos:
            columns = ("queue", "messages>", "on disk>", "writer", "readers>", "most behind>")
            rows = [_listed(*each) for each in looked]
            output.print_table(Table(f"queues under {printable(root)}", columns, rows))
        else:
            print(f"no queues found under {printable(root)}")


def _look_at_all(root: str, *, as_json: bool) -> list[QueueInfo]:
    fs, clock = OsFs(), SystemClock()
    found = inspect.find_queues(fs, root)
    problems = dict(found.unreadable)
    infos = []
    for path in found.paths:
        try:
            infos.append(inspect.inspect_queue(fs, clock, path))
        except QueueNotFound:
            continue  # removed since it was found
        except EverlogError as error:
            problems[path] = str(error)
    for path, reason in problems.items():
        output.print_warning("directory_unreadable", f"cannot look into {path}: {reason}", as_json=as_json)
    return infos


def _listed(info: QueueInfo, lags: QueueLags | None) -> tuple[str, ...]:
    behind = [] if lags is None else [lag for lag in lags.readers if lag is not None]
    return (
        printable(info.path),
        "unreadable" if lags is None else f"{lags.messages:,}",
        human_bytes(info.bytes_on_disk),
        "alive" if info.writer_alive else "dead" if info.lock else "none",
        str(len(info.readers)),
        _behind(max(behind, key=lambda lag: lag.messages)) if behind else "",
    )


def _behind(lag: ReaderLag) -> str:
    """Return how far a reader is behind, in messages and seconds."""
    if not lag.messages:
        return "0"
    return f"{counted(lag.messages, 'message')}, {lag.age_ns / NS_PER_S:.1f} s"


def _listed_json(info: QueueInfo, lags: QueueLags | None) -> dict[str, Any]:
    return {
        "queue": info.path,
        "head_segment": info.control.head_segment if info.control else None,
        "head_offset": info.control.head_offset if info.control else None,
        "messages": lags.messages if lags else None,
        "segments": len(info.segments),
        "bytes_on_disk": info.bytes_on_disk,
        "writer_alive": info.writer_alive,
        "readers": len(info.readers),
        "control_error": error_json(info.control_error),
    }


# -- inspect -------------------------------------------------------------------------------


@app.command("inspect", epilog="Example: everlog queue inspect /dev/shm/bus/streams/raw/binance/queue")
def inspect_command(queue: QueuePath, as_json: AsJson = False) -> None:
    """Show messages, writer, segments and readers of a queue. Changes nothing and never waits.

    A damaged control block is reported (exit code 1) after everything else that can be read.
    """
    with reporting(as_json=as_json):
        info = inspect.inspect_queue(OsFs(), SystemClock(), queue)
        lags = lags_if_readable(queue, info.readers, info.seen_ns)
        if as_json:
            output.print_json(info_json(info, lags))
        else:
            output.print_fields([*_fields(info), *_message_fields(lags)])
            if info.segments:
                output.print_table(_segment_table(info.segments))
            if info.readers:
                output.print_table(_reader_table(info, lags))
        if info.control_error is not None:
            raise info.control_error


def _fields(info: QueueInfo) -> list[tuple[str, str]]:
    fields = [("queue", printable(info.path))]
    control = info.control
    if control is not None:
        torn = " (half published: the writer died meanwhile)" if control.torn else ""
        fields += [
            ("head", f"segment {control.head_segment}, offset {control.head_offset}{torn}"),
            ("position", str(control.head_pos)),
            ("segment size", human_bytes(control.segment_size)),
            ("writer epoch", str(control.writer_epoch)),
            ("writer heartbeat", human_age(control.writer_heartbeat_ns, info.seen_ns)),
            ("notify seq", str(control.notify_seq)),
            ("waiters", str(control.waiters_pending)),
        ]
    if info.index is not None:
        fields.append(("flushed up to", f"segment {info.index.segment_id}, offset {info.index.offset}"))
    fields.append(("writer", _writer(info.lock)))
    fields.append(
        ("on disk", f"{human_bytes(info.bytes_on_disk)} in {counted(len(info.segments), 'segment')}")
    )
    fields += [(name, f"unreadable: {reason}") for name, reason in info.unreadable.items()]
    return fields


def _message_fields(lags: QueueLags | None) -> list[tuple[str, str]]:
    if lags is None:
        return [("messages", "unreadable")]
    between = f", seq {lags.first_seq} to {lags.last_seq}" if lags.messages else ""
    return [("messages", f"{lags.messages:,}{between}")]


def _writer(lock: LockInfo | None) -> str:
    if lock is None:
        return "none"
    return f"process {lock.owner.pid}, epoch {lock.owner.epoch}, {'alive' if lock.alive else 'dead'}"


def _segment_table(segments: list[SegmentInfo]) -> Table:
    shown = segments[-SEGMENT_ROWS_MAX:]
    title = "segments"
    if len(shown) < len(segments):
        title = f"segments (newest {len(shown)} of {len(segments)}; --json lists all)"
    rows = [
        (
            str(segment.segment_id),
            human_bytes(segment.length_bytes),
            "sealed" if segment.sealed else "open",
            segment.error or "",
        )
        for segment in shown
    ]
    return Table(title, ("segment>", "size>", "state", "problem"), rows)


def _reader_table(info: QueueInfo, lags: QueueLags | None) -> Table:
    columns = ("reader", "next seq>", "lag>", "bytes>", "segment>", "offset>", "heartbeat>", "problem")
    known = [None] * len(info.readers) if lags is None else lags.readers
    rows = [_reader_row(each, lag, info.seen_ns) for each, lag in zip(info.readers, known, strict=True)]
    return Table("readers", columns, rows)


def _reader_row(reader: ReaderInfo, lag: ReaderLag | None, now_ns: int) -> tuple[str, ...]:
    if reader.position is None:
        return (printable(reader.name), "", "", "", "", "", "", output.one_line(reader.error or ""))
    return (
        printable(reader.name),
        "" if lag is None else str(lag.next_seq),
        "" if lag is None else _behind(lag),
        "" if reader.lag_bytes is None else human_bytes(reader.lag_bytes),
        str(reader.position.segment_id),
        str(reader.position.offset),
        human_age(reader.position.heartbeat_ns, now_ns),
        "",
    )


def error_json(error: EverlogError | None) -> dict[str, str] | None:
    """Return an error as it appears in JSON documents."""
    return None if error is None else {"code": error.code, "message": str(error)}


def lock_json(lock: LockInfo | None) -> dict[str, Any] | None:
    """Return the lock's owner as it appears in JSON documents."""
    if lock is None:
        return None
    owner = lock.owner
    return {"pid": owner.pid, "start_time": owner.start_ticks, "epoch": owner.epoch, "alive": lock.alive}


def info_json(info: QueueInfo, lags: QueueLags | None) -> dict[str, Any]:
    """Return everything known of a queue as a JSON document; without `lags` its messages are not counted."""
    control = info.control
    known = [None] * len(info.readers) if lags is None else lags.readers
    return {
        "queue": info.path,
        "head_segment": control.head_segment if control else None,
        "head_offset": control.head_offset if control else None,
        "head_pos": control.head_pos if control else None,
        "head_torn": control.torn if control else None,
        "segment_size": control.segment_size if control else None,
        "writer_epoch": control.writer_epoch if control else None,
        "writer_heartbeat_ns": control.writer_heartbeat_ns if control else None,
        "notify_seq": control.notify_seq if control else None,
        "waiters_pending": control.waiters_pending if control else None,
        "control_error": error_json(info.control_error),
        "index": {"segment": info.index.segment_id, "offset": info.index.offset} if info.index else None,
        "lock": lock_json(info.lock),
        "ready": info.ready,
        "bytes_on_disk": info.bytes_on_disk,
        "segments": [
            {
                "segment": segment.segment_id,
                "bytes": segment.length_bytes,
                "sealed": segment.sealed,
                "error": segment.error,
            }
            for segment in info.segments
        ],
        "first_seq": lags.first_seq if lags else None,
        "last_seq": lags.last_seq if lags else None,
        "readers": [_reader_json(each, lag) for each, lag in zip(info.readers, known, strict=True)],
        "unreadable": info.unreadable,
    }


def _reader_json(reader: ReaderInfo, lag: ReaderLag | None) -> dict[str, Any]:
    position = reader.position
    return {
        "name": reader.name,
        "segment": position.segment_id if position else None,
        "offset": position.offset if position else None,
        "next_seq": lag.next_seq if lag else None,
        "lag_messages": lag.messages if lag else None,
        "lag_ms": lag.age_ns // 1_000_000 if lag else None,
        "lag_bytes": reader.lag_bytes,
        "lag_segments": reader.lag_segments,
        "heartbeat_ns": position.heartbeat_ns if position else None,
        "error": reader.error,
    }


# -- tail ----------------------------------------------------------------------------------


@app.command("tail", epilog="Example: everlog queue tail -f --from latest --format text ./queue")
def tail_command(
    queue: QueuePath,
    follow: Follow = False,
    reader: ReaderName = None,
    limit: Limit = None,
    start: From = None,
    payload_format: Annotated[
        PayloadFormat,
        typer.Option(
            "--format",
            help="Payload as hex dump or text, or messages as JSON lines; market: with events and names.",
        ),
    ] = PayloadFormat.HEX,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line; the same as --format json.")
    ] = False,
) -> None:
    """Print the messages of a queue. It only looks: no message is taken away from any reader."""
    if as_json:
        payload_format = PayloadFormat.JSON
    as_json = payload_format in (PayloadFormat.JSON, PayloadFormat.MARKET)
    request = TailRequest(queue, follow, reader, limit, parse_start(start), as_json)
    with reporting(as_json=as_json):
        is_market = payload_format is PayloadFormat.MARKET
        tail(request, _market_renderer(queue) if is_market else _RENDERERS[payload_format])


def header_line(view: MessageView) -> str:
    """Return the line above a payload."""
    return f"seq={view.seq} ts={view.timestamp_ns} type={view.type_id} len={len(view)}\n"


def render_hex(view: MessageView) -> str:
    """Return a message as its header and rows of 16 bytes in hex."""
    payload = bytes(view)
    rows = [
        f"{start:04x}: {payload[start : start + HEX_ROW_BYTES].hex(' ')}\n"
        for start in range(0, len(payload), HEX_ROW_BYTES)
    ]
    return header_line(view) + "".join(rows)


def render_text(view: MessageView) -> str:
    """Return a message as its header and its payload as text."""
    text = output.visible_text(bytes(view))
    return header_line(view) + (text if not text or text.endswith("\n") else text + "\n")


def render_json(view: MessageView) -> str:
    """Return a message as one JSON line; `payload_text` is null unless the payload is UTF-8."""
    payload = bytes(view)
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    record = {
        "seq": view.seq,
        "timestamp_ns": view.timestamp_ns,
        "type_id": view.type_id,
        "length": len(payload),
        "payload_hex": payload.hex(),
        "payload_text": text,
    }
    return output.json_line(record)


def _market_renderer(queue: str) -> Callable[[MessageView], str]:
    """Return a function that renders a message with the event that it is; null if it is none."""
    from everlog.bridge.market_json import render
    from everlog.market.symbols import load_nearby

    catalogue = load_nearby(queue)

    def render_market(view: MessageView) -> str:
        event = msgspec.json.decode(render(view.type_id, view.flags, bytes(view)) or b"null")
        if event is not None:
            event |= catalogue.names_of_event(event)
        return output.json_line({"seq": view.seq, "timestamp_ns": view.timestamp_ns, "event": event})

    return render_market


_RENDERERS = {PayloadFormat.HEX: render_hex, PayloadFormat.TEXT: render_text, PayloadFormat.JSON: render_json}


# -- doctor --------------------------------------------------------------------------------


@app.command("doctor", epilog="Example: everlog queue doctor --check /dev/shm/bus")
def doctor_command(
    root: RootPath = ".",
    check: Annotated[
        bool,
        typer.Option("--check", help=f"Exit with code {FINDINGS_EXIT_CODE} for warnings as well."),
    ] = False,
    deep: Deep = False,
    as_json: AsJson = False,
) -> None:
    """Find what is wrong with the queues in and below a directory. Changes nothing, never waits.

    Exit code 3 if there is an error, with --check also if there is a warning.
    """
    with reporting(as_json=as_json):
        results = doctor.examine(OsFs(), SystemClock(), root, deep=deep)
        if as_json:
            output.print_json({"root": root, "queues": [_findings_json(result) for result in results]})
        elif not results:
            print(f"no queues found under {printable(root)}")
        else:
            for result in results:
                _print_findings(result)
    severities = {finding.severity for result in results for finding in result.findings}
    if Severity.ERROR in severities or (check and Severity.WARNING in severities):
        raise typer.Exit(FINDINGS_EXIT_CODE)


def _print_findings(result: QueueFindings) -> None:
    candidates = result.candidates
    range_text = f", {candidates[0]} to {candidates[-1]}" if candidates else ""
    fields = [
        ("queue", printable(result.path)),
        ("writer", _writer(result.lock)),
        ("deletable segments", f"{len(candidates)}{range_text}"),
    ]
    if not result.findings:
        fields.append(("findings", "none"))
    output.print_fields(fields)
    if result.findings:
        rows = [
            (str(finding.severity), finding.code, output.one_line(finding.message))
            for finding in result.findings
        ]
        output.print_table(Table("findings", ("severity", "code", "what it is and what to do"), rows))
    print()


def _findings_json(result: QueueFindings) -> dict[str, Any]:
    candidates = result.candidates
    return {
        "queue": result.path,
        "lock": lock_json(result.lock),
        "retention_candidates": {
            "count": len(candidates),
            "first": candidates[0] if candidates else None,
            "last": candidates[-1] if candidates else None,
        },
        "control_error": error_json(result.control_error),
        "findings": msgspec.to_builtins(result.findings),
    }


# -- bench ---------------------------------------------------------------------------------


@app.command("bench", epilog="Example: everlog queue bench --read --payload-bytes 64 --payload-bytes 1024")
def bench_command(
    queue_path: BenchPath = None,
    messages: Messages = 100_000,
    payload_bytes: Annotated[
        list[int] | None, typer.Option(min=0, help="Payload size; may be repeated. Default: 256.")
    ] = None,
    read: ReadBack = False,
    keep: Keep = False,
    as_json: AsJson = False,
) -> None:
    """Measure how fast this machine and disk append (and read) messages, one call each."""
    request = BenchRequest(queue_path, messages, payload_bytes or [256], read, keep)
    with reporting(as_json=as_json):
        show_progress = output.is_terminal() and not as_json
        result = bench(request, SystemClock(), show_progress=show_progress)
        if as_json:
            output.print_json(_bench_json(result))
        else:
            _print_bench(result)


def _print_bench(result: BenchResult) -> None:
    rows = []
    for run in result.runs:
        for what, rate in (("write", run.write), ("read", run.read)):
            if rate is not None:
                rows.append(
                    (
                        what,
                        str(run.payload_bytes),
                        str(rate.messages),
                        f"{rate.elapsed_ms:.1f}",
                        f"{rate.messages_per_s:,.0f}",
                        f"{rate.megabytes_per_s:,.1f}",
                    )
                )
    columns = ("what", "payload bytes>", "messages>", "elapsed ms>", "messages/s>", "MB/s>")
    output.print_table(Table(f"queue at {printable(result.queue_path)}", columns, rows))
    print("kept" if result.kept else "removed again")


def _bench_json(result: BenchResult) -> dict[str, Any]:
    return {
        "queue_path": result.queue_path,
        "runs": [
            {
                "payload_bytes": run.payload_bytes,
                "messages": run.write.messages,
                "write": _rate_json(run.write),
                "read": _rate_json(run.read) if run.read else None,
            }
            for run in result.runs
        ],
        "cleanup": "kept" if result.kept else "removed",
    }


def _rate_json(rate: Rate) -> dict[str, float]:
    return {
        "elapsed_ms": round(rate.elapsed_ms, 3),
        "msg_per_sec": round(rate.messages_per_s, 1),
        "mb_per_sec": round(rate.megabytes_per_s, 3),
    }


app.command("merge", epilog="Example: everlog queue merge btc eth --into both --by exchange")(merge_command)
app.command("snapshots", epilog="Example: everlog queue snapshots ./queue")(snapshots_command)
app.command("snapshotter", epilog="Example: everlog queue snapshotter ./queue --interval 10 --keep 100")(
    snapshotter_command
)
