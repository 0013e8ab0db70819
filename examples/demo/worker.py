"""A worker: leases the fills that wait for settlement, computes what each is worth, notes it.

    python -m examples.demo.worker ROOT URL NAME

It may be killed at any instant: jobs that it held return when their lease ends, and the next
worker repeats them. The note of a job is written before the job is acknowledged, so no job is
acknowledged that was not done.
"""

from __future__ import annotations

import sys
import threading
import time

from everlog import Worker
from everlog.bus import IpcLayout
from everlog.client import Job
from everlog.queue import Queue
from examples.demo.bridged import payload_of
from examples.demo.records import (
    CONCURRENCY,
    CONFIG,
    DONE,
    DONE_TYPE_ID,
    FILL,
    JOBS_TOPIC,
    LEASE_MS,
    notes_dir,
)

SETTLE_S = 0.01
"""How long another system takes to confirm a settlement; a kill interrupts some of them."""


def run(root: str, url: str, name: str) -> None:
    """Work until SIGTERM."""
    worker = Worker(url, JOBS_TOPIC, node=name, concurrency=CONCURRENCY, lease_ms=LEASE_MS)
    writing = threading.Lock()  # a writer belongs to one thread at a time
    with Queue.open_publisher(notes_dir(IpcLayout(root), name), CONFIG) as notes:
        run_of_worker = notes.epoch

        @worker.handler
        def settle(job: Job) -> None:
            started_ns = time.time_ns()
            order_id, _, _, _, _, _, price, quantity = FILL.unpack(payload_of(job.data))
            time.sleep(SETTLE_S)
            done = (job.seq, order_id, job.ts_ms, started_ns, time.time_ns(), job.deliveries, run_of_worker)
            with writing:
                notes.append(DONE_TYPE_ID, DONE.pack(*done, price * quantity))

        worker.run()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3])
