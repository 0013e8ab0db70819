"""The pipeline plane: everlog's topics and queues as Spark formats.

`spark_session()` gives a session in which they are registered; importing this package registers them with a
session that runs already.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from everlog.pipeline.session import spark_session
from everlog.pipeline.sources import register

__all__ = ["register", "spark_session"]

_active = SparkSession.getActiveSession()
if _active is not None:
    register(_active)
