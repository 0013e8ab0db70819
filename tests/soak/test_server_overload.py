"""A server with far more to do than it can: every rung is taken and left, and nothing is lost, reordered or
wrongly acknowledged.

Many writers keep as many appends under way as the server lets them, many streams watch, and one topic has a
negative priority. The client only collects; what it got is looked at when the load is over.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.support.http_peers import LOOPS
from tests.support.server_processes import ServerProcess, running_server
from tests.support.watch_servers import Frame, parse_frame

pytestmark = pytest.mark.soak

WRITERS = 320
UNANSWERED = 16  # as many as the server takes from one connection
TOPICS = 40
STREAMS = 60
TOPICS_OF_A_STREAM = 12
LOW = "low"
LOAD_S_MAX = 60.0
QUIET_S_MAX = 30.0
RUNGS = ("coalesce", "commit", "defer", "refuse")
STATUS = re.compile(rb"HTTP/1\.1 (\d+) ")
LENGTH = re.compile(rb"[Cc]ontent-[Ll]ength: (\d+)")
FIRST_SEQ = re.compile(rb'"first_seq":(\d+)')


class Writer(asyncio.Protocol):
    """One connection that appends as fast as it may; answers come in the order of the requests."""

    def __init__(self, number: int, topic: str, unanswered: int) -> None:
        self.number = number
        self.topic = topic
        self.unanswered = unanswered
        self.acked: dict[int, int] = {}
        """The first seq of each append that was acknowledged, by its number."""
        self.refused: dict[int, dict[str, Any]] = {}
        """The detail of each refusal, by the number of the append."""
        self.is_stopping = False
        self._sent = 0
        self._answered = 0
        self._input = b""
        self._transport: asyncio.Transport

    @property
    def is_done(self) -> bool:
        """Whether everything is answered."""
        return self._answered == self._sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        """Send as many as may be without an answer."""
        self._transport.write(b"".join(self._request() for _ in range(self.unanswered)))

    def _request(self) -> bytes:
        body = b'{"records":[{"data":[%d,%d]}]}' % (self.number, self._sent)
        self._sent += 1
        head = b"POST /v0/topics/%b?return_seqs=false HTTP/1.1\r\nHost: x\r\n" % self.topic.encode()
        return head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    def data_received(self, data: bytes) -> None:
        self._input += data
        answers = 0
        while (answer := self._next_answer()) is not None:
            self._take(*answer)
            answers += 1
        if answers and not self.is_stopping:
            self._transport.write(b"".join(self._request() for _ in range(answers)))

    def _next_answer(self) -> tuple[int, bytes] | None:
        head, separator, rest = self._input.partition(b"\r\n\r\n")
        if not separator:
            return None
        status, length = STATUS.match(head), LENGTH.search(head)
        assert status is not None and length is not None, head
        size = int(length[1])
        if len(rest) < size:
            return None
        self._input = rest[size:]
        return int(status[1]), rest[:size]

    def _take(self, status: int, body: bytes) -> None:
        number = self._answered
        self._answered += 1
        if status == 200:
            seq = FIRST_SEQ.search(body)
            assert seq is not None, body
            self.acked[number] = int(seq[1])
        else:
            assert status == 429, body
            self.refused[number] = msgspec.json.decode(body)["error"]["detail"]


class Collector(asyncio.Protocol):
    """A stream of which everything is kept."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.has_ended = False

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True

    def frames(self) -> list[Frame]:
        """What was sent, without the framing of HTTP."""
        _, _, chunks = b"".join(self.pieces).partition(b"\r\n\r\n")
        text, place = bytearray(), 0
        while place < len(chunks):
            end = chunks.find(b"\r\n", place)
            size = int(chunks[place:end], 16) if end > 0 else 0
            if end < 0 or end + 2 + size > len(chunks):
                break
            text += chunks[end + 2 : end + 2 + size]
            place = end + 4 + size
        return [parse_frame(frame) for frame in bytes(text).split(b"\n\n")[:-1]]


class Gauge:
    """Looks at the metrics again and again, from a thread of its own."""

    def __init__(self, port: int) -> None:
        self.seen: dict[str, float] = {}
        self.peak: dict[str, float] = defaultdict(float)
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            text = ask(self._port, "GET", "/v0/metrics", None)
            lines = (line.rpartition(" ") for line in text.decode().splitlines() if line[0] != "#")
            seen = {name: float(value) for name, _, value in lines}
            for name, value in seen.items():
                self.peak[name] = max(self.peak[name], value)
            self.seen = seen

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def rung_taken(self, rung: str) -> bool:
        """Whether a rung was ever taken."""
        return self.seen.get(f'topics_rung_taken_total{{rung="{rung}"}}', 0) > 0

    def is_quiet(self) -> bool:
        """Whether no rung is taken and no caller waits."""
        seen = self.seen
        if not seen:
            return False
        rungs = [seen[f'topics_rung_engaged{{rung="{rung}"}}'] for rung in RUNGS]
        return not any(rungs) and seen["topics_pressure"] < 0.1 and seen["topics_scheduler_paused"] == 0


def ask(port: int, method: str, path: str, body: object) -> bytes:
    """One request on a connection of its own; it has to succeed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        content = None if body is None else msgspec.json.encode(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        assert response.status in (200, 201), text
        return text
    finally:
        connection.close()


class Load:
    """Everything that is done to the server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.names = [f"t{number}" for number in range(TOPICS)]
        self.writers: list[Writer] = []
        self.streams: dict[tuple[str, ...], Collector] = {}

    async def run(self) -> None:
        """Load until everything was seen, then wait until it is quiet."""
        for name in (*self.names, LOW):
            config = {"durability": "fsync", "priority": -10 if name == LOW else None}
            await asyncio.to_thread(ask, self.port, "PUT", f"/v0/topics/{name}", config)
        loop = asyncio.get_running_loop()
        await self._watch((LOW,))
        for number in range(STREAMS):
            watched = {self.names[(number + place) % TOPICS] for place in range(TOPICS_OF_A_STREAM)}
            await self._watch((*sorted(watched), f"#{number}"))
        for number in range(WRITERS + 1):
            name, unanswered = (LOW, 1) if number == WRITERS else (self.names[number % TOPICS], UNANSWERED)
            writer = Writer(number, name, unanswered)
            await loop.create_connection(lambda writer=writer: writer, "127.0.0.1", self.port)  # type: ignore[misc]
            self.writers.append(writer)
        gauge = Gauge(self.port)
        try:
            await self._load_and_rest(gauge)
        finally:
            await asyncio.to_thread(gauge.stop)

    async def _watch(self, watched: tuple[str, ...]) -> None:
        topics: dict[str, object] = {name: {} for name in watched if not name.startswith("#")}
        answer = await asyncio.to_thread(ask, self.port, "POST", "/v0/watch", {"topics": topics})
        wid = msgspec.json.decode(answer)["wid"]
        collector = Collector()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: collector, "127.0.0.1", self.port)
        transport.write(f"GET /v0/watch/{wid} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        self.streams[watched] = collector

    async def _load_and_rest(self, gauge: Gauge) -> None:
        for writer in self.writers:
            writer.start()

        def has_seen_everything() -> bool:
            return all(map(gauge.rung_taken, RUNGS)) and bool(self.refusals()) and bool(self.advice())

        await patiently("every rung is taken and felt", LOAD_S_MAX, has_seen_everything, gauge)
        for writer in self.writers:
            writer.is_stopping = True
        await patiently("all is answered", QUIET_S_MAX, lambda: all(w.is_done for w in self.writers), gauge)
        await patiently("every rung is left", QUIET_S_MAX, gauge.is_quiet, gauge)
        heads = {name: state(self.port, name)["head_seq"] for name in (*self.names, LOW)}
        await patiently("everything was pushed", QUIET_S_MAX, lambda: self._has_arrived(heads), gauge)

    def _has_arrived(self, heads: dict[str, int]) -> bool:
        return all(
            b'"to_seq":%d,' % heads[name] in b"".join(collector.pieces[-200:])
            for watched, collector in self.streams.items()
            for name in watched
            if not name.startswith("#") and heads[name]
        )

    def refusals(self) -> list[dict[str, Any]]:
        """The refusals that were due to pressure."""
        found = [detail for writer in self.writers for detail in writer.refused.values()]
        return [detail for detail in found if "retry_after_ms" in detail]

    def advice(self) -> bool:
        """Whether the watcher of the low topic was told that it is paused."""
        return any(b'"code":429' in piece for piece in self.streams[LOW,].pieces)


def state(port: int, name: str) -> dict[str, Any]:
    """The state of a topic."""
    found: dict[str, Any] = msgspec.json.decode(ask(port, "GET", f"/v0/topics/{name}", None))
    return found


async def patiently(what: str, most_s: float, condition: Callable[[], bool], gauge: Gauge) -> None:
    """Wait until something is true."""
    end_s = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < end_s, (what, dict(gauge.peak))
        await asyncio.sleep(0.05)


def read_all(port: int, name: str) -> dict[int, list[int]]:
    """What is in a topic, by seq."""
    found: dict[int, list[int]] = {}
    cursor = 0
    while True:
        body = {"from_seq": cursor, "limit": 1000}
        page = msgspec.json.decode(ask(port, "POST", f"/v0/topics/{name}/diff", body))
        found.update((record["$seq"], record["data"]) for record in page["records"])
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return found


def check_writers(load: Load, kept: dict[str, dict[int, list[int]]]) -> None:
    """What was acknowledged is there, at its seq, and nothing else is."""
    for name, records in kept.items():
        assert list(records) == list(range(1, len(records) + 1)), f"{name} has holes"
        writers = [writer for writer in load.writers if writer.topic == name]
        acked = {seq: [writer.number, number] for writer in writers for number, seq in writer.acked.items()}
        assert records == acked
        for writer in writers:
            seqs = list(writer.acked.values())
            assert seqs == sorted(seqs), "the order of one writer is kept"


def check_streams(load: Load, kept: dict[str, dict[int, list[int]]]) -> None:
    """Every stream got every record once and in order, and none was cut off."""
    for watched, collector in load.streams.items():
        assert not collector.has_ended
        got: dict[str, list[tuple[int, list[int]]]] = defaultdict(list)
        for frame in collector.frames():
            assert frame.event in ("retry", "record", "caught-up", "error", "heartbeat"), frame
            if frame.event == "record":
                got[frame.data["topic"]] += [
                    (record["$seq"], record["data"]) for record in frame.data["records"]
                ]
        for name in watched:
            if not name.startswith("#"):
                assert got[name] == list(kept[name].items()), name


def test_real_overload_takes_every_rung_and_leaves_it_and_nothing_is_lost(tmp_path: Path) -> None:
    with running_server(tmp_path, "--shards", 1) as server:
        load = overload(server)
        kept = {name: read_all(server.port, name) for name in (*load.names, LOW)}
        assert server.stop()[0] == 0
    check_writers(load, kept)
    check_streams(load, kept)
    assert all(100 <= detail["retry_after_ms"] <= 1000 for detail in load.refusals())
    (low,) = [collector for watched, collector in load.streams.items() if watched == (LOW,)]
    advice = [frame.data for frame in low.frames() if frame.event == "error"]
    assert advice and all(data["topics"] == [LOW] and data["retry_after_ms"] > 0 for data in advice)


def overload(server: ServerProcess) -> Load:
    """Run the load to its end."""
    load = Load(server.port)
    with asyncio.Runner(loop_factory=LOOPS["uvloop"]) as runner:
        runner.run(load.run())
    return load
