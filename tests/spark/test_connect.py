"""Jobs on Spark Connect, where there is no Spark context: the same tables and queues as on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.support.spark_cluster import FREE_PORT
from tests.support.spark_jobs import run_jobs, write_inputs

ROOT = Path(__file__).parents[2]
PATIENCE_S = 500

pytestmark = pytest.mark.timeout(PATIENCE_S + 100)


def test_all_jobs_on_spark_connect_write_what_a_local_session_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="the extra `connect` is not installed")
    write_inputs(tmp_path)
    answer = tmp_path / "answer"
    # In a process of its own: one process has sessions of one kind only.
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.spark_jobs", tmp_path, tmp_path / "remote", answer],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"} | FREE_PORT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = msgspec.json.decode(answer.read_bytes())
    assert found == run_jobs(spark, tmp_path, tmp_path / "local")
    assert all(found[name] for name in ("messages", "live", "tops", "features", "bars", "events"))
