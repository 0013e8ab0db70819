"""Jobs over the wire (additions to section 10): members of records, settings of a job queue, failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_queue import made, seqs_of, settle
from tests.support.http_cases import (
    Api,
    Reply,
    assert_error,
    query_text,
    running,
    taken,
    topic_path,
)

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


# --- Looking at jobs --------------------------------------------------------------------------------------

STATE_FIELDS = {
    *("$seq", "$ts", "state", "deliveries", "priority", "run_at", "node", "lease_id", "deadline"),
    *("last_error", "unique_key", "concurrency_key", "max_deliveries", "$tag"),
}
ERROR = {"type": "ValueError", "message": "boom", "trace": "line 1"}


def jobs_of(api: Api, **query: object) -> Any:
    return taken(api.request("GET", topic_path("q", "jobs") + query_text(query)))


def post(api: Api, path: str, topic: str = "q", **body: object) -> Reply:
    return api.request("POST", topic_path(topic, path), body)


def four_states(api: Api) -> None:
    made(api, 0)
    enqueue(api, {"tag": "a"}, {"unique_key": "k"}, {"delay_ms": 3_600_000}, {"concurrency_key": "k"})
    assert seqs_of(api.claim("q", max=2)) == [1, 2]
    settle(api, "nack", "q", [1], error=ERROR)


def test_jobs_are_listed_by_seq_with_their_states(api: Api) -> None:
    four_states(api)
    told = jobs_of(api)
    assert [job["state"] for job in told["jobs"]] == ["failed", "leased", "delayed", "ready"]
    assert told["counts"] == {
        **{"ready": 1, "delayed": 1, "leased": 1, "failed": 1},
        **{"done_total": 0, "failed_total": 1, "dead_lettered": 0},
    }
    failed, leased, delayed, _ = told["jobs"]
    assert all(set(job) <= STATE_FIELDS for job in told["jobs"])
    assert (failed["last_error"], failed["deliveries"], failed["$tag"]) == (ERROR, 1, "a")
    assert leased["node"] == "w"
    assert leased["lease_id"].startswith("lease_")
    assert leased["deadline"] > leased["$ts"]
    assert (delayed["run_at"] - delayed["$ts"], delayed["node"]) == (3_600_000, None)


def test_jobs_are_found_by_state_tag_key_and_filter(api: Api) -> None:
    four_states(api)

    def seqs(**query: object) -> list[int]:
        return [job["$seq"] for job in jobs_of(api, **query)["jobs"]]

    assert seqs(state="leased") == [2]
    assert seqs(tag="a") == [1]
    assert seqs(key="k") == [2, 4]
    assert seqs(filter='["data","Ge",2]') == [3, 4]
    for wrong in ("state=done", "include=all", "filter=x", "cursor=x"):
        assert_error(api.request("GET", topic_path("q", "jobs") + "?" + wrong), 400, "invalid_request")


def test_pages_of_jobs_follow_each_other(api: Api) -> None:
    made(api, 5)
    page = jobs_of(api, limit=2, include="data")
    assert [(job["$seq"], job["data"]) for job in page["jobs"]] == [(1, 1), (2, 2)]
    page = jobs_of(api, limit=2, cursor=page["next_cursor"])
    assert [job["$seq"] for job in page["jobs"]] == [3, 4]
    page = jobs_of(api, limit=2, cursor=page["next_cursor"])
    assert [job["$seq"] for job in page["jobs"]] == [5]
    assert "next_cursor" not in page


def test_one_job_tells_its_attempts(api: Api) -> None:
    four_states(api)
    job = taken(api.request("GET", topic_path("q", "jobs/1")))
    (attempt,) = job["attempts"]
    assert set(attempt) == {"delivery", "node", "claimed_ts", "ended_ts", "outcome", "error"}
    assert (attempt["delivery"], attempt["outcome"], attempt["error"]) == (1, "nacked", ERROR)
    assert job["data"] == 0
    reply = api.request("GET", topic_path("q", "jobs/99"))
    assert_error(reply, 404, "job_not_found")
    assert reply.json["error"]["detail"]["seq"] == 99


@pytest.mark.parametrize("path", ["jobs", "jobs/1"])
def test_a_log_has_no_jobs(api: Api, path: str) -> None:
    api.append("log")
    assert_error(api.request("GET", topic_path("log", path)), 409, "not_a_queue")
    assert_error(api.request("GET", topic_path("absent", path)), 404, "topic_not_found")


# --- Changing jobs ----------------------------------------------------------------------------------------


def test_cancel_and_retry_count_what_they_change(api: Api) -> None:
    four_states(api)
    assert taken(post(api, "jobs/retry", seqs=[1, 3]))["retried"] == 1
    assert taken(post(api, "jobs/cancel", seqs=[2, 3, 77]))["cancelled"] == 2
    assert [job["$seq"] for job in jobs_of(api)["jobs"]] == [1, 2, 4]
    settle(api, "nack", "q", [2])
    assert [job["$seq"] for job in jobs_of(api)["jobs"]] == [1, 4]
    assert taken(post(api, "jobs/cancel", filter=["data", "Eq", 0]))["cancelled"] == 1
    for wrong in ({}, {"seqs": [1], "filter": ["tag", "Eq", "a"]}, {"filter": ["tag"]}):
        assert_error(post(api, "jobs/cancel", **wrong), 400, "invalid_request")
    assert_error(post(api, "jobs/retry", seqs=[1] * 1001), 400, "batch_too_large")


def test_a_delayed_job_that_was_made_due_is_claimed_like_one_without_a_delay(api: Api) -> None:
    made(api, 0)
    enqueue(api, {"delay_ms": 3_600_000}, {"delay_ms": 3_600_000, "priority": 3})
    assert taken(post(api, "jobs/retry", seqs=[1, 2]))["retried"] == 2
    first, second = taken(api.claim("q", max=2))["claimed"]
    assert set(first) == {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
    assert second["priority"] == 3


@pytest.mark.parametrize("keys", ["abcd", "aabb", "abba", "-a-a", "----"])
def test_a_claim_of_many_keys_gives_each_its_limit_and_no_more(api: Api, keys: str) -> None:
    made(api, 0)
    enqueue(api, *({} if key == "-" else {"concurrency_key": key} for key in keys))
    wanted = [seq for seq, key in enumerate(keys, 1) if key == "-" or keys.index(key) == seq - 1]
    assert seqs_of(api.claim("q", max=9)) == wanted
    settle(api, "ack", "q", wanted)
    assert seqs_of(api.claim("q", max=9)) == [seq for seq in range(1, 5) if seq not in wanted]


def test_a_paused_queue_gives_nothing_until_it_is_resumed(api: Api) -> None:
    made(api, 2)
    assert taken(post(api, "pause"))["paused"] is True
    assert seqs_of(api.claim("q")) == []
    api.fill("q", 3)
    assert taken(api.state("q"))["config"]["paused"] is True
    assert taken(post(api, "resume"))["paused"] is False
    assert seqs_of(api.claim("q", max=3)) == [1, 2, 3]
    api.append("log")
    assert_error(post(api, "pause", "log"), 409, "not_a_queue")


def test_purge_takes_a_filter_or_all(api: Api) -> None:
    made(api, 4)
    assert taken(post(api, "purge", all=True, dry_run=True))["purged"] == 4
    assert taken(post(api, "purge", filter=["data", "Le", 3]))["purged"] == 3
    assert_error(post(api, "purge"), 400, "invalid_request")
    assert taken(post(api, "purge", all=True))["purged"] == 1


def test_dead_letters_are_brought_back(api: Api) -> None:
    made(api, 3, max_deliveries=1, dead_letter="dead")
    api.claim("q", max=3)
    settle(api, "nack", "q", [1, 2, 3])
    assert seqs_of(api.claim("q", max=3)) == []
    assert taken(post(api, "redrive", "dead", limit=1)).items() >= {"moved": 1, "left": 2}.items()
    assert taken(post(api, "redrive", "dead", dry_run=True)).items() >= {"moved": 2, "left": 0}.items()
    assert taken(post(api, "redrive", "dead", filter=["data", "Eq", 3]))["moved"] == 1
    assert taken(post(api, "redrive", "dead"))["moved"] == 1
    jobs = taken(api.claim("q", max=9))["claimed"]
    assert sorted(job["data"] for job in jobs) == [1, 2, 3]
    assert all(job["meta"] == {"$redriven_from": "dead"} for job in jobs)
    assert taken(api.state("dead"))["count"] == 0
    assert_error(post(api, "redrive", "absent"), 404, "topic_not_found")


def test_a_full_job_queue_takes_what_fits_of_the_letters(api: Api) -> None:
    made(api, 0, cap_records=2, discard="reject")
    letter = {"tag": "a", "meta": {"$dead_letter_from": "q"}}
    api.append("dead", [{"data": number, **letter} for number in range(5)])
    wanted = ["and", ["tag", "Eq", "a"], ["data", "Ge", 1]]
    assert taken(post(api, "redrive", "dead", filter=wanted)).items() >= {"moved": 2, "left": 2}.items()
    assert [job["data"] for job in taken(api.claim("q", max=9))["claimed"]] == [1, 2]
    assert_error(post(api, "redrive", "dead"), 422, "topic_full", topic="q", cap_records=2, head_seq=2)
    assert taken(api.state("dead"))["count"] == 3


def test_jobs_are_brought_back_to_a_job_queue_only(api: Api) -> None:
    made(api, 0)
    api.put("log")
    api.append("dead", [{"data": 1, "meta": {"$dead_letter_from": "log"}}])
    assert taken(post(api, "redrive", "dead")).items() >= {"moved": 0, "left": 1}.items()
    assert_error(post(api, "redrive", "dead", to="log"), 409, "not_a_queue", topic="log")
    assert_error(post(api, "redrive", "dead", to="absent"), 404, "topic_not_found", topic="absent")
    assert taken(post(api, "redrive", "dead", to="q"))["queues"] == {"q": 1}
