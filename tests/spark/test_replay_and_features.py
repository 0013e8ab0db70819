"""Books and features inside Spark tasks: the numbers of one machine, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from everlog.errors import InvalidConfig
from everlog.market import BarBuilder, BookSet, Market, Outputs
from everlog.market.feature_choice import parse_features
from everlog.market.feature_rows import standard_features
from everlog.market.features import BAR_COLUMNS
from everlog.market.protocol import TypeId, crypto_market_id
from everlog.market.replay import Replay
from everlog.market.symbols import SymbolDefinition, record_symbols
from everlog.market.triggers import TimeBar
from everlog.pipeline import queue_ranges
from everlog.pipeline.jobs.archive import archive_queue
from everlog.pipeline.jobs.features import Bars, features_of_books
from everlog.pipeline.jobs.live_replay import follow_books
from everlog.pipeline.jobs.replay import replay_books
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.symbols import update_dim_symbol
from everlog.pipeline.tables.schemas import FEATURES, QUOTES
from everlog.pipeline.tables.views import create_views
from everlog.queue import Queue
from tests.support.command_lines import run
from tests.support.market_queues import DIFFS, MARKETS, SECOND_NS, simulated_queue, write_market_queue
from tests.support.quotes import top_of

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
    names = [column.name for one in standard_features() for column in one.columns]
    own = FEATURES.arrow.names
    assert table.columns == [*own[:5], *(name for name in names if name not in own), *own[5:]]
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
    kept = LakeTable(tmp_path, "bars").read(spark).orderBy("start_ts_ns")
    assert [tuple(row) for row in kept.select(*BAR_COLUMNS.names or ()).collect()] == bars
    assert report.bar_rows == len(bars) > 5
    seqs = [some.seq.tolist() for some in Replay(queue).types(TypeId.TRADE).batches()]
    trades, rows = [seq for batch in seqs for seq in batch], kept.collect()
    ends = np.cumsum([row.trades for row in rows])
    assert [row.seq for row in rows] == [trades[end - 1] for end in ends]
    assert [row.first_seq for row in rows] == [trades[end] for end in (0, *ends[:-1])]


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
    alone = pq.read_table(out).sort_by([("seq", "ascending")])
    names = [name for name in alone.column_names if not name.endswith("_time")]
    found = LakeTable(tmp_path, "rows").read(spark).orderBy("seq").select(names).toArrow()
    assert found.num_rows == alone.num_rows > 100
    ticks = set(zip(alone["symbol"].to_pylist(), alone["tick_size"].to_pylist(), strict=True))
    unknown = str(crypto_market_id("SIM0000"))  # the catalogue does not have it
    assert ticks == {(unknown, None), ("SIM0001", 0.01), ("SIM0002", 0.02)}
    assert {*found["symbol"].to_pylist()} == {None, "SIM0001", "SIM0002"}, "a column that a query can trust"
    for name in (name for name in names if name != "symbol"):
        assert found[name].to_pylist() == alone[name].to_pylist(), name
    assert sum(alone["trades"].to_pylist()) > 100


@pytest.mark.parametrize(("partitions", "spans"), [(2, 1), (6, 3)])
def test_tops_are_those_of_one_machine(
    spark: SparkSession, queue: str, tmp_path: Path, partitions: int, spans: int
) -> None:
    (tmp_path / "tops.spans" / "17").mkdir(parents=True)  # of a run that was killed
    report = replay_books(spark, queue, str(tmp_path), "tops", partitions=partitions, spans=spans)
    books, expected = BookSet(), {}
    for some in Replay(queue).types(TypeId.BOOK_EVENT).batches():
        for events, result in books.apply_packed(some.packed, Outputs()).values():
            assert result.top is not None
            expected.update(zip(some.seq[events].tolist(), result.top.tolist(), strict=True))
    rows = LakeTable(tmp_path, "tops").read(spark).collect()
    assert {row.seq: top_of(row.asDict()) for row in rows} == expected
    assert {row.source for row in rows} == {queue} and {row.kind for row in rows} == {"computed"}
    assert {row.instance for row in rows} == {queue_ranges.instance_of(queue)}
    assert len(rows) == DIFFS + len(MARKETS)
    assert {Market(row.venue_id, row.market_id) for row in rows} == set(books.books)
    depth = LakeTable(tmp_path, "tops_depth").read(spark)
    assert depth.count() == report.depth_rows > len(MARKETS)
    assert depth.selectExpr("max(size(bids)) as most").collect()[0].most > 1
    assert LakeTable(tmp_path, "tops_report").read(spark).count() == 0
    assert sorted(os.listdir(tmp_path)) == ["tops", "tops_depth", "tops_report"], "stored books are gone"
    files = LakeTable(tmp_path, "tops").files({"date": "2024-10-03", "venue": "binance"})
    assert files and all("date=2024-10-03/venue=binance" in file for file in files)


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


def test_tables_of_an_earlier_version_are_replaced_by_a_whole_run_and_refused_by_a_live_one(
    spark: SparkSession, queue: str, tmp_path: Path
) -> None:
    old = spark.createDataFrame([(1, 7, 9990)], "venue_id int, market_id long, bid_price long")
    path = str(tmp_path / "queue")
    write_market_queue(path)
    follow_books(spark, path, str(tmp_path), "live", follow=False, partitions=1)
    for name in ("whole", "live"):
        LakeTable(tmp_path, name).append(old, "replay-of-0.2", 1, ("venue_id",), replace=True)
    with Queue.open_publisher(path) as writer:
        writer.append(99, b"what a stream has to go on with")
    report = replay_books(spark, queue, str(tmp_path), "whole", partitions=1)
    table = LakeTable(tmp_path, "whole")
    assert table.columns() == tuple(QUOTES.arrow.names) and table.read(spark).count() == report.rows
    with pytest.raises(InvalidConfig, match="column 'bid_price' of table 'live' is int64"):
        follow_books(spark, path, str(tmp_path), "live", follow=False, partitions=1)
    assert LakeTable(tmp_path, "live").read(spark).count() == 1


def test_names_and_tick_sizes_come_from_the_catalogue_of_the_lake_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    queue, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    simulated_queue(tmp_path / "queue", symbols=1, seconds=1.0, rate=2000.0, kinds="l2,trades")
    told = SymbolDefinition(exchange="simulated", exchange_symbol="SIM0000", tick_size=0.01)
    update_dim_symbol(lake, [told])
    archive_queue(spark, queue, lake, "trades", options={"decode": "trade"})
    replay_books(spark, queue, lake, "quotes")
    bars = Bars("count", 10)
    features_of_books(spark, queue, lake, "features", standard_features(), bars=bars)
    for table in ("trades", "quotes", "quotes_depth", "features", "bars"):
        rows = LakeTable(lake, table).read(spark).select("venue", "symbol", "tick_size").distinct().collect()
        assert [tuple(row) for row in rows] == [("simulated", "SIM0000", 0.01)], table
    with pytest.raises(InvalidConfig, match="rows that were archived or imported"):
        replay_books(spark, queue, lake, "trades")
    assert sorted(create_views(spark, lake)) == [
        *("bars", "features", "gaps", "instruments", "quotes", "trades")
    ]
    dearest = "SELECT max(bid_price) AS most FROM quotes JOIN instruments ON symbol = exchange_symbol"
    assert spark.sql(dearest).collect()[0].most > 0
