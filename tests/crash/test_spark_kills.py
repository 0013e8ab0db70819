"""`kill -9` of drivers, executors and Python workers on a cluster: the tables are as if nothing had been.

One driver archives a queue and follows its books at once, in batches so small that it is always at work.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
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
from tests.support.command_lines import Started
from tests.support.import_runs import messages_of
from tests.support.processes import fresh_seed
from tests.support.spark_cluster import Cluster, running_cluster

ROUNDS_MAX = 100
DRIVER, EXECUTOR, PYTHON = "driver", "executor", "Python process"
VICTIMS = (*[DRIVER] * 3, *[EXECUTOR] * 3, *[PYTHON] * 4)
"""Who is killed in ten rounds, in a new order in each ten."""

MOMENT_S = 1.5
COMMIT_PATIENCE_S = 900.0
BATCH = 150
COMMITS_MAX = 2
"""A round waits for at most so many commits, so every round has to bring more batches than that."""

MESSAGES_PER_ROUND = (COMMITS_MAX + 1) * BATCH
JOBS = "tests.support.spark_followers"


def victims(rounds: int, lives: random.Random) -> Iterator[str]:
    """Name who is killed in each round."""
    for begin in range(0, rounds, len(VICTIMS)):
        yield from lives.sample(VICTIMS, min(len(VICTIMS), rounds - begin))


def live_and_die(cluster: Cluster, driver: Started, victim: str, lives: random.Random) -> None:
    """Let the jobs run for a while and kill a process: before, between, in or after commits."""
    driver.discard()
    # Some drivers are killed while they start. Of the others there is something to kill after a commit.
    for _ in range(lives.randint(0 if victim == DRIVER else 1, COMMITS_MAX)):
        try:
            driver.line(timeout_s=COMMIT_PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(cluster.driver_log()) from error
    time.sleep(lives.uniform(0.0, MOMENT_S))
    if victim == EXECUTOR:
        cluster.kill_executor(lives)
    elif victim == PYTHON:
        cluster.kill_python(lives)


@pytest.mark.crash
def test_jobs_whose_processes_are_killed_at_random_have_the_rows_of_one_run(tmp_path: Path) -> None:
    lives = random.Random(fresh_seed("SPARK_KILLS"))
    rounds = min(ROUNDS_MAX, int(os.environ.get("CRASH_ROUNDS", ROUNDS_MAX)))
    queue, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    venue = SimulatedVenue(3, rate=2000.0, kinds=("l2",), resting_orders=10, block_events=MESSAGES_PER_ROUND)
    # A reader may be dead for longer than the pause between two lives: retention waits for the jobs.
    with (
        Queue.open_publisher(queue, segment_size=1 << 18, reader_ttl_s=3600.0) as writer,
        running_cluster(tmp_path / "cluster") as cluster,
        ExitStack() as running,
    ):
        # The books are compared with a run over everything.
        for name in ("archive", "books", "whole"):
            Queue.open_subscriber(queue, name).close()
        driver = None
        for victim in victims(rounds, lives):
            for block in venue.blocks(MESSAGES_PER_ROUND):
                block.append_to(writer)
            if driver is None:
                driver = running.enter_context(cluster.driver(JOBS, queue, lake, BATCH))
            live_and_die(cluster, driver, victim, lives)
            if victim == DRIVER:
                running.close()
                driver = None
    check_tables(spark_session(master="local[2]"), queue, lake)


def check_tables(spark: SparkSession, queue: str, lake: str) -> None:
    """Let the jobs end, and compare what they wrote with the queue and with one run."""
    for name in ("messages", "live"):
        assert LakeTable(lake, name).open() is not None, f"no round got as far as a commit to {name}"
    archive_queue(spark, queue, lake, "messages", reader="archive")
    follow_books(spark, queue, lake, "live", reader="books", follow=False)
    replay_books(spark, queue, lake, "whole")
    written = [(one.seq, bytes(one.payload)) for one in messages_of(Path(queue))]
    (stream,) = audit_queue(spark, lake, "messages", queue=queue).streams
    assert (stream.delivered, stream.duplicate, stream.missing, stream.gap) == (len(written), 0, 0, 0)
    rows = LakeTable(lake, "messages").read(spark).orderBy("seq").select("seq", "payload").collect()
    assert [(row.seq, bytes(row.payload)) for row in rows] == written
    for suffix in ("", "_depth", "_report"):
        live, whole = (
            LakeTable(lake, f"{name}{suffix}").read(spark).orderBy("seq").collect()
            for name in ("live", "whole")
        )
        assert live == whole
    assert LakeTable(lake, "live").read(spark).count() == len(written)
