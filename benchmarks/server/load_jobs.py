"""What the core of the load does, at the speed of bare sockets: jobs for one pinned process.

Every job is a context manager for `benchmarks.queue.processes`: it connects, yields the function that does
the timed work and returns its numbers by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, cycle, repeat
from typing import Any

from benchmarks.engine import samples
from benchmarks.queue.stats import percentile_us, rate_per_s
from benchmarks.server import peer_wires, watching, wrk
from benchmarks.server.load import Line, Load, WrongAnswer, closed_loop, http_missing, http_request
from benchmarks.server.servers import RunningServer

Numbers = dict[str, float]
Job = Iterator[Callable[[], Numbers]]

CONNECTIONS = 16
TOPIC = "bench"
TOPIC_PATH = f"/v0/topics/{TOPIC}"
READ_LIMIT = 1000
READ_ANSWER_BYTES = 1 << 20
FILL_RECORDS = 1000


@dataclass(frozen=True)
class Form:
    """How appends are sent, and to what; the name begins the names of their numbers."""

    name: str
    durability: str = "disk"
    records: int = 1
    cap_records: int = 0
    is_client: bool = False
    """As every client of everlog sends them: no seqs in the answer, and an idempotency key for each."""
    key: str = ""
    """The API key of the server."""

    @property
    def path(self) -> str:
        """Where they are sent."""
        return TOPIC_PATH + "?return_seqs=false&strict=true" if self.is_client else TOPIC_PATH

    def body(self) -> bytes:
        """What is sent; `wrk.KEY_MARK` stands for what has to differ from one request to the next."""
        body = append_body(self.records)
        if self.is_client:
            body = body[:-1] + b',"idempotency_key":"%b"}' % wrk.KEY_MARK
        return body

    def requests(self) -> Iterator[bytes]:
        """The requests, one after the other, without end."""
        request = http_request("POST", self.path, self.body(), self.key)
        if not self.is_client:
            return repeat(request)
        width = len(wrk.KEY_MARK)
        return (request.replace(wrk.KEY_MARK, b"%0*d" % (width, number)) for number in count())


def append_body(records: int) -> bytes:
    """The body of an append of so many records of 64 bytes."""
    return b'{"records":[%b]}' % b",".join(
        b'{"data":%b}' % samples.payload(number) for number in range(records)
    )


def create_topic(server: RunningServer, durability: str, cap_records: int = 0) -> Line:
    """Make the topic of the benchmark; returns the connection."""
    line = Line(server.address, http_missing, READ_ANSWER_BYTES)
    config = {"durability": durability, "cap_records": cap_records}
    line.ask(http_request("PUT", TOPIC_PATH, json.dumps(config).encode(), server.key))
    return line


def numbers_of(name: str, load: Load, records: int, server: RunningServer, cpu_s: float) -> Numbers:
    """The rate of records, the waiting times and the server's processor time for each request."""
    requests = len(load.latencies_ns)
    return {
        f"{name}_per_s": rate_per_s(requests * records, load.elapsed_ns),
        f"{name}_p50_ms": percentile_us(load.latencies_ns, 50) / 1000,
        f"{name}_p99_ms": percentile_us(load.latencies_ns, 99) / 1000,
        f"{name}_cpu_us": (server.cpu_s() - cpu_s) * 1e6 / requests,
    }


@contextmanager
def writes(server: RunningServer, form: Form, requests: int) -> Job:
    """Appends of one form over all connections."""
    line = create_topic(server, form.durability, form.cap_records)
    lines = [Line(server.address, http_missing) for _ in range(CONNECTIONS)]

    def run() -> Numbers:
        syncs, cpu_s = _syncs(line, server.key), server.cpu_s()
        load = closed_loop(lines, form.requests(), requests)
        numbers = numbers_of(form.name, load, form.records, server, cpu_s)
        numbers[f"{form.name}_appends_a_sync"] = requests / max(1, _syncs(line, server.key) - syncs)
        _check_stored(line, server.key, requests * form.records)
        return numbers

    yield run


def counted_writes(server: RunningServer, form: Form, load: Callable[[str, bytes], wrk.Summary]) -> Numbers:
    """As `writes`, for a load that comes from another program, which does not wait for its last answers."""
    line = create_topic(server, form.durability, form.cap_records)
    syncs, cpu_s = _syncs(line, server.key), server.cpu_s()
    summary = load(form.path, form.body())
    cpu_us = (server.cpu_s() - cpu_s) * 1e6
    _check_stored(line, server.key, summary.requests * form.records, CONNECTIONS * form.records)
    name = form.name
    return {
        f"{name}_per_s": summary.requests * form.records * 1e6 / summary.duration_us,
        f"{name}_p50_ms": summary.p50_us / 1000,
        f"{name}_p99_ms": summary.p99_us / 1000,
        f"{name}_cpu_us": cpu_us / summary.requests,
        f"{name}_appends_a_sync": summary.requests / max(1, _syncs(line, server.key) - syncs),
    }


def _check_stored(line: Line, key: str, acknowledged: int, under_way: int = 0) -> None:
    """All that was acknowledged must be there, and of the rest no more than was under way at the end."""
    stored = document(line.ask(http_request("GET", TOPIC_PATH, key=key)))["head_seq"]
    if not acknowledged <= stored <= acknowledged + under_way:
        raise WrongAnswer(f"{acknowledged} records were acknowledged, the topic has {stored}")


@contextmanager
def reads(server: RunningServer, requests: int, stored: int) -> Job:
    """Diffs of 1000 records through a topic of `stored` records, over all connections."""
    line = create_topic(server, "disk")
    for _ in range(stored // FILL_RECORDS):
        line.ask(http_request("POST", TOPIC_PATH, append_body(FILL_RECORDS)))
    lines = [Line(server.address, http_missing, READ_ANSWER_BYTES) for _ in range(CONNECTIONS)]
    bodies = [b'{"from_seq":%d,"limit":%d}' % (seq, READ_LIMIT) for seq in range(0, stored, READ_LIMIT)]
    wanted = [http_request("POST", TOPIC_PATH + "/diff", body) for body in bodies]
    last = document(line.ask(wanted[-1]))["records"]
    if [record["$seq"] for record in last] != list(range(stored - READ_LIMIT + 1, stored + 1)):
        raise WrongAnswer(f"the last {READ_LIMIT} of {stored} records did not come back")

    def run() -> Numbers:
        cpu_s = server.cpu_s()
        return numbers_of("diff", closed_loop(lines, cycle(wanted), requests), READ_LIMIT, server, cpu_s)

    yield run


@contextmanager
def deliveries(server: RunningServer, name: str, watchers: int, rounds: int) -> Job:
    """From the write of a record to its event in the hands of every watcher."""
    line = create_topic(server, "disk")
    request = http_request("POST", TOPIC_PATH, append_body(1))
    with watching.event_streams(server.address, TOPIC, watchers) as streams:
        yield lambda: _delivered(server, name, line, repeat(request), streams, rounds)


@contextmanager
def idle_watchers(server: RunningServer, watchers: int) -> Job:
    """What the server holds for so many streams on which nothing happens."""
    create_topic(server, "disk").close()
    before_mib = server.resident_mib()
    with watching.event_streams(server.address, TOPIC, watchers):
        yield lambda: {
            "idle_resident_mib": server.resident_mib(),
            "idle_watcher_kib": (server.resident_mib() - before_mib) * 1024 / watchers,
        }


# --- Peers -----------------------------------------------------------------------------------------------


@contextmanager
def nats_writes(server: RunningServer, name: str, records: int, requests: int) -> Job:
    """The same with JetStream: so many acknowledged publishes at a time on each connection."""
    peer_wires.nats_create_stream(server.address)
    lines = [
        peer_wires.nats_line(server.address, b"inbox.%d" % number, records) for number in range(CONNECTIONS)
    ]
    # Each connection has its own inbox, so each has its own request; in turn is as good as any order.
    texts = {
        line: repeat(peer_wires.nats_publish(samples.payload(0), b"inbox.%d" % number, records))
        for number, line in enumerate(lines)
    }

    def run() -> Numbers:
        cpu_s = server.cpu_s()
        return numbers_of(name, closed_loop(lines, texts, requests), records, server, cpu_s)

    yield run


@contextmanager
def redis_deliveries(server: RunningServer, name: str, watchers: int, rounds: int) -> Job:
    """From XADD to every XREAD BLOCK."""
    line = peer_wires.redis_line(server.address)
    with peer_wires.redis_watchers(server.address, watchers) as streams:
        adds = peer_wires.redis_adds(samples.payload(0))
        yield lambda: _delivered(server, name, line, adds, streams, rounds)


@contextmanager
def nats_deliveries(server: RunningServer, name: str, watchers: int, rounds: int) -> Job:
    """From an acknowledged publish to every push consumer."""
    peer_wires.nats_create_stream(server.address)
    line = peer_wires.nats_line(server.address, b"acks", 1)
    request = peer_wires.nats_publish(samples.payload(0), b"acks", 1)
    with peer_wires.nats_watchers(server.address, watchers) as streams:
        yield lambda: _delivered(server, name, line, repeat(request), streams, rounds)


# --- Details ---------------------------------------------------------------------------------------------


def _delivered(
    server: RunningServer,
    name: str,
    line: Line,
    requests: Iterator[bytes],
    streams: watching.Watching,
    rounds: int,
) -> Numbers:
    cpu_s = server.cpu_s()
    delays_ns = watching.deliver(line, requests, streams, rounds)
    return {
        f"{name}_p50_ms": percentile_us(delays_ns, 50) / 1000,
        f"{name}_p99_ms": percentile_us(delays_ns, 99) / 1000,
        f"{name}_cpu_us": (server.cpu_s() - cpu_s) * 1e6 / len(delays_ns),
    }


def document(answer: bytes) -> dict[str, Any]:
    """The JSON object in an answer; the buffer of a line is longer than that."""
    text = answer[answer.index(b"\r\n\r\n") + 4 :].decode("latin-1")
    document: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return document


def _syncs(line: Line, key: str) -> int:
    request = http_request("GET", "/v0/metrics", key=key)
    request = request.replace(b"\r\n\r\n", b"\r\nAccept: application/json\r\n\r\n")
    return int(document(line.ask(request))["wal"]["fsyncs"])
