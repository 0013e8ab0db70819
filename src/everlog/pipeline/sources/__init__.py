"""The Spark formats of everlog, one module each."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMATS: Final = (
    ("everlog.pipeline.sources.queue", "QueueFormat"),
    ("everlog.pipeline.sources.topics", "TopicsFormat"),
    ("everlog.pipeline.sources.lake", "LakeFormat"),
)
"""By name: a task of one format does not wait for the other to be imported."""


def register(session: SparkSession) -> None:
    """Make the formats known to a session; a second time changes nothing."""
    for module, name in FORMATS:
        session.dataSource.register(getattr(import_module(module), name))
    if isinstance(session, SparkSession):  # not that of Spark Connect, which needs no active one
        _find_sinks_in_every_thread(type(session.range(0)))


def _find_sinks_in_every_thread(frames: Any) -> None:
    """Make `writeStream` of a class of frames activate their session in a thread that has none.

    Spark looks for a streaming sink written in Python only in the active session of the calling thread, and a
    thread that Python has started has none.
    """

    def write_stream(frame: DataFrame) -> DataStreamWriter:
        if SparkSession.getActiveSession() is None:
            frame.sparkSession.createDataFrame([], "unused int")  # activates the session
        return DataStreamWriter(frame)

    frames.writeStream = property(write_stream, doc=frames.writeStream.__doc__)
