"""`everlog.queue` over an archive root: tiers, pruning by path, filters, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from everlog.archive.layout import stream_directory
from everlog.archive.policies import Immediate
from everlog.archive.raw_archiver import RawArchiver
from everlog.archive.remote import RemoteTier, remote_name
from everlog.fs import OsFs
from everlog.market import BookSet, Outputs
from everlog.market.packing import PackedRecords
from everlog.market.protocol import TypeId
from everlog.market.replay import Messages, Replay
from everlog.queue import Queue
from tests.support.archives import compress, known_messages, write_archive
from tests.support.market_queues import write_market_queue

pytestmark = pytest.mark.spark
DAYS = ("2023-11-14", "2023-11-15")
COUNT = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two symbols and two days; one directory with a segment in each tier."""
    for number, symbol in enumerate(("btc-usdt", "eth-usdt")):
        for day in DAYS:
            directory = Path(stream_directory(str(tmp_path / "archive"), "binance", symbol, day, "book"))
            ids = write_archive(directory, known_messages(COUNT, number))
            if symbol == "btc-usdt":
                compress(directory, ids[1])
                compress(directory, ids[2])
                RemoteTier(OsFs()).move(
                    str(directory), ids[2], f"file://{tmp_path}/bucket", f"{symbol}/{day}"
                )
    return tmp_path / "archive"


def test_every_message_of_every_tier_is_a_row_with_what_its_path_says(
    spark: SparkSession, root: Path
) -> None:
    rows = spark.read.format("everlog.queue").load(str(root)).orderBy("symbol", "date", "seq").collect()
    assert len(rows) == 4 * COUNT
    expected = [
        (symbol, day, message.seq, message.timestamp_ns, message.type_id, message.payload)
        for number, symbol in enumerate(("btc-usdt", "eth-usdt"))
        for day in DAYS
        for message in known_messages(COUNT, number)
    ]
    found = [(row.symbol, row.date, row.seq, row.ts_ns, row.type_id, bytes(row.payload)) for row in rows]
    assert found == expected
    assert {(row.venue, row.stream) for row in rows} == {("binance", "book")}


def test_directories_are_pruned_and_messages_filtered(spark: SparkSession, root: Path) -> None:
    reader = spark.read.format("everlog.queue").option("symbol", "btc-usdt").option("fromDate", DAYS[1])
    one = reader.load(str(root))
    assert one.count() == COUNT
    segments = len(list(root.glob(f"v1/binance/btc-usdt/{DAYS[1]}/book/*.idx"))) // 1
    files = {path.name[:9] for path in root.glob(f"v1/binance/btc-usdt/{DAYS[1]}/book/0*.q*")}
    assert one.rdd.getNumPartitions() == len(files) <= segments
    some = reader.option("fromSeq", 10).option("toSeq", 19).option("typeId", "1,2").load(str(root))
    wanted = [m.seq for m in known_messages(COUNT, 0)[10:20] if m.type_id in (1, 2)]
    assert sorted(row.seq for row in some.select("seq").collect()) == wanted
    times = spark.read.format("everlog.queue").option("fromTs", known_messages(COUNT, 0)[50].timestamp_ns)
    first = known_messages(COUNT, 0)[50].timestamp_ns
    matching = [m for m in known_messages(COUNT, 0) if m.timestamp_ns >= first]
    assert times.option("symbol", "btc-usdt").option("toDate", DAYS[0]).load(str(root)).count() == len(
        matching
    )


def test_a_day_of_a_market_that_is_only_at_an_address_gives_the_same_books(
    spark: SparkSession, tmp_path: Path
) -> None:
    live, root, url = tmp_path / "live", tmp_path / "history", f"file://{tmp_path}/bucket"
    write_market_queue(str(live))
    with Queue.open_publisher(live) as writer:
        writer.append(99, bytes((1 << 16) - 4096))  # the segment of the last event is full: it is sealed
    with RawArchiver(str(live), str(root), "sim", policy=Immediate()) as archiver:
        archived = archiver.run_once()
    for segment in archived:
        name = remote_name(str(root), segment.directory)
        RemoteTier(OsFs()).move(segment.directory, segment.segment_id, url, name)
    expected = [
        (int(seq), int(time_ns), bytes(payload))
        for some in Replay(str(live)).types(TypeId.BOOK_EVENT).batches()
        for seq, time_ns, payload in zip(some.seq, some.timestamp_ns, _payloads(some), strict=True)
    ]
    tops = _tops(payload for _, _, payload in expected)
    shutil.rmtree(live)
    shutil.rmtree(root)
    read = spark.read.format("everlog.queue").option("typeId", int(TypeId.BOOK_EVENT))
    rows = read.option("venue", "sim").load(url).orderBy("seq").collect()
    assert [(row.seq, row.ts_ns, bytes(row.payload)) for row in rows] == expected
    assert _tops(bytes(row.payload) for row in rows) == tops
    with pytest.raises(Exception, match="matches"):
        read.option("fromDate", "2100-01-01").load(url).count()


def _payloads(some: Messages) -> list[bytes]:
    return [bytes(payload) for payload in some.packed]


def _tops(payloads: Iterable[bytes]) -> list[tuple[int, ...]]:
    """The best prices after each event."""
    found, books = [], BookSet()
    for payload in payloads:
        packed = PackedRecords(
            np.frombuffer(payload, np.uint8), np.zeros(1, np.uint64), np.full(1, len(payload), np.uint64)
        )
        for _, result in books.apply_packed(packed, Outputs()).values():
            assert result.top is not None
            found += [tuple(row) for row in result.top.tolist()]
    return found


def test_what_makes_no_sense_is_refused(spark: SparkSession, root: Path) -> None:
    reader = spark.read.format("everlog.queue")
    for name, value, words in (
        ("fromDate", "tomorrow", "not a date"),
        ("startingOffsets", "earliest", "unknown option"),
        ("symbol", "none-such", "matches"),
    ):
        with pytest.raises(Exception, match=words):
            reader.options(**{name: value}).load(str(root)).count()
        reader = spark.read.format("everlog.queue")
    with pytest.raises(Exception, match="live queue"):
        spark.readStream.format("everlog.queue").load(str(root)).writeStream.format(
            "noop"
        ).start().processAllAvailable()
