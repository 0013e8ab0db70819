"""Archives of queues, written and read back in a real Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from everlog.queue import Queue
from tests.support.market_queues import write_market_queue

pytestmark = pytest.mark.timeout(300)

FORMAT = "everlog.queue"
RAW = ("queue", "seq", "ts_ns", "type_id", "payload", "flags")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of market data; some of its trades have flags."""
    path = tmp_path_factory.mktemp("source") / "q"
    write_market_queue(str(path))
    return path


def messages(path: Path) -> list[tuple[int, int, int, int, bytes]]:
    """Everything in a queue, read without Spark."""
    with Queue.open_subscriber(path, None, "earliest") as reader:
        return [
            (view.seq, view.timestamp_ns, view.type_id, view.flags, bytes(view.payload)) for view in reader
        ]


def test_an_archive_reads_like_the_queue_it_was_made_of(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    table = spark.read.format(FORMAT).options(columns=",".join(RAW), partitions=3).load(str(source))
    shuffled = table.repartition(4).repartitionByRange(3, "seq").sortWithinPartitions("seq")
    for name, frame in (("plain", table), ("shuffled", shuffled)):
        archive = tmp_path / name
        frame.write.format(FORMAT).option("segmentSize", 1 << 16).mode("append").save(str(archive))
        assert messages(archive) == messages(source)
        assert len(list(archive.glob("*.q"))) >= 3
        back = spark.read.format(FORMAT).options(columns=",".join(RAW)).load(str(archive))
        assert back.drop("queue").exceptAll(table.drop("queue")).count() == 0
        trades = [
            spark.read.format(FORMAT).option("decode", "trade").load(str(path)).drop("queue").collect()
            for path in (archive, source)
        ]
        assert sorted(trades[0]) == sorted(trades[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "shuffled"]


def test_rows_out_of_order_write_nothing(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    table = spark.read.format(FORMAT).option("partitions", 1).load(str(source))
    backwards = table.orderBy(fn.desc("seq"))
    with pytest.raises(PySparkException, match=r"use repartitionByRange\(n, 'seq'\)"):
        backwards.write.format(FORMAT).mode("append").save(str(tmp_path / "q"))
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_is_run_again_writes_its_messages_once(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    table = spark.read.format(FORMAT).option("partitions", 2).load(str(source))
    mark = str(tmp_path / "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            Path(mark).touch(exist_ok=False)
        except FileExistsError:
            return
        raise RuntimeError("this attempt is lost")

    # In local mode Spark gives up at the first failure, so the whole write is repeated here.
    flaky = table.mapInArrow(fail_once, table.schema)
    target = tmp_path / "archive"
    with pytest.raises(PySparkException, match="this attempt is lost"):
        flaky.write.format(FORMAT).option("segmentSize", 1 << 16).mode("append").save(str(target))
    assert not target.exists()
    flaky.write.format(FORMAT).option("segmentSize", 1 << 16).mode("append").save(str(target))
    assert [message[0] for message in messages(target)] == [message[0] for message in messages(source)]


@pytest.mark.parametrize(("mode", "said"), [("overwrite", "written once"), ("append", "something at")])
def test_what_is_there_is_never_replaced(spark: SparkSession, source: Path, mode: str, said: str) -> None:
    table = spark.read.format(FORMAT).load(str(source))
    before = messages(source)
    with pytest.raises(PySparkException, match=said):
        table.write.format(FORMAT).mode(mode).save(str(source))
    assert messages(source) == before
