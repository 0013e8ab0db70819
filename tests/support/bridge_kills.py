"""A queue, a server and bridges both ways between them, of which one dies after the other.

Owns the run: numbered messages go from a queue into a topic and from there into a second queue, while the
server and both bridges are killed at random instants. What was killed comes back and must move records again
before the next kill.
"""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from everlog.bridge import QueueToTopic, QueueToTopicSettings, TopicToQueue, TopicToQueueSettings
from everlog.bridge.audit_bridge import audit_bridge
from everlog.bridge.audit_queue import audit_queue
from everlog.bridge.audit_topic import audit_topic
from everlog.bridge.state import state_path
from everlog.client import Client
from everlog.queue import Queue, WriterConfig
from tests.support.processes import Child, eventually
from tests.support.server_processes import ServerProcess, ServerThreads

TOPIC = "numbers"
OUT, BACK, SERVER = "out", "back", "server"
SEGMENT_SIZE = 1 << 18
LONGEST_LIFE_S = 0.3
KEYS_KEPT_MS = 1500


def free_port() -> int:
    """A free port; the server keeps it over all restarts, so that bridges find it again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def bridge_out(channel: Connection, queue: str, url: str, batch: int, once: bool) -> None:
    """Forward the queue to the topic until killed, or once."""
    settings = QueueToTopicSettings(queue, TOPIC, OUT, batch_records=batch, once=once)
    channel.send(QueueToTopic(Client(url), settings).run().forwarded)


def bridge_back(channel: Connection, queue: str, url: str, batch: int, once: bool) -> None:
    """Forward the topic to the second queue until killed, or once."""
    writer = WriterConfig(segment_size=SEGMENT_SIZE, retention=False)
    settings = TopicToQueueSettings(queue, TOPIC, BACK, batch_records=batch, once=once, writer=writer)
    channel.send(TopicToQueue(Client(url), settings).run().forwarded)


class Crossing:
    """The whole run. The numbers in the messages are those of the messages."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._rng = rng
        port = free_port()
        self.server = ServerProcess(folder, port=port)
        self.url = f"http://127.0.0.1:{port}"
        self.queue = str(folder / "queue")
        self.second = str(folder / "second")
        self.written = 0
        self._stack = ExitStack()
        self._bridges: dict[str, Child] = {}

    # --- Lives -------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Give a process a new life."""
        if name == SERVER:
            self.server.begin()
            self.server.await_ready()
            return
        self._bridges[name] = self._stack.enter_context(self._bridge(name, once=False))

    def kill(self, name: str) -> None:
        """End a process by SIGKILL."""
        if name == SERVER:
            self.server.kill()
        else:
            self._bridges.pop(name).kill()

    def _bridge(self, name: str, *, once: bool) -> Child:
        batch = 1000 if once else self._rng.choice((1, 20, 300, 1000))
        if name == OUT:
            return Child(bridge_out, self.queue, self.url, batch, once)
        return Child(bridge_back, self.second, self.url, batch, once)

    def await_movement(self) -> None:
        """Wait until both bridges have brought something across since now."""
        marks = {name: self._mark(name) for name in (OUT, BACK)}
        eventually("both bridges move", lambda: all(self._mark(name) != mark for name, mark in marks.items()))
        for bridge in self._bridges.values():
            bridge.check()

    def _mark(self, name: str) -> bytes:
        file = Path(state_path(self.queue if name == OUT else self.second, name))
        return file.read_bytes() if file.exists() else b""

    # --- Writing -----------------------------------------------------------------------------------------

    def write(self) -> None:
        """Append numbered messages, now many and now few, until it is over."""
        rng = random.Random(self._rng.getrandbits(32))
        with Queue.open_publisher(self.queue, segment_size=SEGMENT_SIZE, retention=False) as writer:
            while not self.server.is_over.is_set():
                for _ in range(rng.choice((1, 2, 30))):
                    writer.append(rng.choice((1, 2)), b'{"n":%d}' % self.written)
                    self.written += 1
                self.server.is_over.wait(0.02)

    # --- Rounds ------------------------------------------------------------------------------------------

    def live(self, rounds: int) -> None:
        """Kill so many times, then let everything arrive."""
        threads = ServerThreads(self.server)
        with self._stack:
            self.start(SERVER)
            with Client(self.url) as client:
                # Outages are longer than the server remembers keys: it is the bridge that must not repeat.
                client.put_topic(TOPIC, {"idempotency_window_ms": KEYS_KEPT_MS})
            threads.start(self.write)
            try:
                eventually("there is a queue", lambda: self.written > 0)
                self.start(OUT)
                self.start(BACK)
                for _ in range(rounds):
                    self._round()
                    threads.check()
            finally:
                threads.join()
            for name in (OUT, BACK):
                self.kill(name)
                with self._bridge(name, once=True) as last:
                    last.receive()
                    last.finish()
            self.check()
        self.server.end()

    def _round(self) -> None:
        self.await_movement()
        victims = self._rng.choice(((OUT,), (BACK,), (SERVER,), (SERVER, OUT), (BACK, SERVER)))
        self.server.is_over.wait(self._rng.random() * LONGEST_LIFE_S)
        for name in victims:
            self.kill(name)
        for name in reversed(victims):
            self.start(name)

    # --- The truth ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything is on both other sides, once and in order, and the audits agree."""
        with Client(self.url) as client:
            numbers = [record.data["n"] for record in client.read(TOPIC)]
            assert numbers == list(range(self.written)), described("topic", numbers, self.written)
            arrived = [json.loads(payload)["n"] for payload in payloads(self.second)]
            assert arrived == list(range(self.written)), described("queue", arrived, self.written)
            audits: list[Any] = [audit_topic(client, TOPIC)]
            audits += [audit_bridge(client, self.queue, OUT), audit_bridge(client, self.second, BACK)]
        audits += [audit_queue(self.queue), audit_queue(self.second)]
        for audit in audits:
            assert audit.is_sound, audit
        assert [audit.forwarded for audit in audits[1:3]] == [self.written] * 2, audits
        assert [audit.present for audit in audits[1:3]] == [self.written] * 2, audits


def payloads(queue: str) -> Iterator[bytes]:
    """The payloads of a queue from its beginning."""
    with Queue.open_subscriber(queue, None) as reader:
        for message in reader:
            yield bytes(message)


def described(where: str, numbers: list[int], wanted: int) -> str:
    """What is wrong with numbers that should be 0 to `wanted` - 1."""
    twice = sorted(number for number, times in Counter(numbers).items() if times > 1)[:5]
    missing = sorted(set(range(wanted)) - set(numbers))[:5]
    order = "in order" if numbers == sorted(numbers) else "out of order"
    return f"{where}: {len(numbers)} of {wanted}, {order}; missing {missing}, twice {twice}"


@contextmanager
def crossing(folder: Path, seed: int) -> Iterator[Crossing]:
    """A run whose processes are all gone at the end."""
    run = Crossing(folder, random.Random(seed))
    try:
        yield run
    finally:
        run.server.end()
