"""Replay as a stream: books are kept between batches and runs, and the tables are those of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from everlog.errors import InvalidConfig
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline.jobs.live_replay import follow_books
from everlog.pipeline.jobs.replay import ReplayReport, replay_books
from everlog.pipeline.lake import Appended, LakeTable
from everlog.queue import Queue, QueueWriter

pytestmark = pytest.mark.timeout(300)

TABLES = ("", "_depth", "_report")


class LakeIsFull(OSError):
    """What a commit says that fails."""


def rows(spark: SparkSession, lake: str, table: str) -> list[Any]:
    """All rows of a table, in order."""
    return LakeTable(lake, table).read(spark).orderBy("seq").collect()


def append(writer: QueueWriter, venues: list[SimulatedVenue], events: int) -> None:
    """Write events of one venue after the other."""
    for venue in venues:
        for block in venue.blocks(events):
            block.append_to(writer)


def test_batches_runs_and_failures_in_between_change_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, lake = str(tmp_path / "queue"), str(tmp_path / "lake")
    venues = [
        SimulatedVenue(["A", "B"], rate=2000.0, kinds=("l2", "trades"), resting_orders=10, block_events=100),
        SimulatedVenue(["C", "D"], rate=2000.0, kinds=("l3",), resting_orders=10, block_events=100),
    ]

    def live() -> ReplayReport:
        options = {"maxRecordsPerBatch": "400"}
        return follow_books(
            spark, queue, lake, "live", follow=False, reader="books", partitions=2, options=options
        )

    with Queue.open_publisher(queue, segment_size=1 << 20) as writer:
        append(writer, venues, 300)
        first = live()
        assert first.batches > 1
        append(writer, venues, 150)
        end = writer.next_seq
    commit = LakeTable.commit

    def failing(table: LakeTable, *words: Any, **named: Any) -> Appended:
        if table.name == "live_depth":
            raise LakeIsFull("no room for the second table")
        return commit(table, *words, **named)

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "commit", failing)
        with pytest.raises(Exception, match="no room for the second table"):
            live()
    # The first table has the batch already, the second has not: the batch is run again.
    second = live()
    assert second.offsets == {"end": end}
    with Queue.open_subscriber(queue, "books") as position:
        assert position.next() is None, "the position is behind the last replayed message"
    whole = replay_books(spark, queue, lake, "whole", partitions=3)
    for suffix in TABLES:
        assert rows(spark, lake, f"live{suffix}") == rows(spark, lake, f"whole{suffix}")
    assert whole.rows == len(rows(spark, lake, "live"))
    assert whole.depth_rows == LakeTable(lake, "live_depth").read(spark).count()
    with pytest.raises(InvalidConfig, match="made with another plan"):
        follow_books(spark, queue, lake, "live", follow=False, depth=3)
    with pytest.raises(InvalidConfig, match="has been filled"):
        follow_books(spark, queue, lake, "whole", follow=False)
