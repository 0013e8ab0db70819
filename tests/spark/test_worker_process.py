"""What a worker of Spark has loaded is no work for its collector."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from everlog.pipeline.numbered_tasks import in_tasks
from everlog.pipeline.worker_process import settle_worker

pytestmark = pytest.mark.timeout(300)
LOADED_AT_LEAST = 20_000
LEFT_AT_MOST = 2_000


def test_from_the_third_task_on_a_worker_collects_nothing_that_it_loaded(spark: SparkSession) -> None:
    def work(_: int) -> Iterator[tuple[int, int, int]]:
        settle_worker()
        pa.array([{"loads": "pandas"}])
        yield os.getpid(), gc.get_freeze_count(), len(gc.get_objects())

    found = defaultdict(list)
    for _ in range(6):
        for worker, frozen, seen in in_tasks(spark, 2, work):
            found[worker].append((frozen, seen))
    tasks = max(found.values(), key=len)
    assert len(tasks) > 3, "workers are used again"
    for frozen, seen in tasks[2:]:
        assert frozen > LOADED_AT_LEAST and seen < LEFT_AT_MOST
    assert tasks[2][0] >= tasks[-1][0], "what comes later may be garbage one day"


def test_a_process_without_a_task_is_left_alone() -> None:
    frozen = gc.get_freeze_count()
    settle_worker()
    assert gc.get_freeze_count() == frozen
