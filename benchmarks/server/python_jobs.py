"""The same from Python programs: one connection, one call after the other, each through its own client.

Jobs for one pinned process. Whatever a client gives back as Python objects is what a program gets.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from benchmarks.engine import samples
from benchmarks.queue.stats import rate_per_s
from benchmarks.server import peer_wires
from benchmarks.server.load import Address, WrongAnswer
from benchmarks.server.load_jobs import READ_LIMIT, TOPIC, Job, Numbers

BATCH_RECORDS = 100
STREAM = peer_wires.STREAM.decode()
SUBJECT = peer_wires.SUBJECT.decode()
FETCH_TIMEOUT_S = 30.0


def _timed(name: str, calls: int, records: int, call: Callable[[], object]) -> Numbers:
    started_ns = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return {name: rate_per_s(calls * records, time.perf_counter_ns() - started_ns)}


@contextmanager
def everlog(address: Address, singles: int, batches: int, reads: int) -> Job:
    """Through everlog's own blocking client."""
    from everlog.client import Client, NewRecord

    data = json.loads(samples.payload(0))
    batch = [NewRecord(data)] * BATCH_RECORDS
    with Client("http://{}:{}".format(*address)) as client:
        client.put_topic(TOPIC, {"durability": "disk"})

        def read() -> None:
            _check_read(len(client.diff(TOPIC, limit=READ_LIMIT).records))

        def run() -> Numbers:
            numbers = _timed("python_single_per_s", singles, 1, lambda: client.append(TOPIC, data))
            for _ in range(READ_LIMIT // BATCH_RECORDS):
                client.append_many(TOPIC, batch)
            numbers |= _timed(
                "python_batch_per_s", batches, BATCH_RECORDS, lambda: client.append_many(TOPIC, batch)
            )
            return numbers | _timed("python_read_per_s", reads, READ_LIMIT, read)

        yield run


@contextmanager
def redis(address: Address, singles: int, batches: int, reads: int) -> Job:
    """Through redis-py: XADD, pipelines of them, XRANGE."""
    from redis import Redis

    fields: Any = {b"p": samples.payload(0)}
    with Redis(host=address[0], port=address[1], protocol=2) as client:

        def batch() -> None:
            pipeline = client.pipeline(transaction=False)
            for _ in range(BATCH_RECORDS):
                pipeline.xadd(STREAM, fields)
            pipeline.execute()

        def read() -> None:
            found: Any = client.xrange(STREAM, count=READ_LIMIT)
            _check_read(len([json.loads(entry[b"p"]) for _, entry in found]))

        def run() -> Numbers:
            numbers = _timed("python_single_per_s", singles, 1, lambda: client.xadd(STREAM, fields))
            for _ in range(READ_LIMIT // BATCH_RECORDS):
                batch()
            numbers |= _timed("python_batch_per_s", batches, BATCH_RECORDS, batch)
            return numbers | _timed("python_read_per_s", reads, READ_LIMIT, read)

        yield run


@contextmanager
def nats(address: Address, singles: int, batches: int, reads: int) -> Job:
    """Through nats-py: acknowledged publishes, one by one and a hundred at a time, and fetches."""
    peer_wires.nats_create_stream(address)
    with asyncio.Runner() as runner:
        yield lambda: runner.run(_nats_program(address, singles, batches, reads))


async def _nats_program(address: Address, singles: int, batches: int, reads: int) -> Numbers:
    import nats as nats_py
    from nats.js.api import AckPolicy, ConsumerConfig

    payload = samples.payload(0)
    client = await nats_py.connect("nats://{}:{}".format(*address))
    stream = client.jetstream()
    numbers: Numbers = {}

    async def timed(name: str, calls: int, records: int, call: Callable[[], Any]) -> None:
        started_ns = time.perf_counter_ns()
        for _ in range(calls):
            await call()
        numbers[name] = rate_per_s(calls * records, time.perf_counter_ns() - started_ns)

    async def batch() -> None:
        await asyncio.gather(*(stream.publish(SUBJECT, payload) for _ in range(BATCH_RECORDS)))

    async def read() -> None:
        got = 0
        while got < READ_LIMIT:
            messages = await reader.fetch(READ_LIMIT - got, timeout=FETCH_TIMEOUT_S)
            got += len([json.loads(message.data) for message in messages])
        _check_read(got)

    await timed("python_single_per_s", singles, 1, lambda: stream.publish(SUBJECT, payload))
    # What is fetched is not there a second time.
    for _ in range(reads * READ_LIMIT // BATCH_RECORDS):
        await batch()
    await timed("python_batch_per_s", batches, BATCH_RECORDS, batch)
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    reader = await stream.pull_subscribe(SUBJECT, durable="reader", stream=STREAM, config=config)
    await timed("python_read_per_s", reads, READ_LIMIT, read)
    await client.close()
    return numbers


def _check_read(records: int) -> None:
    if records != READ_LIMIT:
        raise WrongAnswer(f"a read gave {records} records instead of {READ_LIMIT}")
