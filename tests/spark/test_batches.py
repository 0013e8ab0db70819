"""A query that hands its batches to a function: what would wait forever is refused."""

from pathlib import Path

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
