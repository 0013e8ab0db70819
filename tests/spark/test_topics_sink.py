"""Writing to topics from a real Spark session: every row once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.http_api import HttpApi
from tests.support.server_processes import running_server
from tests.support.spark_streams import PATIENCE_S

pytestmark = pytest.mark.timeout(300)

FORMAT = "everlog.topics"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpApi]:
    """A server in memory."""
    with (
        running_server(tmp_path_factory.mktemp("server"), "--memory") as running,
        HttpApi(running.url) as api,
    ):
        yield api


def records(server: HttpApi, topic: str) -> list[dict[str, Any]]:
    """Return everything a topic holds, up to a thousand records."""
    body = {"limit": 1000, "include_tags": True}
    found: list[dict[str, Any]] = server.call("POST", f"/topics/{topic}/diff", dict[str, Any], body=body)[
        "records"
    ]
    return found


def save(frame: DataFrame, server: HttpApi, **options: Any) -> None:
    """Write a batch."""
    frame.write.format(FORMAT).options(url=str(server.address), **options).mode("append").save()


def numbers(spark: SparkSession, first: int, end: int) -> DataFrame:
    """Return rows with a number each, in two partitions."""
    return spark.range(first, end, 1, 2).selectExpr(
        "to_json(struct(id)) as data", "concat('t', id % 2) as tag"
    )


def test_every_row_is_appended_once_with_its_fields(spark: SparkSession, server: HttpApi) -> None:
    save(numbers(spark, 0, 100), server, topic="plain", recordsPerAppend=7)
    found = records(server, "plain")
    assert sorted(record["data"]["id"] for record in found) == list(range(100))
    assert all(record["$tag"] == f"t{record['data']['id'] % 2}" for record in found)


def test_a_column_can_say_to_which_topic_a_row_goes(spark: SparkSession, server: HttpApi) -> None:
    rows = numbers(spark, 0, 30).selectExpr("data", "concat('to-', tag) as topic", "'me' as node")
    save(rows, server)
    assert [len(records(server, name)) for name in ("to-t0", "to-t1")] == [15, 15]
    assert {record["$node"] for record in records(server, "to-t0")} == {"me"}


def test_texts_are_kept_as_they_are_whatever_json_escapes_in_them(
    spark: SparkSession, server: HttpApi
) -> None:
    rows = [
        (' {"a" : [1, "\\u00e9"]}\n', 'say "hi"\\', None, '{"m": 1}'),
        ("[1, 2]", None, "n", None),
        ('"x"', "tab\there", "knot\u00e9", "{}"),
        ("null", "plain", None, None),
    ]
    frame = spark.createDataFrame(rows, "data string, tag string, node string, meta string").coalesce(1)
    save(frame, server, topic="texts", recordsPerAppend=3)
    found = [
        (json.dumps(one["data"]), one.get("$tag"), one.get("$node"), one.get("$meta", one.get("meta")))
        for one in records(server, "texts")
    ]
    assert found == [
        (json.dumps(json.loads(data)), tag, node, None if meta is None else json.loads(meta))
        for data, tag, node, meta in rows
    ]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("select 1 as data", "it must be a string"),
        ("select '1' as value", "takes the column data"),
        ("select '1},{\"data\":2' as data", "is not JSON"),
        ("select cast(null as string) as data", "without data"),
        (
            "select explode(array('[{\"x\":1', '5', '2}]', '1},{\"data\":2},{\"data\":3')) as data",
            "is not JSON",
        ),
        ("select '1' as data, '{' as meta", "is not JSON"),
    ],
)
def test_rows_that_are_no_records_are_refused(
    spark: SparkSession, server: HttpApi, expression: str, said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        save(spark.sql(expression), server, topic="refused")


def test_a_topic_is_not_overwritten(spark: SparkSession, server: HttpApi) -> None:
    with pytest.raises(PySparkException, match="appended to"):
        numbers(spark, 0, 1).write.format(FORMAT).options(url=str(server.address), topic="x").mode(
            "overwrite"
        ).save()


def run(table: DataFrame, server: HttpApi, checkpoint: Path, topic: str = "streamed") -> None:
    """Stream what is there into a topic."""
    writer = table.writeStream.format(FORMAT).options(url=str(server.address), topic=topic)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)


def test_a_stream_started_in_another_thread_finds_the_sink(
    spark: SparkSession, server: HttpApi, tmp_path: Path
) -> None:
    numbers(spark, 0, 5).select("data").write.parquet(str(tmp_path / "in"))
    table = spark.readStream.schema("data string").parquet(str(tmp_path / "in"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, table, server, tmp_path / "checkpoint", "threaded").result()
    assert len(records(server, "threaded")) == 5


def test_a_topic_is_a_table_of_sql(spark: SparkSession, server: HttpApi) -> None:
    save(numbers(spark, 0, 5), server, topic="table")
    options = f"url '{server.address}', topic 'table', columns 'seq,data'"
    spark.sql(f"CREATE TABLE a_topic USING everlog.topics OPTIONS ({options})")
    try:
        assert spark.table("a_topic").columns == ["seq", "data"]
        assert spark.sql("SELECT count(*) AS n FROM a_topic").collect()[0].n == 5
    finally:
        spark.sql("DROP TABLE a_topic")


def test_a_batch_of_a_stream_that_is_run_again_appends_nothing_twice(
    spark: SparkSession, server: HttpApi, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    numbers(spark, 0, 50).select("data").write.parquet(str(source))
    table = spark.readStream.schema("data string").parquet(str(source))
    run(table, server, checkpoint)
    # As after a crash between the last append and the commit of the batch.
    for commit in (checkpoint / "commits").glob("*"):
        commit.unlink()
    run(table, server, checkpoint)
    assert sorted(record["data"]["id"] for record in records(server, "streamed")) == list(range(50))
