"""The command `chron-cli`: the same work as `everlog queue`, printed as `key=value` for scripts.

Owns that output format, which does not change: one line per fact, fields separated by blanks. A
value with blanks or control characters in it is quoted as in JSON; a message runs to the end of
its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from everlog.cli import output
from everlog.cli.bench import BenchRequest, BenchResult, Rate, bench
from everlog.cli.options import (
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
from everlog.cli.output import one_line, printable, reporting
from everlog.cli.queue import FINDINGS_EXIT_CODE, render_hex
from everlog.cli.tail import TailRequest, tail
from everlog.clock import SystemClock
from everlog.fs import OsFs
from everlog.queue import doctor, inspect
from everlog.queue.doctor import QueueFindings
from everlog.queue.findings import Severity
from everlog.queue.inspect import LockInfo, QueueInfo, ReaderInfo

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: chron-cli inspect ./queue",
    help="Look at queues; output as key=value. `everlog queue` does the same with tables and JSON.",
)


@app.command("inspect", epilog="Example: chron-cli inspect ./queue")
def inspect_command(queue: QueuePath) -> None:
    """Print head, writer and readers of a queue."""
    with reporting(as_json=False):
        output.print_lines(list(_inspect_lines(inspect.inspect_queue(OsFs(), SystemClock(), queue))))


def _inspect_lines(info: QueueInfo) -> Iterator[str]:
    if info.control is None:
        assert info.control_error is not None
        raise info.control_error
    control = info.control
    yield f"queue={printable(info.path)}"
    yield (
        f"head_segment={control.head_segment} head_offset={control.head_offset} head_pos={control.head_pos}"
    )
    yield f"segment_size={control.segment_size} writer_epoch={control.writer_epoch}"
    yield f"writer_heartbeat_ns={control.writer_heartbeat_ns}"
    if info.index is not None:
        yield f"index_segment={info.index.segment_id} index_offset={info.index.offset}"
    yield _lock_line(info.lock)
    for reader in info.readers:
        yield _reader_line(reader)


def _lock_line(lock: LockInfo | None) -> str:
    if lock is None:
        return "lock none"
    owner, alive = lock.owner, str(lock.alive).lower()
    return f"lock pid={owner.pid} start_time={owner.start_ticks} epoch={owner.epoch} alive={alive}"


def _reader_line(reader: ReaderInfo) -> str:
    position = reader.position
    if position is None:
        return f"reader name={printable(reader.name)} error={one_line(reader.error or '')}"
    return (
        f"reader name={printable(reader.name)} segment={position.segment_id} offset={position.offset} "
        f"lag_bytes={reader.lag_bytes} lag_segments={reader.lag_segments} "
        f"heartbeat_ns={position.heartbeat_ns}"
    )


@app.command("tail", epilog="Example: chron-cli tail -f --limit 10 ./queue")
def tail_command(
    queue: QueuePath,
    follow: Follow = False,
    reader: ReaderName = None,
    limit: Limit = None,
    start: From = None,
) -> None:
    """Print the messages of a queue: one line of header, then the payload as hex."""
    request = TailRequest(queue, follow, reader, limit, parse_start(start))
    with reporting(as_json=False):
        tail(request, render_hex)


@app.command("doctor", epilog="Example: chron-cli doctor /dev/shm/bus")
def doctor_command(root: RootPath, deep: Deep = False) -> None:
    """Report stale locks, deletable segments and damage of every queue in and below a directory.

    Exit code 3 if there is an error.
    """
    with reporting(as_json=False):
        results = doctor.examine(OsFs(), SystemClock(), root, deep=deep)
        for result in results:
            output.print_lines(list(_doctor_lines(result)))
        if not results:
            print(f"no queues found under {printable(root)}")
    if any(finding.severity is Severity.ERROR for result in results for finding in result.findings):
        raise typer.Exit(FINDINGS_EXIT_CODE)


def _doctor_lines(result: QueueFindings) -> Iterator[str]:
    yield f"queue={printable(result.path)}"
    yield _lock_line(result.lock)
    if result.control_error is not None:
        yield f"control_error={one_line(str(result.control_error))}"
    else:
        candidates = result.candidates
        deletable = f" range={candidates[0]}..={candidates[-1]}" if candidates else ""
        yield f"retention_candidates count={len(candidates)}{deletable}"
    for finding in result.findings:
        yield (
            f"finding code={finding.code} severity={finding.severity} subject={printable(finding.subject)} "
            f"message={one_line(finding.message)}"
        )


@app.command("bench", epilog="Example: chron-cli bench --messages 1000000 --payload-bytes 64 --read")
def bench_command(
    queue_path: BenchPath = None,
    messages: Messages = 100_000,
    payload_bytes: Annotated[int, typer.Option(min=0, help="Payload size.")] = 256,
    read: ReadBack = False,
    keep: Keep = False,
) -> None:
    """Measure how fast this machine and disk append (and read) messages, one call each."""
    request = BenchRequest(queue_path, messages, [payload_bytes], read, keep)
    with reporting(as_json=False):
        result = bench(request, SystemClock(), show_progress=output.is_terminal())
        output.print_lines(list(_bench_lines(result)))


def _bench_lines(result: BenchResult) -> Iterator[str]:
    yield f"queue_path={printable(result.queue_path)}"
    for run in result.runs:
        yield _rate_line("write", run.write)
        if run.read is not None:
            yield _rate_line("read", run.read)
    yield f"cleanup={'kept' if result.kept else 'removed'}"


def _rate_line(what: str, rate: Rate) -> str:
    return (
        f"{what}_elapsed_ms={rate.elapsed_ms:.3f} {what}_msg_per_sec={rate.messages_per_s:.2f} "
        f"{what}_mb_per_sec={rate.megabytes_per_s:.2f}"
    )


output.name_values(app)


def main() -> None:
    """Run `chron-cli`."""
    output.run(app, "chron-cli")
