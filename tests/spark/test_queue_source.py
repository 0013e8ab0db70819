"""The format `everlog.queue` in a real Spark session."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import DataFrame, SparkSession

from everlog.queue import Queue
from tests.support.market_queues import DIFFS, MARKETS, write_market_queue
from tests.support.spark_streams import drain

pytestmark = pytest.mark.timeout(300)

MESSAGES = 3000
FORMAT = "everlog.queue"


def write(path: Path, first: int, end: int) -> None:
    """Append messages: number n has type n % 3, the time 1000 + n, and its number as payload."""
    with Queue.open_publisher(str(path), segment_size=1 << 16) as writer:
        for number in range(first, end):
            writer.append(number % 3, str(number).encode(), 1000 + number)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of several segments that no test changes."""
    path = tmp_path_factory.mktemp("queue") / "q"
    write(path, 0, MESSAGES)
    return path


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    """Read a queue."""
    return spark.read.format(FORMAT).options(**options).load(str(path))


def test_every_message_is_read_once_with_all_its_fields(spark: SparkSession, queue: Path) -> None:
    table = load(spark, queue)
    assert table.columns == ["queue", "seq", "ts_ns", "type_id", "payload"]
    rows = table.collect()
    assert sorted(row.seq for row in rows) == list(range(MESSAGES))
    assert all(row.payload == str(row.seq).encode() for row in rows)
    assert all(row.ts_ns == 1000 + row.seq and row.type_id == row.seq % 3 for row in rows)
    assert {row.queue for row in rows} == {str(queue)}


@pytest.mark.parametrize("where", ["OPTIONS (path '{}', fromSeq 10)", "OPTIONS (fromSeq 10) LOCATION '{}'"])
def test_a_queue_is_a_table_of_sql(spark: SparkSession, queue: Path, where: str) -> None:
    spark.sql(f"CREATE TABLE messages USING everlog.queue {where.format(queue)}")
    try:
        rows = spark.sql("SELECT seq FROM messages WHERE seq < 15 ORDER BY seq").collect()
        assert [row.seq for row in rows] == list(range(10, 15))
    finally:
        spark.sql("DROP TABLE messages")


def test_a_table_with_a_list_of_columns_says_how_to_create_it(spark: SparkSession, queue: Path) -> None:
    spark.sql(f"CREATE TABLE listed (seq BIGINT) USING everlog.queue LOCATION '{queue}'")
    try:
        with pytest.raises(PySparkException, match="without a list of columns"):
            spark.sql("SELECT * FROM listed").collect()
    finally:
        spark.sql("DROP TABLE listed")


def test_ranges_of_seqs_include_both_ends(spark: SparkSession, queue: Path) -> None:
    rows = load(spark, queue, fromSeq=10, toSeq=20, columns="seq").collect()
    assert sorted(row.seq for row in rows) == list(range(10, 21))


def test_times_and_types_are_filtered_at_the_source(spark: SparkSession, queue: Path) -> None:
    rows = load(spark, queue, fromTs=1500, toTs=1599, typeId="0,0x2").collect()
    assert sorted(row.seq for row in rows) == [seq for seq in range(500, 600) if seq % 3 != 1]


def test_offsets_by_seq_and_by_time_bound_the_read(spark: SparkSession, queue: Path) -> None:
    table = load(spark, queue, startingOffsets='{"seq": 2990}', endingOffsets='{"ts_ns": 3995}')
    assert sorted(row.seq for row in table.collect()) == list(range(2990, 2995))


def test_a_schema_chooses_columns_and_an_order(spark: SparkSession, queue: Path) -> None:
    table = spark.read.format(FORMAT).schema("type_id int, seq long").option("toSeq", 2).load(str(queue))
    assert sorted(tuple(row) for row in table.collect()) == [(0, 0), (1, 1), (2, 2)]


def test_a_number_of_partitions_is_kept(spark: SparkSession, queue: Path) -> None:
    assert load(spark, queue, partitions=5).rdd.getNumPartitions() == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nonsense": "1"}, "unknown option 'nonsense'"),
        ({"columns": "seq,colour"}, r"some of \*, queue, seq, ts_ns"),
        ({"onDataLoss": "ignore"}, "one of fail, record"),
        ({"startingOffsets": "middle"}, "earliest, latest"),
    ],
)
def test_bad_options_are_refused_with_those_that_are_valid(
    spark: SparkSession, queue: Path, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException, match=said):
        load(spark, queue, **options)


@pytest.fixture(scope="module")
def market_queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of two markets with a snapshot each, diffs and trades."""
    path = tmp_path_factory.mktemp("markets") / "q"
    write_market_queue(str(path))
    return path


def test_books_and_trades_have_typed_columns(spark: SparkSession, market_queue: Path) -> None:
    books = load(spark, market_queue, decode="book", market=MARKETS[0])
    assert dict(books.dtypes)["bids"] == "array<struct<price:bigint,size:bigint>>"
    assert {row.market_id for row in books.select("market_id").distinct().collect()} == {MARKETS[0]}
    levels = books.where("event_type = 1").selectExpr("price_scale", "inline(asks)").collect()
    assert [tuple(row) for row in levels] == [(2, 10010, 4), (2, 10020, 6), (2, 10030, 8)]
    assert books.count() == 1 + DIFFS // 2
    trades = load(spark, market_queue, decode="trade", columns="price,is_buyer_maker").collect()
    assert sorted(row.price for row in trades) == [99 + number / 100 for number in range(9, DIFFS, 10)]
    assert all(row.is_buyer_maker is not None for row in trades)


def test_a_gap_among_typed_rows_has_none_of_their_values(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "q"
    write_market_queue(str(path))
    os.unlink(min(path.glob("*.q")))
    start = '{"seq": 0}'
    rows = load(spark, path, startingOffsets=start, onDataLoss="record", decode="book").collect()
    (gap,) = [row for row in rows if row.kind == "gap"]
    assert (gap.seq, gap.bids, gap.venue_id) == (0, None, None)
    assert all(row.asks for row in rows if row.kind == "record")


def without_oldest_segment(tmp_path: Path) -> Path:
    """Make a queue whose oldest segment is gone."""
    path = tmp_path / "q"
    write(path, 0, MESSAGES)
    os.unlink(min(path.glob("*.q")))
    return path


def test_messages_that_are_gone_fail_the_read_by_name(spark: SparkSession, tmp_path: Path) -> None:
    path = without_oldest_segment(tmp_path)
    with pytest.raises(PySparkException, match=r"messages 5 to \d+ of .* are lost \(retention\)"):
        load(spark, path, startingOffsets='{"seq": 5}').count()


def test_messages_that_are_gone_can_be_a_row(spark: SparkSession, tmp_path: Path) -> None:
    path = without_oldest_segment(tmp_path)
    rows = load(spark, path, startingOffsets='{"seq": 5}', onDataLoss="record").collect()
    (gap,) = [row for row in rows if row.kind == "gap"]
    assert (gap.seq, gap.reason, gap.payload) == (5, "retention", None)
    assert sorted(row.seq for row in rows if row.kind == "record") == list(range(gap.gap_to + 1, MESSAGES))


def stream(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    """Follow a queue."""
    return spark.readStream.format(FORMAT).options(**options).load(str(path))


def test_a_stream_goes_on_where_its_checkpoint_stands(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "q"
    write(path, 0, 1000)
    assert drain(stream(spark, path, maxRecordsPerBatch=400), tmp_path) == [400, 400, 200]
    write(path, 1000, 1250)
    assert sum(drain(stream(spark, path, maxBytesPerBatch=128 * 100), tmp_path)) == 250
    seqs = [row.seq for row in spark.read.parquet(str(tmp_path / "out")).select("seq").collect()]
    assert sorted(seqs) == list(range(1250))
    offsets = (tmp_path / "checkpoint" / "offsets").glob("*")
    assert any('"seq": 1250' in one.read_text() for one in offsets if not one.name.startswith("."))


def test_pushing_filters_down_is_left_to_options_while_spark_gives_wrong_answers(
    spark: SparkSession, queue: Path
) -> None:
    table = load(spark, queue)
    assert table.where("seq < 10").count() == 10
    assert table.count() == MESSAGES


def test_one_damaged_message_does_not_block_a_stream_that_records_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "q"
    write(path, 0, 100)
    segment = next(path.glob("*.q"))
    content = bytearray(segment.read_bytes())
    content[64 + 5 * 128 + 64] ^= 0xFF  # in the payload of message 5
    segment.write_bytes(content)
    with pytest.raises(StreamingQueryException, match="checksum"):
        drain(stream(spark, path), tmp_path / "fail")
    assert drain(stream(spark, path, onCorrupt="record"), tmp_path) == [100]
    rows = spark.read.parquet(str(tmp_path / "out")).where("kind = 'gap'").collect()
    assert [(row.seq, row.gap_to, row.reason) for row in rows] == [(5, 5, "corrupt")]
