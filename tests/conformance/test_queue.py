"""Section 10 over the wire: claims, acks, nacks, extends, dead letters, counters and restarts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_cases import (
    Api,
    Reply,
    RunningServer,
    assert_error,
    running,
    taken,
    topic_path,
)

CLAIM_FIELDS = {"topic", "claimed", "count", "ready", "performance"}
SETTLING = ("ack", "nack", "extend")


@pytest.fixture
def queue(api: Api) -> str:
    """A queue with three jobs."""
    return made(api)


def made(api: Api, jobs: int = 3, name: str = "q", **config: object) -> str:
    taken(api.put(name, type="queue", **config), 201)
    if jobs:
        api.fill(name, *range(1, jobs + 1))
    return name


def jobs_of(reply: Reply) -> list[dict[str, Any]]:
    claimed: list[dict[str, Any]] = taken(reply)["claimed"]
    return claimed


def seqs_of(reply: Reply) -> list[int]:
    return [job["$seq"] for job in jobs_of(reply)]


def settle(api: Api, verb: str, queue: str, seqs: list[int], node: str = "w", **fields: object) -> Any:
    if verb == "extend":
        fields.setdefault("lease_ms", 1000)
    return taken(api.settle(verb, queue, seqs, node, **fields))


def counts(api: Api, queue: str) -> tuple[int, int, int]:
    told = taken(api.state(queue))["queue"]
    assert set(told) == {"ready", "in_flight", "dead_lettered"}
    return told["ready"], told["in_flight"], told["dead_lettered"]


# --- Which topics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["claim", *SETTLING])
def test_an_absent_topic_is_not_found_and_not_created(api: Api, verb: str) -> None:
    body = {"node": "w", "seqs": [], "lease_ms": 1000}
    assert_error(api.request("POST", topic_path("none", verb), body), 404, "topic_not_found", topic="none")
    assert_error(api.state("none"), 404, "topic_not_found")


@pytest.mark.parametrize("verb", ["claim", *SETTLING])
def test_a_log_is_not_a_queue(api: Api, verb: str) -> None:
    api.fill("log", 1)
    body = {"node": "w", "seqs": [1], "lease_ms": 1000}
    assert_error(api.request("POST", topic_path("log", verb), body), 409, "not_a_queue", topic="log")
    assert "queue" not in taken(api.state("log"))


# --- Claim ------------------------------------------------------------------------------------------------


def test_a_claim_answers_what_the_contract_says(server: RunningServer, api: Api) -> None:
    made(api, 0)
    server.clock.freeze()
    taken(
        api.append(
            "q", [{"data": {"a": [1, None]}, "tag": "t", "meta": {"m": 1}, "node": "p"}, {"data": None}]
        )
    )
    answer = taken(api.claim("q", max=5))
    assert set(answer) == CLAIM_FIELDS
    assert (answer["topic"], answer["count"], answer["ready"]) == ("q", 2, 0)
    full, bare = answer["claimed"]
    assert set(full) == {"$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta"}
    assert set(bare) == {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
    assert (full["$seq"], full["$tag"], full["data"], full["meta"]) == (1, "t", {"a": [1, None]}, {"m": 1})
    assert (bare["$seq"], bare["data"], bare["deliveries"]) == (2, None, 1)
    assert full["deadline"] == full["$ts"] + 30_000
    assert re.fullmatch("lease_[0-9a-f]+", full["lease_id"])
    assert full["lease_id"] != bare["lease_id"]
    assert answer["performance"]["server_total_ms"] >= 0


@pytest.mark.parametrize(("asked", "given"), [(None, 1), (0, 1), (1, 1), (2, 2), (10**6, 3)])
def test_max_is_clamped(api: Api, queue: str, asked: int | None, given: int) -> None:
    fields: dict[str, Any] = {} if asked is None else {"max": asked}
    assert seqs_of(api.claim(queue, **fields)) == list(range(1, given + 1))


def test_no_more_than_a_thousand_jobs_at_once(api: Api) -> None:
    made(api, 1005)
    answer = taken(api.claim("q", max=5000))
    assert (answer["count"], answer["ready"]) == (1000, 5)


@pytest.mark.parametrize(
    ("asked", "given"), [(None, 200), (0, 100), (99, 100), (5000, 5000), (10**12, 86_400_000)]
)
def test_the_time_of_a_lease_is_the_topics_unless_asked_for_and_is_clamped(
    server: RunningServer, api: Api, asked: int | None, given: int
) -> None:
    made(api, 1, lease_ms=200)
    server.clock.freeze()
    fields: dict[str, Any] = {} if asked is None else {"lease_ms": asked}
    (job,) = jobs_of(api.claim("q", **fields))
    assert job["deadline"] == server.clock.wall_ns() // 1_000_000 + given


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"node": ""},
        {"node": None},
        {"node": "n" * 129},
        {"node": "w", "max": -1},
        {"node": "w", "max": 1.5},
        {"node": "w", "lease_ms": -1},
        {"node": "w", "lease_ms": 2**64},
        {"node": "w", "max": "3"},
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(api: Api, queue: str, body: dict[str, object]) -> None:
    assert_error(api.request("POST", topic_path(queue, "claim"), body), 400, "invalid_request")


@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain"])
def test_a_claim_with_an_empty_body_is_400(api: Api, queue: str, content_type: str | None) -> None:
    reply = api.request("POST", topic_path(queue, "claim"), b"", Content_Type=content_type)
    assert_error(reply, 400, "invalid_request")


def test_a_claim_needs_json(api: Api, queue: str) -> None:
    reply = api.request("POST", topic_path(queue, "claim"), b'{"node":"w"}', Content_Type="text/plain")
    assert_error(reply, 415, "unsupported_media_type")


def test_what_was_out_before_comes_first_and_in_the_order_of_seq(api: Api) -> None:
    made(api, 6)
    assert seqs_of(api.claim("q", max=4)) == [1, 2, 3, 4]
    settle(api, "nack", "q", [4, 2])
    assert seqs_of(api.claim("q", max=1)) == [2]
    answer = jobs_of(api.claim("q", max=3))
    assert [(job["$seq"], job["deliveries"]) for job in answer] == [(4, 2), (5, 1), (6, 1)]


def test_jobs_are_given_ascending_also_if_some_come_back(api: Api) -> None:
    made(api, 5)
    taken(api.claim("q", max=5))
    settle(api, "nack", "q", [5])
    api.fill("q", "new")
    assert seqs_of(api.claim("q", max=2)) == [5, 6]


def test_deleted_and_evicted_jobs_are_never_given(api: Api) -> None:
    made(api, 4, cap_records=4)
    taken(api.claim("q", max=1))
    taken(api.delete("q", before_seq=3))
    api.fill("q", 5, 6, 7)
    assert counts(api, "q") == (4, 0, 0)
    assert seqs_of(api.claim("q", max=9)) == [4, 5, 6, 7]


# --- Expiry -----------------------------------------------------------------------------------------------


def test_a_lease_holds_up_to_its_deadline_and_no_longer(server: RunningServer, api: Api) -> None:
    made(api, 1, lease_ms=1000)
    server.clock.freeze()
    first = jobs_of(api.claim("q"))[0]
    server.clock.advance_ms(1000)
    assert seqs_of(api.claim("q", node="other")) == []
    assert counts(api, "q") == (0, 1, 0)
    server.clock.advance_ms(1)
    assert counts(api, "q") == (1, 0, 0)
    second = jobs_of(api.claim("q", node="other"))[0]
    assert (second["$seq"], second["deliveries"]) == (1, 2)
    assert second["lease_id"] != first["lease_id"]


@pytest.mark.parametrize("verb", SETTLING)
def test_a_settlement_after_expiry_is_skipped_even_without_another_claim(
    server: RunningServer, api: Api, verb: str
) -> None:
    made(api, 1, lease_ms=1000)
    taken(api.claim("q"))
    server.clock.advance_ms(1100)
    assert settle(api, verb, "q", [1])["skipped"] == [1]
    assert counts(api, "q") == (1, 0, 0)


# --- Ack, nack, extend ------------------------------------------------------------------------------------


def test_an_ack_deletes_the_jobs(api: Api, queue: str) -> None:
    taken(api.claim(queue, max=2))
    answer = settle(api, "ack", queue, [2])
    assert set(answer) == {"topic", "acked", "skipped", "ready", "in_flight", "performance"}
    assert (answer["acked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (1, [], 1, 1)
    assert "fsync_ms" not in answer["performance"]
    assert api.seqs(queue) == [1, 3]
    assert settle(api, "ack", queue, [2])["skipped"] == [2]


def test_an_ack_of_an_fsync_queue_is_synced(tmp_path: Path) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        made(api, 1, durability="fsync")
        taken(api.claim("q"))
        assert settle(api, "ack", "q", [1])["performance"]["fsync_ms"] > 0


def test_a_nack_gives_jobs_back_at_once_or_later(server: RunningServer, api: Api, queue: str) -> None:
    server.clock.freeze()
    taken(api.claim(queue, max=3))
    answer = settle(api, "nack", queue, [1])
    assert set(answer) == {"topic", "nacked", "skipped", "ready", "in_flight", "performance"}
    assert (answer["nacked"], answer["ready"], answer["in_flight"]) == (1, 1, 2)
    answer = settle(api, "nack", queue, [2], delay_ms=500)
    assert (answer["ready"], answer["in_flight"]) == (1, 1)
    assert taken(api.state(queue))["count"] == 3
    assert seqs_of(api.claim(queue, max=3)) == [1]
    server.clock.advance_ms(499)
    assert seqs_of(api.claim(queue, max=3)) == []
    server.clock.advance_ms(1)
    (job,) = jobs_of(api.claim(queue, max=3))
    assert (job["$seq"], job["deliveries"]) == (2, 2)


def test_a_delay_is_clamped_to_a_day(server: RunningServer, api: Api, queue: str) -> None:
    server.clock.freeze()
    taken(api.claim(queue))
    settle(api, "nack", queue, [1], delay_ms=2**63)
    server.clock.advance_ms(86_400_000)
    assert seqs_of(api.claim(queue)) == [1]


def test_an_extended_lease_has_its_new_deadline_and_is_no_delivery(server: RunningServer, api: Api) -> None:
    made(api, 1, lease_ms=1000)
    server.clock.freeze()
    taken(api.claim("q"))
    server.clock.advance_ms(900)
    answer = settle(api, "extend", "q", [1, 9], lease_ms=5000)
    now_ms = server.clock.wall_ns() // 1_000_000
    assert set(answer) == {"topic", "extended", "skipped", "deadlines", "performance"}
    assert (answer["extended"], answer["skipped"], answer["deadlines"]) == (1, [9], {"1": now_ms + 5000})
    server.clock.advance_ms(4900)
    assert settle(api, "extend", "q", [1], lease_ms=1)["deadlines"] == {"1": now_ms + 4900 + 100}
    server.clock.advance_ms(101)
    assert jobs_of(api.claim("q"))[0]["deliveries"] == 2


def test_extend_needs_a_time(api: Api, queue: str) -> None:
    assert_error(api.settle("extend", queue, [1]), 400, "invalid_request")


@pytest.mark.parametrize("verb", SETTLING)
def test_only_the_holder_settles_and_the_others_are_skipped_in_order(api: Api, queue: str, verb: str) -> None:
    taken(api.claim(queue, max=2))
    taken(api.claim(queue, node="other"))
    answer = settle(api, verb, queue, [9, 3, 1, 0])
    done = {"ack": "acked", "nack": "nacked", "extend": "extended"}[verb]
    assert (answer[done], answer["skipped"]) == (1, [9, 3, 0])


@pytest.mark.parametrize("verb", SETTLING)
def test_no_seqs_are_no_error(api: Api, queue: str, verb: str) -> None:
    assert settle(api, verb, queue, [])["skipped"] == []


@pytest.mark.parametrize(("verb", "field"), [("ack", "acked"), ("nack", "nacked"), ("extend", "extended")])
def test_a_settlement_answers_with_a_count(api: Api, queue: str, verb: str, field: str) -> None:
    taken(api.claim(queue, max=3))
    assert settle(api, verb, queue, [])[field] == 0
    assert settle(api, verb, queue, [1, 2, 3, 9])[field] == 3


@pytest.mark.parametrize("verb", SETTLING)
def test_too_many_seqs_are_refused(api: Api, queue: str, verb: str) -> None:
    reply = api.settle(verb, queue, list(range(1001)), lease_ms=1000)
    assert_error(reply, 400, "batch_too_large", seqs=1001, max=1000)
    assert settle(api, verb, queue, list(range(1000)))["skipped"] == list(range(1000))


@pytest.mark.parametrize("verb", SETTLING)
@pytest.mark.parametrize(
    "fields",
    [
        {"node": ""},
        {"node": None},
        {"seqs": [-1]},
        {"seqs": [1.5]},
        {"seqs": 1},
        {"seqs": None},
        {"lease_ids": []},
        {"lease_ids": ["", ""]},
        {"lease_ids": ["x"]},
        {"lease_ids": ["lease_"]},
        {"lease_ids": ["lease_xyz"]},
        {"lease_ids": [None]},
        {"lease_ids": ["LEASE_1"]},
    ],
)
def test_a_settlement_that_makes_no_sense_changes_nothing(
    api: Api, queue: str, verb: str, fields: dict[str, object]
) -> None:
    taken(api.claim(queue))
    body = {"node": "w", "seqs": [1], "lease_ms": 1000, **fields}
    assert_error(api.request("POST", topic_path(queue, verb), body), 400, "invalid_request")
    assert counts(api, queue) == (2, 1, 0)


@pytest.mark.parametrize("verb", SETTLING)
def test_a_fence_lets_only_the_current_lease_through(
    server: RunningServer, api: Api, queue: str, verb: str
) -> None:
    old = jobs_of(api.claim(queue, lease_ms=100))[0]["lease_id"]
    server.clock.advance_ms(200)
    new = jobs_of(api.claim(queue))[0]["lease_id"]
    assert settle(api, verb, queue, [1], lease_ids=[old])["skipped"] == [1]
    assert settle(api, verb, queue, [1], lease_ids=[new])["skipped"] == []


def test_an_empty_fence_is_none(api: Api, queue: str) -> None:
    taken(api.claim(queue, max=2))
    assert settle(api, "ack", queue, [1, 2], lease_ids=["", "lease_1"])["skipped"] == [2]


# --- Dead letters -----------------------------------------------------------------------------------------


def fail_until_dead(api: Api, queue: str, seq: int, deliveries: int) -> None:
    for _ in range(deliveries):
        assert seqs_of(api.claim(queue)) == [seq]
        settle(api, "nack", queue, [seq])


def test_a_job_that_fails_too_often_is_moved_with_its_provenance(api: Api) -> None:
    made(api, 0, max_deliveries=2, dead_letter="dead")
    taken(
        api.append("q", [{"data": {"poison": 1}, "tag": "t", "node": "p", "meta": {"m": [1]}}, {"data": 2}])
    )
    fail_until_dead(api, "q", 1, 2)
    answer = taken(api.claim("q", max=1))
    assert ([job["$seq"] for job in answer["claimed"]], answer["ready"]) == ([2], 0)
    (letter,) = taken(api.diff("dead", include_tags=True))["records"]
    assert (letter["data"], letter["$tag"], letter["$node"]) == ({"poison": 1}, "t", "p")
    assert letter["meta"] == {
        "m": [1],
        "$dead_letter_from": "q",
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
    }
    assert api.seqs("q") == [2]
    assert counts(api, "q") == (0, 1, 1)
    assert taken(api.state("dead"))["config"] == {**taken(api.state("dead"))["config"], "type": "log"}


@pytest.mark.parametrize("config", [{"max_deliveries": 2}, {"dead_letter": "dead"}, {}])
def test_without_both_settings_jobs_are_delivered_for_ever(api: Api, config: dict[str, Any]) -> None:
    made(api, 1, **config)
    fail_until_dead(api, "q", 1, 5)
    assert jobs_of(api.claim("q"))[0]["deliveries"] == 6


def test_a_dead_letter_that_cannot_be_written_leaves_the_job_ready(api: Api) -> None:
    taken(api.put("dead", cap_records=1, discard="reject"), 201)
    api.fill("dead", "full")
    made(api, 2, max_deliveries=1, dead_letter="dead")
    fail_until_dead(api, "q", 1, 1)
    answer = taken(api.claim("q", max=2))
    assert ([job["$seq"] for job in answer["claimed"]], answer["ready"]) == ([2], 1)
    assert counts(api, "q") == (1, 1, 0)
    taken(api.delete("dead", before_seq=2))
    assert seqs_of(api.claim("q")) == []
    assert counts(api, "q") == (0, 1, 1)
    assert api.values("dead") == [1]


def test_the_marks_of_a_dead_letter_are_those_of_its_last_queue(api: Api) -> None:
    made(api, 1, max_deliveries=1, dead_letter="second")
    made(api, 0, "second", max_deliveries=1, dead_letter="third")
    fail_until_dead(api, "q", 1, 1)
    assert seqs_of(api.claim("q")) == []
    fail_until_dead(api, "second", 1, 1)
    assert seqs_of(api.claim("second")) == []
    (letter,) = taken(api.diff("third"))["records"]
    assert letter["meta"]["$dead_letter_from"] == "second"


def test_the_counter_of_dead_letters_ends_with_the_topic(api: Api) -> None:
    made(api, 1, max_deliveries=1, dead_letter="dead")
    fail_until_dead(api, "q", 1, 1)
    taken(api.claim("q"))
    assert counts(api, "q") == (0, 0, 1)
    taken(api.drop("q"))
    made(api, 1)
    assert counts(api, "q") == (1, 0, 0)


# --- A topic like any other -------------------------------------------------------------------------------


def test_reading_a_queue_touches_no_lease(api: Api, queue: str) -> None:
    taken(api.claim(queue))
    assert api.seqs(queue) == [1, 2, 3]
    assert counts(api, queue) == (2, 1, 0)
    assert taken(api.state(queue))["type"] == "queue"


def test_a_router_is_a_producer_of_jobs(api: Api) -> None:
    made(api, 0)
    api.fill("source", "old")
    body = {"source": "source", "dest": "q"}
    taken(api.request("PUT", "/v0/routers/r", body), 201)
    api.fill("source", "new")
    jobs = jobs_of(api.claim("q", max=5))
    assert [job["data"] for job in jobs][-1:] == ["new"]
    settle(api, "ack", "q", [job["$seq"] for job in jobs])
    assert api.values("source") == ["old", "new"]
    assert counts(api, "q") == (0, 0, 0)


def test_deleting_the_topic_ends_its_leases(api: Api, queue: str) -> None:
    taken(api.claim(queue))
    taken(api.drop(queue))
    made(api, 1)
    assert settle(api, "ack", "q", [1])["skipped"] == [1]


def test_metrics_count_leases(api: Api, queue: str) -> None:
    taken(api.claim(queue, max=2))
    document = taken(api.request("GET", "/v0/metrics", Accept="application/json"))
    assert (document["queue_topics"], document["queue_leases_in_flight"]) == (1, 2)
    api.fill("log", 1)
    text = api.request("GET", "/v0/metrics").text
    assert "topics_queue_topics 1.0" in text
    assert "topics_queue_leases_in_flight 2.0" in text
    assert 'topics_topic_queue_ready{topic="q"} 1.0' in text
    assert 'topics_topic_queue_in_flight{topic="q"} 2.0' in text
    assert 'topics_topic_queue_ready{topic="log"}' not in text


@pytest.mark.parametrize(
    ("scopes", "verb", "status"),
    [
        ("r", "claim", 403),
        ("w", "claim", 403),
        ("rw", "claim", 200),
        ("r", "ack", 403),
        ("w", "ack", 200),
        ("w", "nack", 200),
        ("w", "extend", 200),
        ("r", "extend", 403),
    ],
)
def test_each_route_needs_its_scopes(scopes: str, verb: str, status: int) -> None:
    with running(keys=f"admin,worker:{scopes}") as server:
        made(server.api("admin"), 1)
        body = {"node": "w", "seqs": [1], "lease_ms": 1000}
        assert server.api("worker").request("POST", topic_path("q", verb), body).status == status


# --- Coalesced claims -------------------------------------------------------------------------------------


def test_claimers_of_one_window_share_the_jobs_evenly(server: RunningServer, api: Api) -> None:
    made(api, 5, claim_jitter_ms=300)
    replies = server.at_once(
        3, lambda client, number: client.claim("q", f"w{number}", max=10, lease_ms=1000 * (number + 1))
    )
    hands = [taken(reply.result()) for reply in replies]
    assert sorted(hand["count"] for hand in hands) == [1, 2, 2]
    assert sorted(job["$seq"] for hand in hands for job in hand["claimed"]) == [1, 2, 3, 4, 5]
    deadlines = [hand["claimed"][0]["deadline"] for hand in hands]
    assert 900 <= deadlines[1] - deadlines[0] <= 1100, "each keeps its own lease_ms"
    assert {hand["ready"] for hand in hands} == {0}


def test_a_claimer_that_leaves_during_the_window_gets_nothing(server: RunningServer, api: Api) -> None:
    made(api, 2, claim_jitter_ms=400)
    gone = server.api()
    assert gone.state("q").status == 200
    request = server.background(gone, lambda client: client.claim("q", "gone", max=2))
    server.until(lambda: "q" in _windows(server)._open)
    gone.http.leave()
    assert request.exception() is not None
    assert taken(api.claim("q", "stays", max=2))["count"] == 2


def _windows(server: RunningServer) -> Any:
    assert server.server._work is not None
    return server.server._work.windows


# --- Restarts ---------------------------------------------------------------------------------------------


@pytest.fixture
def restarted(tmp_path: Path) -> Callable[[], RunningServer]:
    """Start a server on the same directory."""

    def start() -> RunningServer:
        from tests.support.http_cases import settings_of

        return RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)

    return start


def test_leases_end_with_the_server_unless_they_are_durable(restarted: Callable[[], RunningServer]) -> None:
    first = restarted()
    api = first.api()
    made(api, 2)
    made(api, 2, "kept", leases_durable=True)
    lost = jobs_of(api.claim("q"))[0]
    kept = jobs_of(api.claim("kept"))[0]
    settle(api, "ack", "kept", [])
    taken(api.claim("kept"))
    settle(api, "nack", "kept", [2])
    first.stop()
    second = restarted()
    api = second.api()
    try:
        assert counts(api, "q") == (2, 0, 0)
        assert counts(api, "kept") == (1, 1, 0)
        again = jobs_of(api.claim("q"))[0]
        assert (again["$seq"], again["deliveries"]) == (1, 1)
        assert again["lease_id"] != lost["lease_id"]
        assert jobs_of(api.claim("kept", max=2))[0]["deliveries"] == 2
        assert settle(api, "ack", "kept", [1], lease_ids=[kept["lease_id"]])["acked"] == 1
    finally:
        second.stop()


def test_an_acked_job_never_comes_back(restarted: Callable[[], RunningServer]) -> None:
    first = restarted()
    made(first.api(), 4, durability="fsync", leases_durable=True)
    taken(first.api().claim("q", max=3))
    settle(first.api(), "ack", "q", [1, 3])
    first.stop()
    second = restarted()
    try:
        assert second.api().seqs("q") == [2, 4]
        assert counts(second.api(), "q") == (1, 1, 0)
    finally:
        second.stop()
