"""The Spark formats of everlog, one module each."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from pyspark.sql import SparkSession

FORMATS: Final = (
    ("everlog.pipeline.sources.queue", "QueueFormat"),
    ("everlog.pipeline.sources.topics", "TopicsFormat"),
)
"""By name: a task of one format does not wait for the other to be imported."""


def register(session: SparkSession) -> None:
    """Make the formats known to a session; a second time changes nothing."""
    for module, name in FORMATS:
        session.dataSource.register(getattr(import_module(module), name))
