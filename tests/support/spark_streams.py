"""Streams in tests: everything that is there now, into Parquet."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

PATIENCE_S = 120


def drain(table: DataFrame, folder: Path) -> list[int]:
    """Run a stream into `folder / "out"` until it has caught up; return the rows of each micro-batch.

    Its checkpoint is kept beside, so the next call goes on where this one ended.
    """
    writer = table.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.option("path", str(folder / "out")).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
