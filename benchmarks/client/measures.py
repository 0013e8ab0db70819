"""What is measured, with which sizes, and the rows it fills. Owns no timed code."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.client import bridge_jobs, client_jobs
from benchmarks.engine.report import at_least
from benchmarks.queue.report import Row, Section
from benchmarks.server import servers
from benchmarks.server.load_jobs import Numbers
from benchmarks.server.measures import Bench, Measure, redis_everysec

KILO = 1e-3


@dataclass(frozen=True)
class Sizes:
    """How much work each measurement is."""

    records: int
    peer_records: int
    requests: int


FULL = Sizes(records=1_000_000, peer_records=100_000, requests=5000)
QUICK = Sizes(records=300_000, peer_records=20_000, requests=1000)


def measures(sizes: Sizes) -> tuple[Measure, ...]:
    """All measurements, for runs of these sizes."""

    def everlog(bench: Bench) -> Numbers:
        return bench.on(servers.everlog, client_jobs.everlog_producer, sizes.records)

    def redis(bench: Bench) -> Numbers:
        return bench.on(redis_everysec, client_jobs.redis_producer, sizes.peer_records)

    def nats(bench: Bench) -> Numbers:
        return bench.on(servers.nats, client_jobs.nats_producer, sizes.peer_records)

    def http(bench: Bench) -> Numbers:
        return bench.on(servers.everlog, client_jobs.transports, sizes.requests)

    def bridge(bench: Bench) -> Numbers:
        return bench.on(servers.everlog, bridge_jobs.bridges, sizes.records, str(bench.directory))

    return (
        Measure("producer", {"everlog": everlog, "redis": redis, "nats": nats}),
        Measure("http", {"everlog": http}),
        Measure("bridge", {"everlog": bridge}),
    )


SECTIONS = (
    Section(
        "Records out of one Python process (Producer; redis-py, pipelined XADD; nats-py, publish_async)",
        (
            Row("records", "producer_per_s", "k/s", at_least(300), scale=KILO),
            Row("CPU of the client a record", "producer_cpu_us", "us"),
            Row("times redis-py", "producer_per_s", "x", at_least(2), versus="redis"),
            Row("times nats-py", "producer_per_s", "x", at_least(2), versus="nats"),
        ),
    ),
    Section(
        "One request after the other: own HTTP/1.1, http.client, urllib3",
        (
            Row("single records, own", "single_own_per_s", "k/s", scale=KILO),
            Row("single records, http.client", "single_http_client_per_s", "k/s", scale=KILO),
            Row("single records, urllib3", "single_urllib3_per_s", "k/s", scale=KILO),
            Row("single records, own in times http.client", "single_own_ratio", "x", at_least(1)),
            Row("batches of 100, own: records", "batch_own_per_s", "k/s", scale=KILO),
            Row("batches of 100, http.client: records", "batch_http_client_per_s", "k/s", scale=KILO),
            Row("batches of 100, urllib3: records", "batch_urllib3_per_s", "k/s", scale=KILO),
            Row("batches of 100, own in times http.client", "batch_own_ratio", "x", at_least(1)),
        ),
    ),
    Section(
        "Bridges: a queue to a topic and back, exactly once",
        (
            Row("queue to topic, JSON as it is", "bridge_json_per_s", "k/s", at_least(300), scale=KILO),
            Row("CPU of the bridge a record", "bridge_json_cpu_us", "us"),
            Row("queue to topic, base64", "bridge_base64_per_s", "k/s", scale=KILO),
            Row("topic to queue", "bridge_back_per_s", "k/s", scale=KILO),
        ),
    ),
)

NOTES = (
    "Server on one core, client on the other, 64-byte records, from Python objects to the last confirmation.",
    "disk and everysec: written, synced in the background; NATS syncs every two minutes.",
    "All encode JSON with msgspec; redis-py has no hiredis, nats-py its default of 4000 pending publishes.",
)
