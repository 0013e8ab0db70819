"""Who may do what with consumers, jobs, schedules and summaries: scopes, and prefixes of names."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from everlog.server.probe_routes import TOPIC_METRICS_MAX
from tests.support.http_cases import Api, Reply, RunningServer, assert_error, running, taken

KEYS = "reader:r,writer:w,deleter:d,admin:a,team:r+w+d+a:p.,all"
CONSUMER = "/v0/topics/t/consumers/c"
SCHEDULE: dict[str, Any] = {"topic": "t", "cron": "0 0 1 1 *", "record": {"data": 1}}
CALLS: list[tuple[str, str, object, set[str]]] = [
    ("GET", CONSUMER, None, {"reader"}),
    ("GET", "/v0/topics/t/consumers", None, {"reader"}),
    ("PUT", CONSUMER, {}, {"admin"}),
    ("POST", f"{CONSUMER}/read", {}, {"reader"}),
    ("POST", f"{CONSUMER}/commit", {"seq": 1}, {"writer"}),
    ("POST", f"{CONSUMER}/acquire", {"owner": "o"}, {"writer"}),
    ("POST", f"{CONSUMER}/reset", {"to": "latest"}, {"admin"}),
    ("DELETE", "/v0/topics/t/consumers/none", None, {"admin", "deleter"}),
    ("GET", "/v0/topics/q/jobs", None, {"reader"}),
    ("GET", "/v0/topics/q/jobs/1", None, {"reader"}),
    ("POST", "/v0/topics/q/jobs/cancel", {"seqs": []}, {"admin", "deleter"}),
    ("POST", "/v0/topics/q/jobs/retry", {"seqs": []}, {"admin"}),
    ("POST", "/v0/topics/q/pause", None, {"admin"}),
    ("POST", "/v0/topics/q/resume", None, {"admin"}),
    ("POST", "/v0/topics/q/purge", {"all": True, "dry_run": True}, {"admin", "deleter"}),
    ("POST", "/v0/topics/q/redrive", {}, {"admin"}),
    ("GET", "/v0/schedules", None, {"reader"}),
    ("GET", "/v0/schedules/s", None, {"reader"}),
    ("PUT", "/v0/schedules/s", SCHEDULE, {"admin"}),
    ("DELETE", "/v0/schedules/none", None, {"admin", "deleter"}),
    ("GET", "/v0/topics/t/latest?tag=a", None, {"reader"}),
    ("GET", "/v0/topics/t/histogram", None, {"reader"}),
]
LISTS = ("/v0/schedules",)


@pytest.fixture
def guarded() -> Iterator[RunningServer]:
    """A server with keys, and something of everything, once with the prefix of the team and once without."""
    with running(keys=KEYS) as server:
        api = server.api("all")
        for prefix in ("", "p."):
            api.append(f"{prefix}t", [{"data": 1, "tag": "a"}])
            api.put(f"{prefix}q", type="queue")
            api.request("PUT", f"/v0/topics/{prefix}t/consumers/c")
            body = {**SCHEDULE, "topic": f"{prefix}t"}
            taken(api.request("PUT", f"/v0/schedules/{prefix}s", body), 201)
        taken(api.request("PUT", "/v0/schedules/p.foreign", SCHEDULE), 201)
        yield server


def is_forbidden(reply: Reply) -> bool:
    if reply.status == 403:
        assert_error(reply, 403, "forbidden")
    return reply.status == 403


@pytest.mark.parametrize(("method", "path", "body", "allowed"), CALLS)
def test_each_call_needs_its_scope(
    guarded: RunningServer, method: str, path: str, body: object, allowed: set[str]
) -> None:
    for key in ("reader", "writer", "deleter", "admin"):
        assert is_forbidden(guarded.api(key).request(method, path, body)) is (key not in allowed), key


@pytest.mark.parametrize(("method", "path", "body", "allowed"), CALLS)
def test_a_key_with_prefixes_reaches_its_own_names_only(
    guarded: RunningServer, method: str, path: str, body: object, allowed: set[str]
) -> None:
    team = guarded.api("team")
    if path in LISTS:
        assert [each["name"] for each in taken(team.request(method, path))["schedules"]] == ["p.s"]
        return
    assert is_forbidden(team.request(method, path, body))
    own = path.replace("/topics/", "/topics/p.").replace("/schedules/", "/schedules/p.")
    own_body = {**body, "topic": "p.t"} if isinstance(body, dict) and "cron" in body else body
    assert not is_forbidden(team.request(method, own, own_body))


def test_names_in_bodies_and_definitions_count_like_those_in_paths(guarded: RunningServer) -> None:
    team: Api = guarded.api("team")
    foreign = {"method": "PUT", "path": "/v0/schedules/p.new", "body": SCHEDULE}
    assert_error(team.request(**foreign), 403, "forbidden", topic="t")  # type: ignore[arg-type]
    for method, body in (("GET", None), ("PUT", {**SCHEDULE, "topic": "p.t"}), ("DELETE", None)):
        reply = team.request(method, "/v0/schedules/p.foreign", body)
        assert_error(reply, 403, "forbidden", name="p.foreign")
    reply = team.request("POST", "/v0/topics/p.q/redrive", {"to": "q"})
    assert_error(reply, 403, "forbidden", topic="q")
    assert_error(team.put("p.new", type="queue", dead_letter="dead"), 403, "forbidden", topic="dead")
    told = taken(team.request("POST", "/v0/watch", {"topics": {"*": {}}}))
    assert sorted(told["topics"]) == ["p.q", "p.t"]
    assert_error(team.request("POST", "/v0/watch", {"topics": {"t*": {}}}), 403, "forbidden", topic="t*")


@pytest.fixture
def beside_foreign() -> Iterator[RunningServer]:
    """A server where things of the team touch others, all of which have "foreign" in their names."""
    with running(keys=KEYS) as server:
        api = server.api("all")
        api.fill("p.t", 1)
        for router, source, dest in (
            ("p.mixed", "foreign.a", "p.fed"),
            ("foreign.feed", "p.other", "p.hidden"),
            ("foreign.out", "p.t", "foreign.b"),
            ("foreign.back", "foreign.b", "p.loop"),
            ("p.open", "p.t", "p.copy"),
        ):
            taken(api.put_router(router, source, dest), 201)
        for name, topic in (
            ("a.foreign", "p.t"),
            ("b.foreign", "p.t"),
            ("p.foreign", "foreign.a"),
            ("p.s", "p.t"),
        ):
            taken(api.request("PUT", f"/v0/schedules/{name}", {**SCHEDULE, "topic": topic}), 201)
        yield server


def is_silent(reply: Reply) -> bool:
    """Whether a reply names nothing foreign, in its cursor neither."""
    cursor = (reply.json or {}).get("next_cursor", "")
    return b"foreign" not in reply.text.encode() + base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


@pytest.mark.parametrize(
    ("router", "source", "dest", "status", "code"),
    [
        ("p.new", "p.x", "p.fed", 409, "topic_exists_incompatible"),
        ("p.new", "p.x", "p.hidden", 409, "topic_exists_incompatible"),
        ("p.new", "p.loop", "p.t", 409, "router_cycle"),
        ("p.mixed", "p.x", "p.fed", 403, "forbidden"),
    ],
)
def test_a_refused_router_names_nothing_that_the_key_may_not_use(
    beside_foreign: RunningServer, router: str, source: str, dest: str, status: int, code: str
) -> None:
    reply = beside_foreign.api("team").put_router(router, source, dest)
    assert_error(reply, status, code)
    assert is_silent(reply), reply.text
    if router != "p.mixed":
        assert not is_silent(beside_foreign.api("all").put_router(router, source, dest))


def test_a_cycle_shows_its_topics_that_the_key_may_use(beside_foreign: RunningServer) -> None:
    reply = beside_foreign.api("team").put_router("p.new", "p.loop", "p.t")
    assert_error(reply, 409, "router_cycle", cycle=["p.loop", "p.t", "p.loop"])


def test_a_deleted_topic_names_the_routers_that_the_key_may_see(beside_foreign: RunningServer) -> None:
    assert taken(beside_foreign.api("team").drop("p.t"))["routers_removed"] == ["p.open"]
    left = [router["router"] for router in taken(beside_foreign.api("all").routers())["routers"]]
    assert left == ["foreign.back", "foreign.feed", "p.mixed"]


def test_pages_of_lists_are_full_and_their_cursors_silent(beside_foreign: RunningServer) -> None:
    team, everything = beside_foreign.api("team"), beside_foreign.api("all")
    reply = team.request("GET", "/v0/schedules?page_size=1")
    assert [each["name"] for each in taken(reply)["schedules"]] == ["p.s"]
    assert is_silent(reply) and "next_cursor" not in reply.json
    first = taken(everything.request("GET", "/v0/schedules?page_size=1&prefix=b"))
    assert [each["name"] for each in first["schedules"]] == ["b.foreign"] and "next_cursor" not in first
    reply = team.routers(page_size=1)
    assert [each["router"] for each in taken(reply)["routers"]] == ["p.open"]
    assert is_silent(reply) and "next_cursor" not in reply.json
    for path in ("/v0/consumers?page_size=1", "/v0/metrics", "/v0/overview", "/v0/health", "/v0/ready"):
        assert is_silent(team.request("GET", path)), path


def test_metrics_show_the_routers_of_a_key_behind_any_number_of_others() -> None:
    with running(keys=KEYS, memory=True) as server:
        api = server.api("all")
        for number in range(TOPIC_METRICS_MAX):
            taken(api.put_router(f"a{number}", "p.t", "p.copy"), 201)
        taken(server.api("team").put_router("p.last", "p.t", "p.copy"), 201)
        assert 'router="p.last"' in server.api("team").request("GET", "/v0/metrics").text


def test_a_read_that_commits_needs_write_too(guarded: RunningServer) -> None:
    path = f"{CONSUMER}/read"
    assert is_forbidden(guarded.api("reader").request("POST", path, {"commit": 1}))
    assert taken(guarded.api("all").request("POST", path, {"commit": 1}))["consumer"]["cursor"] == 1


# --- What all of these calls have in common ---------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v0/topics/t/consumers", "/v0/topics/q/jobs", "/v0/schedules", "/v0/topics/t/latest?prefix="]
)
def test_a_cursor_that_no_list_has_given_is_400(api: Api, path: str) -> None:
    api.append("t")
    api.put("q", type="queue")
    mark = "&" if "?" in path else "?"
    assert_error(api.request("GET", f"{path}{mark}cursor=!!"), 400, "invalid_request")
    assert taken(api.request("GET", f"{path}{mark}cursor="))["performance"]["server_total_ms"] >= 0


def test_an_absent_topic_has_no_list(api: Api) -> None:
    for path in ("consumers", "jobs", "latest?prefix=", "histogram"):
        reply = api.request("GET", f"/v0/topics/none/{path}")
        assert_error(reply, 404, "topic_not_found", topic="none")
    assert_error(api.diff("none"), 404, "topic_not_found", topic="none")


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_so_many_seqs_one_call_may_name(api: Api, verb: str) -> None:
    api.put("q", type="queue")
    path = f"/v0/topics/q/jobs/{verb}"
    taken(api.request("POST", path, {"seqs": [1] * 1000}))
    reply = api.request("POST", path, {"seqs": [1] * 1001})
    assert_error(reply, 400, "batch_too_large", seqs=1001, max=1000)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v0/topics/t/consumers", "GET, HEAD, OPTIONS"),
        ("POST", "/v0/topics/t/consumers/c", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("PUT", "/v0/topics/t/consumers/c/commit", "OPTIONS, POST"),
        ("DELETE", "/v0/topics/q/jobs/1", "GET, HEAD, OPTIONS"),
        ("PUT", "/v0/topics/q/pause", "OPTIONS, POST"),
        ("POST", "/v0/schedules/s", "DELETE, GET, HEAD, OPTIONS, PUT"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_405(api: Api, method: str, path: str, allow: str) -> None:
    reply = api.request(method, path, {})
    assert_error(reply, 405, "method_not_allowed")
    assert reply.headers["allow"] == allow
