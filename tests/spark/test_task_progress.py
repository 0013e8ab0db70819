"""The line that shows how far a Spark job is: of a real session, on a real terminal."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from everlog.cli import task_progress
from everlog.cli.task_progress import TaskProgress, tasks_line
from tests.support.processes import eventually

TASKS = 5
FREE_TASKS = 3
"""So many do not wait; the session has two workers, so the others are held up by the two that do."""
pytestmark = pytest.mark.timeout(300)


@contextmanager
def held_job(spark: SparkSession, folder: Path) -> Iterator[None]:
    """A job that has done some of its tasks and does the others when the block is over."""
    leave = folder / "leave"

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column("id").to_pylist()[0] >= FREE_TASKS:
                eventually("the test is over", leave.exists)
            yield batch

    with ThreadPoolExecutor(1) as pool:
        rows = spark.range(TASKS, numPartitions=TASKS).mapInArrow(task, "id long")
        job = pool.submit(rows.count)
        try:
            yield
        finally:
            leave.touch()
        assert job.result() == TASKS


def test_the_line_counts_the_tasks_that_are_done(spark: SparkSession, tmp_path: Path) -> None:
    with held_job(spark, tmp_path):
        eventually(
            "three tasks are done", lambda: tasks_line(spark).endswith(f": {FREE_TASKS} of {TASKS} tasks")
        )
    eventually("nothing runs", lambda: tasks_line(spark) == "")


def test_a_terminal_is_shown_the_line_and_a_file_is_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_progress, "INTERVAL_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    shown = bytearray()
    with os.fdopen(theirs, "w") as terminal, open(tmp_path / "log", "w+") as file:
        with held_job(spark, tmp_path):
            monkeypatch.setattr(sys, "stderr", file)
            with TaskProgress(spark):
                pass
            monkeypatch.setattr(sys, "stderr", terminal)
            with TaskProgress(spark):
                while f"{FREE_TASKS} of {TASKS} tasks".encode() not in shown:
                    shown += os.read(ours, 4096)
        monkeypatch.undo()
        assert file.tell() == 0
    os.close(ours)
