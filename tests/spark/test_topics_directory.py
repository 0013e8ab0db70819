"""The format `everlog.topics` with `dataDir` in a real Spark session: files of topics, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame, SparkSession

from everlog.topics import Engine, EngineSettings, TopicConfig, record_of
from tests.support.files import UnsyncedFs
from tests.support.model_checks import all_records

pytestmark = pytest.mark.timeout(300)

RECORDS = 5000


def fill(engine: Engine, topic: str, first: int, end: int) -> None:
    """Append records: number n holds its number, every fifth has the tag `five:n`."""
    records = [record_of({"n": n}, tag=None if n % 5 else f"five:{n}") for n in range(first, end)]
    engine.wait_for(engine.append(topic, records, node="writer").commit)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that a running engine has open: hot and cold segments, and records in its log."""
    folder = tmp_path_factory.mktemp("topics")
    small = EngineSettings(
        segment_max_events=500,
        hot_retain_segments=2,
        cold_dir=str(folder / "cold"),
        snapshot_interval_ms=10**9,
    )
    engine = Engine.open(str(folder / "data"), small, fs=UnsyncedFs())
    engine.wait_for(engine.put_topic("small", TopicConfig(cap_records=40)).commit)
    fill(engine, "orders", 0, RECORDS - 1000)
    fill(engine, "small", 0, 100)
    engine.checkpoint()
    assert engine.relocate() > 0
    fill(engine, "orders", RECORDS - 1000, RECORDS)
    engine.wait_for(engine.delete_records("orders", match="five:10").commit)
    yield folder
    assert len(all_records(engine, "orders")) == RECORDS - 1
    engine.close()


def load(spark: SparkSession, folder: Path, topic: str, **options: Any) -> DataFrame:
    """Read topics from files."""
    source = spark.read.format("everlog.topics").option("dataDir", str(folder / "data"))
    return source.options(coldDir=str(folder / "cold"), topic=topic, **options).load()


def test_every_live_record_is_read_once_from_hot_cold_and_log(spark: SparkSession, folder: Path) -> None:
    table = load(spark, folder, "orders", partitions=3)
    assert table.rdd.getNumPartitions() == 3
    rows = sorted(table.collect(), key=lambda row: row.seq)
    assert [row.seq for row in rows] == [seq for seq in range(1, RECORDS + 1) if seq != 11]
    assert all(row.data == f'{{"n":{row.seq - 1}}}' for row in rows)
    assert [row.tag for row in rows[:2]] == ["five:0", None]
    assert {(row.topic, row.node, row.kind, row.gap_to) for row in rows} == {
        ("orders", "writer", "record", None)
    }


def test_several_topics_and_a_tag_are_chosen_at_the_source(spark: SparkSession, folder: Path) -> None:
    counts = load(spark, folder, "orders,sm*", columns="topic").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == {"orders": RECORDS - 1, "small": 40}
    assert load(spark, folder, "orders", tag="five:1*", columns="seq").count() == len(
        [n for n in range(0, RECORDS, 5) if str(n).startswith("1") and n != 10]
    )


def test_what_is_lost_fails_the_read_or_is_a_row(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(PySparkException, match=r"records 3 to 60 of topic 'small' are lost \(cap\)"):
        load(spark, folder, "small", startingOffsets='{"seq": 3}').count()
    rows = load(spark, folder, "small", startingOffsets='{"seq": 3}', onDataLoss="record").collect()
    assert [(row.seq, row.gap_to, row.reason) for row in rows if row.kind == "gap"] == [(3, 60, "cap")]


def test_files_are_no_stream(spark: SparkSession, folder: Path) -> None:
    source = spark.readStream.format("everlog.topics").option("dataDir", str(folder / "data"))
    query = source.option("topic", "orders").load().writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="read a stream by url"):
        query.awaitTermination()
