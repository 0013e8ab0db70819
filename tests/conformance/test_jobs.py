"""Jobs over the wire (additions to section 10): members of records, settings of a job queue, failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_queue import made, seqs_of, settle
from tests.support.http_cases import Api, assert_error, running, taken

JOB_MEMBERS: dict[str, object] = {
    "delay_ms": 0,
    "run_at": 1,
    "priority": 1,
    "unique_key": "u",
    "concurrency_key": "c",
    "max_deliveries": 1,
}


def enqueue(api: Api, *members: dict[str, object], queue: str = "q") -> Any:
    return taken(api.append(queue, [{"data": place, **each} for place, each in enumerate(members)]))


# --- Members of records -----------------------------------------------------------------------------------


@pytest.mark.parametrize("member", JOB_MEMBERS)
def test_a_member_of_jobs_on_a_log_is_409(api: Api, member: str) -> None:
    api.put("log")
    reply = api.append("log", [{"data": 1, member: JOB_MEMBERS[member]}])
    assert_error(reply, 409, "not_a_queue")
    assert reply.json["error"]["detail"] == {"topic": "log"}
    assert taken(api.state("log"))["head_seq"] == 0
    taken(api.append("log", [{"data": 1, member: None}]))


@pytest.mark.parametrize(
    "members",
    [
        {"delay_ms": 31_536_000_001},
        {"delay_ms": -1},
        {"delay_ms": 0.5},
        {"delay_ms": 1, "run_at": 1},
        {"run_at": "now"},
        {"priority": 1001},
        {"priority": -1001},
        {"priority": True},
        {"unique_key": ""},
        {"unique_key": "u" * 257},
        {"concurrency_key": ""},
        {"concurrency_key": 7},
        {"max_deliveries": -1},
    ],
)
def test_a_wrong_member_is_400_and_nothing_is_appended(api: Api, members: dict[str, object]) -> None:
    made(api, 0)
    assert_error(api.append("q", [{"data": 1}, {"data": 2, **members}]), 400, "invalid_request")
    assert taken(api.state("q"))["head_seq"] == 0


def test_members_come_back_on_claim(api: Api) -> None:
    made(api, 0)
    enqueue(api, {"priority": -7, "unique_key": "u", "concurrency_key": "c", "max_deliveries": 3}, {})
    first, second = taken(api.claim("q", max=2))["claimed"]
    if first["$seq"] == 2:
        first, second = second, first
    assert (first["priority"], first["unique_key"]) == (-7, "u")
    assert (first["concurrency_key"], first["max_deliveries"]) == ("c", 3)
    assert set(second) == {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}


def test_delayed_jobs_are_neither_ready_nor_claimed(api: Api) -> None:
    made(api, 0)
    enqueue(api, {"delay_ms": 3_600_000}, {"run_at": 4_000_000_000_000}, {"delay_ms": 0}, {"run_at": 1})
    assert seqs_of(api.claim("q", max=9)) == [3, 4]
    assert taken(api.state("q"))["queue"] == {"ready": 0, "in_flight": 2, "dead_lettered": 0}


def test_claims_go_by_bands_of_priority_then_by_seq(api: Api) -> None:
    made(api, 0)
    enqueue(api, {}, {"priority": 249}, {"priority": 250}, {"priority": 1000}, {"priority": -1})
    assert seqs_of(api.claim("q", max=9)) == [4, 3, 1, 2, 5]


# --- Unique keys ------------------------------------------------------------------------------------------


def test_a_unique_job_is_appended_once(api: Api) -> None:
    made(api, 0)
    first = enqueue(api, {"unique_key": "a"}, {})
    assert (first["seqs"], first["unique_hits"], first["count"]) == ([1, 2], 0, 2)
    again = enqueue(api, {}, {"unique_key": "a"}, {"unique_key": "b"})
    assert (again["seqs"], again["unique_hits"]) == ([3, 1, 4], 1)
    assert (again["first_seq"], again["last_seq"], again["count"]) == (3, 4, 2)
    none = enqueue(api, {"unique_key": "b"})
    assert (none["seqs"], none["unique_hits"], none["count"], none["head_seq"]) == ([4], 1, 0, 4)
    assert {"first_seq", "last_seq"}.isdisjoint(none)
    api.claim("q")
    settle(api, "ack", "q", [1])
    assert enqueue(api, {"unique_key": "a"})["seqs"] == [5]


# --- Settings ---------------------------------------------------------------------------------------------


def test_the_settings_of_jobs_are_kept_and_shown(api: Api) -> None:
    settings = {
        "concurrency_limit": 3,
        "rate_limit": {"count": 5, "per_ms": 1000, "by": "key"},
        "retry": {"base_ms": 10, "factor": 1.5, "max_ms": 100, "jitter": 0.5},
        "unique_window_ms": 7,
        "paused": True,
    }
    config = taken(api.put("q", type="queue", **settings), 201)["config"]
    assert settings.items() <= config.items()
    assert settings.items() <= taken(api.put("log", **settings), 201)["config"].items()


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency_limit": -1},
        {"rate_limit": {"count": 0, "per_ms": 1, "by": "queue"}},
        {"rate_limit": {"count": 1, "per_ms": 0, "by": "queue"}},
        {"rate_limit": {"count": 1, "per_ms": 1, "by": "node"}},
        {"rate_limit": 5},
        {"retry": {"base_ms": -1}},
        {"retry": {"factor": 0.5}},
        {"retry": {"jitter": 2}},
        {"unique_window_ms": -1},
        {"paused": "yes"},
    ],
)
def test_wrong_settings_of_jobs_are_400(api: Api, settings: dict[str, object]) -> None:
    assert_error(api.put("q", type="queue", **settings), 400, "invalid_request")


def test_a_key_has_one_lease_at_a_time(api: Api) -> None:
    made(api, 0)
    enqueue(api, *({"concurrency_key": key} for key in "aab"))
    assert seqs_of(api.claim("q", max=9)) == [1, 3]
    assert seqs_of(api.claim("q", max=9)) == []
    settle(api, "ack", "q", [1])
    assert seqs_of(api.claim("q", max=9)) == [2]


def test_a_rate_passes_jobs_over(api: Api) -> None:
    made(api, 3, rate_limit={"count": 2, "per_ms": 86_400_000, "by": "queue"})
    assert seqs_of(api.claim("q", max=9)) == [1, 2]
    settle(api, "nack", "q", [1])
    assert seqs_of(api.claim("q", max=9)) == []
    assert taken(api.state("q"))["queue"]["ready"] == 2


def test_limits_and_unique_keys_survive_a_restart(tmp_path: Path) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        made(api, 0, leases_durable=True, rate_limit={"count": 2, "per_ms": 86_400_000, "by": "queue"})
        enqueue(api, {"concurrency_key": "a", "unique_key": "u"}, {"concurrency_key": "a"}, {})
        assert seqs_of(api.claim("q", max=9)) == [1, 3]
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        assert seqs_of(api.claim("q", max=9)) == []
        assert enqueue(api, {"unique_key": "u"})["seqs"] == [1]


# --- Failures ---------------------------------------------------------------------------------------------


def test_a_nack_without_a_delay_waits_as_retry_says(api: Api) -> None:
    made(api, 2, retry={"base_ms": 3_600_000})
    api.claim("q", max=2)
    settle(api, "nack", "q", [1])
    settle(api, "nack", "q", [2], delay_ms=0)
    assert seqs_of(api.claim("q", max=2)) == [2]


def test_dead_letters_tell_the_last_error(api: Api) -> None:
    made(api, 1, max_deliveries=1, dead_letter="dead")
    api.claim("q")
    settle(api, "nack", "q", [1], error={"type": "ValueError", "message": "no price", "trace": "x" * 9000})
    assert seqs_of(api.claim("q")) == []
    (letter,) = taken(api.diff("dead"))["records"]
    assert letter["meta"]["$dead_letter_error"] == {"type": "ValueError", "message": "no price"}
