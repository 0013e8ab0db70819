"""How fast an engine is back, and with how much memory: jobs that build data, and jobs that open it.

Data is built once a run and opened in fresh processes, round after round. It is in the page cache
then, as it is after a restart of the server; a cold start adds the time to read it from the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.engine import samples
from benchmarks.engine.engines import OPEN_ENDED, TOPIC, opened, with_topic
from benchmarks.queue.machine import Memory
from benchmarks.queue.stats import NS_PER_S, rate_per_s
from everlog.topics import Durability, Engine, EngineSettings, NewRecord, TopicConfig

Numbers = dict[str, float]
Cores = tuple[int, ...]

BATCH_RECORDS = 1000
TOPICS_PER_TURN = 100
# Tags that only one record has, spread over the topic, for deletes that find a single record.
SINGLES = 1000
SINGLES_PER_BATCH = 10


def topic_records(count: int, tags: int | None) -> Iterator[samples.Batch]:
    """Batches for a topic of `count` records: without tags, with `tags` of them, or (0) all different."""
    if tags is None:
        return samples.batches(BATCH_RECORDS)
    return samples.tagged_batches(BATCH_RECORDS, tags)


def single_tag(number: int) -> str:
    """A tag that only one record has."""
    return f"single-{number:04d}"


# --- Building --------------------------------------------------------------------------------------------


@contextmanager
def build_log(path: str, count: int, tags: int | None, cores: Cores) -> Iterator[Callable[[], Numbers]]:
    """Leave `count` records in the log alone, as a crash before the first checkpoint would."""

    def run() -> Numbers:
        with with_topic(path, Durability.DISK, cores, OPEN_ENDED) as engine:
            samples.fill(engine, TOPIC, topic_records(count, tags), count)
        return {}

    yield run


@contextmanager
def build_segments(path: str, count: int, tags: int | None, cores: Cores) -> Iterator[Callable[[], Numbers]]:
    """Leave `count` records in segments and a final snapshot; with tags, `SINGLES` more in between."""

    def run() -> Numbers:
        with with_topic(path, Durability.DISK, cores) as engine:
            if tags is None:
                samples.fill(engine, TOPIC, topic_records(count, tags), count)
            else:
                fill_with_singles(engine, count, tags)
            engine.checkpoint()
            engine.close()
        return {}

    yield run


def fill_with_singles(engine: Engine, count: int, tags: int) -> None:
    """Append `count` records with `tags` tags, and `SINGLES` with a tag of their own in between."""
    source = topic_records(count, tags)
    steps = SINGLES // SINGLES_PER_BATCH
    for step in range(steps):
        samples.fill(engine, TOPIC, source, count // steps)
        numbers = range(step * SINGLES_PER_BATCH, (step + 1) * SINGLES_PER_BATCH)
        batch = [NewRecord(samples.payload(number), single_tag(number)) for number in numbers]
        engine.wait_for(engine.append(TOPIC, batch).commit)


@contextmanager
def build_idle_topics(path: str, topics: int, cores: Cores) -> Iterator[Callable[[], Numbers]]:
    """Create topics with one record each, checkpoint and close; the result is how long each step took."""

    def run() -> Numbers:
        started_ns = time.perf_counter_ns()
        with opened(path, cores, EngineSettings(max_topics=topics)) as engine:
            _create_topics(engine, topics)
            created_ns = time.perf_counter_ns()
            engine.checkpoint()
            saved_ns = time.perf_counter_ns()
            engine.close()
            closed_ns = time.perf_counter_ns()
        return {
            "create_s": (created_ns - started_ns) / NS_PER_S,
            "checkpoint_s": (saved_ns - created_ns) / NS_PER_S,
            "close_s": (closed_ns - saved_ns) / NS_PER_S,
        }

    yield run


def _create_topics(engine: Engine, topics: int) -> None:
    config = TopicConfig()
    answers = []
    for number in range(topics):
        record = NewRecord(samples.payload(number))
        answers.append(engine.append(f"topic-{number:06d}", [record], create=True, config=config))
        if number % TOPICS_PER_TURN == 0:
            engine.wait_for(answers[-1].commit)
    for answer in answers:
        engine.wait_for(answer.commit)


# --- Opening ---------------------------------------------------------------------------------------------


@contextmanager
def open_from_log(path: str, count: int, cores: Cores) -> Iterator[Callable[[], float]]:
    """Open a directory whose records are all in the log; the result is the rate of records."""

    def run() -> float:
        started_ns = time.perf_counter_ns()
        with opened(path, cores, OPEN_ENDED) as engine:
            elapsed_ns = time.perf_counter_ns() - started_ns
            report = engine.recovery
            assert report is not None
            _check_recovered(engine, report.records_from_log, count)
        return rate_per_s(count, elapsed_ns)

    yield run


@contextmanager
def open_from_segments(path: str, count: int, cores: Cores) -> Iterator[Callable[[], float]]:
    """Open a directory whose records are all in segments; the result is how many seconds it took."""

    def run() -> float:
        started_ns = time.perf_counter_ns()
        with opened(path, cores, OPEN_ENDED) as engine:
            elapsed_ns = time.perf_counter_ns() - started_ns
            report = engine.recovery
            assert report is not None
            _check_recovered(engine, report.records_from_segments, count)
        return elapsed_ns / NS_PER_S

    yield run


def _check_recovered(engine: Engine, recovered: int, count: int) -> None:
    state = engine.state(TOPIC)
    if not recovered == state.count == count:
        raise samples.WrongRecord(f"{recovered} records recovered, {state.count} live, of {count}")
    if engine.diff(TOPIC, count - 1, 1).delivered != 1:
        raise samples.WrongRecord(f"record {count} cannot be read")


@contextmanager
def open_idle_topics(path: str, topics: int, cores: Cores) -> Iterator[Callable[[], Numbers]]:
    """Open a directory with many topics; the result is the time and the growth of resident memory."""

    def run() -> Numbers:
        before = Memory.of_this_process()
        started_ns = time.perf_counter_ns()
        with opened(path, cores, EngineSettings(max_topics=topics)) as engine:
            elapsed_ns = time.perf_counter_ns() - started_ns
            after = Memory.of_this_process()
            last = f"topic-{topics - 1:06d}"
            report = engine.recovery
            if report is None or report.topics != topics or engine.diff(last).delivered != 1:
                raise samples.WrongRecord(f"not all of the {topics} topics came back: {report}")
        resident_mib = after.private_mib + after.mapped_mib - before.private_mib - before.mapped_mib
        return {"idle_start_s": elapsed_ns / NS_PER_S, "idle_resident_mib": resident_mib}

    yield run
