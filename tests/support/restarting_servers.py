"""A server that ends and comes back, and writers that live through it.

Owns the order of lives: a client learns from `Site` where the server is now, and waits while it is away. Each
life has a port of its own, so nothing else on this machine can be taken for it.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from everlog.client.http_api import HttpApi
from tests.support.command_lines import Started, started
from tests.support.processes import PATIENCE_S, Resources, eventually, resources_of
from tests.support.server_clients import PlainClient, Reply
from tests.support.server_ledger import KEYED_CLASSES, Batch, Ledger
from tests.support.topic_servers import is_ready

RETRIABLE = ("not_ready", "shutting_down")


class Site:
    """Where the server is, and whether there will be one again."""

    def __init__(self, folder: Path, *flags: object) -> None:
        self._folder = folder
        self._flags = flags
        self._life = ExitStack()
        self._command: Started | None = None
        self._is_up = threading.Event()
        self.is_over = threading.Event()
        self.url = ""
        self.lives = 0

    @property
    def command(self) -> Started:
        """The process of this life."""
        assert self._command is not None, "the server was not started"
        return self._command

    def begin(self) -> None:
        """Start a process; it may be ended before it listens."""
        self.lives += 1
        port_file = self._folder / "port"
        port_file.unlink(missing_ok=True)
        self._command = self._life.enter_context(
            started(
                "everlog", "serve", "--port", 0, "--port-file", port_file,
                "--data-dir", self._folder / "data", *self._flags,
            )
        )  # fmt: skip

    def await_ready(self) -> None:
        """Wait until it has recovered, and let the clients know."""
        port_file, process = self._folder / "port", self.command.process
        eventually("the server listens", lambda: port_file.exists() or process.poll() is not None)
        assert process.poll() is None, self.command.wait()
        self.url = f"http://{port_file.read_text().strip()}"
        with HttpApi(self.url) as api:
            eventually("the server is ready", lambda: is_ready(api))
        self._is_up.set()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._is_up.clear()
        self.command.process.kill()
        self.command.process.wait(PATIENCE_S)
        self._life.close()

    def stop(self) -> None:
        """End it by SIGTERM; it must end well."""
        self._is_up.clear()
        code, _, errors = self.command.end(signal.SIGTERM)
        assert code == 0, errors
        assert "Traceback" not in errors, errors
        self._life.close()

    def resources(self) -> Resources:
        """What the process holds now."""
        return resources_of(self.command.process.pid)

    def await_up(self) -> bool:
        """Wait for a server; False if there will be none any more."""
        while not self.is_over.is_set():
            if self._is_up.wait(0.05):
                return True
        return False

    def end(self) -> None:
        """There will be no more lives."""
        self.is_over.set()
        self._life.close()


class Crew:
    """Threads that work until the site is over; what goes wrong in one of them is raised at the end."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def hire(self, work: Any, *arguments: object) -> None:
        """Start a thread."""

        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self._errors.append(error)

        self._threads.append(threading.Thread(target=run, name=work.__qualname__))
        self._threads[-1].start()

    def check(self) -> None:
        """Raise what went wrong so far."""
        if self._errors:
            raise self._errors[0]

    def dismiss(self) -> None:
        """Wait until all have noticed that it is over."""
        self._site.is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} did not come to its end"
        self.check()


class Writer:
    """Sends batches to several topics, and never loses track of what became of them."""

    def __init__(
        self, site: Site, ledgers: Mapping[str, Ledger], number: int, seed: int, pause_s: float = 0.0
    ) -> None:
        self._site = site
        self._pause_s = pause_s
        self._ledgers = list(ledgers.values())
        self._number = number
        self._rng = random.Random(seed)
        self._paused = threading.Event()
        self.is_idle = threading.Event()
        self.sent = 0

    def pause(self) -> None:
        """Send nothing more after the batch that is under way."""
        self._paused.set()
        assert self.is_idle.wait(PATIENCE_S), f"writer {self._number} did not come to rest"

    def resume(self) -> None:
        """Go on."""
        self.is_idle.clear()
        self._paused.clear()

    def work(self) -> None:
        """Write until it is over."""
        while not self._site.is_over.is_set():
            if self._paused.is_set():
                self.is_idle.set()
                self._site.is_over.wait(0.01)
                continue
            self._write_while_up()

    def _write_while_up(self) -> None:
        if not self._site.await_up():
            return
        with PlainClient(self._site.url) as client:
            while not self._paused.is_set() and not self._site.is_over.is_set():
                ledger = self._rng.choice(self._ledgers)
                if self._rng.random() < 0.02:
                    if not self._delete(client, ledger):
                        return
                elif not self._append(client, ledger):
                    return
                self._site.is_over.wait(self._pause_s)

    def _delete(self, client: PlainClient, ledger: Ledger) -> bool:
        """Delete a part of what is there; False if the server went away."""
        before_seq = self._rng.randrange(ledger.head_acked + 1) + 1
        deletion = ledger.delete_begun(before_seq)
        try:
            reply = client.ask("POST", f"/topics/{ledger.topic}/delete", {"before_seq": before_seq})
        except OSError:
            return False
        if reply.status == 200:
            ledger.delete_acknowledged(deletion)
        return reply.status == 200

    def _append(self, client: PlainClient, ledger: Ledger) -> bool:
        """Append one batch; False if the server went away and the batch has been dealt with."""
        batch = ledger.begin(self._number, self._rng.randrange(1, 6))
        if self._send(client, ledger, batch):
            self.sent += 1
            return True
        if ledger.durability in KEYED_CLASSES:
            self._settle(ledger, batch)
        return False

    def _send(self, client: PlainClient, ledger: Ledger, batch: Batch) -> bool:
        try:
            reply = client.append(ledger.topic, batch.records(), idempotency_key=batch.key)
        except OSError:
            return False
        return self._take(ledger, batch, reply)

    def _take(self, ledger: Ledger, batch: Batch, reply: Reply) -> bool:
        if reply.status == 200:
            ledger.acknowledged(batch, reply.json)
            return True
        assert reply.code in RETRIABLE, f"{ledger.topic}: {reply}"
        if ledger.durability not in KEYED_CLASSES:
            ledger.refused(batch)
        return False

    def _settle(self, ledger: Ledger, batch: Batch) -> None:
        """Send a batch without an answer again, with its key, until there is one."""
        while self._site.await_up():
            with PlainClient(self._site.url) as client:
                if self._send(client, ledger, batch):
                    self.sent += 1
                    return
            if self._paused.is_set():
                self._site.is_over.wait(0.01)


def read_all(client: PlainClient, topic: str) -> tuple[list[Mapping[str, Any]], int]:
    """Every record of a topic from its beginning, and its head."""
    records: list[Mapping[str, Any]] = []
    cursor = 0
    while True:
        answer = client.diff(topic, cursor, limit=1000).json
        records += answer["records"]
        assert answer["tombstone"] is None, f"{topic}: {answer['tombstone']}"
        if answer["caught_up"]:
            return records, answer["head_seq"]
        assert answer["next_from_seq"] > cursor, f"{topic}: a read from {cursor} does not go on"
        cursor = answer["next_from_seq"]
