"""A plain append is answered and logged on the short way exactly as by the routes."""

from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.request_worlds import World
from tests.support.topic_engines import UnsyncedFs

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
    head = f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n".encode()
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


class Pair:
    """The same server twice: the first has the short way."""

    def __init__(self, folder: Path | None, **settings: Any) -> None:
        self.fs = [RefusingFs(), RefusingFs()]
        self.worlds = [
            World(folder / name if folder is not None else None, is_short=is_short, fs=fs, **settings)
            for name, is_short, fs in zip(("one", "two"), (True, False), self.fs, strict=True)
        ]

    @property
    def taken(self) -> int:
        """How many requests went the short way."""
        way = self.worlds[0].way
        return 0 if way is None else way.taken

    def do(self, step: Callable[[World], object]) -> None:
        """The same step in both worlds; clients and log see the same."""
        for world in self.worlds:
            step(world)
        short, long = self.worlds
        # Errors name the file that they are about.
        assert short.written == [text.replace(b"/two/", b"/one/") for text in long.written]
        assert [transport.is_over for transport in short.transports] == [
            transport.is_over for transport in long.transports
        ]
        assert short.log_bytes() == long.log_bytes()
        assert short.server.bodies_bytes == long.server.bodies_bytes

    def send(self, data: bytes, client: int = 0) -> None:
        """Bytes from a client that is still connected."""
        if not self.worlds[0].transports[client].is_over:
            self.do(lambda world: world.connections[client].data_received(data))

    def turn(self, count: int = 1) -> None:
        """Turns of the loop."""
        for _ in range(count):
            self.do(World.turn)

    def create(self, topic: str, **config: Any) -> None:
        """A topic that is there."""
        self.send(request(f"/v0/topics/{topic}", json.dumps(config).encode(), method="PUT"))
        self.turn(3)


@contextmanager
def pair(*, in_memory: bool = False, **settings: Any) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory() as folder:
        worlds = Pair(None if in_memory else Path(folder), **settings)
        try:
            yield worlds
        finally:
            for world in worlds.worlds:
                world.close()


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


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans(), st.booleans(), st.data())
def test_both_ways_answer_and_log_the_same(
    steps: list[str | bytes], in_memory: bool, gzip: bool, data: st.DataObject
) -> None:
    with pair(in_memory=in_memory, gzip=gzip) as worlds:
        for topic, config in zip(TOPICS, CONFIGS, strict=True):
            worlds.create(topic, **config)
        for step in steps:
            if isinstance(step, str):
                worlds.turn()
                continue
            client = data.draw(st.integers(0, 1))
            cut = data.draw(st.sampled_from([0, 0, 0, 30, len(step) - 3]))
            for piece in (step[:cut], step[cut:]):
                if piece:
                    worlds.send(piece, client)
        worlds.turn(3)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("in_memory", [False, True])
def test_plain_appends_to_every_kind_of_topic_go_the_short_way(
    config: dict[str, Any], in_memory: bool
) -> None:
    with pair(in_memory=in_memory) as worlds:
        worlds.create("t", **config)
        for _ in range(3):
            worlds.send(append_to("t"))
            worlds.turn(2)
        assert worlds.taken == 3
        assert worlds.worlds[0].written[0].count(b"HTTP/1.1 200 OK") == 3


def test_ceilings_and_long_batches_keep_their_order_on_both_ways() -> None:
    with pair(connections=4) as worlds:
        worlds.create("t")
        for turn in range(12):
            for client in range(4):
                worlds.send(append_to("t", BODIES[(turn + client) % 3]), client)
            worlds.turn(2)
        assert worlds.taken == 48


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_an_append_that_cannot_be_written_is_refused_as_on_the_long_way(durability: str) -> None:
    with pair() as worlds:
        worlds.create("t", durability=durability)
        worlds.send(append_to("t"))
        for fs in worlds.fs:
            fs.is_full = True
        worlds.turn()
        for fs in worlds.fs:
            fs.is_full = False
        assert worlds.taken == 1
        assert b'"seqs"' not in worlds.worlds[0].written[0]
        worlds.send(append_to("t"))
        worlds.turn(3)
        assert b'"first_seq":1,' in worlds.worlds[0].written[0]


def test_an_answer_while_the_server_drains_is_the_last_of_its_connection() -> None:
    def drain(world: World) -> None:
        world.app.drain()
        world.server.is_draining = True

    with pair() as worlds:
        worlds.create("t")
        worlds.send(append_to("t"))
        worlds.do(drain)
        worlds.turn(2)
        assert b"Connection: close" in worlds.worlds[0].written[0]
        assert worlds.taken == 1
        worlds.send(append_to("t"), 1)
        assert b"shutting_down" in worlds.worlds[0].written[1]


def test_the_batch_of_a_client_that_has_gone_stays_and_nobody_is_answered() -> None:
    def leave(world: World) -> None:
        world.connections[0].connection_lost(None)

    with pair() as worlds:
        worlds.create("t")
        before = worlds.worlds[0].written
        worlds.send(append_to("t"))
        worlds.do(leave)
        worlds.turn(2)
        assert worlds.worlds[0].written == before
        assert [world.engine.state("t").head_seq for world in worlds.worlds] == [1, 1]


def test_a_client_that_stops_sending_gets_its_answer_and_then_the_end() -> None:
    def stop_sending(world: World) -> None:
        assert world.connections[0].eof_received()

    with pair() as worlds:
        worlds.create("t")
        worlds.send(append_to("t"))
        worlds.do(stop_sending)
        worlds.turn(2)
        assert worlds.worlds[0].transports[0].is_over
        assert b'"first_seq":1,' in worlds.worlds[0].written[0]


def test_what_is_sent_behind_an_append_waits_for_its_answer() -> None:
    with pair() as worlds:
        worlds.create("t")
        worlds.send(append_to("t"))
        worlds.send(request("/v0/topics/nothing", b"", method="GET"))
        worlds.send(append_to("t"))
        worlds.turn(4)
        answers = worlds.worlds[0].written[0].split(b"HTTP/1.1 ")[2:]
        assert [answer[:3] for answer in answers] == [b"200", b"404", b"200"]


def test_a_topic_that_was_deleted_and_made_again_is_found_again() -> None:
    with pair() as worlds:
        for _ in range(2):
            worlds.create("t")
            worlds.send(append_to("t"))
            worlds.turn(2)
            worlds.send(request("/v0/topics/t", b"", method="DELETE"))
            worlds.turn(3)
        assert worlds.taken == 2


def test_a_config_that_changes_holds_from_the_next_append_on() -> None:
    with pair() as worlds:
        worlds.create("t")
        worlds.send(append_to("t"))
        worlds.turn(2)
        worlds.create("t", cap_records=2)
        for _ in range(4):
            worlds.send(append_to("t"))
            worlds.turn(2)
        worlds.send(request("/v0/topics/t/diff", b"{}"))
        worlds.turn(2)
        assert worlds.taken == 5
        assert b'"reason":"cap"' in worlds.worlds[0].written[0], "the newest two are left"


def test_each_connection_finds_the_topic_of_each_append() -> None:
    with pair() as worlds:
        for name in ("t", "u", "tt"):
            worlds.create(name)
        for name in ("t", "u", "t", "tt", "t"):
            for client in (0, 1):
                worlds.send(append_to(name), client)
                worlds.turn(2)
        assert worlds.taken == 10


@pytest.mark.parametrize("setting", [{"keys": "k"}, {"cors_origins": ("*",)}, {"max_total_bytes": 1 << 20}])
def test_where_every_request_needs_a_closer_look_there_is_no_short_way(setting: dict[str, Any]) -> None:
    with pair(**setting) as worlds:
        worlds.send(append_to("t"))
        worlds.turn(2)
        assert worlds.worlds[0].way is None


@pytest.mark.parametrize(("durability", "expected"), [("disk", [1, 0, 0, 1]), ("fsync", [1, 1, 1, 1])])
def test_appends_that_follow_each_other_leave_what_nobody_waits_for_to_every_millisecond(
    tmp_path: Path, durability: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, is_short=True, fs=UnsyncedFs())
    polls: list[int] = []
    poll = world.engine.poll
    monkeypatch.setattr(world.engine, "poll", lambda drain: (polls.append(1), poll(drain)))
    world.app.now_ns = world.clock.monotonic_ns
    world.connections[0].data_received(
        request("/v0/topics/t", json.dumps({"durability": durability}).encode(), method="PUT")
    )
    world.turn()
    found = []
    for waited_ns in (2_000_000, 400_000, 400_000, 400_000):
        polls.clear()
        world.clock.advance_ns(waited_ns)
        world.connections[0].data_received(append_to("t"))
        world.loop.turn()
        found.append(len(polls))
    assert found == expected
    if durability == "disk":
        assert world.written[0].count(b'"first_seq"') == 4, "a write is all that the answer needs"
    world.close()
