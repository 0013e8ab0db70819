"""`everlog serve` as a process: started, awaited, stopped, killed and started again; and threads that use it.

Every server listens on 127.0.0.1, on a port that it chose itself unless a test passes one. Each start has
its own port, so that no other process of this machine is taken for it.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.command_lines import Started, started
from tests.support.http_api import ApiFailed, HttpApi
from tests.support.processes import PATIENCE_S, Resources, eventually, resources_of
from tests.support.server_clients import PlainClient, Reply
from tests.support.server_ledger import KEYED_CLASSES, Batch, Ledger

RETRIABLE = ("not_ready", "shutting_down")
LOAD_TIMEOUT_S = 60


class ServerProcess:
    """A server with its data in `folder`; it may end and start again, and clients wait for that."""

    def __init__(self, folder: Path, *flags: object, port: int = 0, key: str | None = None) -> None:
        self._port_file = folder / "port"
        data = () if "--memory" in flags else ("--data-dir", folder / "data")
        command = ("standby", folder / "data") if "--from" in flags else ("serve", *data)
        self._words = (*command, "--port", port, "--port-file", self._port_file, *flags)
        self._key = key
        self._running = ExitStack()
        self._command: Started | None = None
        self._is_up = threading.Event()
        self.is_over = threading.Event()
        self.url = ""
        self.starts = 0

    @property
    def command(self) -> Started:
        """The process that runs now."""
        assert self._command is not None, "the server was not started"
        return self._command

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def begin(self) -> None:
        """Start a process; it may be ended before it listens."""
        self.starts += 1
        self._port_file.unlink(missing_ok=True)
        self._command = self._running.enter_context(started("everlog", *self._words))

    def await_ready(self, look: Callable[[str], None] | None = None) -> None:
        """Wait until it has recovered, call `look` with its address, and let the clients know."""
        process = self.command.process
        eventually("the server listens", lambda: self._port_file.exists() or process.poll() is not None)
        assert process.poll() is None, self.command.wait()
        url = f"http://{self._port_file.read_text().strip()}"
        with HttpApi(url, self._key) as api:
            eventually("the server is ready", lambda: _is_ready(api))
        if look is not None:
            look(url)
        self.url = url
        self._is_up.set()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._is_up.clear()
        self.command.process.kill()
        self.command.process.wait(PATIENCE_S)
        self._running.close()

    def stop(self) -> tuple[int, str, str]:
        """End it by SIGTERM; return the exit code and what it printed."""
        self._is_up.clear()
        return self.command.end(signal.SIGTERM)

    def stop_cleanly(self) -> None:
        """End it by SIGTERM; it must exit with 0 and log no traceback."""
        code, _, errors = self.stop()
        assert code == 0, errors
        assert "Traceback" not in errors, errors
        self._running.close()

    def resources(self) -> Resources:
        """What the process holds now."""
        return resources_of(self.command.process.pid)

    def await_up(self) -> bool:
        """Wait for a server; False if none will be started any more."""
        while not self.is_over.is_set():
            if self._is_up.wait(0.05):
                return True
        return False

    def end(self) -> None:
        """Kill it if it runs; it is not started again."""
        self.is_over.set()
        self._running.close()


@contextmanager
def running_server(
    folder: Path, *flags: object, port: int = 0, key: str | None = None
) -> Iterator[ServerProcess]:
    """A server with its data in `folder`, from the moment it is ready; killed if it runs at the end.

    With the flag `--from` it is a standby.
    """
    server = ServerProcess(folder, *flags, port=port, key=key)
    try:
        server.begin()
        server.await_ready()
        yield server
    finally:
        server.end()


def _is_ready(api: HttpApi) -> bool:
    try:
        return bool(api.get("/ready", dict[str, Any])["wal_replay_complete"])
    except ApiFailed:
        return False


class ServerThreads:
    """Threads that work until the server is over; what goes wrong in one of them is raised at the end."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, work: Any, *arguments: object) -> None:
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

    def join(self) -> None:
        """Set `is_over` and wait until all threads have noticed."""
        self._server.is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} did not end"
        self.check()


class Writer:
    """Sends batches to several topics and records in their ledgers what was acknowledged."""

    def __init__(
        self,
        server: ServerProcess,
        ledgers: Mapping[str, Ledger],
        number: int,
        seed: int,
        pause_s: float = 0.0,
    ) -> None:
        self._server = server
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
        assert self.is_idle.wait(PATIENCE_S), f"writer {self._number} did not pause"

    def resume(self) -> None:
        """Go on."""
        self.is_idle.clear()
        self._paused.clear()

    def work(self) -> None:
        """Write until it is over."""
        while not self._server.is_over.is_set():
            if self._paused.is_set():
                self.is_idle.set()
                self._server.is_over.wait(0.01)
                continue
            self._write_while_up()

    def _write_while_up(self) -> None:
        if not self._server.await_up():
            return
        with PlainClient(self._server.url) as client:
            while not self._paused.is_set() and not self._server.is_over.is_set():
                ledger = self._rng.choice(self._ledgers)
                if self._rng.random() < 0.02:
                    if not self._delete(client, ledger):
                        return
                elif not self._append(client, ledger):
                    return
                self._server.is_over.wait(self._pause_s)

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
            self._resolve_in_doubt(ledger, batch)
        return False

    def _send(self, client: PlainClient, ledger: Ledger, batch: Batch) -> bool:
        try:
            reply = client.append(ledger.topic, batch.records(), idempotency_key=batch.key)
        except OSError:
            return False
        return self._record(ledger, batch, reply)

    def _record(self, ledger: Ledger, batch: Batch, reply: Reply) -> bool:
        if reply.status == 200:
            ledger.acknowledged(batch, reply.json)
            return True
        assert reply.code in RETRIABLE, f"{ledger.topic}: {reply}"
        if ledger.durability not in KEYED_CLASSES:
            ledger.refused(batch)
        return False

    def _resolve_in_doubt(self, ledger: Ledger, batch: Batch) -> None:
        """Send a batch without an answer again, with its key, until there is one."""
        while self._server.await_up():
            with PlainClient(self._server.url) as client:
                if self._send(client, ledger, batch):
                    self.sent += 1
                    return
            if self._paused.is_set():
                self._server.is_over.wait(0.01)


def read_all(client: PlainClient, topic: str) -> tuple[list[Mapping[str, Any]], int]:
    """Every record of a topic from its beginning, and its head."""
    records: list[Mapping[str, Any]] = []
    cursor = 0
    deadline_s = time.monotonic() + LOAD_TIMEOUT_S
    while True:
        reply = client.diff(topic, cursor, limit=1000)
        if reply.code == "not_ready":  # topics of class memory are loaded behind the others
            assert time.monotonic() < deadline_s, f"{topic} is not loaded after {LOAD_TIMEOUT_S} s"
            time.sleep(0.01)
            continue
        answer = reply.json
        records += answer["records"]
        assert answer["tombstone"] is None, f"{topic}: {answer['tombstone']}"
        if answer["caught_up"]:
            return records, answer["head_seq"]
        assert answer["next_from_seq"] > cursor, f"{topic}: a read from {cursor} does not go on"
        cursor = answer["next_from_seq"]
