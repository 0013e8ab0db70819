"""Streams over a topic or a queue that is deleted and made anew: nothing is lost silently."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from everlog.errors import DataLost
from everlog.pipeline.jobs.archive import archive_queue, archive_topics
from everlog.pipeline.jobs.live_replay import follow_books
from everlog.pipeline.lake import LakeTable
from everlog.queue import Queue
from tests.support.http_api import HttpApi
from tests.support.server_processes import running_server
from tests.support.spark_cluster import write_simulated_queue
from tests.support.spark_streams import drain

pytestmark = pytest.mark.timeout(300)


def append(api: HttpApi, topic: str, count: int) -> None:
    """Append numbered records."""
    body = {"records": [{"data": n} for n in range(count)]}
    api.call("POST", f"/topics/{topic}", dict[str, Any], body=body)


def write(path: Path, count: int) -> None:
    """Append messages to a queue, which is created if there is none."""
    with Queue.open_publisher(str(path), segment_size=1 << 14) as writer:
        for number in range(count):
            writer.append(7, str(number).encode(), 1_700_000_000_000_000_000 + number)


def gaps(rows: DataFrame) -> list[tuple[int, int | None, str]]:
    """The gap rows of a table."""
    found = rows.where("kind = 'gap'").orderBy("seq").collect()
    return [(row.seq, row.gap_to, row.reason) for row in found]


@pytest.mark.parametrize("count", [5, 200], ids=["shorter", "longer"])
def test_a_stream_over_a_recreated_topic_fails_or_records_it(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    with running_server(tmp_path, "--memory") as server, HttpApi(server.url) as api:
        append(api, "orders", 100)
        source = spark.readStream.format("everlog.topics").option("url", server.url).option("topic", "orders")
        failing = source.load()
        recording = source.option("onDataLoss", "record").option("columns", "*,instance").load()
        assert drain(failing, tmp_path / "fail") == drain(recording, tmp_path / "record") == [100]
        api.call("DELETE", "/topics/orders", dict[str, Any])
        append(api, "orders", count)
        with pytest.raises(StreamingQueryException, match="was made anew: seq 101"):
            drain(failing, tmp_path / "fail")
        assert sum(drain(recording, tmp_path / "record")) == count + 1
    rows = spark.read.parquet(str(tmp_path / "record" / "out"))
    assert gaps(rows) == [(101, None, "recreated")]
    records = rows.where("kind = 'record'").groupBy("instance").count().collect()
    assert sorted(row["count"] for row in records) == sorted([100, count])


@pytest.mark.parametrize("count", [5, 800], ids=["shorter", "longer"])
def test_an_archive_of_a_queue_made_anew_keeps_both_instances(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    path, lake = tmp_path / "queue", str(tmp_path / "lake")
    write(path, 300)
    archive_queue(spark, str(path), lake, "messages", reader="archive")
    shutil.rmtree(path)
    write(path, count)
    assert archive_queue(spark, str(path), lake, "messages", reader="archive").rows == count + 1
    rows = LakeTable(lake, "messages").read(spark)
    assert gaps(rows) == [(300, None, "recreated")]
    records = rows.where("kind = 'record'").groupBy("instance").count().collect()
    assert sorted(row["count"] for row in records) == sorted([300, count])
    with Queue.open_subscriber(str(path), "archive") as position:
        assert position.next() is None, "retention waits for the archive in the new queue"
        write(path, 3)
        following = position.next()
        assert following is not None and following.seq == count
    assert archive_queue(spark, str(path), lake, "messages", reader="archive").rows == 3


def test_books_are_not_continued_in_another_queue(spark: SparkSession, tmp_path: Path) -> None:
    path, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    write_simulated_queue(path, 200, 1)
    follow_books(spark, path, lake, "tops", follow=False)
    shutil.rmtree(path)
    write_simulated_queue(path, 300, 1)
    with pytest.raises(DataLost, match="was made anew: the books are those"):
        follow_books(spark, path, lake, "tops", follow=False)


def test_what_was_lost_before_the_first_batch_is_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    lake, path = str(tmp_path / "lake"), tmp_path / "queue"
    with running_server(tmp_path, "--memory") as server, HttpApi(server.url) as api:
        body = {"records": [{"data": n} for n in range(100)], "config": {"cap_records": 60}}
        api.call("POST", "/topics/capped", dict[str, Any], body=body)
        archive_topics(spark, server.url, "capped", lake, "records")
    assert gaps(LakeTable(lake, "records").read(spark)) == [(1, 40, "cap")]
    write(path, 1000)
    min(path.glob("*.q")).unlink()
    archive_queue(spark, str(path), lake, "messages")
    ((first, last, reason),) = gaps(LakeTable(lake, "messages").read(spark))
    assert (first, reason) == (0, "retention") and last is not None
    assert LakeTable(lake, "messages").read(spark).count() == 1000 - last


def test_the_first_batch_begins_at_the_position_of_the_reader(spark: SparkSession, tmp_path: Path) -> None:
    path, lake = tmp_path / "queue", str(tmp_path / "lake")
    write(path, 100)
    with Queue.open_subscriber(str(path), "archive", "earliest") as reader:
        reader.read_batch(40)
        reader.commit()
    archive_queue(spark, str(path), lake, "messages", reader="archive")
    rows = LakeTable(lake, "messages").read(spark)
    assert [row.seq for row in rows.orderBy("seq").collect()] == list(range(40, 100))


def test_the_day_is_that_of_utc_whatever_the_session_says(spark: SparkSession, tmp_path: Path) -> None:
    path, lake = tmp_path / "queue", str(tmp_path / "lake")
    day_ns = 86_400_000_000_000
    with Queue.open_publisher(str(path)) as writer:
        for timestamp_ns in (day_ns - 1, day_ns, 2 * day_ns - 1):
            writer.append(7, b"x", timestamp_ns)
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        archive_queue(spark, str(path), lake, "messages")
        rows = LakeTable(lake, "messages").read(spark).orderBy("seq").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [str(row.date) for row in rows] == ["1970-01-01", "1970-01-02", "1970-01-02"]


def test_a_stream_of_topics_survives_a_restart_of_the_server(spark: SparkSession, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    with running_server(tmp_path) as server:
        with HttpApi(server.url) as api:
            append(api, "orders", 50)
        archive_topics(spark, server.url, "orders", lake, "records")
        port = int(server.url.rsplit(":", 1)[1])
    again: list[int] = []

    def restart() -> None:
        with running_server(tmp_path, port=port) as server, HttpApi(server.url) as api:
            append(api, "orders", 30)
            over.wait(120)
            again.append(port)

    over = threading.Event()
    later = threading.Timer(4.0, restart)  # longer than a client that was never answered tries
    later.start()
    try:
        # Nothing listens when it starts; its checkpoint says that the address is right.
        while LakeTable(lake, "records").read(spark).count() < 80:
            archive_topics(spark, f"http://127.0.0.1:{port}", "orders", lake, "records")
    finally:
        over.set()
        later.join()
    assert again == [port]
