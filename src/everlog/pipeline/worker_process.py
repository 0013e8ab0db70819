"""What a Python worker of Spark does once, before the first task of ours that it runs.

Owns one trick. Spark collects garbage in a worker after every task; walking through everything that was ever
imported takes longer than many a task, so what is loaded by then is taken out of the collector's sight.
"""

from __future__ import annotations

import gc

from pyspark import TaskContext

_is_settled = False


def settle_worker() -> None:
    """Exempt all that is loaded from collection, once; does nothing in a process that runs no task."""
    global _is_settled  # noqa: PLW0603 - it is a fact about the process
    if not _is_settled and TaskContext.get() is not None:
        _is_settled = True
        gc.freeze()
