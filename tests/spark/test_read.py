"""`read_queue` and `read_topic`: what a condition selects is what Spark's own filter does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from everlog.archive.layout import stream_directory
from everlog.pipeline.read import read_queue, read_topic
from everlog.queue import Queue
from tests.support.archives import known_messages, write_archive
from tests.support.http_api import HttpApi
from tests.support.server_processes import running_server

pytestmark = pytest.mark.timeout(300)

MESSAGES = 60
BASE_NS = 1_700_000_000_000_000_000
CONDITIONS = (
    *("seq < 10 and type_id = 2", "10 > seq and type_id in (1, 3) and ts_ns >= 1700000000000000004"),
    *("seq < 5 or type_id = 2", "not seq < 50", "(seq <=> 3)", "ts_ns < 1700000000000000005", "flags = 0"),
    *("seq between 55 and 99 and payload is not null", "SEQ = -1", "seq > 9 and seq < 3"),
)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Messages of four types, one of them with a time above 2^63."""
    path = tmp_path_factory.mktemp("read") / "queue"
    with Queue.open_publisher(str(path), segment_size=1 << 14) as writer:
        for number in range(MESSAGES):
            time_ns = 2**63 + 5 if number == 7 else BASE_NS + number
            writer.append(number % 4, b"%d" % number, time_ns)
    return str(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpApi]:
    """A server with a topic of tagged records."""
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, "--memory") as running, HttpApi(running.url) as api:
        tags = ("a", "ab", "b*", "ba", None)
        records = [{"data": n, "tag": tags[n % 5]} if n % 5 < 4 else {"data": n} for n in range(MESSAGES)]
        api.call("POST", "/topics/tagged", dict[str, Any], body={"records": records})
        yield api


def seqs(frames: list[DataFrame]) -> list[tuple[int, int]]:
    """Return the seqs of each frame, all in one query."""
    joined = frames[0].selectExpr("0 as number", "seq")
    for number, frame in enumerate(frames[1:], 1):
        joined = joined.union(frame.selectExpr(f"{number} as number", "seq"))
    return sorted((row.number, row.seq) for row in joined.collect())


def test_a_condition_on_a_queue_selects_what_a_filter_of_spark_does(spark: SparkSession, queue: str) -> None:
    plain = spark.read.format("everlog.queue").option("columns", "*,flags").load(queue)
    expected = seqs([plain.where(where) for where in CONDITIONS])
    assert seqs([read_queue(spark, queue, where, ["seq"]) for where in CONDITIONS]) == expected


TAGS = (
    *("tag = 'a'", "tag = 'b*'", "tag like 'a%'", "tag like 'b*%'", "tag like '%'", "tag in ('a', 'ab')"),
    *(
        "tag = ''",
        "tag is null and seq < 30",
        "seq >= 10 and tag = 'ab' and data like '%1'",
        "tag like 'a_%'",
    ),
)


def test_a_condition_on_a_topic_selects_what_a_filter_of_spark_does(
    spark: SparkSession, server: HttpApi
) -> None:
    url = str(server.address)
    plain = spark.read.format("everlog.topics").options(url=url, topic="tagged").load()
    middle = plain.where("seq = 30").collect()[0].ts
    some = [*TAGS, *(f"ts {op} timestamp '{middle}'" for op in ("<", ">", "="))]
    some += [f"ts >= '{middle}' and ts < '2100-01-01'", f"ts > '{middle}' or seq < 5", f"'{middle}' >= ts"]
    expected = seqs([plain.where(where) for where in some])
    assert seqs([read_topic(spark, "tagged", where, ["seq"], url=url) for where in some]) == expected
    assert expected


def test_only_the_range_of_a_condition_is_read(spark: SparkSession, queue: str, server: HttpApi) -> None:
    some = read_queue(spark, queue, "seq < 5 and type_id = 1", ["payload"], partitions=MESSAGES)
    assert (some.columns, some.rdd.getNumPartitions()) == (["payload"], 5)
    assert [bytes(row.payload) for row in some.collect()] == [b"1"]
    found = read_topic(spark, "tagged", "seq between 3 and 6", url=str(server.address), partitions=MESSAGES)
    assert found.rdd.getNumPartitions() == found.count() == 4


def test_gaps_that_are_rows_are_not_cut_by_a_condition(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "queue"
    with Queue.open_publisher(str(path), segment_size=1 << 14) as writer:
        for number in range(1000):
            writer.append(7, b"%d" % number, BASE_NS + number)
    min(path.glob("*.q")).unlink()
    options = {"onDataLoss": "record", "startingOffsets": '{"seq": 0}'}
    plain = spark.read.format("everlog.queue").options(**options).load(str(path)).where("seq < 50")
    (gap,) = plain.collect()
    assert gap.kind == "gap" and gap.gap_to > 50
    assert read_queue(spark, str(path), "seq < 50", **options).collect() == [gap]


def test_a_condition_chooses_the_directories_of_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "archive")
    for number, symbol in enumerate(("btc-usdt", "eth-usdt")):
        for day in ("2023-11-14", "2023-11-15"):
            directory = Path(stream_directory(root, "binance", symbol, day, "book"))
            write_archive(directory, known_messages(20, number))
    plain = spark.read.format("everlog.queue").load(root)
    some = ["symbol = 'btc-usdt' and seq < 5", "date >= '2023-11-15'", "'2023-11-15' > date and seq = 3"]
    some += ["symbol = 'none'", "date < '2023-99-99'", "symbol = 'btc-usdt' or seq = 1", "venue = 'binance'"]
    assert seqs([read_queue(spark, root, one, ["seq"]) for one in some]) == seqs(
        [plain.where(one) for one in some]
    )
    chosen = read_queue(spark, root, "symbol = 'btc-usdt' and date = '2023-11-14'", ["seq"])
    assert chosen.rdd.getNumPartitions() == 2
