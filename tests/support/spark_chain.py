"""The chain from a feed to an audit on one session, and what its tables hold: the same on any session.

Run as a process it makes a session of its own, on a cluster or of Spark Connect: one process has sessions of
one kind only.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from everlog.feeds.rehearsal import Rehearsal
from everlog.market.feature_rows import standard_features
from everlog.market.triggers import TimeBar
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline import spark_session
from everlog.pipeline.jobs.archive import archive_queue
from everlog.pipeline.jobs.audit import audit_queue
from everlog.pipeline.jobs.features import Bars, features_of_books
from everlog.pipeline.jobs.importing import import_to_lake, import_to_queues
from everlog.pipeline.jobs.live_replay import follow_books
from everlog.pipeline.jobs.refine import LateTable, refine
from everlog.pipeline.jobs.replay import replay_books
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.refinery import RefinerySettings
from tests.market.venues.tardis_files import write_tardis_files
from tests.support.feed_runs import RECORDINGS, running, until_live
from tests.support.import_runs import messages_of
from tests.support.market_queues import SECOND_NS

QUEUE = "streams/raw/feed/queue"
CONNECT = "connect"
ARCHIVED = {"messages": "raw", "trades": "trade", "book_l2": "book"}
COMPUTED = ("quotes", "quotes_depth", "live", "live_depth", "features", "bars", "late", "events")
Found = dict[str, list[str]]


def write_inputs(folder: Path) -> None:
    """Capture the recorded frames of a venue on loopback into a queue; write the files of a vendor."""
    recording = RECORDINGS["coinbase"]

    async def capture() -> None:
        venue = Rehearsal(recording.venue, recording.paths(), speed=0.0)
        async with running(venue, folder) as feed:
            await until_live(venue, feed)

    asyncio.run(capture())
    vendor = SimulatedVenue(["SYM"], resting_orders=10, rate=2000.0, kinds=("l2", "trades"))
    write_tardis_files(vendor, 100, folder)


def run_chain(spark: SparkSession, inputs: Path, lake: str, folder: Path) -> Found:
    """Run every job; return the rows of each table and the payloads of each queue, as text, in order.

    `lake` may be anywhere; checkpoints and queues are below `folder`.
    """
    queue, options = str(inputs / QUEUE), {"maxRecordsPerBatch": "6000"}
    for table, decode in ARCHIVED.items():
        place = {"checkpoint": str(folder / f"{table}.checkpoint"), "reader": f"{folder.name}-{table}"}
        archive_queue(spark, queue, lake, table, **place, options={**options, "decode": decode})
    replay_books(spark, queue, lake, "quotes", partitions=4, spans=2)
    live = str(folder / "live.checkpoint")
    follow_books(spark, queue, lake, "live", checkpoint=live, follow=False, partitions=2, options=options)
    trigger, bars = TimeBar(SECOND_NS), Bars("count", 5)
    features_of_books(spark, queue, lake, "features", standard_features(), trigger=trigger, bars=bars)
    for table in ARCHIVED:
        audit = audit_queue(spark, lake, table, queue=queue, checkpoint=str(folder / f"{table}.checkpoint"))
        assert audit.is_sound, (table, audit)
    symbols, settings = RECORDINGS["coinbase"].symbols, RefinerySettings(segment_size=1 << 20)
    late = LateTable(lake)
    refine(spark, queue, str(folder / "clean"), "coinbase", symbols, settings=settings, late=late)
    files = sorted(str(path) for path in inputs.glob("*_book_*.csv"))
    import_to_queues(spark, "tardis-book", files, str(folder / "queues"))
    imported = [import_to_lake(spark, "tardis-book", files, lake, "events") for _ in range(2)]
    assert [one.known for one in imported] == [0, len(files)], "a repeated import changes nothing"
    found = {}
    for name in (*ARCHIVED, *COMPUTED):
        found[name] = sorted(str(tuple(row)) for row in LakeTable(lake, name).read(spark).collect())
        assert found[name], name
    assert LakeTable(lake, "quotes_report").read(spark).count() == 0, "nothing was lost"
    assert (found["live"], found["live_depth"]) == (found["quotes"], found["quotes_depth"])
    for path in sorted(folder.rglob("control.meta")):
        found[str(path.parent.relative_to(folder))] = [
            bytes(one.payload).hex() for one in messages_of(path.parent)
        ]
    return found


def main(where: str, inputs: str, folder: str, answer: str) -> None:
    """Run the chain on a session of Spark Connect, or on the cluster of this master."""
    if where == CONNECT:
        session = spark_session(remote="local[2]")
        assert not isinstance(session, SparkSession), "this is a session of Spark Connect"
    else:
        session = spark_session(app_name="chain", master=where)
    found = run_chain(session, Path(inputs), f"{folder}/lake", Path(folder))
    Path(answer).write_bytes(msgspec.json.encode(found))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
