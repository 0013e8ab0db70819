"""A query that hands its batches to a function: in what order things are kept, and what is refused."""

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from everlog.pipeline.jobs.batches import run_batches
from tests.support.small_queues import run_python

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


def test_a_process_with_too_many_open_files_is_told_so_instead_of_waiting(tmp_path: Path) -> None:
    told = run_python(MANY_FILES, tmp_path / "checkpoint").stdout
    assert "has so many files open" in told and "up to 1023" in told


def taken(spark: SparkSession, checkpoint: Path) -> list[int]:
    """Run a query until it has caught up; return the numbers of its batches."""
    batches: list[int] = []
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "3").load()
    run_batches(rows, str(checkpoint), lambda _, batch: batches.append(batch), follow=False)
    return batches


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
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "3").load()
    seen: list[set[str]] = []
    run_batches(rows, str(checkpoint), lambda *_: seen.append(set(synced)), follow=False)
    offsets = checkpoint / "offsets"
    assert seen
    assert {str(offsets / "0"), str(offsets), str(checkpoint)} <= seen[0]


def test_a_batch_whose_log_a_power_loss_has_emptied_comes_again(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    last = taken(spark, checkpoint)[-1]
    (checkpoint / "commits" / f"{last}").write_bytes(b"")
    (checkpoint / "offsets" / f"{last + 1}").write_bytes(b"")
    assert taken(spark, checkpoint)[0] == last
