"""GET /work over real sockets: who gets which job, when, and what happens when a worker goes away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.work_client import WorkClient, WorkFrame
from tests.support.http_cases import RunningServer, running, settings_of, taken

QUIET_S = 0.15


class Workshop:
    """A server with one queue, and the workers that were connected to it."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.api = server.api()
        self._clients: list[WorkClient] = []

    def make(self, jobs: int = 0, **config: object) -> None:
        taken(self.api.put("q", type="queue", **config), 201)
        if jobs:
            self.api.fill("q", *range(1, jobs + 1))

    def worker(self, node: str = "w", **fields: Any) -> WorkClient:
        client = WorkClient(self.server.server.address, "q", node, **fields)
        self._clients.append(client)
        return client

    def settle(self, verb: str, seqs: list[int], node: str = "w", **fields: object) -> Any:
        return taken(self.api.settle(verb, "q", seqs, node, **fields))

    def counts(self) -> tuple[int, int]:
        queue = taken(self.api.state("q"))["queue"]
        return queue["ready"], queue["in_flight"]

    def until_in_flight(self, count: int) -> None:
        self.server.until(lambda: self._in_flight() == count)

    def _in_flight(self) -> int:
        engine = self.server.app.engine
        assert engine is not None
        queue = engine.state("q", touch=False).queue
        assert queue is not None
        return queue.in_flight

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def shop() -> Iterator[Workshop]:
    with running() as server:
        workshop = Workshop(server)
        yield workshop
        workshop.close()
        assert server.complaints == []


def test_a_worker_gets_the_backlog_and_then_what_comes(shop: Workshop) -> None:
    shop.make(2)
    worker = shop.worker(max=10).start()
    assert worker.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert worker.headers["cache-control"] == "no-store"
    job = worker.job()
    assert set(job) == {"topic", "$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
    assert (job["topic"], job["$seq"], job["deliveries"], job["data"]) == ("q", 1, 1, 1)
    assert worker.jobs(1) == [2]
    shop.api.fill("q", 3)
    assert worker.jobs(1) == [3]
    assert shop.counts() == (0, 3)


def test_never_more_leases_than_max_and_room_is_filled_at_once(shop: Workshop) -> None:
    shop.make(6)
    worker = shop.worker(max=2).start()
    assert worker.jobs(2) == [1, 2]
    assert worker.is_silent(QUIET_S)
    assert shop.counts() == (4, 2)
    started_s = time.monotonic()
    shop.settle("ack", [1])
    assert worker.jobs(1) == [3]
    shop.settle("nack", [2])
    assert worker.jobs(1) == [2]
    shop.settle("nack", [3], delay_ms=60_000)
    assert worker.jobs(1) == [4]
    assert time.monotonic() - started_s < 2.0
    assert shop.counts() == (2, 2)


def test_one_job_at_a_time_unless_asked_for_more(shop: Workshop) -> None:
    shop.make(2)
    worker = shop.worker().start()
    assert worker.jobs(1) == [1]
    assert worker.is_silent(QUIET_S)


@pytest.mark.parametrize("max_jobs", ["0", "1"])
def test_max_is_at_least_one(shop: Workshop, max_jobs: str) -> None:
    shop.make(2)
    worker = shop.worker(max=max_jobs).start()
    assert worker.jobs(1) == [1]
    assert worker.is_silent(QUIET_S)


def test_the_jobs_of_a_killed_worker_go_to_the_next_one_within_milliseconds(shop: Workshop) -> None:
    shop.make(1)
    best_s = 10.0
    holder = shop.worker("first").start()
    assert holder.jobs(1) == [1]
    for number in range(5):
        successor = shop.worker(f"next{number}").start()
        started_s = time.monotonic()
        holder.kill()
        job = successor.job()
        best_s = min(best_s, time.monotonic() - started_s)
        assert (job["$seq"], job["deliveries"]) == (1, number + 2)
        holder = successor
    assert best_s < 0.010


def test_closing_a_connection_releases_exactly_its_leases(shop: Workshop) -> None:
    shop.make(4)
    first = shop.worker("w", max=2).start()
    assert first.jobs(2) == [1, 2]
    second = shop.worker("w", max=1).start()
    assert second.jobs(1) == [3]
    shop.settle("ack", [1])
    assert first.jobs(1) == [4]
    taken(shop.api.settle("nack", "q", [2]))
    assert first.jobs(1) == [2]
    first.close()
    shop.until_in_flight(1)
    assert shop.counts() == (2, 1)
    shop.settle("ack", [3])
    assert second.job()["$seq"] == 2


def test_a_lease_that_another_claim_took_over_is_not_released(shop: Workshop) -> None:
    shop.make(1)
    worker = shop.worker(lease_ms=1000).start()
    assert worker.jobs(1) == [1]
    shop.server.clock.advance_ms(1100)
    assert taken(shop.api.claim("q"))["count"] == 1
    worker.close()
    shop.server.until(lambda: not shop.server.server._work.streams)  # type: ignore[union-attr]
    assert shop.counts() == (0, 1)


def test_expiry_gives_the_job_to_a_waiting_worker_and_room_to_its_holder(shop: Workshop) -> None:
    shop.make(2, lease_ms=100)
    holder = shop.worker("holder").start()
    assert holder.jobs(1) == [1]
    waiting = shop.worker("waiting", lease_ms=60_000).start()
    assert waiting.jobs(1) == [2]
    # Its lease ends, no other worker has room: it gets the job again, each time it lets the lease end.
    job = holder.job()
    assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_a_delayed_job_is_pushed_when_its_delay_is_over(shop: Workshop) -> None:
    shop.make(1)
    taken(shop.api.claim("q", "poller"))
    worker = shop.worker().start()
    taken(shop.api.settle("nack", "q", [1], "poller", delay_ms=150))
    started_s = time.monotonic()
    assert worker.jobs(1) == [1]
    assert 0.1 < time.monotonic() - started_s < 2.0


def test_jobs_are_shared_among_workers(shop: Workshop) -> None:
    shop.make(0)
    workers = [shop.worker(f"w{number}", max=10).start() for number in range(3)]
    shop.api.fill("q", *range(6))
    assert sorted(seq for worker in workers for seq in worker.jobs(2)) == [1, 2, 3, 4, 5, 6]


def test_a_window_serves_pollers_and_streams_together(shop: Workshop) -> None:
    shop.make(0, claim_jitter_ms=200)
    worker = shop.worker("stream", max=10).start()
    poller = shop.server.api()
    shop.api.fill("q", 1, 2, 3, 4)
    polled = taken(poller.claim("q", "poller", max=10))
    assert polled["count"] == 2
    assert len(worker.jobs(2)) == 2


def test_an_idle_stream_beats(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlog.server.work_stream.HEARTBEAT_S", 0.05)
    shop.make(0)
    worker = shop.worker().start()
    assert worker.frame() == WorkFrame("heartbeat")
    assert worker.frame() == WorkFrame("heartbeat")


@pytest.mark.parametrize("recreated", [False, True])
def test_the_stream_ends_when_the_topic_is_gone(shop: Workshop, recreated: bool) -> None:
    shop.make(1)
    worker = shop.worker().start()
    assert worker.jobs(1) == [1]
    taken(shop.api.drop("q"))
    if recreated:
        shop.make(1)
    frame = worker.frame()
    assert frame is not None
    assert (frame.event, frame.data["code"]) == ("error", 409)
    assert worker.frame() is None


def test_a_stopping_server_ends_streams_and_frees_their_leases(tmp_path: Path) -> None:
    server = RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)
    shop = Workshop(server)
    shop.make(2, leases_durable=True, durability="fsync")
    worker = shop.worker(max=1).start()
    assert worker.jobs(1) == [1]
    server.stop()
    frame = worker.frame()
    assert frame is not None
    assert (frame.event, frame.data["code"]) == ("error", "server_shutting_down")
    shop.close()
    again = RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)
    try:
        assert taken(again.api().state("q"))["queue"] == {"ready": 2, "in_flight": 0, "dead_lettered": 0}
    finally:
        again.stop()


def test_durable_leases_are_pushed_when_they_are_kept(tmp_path: Path) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        shop = Workshop(server)
        shop.make(3, leases_durable=True, durability="fsync")
        worker = shop.worker(max=2).start()
        assert worker.jobs(2) == [1, 2]
        shop.settle("ack", [1])
        assert worker.jobs(1) == [3]
        shop.close()


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"accept": "application/json"}, 406, "not_acceptable"),
        ({"node": ""}, 400, "invalid_request"),
        ({"node": "n" * 129}, 400, "invalid_request"),
        ({"max": "many"}, 400, "invalid_request"),
        ({"max": "-1"}, 400, "invalid_request"),
        ({"lease_ms": "1.5"}, 400, "invalid_request"),
    ],
)
def test_what_makes_no_sense_is_refused(
    shop: Workshop, fields: dict[str, Any], status: int, code: str
) -> None:
    shop.make(0)
    client = shop.worker(**fields)
    assert (client.status, client.refusal()) == (status, code)


@pytest.mark.parametrize("accept", [None, "", "*/*", "text/event-stream"])
def test_every_usual_accept_header_is_fine(shop: Workshop, accept: str | None) -> None:
    shop.make(0)
    assert shop.worker(accept=accept).status == 200


def test_an_absent_topic_and_a_log_are_refused(shop: Workshop) -> None:
    assert (shop.worker().status, shop.worker().refusal()) == (404, "topic_not_found")
    shop.api.fill("q", 1)
    assert (shop.worker().status, shop.worker().refusal()) == (409, "not_a_queue")


def test_streams_are_capped_and_give_their_slot_back() -> None:
    with running(max_sse_connections=1) as server:
        shop = Workshop(server)
        shop.make(0)
        first = shop.worker().start()
        refused = shop.worker()
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        first.close()
        server.until(lambda: server.server._work.slots.taken == 0)  # type: ignore[union-attr]
        assert shop.worker().status == 200
        shop.close()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 401),
        ({"bearer": "wrong"}, 401),
        ({"bearer": "read"}, 403),
        ({"bearer": "other"}, 403),
        ({"bearer": "both"}, 200),
        ({"token": "both"}, 200),
        ({"token": "write"}, 403),
    ],
)
def test_the_key_comes_in_the_header_or_in_the_query(fields: dict[str, str], status: int) -> None:
    with running(keys="admin,read:r,write:w,both:rw,other:rw:x.") as server:
        taken(server.api("admin").put("q", type="queue"), 201)
        client = WorkClient(server.server.address, "q", **fields)
        assert client.status == status
        client.close()


def test_reading_slowly_costs_no_jobs(shop: Workshop) -> None:
    """A worker that does not read is given nothing more than what fits into its connection."""
    shop.make(0)
    big = "x" * 100_000
    shop.api.fill("q", *[big] * 200)
    worker = shop.worker(max=1000).start()
    shop.server.until(lambda: shop._in_flight() > 0)
    assert shop.counts()[1] <= 1000
    assert worker.jobs(200) == list(range(1, 201))


def test_api_is_told_of_pushed_leases(shop: Workshop) -> None:
    shop.make(1)
    worker = shop.worker(lease_ms=5000).start()
    job = worker.job()
    answer = shop.settle("extend", [1], lease_ids=[job["lease_id"]], lease_ms=60_000)
    assert answer["deadlines"]["1"] > job["deadline"]
