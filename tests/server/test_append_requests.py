"""Appends over HTTP: what is answered, logged and kept when requests, clients, topics and the disk change."""

from __future__ import annotations

import errno
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import effort
from tests.support.files import UnsyncedFs
from tests.support.stepped_servers import SteppedServer

PLAIN = b'{"records":[{"data":{"price":101.25},"tag":"t"}]}'
CONFIGS: list[dict[str, Any]] = [
    {},
    {"durability": "fsync"},
    {"durability": "memory"},
    {"durability": "ephemeral"},
    {"cap_records": 5},
    {"cap_records": 3, "discard": "reject"},
    {"ttl_ms": 50},
]
BODIES = [
    PLAIN,
    b'{"records": [{"data": 1}, {"data": null, "meta": {"m": [1, 2]}, "node": "n"}], "node": "batch"}',
    b'{"records":[' + b",".join([b'{"data":7}'] * 150) + b"]}",
    b'{"records":[{"data":"once"}],"idempotency_key":"k"}',
    b'{"records":[{"data":1}],"create":false}',
    b'{"records":[]}',
    b'{"records":[{"data":01}]}',
    b'{"records":[{"data":1,"tag":"%b"}]}' % (b"x" * 300),
]
HEADERS = [
    b"",
    b"User-Agent: test\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n",
    b"Idempotency-Key: header\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Host: twice\r\n",
]
TOPICS = [f"topic-{number}" for number in range(len(CONFIGS))]


def request(path: str, body: bytes, extra: bytes = b"", method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    return head + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


def append_to(topic: str, body: bytes = PLAIN, extra: bytes = b"") -> bytes:
    return request(f"/v0/topics/{topic}", body, extra)


class RefusingFs(UnsyncedFs):
    """A file system whose writes can fail."""

    is_full = False

    def pwrite(self, fd: int, data: Any, offset: int) -> None:
        """Write, if there is room."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left")
        super().pwrite(fd, data, offset)


@contextmanager
def stepped_server(*, in_memory: bool = False, **settings: Any) -> Iterator[SteppedServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = SteppedServer(None if in_memory else Path(folder), fs=RefusingFs(), **settings)
        try:
            yield server
        finally:
            server.close()


def send(server: SteppedServer, data: bytes, client: int = 0) -> None:
    """Bytes from a client that is still connected."""
    if not server.transports[client].is_over:
        server.connections[client].data_received(data)


def turn(server: SteppedServer, count: int = 1) -> None:
    for _ in range(count):
        server.turn()


def create(server: SteppedServer, topic: str, **config: Any) -> None:
    send(server, request(f"/v0/topics/{topic}", json.dumps(config).encode(), method="PUT"))
    turn(server, 3)


STEPS = st.lists(
    st.one_of(
        st.just("turn"),
        st.builds(
            append_to,
            st.sampled_from([*TOPICS, "absent", "absent%2Dtoo"]),
            st.sampled_from(BODIES),
            st.sampled_from(HEADERS),
        ),
        st.sampled_from(
            [
                request("/v0/topics/topic-0?return_seqs=false", PLAIN),
                request("/v0/topics/topic-0/diff", b"{}"),
                request("/v0/topics/topic-0/delete", b'{"before_seq":3}'),
                request("/v0/topics/topic-1", b"", method="DELETE"),
                request("/v0/topics/topic-0", b'{"cap_records":2}', method="PUT"),
                append_to("topic-0") + append_to("topic-2"),
            ]
        ),
    ),
    max_size=24,
)


@settings(max_examples=effort(60), deadline=None)
@given(STEPS, st.booleans(), st.booleans(), st.data())
def test_requests_that_come_in_pieces_are_answered_and_logged_as_whole_ones(
    steps: list[str | bytes], in_memory: bool, gzip: bool, data: st.DataObject
) -> None:
    with (
        stepped_server(in_memory=in_memory, gzip=gzip) as whole,
        stepped_server(in_memory=in_memory, gzip=gzip) as cut,
    ):
        for topic, config in zip(TOPICS, CONFIGS, strict=True):
            create(whole, topic, **config)
            create(cut, topic, **config)
        for step in [*steps, "turn", "turn", "turn"]:
            if isinstance(step, str):
                turn(whole)
                turn(cut)
            else:
                client = data.draw(st.integers(0, 1))
                position = data.draw(st.sampled_from([1, 30, len(step) - 3]))
                send(whole, step, client)
                send(cut, step[:position], client)
                send(cut, step[position:], client)
            assert cut.written == whole.written
            assert cut.log_bytes() == whole.log_bytes()
            assert cut.server.bodies_bytes == whole.server.bodies_bytes


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("in_memory", [False, True])
def test_appends_to_every_kind_of_topic_are_answered(config: dict[str, Any], in_memory: bool) -> None:
    with stepped_server(in_memory=in_memory) as server:
        create(server, "t", **config)
        for _ in range(3):
            send(server, append_to("t"))
            turn(server, 2)
        assert server.written[0].count(b"HTTP/1.1 200 OK") == 3


def test_ceilings_and_long_batches_keep_their_order() -> None:
    with stepped_server(connections=4) as server:
        create(server, "t")
        for number in range(12):
            for client in range(4):
                send(server, append_to("t", BODIES[(number + client) % 3]), client)
            turn(server, 2)
        written = b"".join(server.written)
        firsts = sorted(int(seq) for seq in re.findall(rb'"first_seq":(\d+)', written))
        lasts = sorted(int(seq) for seq in re.findall(rb'"last_seq":(\d+)', written))
        assert len(firsts) == 48
        assert firsts == [1, *(seq + 1 for seq in lasts[:-1])]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_an_append_that_cannot_be_written_is_refused_and_its_seq_is_free_again(durability: str) -> None:
    with stepped_server() as server:
        create(server, "t", durability=durability)
        send(server, append_to("t"))
        server.fs.is_full = True
        turn(server)
        server.fs.is_full = False
        assert b'"seqs"' not in server.written[0]
        send(server, append_to("t"))
        turn(server, 3)
        assert b'"first_seq":1,' in server.written[0]


def test_an_answer_while_the_server_drains_is_the_last_of_its_connection() -> None:
    with stepped_server() as server:
        create(server, "t")
        send(server, append_to("t"))
        server.app.drain()
        server.server.is_draining = True
        turn(server, 2)
        assert b"Connection: close" in server.written[0]
        send(server, append_to("t"), 1)
        assert b"shutting_down" in server.written[1]


def test_the_batch_of_a_client_that_has_gone_stays_and_nothing_is_answered() -> None:
    with stepped_server() as server:
        create(server, "t")
        before = server.written
        send(server, append_to("t"))
        server.connections[0].connection_lost(None)
        turn(server, 2)
        assert server.written == before
        assert server.engine.state("t").head_seq == 1


def test_a_client_that_stops_sending_gets_its_answer_and_then_the_end() -> None:
    with stepped_server() as server:
        create(server, "t")
        send(server, append_to("t"))
        assert server.connections[0].eof_received()
        turn(server, 2)
        assert server.transports[0].is_over
        assert b'"first_seq":1,' in server.written[0]


def test_what_is_sent_behind_an_append_waits_for_its_answer() -> None:
    with stepped_server() as server:
        create(server, "t")
        send(server, append_to("t"))
        send(server, request("/v0/topics/nothing", b"", method="GET"))
        send(server, append_to("t"))
        turn(server, 4)
        answers = server.written[0].split(b"HTTP/1.1 ")[2:]
        assert [answer[:3] for answer in answers] == [b"200", b"404", b"200"]


def test_a_topic_that_was_deleted_and_created_again_starts_at_one() -> None:
    with stepped_server() as server:
        for _ in range(2):
            create(server, "t")
            send(server, append_to("t"))
            turn(server, 2)
            send(server, request("/v0/topics/t", b"", method="DELETE"))
            turn(server, 3)
        assert server.written[0].count(b'"first_seq":1,') == 2


def test_a_config_that_changes_holds_from_the_next_append_on() -> None:
    with stepped_server() as server:
        create(server, "t")
        send(server, append_to("t"))
        turn(server, 2)
        create(server, "t", cap_records=2)
        for _ in range(4):
            send(server, append_to("t"))
            turn(server, 2)
        send(server, request("/v0/topics/t/diff", b"{}"))
        turn(server, 2)
        assert b'"reason":"cap"' in server.written[0], "the newest two are left"


def test_each_connection_finds_the_topic_of_each_append() -> None:
    with stepped_server() as server:
        for name in ("t", "u", "tt"):
            create(server, name)
        for name in ("t", "u", "t", "tt", "t"):
            for client in (0, 1):
                send(server, append_to(name), client)
                turn(server, 2)
        heads = [server.engine.state(name).head_seq for name in ("t", "u", "tt")]
        assert heads == [6, 2, 2]


@pytest.mark.parametrize(("durability", "expected"), [("disk", [1, 0, 0, 1]), ("fsync", [1, 1, 1, 1])])
def test_appends_that_follow_each_other_poll_the_engine_every_millisecond(
    durability: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stepped_server() as server:
        polls: list[int] = []
        poll = server.engine.poll
        monkeypatch.setattr(server.engine, "poll", lambda drain: (polls.append(1), poll(drain)))
        server.app.now_ns = server.clock.monotonic_ns
        send(server, request("/v0/topics/t", json.dumps({"durability": durability}).encode(), method="PUT"))
        turn(server)
        found = []
        for waited_ns in (2_000_000, 400_000, 400_000, 400_000):
            polls.clear()
            server.clock.advance_ns(waited_ns)
            send(server, append_to("t"))
            server.loop.turn()
            found.append(len(polls))
            server.loop.turn()  # for the sync, if one was started
        assert found == expected
        if durability == "disk":
            assert server.written[0].count(b'"first_seq"') == 4, "a write is all that the answer needs"
