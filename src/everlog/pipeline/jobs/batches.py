"""A streaming query that hands its batches to a function of ours, until it has caught up or is stopped.

Owns how such a query is started, waited for and stopped; what is done with a batch is the job's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, Final

from pyspark import java_gateway
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from everlog.errors import Unsupported
from everlog.fs import OsFs, sync_path

# Spark's calls back into Python are awaited with select(), which knows no descriptor above this one.
LAST_DESCRIPTOR: Final = 1023

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
"""Where a checkpoint has the range of each batch, and which of them are over."""


def run_batches(
    frame: DataFrame, checkpoint: str, take: Callable[[DataFrame, int], None], *, follow: bool
) -> StreamingQuery:
    """Run a query over a stream and return it when it has ended.

    `take` gets the rows and the number of each batch; after a crash the same batch comes again. Without
    `follow` the query ends when it has caught up with what was there at its start.
    """
    _check_calls_back(frame)
    _drop_unwritten(checkpoint)

    def take_planned(rows: DataFrame, batch: int) -> None:
        _sync_plan(checkpoint, batch)
        take(rows, batch)

    writer = frame.writeStream.option("checkpointLocation", checkpoint).foreachBatch(take_planned)
    query = (writer if follow else writer.trigger(availableNow=True)).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return query


def _sync_plan(checkpoint: str, batch: int) -> None:
    """Make the range of a batch survive a power loss, before anything of the batch is kept.

    Spark leaves that to the system. A batch whose range is gone would be planned anew, with more records; and
    what has its number already would take it for the same one and leave those out.
    """
    fs, folder = OsFs(), os.path.join(checkpoint, OFFSETS)
    for name in (str(batch), f".{batch}.crc"):
        sync_path(fs, os.path.join(folder, name))
    fs.fsync_dir(folder)
    fs.fsync_dir(checkpoint)


def _drop_unwritten(checkpoint: str) -> None:
    """Delete what Spark's log has of batches but a power loss has emptied: it would refuse to go on.

    Nothing was kept of a batch whose range was not on disk, and a batch that may be over comes again.
    """
    for folder in (os.path.join(checkpoint, name) for name in (OFFSETS, COMMITS)):
        with contextlib.suppress(FileNotFoundError):
            sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
            for name in sizes:
                batch = name.removeprefix(".").removesuffix(".crc")
                if batch.isdecimal() and sizes.get(batch, 0) == 0:
                    os.unlink(os.path.join(folder, name))


def _check_calls_back(frame: DataFrame) -> None:
    """Refuse what would wait forever: the first batch would never be handed over."""
    gateway: Any = frame.sparkSession.sparkContext._gateway
    untyped: Any = java_gateway
    untyped.ensure_callback_server_started(gateway)
    descriptor = gateway._callback_server.server_socket.fileno()
    if descriptor > LAST_DESCRIPTOR:
        raise Unsupported(
            f"this process has so many files open that Spark's calls come in on descriptor {descriptor}, and "
            f"Spark waits only for those up to {LAST_DESCRIPTOR}; run the job in a process of its own"
        )
