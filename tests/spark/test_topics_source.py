"""The format `everlog.topics` in a real Spark session, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame, SparkSession

from everlog.bridge import QueueToTopic, QueueToTopicSettings
from everlog.client import Client
from everlog.pipeline import queue_ranges
from everlog.queue import Queue
from tests.support.http_api import HttpApi
from tests.support.server_processes import running_server
from tests.support.spark_streams import drain

pytestmark = pytest.mark.timeout(300)

FORMAT = "everlog.topics"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpApi]:
    """A server with keys; topics `orders` (2500 records), `trades` and `small` (capped)."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "server.toml").write_text('api_keys = "sesame"\n')
    with (
        running_server(folder, "--memory", "--config", folder / "server.toml", key="sesame") as running,
        HttpApi(running.url, "sesame") as api,
    ):
        append(api, "orders", 0, 1000)
        append(api, "orders", 1000, 2500)
        append(api, "trades", 0, 10)
        append(api, "small", 0, 100, config={"cap_records": 40})
        yield api


def append(api: HttpApi, topic: str, first: int, end: int, **fields: Any) -> None:
    """Append records: number n holds its number, every fifth has the tag `five:n`."""
    records = [{"data": {"n": n}, **({"tag": f"five:{n}"} if n % 5 == 0 else {})} for n in range(first, end)]
    body = {"records": records, "node": "writer", **fields}
    api.call("POST", f"/topics/{topic}", dict[str, Any], body=body)


def load(spark: SparkSession, server: HttpApi, topic: str, **options: Any) -> DataFrame:
    """Read topics with the right key."""
    source = spark.read.format(FORMAT).option("url", str(server.address)).option("topic", topic)
    return source.options(**{"key": "sesame", **options}).load()


def test_every_record_is_read_once_with_all_its_fields(spark: SparkSession, server: HttpApi) -> None:
    table = load(spark, server, "orders", partitions=3)
    assert table.rdd.getNumPartitions() == 3
    rows = sorted(table.collect(), key=lambda row: row.seq)
    assert [row.seq for row in rows] == list(range(1, 2501))
    assert [row.data for row in rows[:2]] == ['{"n":0}', '{"n":1}']
    assert [row.tag for row in rows[:2]] == ["five:0", None]
    assert {(row.topic, row.node, row.kind, row.gap_to) for row in rows} == {
        ("orders", "writer", "record", None)
    }
    assert rows[0].ts.year >= 2024


def test_bridged_records_say_which_message_of_a_queue_they_were(
    spark: SparkSession, server: HttpApi, tmp_path: Path
) -> None:
    with Queue.open_publisher(tmp_path, segment_size=1 << 16) as writer:
        writer.append(7, b'{"n":1}', 1_700_000_000_000_000_001)
        writer.append(9, b"\x00", 1_700_000_000_000_000_002)
    with Client(str(server.address), "sesame") as client:
        settings = QueueToTopicSettings(str(tmp_path), "bridged", "b", once=True)
        QueueToTopic(client, settings).run()
        client.append("bridged", 1, meta={"seq": 5})
    rows = load(spark, server, "bridged", columns="seq,source,source_seq,ts_ns,type_id,meta").collect()
    assert [tuple(row)[1:5] for row in sorted(rows)] == [
        (queue_ranges.instance_of(str(tmp_path)), 0, 1_700_000_000_000_000_001, 7),
        (queue_ranges.instance_of(str(tmp_path)), 1, 1_700_000_000_000_000_002, 9),
        (None, None, None, None),
    ]
    assert "source" not in load(spark, server, "bridged").columns


def test_a_prefix_and_a_list_name_several_topics(spark: SparkSession, server: HttpApi) -> None:
    by_prefix = load(spark, server, "tra*,orders", columns="topic,seq").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in by_prefix} == {"orders": 2500, "trades": 10}


def test_a_tag_is_filtered_exactly_or_by_prefix(spark: SparkSession, server: HttpApi) -> None:
    assert load(spark, server, "orders", tag="five:15").count() == 1
    assert load(spark, server, "orders", tag="five:1*").count() == len(
        [n for n in range(0, 2500, 5) if str(n).startswith("1")]
    )


def test_a_range_of_seqs_includes_both_ends(spark: SparkSession, server: HttpApi) -> None:
    rows = load(spark, server, "orders", fromSeq=990, toSeq=1010).collect()
    assert sorted(row.seq for row in rows) == list(range(990, 1011))


def test_records_that_are_gone_fail_the_read_by_name(spark: SparkSession, server: HttpApi) -> None:
    with pytest.raises(PySparkException, match=r"records 3 to 60 of topic 'small' are lost \(cap\)"):
        load(spark, server, "small", startingOffsets='{"seq": 3}').count()


def test_records_that_are_gone_can_be_rows(spark: SparkSession, server: HttpApi) -> None:
    rows = load(spark, server, "small", startingOffsets='{"seq": 3}', onDataLoss="record").collect()
    assert [(row.seq, row.gap_to, row.reason) for row in rows if row.kind == "gap"] == [(3, 60, "cap")]
    assert sorted(row.seq for row in rows if row.kind == "record") == list(range(61, 101))


def test_the_key_is_in_no_plan(
    spark: SparkSession, server: HttpApi, capfd: pytest.CaptureFixture[str]
) -> None:
    table = load(spark, server, "trades")
    table.explain("extended")
    shown = capfd.readouterr()
    assert table.count() == 10
    assert "everlog.topics" in shown.out
    assert "sesame" not in shown.out + shown.err


def test_the_error_for_a_wrong_key_does_not_contain_the_key(spark: SparkSession, server: HttpApi) -> None:
    with pytest.raises(AnalysisException, match=r"token|key") as refused:
        load(spark, server, "trades", key="open-up").count()
    assert "open-up" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"colour": "red"}, "unknown option 'colour'"), ({"url": "here"}, "http://127.0.0.1:4000")],
)
def test_bad_options_are_refused_with_what_is_valid(
    spark: SparkSession, server: HttpApi, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException, match=said):
        load(spark, server, "orders", **options)


def test_a_stream_shares_its_limit_among_topics_and_resumes(
    spark: SparkSession, server: HttpApi, tmp_path: Path
) -> None:
    source = spark.readStream.format(FORMAT).option("url", str(server.address)).option("key", "sesame")
    table = source.option("topic", "orders,trades").option("maxRecordsPerBatch", 1000).load()
    assert drain(table, tmp_path) == [1000, 1000, 510]
    append(server, "trades", 10, 17)
    assert drain(table, tmp_path) == [7]
    written = spark.read.parquet(str(tmp_path / "out"))
    assert written.count() == written.select("topic", "seq").distinct().count() == 2517


def test_a_stream_takes_about_so_many_bytes_at_a_time(
    spark: SparkSession, server: HttpApi, tmp_path: Path
) -> None:
    records = [{"data": "x" * 98} for _ in range(100)]
    server.call("POST", "/topics/wide", dict[str, Any], body={"records": records})
    source = spark.readStream.format(FORMAT).option("url", str(server.address)).option("key", "sesame")
    table = source.option("topic", "wide").option("maxBytesPerBatch", 4000).load()
    assert drain(table, tmp_path) == [40, 40, 20]
