"""Redis Streams through redis-py, against a redis-server of our own on a Unix socket."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from benchmarks.queue.peers.base import Mode, Peer, ReceiveSide, SendSide, Setup

STREAM = b"benchmark"
FIELD = b"p"
PIPELINE_MESSAGES = 500
READ_MESSAGES = 1000
BLOCK_MS = 1000
START_TIMEOUT_S = 10.0
END_TIMEOUT_S = 5.0


class RedisPeer(Peer):
    """One stream in memory (no append-only file, no snapshots); the server may use every core."""

    name = "redis"
    title = "Redis Streams"
    distribution = "redis"
    install_command = "pip install redis && apt-get install redis-server"
    spinning_pace_ns = 1_000_000
    stream_messages = 20_000

    def installed_version(self) -> str | None:
        """Needs the Python package and the server."""
        return super().installed_version() if shutil.which("redis-server") else None

    @contextmanager
    def channel(self, directory: Path) -> Iterator[str]:
        """Start a server; it ends, by its own process id, when the run is over."""
        # Not in `directory`: the path of a Unix socket may have about 100 characters only.
        with tempfile.TemporaryDirectory(prefix="everlog-redis-") as home:
            socket_path = f"{home}/redis.sock"
            server = subprocess.Popen(_server_command(home, socket_path), stdout=subprocess.DEVNULL)
            try:
                _await_server(socket_path)
                yield socket_path
            finally:
                server.terminate()
                try:
                    server.wait(END_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()

    @contextmanager
    def sender(self, setup: Setup) -> Iterator[SendSide]:
        """One XADD a message, or pipelines of them at full speed."""
        with _client(setup.address) as client:
            add = client.xadd

            def send_all(payloads: Iterable[bytes]) -> None:
                remaining = iter(payloads)
                while chunk := list(islice(remaining, PIPELINE_MESSAGES)):
                    pipeline = client.pipeline(transaction=False)
                    for payload in chunk:
                        pipeline.xadd(STREAM, {FIELD: payload})
                    pipeline.execute()

            yield SendSide(
                send=lambda payload, _: add(STREAM, {FIELD: payload}),
                send_all=send_all,
            )

    @contextmanager
    def receiver(self, setup: Setup) -> Iterator[ReceiveSide]:
        """XREAD in a loop, or XREAD BLOCK; many messages a call at full speed."""
        with _client(setup.address) as client:
            block_ms = None if setup.mode is Mode.SPINNING else BLOCK_MS
            read_one = _reader(client, count=1, block_ms=block_ms)
            read_many = _reader(client, count=READ_MESSAGES, block_ms=BLOCK_MS)
            yield ReceiveSide(
                take=lambda: next(iter(read_one()), None),
                wait=None,
                messages=chain.from_iterable(read_many() for _ in repeat(None)),
            )


def _server_command(home: str, socket_path: str) -> list[str]:
    reach = ["--port", "0", "--unixsocket", socket_path]
    in_memory_only = ["--dir", home, "--save", "", "--appendonly", "no"]
    return ["redis-server", *reach, *in_memory_only, "--loglevel", "warning"]


def _client(socket_path: str) -> Any:
    import redis

    return redis.Redis(unix_socket_path=socket_path, protocol=2)


def _reader(client: Any, count: int, block_ms: int | None) -> Callable[[], list[bytes]]:
    position = b"0"

    def read() -> list[bytes]:
        nonlocal position
        reply = client.xread({STREAM: position}, count=count, block=block_ms)
        if not reply:
            return []
        entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
        position = entries[-1][0]
        return [fields[FIELD] for _, fields in entries]

    return read


def _await_server(socket_path: str) -> None:
    import redis

    deadline_s = time.monotonic() + START_TIMEOUT_S
    with _client(socket_path) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError as error:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(
                        f"redis-server did not answer at {socket_path} within {START_TIMEOUT_S} s"
                    ) from error
                time.sleep(0.02)
