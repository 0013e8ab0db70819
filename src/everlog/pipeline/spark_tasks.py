"""Numbered tasks on any Spark session, also of Spark Connect: a DataFrame of numbers, mapped in Arrow.

For tasks that return little; rows go through Spark as Arrow batches elsewhere.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

Result = TypeVar("Result")
RESULT: Final = pa.schema([pa.field("result", pa.binary())])
MANY: Final = 1 << 16
"""More numbers than any cluster has cores."""


def run_in_tasks(spark: SparkSession, tasks: int, work: Callable[[int], Iterator[Result]]) -> list[Result]:
    """Call `work` with each number below `tasks`, each in a task of its own; return all that they yield."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                results = [pickle.dumps(result) for result in work(number)]
                yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], schema=RESULT)

    if not tasks:
        return []
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(task, "result binary").collect()
    return [pickle.loads(row.result) for row in rows]


def default_tasks(spark: SparkSession) -> int:
    """Return how many tasks Spark makes of a range by itself: one for each core."""
    places = spark.range(MANY).select(fn.spark_partition_id().alias("place"))
    return int(places.agg(fn.max("place")).collect()[0][0]) + 1
