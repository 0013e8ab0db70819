"""The pipeline plane: everlog's topics and queues as Spark formats.

`spark_session()` gives a session in which they are registered; importing this package registers them with a
session that runs already. `read_queue` and `read_topic` read with a condition in SQL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

try:
    from pyspark.sql import SparkSession
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the pipeline needs Spark, which is not installed ({error}): pip install 'everlog[spark]'",
        name=error.name,
    ) from error

from everlog.pipeline.quiet_workers import end_quietly
from everlog.pipeline.sources import register

if TYPE_CHECKING:
    from everlog.pipeline.declarative import market_pipeline
    from everlog.pipeline.read import read_queue, read_topic
    from everlog.pipeline.session import spark_session
    from everlog.pipeline.tables.views import create_views

_FROM: Final = {
    "create_views": "everlog.pipeline.tables.views",
    "market_pipeline": "everlog.pipeline.declarative",
    "read_queue": "everlog.pipeline.read",
    "read_topic": "everlog.pipeline.read",
    "spark_session": "everlog.pipeline.session",
}
__all__ = ["create_views", "market_pipeline", "read_queue", "read_topic", "register", "spark_session"]


def __getattr__(name: str) -> Any:
    # Every task of every query imports this package, and needs none of them.
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FROM[name]), name)


end_quietly()
_active = SparkSession.getActiveSession()
if _active is not None:
    register(_active)
