"""Tables of the lake: exactly once, readable by others, pruned by what the log knows."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import deltalake
import duckdb
import polars
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from everlog.errors import InvalidConfig
from everlog.fault_fs import FaultFs
from everlog.fs import Fs, sync_path
from everlog.pipeline import lake
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_files import write_files

pytestmark = pytest.mark.timeout(300)

PARTITIONS = ("date", "topic")


def rows(spark: SparkSession, first: int, end: int) -> DataFrame:
    """Return records of three topics, one of them with a name that directories have to escape."""
    return spark.range(first, end).selectExpr(
        "id as seq",
        "concat('orders:', id % 3) as topic",
        "to_date('2024-12-01') as date",
        "timestamp_micros(id * 1000) as ts",
        "cast(id as string) as data",
    )


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """A table that is not there yet."""
    return LakeTable(tmp_path, "records")


def test_a_batch_that_is_run_again_changes_nothing(spark: SparkSession, table: LakeTable) -> None:
    first = table.append(rows(spark, 0, 90), "job", 0, PARTITIONS)
    again = table.append(rows(spark, 0, 90), "job", 0, PARTITIONS)
    assert (first.rows, first.is_repeat) == (90, False)
    assert (again.rows, again.is_repeat, again.version) == (0, True, first.version)
    table.append(rows(spark, 90, 100), "job", 1, PARTITIONS)
    assert table.committed_batch("job") == 1
    assert sorted(row.seq for row in table.read(spark).collect()) == list(range(100))


def commit_without_spark(table: LakeTable, fs: Fs, batch: int) -> None:
    """Write two rows as a task does, which syncs its files, and commit them."""
    batch_rows = pa.record_batch({"seq": [2 * batch, 2 * batch + 1], "topic": ["old", f"of {batch}"]})
    handed_over = write_files(iter([batch_rows]), table.place, ("topic",))
    files = [
        {**row, "partition_values": dict(row["partition_values"])}
        for one in handed_over
        for row in one.to_pylist()
    ]
    for row in files:
        sync_path(fs, os.path.join(table.path, row["path"]))
    table.commit(files, batch_rows.schema, "job", batch, ("topic",))


def seqs_after_power_loss(table: LakeTable, fs: FaultFs) -> list[int]:
    fs.restore()
    return sorted(polars.read_delta(table.path)["seq"].to_list())


@pytest.mark.parametrize("seed", range(8))
def test_what_is_committed_survives_a_power_loss(tmp_path: Path, seed: int) -> None:
    fs = FaultFs(tmp_path, seed=seed)
    table = LakeTable(tmp_path / "deep" / "lake", "records", fs)
    for batch in range(3):
        commit_without_spark(table, fs, batch)
    assert seqs_after_power_loss(table, fs) == list(range(6))


@pytest.mark.parametrize("seed", range(8))
def test_a_batch_is_called_a_repeat_only_if_it_survives_a_power_loss(tmp_path: Path, seed: int) -> None:
    """A killed run has committed but not synced; the next one must sync before the source may be deleted."""
    fs = FaultFs(tmp_path, seed=seed)
    table = LakeTable(tmp_path / "lake", "records", fs)
    commit_without_spark(table, fs, 0)
    fs.fail_when("fsync", errno.EIO, path="00000000000000000001.json")
    with pytest.raises(OSError, match="planned"):
        commit_without_spark(table, fs, 1)
    assert table.repeated("job", 1) is not None
    assert seqs_after_power_loss(table, fs) == list(range(4))


def test_another_application_has_numbers_of_its_own(spark: SparkSession, table: LakeTable) -> None:
    table.append(rows(spark, 0, 3), "one", 0)
    assert not table.append(rows(spark, 3, 6), "two", 0).is_repeat
    assert table.committed_batch("three") is None


def test_duckdb_polars_pandas_and_spark_read_the_same(spark: SparkSession, table: LakeTable) -> None:
    table.append(rows(spark, 0, 90), "job", 0, PARTITIONS)
    with duckdb.connect() as database:
        database.register("records", deltalake.DeltaTable(table.path).to_pyarrow_dataset())
        by_duckdb = database.sql("select topic, sum(seq) from records group by topic").fetchall()
    by_polars = polars.read_delta(table.path).group_by("topic").agg(polars.col("seq").sum()).rows()
    by_spark = table.read(spark).groupBy("topic").sum("seq").collect()
    frame = deltalake.DeltaTable(table.path).to_pandas()
    by_pandas = list(frame.groupby("topic")["seq"].sum().items())
    assert sorted(by_duckdb) == sorted(by_polars) == sorted(by_pandas)
    assert sorted(by_polars) == sorted(tuple(row) for row in by_spark)
    assert {name for name, _ in by_polars} == {"orders:0", "orders:1", "orders:2"}


def test_only_the_files_of_the_named_partitions_are_opened(spark: SparkSession, table: LakeTable) -> None:
    table.append(rows(spark, 0, 90), "job", 0, PARTITIONS)
    files = table.files({"topic": "orders:1"})
    assert files and all("topic=orders%3A1" in file for file in files)
    read = lake.read(spark, Path(table.path).parent, "records", topic="orders:1")
    assert sorted(row.seq for row in read.collect()) == list(range(1, 90, 3))


def test_the_log_knows_what_lets_a_reader_skip_a_file(spark: SparkSession, table: LakeTable) -> None:
    table.append(rows(spark, 10, 20).coalesce(1), "job", 0)
    (line,) = [
        json.loads(line)["add"]
        for line in Path(table.path, "_delta_log", f"{0:020}.json").read_text().splitlines()
        if line.startswith('{"add"')
    ]
    stats = json.loads(line["stats"])
    assert (stats["numRecords"], stats["minValues"]["seq"], stats["maxValues"]["seq"]) == (10, 10, 19)
    assert stats["minValues"]["ts"] == "1970-01-01T00:00:00.010000Z"
    assert stats["nullCount"]["data"] == 0


def test_only_files_that_may_have_rows_of_a_range_are_opened(spark: SparkSession, table: LakeTable) -> None:
    for batch in range(4):
        table.append(rows(spark, batch * 10, batch * 10 + 10).coalesce(1), "job", batch, PARTITIONS)
    wanted = {"seq": (12, 18)}
    files = table.files(ranges=wanted)
    assert len(files) == 3 and len(table.files()) == 12
    read = table.read(spark, ranges=wanted)
    opened = {os.path.basename(file) for file in read.inputFiles()}
    assert opened == {os.path.basename(file) for file in files}
    assert sorted(row.seq for row in read.collect()) == list(range(12, 19))
    both = table.read(spark, where={"topic": "orders:1"}, ranges=wanted)
    assert [row.seq for row in both.orderBy("seq").collect()] == [13, 16]
    first = datetime(1970, 1, 1, tzinfo=UTC)
    times = {"ts": (first + timedelta(milliseconds=35), first + timedelta(days=1))}
    assert sorted(row.seq for row in table.read(spark, ranges=times).collect()) == list(range(35, 40))
    assert table.read(spark, ranges={"seq": (100, 200)}).count() == 0
    assert len(table.files(ranges={"date": (date(2024, 12, 1), date(2024, 12, 2))})) == 12
    assert table.files(ranges={"date": (date(2024, 12, 2), date(2024, 12, 3))}) == []


def test_a_new_column_is_empty_in_what_was_there_before(spark: SparkSession, table: LakeTable) -> None:
    table.append(rows(spark, 0, 5), "job", 0)
    table.append(rows(spark, 5, 10).selectExpr("*", "seq * 2 as twice"), "job", 1)
    found = {row.seq: row.twice for row in table.read(spark).collect()}
    assert found == {seq: None if seq < 5 else seq * 2 for seq in range(10)}


def test_a_column_that_changes_its_type_is_refused(spark: SparkSession, table: LakeTable) -> None:
    table.append(rows(spark, 0, 5), "job", 0)
    with pytest.raises(InvalidConfig, match="column 'seq' of table 'records' is int64"):
        table.append(spark.range(3).selectExpr("cast(id as string) as seq"), "job", 1)
    assert table.committed_batch("job") == 0


def test_joining_small_files_changes_no_row_and_old_versions_stay_until_vacuum(
    spark: SparkSession, table: LakeTable
) -> None:
    for batch in range(3):
        table.append(rows(spark, batch * 10, batch * 10 + 10), "job", batch)
    before = len(table.files())
    table.compact()
    assert len(table.files()) < before
    assert sorted(row.seq for row in table.read(spark).collect()) == list(range(30))
    assert table.read(spark, version=0).count() == 10
    stray = Path(table.path, "part-of-a-task-that-failed.parquet")
    stray.write_bytes(b"")
    os.utime(stray, (0, 0))  # a fresh one may be of a batch that is about to be committed
    table.vacuum(timedelta(0))
    assert not stray.exists()
    assert table.read(spark).count() == 30


def test_a_table_that_is_not_there_is_named(spark: SparkSession, table: LakeTable) -> None:
    with pytest.raises(InvalidConfig, match="no table 'records'"):
        table.read(spark)


@pytest.mark.parametrize("name", ["", "_log", "a/b", ".hidden"])
def test_a_name_that_would_leave_the_lake_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfig, match="cannot be called"):
        LakeTable(tmp_path, name)
