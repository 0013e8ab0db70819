"""A worker as a program, to be killed or stopped by tests.

Called with the URL of a server, a queue and `lease_ms`.

Prints `started SEQ` for each job, then waits for a line on its standard input before the job is done.
"""

from __future__ import annotations

import sys

from everlog import Worker
from everlog.client import Job


def main(url: str, queue: str, lease_ms: str) -> None:
    """Work until a signal."""
    worker = Worker(url, queue, concurrency=1, lease_ms=int(lease_ms))

    @worker.handler
    def wait(job: Job) -> None:
        print(f"started {job.seq}", flush=True)
        sys.stdin.readline()

    worker.run()
    print(f"done {worker.done}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
