"""Fifty workers on one queue for SOAK_SECONDS while they, and the server, are killed at random.

At the end every job that was accepted is done, and no job was given out after its ack was answered.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.soak.queue_workers import ACKED, ACKING, GOT, Note, read_notes, work
from tests.support.http_api import ApiFailed, HttpApi
from tests.support.processes import Child, eventually, fresh_seed
from tests.support.server_processes import ServerProcess, running_server

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
PROCESSES = 10
THREADS = 5
LEASE_MS = 1500
BATCH = 20
DRAIN_S = 120.0


class Fleet:
    """The worker processes; one of them may be killed and replaced."""

    def __init__(self, port: int, notes: Path, rng: random.Random) -> None:
        self._port = port
        self._notes = notes
        self._rng = rng
        self._number = 0
        self._children: list[Child] = []

    def start(self) -> None:
        """One more process."""
        self._number += 1
        name = f"worker{self._number}"
        seed = self._rng.randrange(2**32)
        self._children.append(Child(work, self._port, str(self._notes), name, THREADS, seed))

    def kill_one(self) -> None:
        """Kill a process without a word, and start another one."""
        victim = self._children.pop(self._rng.randrange(len(self._children)))
        with victim:
            victim.kill()
        self.start()

    def end(self) -> None:
        """Let them finish what they do."""
        for child in self._children:
            with child:
                child.send("stop")
                assert child.receive() == "ended"


class Producer:
    """Appends jobs with numbers, again under the same key if it got no answer; `accepted` were answered."""

    def __init__(self, url: str) -> None:
        self._api = HttpApi(url)
        self.accepted: set[int] = set()
        self._next = 1
        self._batch: list[int] = []

    def turn(self) -> None:
        """Append one batch, or the last one again."""
        if not self._batch:
            self._batch = list(range(self._next, self._next + BATCH))
            self._next += BATCH
        body = {
            "records": [{"data": {"id": job}} for job in self._batch],
            "idempotency_key": f"batch-{self._batch[0]}",
        }
        try:
            self._api.call("POST", "/topics/jobs", dict[str, Any], body=body)
        except ApiFailed:
            return
        self.accepted.update(self._batch)
        self._batch = []

    def is_drained(self) -> bool:
        """Whether no job is left."""
        try:
            state = self._api.get("/topics/jobs", dict[str, Any])
        except ApiFailed:
            return False
        return bool(state["count"] == 0)

    def create(self) -> None:
        """Make the queue."""
        config = {"type": "queue", "durability": "fsync", "lease_ms": LEASE_MS}
        self._api.call("PUT", "/topics/jobs", dict[str, Any], body=config)


@contextmanager
def mortal_server(folder: Path) -> Iterator[Server]:
    """A server that can be killed and comes back at the same address."""
    with ExitStack() as lives:
        yield Server(folder, lives)


class Server:
    """The server over its lives."""

    def __init__(self, folder: Path, lives: ExitStack) -> None:
        self._folder = folder
        self._lives = lives
        self.current: ServerProcess = lives.enter_context(running_server(folder))
        self.deaths = 0

    def kill(self) -> None:
        """Kill it in the middle of everything, and start it again."""
        port = self.current.port
        self.current.command.process.kill()
        self.current.command.process.wait()
        self.deaths += 1
        self.current = self._lives.enter_context(running_server(self._folder, port=port))


def check(notes: list[Note], accepted: set[int]) -> None:
    """Hold what the workers knew against the two promises."""
    acked_ns: dict[int, int] = {}
    for note in notes:
        if note.what == ACKED:
            acked_ns[note.job] = min(note.at_ns, acked_ns.get(note.job, note.at_ns))
    # A worker that was killed while it acked may have done so without noting the answer.
    perhaps = {note.job for note in notes if note.what == ACKING}
    lost = accepted - set(acked_ns) - perhaps
    assert not lost, f"{len(lost)} jobs are lost, for example {sorted(lost)[:5]}"
    back = [note for note in notes if note.what == GOT and note.at_ns > acked_ns.get(note.job, note.at_ns)]
    assert not back, f"{len(back)} jobs came back after they were acknowledged, for example {back[:5]}"


def test_no_job_is_lost_and_none_comes_back_while_workers_and_server_are_killed(tmp_path: Path) -> None:
    rng = random.Random(fresh_seed("queue soak"))
    notes = tmp_path / "notes"
    notes.mkdir()
    with mortal_server(tmp_path) as server:
        producer = Producer(server.current.url)
        producer.create()
        fleet = Fleet(server.current.port, notes, rng)
        for _ in range(PROCESSES):
            fleet.start()
        deadline_s = time.monotonic() + SECONDS
        killed = 0
        while time.monotonic() < deadline_s:
            for _ in range(rng.randint(1, 10)):
                producer.turn()
            time.sleep(rng.random() * 0.2)
            if rng.random() < 0.3:
                fleet.kill_one()
                killed += 1
            if rng.random() < 0.1:
                server.kill()
        eventually("all jobs are done", producer.is_drained, DRAIN_S)
        fleet.end()
    found = read_notes(notes)
    print(f"{len(producer.accepted)} jobs, {killed} processes and {server.deaths} servers killed")
    check(found, producer.accepted)
    assert len({note.job for note in found if note.what == ACKED}) > len(producer.accepted) // 2
