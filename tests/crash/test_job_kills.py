"""`kill -9` of a server that gives out jobs: limits stay exact, and schedules fire once for each instant.

The server says in each lease when it was given out: its deadline less its length. So rates are checked by the
server's own times. A lease is live for certain until its worker has sent the ack, or until its deadline;
whatever a killed server did besides, more of these than the limit are a fault.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.processes import eventually, fresh_seed
from tests.support.server_clients import PlainClient
from tests.support.server_processes import ServerProcess, ServerThreads, running_server

LONG_ROUNDS = int(os.environ.get("CRASH_ROUNDS", "300")) // 20
KEYS = ("a", "b", "c")
RATE = 4
PER_MS = 2000  # longer than a restart, so that each window begins before one
LIMIT = 2
LEASE_MS = 3000
JOBS = 5000
CONFIG = {"type": "queue", "leases_durable": True, "lease_ms": LEASE_MS}


class Lease(NamedTuple):
    """One claim of a job; `ended_ms` is when it may have ended, by the clock of this host."""

    key: str
    seq: int
    claimed_ms: int
    ended_ms: int


class Claimer:
    """Claims jobs of one queue, of whichever server runs, and notes each lease."""

    def __init__(self, server: ServerProcess, queue: str, number: int, acked_share: float) -> None:
        self._server = server
        self._queue = queue
        self._node = f"{queue}-{number}"
        self._rng = random.Random(number)
        self._acked_share = acked_share
        self.leases: list[Lease] = []

    def work(self) -> None:
        while self._server.await_up():
            with PlainClient(self._server.url) as client:
                try:
                    while not self._server.is_over.is_set():
                        self._claim(client)
                except OSError:
                    self._server.is_over.wait(0.02)  # it was killed

    def _claim(self, client: PlainClient) -> None:
        reply = client.ask("POST", f"/topics/{self._queue}/claim", {"node": self._node, "max": 2})
        if reply.status != 200:
            assert reply.code in ("not_ready", "shutting_down"), reply
            raise ConnectionError("the server is not up")
        for job in reply.json["claimed"]:
            self._finish(client, job)
        if not reply.json["claimed"]:
            self._server.is_over.wait(0.01)

    def _finish(self, client: PlainClient, job: dict[str, Any]) -> None:
        seq, deadline_ms = job["$seq"], job["deadline"]
        place = len(self.leases)
        self.leases.append(Lease(job["concurrency_key"], seq, deadline_ms - LEASE_MS, deadline_ms))
        if self._rng.random() < self._acked_share:
            sent_ms = time.time_ns() // 1_000_000
            self.leases[place] = self.leases[place]._replace(ended_ms=min(sent_ms, deadline_ms))
            body = {"node": self._node, "seqs": [seq], "lease_ids": [job["lease_id"]]}
            client.ask("POST", f"/topics/{self._queue}/ack", body)


def prepare(server: ServerProcess, durability: str) -> None:
    """Two job queues with limits and jobs enough, and a schedule for every second."""
    with PlainClient(server.url) as client:
        rate = {"count": RATE, "per_ms": PER_MS, "by": "key"}
        queues = {
            "rated": {"rate_limit": rate, "concurrency_limit": 1000},
            "limited": {"concurrency_limit": LIMIT},
        }
        for name, limits in queues.items():
            assert (
                client.ask("PUT", f"/topics/{name}", {**CONFIG, **limits, "durability": durability}).status
                == 201
            )
            jobs = [{"data": 1, "concurrency_key": KEYS[place % 3]} for place in range(JOBS)]
            assert client.append(name, jobs).status == 200
        assert client.ask("PUT", "/topics/ticks", {"durability": durability}).status == 201
        fields = {"topic": "ticks", "cron": "* * * * * *", "record": {"data": "tick"}, "catch_up": "all"}
        assert client.ask("PUT", "/schedules/every-second", fields).status == 201


def ticks_of(server: ServerProcess) -> list[int]:
    """The instants of all records that the schedule has appended, in their order."""
    found: list[int] = []
    cursor = 0
    with PlainClient(server.url) as client:
        while True:
            page = client.diff("ticks", cursor).json
            found += [record["meta"]["$scheduled_ts"] for record in page["records"]]
            cursor = page["next_from_seq"]
            if page["caught_up"]:
                return found


def check_rate(leases: list[Lease]) -> None:
    """No key was claimed more often in any window than its rate allows."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for lease in leases:
        by_key[lease.key].append(lease.claimed_ms)
    for key, times in by_key.items():
        times.sort()
        short = [
            (first, last) for first, last in zip(times, times[RATE:], strict=False) if last - first < PER_MS
        ]
        assert short == [], f"key {key}: {RATE + 1} claims within less than {PER_MS} ms"


def check_leases(leases: list[Lease]) -> None:
    """No key ever had more live leases than the limit."""
    changes = [
        change
        for lease in leases
        for change in ((lease.claimed_ms, 1, lease.key), (lease.ended_ms, -1, lease.key))
        if lease.claimed_ms < lease.ended_ms
    ]
    live: dict[str, int] = defaultdict(int)
    for at_ms, change, key in sorted(changes):
        live[key] += change
        assert live[key] <= LIMIT, f"key {key} has {live[key]} leases at {at_ms}"


def live_at(leases: list[Lease], at_ms: int) -> int:
    """How many leases were live for certain."""
    return sum(lease.claimed_ms < at_ms < lease.ended_ms for lease in leases)


def kill_and_check(folder: Path, durability: str, rounds: int) -> None:
    """Kill a server while jobs are claimed, again and again, and check all that was seen of it."""
    rng = random.Random(fresh_seed("job kills"))
    with running_server(folder) as server:
        prepare(server, durability)
        rated = [Claimer(server, "rated", number, 1.0) for number in range(2)]
        limited = [Claimer(server, "limited", number, 0.5) for number in range(2)]
        threads = ServerThreads(server)
        for claimer in (*rated, *limited):
            threads.start(claimer.work)
        kills: list[int] = []
        for _ in range(rounds):
            before = [sum(len(each.leases) for each in claimers) for claimers in (rated, limited)]

            def has_claimed(before: list[int] = before) -> bool:
                threads.check()
                after = (sum(len(each.leases) for each in claimers) for claimers in (rated, limited))
                return all(now > then for now, then in zip(after, before, strict=True))

            eventually("jobs of both queues were claimed", has_claimed)
            threading.Event().wait(rng.uniform(0, 0.3))  # anywhere in what the server does
            kills.append(time.time_ns() // 1_000_000)
            server.kill()
            server.begin()
            server.await_ready()
        eventually("the schedule has caught up", lambda: ticks_of(server)[-1] > kills[-1])
        ticks = ticks_of(server)
        threads.join()
        leases = [lease for claimer in limited for lease in claimer.leases]
        check_rate([lease for claimer in rated for lease in claimer.leases])
        check_leases(leases)
        assert any(live_at(leases, killed) for killed in kills), (
            "no lease was live when the server was killed"
        )
        assert ticks == list(range(ticks[0], ticks[-1] + 1, 1000)), "an instant is missing, or twice there"


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_limits_are_exact_and_schedules_fire_once_over_kills(tmp_path: Path, durability: str) -> None:
    kill_and_check(tmp_path, durability, 2)


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_limits_are_exact_and_schedules_fire_once_over_many_kills(tmp_path: Path, durability: str) -> None:
    kill_and_check(tmp_path, durability, LONG_ROUNDS)


def test_the_checks_find_a_limit_that_was_passed() -> None:
    over = [Lease("a", seq, 1000, 2000) for seq in range(LIMIT + 1)]
    check_leases(over[:LIMIT])
    check_leases([*over[:LIMIT], Lease("a", 9, 2000, 3000), Lease("b", 8, 1000, 2000)])
    with pytest.raises(AssertionError, match="key a has 3 leases"):
        check_leases(over)
    fast = [Lease("a", seq, 100 * seq, 0) for seq in range(RATE)]
    check_rate([*fast, Lease("a", 9, PER_MS, 0)])
    with pytest.raises(AssertionError, match="5 claims within"):
        check_rate([*fast, Lease("a", 9, PER_MS - 1, 0)])
