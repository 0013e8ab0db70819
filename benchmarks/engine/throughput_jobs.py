"""How fast records get in and out, and what they cost in memory: jobs for one pinned process.

Every job is a context manager for `benchmarks.queue.processes`: it yields the function that does the
timed work and returns its numbers by name. A turn of a server's loop is append, write, poll.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.engine import samples
from benchmarks.engine.engines import OPEN_ENDED, TOPIC, with_topic
from benchmarks.queue.stats import MIB, NS_PER_S, percentile_us, rate_per_s
from everlog.native.topics.log import FrameBuffer, RecordBatch, TopicLog, scan_log_frames
from everlog.topics import Durability, Engine
from everlog.topics.records import NewRecord

Numbers = dict[str, float]
Cores = tuple[int, ...]

BATCH_SIZES = (100, 1000)
READ_LIMIT = 1000
KERNEL_BATCH_RECORDS = 1000
KERNEL_TIME_NS = NS_PER_S // 4
SMALL_SCAN_BYTES = MIB // 4
# Blocks of the index are 4096 records long; with fewer records the unused rest of the last one counts.
INDEX_RECORDS_MIN = 50_000


# --- Getting in ------------------------------------------------------------------------------------------


@contextmanager
def appends(directory: str, count: int, lone_commits: int, cores: Cores) -> Iterator[Callable[[], Numbers]]:
    """Append `count` records per class and batch size; then wait for each commit, `lone_commits` times."""
    path = Path(directory) / "appends"
    ready = {size: samples.batches(size) for size in BATCH_SIZES}

    def run() -> Numbers:
        numbers: Numbers = {}
        for durability in Durability:
            for size in BATCH_SIZES:
                with with_topic(path, durability, cores) as engine:
                    name = f"append_{durability}_{size}_per_s"
                    numbers[name] = _append_turns(engine, ready[size], count)
                shutil.rmtree(path)
        for durability in (Durability.DISK, Durability.FSYNC):
            for size in (1, 100):
                with with_topic(path, durability, cores) as engine:
                    name = f"append_{durability}_lone_{size}_us"
                    numbers[name] = _append_and_await(engine, size, lone_commits)
                shutil.rmtree(path)
        return numbers

    yield run


def _append_turns(engine: Engine, source: Iterator[samples.Batch], count: int) -> float:
    first = engine.state(TOPIC).head_seq
    started_ns = time.perf_counter_ns()
    samples.fill(engine, TOPIC, source, count)
    elapsed_ns = time.perf_counter_ns() - started_ns
    appended = engine.state(TOPIC).head_seq - first
    if appended < count:
        raise samples.WrongRecord(f"{appended} records can be read, but {count} were acknowledged")
    return rate_per_s(appended, elapsed_ns)


def _append_and_await(engine: Engine, size: int, commits: int) -> float:
    """Median time until a batch is acknowledged when nothing else is on its way."""
    elapsed_ns = np.empty(commits, np.int64)
    ready = samples.take(samples.batches(size), commits)
    for number, batch in enumerate(ready):
        started_ns = time.perf_counter_ns()
        engine.wait_for(engine.append(TOPIC, batch).commit)
        elapsed_ns[number] = time.perf_counter_ns() - started_ns
    return percentile_us(elapsed_ns, 50)


# --- Getting out -----------------------------------------------------------------------------------------


@contextmanager
def diffs(directory: str, count: int, cores: Cores) -> Iterator[Callable[[], Numbers]]:
    """Read `count` records, rendered as JSON, out of the log, of segments and of memory."""
    base = Path(directory)
    with (
        with_topic(base / "disk", Durability.DISK, cores, OPEN_ENDED) as disk,
        with_topic(base / "ephemeral", Durability.EPHEMERAL, cores, OPEN_ENDED) as ephemeral,
    ):
        for engine in (disk, ephemeral):
            samples.fill(engine, TOPIC, samples.batches(READ_LIMIT), count)

        def run() -> Numbers:
            numbers = {
                "diff_log_per_s": _read_through(disk),
                "diff_ephemeral_per_s": _read_through(ephemeral),
            }
            disk.checkpoint()
            return numbers | {"diff_segments_per_s": _read_through(disk)}

        yield run
    shutil.rmtree(base / "disk")
    shutil.rmtree(base / "ephemeral")


def _read_through(engine: Engine) -> float:
    count = engine.state(TOPIC).head_seq
    started_ns = time.perf_counter_ns()
    samples.read_all(engine, TOPIC, count, READ_LIMIT)
    elapsed_ns = time.perf_counter_ns() - started_ns
    samples.check_ends(engine, TOPIC, count)
    return rate_per_s(count, elapsed_ns)


# --- Kernels and memory ----------------------------------------------------------------------------------


@contextmanager
def kernels(scan_bytes: int) -> Iterator[Callable[[], Numbers]]:
    """Frame and scan without an engine around it; the large scan is as long as a log file."""
    payloads = [samples.payload(number) for number in range(KERNEL_BATCH_RECORDS)]

    def run() -> Numbers:
        return {
            "encode_per_s": _encode(payloads),
            "scan_small_per_s": _scan(_frames(payloads, SMALL_SCAN_BYTES)),
            "scan_large_per_s": _scan(_frames(payloads, scan_bytes)),
        }

    yield run


def _encode(payloads: list[bytes]) -> float:
    buffer = FrameBuffer()
    batch = RecordBatch([NewRecord(payload) for payload in payloads])
    frames = 0
    started_ns = time.perf_counter_ns()
    while (elapsed_ns := time.perf_counter_ns() - started_ns) < KERNEL_TIME_NS:
        buffer.clear()
        TopicLog(1).append(buffer, 1, 0, batch, 1, 0, None, False)
        frames += len(payloads)
    if scan_log_frames(buffer).frames != len(payloads):
        raise samples.WrongRecord("the frames that were encoded last cannot be read")
    return rate_per_s(frames, elapsed_ns)


def _frames(payloads: list[bytes], size: int) -> FrameBuffer:
    buffer = FrameBuffer(size)
    batch = RecordBatch([NewRecord(payload) for payload in payloads])
    while len(buffer) < size:
        TopicLog(1).append(buffer, 1, 0, batch, 1, 0, None, False)
    return buffer


def _scan(buffer: FrameBuffer) -> float:
    frames = 0
    started_ns = time.perf_counter_ns()
    while (elapsed_ns := time.perf_counter_ns() - started_ns) < KERNEL_TIME_NS:
        scan = scan_log_frames(buffer)
        frames += scan.frames
    if scan.end != len(buffer) or scan.outcome != "end":
        raise samples.WrongRecord(f"the scan stopped at {scan.end} of {len(buffer)}: {scan.outcome}")
    return rate_per_s(frames, elapsed_ns)


@contextmanager
def index_memory(count: int) -> Iterator[Callable[[], Numbers]]:
    """Bytes a record in the index of a topic besides its frame: the most at any length up to `count`."""

    def run() -> Numbers:
        return {
            "index_bytes": _index_bytes(samples.batches(1000), count)[0],
            "tag_bytes_shared": _index_bytes(samples.tagged_batches(1000, 1000), count)[1],
            "tag_bytes_distinct": _index_bytes(samples.tagged_batches(1000, 0), count)[1],
        }

    yield run


def _index_bytes(source: Iterator[samples.Batch], count: int) -> tuple[float, float]:
    """The most that the index of records and the index of tags take, each divided by the records."""
    log, buffer = TopicLog(1), FrameBuffer()
    index_bytes = tag_bytes = 0.0
    for batch in source:
        buffer.clear()
        log.append(buffer, 1, 0, batch, 1, 0, None, False)
        records = log.live_count
        if records >= INDEX_RECORDS_MIN:
            index_bytes = max(index_bytes, log.index_memory_bytes / records)
            tag_bytes = max(tag_bytes, log.tag_memory_bytes / records)
        if records >= count:
            return index_bytes, tag_bytes
    raise AssertionError("the batches are endless")
