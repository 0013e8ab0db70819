"""Jobs on a real cluster of processes of which one worker is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pytest

from everlog.market import BookSet, Outputs
from everlog.market.protocol import TypeId
from everlog.market.replay import Replay
from tests.support.command_lines import Started
from tests.support.http_api import HttpApi
from tests.support.processes import eventually
from tests.support.quotes import COLUMNS, top_of
from tests.support.server_processes import running_server
from tests.support.spark_cluster import PATIENCE_S, Cluster, running_cluster, write_simulated_queue
from tests.support.spark_cluster_jobs import MESSAGES_PER_COMMIT

pytestmark = pytest.mark.timeout(900)

SYMBOLS = 24
EVENTS = 40_000
RECORDS = 3000


def rows_of(lake: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Read a table without Spark."""
    found = deltalake.DeltaTable(str(lake / table)).to_pyarrow_table(columns=list(columns))
    return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


def begin(driver: Started, job: str) -> None:
    """Let the driver begin a job."""
    assert driver.process.stdin is not None
    driver.process.stdin.write(f"{job}\n".encode())
    driver.process.stdin.flush()


def ended(driver: Started) -> Any:
    """Wait for the report of the job."""
    return msgspec.json.decode(driver.line())


def kill_when(what: str, pattern: str, count: int, folder: Path, cluster: Cluster) -> None:
    """Kill a worker as soon as so many files are there."""
    eventually(what, lambda: len(list(folder.glob(pattern))) >= count, PATIENCE_S)
    cluster.kill_worker()


def expected_tops(queue: Path) -> dict[int, tuple[Any, ...]]:
    """The top of the book after each event, computed in this process."""
    books, tops = BookSet(), {}
    for some in Replay(str(queue)).types(TypeId.BOOK_EVENT).batches():
        for events, result in books.apply_packed(some.packed, Outputs()).values():
            assert result.top is not None
            tops.update(zip(some.seq[events].tolist(), result.top.tolist(), strict=True))
    return tops


@pytest.mark.crash
def test_a_worker_that_is_killed_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    queue, lake = tmp_path / "queue", tmp_path / "lake"
    messages = write_simulated_queue(str(queue), EVENTS, SYMBOLS)
    with (
        running_server(tmp_path, "--memory") as server,
        running_cluster(tmp_path / "cluster") as cluster,
        cluster.driver("tests.support.spark_cluster_jobs", tmp_path, server.url) as driver,
    ):
        with HttpApi(server.url) as api:
            records = [{"data": number} for number in range(RECORDS)]
            api.call("POST", "/topics/orders", dict[str, Any], body={"records": records})
        begin(driver, "archive")
        kill_when("two batches are committed", "*.json", 2, lake / "messages" / "_delta_log", cluster)
        archived = ended(driver)
        cluster.add_workers(1)
        begin(driver, "topics")
        assert ended(driver)["rows"] == RECORDS
        begin(driver, "replay")
        kill_when("a task has begun to write", "**/*.parquet", 1, lake / "tops", cluster)
        replayed = ended(driver)
    assert archived["batches"] == -(-messages // MESSAGES_PER_COMMIT)
    assert Counter(rows_of(lake, "messages", "seq")) == {(seq,): 1 for seq in range(messages)}
    assert sorted(rows_of(lake, "records", "seq")) == [(seq,) for seq in range(1, RECORDS + 1)]
    tops = [dict(zip(COLUMNS, row, strict=True)) for row in rows_of(lake, "tops", *COLUMNS)]
    assert {row["seq"]: top_of(row) for row in tops} == expected_tops(queue)
    assert replayed["rows"] == len(tops)
