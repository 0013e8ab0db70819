"""Books and features inside Spark tasks: the numbers of one machine, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from everlog.errors import InvalidConfig
from everlog.market import BarBuilder, BookSet, Market, Outputs
from everlog.market.feature_choice import parse_features
from everlog.market.feature_rows import standard_features
from everlog.market.protocol import TypeId, crypto_market_id
from everlog.market.replay import Replay
from everlog.market.symbols import SymbolDefinition, record_symbols
from everlog.market.triggers import TimeBar
from everlog.pipeline.jobs.features import Bars, features_of_books
from everlog.pipeline.jobs.replay import replay_books
from everlog.pipeline.lake import LakeTable
from everlog.queue import Queue
from tests.support.command_lines import run
from tests.support.market_queues import DIFFS, MARKETS, SECOND_NS, simulated_queue, write_market_queue

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A queue of two markets."""
    path = str(tmp_path_factory.mktemp("books") / "queue")
    write_market_queue(path)
    return path


def test_features_are_those_of_one_machine_bit_for_bit(
    spark: SparkSession, queue: str, tmp_path: Path
) -> None:
    trigger = TimeBar(SECOND_NS)
    report = features_of_books(
        spark,
        queue,
        str(tmp_path),
        "features",
        standard_features(),
        trigger=trigger,
        bars=Bars("time", 5 * SECOND_NS),
        partitions=3,
    )
    expected: dict[int, list[tuple[object, ...]]] = {market: [] for market in MARKETS}
    Replay(queue).features(standard_features()).trigger(TimeBar(SECOND_NS)).for_each(
        lambda one: expected[one.market.market_id].extend(map(tuple, one.rows.tolist()))
    )
    table = LakeTable(tmp_path, "features").read(spark)
    named = ["venue", "symbol", "ingest_time", "exchange_time", "tick_size"]
    assert table.columns[-5:] == named
    names = [name for name in table.columns if name not in ("venue_id", "market_id", "date", *named)]
    for market, rows in expected.items():
        found = table.where(f"market_id = {market}").orderBy("ingest_ts_ns").select(names).collect()
        assert [tuple(row) for row in found] == rows
    assert report.rows == sum(map(len, expected.values()))
    assert {str(row.date) for row in table.select("date").distinct().collect()} == {
        "2024-10-03",
        "2024-10-04",
    }
    builder, bars = BarBuilder("time", 5 * SECOND_NS), []
    for batch in Replay(queue).trades():
        bars += builder.add(*batch).tolist()
    bars += builder.finish().tolist()
    kept = LakeTable(tmp_path, "features_bars").read(spark).orderBy("start_ts_ns").drop("date", "symbol_hash")
    assert [tuple(row) for row in kept.collect()] == bars
    assert report.bar_rows == len(bars) > 5


def test_the_command_without_spark_writes_the_bits_of_the_job(spark: SparkSession, tmp_path: Path) -> None:
    queue, chosen = tmp_path / "queue", "best,mid,trades,volatility,ofi_levels:2,depth_bps:20"
    simulated_queue(queue, symbols=3, seconds=0.4, rate=5000.0, kinds="l2,trades")
    symbols = [
        SymbolDefinition(
            exchange="simulated", exchange_symbol=f"SIM000{number}", tick_size=0.01 * number, at_ts=0
        )
        for number in range(1, 3)
    ]
    record_symbols(queue, symbols)
    features = parse_features(f"time,{chosen},seq")
    features_of_books(
        spark, str(queue), str(tmp_path), "rows", features, trigger=TimeBar(SECOND_NS // 100), partitions=3
    )
    out = tmp_path / "rows.parquet"
    done = run("everlog", "features", queue, "--features", chosen, "--every", "10ms", "--out", out)
    assert done.returncode == 0, done.stderr
    alone = pq.read_table(out).sort_by([("symbol", "ascending"), ("seq", "ascending")])
    names = [name for name in alone.column_names if not name.endswith("_time")]
    found = LakeTable(tmp_path, "rows").read(spark).orderBy("symbol", "seq").select(names).toArrow()
    assert found.num_rows == alone.num_rows > 100
    ticks = set(zip(alone["symbol"].to_pylist(), alone["tick_size"].to_pylist(), strict=True))
    unknown = str(crypto_market_id("SIM0000"))  # the catalogue does not have it
    assert ticks == {(unknown, None), ("SIM0001", 0.01), ("SIM0002", 0.02)}
    for name in names:
        assert found[name].to_pylist() == alone[name].to_pylist(), name
    assert sum(alone["trades"].to_pylist()) > 100


def test_tops_are_those_of_one_machine(spark: SparkSession, queue: str, tmp_path: Path) -> None:
    report = replay_books(spark, queue, str(tmp_path), "tops", partitions=2)
    books, expected = BookSet(), {}
    for some in Replay(queue).types(TypeId.BOOK_EVENT).batches():
        for events, result in books.apply_packed(some.packed, Outputs()).values():
            assert result.top is not None
            expected.update(zip(some.seq[events].tolist(), result.top.tolist(), strict=True))
    rows = LakeTable(tmp_path, "tops").read(spark).collect()
    assert {row.seq: (row.bid_price, row.bid_size, row.ask_price, row.ask_size) for row in rows} == expected
    assert len(rows) == DIFFS + len(MARKETS)
    assert {Market(row.venue_id, row.market_id) for row in rows} == set(books.books)
    depth = LakeTable(tmp_path, "tops_depth").read(spark)
    assert depth.count() == report.depth_rows > len(MARKETS)
    assert depth.selectExpr("max(size(bids)) as most").collect()[0].most > 1
    assert LakeTable(tmp_path, "tops_report").read(spark).count() == 0
    files = LakeTable(tmp_path, "tops").files({"date": "2024-10-03", "venue_id": "1"})
    assert files and all("date=2024-10-03/venue_id=1" in file for file in files)


def test_a_run_over_the_same_messages_changes_nothing_and_one_over_more_replaces_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    write_market_queue(path)
    first = replay_books(spark, path, lake, "tops")
    again = replay_books(spark, path, lake, "tops")
    assert (first.batches, again.batches, again.version) == (1, 0, first.version)
    with Queue.open_publisher(path) as writer:
        writer.append(99, b"not a book event")
    more = replay_books(spark, path, lake, "tops")
    assert more.rows == first.rows
    assert LakeTable(lake, "tops").read(spark).count() == first.rows


def test_a_queue_that_was_created_again_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path, lake = tmp_path / "queue", str(tmp_path / "lake")
    write_market_queue(str(path))
    replay_books(spark, str(path), lake, "tops")
    path.rename(tmp_path / "old")
    with Queue.open_publisher(str(path)) as writer:
        writer.append(99, b"x")
    with pytest.raises(InvalidConfig, match="was it created again"):
        replay_books(spark, str(path), lake, "tops")
