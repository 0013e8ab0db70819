"""Refining on Spark: the queues of one process, in one run or several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from everlog.errors import InvalidConfig
from everlog.market.protocol import TRADE, TypeId, symbol_hash
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline.jobs.refine import LateTable, refine, refine_symbols
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.refinery import Refinery, RefinerySettings, Symbols
from everlog.queue import Queue
from everlog.seq_ranges import SeqRange
from tests.support.import_runs import messages_of

pytestmark = pytest.mark.timeout(300)

NAMES = [f"SIM{number:04d}" for number in range(5)]
DAY_NS = 86_400_000_000_000
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
    with pytest.raises(InvalidConfig, match="made with another settings"):
        refine(spark, raw, str(root), "simulated", NAMES)


def test_what_came_too_late_is_in_a_table_once_for_each_venue(spark: SparkSession, tmp_path: Path) -> None:
    raw, late = str(tmp_path / "raw"), LateTable(str(tmp_path / "lake"))
    midnight_ns = 19_725 * DAY_NS
    times_ns = [midnight_ns - 1, midnight_ns + DAY_NS // 2, midnight_ns - 2, midnight_ns - 3]
    with Queue.open_publisher(raw, segment_size=1 << 16) as writer:

        def append(time_ns: int) -> None:
            trade = np.zeros(1, TRADE)
            trade["timestamp_ns"], trade["symbol_hash"] = time_ns, symbol_hash(NAMES[0])
            writer.append(TypeId.TRADE, trade.tobytes(), midnight_ns)

        for time_ns in times_ns:
            append(time_ns)
        for venue in ("one", "two"):
            report = refine(spark, raw, str(tmp_path / venue), venue, NAMES, settings=SMALL, late=late)
            assert report.late == 2
        append(midnight_ns - 4)
    for _ in range(2):
        refine(spark, raw, str(tmp_path / "one"), "one", NAMES, settings=SMALL, late=late)
    found = LakeTable(late.lake, late.table).read(spark).orderBy("venue", "seq").collect()
    assert [(row.venue, row.seq) for row in found] == [
        ("one", 0),
        ("one", 1),
        ("one", 2),
        ("two", 0),
        ("two", 1),
    ]
    assert {(row.symbol, str(row.date), row.type_id) for row in found} == {
        ("sim0000", "2024-01-02", TypeId.TRADE)
    }
    times = [int(np.frombuffer(row.payload, TRADE, 1)[0]["timestamp_ns"]) for row in found]
    assert times[:3] == [midnight_ns - 2, midnight_ns - 3, midnight_ns - 4]
