"""What is timed: records out of one Python process, and single requests through each way to speak HTTP.

Jobs for one pinned process. Each begins with Python objects and ends when the server has confirmed all of
them. The peers get what suits them best: the same encoder of JSON, and the settings that were found fastest.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import msgspec

from benchmarks.engine import samples
from benchmarks.queue.stats import rate_per_s
from benchmarks.server import peer_wires
from benchmarks.server.load import WrongAnswer
from benchmarks.server.load_jobs import TOPIC, Job, Numbers
from benchmarks.server.servers import RunningServer

REDIS_PIPELINE = 1000
# The library's default, and the fastest. No `wait_stall`: it costs a task and a system call for each record.
NATS_PENDING = 4000
BATCH_RECORDS = 100
STREAM = peer_wires.STREAM.decode()
SUBJECT = peer_wires.SUBJECT.decode()
encode = msgspec.json.Encoder().encode


def _objects(count: int) -> list[Any]:
    ring = [json.loads(samples.payload(number)) for number in range(samples.RING_RECORDS)]
    return [ring[number % len(ring)] for number in range(count)]


def _check(kept: int, records: int) -> None:
    if kept != records:
        raise WrongAnswer(f"{kept} records were kept instead of {records}")


# --- Producing -------------------------------------------------------------------------------------------


@contextmanager
def everlog_producer(server: RunningServer, records: int) -> Job:
    """Through `Producer`, one `send` for each record."""
    from everlog import Client, Producer

    values = _objects(records)
    with Client("http://{}:{}".format(*server.address)) as client:
        client.put_topic(TOPIC, {"durability": "disk"})

        def run() -> Numbers:
            started_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
            with Producer(client, TOPIC) as producer:
                for value in values:
                    producer.send(value)
            elapsed_ns = time.perf_counter_ns() - started_ns
            cpu_us = (time.process_time_ns() - cpu_ns) / records / 1000
            _check(client.topic(TOPIC).head_seq, records)
            return {"producer_per_s": rate_per_s(records, elapsed_ns), "producer_cpu_us": cpu_us}

        yield run


@contextmanager
def redis_producer(server: RunningServer, records: int) -> Job:
    """Through redis-py: pipelines of XADD."""
    from redis import Redis

    values = _objects(records)
    with Redis(host=server.address[0], port=server.address[1], protocol=2) as client:

        def run() -> Numbers:
            started_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
            for start in range(0, records, REDIS_PIPELINE):
                pipeline = client.pipeline(transaction=False)
                for value in values[start : start + REDIS_PIPELINE]:
                    pipeline.xadd(STREAM, {b"p": encode(value)})
                pipeline.execute()
            elapsed_ns = time.perf_counter_ns() - started_ns
            cpu_us = (time.process_time_ns() - cpu_ns) / records / 1000
            length: Any = client.xlen(STREAM)
            _check(length, records)
            return {"producer_per_s": rate_per_s(records, elapsed_ns), "producer_cpu_us": cpu_us}

        yield run


@contextmanager
def nats_producer(server: RunningServer, records: int) -> Job:
    """Through nats-py: asynchronous publishes to JetStream, then the wait for all acknowledgements."""
    values = _objects(records)
    peer_wires.nats_create_stream(server.address)
    with asyncio.Runner() as runner:
        yield lambda: runner.run(_nats_publish(server, values))


async def _nats_publish(server: RunningServer, values: list[Any]) -> Numbers:
    import nats

    client = await nats.connect("nats://{}:{}".format(*server.address))
    stream = client.jetstream(publish_async_max_pending=NATS_PENDING)
    records = len(values)
    started_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    for value in values:
        await stream.publish_async(SUBJECT, encode(value))
    await stream.publish_async_completed()
    elapsed_ns = time.perf_counter_ns() - started_ns
    cpu_us = (time.process_time_ns() - cpu_ns) / records / 1000
    state = (await stream.stream_info(STREAM)).state
    _check(state.messages, records)
    await client.close()
    return {"producer_per_s": rate_per_s(records, elapsed_ns), "producer_cpu_us": cpu_us}


# --- Transports ------------------------------------------------------------------------------------------


@contextmanager
def transports(server: RunningServer, requests: int) -> Job:
    """The same appends, one after the other on one connection, through each way to speak HTTP.

    In turns of a tenth each, so that what disturbs one disturbs all.
    """
    one = json.dumps({"records": [{"data": json.loads(samples.payload(0))}]}).encode()
    many = json.dumps({"records": [{"data": json.loads(samples.payload(0))}] * BATCH_RECORDS}).encode()
    path = f"/v0/topics/{TOPIC}"
    ways = {
        "own": _own_transport(server, path),
        "http_client": _http_client(server, path),
        "urllib3": _urllib3(server, path),
    }

    def run() -> Numbers:
        numbers: Numbers = {}
        for kind, body, records in (("single", one, 1), ("batch", many, BATCH_RECORDS)):
            spent_ns = dict.fromkeys(ways, 0)
            for _ in range(10):
                for name, post in ways.items():
                    started_ns = time.perf_counter_ns()
                    for _ in range(requests // 10):
                        post(body)
                    spent_ns[name] += time.perf_counter_ns() - started_ns
            for name, elapsed_ns in spent_ns.items():
                numbers[f"{kind}_{name}_per_s"] = rate_per_s(requests // 10 * 10 * records, elapsed_ns)
            numbers[f"{kind}_own_ratio"] = spent_ns["http_client"] / spent_ns["own"]
        return numbers

    yield run


def _own_transport(server: RunningServer, path: str) -> Callable[[bytes], object]:
    from everlog import Client

    client = Client("http://{}:{}".format(*server.address))
    headers = {"Content-Type": "application/json"}
    return lambda body: client.exchange("POST", path, body, headers)


def _http_client(server: RunningServer, path: str) -> Callable[[bytes], object]:
    connection = http.client.HTTPConnection(*server.address)
    headers = {"Content-Type": "application/json"}

    def post(body: bytes) -> bytes:
        connection.request("POST", path, body, headers)
        return connection.getresponse().read()

    return post


def _urllib3(server: RunningServer, path: str) -> Callable[[bytes], object]:
    import urllib3

    pool = urllib3.HTTPConnectionPool(*server.address, maxsize=1)
    headers = {"Content-Type": "application/json"}
    return lambda body: pool.request("POST", path, body=body, headers=headers).data
