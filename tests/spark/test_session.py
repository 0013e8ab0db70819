"""What a session is set to, and what its Python workers do once."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from everlog.pipeline.gc_freeze import freeze_loaded_modules
from everlog.pipeline.session import _java_options

pytestmark = pytest.mark.timeout(300)
SERIAL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def test_workers_are_reached_through_sockets_of_this_machine(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get("spark.python.unix.domain.socket.enabled") == "true"


@pytest.mark.parametrize("wanted", ["", "-Xss4m"])
def test_garbage_is_collected_for_throughput_unless_another_collector_is_set(wanted: str) -> None:
    options = _java_options({"spark.driver.extraJavaOptions": wanted}).split()
    assert [option for option in options if option.endswith("GC")] == ["-XX:+UseParallelGC"]
    assert set(wanted.split()) <= set(options)


def test_a_collector_that_the_user_names_is_the_only_one() -> None:
    options = _java_options({"spark.driver.extraJavaOptions": SERIAL}).split()
    assert [option for option in options if option.endswith("GC")] == ["-XX:+UseSerialGC"]


def test_what_the_user_says_of_checks_in_java_comes_last_and_so_wins() -> None:
    careful = "-Darrow.enable_unsafe_memory_access=false"
    options = _java_options({"spark.driver.extraJavaOptions": careful}).split()
    said = [option for option in options if option.startswith("-Darrow.enable_unsafe_memory_access=")]
    assert said == ["-Darrow.enable_unsafe_memory_access=true", careful]


def test_java_reads_arrow_columns_without_a_check_of_each_value(spark: SparkSession) -> None:
    java = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    assert java.System.getProperty("arrow.enable_unsafe_memory_access") == "true"
    assert java.System.getProperty("arrow.enable_null_check_for_get") == "false"


def test_a_worker_takes_what_it_has_imported_out_of_collection_once(spark: SparkSession) -> None:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            freeze_loaded_modules()
            first = gc.get_freeze_count()
            kept = [[] for _ in range(100)]  # something new that a second time would find
            freeze_loaded_modules()
            yield pa.RecordBatch.from_pydict({"first": [first], "second": [gc.get_freeze_count()]})
            del kept

    (row,) = spark.range(1, numPartitions=1).mapInArrow(task, "first long, second long").collect()
    assert row.first > 1000
    assert row.second == row.first


def test_a_process_without_a_task_is_left_alone() -> None:
    before = gc.get_freeze_count()
    freeze_loaded_modules()
    assert gc.get_freeze_count() == before
