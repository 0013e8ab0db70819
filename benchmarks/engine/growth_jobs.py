"""What must not depend on how much a topic holds: deletes by tag, and the cost of a record.

Jobs for one pinned process. Each takes many samples in one big topic, because building it is what
takes the time; the samples are dealt out to rounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np

from benchmarks.engine import recovery_jobs, samples
from benchmarks.engine.engines import OPEN_ENDED, TOPIC, opened, with_topic
from benchmarks.queue.machine import Memory
from benchmarks.queue.stats import median, percentile_us
from everlog.topics import Durability, Engine

Numbers = dict[str, float]
Cores = tuple[int, ...]

SINGLE_DELETES_PER_ROUND = 40
MANY_DELETES_PER_ROUND = 8
BATCH_RECORDS = 1000
READ_LIMIT = 1000


# --- Deleting by tag -------------------------------------------------------------------------------------


@contextmanager
def delete_in_memory(
    path: str, count: int, tags: int, rounds: int, cores: Cores
) -> Iterator[Callable[[], list[Numbers]]]:
    """Delete by exact tag among `count` records of an ephemeral topic."""
    with with_topic(path, Durability.EPHEMERAL, cores, OPEN_ENDED) as engine:
        recovery_jobs.fill_with_singles(engine, count, tags)
        yield lambda: _delete_rounds(engine, "delete_ephemeral", count // tags, tags, rounds)


@contextmanager
def delete_on_disk(
    path: str, count: int, tags: int, rounds: int, cores: Cores
) -> Iterator[Callable[[], list[Numbers]]]:
    """The same in a disk topic whose records came back from segments; each delete is logged."""
    with opened(path, cores, OPEN_ENDED) as engine:
        yield lambda: _delete_rounds(engine, "delete_disk", count // tags, tags, rounds)


def _delete_rounds(engine: Engine, name: str, per_tag: int, tags: int, rounds: int) -> list[Numbers]:
    singles = [recovery_jobs.single_tag(number) for number in range(recovery_jobs.SINGLES)]
    shared = [samples.tag_name(number) for number in range(tags)]
    # Any order but that of the appends; the same in every run.
    generator = random.Random(1)
    generator.shuffle(singles)
    generator.shuffle(shared)
    single_tags, shared_tags = iter(singles), iter(shared)
    numbers = []
    for _ in range(rounds):
        one_us = _delete(engine, islice(single_tags, SINGLE_DELETES_PER_ROUND), 1)
        many_us = _delete(engine, islice(shared_tags, MANY_DELETES_PER_ROUND), per_tag)
        per_record_us = max(0.0, (many_us - one_us) / (per_tag - 1))
        numbers.append(
            {
                f"{name}_one_us": one_us,
                f"{name}_many_us": many_us,
                f"{name}_fixed_us": max(0.0, one_us - per_record_us),
                f"{name}_record_us": per_record_us,
            }
        )
    return numbers


def _delete(engine: Engine, tags: Iterator[str], expected: int) -> float:
    """Median time of one delete; the turn of the loop after it is not part of it."""
    elapsed_ns = []
    for tag in tags:
        started_ns = time.perf_counter_ns()
        answer = engine.delete_records(TOPIC, match=tag)
        elapsed_ns.append(time.perf_counter_ns() - started_ns)
        if answer.deleted != expected:
            raise samples.WrongRecord(f"{answer.deleted} records had the tag {tag}, not {expected}")
        engine.write()
        engine.poll()
    return percentile_us(np.array(elapsed_ns, np.int64), 50)


# --- The curve -------------------------------------------------------------------------------------------


@contextmanager
def curve(
    path: str, points: tuple[int, ...], chunk: int, rounds: int, cores: Cores
) -> Iterator[Callable[[], list[Numbers]]]:
    """Fill one disk topic, and at each point time `rounds` chunks of appends and of reads.

    Filling goes on with checkpoints in the background; the chunks are taken while none is running.
    """
    source = samples.batches(BATCH_RECORDS)
    with with_topic(path, Durability.DISK, cores) as engine:
        yield lambda: _climb(engine, source, points, chunk, rounds)


def _climb(
    engine: Engine, source: Iterator[samples.Batch], points: tuple[int, ...], chunk: int, rounds: int
) -> list[Numbers]:
    numbers: list[Numbers] = [{} for _ in range(rounds)]
    generator = random.Random(1)
    peak_mib = 0.0
    for point in points:
        records = point - engine.state(TOPIC).head_seq
        fill_ns = _timed(lambda count=records: samples.fill(engine, TOPIC, source, count)) / records  # type: ignore[misc]
        engine.checkpoint()
        numbers[0][f"curve_fill_{point}_ns"] = fill_ns  # it is climbed once only
        for number in numbers:
            append_ns = _timed(lambda: samples.fill(engine, TOPIC, source, chunk))
            number[f"curve_append_{point}_ns"] = append_ns / chunk
            number[f"curve_diff_{point}_ns"] = _read_anywhere(engine, generator, chunk)
        memory = Memory.of_this_process()
        peak_mib = max(peak_mib, memory.private_mib)
    samples.check_ends(engine, TOPIC, engine.state(TOPIC).head_seq)
    numbers[0]["curve_private_mib"] = peak_mib
    return [number | _flatness(number, points) for number in numbers]


def _flatness(number: Numbers, points: tuple[int, ...]) -> Numbers:
    """The cost at the last point over that at the first."""
    first, last = points[0], points[-1]
    return {
        f"curve_{what}_ratio": number[f"curve_{what}_{last}_ns"] / number[f"curve_{what}_{first}_ns"]
        for what in ("fill", "append", "diff")
        if f"curve_{what}_{first}_ns" in number
    }


def _timed(action: Callable[[], object]) -> int:
    started_ns = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - started_ns


def _read_anywhere(engine: Engine, generator: random.Random, chunk: int) -> float:
    """Nanoseconds a record of reads of 1000 records at random places; the median read."""
    head_seq = engine.state(TOPIC).head_seq
    costs_ns = []
    for _ in range(max(1, chunk // READ_LIMIT)):
        from_seq = generator.randrange(head_seq - READ_LIMIT)
        started_ns = time.perf_counter_ns()
        diff = engine.diff(TOPIC, from_seq, READ_LIMIT)
        costs_ns.append((time.perf_counter_ns() - started_ns) / diff.delivered)
    samples.check_diff(diff, from_seq + 1)
    return median(costs_ns)
