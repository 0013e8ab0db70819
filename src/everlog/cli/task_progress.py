"""What a person sees while a Spark job runs: how many tasks of each stage are done.

Owns one line on the terminal; nothing is written where no person looks.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S: Final = 0.5


def tasks_line(session: SparkSession) -> str:
    """Return how far the stages are that run now; empty if none does, or if the session is a remote one."""
    if not hasattr(session, "sparkContext"):
        return ""
    tracker = session.sparkContext.statusTracker()
    parts = []
    for stage in sorted(tracker.getActiveStageIds()):
        info = tracker.getStageInfo(stage)
        if info is not None:
            parts.append(f"stage {stage}: {info.numCompletedTasks} of {info.numTasks} tasks")
    return ", ".join(parts)


class TaskProgress:
    """Shows the progress of a session's jobs while a block lasts, if standard error is a terminal."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, name="task-progress", daemon=True)

    def _show(self) -> None:
        with Console(stderr=True).status("starting") as status:
            while not self._over.wait(INTERVAL_S):
                status.update(tasks_line(self._session) or "between two stages")

    def __enter__(self) -> Self:
        """Begin."""
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, before the session does."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
