"""A server under load for SOAK_SECONDS: writers, deletes, followers of every kind, restarts and kills.

At the end every seq is accounted for: each batch that was acknowledged is there, once and whole, unless it
was deleted, and each follower has got every record, in order, whatever its connection went through.
"""

import os
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.processes import eventually, fresh_seed
from tests.support.server_clients import EventStream, JsonSocket, PlainClient
from tests.support.server_ledger import CLASSES, Followed, Ledger
from tests.support.server_processes import ServerProcess, ServerThreads, Writer, read_all

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
WRITERS = 4
KEPT = ("memory", "disk", "fsync")
RESIDENT_MAX = 512 * 2**20


class Follower:
    """Reads topics in its own way, and goes on from its cursors after every loss."""

    name = ""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.server = server
        self.rng = random.Random(seed)
        self.topics = {topic: Followed(topic, self.name) for topic in KEPT}

    def work(self) -> None:
        """Follow until it is over."""
        while self.server.await_up():
            try:
                self.follow()
            except OSError:
                continue

    def follow(self) -> None:
        """Read until the connection or the server is gone."""
        raise AssertionError("each kind of follower has its own way")

    def has_all(self, heads: Mapping[str, int]) -> bool:
        """Whether it has come to the end of every topic."""
        return all(self.topics[topic].cursor == heads[topic] for topic in KEPT)


class StreamFollower(Follower):
    """Server-sent events; loses its connection now and then and resumes the session by its last id."""

    name = "a stream"

    def follow(self) -> None:
        with PlainClient(self.server.url) as client:
            topics = {topic: {"from_seq": followed.cursor} for topic, followed in self.topics.items()}
            made = client.ask("POST", "/watch", {"topics": topics, "heartbeat_ms": 1000})
        if made.status != 200:
            return
        last_id: str | None = None
        while not self.server.is_over.is_set():
            with EventStream(self.server.url, made.json["stream_url"], last_id) as stream:
                if stream.status != 200:
                    return
                last_id = self._read(stream, last_id)
            if last_id is None:
                return  # it has seen no id, so nothing but its own cursors tells where it is

    def _read(self, stream: EventStream, last_id: str | None) -> str | None:
        """Read until this connection is given up, or the server ends it."""
        frames_left = self.rng.randrange(1, 2000)
        for frame in stream.frames():
            assert frame.event != "tombstone", frame
            if frame.event == "error":
                raise ConnectionError(frame.data["message"])
            if frame.event == "record":
                data = frame.data
                self.topics[data["topic"]].take(data["records"], data["from_seq"], data["to_seq"])
            found = re.search(rb"^id: (\S+)$", frame.text, re.MULTILINE)
            last_id = found[1].decode() if found else last_id
            frames_left -= 1
            if frames_left == 0 or self.server.is_over.is_set():
                return last_id
        raise ConnectionError("the stream has ended")


class SocketFollower(Follower):
    """A WebSocket."""

    name = "a socket"

    def follow(self) -> None:
        with JsonSocket(self.server.url, timeout_s=2.0) as socket:
            topics = {topic: {"from_seq": followed.cursor} for topic, followed in self.topics.items()}
            socket.send(op="subscribe", topics=topics)
            while not self.server.is_over.is_set():
                message = socket.receive()
                assert message["op"] != "tombstone", message
                if message["op"] == "record":
                    taken = self.topics[message["topic"]]
                    taken.take(message["records"], message["from_seq"], message["to_seq"])


class PollFollower(Follower):
    """Long polls, one topic after the other."""

    name = "a long poll"

    def follow(self) -> None:
        with PlainClient(self.server.url) as client:
            while not self.server.is_over.is_set():
                for topic, followed in self.topics.items():
                    from_seq = followed.cursor
                    reply = client.diff(topic, from_seq, wait_ms=50, limit=1000)
                    if reply.status != 200:
                        return
                    assert reply.json["tombstone"] is None, reply
                    followed.take(reply.json["records"], from_seq, reply.json["next_from_seq"])


def end_one_life(server: ServerProcess, ledgers: Mapping[str, Ledger], rng: random.Random) -> int:
    """End the server one way or the other and start it again; returns what memory it had used."""
    resident = server.resources().resident_bytes
    if rng.random() < 0.5:
        server.stop_cleanly()
    else:
        server.kill()
    for ledger in ledgers.values():
        ledger.server_ended()
    server.begin()
    server.await_ready()
    return resident


def check_everything(
    server: ServerProcess, ledgers: Mapping[str, Ledger], followers: Sequence[Follower]
) -> int:
    """Hold what is there, and what the followers have got, against the books; returns how many records."""
    count = 0
    with PlainClient(server.url) as client:
        found = {topic: read_all(client, topic) for topic in ledgers}
    heads = {topic: head for topic, (_, head) in found.items()}
    for topic, ledger in ledgers.items():
        records, head = found[topic]
        ledger.check_records(records, head)
        count += len(ledger.acknowledged_seqs())
    for follower in followers:
        eventually(f"{follower.name} has got everything", lambda: follower.has_all(heads))  # noqa: B023
        for topic in KEPT:
            ledgers[topic].check_follower(follower.topics[topic])
    return count


def test_every_seq_is_accounted_for_after_a_long_time_of_load_and_restarts(tmp_path: Path) -> None:
    seed = fresh_seed("server soak")
    rng = random.Random(seed)
    server = ServerProcess(tmp_path)
    ledgers = {kind: Ledger(kind, kind) for kind in CLASSES}
    writers = [Writer(server, ledgers, number, seed + number, pause_s=0.005) for number in range(WRITERS)]
    followers = [
        StreamFollower(server, seed),
        StreamFollower(server, seed + 1),
        SocketFollower(server, seed),
        PollFollower(server, seed),
    ]
    threads = ServerThreads(server)
    deadline_s = time.monotonic() + SECONDS
    try:
        server.begin()
        server.await_ready()
        with PlainClient(server.url) as client:
            for kind in CLASSES:
                assert client.ask("PUT", f"/topics/{kind}", {"durability": kind}).status == 201
        for writer in writers:
            threads.start(writer.work)
        for follower in followers:
            threads.start(follower.work)
        resident_max = 0
        while time.monotonic() < deadline_s:
            life_s = min(rng.random() * 8, max(0.0, deadline_s - time.monotonic()))
            threading.Event().wait(life_s)
            threads.check()
            resident_max = max(resident_max, end_one_life(server, ledgers, rng))
        for writer in writers:
            writer.pause()
        count = check_everything(server, ledgers, followers)
    finally:
        threads.join()
        server.end()
    print(f"{count} records, {server.starts} lives, {resident_max >> 20} MiB at most")
    assert resident_max < RESIDENT_MAX
