"""A quick throughput check of one queue on this machine and this disk: the work behind `bench`.

Owns the measuring and the directory it measures in. It writes with plain `append`, one message a
call, and reads by iteration, checksums included; comparisons with other systems are elsewhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import TaskProgressColumn, TimeRemainingColumn

from everlog.cli.output import progress
from everlog.clock import NS_PER_S, Clock
from everlog.errors import Corrupt, PayloadTooLarge, Unsupported
from everlog.queue import Queue, QueueReader, QueueWriter
from everlog.queue.faults import io_errors
from everlog.queue.layout import HEADER_SIZE, SEG_DATA_OFFSET

TYPE_ID = 1
MEGABYTE = 1_000_000
CHUNK = 1000
"""Messages between two updates of the progress bar."""

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Rate:
    """How long a number of messages took."""

    messages: int
    payload_bytes: int
    elapsed_ns: int

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds for all of them."""
        return self.elapsed_ns / 1e6

    @property
    def messages_per_s(self) -> float:
        """Messages in a second."""
        return self.messages * NS_PER_S / max(1, self.elapsed_ns)

    @property
    def megabytes_per_s(self) -> float:
        """Payload in a second, in millions of bytes."""
        return self.messages_per_s * self.payload_bytes / MEGABYTE


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to measure. Without a path a temporary directory is used."""

    queue_path: str | None
    messages: int
    payload_bytes: Sequence[int]
    read: bool
    keep: bool


@dataclass(frozen=True, slots=True)
class BenchRun:
    """The result for one payload size."""

    payload_bytes: int
    write: Rate
    read: Rate | None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All runs, and where they took place."""

    queue_path: str
    runs: list[BenchRun]
    kept: bool


def bench(request: BenchRequest, clock: Clock, *, show_progress: bool) -> BenchResult:
    """Measure; the queue is removed again unless `keep` is set, also after an error or Ctrl-C."""
    steps = len(request.payload_bytes) * request.messages * (2 if request.read else 1)
    columns = (TaskProgressColumn(), TimeRemainingColumn())
    # Drawing takes time from what is measured, so it is done seldom.
    bar = progress("bench", steps, *columns, as_json=not show_progress, per_second=2)
    with _directory(request) as path, bar as advance:
        runs = _measure(path, request, clock, advance)
    return BenchResult(path, runs, request.keep)


def _measure(path: str, request: BenchRequest, clock: Clock, advance: Advance) -> list[BenchRun]:
    runs = []
    with (
        Queue.open_publisher(path, clock=clock) as writer,
        Queue.open_subscriber(path, None, "earliest", clock=clock) as reader,
    ):
        for payload_bytes in request.payload_bytes:
            started_ns = clock.monotonic_ns()
            _write(writer, request.messages, payload_bytes, advance)
            written_ns = clock.monotonic_ns()
            if request.read:
                _read(reader, writer.next_seq - request.messages, request.messages, advance)
            read_ns = clock.monotonic_ns()
            write = Rate(request.messages, payload_bytes, written_ns - started_ns)
            read = Rate(request.messages, payload_bytes, read_ns - written_ns) if request.read else None
            runs.append(BenchRun(payload_bytes, write, read))
    return runs


def _chunks(messages: int) -> Iterator[int]:
    while messages > 0:
        yield min(CHUNK, messages)
        messages -= CHUNK


def _write(writer: QueueWriter, messages: int, payload_bytes: int, advance: Advance) -> None:
    payload_bytes_max = writer.segment_size - SEG_DATA_OFFSET - HEADER_SIZE
    if payload_bytes > payload_bytes_max:
        # Before the payload is made: it may be larger than the memory.
        raise PayloadTooLarge(
            f"a payload of {payload_bytes} bytes does not fit into a segment of {writer.segment_size} bytes; "
            f"use at most {payload_bytes_max}"
        )
    payload = bytes(range(256)) * (payload_bytes // 256 + 1)
    payload = payload[:payload_bytes]
    append = writer.append
    for chunk in _chunks(messages):
        for _ in range(chunk):
            append(TYPE_ID, payload)
        advance(chunk)


def _read(reader: QueueReader, first_seq: int, messages: int, advance: Advance) -> None:
    expected = first_seq
    for message in reader:
        if message.seq != expected:
            raise Corrupt(f"read seq {message.seq} where {expected} was written; check the disk and memory")
        expected += 1
        if (expected - first_seq) % CHUNK == 0:
            advance(CHUNK)
    if expected != first_seq + messages:
        raise Corrupt(f"wrote {messages} messages but read {expected - first_seq}; check the disk and memory")


@contextmanager
def _directory(request: BenchRequest) -> Iterator[str]:
    """Provide an empty directory and, unless it is kept, remove what was put there."""
    path = request.queue_path
    with io_errors(f"prepare {path or 'a temporary directory'} for the benchmark"):
        if path is None:
            path = tempfile.mkdtemp(prefix="everlog-bench-")
            created = True
        else:
            created = not os.path.exists(path)
            os.makedirs(path, exist_ok=True)
            if os.listdir(path):
                raise Unsupported(
                    f"{path} is not empty; a benchmark writes only to a new or empty directory: "
                    "name another one, or none to use a temporary one"
                )
    try:
        yield path
    finally:
        if not request.keep:
            with io_errors(f"clean up {path}"):
                _empty(path)
                if created:
                    os.rmdir(path)


def _empty(path: str) -> None:
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
