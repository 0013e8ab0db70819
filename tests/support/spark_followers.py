"""A driver that archives a queue and follows its books at once, without an end; a line for each commit.

Run as a process with the master, the queue, the lake and the size of batches.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any, Final

from everlog.pipeline import spark_session
from everlog.pipeline.jobs.archive import archive_queue
from everlog.pipeline.jobs.live_replay import follow_books

SETTINGS: Final = {
    # A task is given up only if it fails by itself, not because it was killed several times.
    "spark.task.maxFailures": "50",
    "spark.scheduler.mode": "FAIR",
}
TASKS: Final = 2


def main(master: str, queue: str, lake: str, batch: str) -> None:
    """Run both jobs until the process is killed, or one of them fails."""
    spark = spark_session(app_name="followers", master=master, **SETTINGS)
    shared: dict[str, Any] = {"options": {"maxRecordsPerBatch": batch}, "follow": True}

    def work(name: str, job: Callable[..., object]) -> None:
        try:
            job(shown=lambda _: print(name, flush=True), **shared)
        except BaseException:
            traceback.print_exc()
        os._exit(1)  # neither ends by itself

    archive = partial(archive_queue, spark, queue, lake, "messages", reader="archive")
    books = partial(follow_books, spark, queue, lake, "live", reader="books", partitions=TASKS)
    Thread(target=work, args=("archive", archive)).start()
    work("books", books)


if __name__ == "__main__":
    main(*sys.argv[1:])
