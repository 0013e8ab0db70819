"""Exclude loaded modules from garbage collection, because Spark runs gc.collect() after every task."""

from __future__ import annotations

import gc
import sys

from pyspark import TaskContext

_frozen_modules = 0


def freeze_loaded_modules() -> None:
    """Exclude what is loaded by now from collection; call it first in a task that runs in a Python worker.

    Without it, walking through every imported module takes longer than many a task. Outside of a task, or if
    no module was loaded since the last call, nothing happens: an object that is frozen and becomes garbage
    later is never freed, so this must not run in every task. Modules that a task loads after this call
    (pyarrow imports pandas with the first array that it makes) are frozen by the next task.
    """
    global _frozen_modules  # noqa: PLW0603 - one value for each process
    if TaskContext.get() is None or len(sys.modules) <= _frozen_modules:
        return
    _frozen_modules = len(sys.modules)
    gc.freeze()
