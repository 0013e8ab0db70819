"""The Spark formats of everlog, one module each."""

from __future__ import annotations

from pyspark.sql import SparkSession

from everlog.pipeline.sources.queue import QueueFormat
from everlog.pipeline.sources.topics import TopicsFormat

FORMATS = (QueueFormat, TopicsFormat)


def register(session: SparkSession) -> None:
    """Make the formats known to a session; a second time changes nothing."""
    for source in FORMATS:
        session.dataSource.register(source)
