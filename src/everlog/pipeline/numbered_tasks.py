"""Work that tasks do by themselves, each knowing nothing but its number.

Owns how it is given to Spark: without a DataFrame, because a query has to be planned and compiled before its
first task starts, which costs a short job more than its work. For tasks that return little; rows travel as
Arrow batches elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pyspark.sql import SparkSession

Result = TypeVar("Result")


def in_tasks(spark: SparkSession, tasks: int, work: Callable[[int], Iterator[Result]]) -> list[Result]:
    """Run `work` in so many tasks, with the numbers from 0 on, and return all that they yield."""

    def task(numbers: Iterable[int]) -> Iterator[Result]:
        for number in numbers:
            yield from work(number)

    return spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(task).collect()
