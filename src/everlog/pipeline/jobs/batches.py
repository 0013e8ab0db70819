"""A streaming query that hands its batches to a function of ours, until it has caught up or is stopped.

Owns how such a query is started, waited for and stopped; what is done with a batch is the job's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark import java_gateway
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from everlog.errors import Unsupported

# Spark's calls back into Python are awaited with select(), which knows no descriptor above this one.
LAST_DESCRIPTOR: Final = 1023


def run_batches(
    frame: DataFrame, checkpoint: str, take: Callable[[DataFrame, int], None], *, follow: bool
) -> StreamingQuery:
    """Run a query over a stream and return it when it has ended.

    `take` gets the rows and the number of each batch; after a crash the same batch comes again. Without
    `follow` the query ends when it has caught up with what was there at its start.
    """
    _check_calls_back(frame)
    writer = frame.writeStream.option("checkpointLocation", checkpoint).foreachBatch(take)
    query = (writer if follow else writer.trigger(availableNow=True)).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return query


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
