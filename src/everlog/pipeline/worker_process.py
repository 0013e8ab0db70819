"""What a Python worker of Spark does in its first tasks of ours.

Owns one trick. Spark collects garbage in a worker after every task; walking through everything that was ever
imported takes longer than many a task, so what is loaded by then is taken out of the collector's sight.
"""

from __future__ import annotations

import gc
from typing import Final

from pyspark import TaskContext

_SETTLING_TASKS: Final = 2
"""The second task too, because the first loads more after it has begun: pyarrow imports pandas with the first
array that it makes. Not every task: what is exempt once and becomes garbage later stays for good."""
_settled_by: set[int] = set()


def settle_worker() -> None:
    """Exempt all that is loaded from collection; call it first in a task that runs in a Python worker.

    Does nothing after the second task, and nothing in a process that runs no task.
    """
    task = TaskContext.get()
    if task is None or len(_settled_by) >= _SETTLING_TASKS:
        return
    attempt = task.taskAttemptId()
    if attempt not in _settled_by:
        _settled_by.add(attempt)
        gc.freeze()
