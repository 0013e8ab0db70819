"""One Spark session for all tests here; starting one takes many seconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import java_gateway
from pyspark.sql import SparkSession

from everlog.pipeline import spark_session

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that `make check` can leave them out."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on this machine with two workers."""
    settings = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
    }
    session = spark_session(app_name="everlog-tests", master="local[2]", **settings)
    # Its calls back must come in on a low descriptor; tests of crashes leave many open until the collection.
    gc.collect()
    untyped: Any = java_gateway
    untyped.ensure_callback_server_started(session.sparkContext._gateway)
    yield session
    session.stop()
