"""`kill -9` of an archive's driver, again and again: the table holds every message once in the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from everlog.pipeline import spark_session
from everlog.pipeline.jobs.archive import archive_queue
from everlog.pipeline.jobs.audit import audit_queue
from everlog.pipeline.lake import LakeTable
from everlog.queue import Queue
from tests.support.processes import fresh_seed

ROUNDS_MAX = 50
MESSAGES_PER_ROUND = 400
MOMENT_S = 3.0
BATCH = 150

_DRIVER = """
import sys
from everlog.pipeline import spark_session
from everlog.pipeline.jobs.archive import archive_queue

def shown(report):
    print(report.rows, flush=True)

spark = spark_session(master="local[1]")
print("started", flush=True)
archive_queue(spark, sys.argv[1], sys.argv[2], "messages", reader="archive", follow=True,
              options={"maxRecordsPerBatch": sys.argv[3]}, shown=shown)
"""


def start_driver(queue: str, lake: str, complaints: Path) -> subprocess.Popen[str]:
    """Start an archive in a group of its own, so that its Java process dies with it."""
    command = [sys.executable, "-c", _DRIVER, queue, lake, str(BATCH)]
    with complaints.open("w") as stderr:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )


def kill(driver: subprocess.Popen[str]) -> None:
    """End the driver and its Java process without a chance to tidy up."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert driver.stdout is not None
    driver.stdout.close()


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """A session for the last run and the audit."""
    return spark_session(master="local[2]")


@pytest.mark.crash
def test_an_archive_that_is_killed_at_random_holds_every_message_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    lives = random.Random(fresh_seed("ARCHIVE_SEED"))
    rounds = min(ROUNDS_MAX, int(os.environ.get("CRASH_ROUNDS", ROUNDS_MAX)))
    queue, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    complaints = tmp_path / "complaints"
    written = commits = 0
    # A reader may be dead for longer than the pause between two lives: retention waits for the archive.
    with Queue.open_publisher(queue, segment_size=1 << 16, reader_ttl_s=3600.0) as writer:
        Queue.open_subscriber(queue, "archive").close()
        for _ in range(rounds):
            for _ in range(MESSAGES_PER_ROUND):
                writer.append(7, str(written).encode(), 1_700_000_000_000_000_000 + written)
                written += 1
            driver = start_driver(queue, lake, complaints)
            try:
                assert driver.stdout is not None
                assert driver.stdout.readline() == "started\n"
                # Killed before, between, in and after its commits.
                for _ in range(lives.choice((0, 0, 1, 1, 2))):
                    assert driver.stdout.readline(), complaints.read_text()
                time.sleep(lives.uniform(0.0, MOMENT_S))
            finally:
                kill(driver)
            table = LakeTable(lake, "messages").open()
            commits = table.version() + 1 if table is not None else 0
    archive_queue(spark, queue, lake, "messages", reader="archive")
    (stream,) = audit_queue(spark, lake, "messages").streams
    assert commits, "no round got as far as a commit"
    assert (stream.delivered, stream.duplicate, stream.missing, stream.gap) == (written, 0, 0, 0)
    rows = LakeTable(lake, "messages").read(spark).orderBy("seq").select("payload").collect()
    assert [row.payload for row in rows] == [str(number).encode() for number in range(written)]
