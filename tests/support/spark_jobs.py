"""Every job once on one session, and what its tables hold: the same on a session of any kind."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from everlog.market.feature_rows import standard_features
from everlog.market.triggers import TimeBar
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline import spark_session
from everlog.pipeline.jobs.archive import archive_queue
from everlog.pipeline.jobs.audit import audit_queue
from everlog.pipeline.jobs.features import Bars, features_of_books
from everlog.pipeline.jobs.importing import import_to_lake, import_to_queues
from everlog.pipeline.jobs.live_replay import follow_books
from everlog.pipeline.jobs.refine import refine
from everlog.pipeline.jobs.replay import replay_books
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.refinery import RefinerySettings
from everlog.queue import Queue
from tests.market.venues.tardis_files import write_tardis_files
from tests.support.import_runs import messages_of
from tests.support.market_queues import SECOND_NS, write_market_queue

NAMES = ["SIM0000", "SIM0001", "SIM0002"]
Found = dict[str, list[str]]


def write_inputs(folder: Path) -> None:
    """Write a queue of books, a raw queue of three symbols and a vendor's file."""
    write_market_queue(str(folder / "books"))
    venue = SimulatedVenue(NAMES, rate=200.0, kinds=("l2", "trades"), resting_orders=10, block_events=200)
    with Queue.open_publisher(folder / "raw", segment_size=1 << 20) as writer:
        for block in venue.blocks(300):
            block.append_to(writer)
    vendor = SimulatedVenue(["SYM"], resting_orders=10, rate=2000.0, kinds=("l2", "trades"))
    write_tardis_files(vendor, 100, folder)


def run_jobs(spark: SparkSession, inputs: Path, folder: Path) -> Found:
    """Run the jobs; return the rows of each table and the payloads of each queue, as text, in order."""
    lake, books = str(folder / "lake"), str(inputs / "books")
    files = sorted(str(path) for path in inputs.glob("*_book_*.csv"))
    for bound in ("500", "100000"):  # several batches, and a run that goes on
        options = {"maxRecordsPerBatch": bound}
        archive_queue(spark, books, lake, "messages", reader=folder.name, options=options)
        follow_books(spark, books, lake, "live", follow=False, partitions=2, options=options)
    audit = audit_queue(spark, lake, "messages", queue=books)
    assert audit.is_sound, audit
    replay_books(spark, books, lake, "tops")
    trigger, bars = TimeBar(SECOND_NS), Bars("time", 5 * SECOND_NS)
    features_of_books(spark, books, lake, "features", standard_features(), trigger=trigger, bars=bars)
    settings = RefinerySettings(segment_size=1 << 20)
    refine(spark, str(inputs / "raw"), str(folder / "clean"), "simulated", NAMES, settings=settings)
    import_to_queues(spark, "tardis-book", files, str(folder / "queues"))
    import_to_lake(spark, "tardis-book", files, lake, "events")
    found = {}
    for name in ("messages", "live", "live_depth", "tops", "features", "bars", "events"):
        found[name] = sorted(str(tuple(row)) for row in LakeTable(lake, name).read(spark).collect())
    assert found["live"] == found["tops"]
    for path in sorted(folder.rglob("control.meta")):
        queue = path.parent
        found[str(queue.relative_to(folder))] = [bytes(one.payload).hex() for one in messages_of(queue)]
    return found


def main() -> None:
    """Run the jobs on Spark Connect: arguments are the inputs, a folder, and the file for what was found."""
    inputs, folder, answer = map(Path, sys.argv[1:])
    session = spark_session(remote="local[2]")
    assert not isinstance(session, SparkSession), "this is a session of Spark Connect"
    answer.write_bytes(msgspec.json.encode(run_jobs(session, inputs, folder)))
    session.stop()


if __name__ == "__main__":
    main()
