"""Jobs through a work queue: 50 workers take ten at a time and acknowledge them; and who gets a job next.

Jobs for one pinned process. Every job that is counted was given out once and acknowledged once.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.engine import samples
from benchmarks.queue.stats import percentile_us, rate_per_s
from benchmarks.server import peer_wires
from benchmarks.server.load import Line, WrongAnswer, http_missing, http_request
from benchmarks.server.load_jobs import FILL_RECORDS, READ_ANSWER_BYTES, Job, Numbers, append_body
from benchmarks.server.servers import RunningServer

WORKERS = 50
TAKEN = 10
QUEUE_PATH = "/v0/topics/jobs"
GROUP = "workers"
STREAM = peer_wires.STREAM.decode()
SUBJECT = peer_wires.SUBJECT.decode()
FETCH_TIMEOUT_S = 30.0
_SEQ = re.compile(rb'"\$seq":(\d+)')


def _numbers(jobs: int, done: int, elapsed_ns: int, server: RunningServer, cpu_s: float) -> Numbers:
    if done != jobs:
        raise WrongAnswer(f"{done} jobs were acknowledged instead of {jobs}")
    return {
        "jobs_per_s": rate_per_s(jobs, elapsed_ns),
        "jobs_cpu_us": (server.cpu_s() - cpu_s) * 1e6 / jobs,
    }


# --- everlog ----------------------------------------------------------------------------------------------


class _WorkerLine(Line):
    """A connection of a worker; it keeps the whole answer."""

    __slots__ = ("_answer_bytes", "node")

    def __init__(self, server: RunningServer, node: bytes) -> None:
        super().__init__(server.address, self._note_missing)
        self.node = node
        self._answer_bytes = 0

    def _note_missing(self, buffer: bytearray, filled: int) -> int:
        self._answer_bytes = filled
        return http_missing(buffer, filled)

    def answer(self) -> bytes:
        """The answer that has just come; what is behind it in the buffer is older."""
        return bytes(self._buffer[: self._answer_bytes])


def filled(server: RunningServer, jobs: int, members: Callable[[int], bytes] = lambda _: b"") -> Line:
    """A job queue with so many jobs; `members` gives what a record says besides its data."""
    line = Line(server.address, http_missing, READ_ANSWER_BYTES)
    line.ask(http_request("PUT", QUEUE_PATH, b'{"type":"queue","durability":"disk"}'))
    for first in range(0, jobs, FILL_RECORDS):
        records = b",".join(
            b'{"data":%b%b}' % (samples.payload(number), members(number))
            for number in range(first, first + FILL_RECORDS)
        )
        body = b'{"records":[%b]}' % records
        line.ask(http_request("POST", QUEUE_PATH + "?return_seqs=false", body))
    return line


@contextmanager
def everlog(server: RunningServer, jobs: int, keys: int = 0) -> Job:
    """Claims and acks over one connection for each worker; jobs share so many keys with a limit of 1."""
    filled(server, jobs, lambda number: b',"concurrency_key":"k%d"' % (number % keys) if keys else b"")
    workers = [_WorkerLine(server, b"worker-%d" % number) for number in range(WORKERS)]

    def run() -> Numbers:
        cpu_s = server.cpu_s()
        started_ns = time.perf_counter_ns()
        done = _work(workers, jobs)
        return _numbers(jobs, done, time.perf_counter_ns() - started_ns, server, cpu_s)

    yield run


def _work(workers: list[_WorkerLine], jobs: int) -> int:
    """Let the workers empty the queue, each claiming again when its batch is acknowledged."""
    by_number = {worker.socket.fileno(): worker for worker in workers}
    claims = {
        number: http_request("POST", QUEUE_PATH + "/claim", b'{"node":"%b","max":%d}' % (worker.node, TAKEN))
        for number, worker in by_number.items()
    }
    acking: dict[int, int] = {}  # connection -> jobs that it is acknowledging
    done = 0
    with select.epoll() as poll:
        for number, worker in by_number.items():
            poll.register(number, select.EPOLLIN)
            worker.send(claims[number])
        while done < jobs:
            for number, _ in poll.poll():
                worker = by_number[number]
                if not worker.is_answered():
                    continue
                if number in acking:
                    done += acking.pop(number)
                    worker.send(claims[number])
                elif seqs := _SEQ.findall(worker.answer()):
                    acking[number] = len(seqs)
                    body = b'{"node":"%b","seqs":[%b]}' % (worker.node, b",".join(seqs))
                    worker.send(http_request("POST", QUEUE_PATH + "/ack", body))
    return done


@contextmanager
def handovers(server: RunningServer, rounds: int) -> Job:
    """How long a job of a killed connection takes to be at the next worker."""
    line = Line(server.address, http_missing)
    line.ask(http_request("PUT", QUEUE_PATH, b'{"type":"queue"}'))
    line.ask(http_request("POST", QUEUE_PATH, append_body(1)))

    def run() -> Numbers:
        waits_ns = np.empty(rounds, np.int64)
        holder = work_stream(server, "node=worker-0")
        _await_job(holder)
        for number in range(rounds):
            successor = work_stream(server, f"node=worker-{number + 1}")
            started_ns = time.perf_counter_ns()
            # Gone as a killed process goes: without a word.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            holder.close()
            _await_job(successor)
            waits_ns[number] = time.perf_counter_ns() - started_ns
            holder = successor
        holder.close()
        return {
            "handover_p50_ms": percentile_us(waits_ns, 50) / 1000,
            "handover_p99_ms": percentile_us(waits_ns, 99) / 1000,
        }

    yield run


def work_stream(server: RunningServer, query: str) -> socket.socket:
    """A worker that waits for jobs."""
    stream = socket.create_connection(server.address, timeout=FETCH_TIMEOUT_S)
    stream.sendall(http_request("GET", f"{QUEUE_PATH}/work?{query}"))
    _await(stream, b"retry: 2000")
    return stream


def _await_job(stream: socket.socket) -> None:
    _await(stream, b"event: job")


def _await(stream: socket.socket, text: bytes) -> None:
    received = b""
    while text not in received:
        more = stream.recv(65536)
        if not more:
            raise WrongAnswer(f"the stream ended after {received[-200:]!r}")
        received += more


# --- Peers ------------------------------------------------------------------------------------------------


@contextmanager
def redis(server: RunningServer, jobs: int) -> Job:
    """Through redis-py: a stream with a group; done is acknowledged and deleted."""
    with asyncio.Runner() as runner:
        runner.run(_redis_fill(server, jobs))
        yield lambda: runner.run(_redis_work(server, jobs))


async def _redis_fill(server: RunningServer, jobs: int) -> None:
    from redis.asyncio import Redis

    async with Redis(host=server.address[0], port=server.address[1], protocol=2) as client:
        await client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        for _ in range(jobs // FILL_RECORDS):
            pipeline = client.pipeline(transaction=False)
            for number in range(FILL_RECORDS):
                pipeline.xadd(STREAM, {b"p": samples.payload(number)})
            await pipeline.execute()


async def _redis_work(server: RunningServer, jobs: int) -> Numbers:
    from redis.asyncio import Redis

    async def worker(number: int) -> int:
        done = 0
        async with Redis(host=server.address[0], port=server.address[1], protocol=2) as client:
            while True:
                found: Any = await client.xreadgroup(GROUP, f"worker-{number}", {STREAM: ">"}, count=TAKEN)
                if not found:
                    return done
                seqs = [seq for seq, _ in found[0][1]]
                pipeline = client.pipeline(transaction=False)
                pipeline.xack(STREAM, GROUP, *seqs)
                pipeline.xdel(STREAM, *seqs)
                done += (await pipeline.execute())[0]

    return await _all_workers(server, jobs, worker)


@contextmanager
def nats(server: RunningServer, jobs: int) -> Job:
    """Through nats-py: a work-queue stream with one pull consumer; every ack is confirmed."""
    with asyncio.Runner() as runner:
        runner.run(_nats_fill(server, jobs))
        yield lambda: runner.run(_nats_work(server, jobs))


async def _nats_connect(server: RunningServer) -> Any:
    import nats as nats_py

    # All workers connect at the same time, which on a busy machine takes longer than the client allows.
    url = "nats://{}:{}".format(*server.address)
    return await nats_py.connect(url, connect_timeout=int(FETCH_TIMEOUT_S))


async def _nats_fill(server: RunningServer, jobs: int) -> None:
    from nats.js.api import RetentionPolicy, StreamConfig

    client = await _nats_connect(server)
    stream = client.jetstream(timeout=FETCH_TIMEOUT_S)
    config = StreamConfig(name=STREAM, subjects=[SUBJECT], retention=RetentionPolicy.WORK_QUEUE)
    await stream.add_stream(config)
    for _ in range(jobs // 100):
        await asyncio.gather(*(stream.publish(SUBJECT, samples.payload(0)) for _ in range(100)))
    await client.close()


async def _nats_work(server: RunningServer, jobs: int) -> Numbers:
    from nats.js.api import ConsumerConfig

    # Each worker may have its batch out; the default would be one batch of twenty workers.
    config = ConsumerConfig(max_ack_pending=2 * WORKERS * TAKEN)
    left = jobs

    async def worker(number: int) -> int:
        nonlocal left
        done = 0
        client = await _nats_connect(server)
        stream = client.jetstream(timeout=FETCH_TIMEOUT_S)
        reader = await stream.pull_subscribe(SUBJECT, durable=GROUP, stream=STREAM, config=config)
        while left > 0:
            try:
                messages = await reader.fetch(TAKEN, timeout=1)
            except TimeoutError:
                continue  # the others have the last jobs
            await asyncio.gather(*(message.ack_sync(FETCH_TIMEOUT_S) for message in messages))
            done += len(messages)
            left -= len(messages)
        await client.close()
        return done

    return await _all_workers(server, jobs, worker)


async def _all_workers(server: RunningServer, jobs: int, worker: Callable[[int], Any]) -> Numbers:
    cpu_s = server.cpu_s()
    started_ns = time.perf_counter_ns()
    done = sum(await asyncio.gather(*(worker(number) for number in range(WORKERS))))
    return _numbers(jobs, done, time.perf_counter_ns() - started_ns, server, cpu_s)
