"""Section 0.2 over the wire: tokens, scopes, prefixes, and the order in which they are checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import pytest

from everlog.errors import InvalidConfig
from everlog.server.serve import TopicsServer
from tests.support.http_cases import Api, Reply, RunningServer, assert_error, running, settings_of, taken

KEYS = (
    "all,reader:read,writer:w,deleter:d,admin:a,both:rw,appends:write+admin,"
    "team:rw+d+a:team-|shared,capped:read::x"
)
SECRET_SCOPES = {
    "all": {"read", "write", "delete", "admin"},
    "reader": {"read"},
    "writer": {"write"},
    "deleter": {"delete"},
    "admin": {"admin"},
    "both": {"read", "write"},
    "appends": {"write", "admin"},
}
OPERATIONS: dict[str, tuple[str, Callable[[Api], Reply]]] = {
    "list": ("read", lambda api: api.topics()),
    "state": ("read", lambda api: api.state("t")),
    "diff": ("read", lambda api: api.diff("t")),
    "metrics": ("read", lambda api: api.request("GET", "/v0/metrics")),
    "append": ("write", lambda api: api.append("t")),
    "unknown sub-path": ("write", lambda api: api.request("POST", "/v0/topics/t/unknown", {})),
    "drop": ("delete", lambda api: api.drop("t")),
    "delete": ("delete", lambda api: api.delete("t", before_seq=1)),
    "put": ("admin", lambda api: api.put("t")),
}


@pytest.fixture
def guarded() -> Iterator[RunningServer]:
    """A server with keys."""
    with running(keys=KEYS) as started:
        started.api("all").put("t")
        yield started


def watch_path(server: RunningServer) -> str:
    """The stream of a watch session that another key has made."""
    answer = taken(server.api("all").request("POST", "/v0/watch", {"topics": {"t": {"from_seq": 0}}}))
    return f"/v0/watch/{answer['wid']}"


# --- Tokens ----------------------------------------------------------------------------------------------


class HeaderClient:
    """A client that sends one `Authorization` header, or none."""

    def __init__(self, api: Api, header: str | None) -> None:
        self._client = api.client
        self._header = header

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str | None] | None = None
    ) -> Reply:
        """Send a request with that header."""
        return self._client.request(method, path, body, {**(headers or {}), "Authorization": self._header})

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic all",
        "all",
        "Bearer all x",
        "Bearer ALL",
        "Bearer reader:read",
        "Bearer all, Bearer all",
    ],
)
def test_without_a_known_token_everything_is_401(guarded: RunningServer, header: str | None) -> None:
    api = Api(HeaderClient(guarded.api(), header))
    for _, call in OPERATIONS.values():
        reply = call(api)
        assert_error(reply, 401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert_error(api.request("GET", "/nowhere"), 401, "unauthorized")
    for path in (watch_path(guarded), "/v0/topics/t/work", "/v0/ws"):
        reply = api.request("GET", path)
        assert_error(reply, 401, "unauthorized")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert_error(api.request("PATCH", "/v0/topics"), 401, "unauthorized")


@pytest.mark.parametrize("header", ["Bearer all", "bearer all", "BEARER all", "Bearer   all "])
def test_the_scheme_may_be_written_in_any_case(guarded: RunningServer, header: str) -> None:
    taken(guarded.api().request("GET", "/v0/topics", Authorization=header))


def test_a_token_in_the_query_is_ignored_on_ordinary_routes(guarded: RunningServer) -> None:
    api = guarded.api()
    for path in ("/v0/topics?token=all", "/v0/topics/t?token=all", "/v0/metrics?token=all"):
        assert_error(api.request("GET", path), 401, "unauthorized")
    assert_error(api.request("POST", "/v0/topics/t/diff?token=all", {}), 401, "unauthorized")


def test_a_bad_token_is_401_whatever_the_body_is(guarded: RunningServer) -> None:
    api = guarded.api("wrong")
    assert_error(api.request("POST", "/v0/topics/t", b"{nonsense"), 401, "unauthorized")
    assert_error(api.request("POST", "/v0/topics/t", b"x" * 200_000), 401, "unauthorized")


def test_without_keys_the_header_is_ignored(api: Api) -> None:
    taken(api.request("GET", "/v0/topics", Authorization="Bearer whatever"))
    taken(api.request("GET", "/v0/topics", Authorization="nonsense"))


# --- Scopes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("secret", SECRET_SCOPES)
def test_each_operation_needs_its_scope(guarded: RunningServer, operation: str, secret: str) -> None:
    needed, call = OPERATIONS[operation]
    reply = call(guarded.api(secret))
    if needed not in SECRET_SCOPES[secret]:
        assert_error(reply, 403, "forbidden")
    elif operation == "unknown sub-path":
        assert_error(reply, 404, "not_found")
    else:
        assert reply.status == 200, reply.text


def test_a_config_for_an_absent_topic_needs_write_and_admin(guarded: RunningServer) -> None:
    for secret in ("writer", "both"):
        assert_error(guarded.api(secret).append("new", config={}), 403, "forbidden")
        assert_error(guarded.api(secret).append("new", config={}, create=True), 403, "forbidden")
    assert_error(guarded.api("admin").append("new", config={}), 403, "forbidden")
    assert_error(guarded.api("all").state("new"), 404, "topic_not_found")
    taken(guarded.api("appends").append("new", config={}), 201)


def test_a_config_for_a_present_topic_needs_write_only(guarded: RunningServer) -> None:
    taken(guarded.api("writer").append("t", config={"ttl_ms": 5}))


def test_an_append_that_creates_with_the_defaults_needs_write_only(guarded: RunningServer) -> None:
    taken(guarded.api("writer").append("new"), 201)
    taken(guarded.api("writer").append("new2", create=True, config=None), 201)


# --- Prefixes --------------------------------------------------------------------------------------------


def test_a_prefix_is_enforced_on_the_name_of_the_path(guarded: RunningServer) -> None:
    api = guarded.api("team")
    for name in ("other", "team", "TEAM-x", "t"):
        for reply in (
            api.put(name),
            api.append(name),
            api.state(name),
            api.diff(name),
            api.delete(name, before_seq=1),
            api.drop(name),
        ):
            assert_error(reply, 403, "forbidden", topic=name)
    for name in ("team-", "team-a", "shared", "shared.x"):
        taken(api.put(name), 201)
        taken(api.append(name))
        taken(api.drop(name))


def test_a_prefix_is_enforced_on_the_dead_letter_topic(guarded: RunningServer) -> None:
    api = guarded.api("team")
    for reply in (
        api.request("PUT", "/v0/topics/team-q", {"type": "queue", "dead_letter": "other"}),
        api.request(
            "POST", "/v0/topics/team-q", {"records": [{"data": 1}], "config": {"dead_letter": "other"}}
        ),
    ):
        assert_error(reply, 403, "forbidden", topic="other")
    taken(api.request("PUT", "/v0/topics/team-q", {"type": "queue", "dead_letter": "team-dead"}), 201)


def test_a_prefix_may_contain_colons(guarded: RunningServer) -> None:
    guarded.api("all").put("t2")
    assert_error(guarded.api("capped").state("t2"), 403, "forbidden")
    assert_error(guarded.api("capped").request("GET", "/v0/topics/%3Ax"), 404, "topic_not_found")


def test_the_decoded_name_is_compared(guarded: RunningServer) -> None:
    api = guarded.api("team")
    assert_error(api.request("GET", "/v0/topics/%74"), 403, "forbidden", topic="t")
    taken(api.request("PUT", "/v0/topics/%74eam%2Dx", {}), 201)
    assert_error(api.request("GET", "/v0/topics/team-%2F..%2Ft"), 404, "topic_not_found")


def test_a_list_shows_only_allowed_names(guarded: RunningServer) -> None:
    everything = guarded.api("all")
    for name in ("a", "shared", "shared1", "team", "team-1", "team-2", "z"):
        everything.put(name)
    api = guarded.api("team")

    def listed(**query: object) -> list[str]:
        return [topic["topic"] for topic in taken(api.topics(**query))["topics"]]

    assert listed() == ["shared", "shared1", "team-1", "team-2"]
    assert listed(prefix="team") == ["team-1", "team-2"]
    assert listed(prefix="team-2") == ["team-2"]
    assert listed(prefix="s") == ["shared", "shared1"]
    assert listed(prefix="z") == []


def test_pages_of_a_restricted_list_are_full_and_have_no_gaps(guarded: RunningServer) -> None:
    everything = guarded.api("all")
    for number in range(30):
        everything.put(f"{'team-' if number % 3 == 0 else 'other-'}{number:02}")
    api = guarded.api("team")
    found: list[str] = []
    query: dict[str, object] = {"page_size": 3}
    while True:
        page = taken(api.topics(**query))
        found += [topic["topic"] for topic in page["topics"]]
        if "next_cursor" not in page:
            break
        assert len(page["topics"]) == 3
        query["cursor"] = page["next_cursor"]
    assert found == [f"team-{number:02}" for number in range(0, 30, 3)]


def test_overlapping_prefixes_list_a_topic_once() -> None:
    with running(keys="all,both::a|ab") as server:
        for name in ("a", "ab", "abc", "b"):
            server.api("all").put(name)
        body = taken(server.api("both").topics())
        assert [topic["topic"] for topic in body["topics"]] == ["a", "ab", "abc"]


# --- Order -----------------------------------------------------------------------------------------------


def test_a_key_with_prefixes_sees_only_its_topics_and_routers_in_the_metrics() -> None:
    with running(keys="all,some:r:mine|shared") as server:
        api = server.api("all")
        for topic in ("mine-1", "mine-2", "others", "shared"):
            api.put(topic)
        api.put_router("mine-r", "mine-1", "mine-2")
        api.put_router("mine-x", "others", "shared")
        text = server.api("some").request("GET", "/v0/metrics").text
        assert set(re.findall(r'topic="([^"]*)"', text)) == {"mine-1", "mine-2", "shared"}
        assert set(re.findall(r'router="([^"]*)"', text)) == {"mine-r"}
        everything = api.request("GET", "/v0/metrics").text
        assert 'topic="others"' in everything and 'router="mine-x"' in everything


def test_the_scope_is_checked_before_the_prefix(guarded: RunningServer) -> None:
    with running(keys="k:read:p") as server:
        reply = server.api("k").put("other")
        assert_error(reply, 403, "forbidden")
        assert "topic" not in reply.json["error"].get("detail", {})


def test_the_prefix_is_checked_before_the_route(guarded: RunningServer) -> None:
    reply = guarded.api("team").request("POST", "/v0/topics/other/unknown", {})
    assert_error(reply, 403, "forbidden", topic="other")


def test_scope_and_prefix_are_checked_before_the_body(guarded: RunningServer) -> None:
    for secret, path in (("reader", "/v0/topics/t"), ("team", "/v0/topics/other")):
        reply = guarded.api(secret).request("POST", path, b"{nonsense", Content_Type="text/plain")
        assert_error(reply, 403, "forbidden")


def test_the_cap_is_checked_after_the_token_and_before_the_scope() -> None:
    with running(keys="k:read,other", max_inflight_per_key=1) as server:
        server.api("other").put("t")
        reader = server.api("k")
        answer = server.background(reader, lambda reader: reader.diff("t", wait_ms=20_000))
        server.until_parked("t")
        assert_error(server.api("k").put("t"), 429, "throttled", limit="max_inflight_per_key", max=1)
        assert_error(server.api("k").request("GET", "/nowhere"), 429, "throttled")
        assert_error(server.api("unknown").put("t"), 401, "unauthorized")
        taken(server.api("other").append("t"))
        taken(answer.result())
        assert_error(server.api("k").put("t"), 403, "forbidden")


# --- Starting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "no-such-host.invalid"])
def test_an_open_address_without_keys_is_refused_before_binding(host: str) -> None:
    with pytest.raises(InvalidConfig):
        TopicsServer(settings_of(host=host), memory=True)
    TopicsServer(settings_of(host=host, keys="secret"), memory=True)
    TopicsServer(settings_of(host=host, allow_insecure_no_auth=True), memory=True)


def test_an_unknown_scope_word_stops_the_start() -> None:
    with pytest.raises(InvalidConfig):
        settings_of(keys="secret:reed")
