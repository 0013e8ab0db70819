"""Numbered tasks, each in a task of Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from everlog.errors import Corrupt
from everlog.pipeline.spark_tasks import default_tasks, run_in_tasks

pytestmark = pytest.mark.timeout(300)


def test_each_number_has_one_task_of_its_own_and_all_results_come_back(spark: SparkSession) -> None:
    def work(number: int) -> Iterator[tuple[int, int]]:
        context = TaskContext.get()
        assert context is not None
        for _ in range(number):
            yield number, context.partitionId()

    found = Counter(run_in_tasks(spark, 5, work))
    assert found == {(number, number): number for number in range(1, 5)}


def test_by_default_there_is_a_task_for_each_core_and_none_for_no_number(spark: SparkSession) -> None:
    assert default_tasks(spark) == 2
    assert run_in_tasks(spark, 0, lambda number: iter([number])) == []


def test_an_error_in_a_task_keeps_its_message(spark: SparkSession) -> None:
    def work(number: int) -> Iterator[int]:
        if number == 1:
            raise Corrupt("segment 7 is torn")
        yield number

    with pytest.raises(PythonException, match="segment 7 is torn"):
        run_in_tasks(spark, 2, work)
