"""A driver for tests of a cluster: the jobs of the pipeline, one after the other, in one session.

Run as a process with the master, a folder and a server's URL. It begins each job when a line comes in, and
prints the job's report when it has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from everlog.pipeline import spark_session
from everlog.pipeline.jobs.archive import archive_queue, archive_topics
from everlog.pipeline.jobs.replay import replay_books
from everlog.pipeline.jobs.report import RunReport

MESSAGES_PER_COMMIT = 4000
TASKS = 12


def main(master: str, folder: str, url: str) -> None:
    """Run the jobs as they are asked for by name."""
    spark = spark_session(app_name="cluster-tests", master=master)
    queue, lake = f"{folder}/queue", f"{folder}/lake"
    options = {"maxRecordsPerBatch": str(MESSAGES_PER_COMMIT)}
    jobs: dict[str, Callable[[], RunReport]] = {
        "archive": lambda: archive_queue(spark, queue, lake, "messages", options=options),
        "topics": lambda: archive_topics(spark, url, "orders", lake, "records"),
        "replay": lambda: replay_books(spark, queue, lake, "tops", partitions=TASKS),
    }
    for line in sys.stdin:
        print(jobs[line.strip()]().to_json(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
