"""Workers of a queue as processes that may be killed at any moment, and the notes that they leave.

Owns the loop of a worker and the form of its notes. A note is written to a file before the next step is
taken, so what a killed worker knew is there. Times are those of the monotonic clock, which all share.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

GOT, ACKING, ACKED = "got", "acking", "acked"
TIMEOUT_S = 10.0


class Note(NamedTuple):
    """What a worker knew of a job: it got it by a claim sent then, was about to ack it, or had acked it."""

    what: str
    job: int
    at_ns: int


def read_notes(directory: Path) -> list[Note]:
    """All notes of all workers; the last line of a killed one may be cut off."""
    notes = []
    for path in sorted(directory.glob("*.notes")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                what, job, at_ns = line.split()
                notes.append(Note(what, int(job), int(at_ns)))
    return notes


def work(channel: Connection, port: int, directory: str, name: str, threads: int, seed: int) -> None:
    """Run so many workers, each with a connection of its own, until the process is killed or told to end."""
    stop = threading.Event()
    workers = [
        _Worker(port, f"{directory}/{name}-{number}.notes", f"{name}-{number}", seed + number, stop)
        for number in range(threads)
    ]
    running = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in running:
        thread.start()
    channel.recv()
    stop.set()
    for thread in running:
        thread.join()
    channel.send("ended")


class _Worker:
    """One worker: claims, works a little, acks; sometimes it gives jobs back, or forgets them."""

    def __init__(self, port: int, path: str, node: str, seed: int, stop: threading.Event) -> None:
        self._port = port
        self._node = node
        self._rng = random.Random(seed)
        self._stop = stop
        self._notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Work until told to stop."""
        while not self._stop.is_set():
            try:
                if not self._turn():
                    self._stop.wait(0.02)
            except (OSError, http.client.HTTPException):
                # The server was killed; it will be back.
                self._connection = None
                self._stop.wait(0.05)

    def _turn(self) -> bool:
        sent_ns = time.monotonic_ns()
        claimed = self._post("claim", {"node": self._node, "max": self._rng.randint(1, 10)})
        jobs = [] if claimed is None else claimed["claimed"]
        if not jobs:
            return False
        self._note(GOT, [job["data"]["id"] for job in jobs], sent_ns)
        time.sleep(self._rng.random() * 0.01)
        fate = self._rng.random()
        if fate < 0.05:
            return True  # forgotten: the lease ends by itself
        seqs = [job["$seq"] for job in jobs]
        body = {"node": self._node, "seqs": seqs, "lease_ids": [job["lease_id"] for job in jobs]}
        if fate < 0.15:
            self._post("nack", {**body, "delay_ms": self._rng.choice((0, 50))})
            return True
        self._note(ACKING, [job["data"]["id"] for job in jobs], time.monotonic_ns())
        answer = self._post("ack", body)
        if answer is not None:
            done = [job["data"]["id"] for job in jobs if job["$seq"] not in answer["skipped"]]
            self._note(ACKED, done, time.monotonic_ns())
        return True

    def _note(self, what: str, jobs: list[int], at_ns: int) -> None:
        os.write(self._notes, "".join(f"{what} {job} {at_ns}\n" for job in jobs).encode())

    def _post(self, verb: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a request; None if it was refused."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", f"/v0/topics/jobs/{verb}", json.dumps(body), headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status != 200:
            time.sleep(0.05)
            return None
        answer: dict[str, Any] = json.loads(text)
        return answer
