"""The pipeline plane: everlog's topics and queues as Spark formats.

`spark_session()` gives a session in which they are registered; importing this package registers them with a
session that runs already.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    from pyspark.sql import SparkSession
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the pipeline needs Spark, which is not installed ({error}): pip install 'everlog[spark]'",
        name=error.name,
    ) from error

from everlog.pipeline.sources import register

if TYPE_CHECKING:
    from everlog.pipeline.session import spark_session

__all__ = ["register", "spark_session"]


def __getattr__(name: str) -> Any:
    # Every task of every query imports this package, and starts no session.
    if name != "spark_session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("everlog.pipeline.session").spark_session


_active = SparkSession.getActiveSession()
if _active is not None:
    register(_active)
