"""Modules that a Spark worker has loaded are excluded from garbage collection."""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.spark_tasks import run_in_tasks

pytestmark = pytest.mark.timeout(300)
LOADED_AT_LEAST = 20_000
LEFT_AT_MOST = 2_000


class Seen(NamedTuple):
    """What the collector of a worker has to do after one task."""

    worker: int
    frozen: int
    objects: int


def look() -> Seen:
    return Seen(os.getpid(), gc.get_freeze_count(), len(gc.get_objects()))


def by_worker(spark: SparkSession, work: Callable[[int], Iterator[Seen]], rounds: int) -> list[list[Seen]]:
    """Run two tasks as many times; return what each worker found in its tasks, one after the other."""
    found = defaultdict(list)
    for _ in range(rounds):
        for seen in run_in_tasks(spark, 2, work):
            found[seen.worker].append(seen)
    return list(found.values())


def test_from_the_third_task_on_a_worker_collects_nothing_that_it_loaded(spark: SparkSession) -> None:
    def work(_: int) -> Iterator[Seen]:
        freeze_loaded_modules()
        pa.array([{"loads": "pandas"}])
        yield look()

    # Workers that earlier tests have left take turns with those of this one.
    tasks = max(by_worker(spark, work, 24), key=len)
    assert len(tasks) > 3, "workers are used again"
    for seen in tasks[2:]:
        assert seen.frozen > LOADED_AT_LEAST and seen.objects < LEFT_AT_MOST
    assert tasks[2].frozen >= tasks[-1].frozen, "what comes later may be garbage one day"


def test_what_a_later_task_loads_is_exempt_from_the_next_task_on(spark: SparkSession) -> None:
    def plain(_: int) -> Iterator[Seen]:
        freeze_loaded_modules()
        yield look()

    def loading(_: int) -> Iterator[Seen]:
        freeze_loaded_modules()
        late = ModuleType("late")
        late.content = [[] for _ in range(2 * LEFT_AT_MOST)]  # type: ignore[attr-defined]
        sys.modules.setdefault("late", late)
        yield look()

    by_worker(spark, plain, 3)
    loaded = {tasks[0].worker for tasks in by_worker(spark, loading, 1)}
    later = [tasks for tasks in by_worker(spark, plain, 6) if tasks[0].worker in loaded]
    assert later, "workers are used again"
    for tasks in later:
        assert all(seen.objects < LEFT_AT_MOST for seen in tasks)


def test_a_process_without_a_task_is_left_alone() -> None:
    frozen = gc.get_freeze_count()
    freeze_loaded_modules()
    assert gc.get_freeze_count() == frozen
