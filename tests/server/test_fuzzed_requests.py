"""Broken requests against a real server, thousands of ways: refused or closed, and no other client notices.

Requests of every route are cut, spliced, flipped and blown up by a seeded generator. Whatever comes, the
answer is no 5xx, the process keeps its size, and a well-behaved client beside it is served all the time.
"""

from __future__ import annotations

import os
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.counted import FUZZED_REQUESTS, counts
from tests.support.effort import effort
from tests.support.fuzzing import mutated
from tests.support.processes import eventually, resources_of
from tests.support.request_samples import INTERESTING, REQUESTS, request
from tests.support.server_clients import PlainClient
from tests.support.server_processes import ServerProcess, running_server
from tests.support.watch_servers import upgrade_request

CASES = int(os.environ.get("FUZZ_CASES", effort(400)))
SEED = int(os.environ.get("TEST_SEED", "7"))
GROWTH_MAX_BYTES = 64 * 2**20
WITNESS_PATIENCE_S = 10.0


def exchange(address: tuple[str, int], data: bytes, rng: random.Random) -> list[int]:
    """Send it in pieces and hang up behind it; return the statuses of all answers, 0 for a plain close."""
    received = b""
    with socket.create_connection(address, timeout=20) as sock:
        try:
            for piece in pieces_of(data, rng):
                sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)
            while content := sock.recv(65536):
                received += content
        except ConnectionError:
            pass  # the server refused and went; so may what it said
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)] or [0]


def pieces_of(data: bytes, rng: random.Random) -> Iterator[bytes]:
    start = 0
    for cut in sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(3))):
        yield data[start:cut]
        start = cut
    yield data[start:]


@contextmanager
def witness(url: str) -> Iterator[list[float]]:
    """A client that writes and reads all the time; gives how long each of its requests took."""
    times_s: list[float] = []
    problems: list[str] = []
    is_over = threading.Event()

    def work() -> None:
        with PlainClient(url) as client:
            client.ask("DELETE", "/topics/witness")
            for number in range(10**9):
                if is_over.is_set():
                    return
                started_s = time.monotonic()
                appended = client.append("witness", [{"data": number}])
                read = client.diff("witness", number)
                times_s.append(time.monotonic() - started_s)
                if [record["data"] for record in read.json.get("records", ())] != [number]:
                    problems.append(f"{appended} {read}")
                    return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually("the witness is served", lambda: times_s or problems)
        yield times_s
    finally:
        is_over.set()
        thread.join()
    assert problems == []
    assert times_s
    assert max(times_s) < WITNESS_PATIENCE_S


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("server")
    (folder / "server.toml").write_text("max_body_bytes = 1_000_000\n")
    with running_server(folder, "--config", folder / "server.toml") as started:
        yield started
        code, _, errors = started.stop()
        assert code == 0
        assert "Traceback" not in errors


def test_no_mutation_of_a_request_disturbs_the_server_or_its_other_clients(server: ServerProcess) -> None:
    rng = random.Random(SEED)
    address = ("127.0.0.1", server.port)
    pid = server.command.process.pid
    statuses: Counter[int] = Counter()
    with witness(server.url):
        for _ in range(20):
            exchange(address, mutated(rng, REQUESTS, INTERESTING), rng)
        before = resources_of(pid)
        for number in range(CASES):
            data = mutated(rng, REQUESTS, INTERESTING)
            answers = exchange(address, data, rng)
            statuses.update(answers)
            counts[FUZZED_REQUESTS] += 1
            assert all(status < 500 for status in answers), f"TEST_SEED={SEED}, case {number}: {data!r}"
    eventually("the connections are gone", lambda: resources_of(pid).descriptors <= before.descriptors)
    assert resources_of(pid).resident_bytes < before.resident_bytes + GROWTH_MAX_BYTES
    assert {200, 400} <= set(statuses), statuses


@pytest.mark.parametrize(
    "opening",
    [
        request("POST", "/v0/topics/t", None, "Content-Type: application/json", "Content-Length: 900000"),
        b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /v0/topics HTTP/1.1\r\nHost: localhost\r\nX: ",
        upgrade_request() + b"\x01\xfe\xff\xff\0\0\0\0",
        b"",
    ],
    ids=["bodies", "chunks", "headers", "messages", "nothing"],
)
def test_many_requests_that_never_end_cost_little_and_delay_no_others(
    server: ServerProcess, opening: bytes
) -> None:
    pid = server.command.process.pid
    with witness(server.url) as times_s:
        before = resources_of(pid)
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for sock in sockets:
            sock.sendall(opening + b"A" * 20_000 * bool(opening))
        already = len(times_s)
        eventually("the others are served", lambda: len(times_s) > already + 20)
        assert resources_of(pid).resident_bytes < before.resident_bytes + GROWTH_MAX_BYTES
        for sock in sockets:
            sock.close()
        eventually("the connections are gone", lambda: resources_of(pid).descriptors <= before.descriptors)
