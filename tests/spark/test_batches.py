"""A query that passes its batches to a function: the order of its syncs and commits, and what is refused."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from everlog.pipeline.jobs.batches import run_batches
from tests.support.command_lines import run_python

MANY_FILES = """
import os, sys
from everlog.errors import Unsupported
from everlog.pipeline import spark_session
from everlog.pipeline.jobs.batches import run_batches

held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
spark = spark_session(master="local[1]")
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "3").load()
try:
    run_batches(rows, sys.argv[1], lambda rows, batch: None, follow=False)
except Unsupported as error:
    print(error)
spark.stop()
"""


def test_a_process_with_too_many_open_files_fails_instead_of_waiting(tmp_path: Path) -> None:
    told = run_python(MANY_FILES, tmp_path / "checkpoint").stdout
    assert "has so many files open" in told and "up to 1023" in told


def take_batches(spark: SparkSession, checkpoint: Path, take: Callable[[int], None]) -> None:
    """Run a query until it has caught up; `take` gets the number of each batch."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "3").load()
    run_batches(rows, str(checkpoint), lambda _, batch: take(batch), follow=False)


def test_the_range_of_a_batch_is_on_disk_before_the_batch_is_handed_over(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    original = os.fsync

    def fsync(fd: int) -> None:
        original(fd)
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint = tmp_path / "checkpoint"
    seen: list[set[str]] = []
    take_batches(spark, checkpoint, lambda _: seen.append(set(synced)))
    offsets = checkpoint / "offsets"
    assert seen
    assert {str(offsets / "0"), str(offsets), str(checkpoint)} <= seen[0]


def test_a_batch_whose_log_a_power_loss_has_emptied_comes_again(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    taken: list[int] = []
    take_batches(spark, checkpoint, taken.append)
    last = taken[-1]
    (checkpoint / "commits" / f"{last}").write_bytes(b"")
    (checkpoint / "offsets" / f"{last + 1}").write_bytes(b"")
    again: list[int] = []
    take_batches(spark, checkpoint, again.append)
    assert again[0] == last
