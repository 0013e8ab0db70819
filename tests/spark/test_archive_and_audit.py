"""From a source to the lake and back to an account of every seq."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import everlog.pipeline
from everlog.cli.main import app
from everlog.cli.pipeline import DECODINGS
from everlog.clock import NS_PER_DAY
from everlog.errors import InvalidConfig
from everlog.lake_reports import ArchiveProgress, AuditSummary, read_report
from everlog.market import decoding
from everlog.market.protocol import TypeId, new_l3_records
from everlog.pipeline.accounts import day_of
from everlog.pipeline.jobs.archive import archive_queue, archive_topics
from everlog.pipeline.jobs.audit import StreamAudit, audit_queue, audit_topics
from everlog.pipeline.jobs.batches import APPLICATION_FILE
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.tables.schemas import ORDERS_L3
from everlog.queue import Queue
from tests.support.http_api import HttpApi
from tests.support.processes import eventually
from tests.support.server_processes import running_server

pytestmark = pytest.mark.timeout(300)


def test_the_first_and_the_last_nanosecond_of_a_day_are_of_that_day(spark: SparkSession) -> None:
    days = range(19_000, 19_003)
    times = [day * NS_PER_DAY + at_ns for day in days for at_ns in (0, 1, NS_PER_DAY - 1)]
    frame = spark.createDataFrame([(time,) for time in times], "ts_ns long")
    found = [row[0].toordinal() for row in frame.select(day_of("queue", ())).collect()]
    assert found == [date(1970, 1, 1).toordinal() + day for day in days for _ in range(3)]


def append(api: HttpApi, topic: str, count: int, **fields: Any) -> None:
    """Append records; every second has the tag `even`."""
    records = [{"data": n, **({} if n % 2 else {"tag": "even"})} for n in range(count)]
    api.call("POST", f"/topics/{topic}", dict[str, Any], body={"records": records, **fields})


def counts(stream: StreamAudit) -> tuple[int, int, int, int, int]:
    """Return delivered, gap, deleted, duplicate, missing."""
    return stream.delivered, stream.gap, stream.deleted, stream.duplicate, stream.missing


def test_deleted_evicted_and_late_records_of_topics_are_all_accounted_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    with running_server(tmp_path, "--memory") as server, HttpApi(server.url) as api:
        append(api, "orders", 100)
        append(api, "capped", 100, config={"cap_records": 60})
        api.call("POST", "/topics/orders/delete", dict[str, Any], body={"match": "even"})
        report = archive_topics(spark, server.url, "orders,capped", lake, "records")
        assert report.rows == 50 + 60 + 1, "what the cap took before is a gap"
        # The archive lags: what the cap takes meanwhile is a gap in the table.
        append(api, "capped", 100)
        append(api, "orders", 10)
        later = archive_topics(spark, server.url, "orders,capped", lake, "records")
        assert later.rows == 10 + 60 + 1
        verdict = {one.name: one for one in audit_topics(spark, lake, "records", server.url).streams}
        assert counts(verdict["orders"]) == (60, 0, 49, 0, 0)
        assert counts(verdict["capped"]) == (120, 80, 0, 0, 0)
        append(api, "orders", 7)
        (behind,) = [
            one.behind
            for one in audit_topics(spark, lake, "records", server.url).streams
            if one.name == "orders"
        ]
        assert behind == 7
    # What the console shows of the lake: the last run of the archive, and the last audit.
    progress, audit = (read_report(lake, "records", kind) for kind in (ArchiveProgress, AuditSummary))
    assert progress is not None and audit is not None
    assert (progress.rows, progress.version, progress.is_running) == (71, later.version, False)
    assert audit.is_sound and {one.name: one.behind for one in audit.streams} == {"orders": 7, "capped": 0}


def test_records_that_expired_while_the_archive_lagged_are_a_gap_with_that_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    with running_server(tmp_path, "--memory") as server, HttpApi(server.url) as api:
        append(api, "prices", 20)
        append(api, "absent", 5)
        archive_topics(spark, server.url, "prices", lake, "records")
        append(api, "prices", 30)
        configured(api, "prices", ttl_ms=1)
        eventually("all has expired", lambda: state_of(api, "prices")["count"] == 0)
        configured(api, "prices", ttl_ms=0)
        append(api, "prices", 10)
        archive_topics(spark, server.url, "prices", lake, "records")
        rows = LakeTable(lake, "records").read(spark)
        (gap,) = rows.where("kind = 'gap'").collect()
        assert (gap.seq, gap.gap_to, gap.reason) == (21, 50, "ttl")
        named = audit_topics(spark, lake, "records", server.url, topics=["prices", "abs*"])
        verdict = {one.name: one for one in named.streams}
        assert counts(verdict["prices"]) == (30, 30, 0, 0, 0)
        assert (verdict["absent"].behind, verdict["absent"].is_sound) == (5, True)


def configured(api: HttpApi, topic: str, **config: Any) -> None:
    """Give a topic another configuration."""
    api.call("PUT", f"/topics/{topic}", dict[str, Any], body=config)


def state_of(api: HttpApi, topic: str) -> dict[str, Any]:
    """Return what the server says of a topic."""
    return api.get(f"/topics/{topic}", dict[str, Any], {"touch": "false"})


def test_a_record_that_the_table_lost_is_missing_and_one_that_it_has_twice_a_duplicate(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    with running_server(tmp_path, "--memory") as server, HttpApi(server.url) as api:
        append(api, "orders", 20)
        archive_topics(spark, server.url, "orders", lake, "whole")
        rows = LakeTable(lake, "whole").read(spark)
        damaged = rows.where("seq not in (5, 6, 11)").union(rows.where("seq = 3"))
        LakeTable(lake, "damaged").append(damaged, "test", 0, ("date", "topic"))
        (stream,) = audit_topics(spark, lake, "damaged", server.url).streams
        assert counts(stream) == (17, 0, 0, 1, 3)
        assert stream.missing_ranges == [(5, 6), (11, 11)]
        LakeTable(lake, "headless").append(rows.where("seq > 4"), "test", 0, ("date", "topic"))
        (stream,) = audit_topics(spark, lake, "headless", server.url, topics=["orders"]).streams
        assert (counts(stream), stream.missing_ranges) == ((16, 0, 0, 0, 4), [(1, 4)])


def test_an_archived_queue_lets_retention_go_on_only_behind_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    with Queue.open_publisher(path, segment_size=1 << 14) as writer:
        for number in range(500):
            writer.append(7, str(number).encode(), 1_700_000_000_000_000_000 + number)
        report = archive_queue(spark, path, lake, "messages", reader="archive")
        assert (report.rows, report.batches) == (500, 1)
        with Queue.open_subscriber(path, "archive") as position:
            assert position.next() is None, "the position is behind the last archived message"
        for number in range(500, 600):
            writer.append(7, str(number).encode())
        assert archive_queue(spark, path, lake, "messages", reader="archive").rows == 100
    (stream,) = audit_queue(spark, lake, "messages", queue=path).streams
    assert counts(stream) == (600, 0, 0, 0, 0)
    assert (stream.first_seq, stream.behind) == (0, 0)
    payloads = LakeTable(lake, "messages").read(spark).orderBy("seq").select("payload").collect()
    assert [row.payload for row in payloads] == [str(number).encode() for number in range(600)]


def test_messages_deleted_before_they_were_archived_are_a_gap_in_the_account(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, lake = tmp_path / "queue", str(tmp_path / "lake")
    with Queue.open_publisher(str(path), segment_size=1 << 14) as writer:
        for number in range(500):
            writer.append(7, b"x", number)
    archive_queue(spark, str(path), lake, "messages", options={"endingOffsets": '{"seq": 10}'})
    os.unlink(min(path.glob("*.q")))
    archive_queue(spark, str(path), lake, "messages")
    (stream,) = audit_queue(spark, lake, "messages").streams
    assert stream.gap > 0
    assert stream.delivered + stream.gap == 500
    assert stream.is_sound


def test_a_filled_table_without_its_checkpoint_is_not_filled_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    with Queue.open_publisher(path, segment_size=1 << 14) as writer:
        writer.append(7, b"x")
    archive_queue(spark, path, lake, "messages")
    with pytest.raises(InvalidConfig, match="has been filled"):
        archive_queue(spark, path, lake, "messages", checkpoint=str(tmp_path / "elsewhere"))


def test_a_table_takes_several_queues_each_with_its_own_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, other, lake = str(tmp_path / "one"), str(tmp_path / "other"), str(tmp_path / "lake")
    for path, count in ((one, 3), (other, 2)):
        with Queue.open_publisher(path, segment_size=1 << 14) as writer:
            for _ in range(count):
                writer.append(7, b"x")
    assert archive_queue(spark, one, lake, "messages").rows == 3
    with pytest.raises(InvalidConfig, match=f"is of queue {one}, not of {other}.*--checkpoint"):
        archive_queue(spark, other, lake, "messages")
    for rows in (2, 0):
        again = archive_queue(spark, other, lake, "messages", checkpoint=str(tmp_path / "checkpoint"))
        assert again.rows == rows
    found = audit_queue(spark, lake, "messages").streams
    assert [(stream.name, stream.delivered, stream.is_sound) for stream in found] == [
        (one, 3, True),
        (other, 2, True),
    ]
    os.rename(one, tmp_path / "moved")  # the same queue, elsewhere
    assert archive_queue(spark, str(tmp_path / "moved"), lake, "messages").rows == 0


def partitions(lake: str, table: str) -> tuple[tuple[str, ...] | None, set[str]]:
    """The partition columns of a table, and the folders that its files lie in."""
    files = LakeTable(lake, table).files()
    folders = {os.path.relpath(os.path.dirname(file), os.path.join(lake, table)) for file in files}
    return LakeTable(lake, table).partition_columns(), folders


def test_a_table_of_messages_is_partitioned_by_date(spark: SparkSession, tmp_path: Path) -> None:
    path, lake = str(tmp_path / "feed"), str(tmp_path / "lake")
    with Queue.open_publisher(path) as writer:
        for day in range(2):
            writer.append(7, b"x", day * NS_PER_DAY)
    archive_queue(spark, path, lake, "messages")
    found = partitions(lake, "messages")
    assert found == (("date",), {"date=1970-01-01", "date=1970-01-02"})


def test_a_table_of_decoded_messages_is_partitioned_by_date_and_venue(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, lake = str(tmp_path / "feed"), str(tmp_path / "lake")
    records = new_l3_records(4)
    records["header"]["venue_id"] = [1, 2, 1, 2]
    with Queue.open_publisher(path) as writer:
        writer.append_array(TypeId.BOOK_EVENT, records, np.arange(4, dtype=np.uint64))
    archive_queue(spark, path, lake, "orders", options={"decode": "l3"})
    found = partitions(lake, "orders")
    assert found == (("date", "venue"), {f"date=1970-01-01/venue={venue}" for venue in ("binance", "szse")})
    assert LakeTable(lake, "orders").read(spark, where={"venue": "szse"}).count() == 2


def test_the_command_has_a_decode_option_and_names_the_choices(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everlog.pipeline, "spark_session", lambda **options: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)  # other tests need it
    path, lake = str(tmp_path / "feed"), str(tmp_path / "lake")
    with Queue.open_publisher(path) as writer:
        writer.append_array(TypeId.BOOK_EVENT, new_l3_records(4), np.arange(4, dtype=np.uint64))
        writer.append(7, b"of another kind", 4)

    def archive(*words: str) -> Result:
        command = ["pipeline", "archive", "--lake", lake, "--table", "orders", "--json", *words]
        return CliRunner().invoke(app, command)

    assert tuple(decoding.DECODINGS) == DECODINGS
    assert json.loads(archive("--queue", path, "--decode", "l3").stdout)["rows"] == 4
    assert list(LakeTable(lake, "orders").read(spark).columns) == ORDERS_L3.arrow.names
    for words, said in (
        (("--queue", path, "--decode", "l4"), "raw, book, trade, l3"),
        (("--queue", path), "use the decode option that the table was filled with"),
        (("--topic", "t", "--url", "http://127.0.0.1:1", "--decode", "l3"), "--decode is for"),
    ):
        refused = archive(*words)
        assert (refused.exit_code, said in refused.stderr) == (1, True), refused.stderr


def test_a_table_that_was_filled_before_keeps_its_partitions(spark: SparkSession, tmp_path: Path) -> None:
    path, lake = str(tmp_path / "feed"), str(tmp_path / "lake")
    with Queue.open_publisher(path) as writer:
        writer.append(7, b"x", 0)
        first = spark.read.format("everlog.queue").load(path)
        target = LakeTable(lake, "messages")
        target.append(first.selectExpr("*", "date'1970-01-01' as date"), "by hand", 0, ("date", "type_id"))
        checkpoint = tmp_path / "checkpoint"
        checkpoint.mkdir()
        (checkpoint / APPLICATION_FILE).write_text("by archive")
        writer.append(7, b"y", 1)
        options = {"startingOffsets": '{"seq": 1}'}
        archive_queue(spark, path, lake, "messages", checkpoint=str(checkpoint), options=options)
    assert partitions(lake, "messages") == (("date", "type_id"), {"date=1970-01-01/type_id=7"})
    assert [row.seq for row in target.read(spark).orderBy("seq").collect()] == [0, 1]
