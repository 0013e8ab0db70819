"""A day of a market that is only in a bucket: books and features of Spark are those of the live queue."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from everlog.archive import replays
from everlog.archive.layout import stream_directory
from everlog.cli.main import app
from everlog.errors import EverlogError
from everlog.market import BookSet, Outputs
from everlog.market.feature_rows import standard_features
from everlog.market.protocol import TypeId
from everlog.market.replay import Replay
from everlog.market.triggers import TimeBar
from everlog.pipeline import register
from everlog.pipeline.jobs.features import features_of_books
from everlog.pipeline.jobs.replay import replay_books
from everlog.pipeline.lake import LakeTable
from everlog.queue import Queue
from tests.support.archives import known_messages, write_archive
from tests.support.object_stores import S3Server, moto_server
from tests.support.quotes import top_of

pytestmark = pytest.mark.timeout(300)
INTERVAL_NS = 1_000_000
SEGMENT_BYTES = 1 << 18
Tops = dict[int, tuple[int, ...]]
Rows = dict[int, list[tuple[object, ...]]]


class Day(NamedTuple):
    """Where a day is, and what its live queue had."""

    url: str
    tops: Tops
    features: Rows


def command(*words: object) -> str:
    """Run a command of `everlog` in this process and return what it printed."""
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def tops_of(replay: Replay) -> Tops:
    """The best prices after every event, on one machine."""
    books, tops = BookSet(), {}
    for some in replay.types(TypeId.BOOK_EVENT).batches():
        for events, result in books.apply_packed(some.packed, Outputs()).values():
            assert result.top is not None
            tops.update(zip(some.seq[events].tolist(), map(tuple, result.top.tolist()), strict=True))
    return tops


def features_of(replay: Replay) -> Rows:
    """Rows of features by market, on one machine."""
    rows: Rows = {}
    for table in replay.features(standard_features()).trigger(TimeBar(INTERVAL_NS)).tables():
        rows.setdefault(table.market.market_id, []).extend(map(tuple, table.rows.tolist()))
    return rows


@pytest.fixture(scope="module")
def store(spark: SparkSession) -> Iterator[S3Server]:
    """A store that this process and all tasks find through the environment, as they would on a cluster."""
    with moto_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
            patch.setitem(spark.sparkContext.environment, name, value)
        register(spark)  # the format keeps the environment that it was registered in
        yield server


@pytest.fixture(scope="module")
def day(store: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Day:
    """A market that was archived, compressed, moved to a bucket and deleted here, by the commands."""
    root = tmp_path_factory.mktemp("day")
    live, history, url = root / "live", root / "history", store.url("history")
    Queue.open_publisher(live, segment_size=SEGMENT_BYTES, retention=False).close()
    command("simulate", "--queue", live, "--symbols", 2, "--events", 8000, "--kinds", "l2,trades")
    tops, features = tops_of(Replay(str(live))), features_of(Replay(str(live)))
    assert len(tops) > 4000 and [len(rows) > 50 for rows in features.values()] == [True, True]
    command("archive", "run", live, history, "--venue", "sim", "--plain", "--once", "--seal")
    command("archive", "compress", history)
    command("archive", "move", history, "--to", url)
    shutil.rmtree(root)
    return Day(url, tops, features)


def test_one_machine_replays_the_day_from_the_bucket(day: Day) -> None:
    (replay,) = replays(day.url)
    assert (tops_of(replay), features_of(replay)) == (day.tops, day.features)


def test_spark_replays_the_day_from_the_bucket(spark: SparkSession, day: Day, tmp_path: Path) -> None:
    report = replay_books(spark, f"{day.url}/", str(tmp_path), "tops", partitions=2)
    rows = LakeTable(tmp_path, "tops").read(spark).collect()
    assert {row.seq: top_of(row.asDict()) for row in rows} == day.tops
    assert (report.rows, report.gaps, report.source) == (len(day.tops), 0, day.url)
    assert replay_books(spark, day.url, str(tmp_path), "tops").batches == 0, "the same run"


def test_spark_computes_the_features_of_the_day_from_the_bucket(
    spark: SparkSession, day: Day, tmp_path: Path
) -> None:
    features_of_books(
        spark,
        day.url,
        str(tmp_path),
        "features",
        standard_features(),
        trigger=TimeBar(INTERVAL_NS),
        partitions=2,
    )
    assert rows_of(LakeTable(tmp_path, "features").read(spark)) == day.features


def rows_of(table: DataFrame) -> Rows:
    """The columns that one machine computes, by market."""
    names = [column.name for one in standard_features() for column in one.columns]
    found: Rows = {}
    for row in table.orderBy("ingest_ts_ns").select("market_id", *names).collect():
        found.setdefault(row[0], []).append(tuple(row[1:]))
    return found


def test_an_archive_without_one_numbering_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for day in ("2023-11-14", "2023-11-15"):
        directory = Path(stream_directory(str(tmp_path / "archive"), "v", "s", day, "book"))
        write_archive(directory, known_messages(20))
    with pytest.raises(EverlogError, match="begin anew in each of 2 directories"):
        replay_books(spark, str(tmp_path / "archive"), str(tmp_path / "lake"), "tops")
    other = Path(stream_directory(str(tmp_path / "archive"), "v", "t", "2023-11-14", "book"))
    write_archive(other, known_messages(20))
    with pytest.raises(EverlogError, match="has 2 streams"):
        replay_books(spark, str(tmp_path / "archive"), str(tmp_path / "lake"), "tops")
