"""Numbered tasks without a DataFrame: planning and compiling a query costs a short job more than its work.

For tasks that return little; rows go through Spark as Arrow batches elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pyspark.sql import SparkSession

Result = TypeVar("Result")


def run_in_tasks(spark: SparkSession, tasks: int, work: Callable[[int], Iterator[Result]]) -> list[Result]:
    """Call `work` with each number below `tasks`, each in a task of its own; return all that they yield."""

    def task(numbers: Iterable[int]) -> Iterator[Result]:
        for number in numbers:
            yield from work(number)

    return spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(task).collect()
