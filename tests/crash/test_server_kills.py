"""`kill -9` of a server under load over real HTTP: every class keeps what it promised, and retries are safe.

The server dies while it serves, while it recovers and while it stops. Writers that got no answer send again
with the same key after the restart; in the end every batch is there once, whole and at the seqs that were
told. A kill is no power loss: what was written stays written, so all classes but `ephemeral` keep everything.
"""

import os
import random
import time
from pathlib import Path

import pytest

from tests.support.processes import fresh_seed
from tests.support.server_clients import PlainClient
from tests.support.server_ledger import CLASSES, Ledger
from tests.support.server_processes import ServerProcess, ServerThreads, Writer, read_all

pytestmark = pytest.mark.crash

ROUNDS = max(4, int(os.environ.get("CRASH_ROUNDS", "300")) // 6)
WRITERS = 3
RUNNING, RECOVERING, STOPPING = "running", "recovering", "stopping"


class Trial:
    """All the lives of one server."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.server = ServerProcess(folder)
        self.ledgers = {kind: Ledger(kind, kind) for kind in CLASSES}
        self.threads = ServerThreads(self.server)
        self.writers = [Writer(self.server, self.ledgers, number, seed + number) for number in range(WRITERS)]

    def begin(self) -> None:
        """The first life, in which the topics are made."""
        self.server.begin()
        self.server.await_ready()
        with PlainClient(self.server.url) as client:
            for kind in CLASSES:
                assert client.ask("PUT", f"/topics/{kind}", {"durability": kind}).status == 201
        for writer in self.writers:
            self.threads.start(writer.work)

    def round(self, kind: str) -> None:
        """Let the server live for a while, kill it, and look at what the next one has."""
        time.sleep(self.rng.random() ** 2)  # how much is written before the kill; nothing depends on it
        if kind == STOPPING:
            self.server.command.process.terminate()
            time.sleep(self.rng.random() * 0.2)
        self.server.kill()
        for ledger in self.ledgers.values():
            ledger.server_ended()
        if kind == RECOVERING:
            self.server.begin()
            time.sleep(self.rng.random())
            self.server.kill()
        self.server.begin()
        self.server.await_ready()
        self.threads.check()
        self._check()

    def _check(self) -> None:
        for writer in self.writers:
            writer.pause()
        self.check_everything()
        for writer in self.writers:
            writer.resume()

    def check_everything(self) -> None:
        """Hold all that can be read against the books."""
        with PlainClient(self.server.url) as client:
            for kind, ledger in self.ledgers.items():
                records, head_seq = read_all(client, kind)
                ledger.check_records(records, head_seq)
                config = client.ask("GET", f"/topics/{kind}").json["config"]
                assert config["durability"] == kind


def test_a_killed_server_keeps_what_each_class_promises(tmp_path: Path) -> None:
    seed = fresh_seed("server kills")
    trial = Trial(tmp_path, seed)
    try:
        trial.begin()
        for number in range(ROUNDS):
            kind = trial.rng.choices((RUNNING, RECOVERING, STOPPING), (6, 2, 2))[0]
            try:
                trial.round(kind)
            except Exception as error:
                raise AssertionError(
                    f"TEST_SEED={seed}, round {number}, killed while {kind}: {error}"
                ) from error
    finally:
        trial.threads.join()
        trial.server.end()
    sent = sum(writer.sent for writer in trial.writers)
    print(f"{sent} batches in {trial.server.starts} lives")
    assert sent > 5 * ROUNDS
