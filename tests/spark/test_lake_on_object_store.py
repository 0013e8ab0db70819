"""The jobs with their lake in an object store: the same calls, with a URL in place of a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import polars
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from everlog.cli.main import app
from everlog.errors import InvalidConfig, ObjectStoreFailed
from everlog.lake_reports import ArchiveProgress, report_key
from everlog.objects import open_store
from everlog.pipeline import register
from everlog.pipeline.jobs.archive import archive_queue
from everlog.pipeline.jobs.audit import audit_queue
from everlog.pipeline.jobs.batches import ARCHIVED_FILE
from everlog.pipeline.lake import LakeTable
from everlog.queue import Queue
from tests.support.object_stores import S3Server, moto_server

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def store(spark: SparkSession) -> Iterator[S3Server]:
    """A store that this process and all tasks find through the environment, as they would on a cluster."""
    with moto_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
            patch.setitem(spark.sparkContext.environment, name, value)
        register(spark)  # the format keeps the environment that it was registered in
        yield server


def write_queue(path: Path, first: int, end: int) -> None:
    with Queue.open_publisher(path, segment_size=1 << 20) as writer:
        for number in range(first, end):
            writer.append(7, b"%d" % number, 1_700_000_000_000_000_000 + number)


def test_an_archive_goes_on_where_it_ended_and_its_audit_needs_the_store_alone(
    spark: SparkSession, store: S3Server, tmp_path: Path
) -> None:
    lake, queue, checkpoint = store.url("archive"), tmp_path / "feed", f"file://{tmp_path}/checkpoint"
    write_queue(queue, 0, 500)
    first = archive_queue(spark, str(queue), lake, "messages", checkpoint=checkpoint, reader="archive")
    again = archive_queue(spark, str(queue), lake, "messages", checkpoint=checkpoint, reader="archive")
    write_queue(queue, 500, 600)
    later = archive_queue(spark, str(queue), lake, "messages", checkpoint=checkpoint, reader="archive")
    assert (first.rows, again.rows, later.rows) == (500, 0, 100)
    verdict = audit_queue(spark, lake, "messages", queue=str(queue))
    assert verdict.is_sound and verdict.streams[0].delivered == 600
    objects = open_store(lake)
    assert objects.exists(report_key("messages", ArchiveProgress))
    # A table that lost its last commit ends before the position that the store has.
    newest = [one.key for one in objects.list("messages/_delta_log")][-1]
    objects.delete([newest])
    assert audit_queue(spark, lake, "messages").streams[0].missing == 100
    gone = LakeTable(lake, "messages").scan()[1][0].path
    objects.delete([f"messages/{gone}"])
    (unreadable,) = audit_queue(spark, lake, "messages").unreadable
    assert unreadable == gone
    assert objects.exists(f"messages.checkpoint/{ARCHIVED_FILE}")
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "feed"], "nothing is written elsewhere"


def test_a_lake_in_a_store_needs_a_checkpoint_in_a_directory(
    spark: SparkSession, store: S3Server, tmp_path: Path
) -> None:
    write_queue(tmp_path / "feed", 0, 3)
    queue, lake = str(tmp_path / "feed"), store.url("refused")
    with pytest.raises(InvalidConfig, match="--checkpoint DIR"):
        archive_queue(spark, queue, lake, "messages")
    with pytest.raises(InvalidConfig, match=r"the checkpoint is 's3://.*give a directory"):
        archive_queue(spark, queue, lake, "messages", checkpoint=store.url("checkpoint"))
    assert [one.key for one in open_store(store.url("refused")).list()] == []


def test_a_table_in_a_store_takes_a_batch_once_and_is_read_by_options_and_by_sql(
    spark: SparkSession, store: S3Server
) -> None:
    lake = store.url("tables")
    table = LakeTable(lake, "records")
    for batch in (0, 1, 1):
        rows = spark.range(batch * 90, batch * 90 + 90).selectExpr(
            "id as seq", "concat('orders:', id % 3) as topic", "to_date('2024-12-01') as date"
        )
        table.append(rows, "job", batch, ("date", "topic"))
    assert sorted(row.seq for row in table.read(spark).collect()) == list(range(180))
    assert sorted(row.seq for row in table.read(spark, where={"topic": "orders:1"}).collect()) == list(
        range(1, 180, 3)
    )
    reader = spark.read.format("everlog.lake").option("table", "records")
    some = reader.options(topic="orders:0,orders:2", fromSeq="80", toSeq="91", columns="seq,topic").load(lake)
    assert some.columns == ["seq", "topic"]
    assert sorted(row.seq for row in some.collect()) == [80, 81, 83, 84, 86, 87, 89, 90]
    spark.sql(f"CREATE TABLE records USING everlog.lake OPTIONS (lake '{lake}', table 'records')")
    try:
        by_sql = spark.sql("SELECT topic, count(*) AS rows FROM records GROUP BY topic ORDER BY topic")
        assert [tuple(row) for row in by_sql.collect()] == [(f"orders:{n}", 60) for n in range(3)]
    finally:
        spark.sql("DROP TABLE records")
    by_polars = polars.read_delta(f"{lake}/records", storage_options=table.place.storage_options)
    assert sorted(by_polars["seq"].to_list()) == list(range(180))
    for command in (["compact", "--keep-days", "0"], ["repair"]):
        done = CliRunner().invoke(app, ["pipeline", *command, "--lake", lake, "--table", "records"])
        assert done.exit_code == 0, done.output
    assert len(table.files()) == 3 and table.read(spark).count() == 180


def test_a_store_that_is_away_is_one_error_and_nothing_is_written_here(
    store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERLOG_OBJECTS_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("EVERLOG_OBJECTS_TIMEOUT_MS", "300")
    with pytest.raises(ObjectStoreFailed, match=r"cannot open the table s3://.*check that the store"):
        LakeTable(store.url("away"), "t").open()
    assert os.listdir(tmp_path) == []
