"""Refining on Spark: the queues of one process, in one run or several."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from everlog.errors import InvalidConfig
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline.jobs.refine import refine, refine_symbols
from everlog.pipeline.queue_ranges import SeqRange
from everlog.pipeline.refinery import Refinery, RefinerySettings, Symbols
from everlog.queue import Queue
from tests.support.import_runs import messages_of

pytestmark = pytest.mark.timeout(300)

NAMES = [f"SIM{number:04d}" for number in range(5)]
SMALL = RefinerySettings(segment_size=1 << 20)


def test_tasks_write_what_one_process_does_and_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    raw, root = str(tmp_path / "raw"), tmp_path / "out"
    venue = SimulatedVenue(NAMES, rate=200.0, kinds=("l2", "trades"), resting_orders=10, block_events=200)
    with Queue.open_publisher(raw, segment_size=1 << 20) as writer:
        for block in venue.blocks(500):
            block.append_to(writer)
        half = writer.next_seq
        first = refine(spark, raw, str(root), "simulated", NAMES, settings=SMALL, partitions=2)
        for block in venue.blocks(500):
            block.append_to(writer)
        messages = writer.next_seq
    second = refine(spark, raw, str(root), "simulated", NAMES, settings=SMALL, partitions=3)
    assert first.books + first.trades == half
    assert first.books + first.trades + second.books + second.trades == messages
    assert second.known == first.rows
    alone = Refinery(str(tmp_path / "alone"), Symbols("simulated", NAMES), range(5), SMALL)
    refine_symbols(raw, SeqRange(0, messages), alone)
    queues = sorted(path.parent for path in (tmp_path / "alone").rglob("control.meta"))
    assert len(queues) == len(list(root.rglob("control.meta"))) >= len(NAMES)
    for queue in queues:
        twin = root / queue.relative_to(tmp_path / "alone")
        assert [bytes(one.payload) for one in messages_of(twin)] == [
            bytes(one.payload) for one in messages_of(queue)
        ]
    with pytest.raises(InvalidConfig, match="refined from another settings"):
        refine(spark, raw, str(root), "simulated", NAMES)
