"""Jobs over the wire: bounds of members, failures and expiry, unique keys over the ends of jobs, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_jobs import enqueue, jobs_of, post
from tests.conformance.test_queue import made, seqs_of, settle
from tests.support.http_cases import Api, RunningServer, assert_error, running, taken, topic_path

ERROR = {"type": "ValueError", "message": "boom", "trace": "line 1"}


def job(api: Api, seq: int, queue: str = "q") -> Any:
    return taken(api.request("GET", topic_path(queue, f"jobs/{seq}")))


def unique(api: Api, *keys: str, queue: str = "q", **fields: object) -> Any:
    return taken(api.append(queue, [{"data": key, "unique_key": key} for key in keys], **fields))


# --- Members ----------------------------------------------------------------------------------------------


def test_members_of_jobs_may_be_at_their_bounds(api: Api) -> None:
    made(api, 0)
    enqueue(
        api,
        {"delay_ms": 31_536_000_000, "priority": -1000},
        {"priority": 1000, "unique_key": "ä" * 128, "concurrency_key": "u" * 256, "max_deliveries": 0},
    )
    (only,) = taken(api.claim("q", max=9))["claimed"]
    assert (only["$seq"], only["priority"], only["max_deliveries"]) == (2, 1000, 0)
    assert_error(api.append("q", [{"data": 1, "unique_key": "ä" * 129}]), 400, "invalid_request")


def test_a_job_rises_a_band_with_every_ten_seconds_that_it_waits(server: RunningServer, api: Api) -> None:
    made(api, 0)
    enqueue(api, {})
    server.clock.advance_ms(10_001)
    enqueue(api, {"priority": 250}, {"priority": 500})
    assert seqs_of(api.claim("q", max=9)) == [3, 1, 2]


def test_max_deliveries_of_a_job_wins_over_that_of_its_queue(api: Api) -> None:
    made(api, 0, max_deliveries=1, dead_letter="dead")
    enqueue(api, {"max_deliveries": 2}, {"max_deliveries": 0}, {})
    for wanted in ([1, 2, 3], [1, 2], [2], [2]):
        assert seqs_of(api.claim("q", max=9)) == wanted
        settle(api, "nack", "q", wanted)
    deliveries = [each["meta"]["$dead_letter_deliveries"] for each in taken(api.diff("dead"))["records"]]
    assert deliveries == ["1", "2"]


# --- Failures ---------------------------------------------------------------------------------------------


def test_an_error_is_cut_to_8_kib(api: Api) -> None:
    made(api, 1)
    api.claim("q")
    settle(api, "nack", "q", [1], error={"type": "T", "message": "m" * 5000, "trace": "ü" * 5000})
    kept = job(api, 1)["last_error"]
    assert (kept["type"], kept["message"]) == ("T", "m" * 5000)
    assert 8190 <= sum(len(text.encode()) for text in kept.values()) <= 8192


@pytest.mark.parametrize("fields", [{"error": "x"}, {"error": {"type": 5}}, {"delay_ms": -1}])
def test_a_wrong_nack_is_400_and_the_lease_goes_on(api: Api, fields: dict[str, object]) -> None:
    made(api, 1)
    api.claim("q")
    assert_error(api.settle("nack", "q", [1], **fields), 400, "invalid_request")
    assert job(api, 1)["state"] == "leased"


def test_an_expired_lease_is_a_failed_attempt_and_the_last_ten_are_kept(
    server: RunningServer, api: Api
) -> None:
    made(api, 1, lease_ms=1000)
    for _ in range(12):
        assert seqs_of(api.claim("q")) == [1]
        server.clock.advance_ms(1001)
    found = job(api, 1)
    assert (found["state"], found["deliveries"], found["last_error"]) == ("failed", 12, None)
    assert [each["delivery"] for each in found["attempts"]] == list(range(3, 13))
    assert {each["outcome"] for each in found["attempts"]} == {"expired"}
    counts = jobs_of(api)["counts"]
    assert (counts["failed"], counts["failed_total"], counts["ready"]) == (1, 12, 0)


def test_a_job_that_was_returned_without_an_error_has_not_failed(api: Api) -> None:
    made(api, 2)
    api.claim("q", max=2)
    settle(api, "nack", "q", [1])
    settle(api, "nack", "q", [2], delay_ms=3_600_000)
    assert [each["state"] for each in jobs_of(api)["jobs"]] == ["ready", "delayed"]
    assert job(api, 1)["attempts"][0]["outcome"] == "nacked"
    assert jobs_of(api)["counts"]["failed_total"] == 0


def test_the_delay_of_retry_grows_with_each_delivery_up_to_its_most(server: RunningServer, api: Api) -> None:
    made(api, 1, retry={"base_ms": 1000, "factor": 3, "max_ms": 5000, "jitter": 0})
    for delay_ms in (1000, 3000, 5000, 5000):
        assert seqs_of(api.claim("q")) == [1]
        settle(api, "nack", "q", [1], error=ERROR)
        found = job(api, 1)
        assert found["run_at"] - found["attempts"][-1]["ended_ts"] == delay_ms
        server.clock.advance_ms(delay_ms)


# --- Unique keys ------------------------------------------------------------------------------------------


def test_a_unique_key_is_free_after_ack_cancel_purge_and_dead_letter(api: Api) -> None:
    made(api, 0, max_deliveries=1, dead_letter="dead")
    unique(api, "dead", "acked", "cancelled", "purged", "live")
    api.claim("q", max=2)
    settle(api, "ack", "q", [2])
    settle(api, "nack", "q", [1])
    taken(post(api, "jobs/cancel", seqs=[3]))
    taken(post(api, "purge", filter=["data", "Eq", "purged"]))
    assert seqs_of(api.claim("q", max=9)) == [5]
    again = unique(api, "dead", "acked", "cancelled", "purged", "live")
    assert (again["seqs"], again["unique_hits"], again["count"]) == ([6, 7, 8, 9, 5], 1, 4)


def test_a_unique_key_counts_until_its_window_ends(server: RunningServer, api: Api) -> None:
    made(api, 0, unique_window_ms=60_000)
    unique(api, "a")
    api.claim("q")
    settle(api, "ack", "q", [1])
    assert unique(api, "a")["seqs"] == [1]
    server.clock.advance_ms(60_001)
    assert unique(api, "a")["seqs"] == [2]


def test_unique_and_idempotency_keys_go_together(api: Api) -> None:
    made(api, 0)
    first = unique(api, "a", "a", "b", idempotency_key="i")
    again = unique(api, "a", "a", "b", idempotency_key="i")
    assert (first["seqs"], first["unique_hits"]) == ([1, 1, 2], 1)
    assert again["deduped"] is True
    same = ("seqs", "unique_hits", "count", "first_seq", "last_seq", "head_seq")
    assert [again[name] for name in same] == [first[name] for name in same]


# --- Limits -----------------------------------------------------------------------------------------------


def test_a_key_has_as_many_leases_as_the_limit_says(server: RunningServer, api: Api) -> None:
    made(api, 0, concurrency_limit=2, lease_ms=1000)
    enqueue(api, *({"concurrency_key": key} for key in "aaabbb"))
    assert seqs_of(api.claim("q", max=9)) == [1, 2, 4, 5]
    settle(api, "nack", "q", [1], delay_ms=3_600_000)
    assert seqs_of(api.claim("q", max=9)) == [3]
    server.clock.advance_ms(1001)
    assert seqs_of(api.claim("q", max=9)) == [2, 3, 4, 5]


def test_a_rate_by_key_leaves_jobs_without_a_key_alone(server: RunningServer, api: Api) -> None:
    rate = {"count": 1, "per_ms": 60_000, "by": "key"}
    made(api, 0, concurrency_limit=9, rate_limit=rate, lease_ms=3_600_000)
    enqueue(api, *({"concurrency_key": key} for key in "aab"), {}, {})
    assert seqs_of(api.claim("q", max=9)) == [1, 3, 4, 5]
    settle(api, "ack", "q", [1])
    server.clock.advance_ms(59_000)
    assert seqs_of(api.claim("q", max=9)) == []
    server.clock.advance_ms(1001)
    assert seqs_of(api.claim("q", max=9)) == [2]


# --- Operators --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        *(("POST", "jobs/cancel", {"seqs": []}), ("POST", "jobs/retry", {"seqs": []})),
        *(("POST", "pause", None), ("POST", "resume", None), ("POST", "purge", {"all": True})),
    ],
)
def test_calls_of_operators_are_for_job_queues(api: Api, method: str, path: str, body: object) -> None:
    api.put("log")
    assert_error(api.request(method, topic_path("log", path), body), 409, "not_a_queue", topic="log")
    reply = api.request(method, topic_path("absent", path), body)
    assert_error(reply, 404, "topic_not_found", topic="absent")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("jobs/cancel", {}), ("jobs/cancel", {"seqs": ["1"]}), ("jobs/retry", {"seqs": [-1]})),
        *(("purge", {}), ("purge", {"all": False}), ("purge", {"all": True, "filter": ["tag", "Eq", "a"]})),
        *(("redrive", {"limit": -1}), ("redrive", {"to": 5}), ("redrive", {"to": "q"})),
        ("redrive", {"filter": 5}),
    ],
)
def test_a_wrong_call_of_an_operator_is_400_and_changes_nothing(
    api: Api, path: str, body: dict[str, Any]
) -> None:
    made(api, 2)
    assert_error(post(api, path, **body), 400, "invalid_request")
    assert taken(api.state("q"))["queue"]["ready"] == 2


def test_a_pause_leaves_enqueue_ack_nack_extend_and_expiry_alone(server: RunningServer, api: Api) -> None:
    made(api, 3, lease_ms=1000)
    api.claim("q", max=3)
    taken(post(api, "pause"))
    api.fill("q", 4)
    assert settle(api, "ack", "q", [1])["acked"] == 1
    assert settle(api, "nack", "q", [2], error=ERROR)["nacked"] == 1
    assert settle(api, "extend", "q", [3], lease_ms=5000)["extended"] == 1
    server.clock.advance_ms(5001)
    assert [each["state"] for each in jobs_of(api)["jobs"]] == ["failed", "failed", "ready"]
    assert seqs_of(api.claim("q", max=9)) == []
    taken(post(api, "resume"))
    assert seqs_of(api.claim("q", max=9)) == [2, 3, 4]


@pytest.mark.parametrize("end", ["ack", "nack", "expiry"])
def test_a_leased_job_that_is_cancelled_goes_when_its_lease_ends(
    server: RunningServer, api: Api, end: str
) -> None:
    made(api, 1, lease_ms=1000)
    api.claim("q")
    assert taken(post(api, "jobs/cancel", seqs=[1]))["cancelled"] == 1
    assert job(api, 1)["state"] == "leased"
    if end == "expiry":
        server.clock.advance_ms(1001)
    else:
        assert settle(api, end, "q", [1])["skipped"] == []
    assert seqs_of(api.claim("q")) == []
    assert taken(api.state("q"))["count"] == 0
    assert jobs_of(api)["counts"]["done_total"] == (end == "ack")


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_totals_failures_and_pauses_survive_a_restart(tmp_path: Path, durability: str) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        made(api, 4, durability=durability, leases_durable=True, max_deliveries=1, dead_letter="dead")
        api.claim("q", max=3)
        settle(api, "ack", "q", [1])
        settle(api, "nack", "q", [2], error=ERROR)
        assert seqs_of(api.claim("q", max=1)) == [4]  # job 2 is a dead letter now
        settle(api, "nack", "q", [4], error=ERROR, delay_ms=3_600_000)
        taken(post(api, "pause"))
        before = jobs_of(api)
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        after = jobs_of(api)
        assert after["counts"] == before["counts"]
        assert after["jobs"] == before["jobs"]
        assert (after["counts"]["done_total"], after["counts"]["dead_lettered"]) == (1, 1)
        assert taken(api.state("q"))["config"]["paused"] is True
        (attempt,) = job(api, 4)["attempts"]
        assert (attempt["outcome"], attempt["error"]) == ("nacked", ERROR)
