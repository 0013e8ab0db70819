"""`kill -9` of the driver of an archive and of a live replay: the tables are as if nothing had been."""

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

from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline import spark_session
from everlog.pipeline.jobs.archive import archive_queue
from everlog.pipeline.jobs.audit import audit_queue
from everlog.pipeline.jobs.live_replay import follow_books
from everlog.pipeline.jobs.replay import replay_books
from everlog.pipeline.lake import LakeTable
from everlog.queue import Queue
from tests.support.processes import fresh_seed

ROUNDS_MAX = 50
REPLAY_ROUNDS_MAX = 10
MOMENT_S = 3.0
BATCH = 150
COMMITS_MAX = 2
"""A driver is let live for at most so many commits, so every round has to bring more batches than that."""

MESSAGES_PER_ROUND = (COMMITS_MAX + 1) * BATCH

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


_REPLAY_DRIVER = """
import sys
from everlog.pipeline import spark_session
from everlog.pipeline.jobs.live_replay import follow_books

def shown(report):
    print(report.rows, flush=True)

spark = spark_session(master="local[1]")
print("started", flush=True)
follow_books(spark, sys.argv[1], sys.argv[2], "live", reader="books", partitions=2,
             options={"maxRecordsPerBatch": sys.argv[3]}, shown=shown)
"""


def start_driver(queue: str, lake: str, complaints: Path, program: str = _DRIVER) -> subprocess.Popen[str]:
    """Start a job in a group of its own, so that its Java process dies with it."""
    command = [sys.executable, "-c", program, queue, lake, str(BATCH)]
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


def live_and_die(driver: subprocess.Popen[str], lives: random.Random, complaints: Path) -> None:
    """Let a driver run for a while: it is killed before, between, in and after its commits."""
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "started\n"
        for _ in range(lives.choice((0, 0, 1, 1, COMMITS_MAX))):
            assert driver.stdout.readline(), complaints.read_text()
        time.sleep(lives.uniform(0.0, MOMENT_S))
    finally:
        kill(driver)


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
            live_and_die(start_driver(queue, lake, complaints), lives, complaints)
            table = LakeTable(lake, "messages").open()
            commits = table.version() + 1 if table is not None else 0
    archive_queue(spark, queue, lake, "messages", reader="archive")
    (stream,) = audit_queue(spark, lake, "messages").streams
    assert commits, "no round got as far as a commit"
    assert (stream.delivered, stream.duplicate, stream.missing, stream.gap) == (written, 0, 0, 0)
    rows = LakeTable(lake, "messages").read(spark).orderBy("seq").select("payload").collect()
    assert [row.payload for row in rows] == [str(number).encode() for number in range(written)]


@pytest.mark.crash
def test_a_live_replay_that_is_killed_at_random_has_the_rows_of_one_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    lives = random.Random(fresh_seed("REPLAY_SEED"))
    rounds = min(REPLAY_ROUNDS_MAX, int(os.environ.get("CRASH_ROUNDS", REPLAY_ROUNDS_MAX)))
    queue, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    venue = SimulatedVenue(3, rate=2000.0, kinds=("l2",), resting_orders=10, block_events=MESSAGES_PER_ROUND)
    with Queue.open_publisher(queue, segment_size=1 << 20, reader_ttl_s=3600.0) as writer:
        # It is compared with a run over everything, for which retention has to wait.
        Queue.open_subscriber(queue, "whole").close()
        for _ in range(rounds):
            for block in venue.blocks(MESSAGES_PER_ROUND):
                block.append_to(writer)
            complaints = tmp_path / "complaints"
            live_and_die(start_driver(queue, lake, complaints, _REPLAY_DRIVER), lives, complaints)
    follow_books(spark, queue, lake, "live", reader="books", follow=False)
    replay_books(spark, queue, lake, "whole")
    for suffix in ("", "_depth", "_report"):
        live, whole = (
            LakeTable(lake, f"{name}{suffix}").read(spark).orderBy("seq").collect()
            for name in ("live", "whole")
        )
        assert live == whole
    assert LakeTable(lake, "live").read(spark).count() > 0
