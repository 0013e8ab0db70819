"""What only everlog does: cost per call inside one process, batches between two, and rolls.

Jobs for `benchmarks.queue.processes`, like those in `jobs.py`. Touches only the public names of
`everlog.queue`.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.queue.loops import WrongMessage, ring
from benchmarks.queue.machine import Memory
from benchmarks.queue.peers.everlog import (
    READER,
    TIMESTAMP_NS,
    TYPE_ID,
    WAIT_MAX_S,
    enter_prepared_segment,
    segment_size_for,
)
from benchmarks.queue.stats import median

PAYLOAD_BYTES = 64
WORDS = PAYLOAD_BYTES // 8
RECORD_DTYPE = np.dtype([("words", "<u8", (WORDS,))])
BATCH_MESSAGES = 4096

ROLL_SEGMENT_BYTES = 64 * 1024
ROLL_WAIT_S = 1.0
# Bursts with pauses: eight pauses a segment are ample time to prepare the next one.
ROLL_BURST_MESSAGES = 64
ROLL_PAUSE_S = 0.001


@dataclass(frozen=True)
class CallCosts:
    """Nanoseconds a message of each call, inside one process."""

    append_ns: float
    append_wall_ns: float
    iterate_ns: float
    append_array_ns: float
    batch_view_ns: float
    batch_view_unchecked_ns: float


@contextmanager
def call_costs(path: str, count: int) -> Iterator[Callable[[], CallCosts]]:
    """Time every call of the hot path, `count` messages each, with no other process at the queue.

    A chunk is written, then read, as it is when a reader keeps up; the result is the median
    chunk. It all happens in a segment that was prepared, as all but a queue's first are.
    """
    from everlog.queue import Queue

    chunks = max(8, count // BATCH_MESSAGES)
    segment_size = segment_size_for((2 * chunks + 2) * BATCH_MESSAGES, PAYLOAD_BYTES)
    with Queue.open_publisher(path, segment_size=segment_size) as writer:
        enter_prepared_segment(writer)
        with Queue.open_subscriber(path, None, "latest") as reader:
            yield lambda: _time_calls(writer, reader, chunks)


def _time_calls(writer: Any, reader: Any, chunks: int) -> CallCosts:
    single_chunks, array_chunks = chunks // 2, chunks
    singles = [
        (
            _append_with_timestamp(writer),
            _iterate(reader),
            _append_with_wall_clock(writer),
            _iterate(reader),
        )
        for _ in range(single_chunks)
    ]
    records = numbered_records(BATCH_MESSAGES)
    arrays = [
        (_append_array(writer, records), _view_batch(reader, verify=number % 2 == 0))
        for number in range(array_chunks)
    ]
    return CallCosts(
        append_ns=median(single[0] for single in singles),
        append_wall_ns=median(single[2] for single in singles),
        iterate_ns=median(chain((single[1] for single in singles), (single[3] for single in singles))),
        append_array_ns=median(array[0] for array in arrays),
        batch_view_ns=median(array[1] for array in arrays[0::2]),
        batch_view_unchecked_ns=median(array[1] for array in arrays[1::2]),
    )


def _append_with_timestamp(writer: Any) -> float:
    append = writer.append
    payloads = ring(PAYLOAD_BYTES)
    started_ns = time.perf_counter_ns()
    for payload in payloads:
        append(TYPE_ID, payload, TIMESTAMP_NS)
    return (time.perf_counter_ns() - started_ns) / len(payloads)


def _append_with_wall_clock(writer: Any) -> float:
    append = writer.append
    payloads = ring(PAYLOAD_BYTES)
    started_ns = time.perf_counter_ns()
    for payload in payloads:
        append(TYPE_ID, payload)
    return (time.perf_counter_ns() - started_ns) / len(payloads)


def _append_array(writer: Any, records: NDArray[Any]) -> float:
    started_ns = time.perf_counter_ns()
    writer.append_array(TYPE_ID, records, TIMESTAMP_NS)
    return (time.perf_counter_ns() - started_ns) / len(records)


def _iterate(reader: Any) -> float:
    first = message = reader.next()
    started_ns = time.perf_counter_ns()
    for message in reader:  # noqa: B007 - the last one is looked at below
        pass
    elapsed_ns = time.perf_counter_ns() - started_ns
    return elapsed_ns / int(message.seq - first.seq)


def _view_batch(reader: Any, *, verify: bool) -> float:
    started_ns = time.perf_counter_ns()
    batch = reader.read_batch(BATCH_MESSAGES, verify=verify)
    records = batch.view(RECORD_DTYPE)
    elapsed_ns = time.perf_counter_ns() - started_ns
    if len(records) != BATCH_MESSAGES or records["words"][-1, 0] != BATCH_MESSAGES - 1:
        raise WrongMessage(f"a batch of {len(records)} came back for one of {BATCH_MESSAGES}")
    return elapsed_ns / len(records)


def numbered_records(count: int) -> NDArray[Any]:
    """Test records as a structured array: each is filled with its own number, from 0."""
    records = np.empty(count, RECORD_DTYPE)
    records["words"] = np.arange(count, dtype="<u8")[:, None]
    return records


@contextmanager
def batch_sender(
    path: str, count: int, segment_size: int, prepared: bool
) -> Iterator[Callable[[], tuple[int, Memory]]]:
    """Append `count` numbered records with `append_array`; the result is when it began.

    With `prepared`, the records go into a segment that lies ready; otherwise into whatever the
    writer finds, beginning with the first segment of a new queue.
    """
    from everlog.queue import Queue

    with Queue.open_publisher(path, segment_size=segment_size) as writer:
        if prepared:
            enter_prepared_segment(writer)
        records = numbered_records(BATCH_MESSAGES)

        def run() -> tuple[int, Memory]:
            words = records["words"]
            started_ns = time.monotonic_ns()
            for _ in range(count // BATCH_MESSAGES):
                writer.append_array(TYPE_ID, records, TIMESTAMP_NS)
                np.add(words, BATCH_MESSAGES, out=words)
            return started_ns, Memory.of_this_process()

        yield run


@contextmanager
def batch_receiver(path: str, count: int) -> Iterator[Callable[[], tuple[int, Memory]]]:
    """Read `count` records in batches and check them; the result is when it ended."""
    from everlog.queue import BusySpin, Queue

    with Queue.open_subscriber(path, READER, "latest", wait_strategy=BusySpin()) as reader:

        def run() -> tuple[int, Memory]:
            want = np.arange(BATCH_MESSAGES, dtype="<u8")
            seen = 0
            while seen < count:
                reader.wait(WAIT_MAX_S)
                batch = reader.read_batch(BATCH_MESSAGES)
                size = len(batch)
                if size:
                    _check_words(batch.view(RECORD_DTYPE)["words"], want[:size], seen)
                    np.add(want, size, out=want)
                    seen += size
                batch.release()
            return time.monotonic_ns(), Memory.of_this_process()

        yield run


def _check_words(words: NDArray[Any], want: NDArray[Any], first: int) -> None:
    # The checksum of each record was compared over all of its bytes; the first and the last word
    # tell that it is the right record, in the right place.
    for column in (0, WORDS - 1):
        if not (words[:, column] == want).all():
            raise WrongMessage(f"word {column} is wrong in the batch that begins with message {first}")


@contextmanager
def rolling_writer(path: str, count: int) -> Iterator[Callable[[], tuple[array[int], list[int]]]]:
    """Time each append while segments of 64 KiB fill up and roll every 511 messages.

    A roll that finds no prepared segment raises, so every roll measured is one with a prepared
    segment. The result: the duration of every append, and the indexes of those that rolled.
    """
    from everlog.queue import Queue

    with Queue.open_publisher(
        path,
        segment_size=ROLL_SEGMENT_BYTES,
        defer_seal_sync=True,
        require_prealloc=True,
        prealloc_wait_s=ROLL_WAIT_S,
    ) as writer:
        yield lambda: _append_timed(writer, count)


def _append_timed(writer: Any, count: int) -> tuple[array[int], list[int]]:
    clock = time.perf_counter_ns
    append = writer.append
    durations = array("q", bytes(8 * count))
    rolled: list[int] = []
    segment_id = writer.segment_id
    for index, payload in enumerate(islice(cycle(ring(PAYLOAD_BYTES)), count)):
        if index % ROLL_BURST_MESSAGES == 0:
            # A thread that never lets go of the interpreter would starve the writer's helper.
            time.sleep(ROLL_PAUSE_S)
        started_ns = clock()
        append(TYPE_ID, payload, TIMESTAMP_NS)
        ended_ns = clock()
        durations[index] = ended_ns - started_ns
        if writer.segment_id != segment_id:
            segment_id = writer.segment_id
            rolled.append(index)
    return durations, rolled
