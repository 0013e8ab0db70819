"""Section 11 over the wire: requests in progress per key, and what gives a slot back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.http_cases import Api, Reply, RunningServer, assert_error, running, taken

CAPPED = {"limit": "max_inflight_per_key", "max": 2}


@pytest.fixture
def capped() -> Iterator[RunningServer]:
    """A server whose keys may have two requests in progress."""
    with running(keys="k,other,reader:read", max_inflight_per_key=2) as started:
        started.api("k").put("t")
        yield started


def wait_for_news(api: Api, _: int) -> Reply:
    """A request that is in progress until something is appended to `t`."""
    return api.diff("t", wait_ms=20_000)


def test_a_key_may_have_so_many_requests_in_progress_and_no_more(capped: RunningServer) -> None:
    answers = capped.at_once(2, wait_for_news, "k")
    capped.until_parked("t", 2)
    for refused in (capped.api("k").state("t"), capped.api("k").append("t"), capped.api("k").topics()):
        assert_error(refused, 429, "throttled", **CAPPED)
        assert refused.headers["retry-after"] == "1"
    taken(capped.api("other").append("t"))
    for answer in answers:
        taken(answer.result())
    capped.until_in_flight(0)
    taken(capped.api("k").state("t"))


def test_a_refused_request_takes_no_slot(capped: RunningServer) -> None:
    reader = capped.api("k")
    answer = capped.background(reader, lambda reader: reader.diff("t", wait_ms=20_000))
    capped.until_parked("t")
    api = capped.api("k")
    for _ in range(5):
        assert_error(api.state("absent"), 404, "topic_not_found")
    capped.until_in_flight(1)
    taken(api.append("t"))
    taken(answer.result())


def test_a_client_that_goes_away_gives_its_slot_back(capped: RunningServer) -> None:
    readers = [capped.api("k") for _ in range(2)]
    answers = [capped.background(reader, lambda api: wait_for_news(api, 0)) for reader in readers]
    capped.until_parked("t", 2)
    for reader in readers:
        reader.http.leave()
    capped.until_in_flight(0)
    assert all(answer.exception() is not None for answer in answers)
    taken(capped.api("k").state("t"))


def every_kind_of_answer(api: Api) -> None:
    """Requests that end in each way a request can end."""
    api.state("t")
    api.state("absent")
    api.put("t", type="queue")
    api.put("%")
    api.append("t")
    api.append("t", [])
    api.diff("t")
    api.diff("t", wait_ms=1, from_seq=1)
    api.delete("t", before_seq=1)
    api.delete("t")
    api.topics()
    api.topics(cursor="!")
    api.drop("absent")
    api.request("GET", "/v0/metrics")
    api.request("GET", "/v0/metrics", Accept="application/json")
    api.request("GET", "/v0/health")
    api.request("HEAD", "/v0/topics/t")
    api.request("HEAD", "/v0/metrics")
    api.request("OPTIONS", "/v0/topics/t")
    api.request("PATCH", "/v0/topics/t")
    api.request("GET", "/nowhere")
    api.request("POST", "/v0/topics/t/unknown", {})
    api.request("POST", "/v0/topics/t", b"{", Content_Type="text/plain")


@pytest.mark.parametrize("secret", ["k", "reader"])
def test_every_way_a_request_ends_gives_its_slot_back(capped: RunningServer, secret: str) -> None:
    api = capped.api(secret)
    every_kind_of_answer(api)
    capped.until_in_flight(0)
    taken(api.topics())


def test_probes_that_want_a_token_give_their_slot_back() -> None:
    with running(keys="k", probe_auth=True, max_inflight_per_key=1) as server:
        api = server.api("k")
        for _ in range(3):
            for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
                taken(api.request("GET", path))


def test_a_cap_of_0_means_unlimited() -> None:
    with running(keys="k", max_inflight_per_key=0, max_topics=0, max_total_bytes=0) as server:
        server.api("k").put("t")
        answers = server.at_once(4, wait_for_news, "k")
        server.until_parked("t", 4)
        taken(server.api("k").append("t"))
        for answer in answers:
            taken(answer.result())


def test_without_keys_there_is_no_cap_per_key() -> None:
    with running(max_inflight_per_key=1) as server:
        server.api().put("t")
        answers = server.at_once(3, wait_for_news)
        server.until_parked("t", 3)
        taken(server.api().append("t"))
        for answer in answers:
            taken(answer.result())


def test_concurrent_creates_never_pass_the_cap_on_topics() -> None:
    with running(max_topics=5) as server:
        replies = server.at_once(16, lambda api, number: api.append(f"t{number}"))
        statuses = sorted(reply.result().status for reply in replies)
        assert statuses == [201] * 5 + [429] * 11
        assert len(taken(server.api().topics())["topics"]) == 5


def test_concurrent_appends_never_pass_the_quota() -> None:
    with running(max_total_bytes=50) as server:
        server.api().put("t")
        replies = server.at_once(16, lambda api, _: api.append("t", [{"data": "12345678"}]))
        statuses = sorted(reply.result().status for reply in replies)
        assert statuses == [200] * 5 + [429] * 11
        assert taken(server.api().state("t"))["bytes"] == 50


# --- Caps per key ----------------------------------------------------------------------------------------


def test_one_key_cannot_take_all_topics() -> None:
    with running(keys="a,b", max_topics_per_key=2) as server:
        api, other = server.api("a"), server.api("b")
        taken(api.put("t1"), 201)
        taken(api.append("t2"), 201)
        limit = {"limit": "max_topics_per_key", "max": 2}
        assert_error(api.put("t3"), 429, "throttled", **limit)
        assert_error(api.append("t3"), 429, "throttled", **limit)
        assert_error(api.put_router("r", "t1", "t3"), 429, "throttled", **limit)
        taken(api.append("t1"))
        taken(api.put("t2"))
        taken(other.put("t3"), 201)
        taken(api.request("DELETE", "/v0/topics/t1"))
        taken(api.append("t4"), 201)


def test_a_router_counts_the_topics_that_it_creates() -> None:
    with running(keys="a", max_topics_per_key=1) as server:
        api = server.api("a")
        assert_error(api.put_router("r", "s", "d"), 429, "throttled", limit="max_topics_per_key")
        assert taken(api.topics())["topics"] == []


def test_a_dead_letter_topic_counts_for_the_key_that_names_it_first() -> None:
    with running(keys="a,b", max_topics_per_key=2) as server:
        api, other = server.api("a"), server.api("b")
        limit = {"limit": "max_topics_per_key", "max": 2}
        taken(api.put("q", type="queue", dead_letter="d1"), 201)
        taken(api.put("q", type="queue", dead_letter="d1", max_deliveries=1))
        assert_error(api.put("q", type="queue", dead_letter="d2"), 429, "throttled", **limit)
        assert_error(api.put("t"), 429, "throttled", **limit)
        queue = {"type": "queue", "dead_letter": "d2"}
        assert_error(api.append("q2", config=queue), 429, "throttled", **limit)
        taken(other.append("q2", config=queue), 201)
        assert_error(other.put("t"), 429, "throttled", **limit)
        taken(api.request("DELETE", "/v0/topics/d1"))
        taken(api.put("t"), 201)


def test_one_key_cannot_take_all_routers() -> None:
    with running(keys="a,b", max_routers_per_key=1) as server:
        api, other = server.api("a"), server.api("b")
        taken(api.put_router("r1", "s", "d1"), 201)
        taken(api.put_router("r1", "s", "d1"))
        assert_error(api.put_router("r2", "s", "d2"), 429, "throttled", limit="max_routers_per_key", max=1)
        taken(other.put_router("r2", "s", "d2"), 201)
        taken(api.request("DELETE", "/v0/topics/d1"))
        taken(api.put_router("r3", "s", "d3"), 201)


def test_one_key_cannot_take_all_watch_sessions() -> None:
    with running(keys="a,b", max_watch_sessions_per_key=2) as server:
        api, other = server.api("a"), server.api("b")
        api.put("t")
        body = {"topics": {"t": {}}}
        for _ in range(2):
            taken(api.request("POST", "/v0/watch", body))
        refused = api.request("POST", "/v0/watch", body)
        assert_error(refused, 429, "throttled", limit="max_watch_sessions_per_key", max=2)
        taken(other.request("POST", "/v0/watch", body))
