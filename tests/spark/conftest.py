"""One Spark session for all tests here; starting one takes many seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from everlog.pipeline import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on this machine with two workers."""
    settings = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
    }
    session = spark_session(app_name="everlog-tests", master="local[2]", **settings)
    yield session
    session.stop()
