"""The chain from the frames of a feed to the audits of its tables, run on a session of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from everlog.market import BookSet, Outputs
from everlog.market.protocol import TypeId
from everlog.market.replay import Replay
from everlog.pipeline import register
from everlog.pipeline.lake import LakeTable
from tests.support.object_stores import moto_server
from tests.support.quotes import COLUMNS, top_of
from tests.support.spark_chain import CONNECT, QUEUE, Found, run_chain, write_inputs
from tests.support.spark_cluster import FREE_PORT, QUICK_JAVA, running_cluster

ROOT = Path(__file__).parents[2]
PATIENCE_S = 800

pytestmark = pytest.mark.timeout(PATIENCE_S + 200)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The queue of a feed, and files of a vendor."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake of the chain on this machine."""
    return tmp_path_factory.mktemp("local") / "lake"


@pytest.fixture(scope="module")
def expected(spark: SparkSession, inputs: Path, lake: Path) -> Found:
    """What the chain leaves on this machine."""
    return run_chain(spark, inputs, str(lake), lake.parent)


def run_process(where: str, inputs: Path, folder: Path, environment: dict[str, str]) -> Found:
    """Run the chain in a process of its own; its lake is below the folder."""
    answer = folder / "answer"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.spark_chain", where, inputs, folder, answer],
        cwd=ROOT,
        env={name: value for name, value in environment.items() if name != "PYSPARK_GATEWAY_PORT"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: Found = msgspec.json.decode(answer.read_bytes())
    return found


def books_of(queue: Path) -> dict[int, tuple[Any, ...]]:
    """The top of the book after each event, computed in this process."""
    books, tops = BookSet(), {}
    for some in Replay(str(queue)).types(TypeId.BOOK_EVENT).batches():
        for events, result in books.apply_packed(some.packed, Outputs()).values():
            assert result.top is not None
            tops.update(zip(some.seq[events].tolist(), result.top.tolist(), strict=True))
    return tops


def test_quotes_on_this_machine_are_the_tops_of_the_library_s_books(
    spark: SparkSession, inputs: Path, lake: Path, expected: Found
) -> None:
    rows = LakeTable(lake, "quotes").read(spark).select(*COLUMNS).collect()
    assert len(rows) == len(expected["quotes"])
    assert {row.seq: top_of(row.asDict()) for row in rows} == books_of(inputs / QUEUE)


def test_a_standalone_cluster_and_a_command_on_it(inputs: Path, expected: Found, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        assert run_process(cluster.url, inputs, tmp_path, cluster.environment) == expected
        audit = cluster.run("pipeline", "audit", "--lake", tmp_path / "lake", "--table", "messages")
        assert audit["is_sound"]


def test_spark_connect(inputs: Path, expected: Found, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the extra `connect` is not installed")
    assert run_process(CONNECT, inputs, tmp_path, {**os.environ, **FREE_PORT, **QUICK_JAVA}) == expected


def test_a_lake_in_an_object_store(
    spark: SparkSession, inputs: Path, expected: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with moto_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
        register(spark)  # the format keeps the environment that it was registered in
        assert run_chain(spark, inputs, server.url("lake"), tmp_path) == expected
    register(spark)
