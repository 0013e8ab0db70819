"""Declarative pipelines: the tables of a market-data queue as datasets that `spark-pipelines run` builds.

The archive, its decoded events and its gaps follow the queue, every message once. Books and features are
computed anew from what the queue holds, since the events of a market are one sequence. Spark plans, runs and
restarts them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from everlog.market import BookSettings
from everlog.market.feature_rows import Feature, standard_features
from everlog.market.symbols import load_nearby
from everlog.market.triggers import Always, Trigger
from everlog.pipeline import queue_ranges
from everlog.pipeline.accounts import day_of
from everlog.pipeline.jobs.features import FeatureWork
from everlog.pipeline.jobs.market_tasks import Rows, TableRows, TaskFilter
from everlog.pipeline.jobs.replay import REPORT, TOP, BookTables, ReplayPlan
from everlog.pipeline.tables.rows import Names
from everlog.pipeline.tables.schemas import QUOTES

FOLLOWING: Final = {"archive": "raw", "book_l2": "book", "orders_l3": "l3", "trades": "trade"}
"""The tables that follow the queue, and the decoding of each."""

TASKS: Final = 4
GAPS: Final = (
    "SELECT queue, instance, seq AS first_seq, gap_to AS last_seq, reason FROM archive WHERE kind = 'gap'"
)


def market_pipeline(
    queue: str,
    *,
    tasks: int = TASKS,
    settings: BookSettings | None = None,
    features: Sequence[Feature] | None = None,
    trigger: Trigger | None = None,
) -> None:
    """Define the datasets of a queue: `archive`, decoded events, `gaps`, `books` and `features`.

    Decoded events are `book_l2`, `orders_l3` and `trades`. Call it in a file that the specification of a
    pipeline names. `tasks` is to how many tasks the markets are dealt; the rest is as for the jobs `replay`
    and `features`.
    """
    path, settings = os.path.abspath(queue), settings or BookSettings()
    for name, decode in FOLLOWING.items():
        pipelines.table(name=name, partition_cols=["date"])(partial(_messages, path, decode))
    pipelines.materialized_view(name="gaps")(_gaps)
    # All tasks of a run have to end at the same message.
    held = queue_ranges.bounds(path)
    plan = ReplayPlan(settings, depth=0)
    work = FeatureWork(tuple(features or standard_features()), trigger or Always(), settings, None)

    def tops(number: int) -> Iterator[Rows]:
        return BookTables(plan, {TOP: TOP, REPORT: REPORT}).replay(path, held, TaskFilter(tasks, number))

    def rows(number: int) -> Iterator[Rows]:
        return work.features(path, held, TaskFilter(tasks, number), TOP)

    # Made here, because a function of a pipeline may not ask Spark for a schema, as mapInArrow does.
    names, instance = Names(load_nearby(path)), queue_ranges.instance_of(path)
    books = _computed(TableRows(QUOTES, names, path, instance), tasks, tops)
    computed = _computed(TableRows(work.schema, names, path, instance), tasks, rows)
    pipelines.materialized_view(name="books")(lambda: books)
    pipelines.materialized_view(name="features")(lambda: computed)


def _messages(path: str, decode: str) -> DataFrame:
    """The messages of a decoding as they come, and of the archive also the gaps."""
    options = {"path": path, "decode": decode, "onDataLoss": "record", "columns": "*,instance"}
    source = SparkSession.active().readStream.format("everlog.queue").options(**options).load()
    if decode != "raw":
        source = source.where("kind = 'record'")
    return source.withColumn("date", day_of("queue", ()))


def _gaps() -> DataFrame:
    return SparkSession.active().sql(GAPS)


def _computed(made: TableRows, tasks: int, work: Callable[[int], Iterator[Rows]]) -> DataFrame:
    """The rows that tasks compute from the messages that the queue holds."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from (made(rows.batch) for rows in work(number) if rows.table == TOP)

    numbers = SparkSession.active().range(0, tasks, 1, tasks)
    return numbers.mapInArrow(task, from_arrow_schema(made.schema.arrow))
