"""What a Python worker of Spark does first in each task of ours.

Owns one trick. Spark collects garbage in a worker after every task; walking through everything that was ever
imported takes longer than many a task, so what is loaded by then is taken out of the collector's sight.
"""

from __future__ import annotations

import gc
import sys

from pyspark import TaskContext

_settled_modules = 0


def settle_worker() -> None:
    """Exempt all that is loaded from collection; call it first in a task that runs in a Python worker.

    Does nothing if no module was loaded since the last time, and nothing in a process that runs no task. A
    task may load more after it has begun (pyarrow imports pandas with the first array that it makes): that is
    for the next one. Not every task, because what is exempt once and becomes garbage later stays for good.
    """
    global _settled_modules  # noqa: PLW0603 - a fact of the process
    if TaskContext.get() is None or len(sys.modules) <= _settled_modules:
        return
    _settled_modules = len(sys.modules)
    gc.freeze()
