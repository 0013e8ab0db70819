"""What is measured, in a session with so many cores: every measure is a function that returns numbers.

Owns the measurements; the data is made by `samples`, the table by `report`. Runs in a process of its own for
each number of cores, because a process has one session.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark import samples
from benchmarks.spark.costs import replay
from benchmarks.spark.nothing import NothingFormat
from everlog.market import L3Book, Outputs, ResultMemory
from everlog.market.protocol import L3_RECORD, TypeId
from everlog.market.replay import Replay
from everlog.pipeline import queue_ranges, read_queue, spark_session
from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.jobs.archive import archive_topics
from everlog.pipeline.queue_ranges import QueueBounds
from everlog.pipeline.spark_tasks import run_in_tasks
from everlog.seq_ranges import Gap, SeqRange

Numbers = dict[str, float]
Batches = Iterator[pa.RecordBatch]
NS_PER_S: Final = 1_000_000_000
TURN_OVER: Final = "turn over"
LOOKS: Final = 3
WARM_UP_RECORDS: Final = 100_000
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
BATCHES_A_SAMPLE: Final = 32
TASKS: Final = 4
"""With any number of cores: one and two are compared on the same job."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    scan_records: int
    order_events: int
    order_markets: int
    topic_records: int
    linear_points: tuple[int, ...]
    compared_records: int
    warm_up_jobs: int

    @property
    def queue_records(self) -> int:
        """Records that the plain queue needs."""
        return max(self.scan_records, self.compared_records, *self.linear_points)


FULL: Final = Sizes(
    5_000_000, 16_000_000, 8, 3_000_000, (1_000_000, 5_000_000, 20_000_000, 50_000_000), 20_000_000, 150
)
QUICK: Final = Sizes(1_000_000, 400_000, 4, 100_000, (200_000, 500_000, 1_000_000), 1_000_000, 5)


@dataclass
class Bench:
    """A session, its data, and how much of it."""

    spark: SparkSession
    folder: Path
    sizes: Sizes
    cores: int

    @property
    def plain(self) -> str:
        """The queue of plain records."""
        return str(self.folder / "plain")

    @property
    def orders(self) -> str:
        """The queue of orders."""
        return str(self.folder / "orders")


Measure = Callable[[Bench], Numbers]


def prepare(folder: Path, sizes: Sizes) -> None:
    """Make the queues; both sessions read the same ones."""
    samples.write_plain_queue(str(folder / "plain"), sizes.queue_records)
    samples.write_order_queue(str(folder / "orders"), sizes.order_events, sizes.order_markets)


def _timed_s(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _drop(frame: DataFrame) -> None:
    """Compute every row, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def _queue(bench: Bench, records: int, **options: str) -> DataFrame:
    reader = bench.spark.read.format("everlog.queue").options(toSeq=str(records - 1), **options)
    return reader.load(bench.plain)


def _scan_all_columns(bench: Bench, records: int) -> Numbers:
    return {"scan5_per_s": records / _timed_s(lambda: _drop(_queue(bench, records)))}


def scan_all_columns(bench: Bench) -> Numbers:
    """Segments to a DataFrame of five columns."""
    return _scan_all_columns(bench, bench.sizes.scan_records)


def long_scan(bench: Bench) -> Numbers:
    """The same of more records."""
    return _scan_all_columns(bench, bench.sizes.compared_records)


def scan_one_column(bench: Bench) -> Numbers:
    """Segments to a DataFrame of one number."""
    records = bench.sizes.scan_records
    return {"scan1_per_s": records / _timed_s(lambda: _drop(_queue(bench, records, columns="seq")))}


def condition(bench: Bench) -> Numbers:
    """The first ten records by a condition, over the same by an option; medians of looks."""

    def by_condition() -> None:
        _drop(read_queue(bench.spark, bench.plain, "seq < 10"))

    taken_s = [
        median(_timed_s(work) for _ in range(LOOKS))
        for work in (by_condition, lambda: _drop(_queue(bench, 10)))
    ]
    return {"where_over_option": taken_s[0] / taken_s[1]}


def _private_bytes() -> int:
    """The memory of this process that is not a file's."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * PAGE_BYTES


def _counted(path: str, part: SeqRange) -> tuple[int, int, int]:
    """What a task does: read a range, and return how many records it has and when the newest was.

    Also the most memory of its own that the task was seen with.
    """
    freeze_loaded_modules()
    count, newest, private = 0, 0, 0
    for number, piece in enumerate(queue_ranges.read(path, part)):
        assert not isinstance(piece, Gap)
        count += len(piece)
        newest = max(newest, int(piece.timestamp_ns.max()))
        if number % BATCHES_A_SAMPLE == 0:
            private = max(private, _private_bytes())
    return count, newest, private


def _parts(bench: Bench, records: int) -> list[SeqRange]:
    return queue_ranges.split(QueueBounds(bench.plain).ranges(), SeqRange(0, records), TASKS)


def _check(found: list[tuple[int, int, int]], records: int) -> None:
    assert sum(count for count, _, _ in found) == records, found
    assert max(newest for _, newest, _ in found) == records - 1, found


def _aggregate(bench: Bench, records: int) -> int:
    """Aggregate in tasks that know nothing but their number, as everlog's own jobs run them.

    Returns the memory of the largest task.
    """
    path, parts = bench.plain, _parts(bench, records)

    def task(number: int) -> Iterator[tuple[int, int, int]]:
        yield _counted(path, parts[number])

    found = run_in_tasks(bench.spark, len(parts), task)
    _check(found, records)
    return max(private for _, _, private in found)


def _aggregate_rows(bench: Bench, records: int) -> None:
    """The same as a query: a row for each task."""
    path, parts = bench.plain, _parts(bench, records)

    def task(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                found = zip(("count", "newest", "private"), _counted(path, parts[number]), strict=True)
                yield pa.RecordBatch.from_pylist([dict(found)])

    numbers = bench.spark.range(len(parts), numPartitions=len(parts))
    rows = numbers.mapInArrow(task, "count long, newest long, private long").collect()
    _check([tuple(row) for row in rows], records)


def warm_up(bench: Bench) -> None:
    """Run enough short jobs that Java has compiled what a job needs.

    It does so beside the tasks, on the same cores: a twelfth of a core even after fifty jobs.
    """
    records = min(WARM_UP_RECORDS, bench.sizes.queue_records)
    for _ in range(bench.sizes.warm_up_jobs):
        _aggregate(bench, records)
        _aggregate_rows(bench, records)


def aggregate_inside(bench: Bench) -> Numbers:
    """Aggregate inside the tasks; only results travel."""
    records = bench.sizes.scan_records
    return {"inside_per_s": records / _timed_s(lambda: _aggregate_rows(bench, records))}


def _rate_per_s(spark: SparkSession, records: int) -> float:
    """Spark's rate source, a stream that makes its rows up: one micro-batch, from the start of the query."""
    options = {"rowsPerBatch": str(records), "numPartitions": str(TASKS)}
    rows = spark.readStream.format("rate-micro-batch").options(**options).load()
    started_s = time.perf_counter()
    query = rows.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(batch.numInputRows for batch in query.recentProgress) / (time.perf_counter() - started_s)


def spark_itself(bench: Bench) -> Numbers:
    """Spark's own sources: a scan of the same rows, and what makes as many up."""
    path, records = str(bench.folder / f"parquet-{bench.cores}"), bench.sizes.scan_records
    if not Path(path).exists():
        _queue(bench, records).write.parquet(path)
    return {
        "parquet_per_s": records / _timed_s(lambda: _drop(bench.spark.read.parquet(path))),
        "range_per_s": records / _timed_s(lambda: _drop(bench.spark.range(records))),
        "rate_per_s": _rate_per_s(bench.spark, records),
    }


def _aggregated_s(bench: Bench, records: int) -> float:
    """The median of some looks, of half a second each; the first after a pause takes longer."""
    return median(_timed_s(lambda: _aggregate(bench, records)) for _ in range(LOOKS))


def linear(bench: Bench) -> Numbers:
    """The cost of a record and the memory of a task as the queue gets longer, and the rate of the longest.

    Medians of looks. The growth is of what one record more costs, which the start of a job has no part in.
    """
    points = bench.sizes.linear_points
    samples.fetch(bench.plain)
    taken_s = {records: _aggregated_s(bench, records) for records in points}
    private = {records: _aggregate(bench, records) for records in points}
    first, middle, last = points[0], points[-2], points[-1]
    late_s = (taken_s[last] - taken_s[middle]) / (last - middle)
    early_s = (taken_s[middle] - taken_s[first]) / (middle - first)
    return {
        **{f"linear_{records}_ns": taken_s[records] * NS_PER_S / records for records in points},
        **{f"linear_{records}_bytes": private[records] for records in points},
        "growth": late_s / early_s,
        "memory_growth": private[last] / private[first],
        "longest_per_s": last / taken_s[last],
    }


def longest(bench: Bench) -> Numbers:
    """The rate of the longest queue alone."""
    records = bench.sizes.linear_points[-1]
    return {"longest_per_s": records / _aggregated_s(bench, records)}


def topics(bench: Bench) -> Numbers:
    """Rows into a sink that drops them, rows into a topic, and the topic into the lake."""
    records = bench.sizes.topic_records
    lake = bench.folder / "lake"
    shutil.rmtree(lake, ignore_errors=True)
    rows = bench.spark.range(records, numPartitions=2 * bench.cores).selectExpr(
        "to_json(struct(id, id * 3 as price)) as data", "cast(id % 100 as string) as tag"
    )
    bench.spark.dataSource.register(NothingFormat)
    drained_s = _timed_s(rows.write.format(NothingFormat.name()).mode("append").save)
    with samples.running_server(bench.folder) as url:
        write = rows.write.format("everlog.topics").options(url=url, topic="rows").mode("append")
        written_s = _timed_s(write.save)
        started_s = time.perf_counter()
        report = archive_topics(bench.spark, url, "rows", str(lake), "rows")
        archived_s = time.perf_counter() - started_s
    assert report.rows == records, report
    return {
        "drained_per_s": records / drained_s,
        "sink_per_s": records / written_s,
        "lake_per_s": records / archived_s,
    }


def _kernel_events_per_s(path: str, markets: int) -> float:
    """The bare kernel on one core: arrays that are in memory already, one book for each market.

    Events and results are in memory that was used before, as in the tasks. New memory costs the kernel a
    third of its rate, or nothing if the system happens to have large pages; and what is given back keeps the
    system busy when the next tasks run.
    """
    held = queue_ranges.bounds(path).size // markets
    events, memory = np.empty(held, L3_RECORD), ResultMemory()
    filled, taken_s, count = 0, 0.0, 0
    for some in Replay(path).types(TypeId.BOOK_EVENT).batches():
        records = some.batch.view(L3_RECORD)[some.chosen]
        while len(records):
            taken = min(held - filled, len(records))
            events[filled : filled + taken] = records[:taken]
            records, filled = records[taken:], filled + taken
            if filled == held:
                assert len(np.unique(events["header"]["market_id"])) == 1, "the queue is in order of markets"
                if count == 0:
                    L3Book().apply_array(events, Outputs(), memory)
                taken_s += _timed_s(lambda: L3Book().apply_array(events, Outputs(), memory))
                filled, count = 0, count + held
    return count / taken_s


def replay_orders(bench: Bench) -> Numbers:
    """Books of orders inside tasks as the replay jobs run them, and the kernel alone.

    Each core has a queue to replay, as venues and days are spread over a cluster: one queue is one order of
    events, and tasks that share it all have to read it.
    """
    path, cores = bench.orders, bench.cores
    held = queue_ranges.bounds(path)

    def task(_: int) -> Iterator[int]:
        yield replay(path, held)

    samples.fetch(path)
    started_s = time.perf_counter()
    count = sum(run_in_tasks(bench.spark, cores, task))
    taken_s = time.perf_counter() - started_s
    inside, kernel = count / taken_s / cores, _kernel_events_per_s(path, bench.sizes.order_markets)
    return {"l3_core_per_s": inside, "l3_kernel_per_s": kernel, "l3_share": inside / kernel}


MEASURES: Final[dict[str, Measure]] = {
    "scan5": scan_all_columns,
    "scan1": scan_one_column,
    "where": condition,
    "inside": aggregate_inside,
    "spark": spark_itself,
    "topics": topics,
    "orders": replay_orders,
    "linear": linear,
}


class Compared(NamedTuple):
    """What is measured with one core and with two, and the number that has to grow."""

    measure: Measure
    number: str


COMPARED: Final = {"scan5": Compared(long_scan, "scan5_per_s"), "linear": Compared(longest, "longest_per_s")}
"""Of long ranges, because the start of a job, which is the same with any number of cores, is half of what a
short one takes."""


class Measured(NamedTuple):
    """What a session gave: numbers, and what could not be measured."""

    numbers: list[Numbers]
    failures: list[str]


def _round(bench: Bench, work: dict[str, Measure], failures: list[str]) -> list[Numbers]:
    found = []
    for name, measure in work.items():
        try:
            found.append(measure(bench))
        except Exception as error:  # a failure of one must not cost the others
            failures.append(f"{bench.cores} cores, {name}: {error}")
    return found


def run(folder: Path, sizes: Sizes, cores: int, names: list[str], compared: bool) -> Measured:
    """Measure in a session of so many cores, a round in each turn; the first warms up and does not count.

    All its processes share these cores: with one, Java and Python take turns.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    settings = {"spark.sql.shuffle.partitions": str(cores), "spark.driver.memory": "2g"}
    spark = spark_session(app_name="benchmark", master=f"local[{cores}]", **settings)
    bench, measured = Bench(spark, folder, sizes, cores), Measured([], [])
    table = {name: one.measure for name, one in COMPARED.items()} if compared else MEASURES
    try:
        for number, _ in enumerate(_given_turns()):
            if number == 0:
                warm_up(bench)
            found = _round(bench, {name: table[name] for name in names}, measured.failures)
            if number > 0:
                measured.numbers.extend(found)
    finally:
        spark.stop()
    return measured


def _given_turns() -> Iterator[None]:
    """Yield when a line comes, and say when the turn is over: two sessions that are compared alternate."""
    for _ in sys.stdin:
        yield
        print(TURN_OVER, flush=True)


def request(folder: Path, sizes: Sizes, cores: int, names: list[str], compared: bool, out: Path) -> str:
    """Return the argument with which this module, run as a process, measures."""
    return json.dumps(
        {
            "folder": str(folder),
            "sizes": asdict(sizes),
            "cores": cores,
            "names": names,
            "compared": compared,
            "out": str(out),
        }
    )


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    sizes_given = Sizes(**{**asked["sizes"], "linear_points": tuple(asked["sizes"]["linear_points"])})
    measured = run(Path(asked["folder"]), sizes_given, asked["cores"], asked["names"], asked["compared"])
    Path(asked["out"]).write_text(json.dumps(measured))
