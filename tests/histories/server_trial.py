"""Clients that work at the same time on a server that is killed and started again, and the history of it.

Owns the clients, the kills and what is recorded of them; whether the history can be explained is the
checker's business. The clients are of the standard library, so nothing of everlog's own client can hide
a mistake. After each start the whole of every topic is read before a client can reach the server: that
is the answer of the crash.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from tests.histories.history import Call, History, Part
from tests.histories.lease_model import Claim, Ended, Settle
from tests.histories.log_model import (
    KILLED,
    Append,
    Crash,
    Delete,
    Put,
    Read,
    Record,
    Records,
    Remove,
    Sight,
    digest,
)
from tests.support.server_clients import PlainClient, Reply
from tests.support.server_processes import RETRIABLE, ServerProcess, ServerThreads

CAPPED = "capped"
LOGS = {"ephemeral": "ephemeral", "memory": "memory", "disk": "disk", "fsync": "fsync", CAPPED: "disk"}
QUEUES = {"jobs.disk": "disk", "jobs.fsync": "fsync"}
CAP_RECORDS = 40
CLIENTS = 5
KEPT_BEHIND_HEAD = 60  # deletes keep topics short, so that most reads are of everything
TAGS = (None, None, "x", "x:1")


def now_ms() -> int:
    """The wall clock, which leases go by."""
    return time.time_ns() // 1_000_000


def record_of(item: dict[str, Any]) -> Record:
    """A delivered record."""
    return Record(item["$seq"], digest(json.dumps(item["data"]).encode()), item.get("$tag"))


class Retired(Exception):
    """The server went away."""


class HistoryClient:
    """One client: a connection, and what it asks."""

    def __init__(self, name: str, seed: int, server: ServerProcess, history: History) -> None:
        self.name = name
        self._rng = random.Random(seed)
        self._server = server
        self._history = history
        self._sent = 0
        self._heads = dict.fromkeys((*LOGS, *QUEUES), 0)
        self.answered = 0

    def work(self) -> None:
        """Ask until it is over."""
        while self._server.await_up():
            with PlainClient(self._server.url) as connection:
                try:
                    while not self._server.is_over.is_set():
                        self._operate(connection)
                except (OSError, Retired):
                    self._server.is_over.wait(0.01)

    def _operate(self, connection: PlainClient) -> None:
        rng = self._rng
        chance = rng.random()
        if chance < 0.15:
            self._work_on_jobs(connection, rng.choice(list(QUEUES)))
            return
        topic = rng.choice([*LOGS, *QUEUES])
        if chance < 0.6:
            self._append(connection, topic)
        elif chance < 0.93 or topic in QUEUES:
            self._read(connection, topic)
        else:
            self._delete(connection, topic)

    def _accept(self, reply: Reply) -> Any:
        """The body of a success; a refusal has no effect."""
        if reply.status in (200, 201):
            self.answered += 1
            return reply.json
        assert reply.code in RETRIABLE, f"{self.name}: {reply}"
        raise Retired

    # --- Appends -----------------------------------------------------------------------------------------

    def _append(self, connection: PlainClient, topic: str) -> None:
        rng = self._rng
        values = [f"{self.name}-{self._sent + i}" for i in range(rng.choice((1, 1, 2, 5)))]
        self._sent += len(values)
        tags = tuple(rng.choice(TAGS) for _ in values)
        records = [
            {"data": value} if tag is None else {"data": value, "tag": tag}
            for value, tag in zip(values, tags, strict=True)
        ]
        key = rng.choice((None, f"{self.name}-{self._sent}", f"shared-{self._sent // 20}"))
        append = Append(
            tuple(digest(json.dumps(value).encode()) for value in values), key=key, tags=tags, at_ms=now_ms()
        )
        fields = {} if key is None else {"idempotency_key": key}
        call = self._history.call(self.name)
        try:
            answer = self._accept(connection.append(topic, records, **fields))
        except OSError:
            is_safe = key is not None and (LOGS | QUEUES)[topic] in ("disk", "fsync")
            if not is_safe or not self._retry(call, topic, append, records):
                call.unanswered(Part(topic), append)
            raise
        self._record_append(call, topic, append, answer)

    def _retry(self, call: Call, topic: str, append: Append, records: list[Any]) -> bool:
        """Send a batch again with its key, to one server after the other: that is one operation."""
        attempts = 1
        while self._server.await_up():
            attempts += 1
            with PlainClient(self._server.url) as connection:
                try:
                    answer = self._accept(connection.append(topic, records, idempotency_key=append.key))
                except (OSError, Retired):
                    self._server.is_over.wait(0.01)
                    continue
            self._record_append(call, topic, append, answer, attempts)
            return True
        return False

    def _record_append(
        self, call: Call, topic: str, append: Append, answer: dict[str, Any], attempts: int = 1
    ) -> None:
        self._heads[topic] = max(self._heads[topic], answer["head_seq"])
        call.answered(
            Part(topic),
            Append(
                append.digests,
                answer["first_seq"],
                append.key,
                answer["deduped"],
                attempts,
                append.tags,
                append.at_ms,
            ),
        )

    # --- Reads and deletes -------------------------------------------------------------------------------

    def _read(self, connection: PlainClient, topic: str) -> None:
        from_seq = self._rng.choice((0, 0, max(0, self._heads[topic] - self._rng.randrange(10))))
        limit = self._rng.choice((3, 1000, 1000))
        call = self._history.call(self.name)
        answer = self._accept(connection.diff(topic, from_seq, limit=limit))
        call.answered(Part(topic), _reading(from_seq, answer))
        self._heads[topic] = answer["head_seq"]

    def _delete(self, connection: PlainClient, topic: str) -> None:
        if self._rng.random() < 0.3:
            delete = Delete(match=("Glob", "x*"))
            body: dict[str, Any] = {"match": ["tag", "Glob", "x*"]}
        else:
            delete = Delete(max(1, self._heads[topic] - KEPT_BEHIND_HEAD))
            body = {"before_seq": delete.before_seq}
        call = self._history.call(self.name)
        try:
            answer = self._accept(connection.ask("POST", f"/topics/{topic}/delete", body))
        except OSError:
            call.unanswered(Part(topic), delete)
            raise
        done = Delete(delete.before_seq, delete.match, answer["deleted"], answer["head_seq"])
        call.answered(Part(topic), done)

    # --- Jobs --------------------------------------------------------------------------------------------

    def _work_on_jobs(self, connection: PlainClient, topic: str) -> None:
        rng, path = self._rng, f"/topics/{topic}"
        call = self._history.call(self.name)
        body = {"node": self.name, "max": rng.choice((1, 3)), "lease_ms": rng.choice((100, 300, 30_000))}
        try:
            claimed = self._accept(connection.ask("POST", f"{path}/claim", body))["claimed"]
        except OSError:
            self._history.claim_unanswered(topic)
            raise
        latest_ms = now_ms() + 1
        leases: dict[int, str] = {}
        for job in claimed:
            leases[job["$seq"]] = job["lease_id"]
            lease_id = int(job["lease_id"].removeprefix("lease_"), 16)
            claim = Claim(lease_id, self.name, job["deadline"], job["deliveries"], latest_ms)
            call.answered(Part(topic, job["$seq"]), claim)
        call.answered(Part(topic), Sight(tuple(map(record_of, claimed))))
        if rng.random() < 0.2:
            self._server.is_over.wait(0.15)  # some leases are over by then
        for seq, lease in leases.items():
            if rng.random() < 0.9:
                self._settle(connection, topic, "ack" if rng.random() < 0.8 else "nack", seq, lease)

    def _settle(self, connection: PlainClient, topic: str, what: str, seq: int, lease: str) -> None:
        call, earliest_ms = self._history.call(self.name), now_ms()
        body = {"node": self.name, "seqs": [seq], "lease_ids": [lease]}
        lease_id = int(lease.removeprefix("lease_"), 16)
        try:
            answer = self._accept(connection.ask("POST", f"/topics/{topic}/{what}", body))
        except OSError:
            call.unanswered(Part(topic, seq), Settle(what, lease_id, None, earliest_ms, earliest_ms))
            if what == "ack":
                call.unanswered(Part(topic), Remove((seq,)))
            raise
        is_done = answer["skipped"] == []
        call.answered(Part(topic, seq), Settle(what, lease_id, is_done, earliest_ms, now_ms() + 1))
        if what == "ack" and is_done:
            call.answered(Part(topic), Remove((seq,)))


def _reading(from_seq: int, answer: dict[str, Any]) -> Read:
    gap = answer["tombstone"]
    return Read(
        from_seq,
        Records(tuple(map(record_of, answer["records"]))),
        answer["next_from_seq"],
        answer["head_seq"],
        answer["earliest_seq"],
        None if gap is None else (gap["gap_from"], gap["gap_to"]),
    )


class ServerTrial:
    """All lives of one server, and the history of them."""

    def __init__(self, folder: Path, seed: int, clients: int = CLIENTS) -> None:
        self._rng = random.Random(seed)
        self.history = History()
        self.kills = 0
        self._server = ServerProcess(folder)
        self._threads = ServerThreads(self._server)
        self._clients = [
            HistoryClient(f"c{number}", seed + number, self._server, self.history)
            for number in range(clients)
        ]

    def run(self, kills: int, life_s: float = 0.7) -> None:
        """Let the clients work, and kill the server so many times."""
        try:
            self._server.begin()
            self._server.await_ready(self._make_topics)
            for client in self._clients:
                self._threads.start(client.work)
            for _ in range(kills):
                time.sleep(self._rng.random() * 2 * life_s)  # how much is done; nothing depends on it
                self._kill()
                self._threads.check()
        finally:
            self._threads.join()
            self._server.end()

    def _make_topics(self, url: str) -> None:
        with PlainClient(url) as client:
            for name, durability in (LOGS | QUEUES).items():
                config: dict[str, Any] = {"durability": durability}
                if name in QUEUES:
                    config["type"] = "queue"
                if name == CAPPED:
                    config["cap_records"] = CAP_RECORDS
                call = self.history.call("setup")
                assert client.ask("PUT", f"/topics/{name}", config).status == 201
                call.answered(Part(name), Put(durability, may_evict=name == CAPPED))

    def _kill(self) -> None:
        call = self.history.call("kill -9")
        self._server.kill()
        self.kills += 1
        if self._rng.random() < 0.2:
            self._server.begin()
            time.sleep(self._rng.random() * 0.3)
            self._server.kill()
        self._server.begin()
        self._server.await_ready(lambda url: self._look(url, call))

    def _look(self, url: str, call: Call) -> None:
        """Read everything that the new server has, before any client can."""
        with PlainClient(url) as client:
            for name in (*LOGS, *QUEUES):
                items: list[dict[str, Any]] = []
                cursor, floor, is_done = 0, 1, False
                while not is_done:
                    answer = client.diff(name, cursor, limit=1000, include_tags=True).json
                    if answer["tombstone"] is not None:
                        floor = answer["tombstone"]["gap_to"] + 1
                    items += answer["records"]
                    cursor, is_done = answer["next_from_seq"], answer["caught_up"]
                durability = client.ask("GET", f"/topics/{name}").json["config"]["durability"]
                found = Records(tuple(map(record_of, items)))
                call.answered(Part(name), Crash(KILLED, found, answer["head_seq"], floor, durability))
                live = {record.seq for record in found.items}
                for part in self.history.parts():
                    if part.topic == name and part.job is not None:
                        call.answered(part, Ended(keeps_leases=False, is_there=part.job in live))
