"""Handlers that run in child processes of a worker; jobs are objects that say what to do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from everlog import Worker, tracing
from everlog.client import Job
from everlog.client.handlers import DeadLetter


def work(job: Job) -> None:
    """Do what the job says, and note which process did it."""
    if job.data.get("dies") and job.deliveries == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if "started" in job.data:
        Path(job.data["started"]).write_text(str(os.getpid()))
        while not Path(job.data["file"]).exists():
            time.sleep(0.01)
    if job.data.get("raises"):
        raise ValueError("no good")
    if job.data.get("hopeless"):
        raise DeadLetter("never")
    with Path(job.data["file"]).open("a") as file:
        file.write(f"{job.seq} {os.getpid()} {tracing.current()}\n")


async def work_async(job: Job) -> None:
    """The same as a coroutine."""
    await asyncio.sleep(0)
    work(job)


def main(url: str) -> None:
    """Work in two processes until a signal."""
    worker = Worker(url, "q", processes=2)
    worker.handler(work)
    worker.run()
    print(f"done {worker.done}", flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
