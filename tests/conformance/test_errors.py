"""Sections 0.1, 0.5 and 0.6 over the wire: unknown routes, methods, HEAD, OPTIONS, browsers, framing."""

from __future__ import annotations

import socket

import pytest

from tests.support.http_cases import PATIENCE_S, Api, RunningServer, append_head, assert_error, running, taken

METHODS = {
    "/v0/topics": {"GET"},
    "/v0/topics/t": {"DELETE", "GET", "POST", "PUT"},
    "/v0/topics/t/diff": {"POST"},
    "/v0/topics/t/delete": {"POST"},
    "/v0/health": {"GET"},
    "/healthz": {"GET"},
    "/v0/ready": {"GET"},
    "/readyz": {"GET"},
    "/v0/metrics": {"GET"},
    "/": {"GET"},
}


def with_head(methods: set[str]) -> set[str]:
    """All methods that a path answers."""
    return methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())


def allowed_in(header: str) -> set[str]:
    return {method.strip() for method in header.split(",")}


@pytest.mark.parametrize(
    "path",
    [
        "/v0",
        "/v0/",
        "/v1/topics",
        "/V0/topics",
        "/topics",
        "/v0/topic",
        "/health",
        "/v0/healthz",
        "//v0/topics",
        "/v0//topics",
        "/v0/topics/t/",
        "/v0/topics/t/unknown",
        "/v0/topics/t/diff/",
        "/v0/topics/t/diff/x",
        "/v0/topics/t/Diff",
        "/v0/topics/t%2Fdiff/x",
        "/v0/health/",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
def test_an_unknown_route_is_not_found(api: Api, method: str, path: str) -> None:
    assert_error(api.request(method, path, {} if method != "GET" else None), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/v0/topics/t/dif", "/v0/topics/t/diff"),
        ("/v0/topic", "/v0/topics"),
        ("/v0/heatlh", "/v0/health"),
        ("/qqqqqqqqqqqqqqqqqqqq", None),
    ],
)
def test_an_unknown_route_is_named_with_the_nearest_one(api: Api, path: str, nearest: str | None) -> None:
    reply = api.request("GET", path)
    assert_error(reply, 404, "not_found", path=path)
    assert path in reply.json["error"]["message"]
    assert reply.json["error"]["detail"].get("nearest") == nearest
    assert nearest is None or nearest in reply.json["error"]["message"]


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"])
def test_another_method_is_405_and_told_which_are_allowed(api: Api, method: str, path: str) -> None:
    if method in METHODS[path]:
        return
    reply = api.request(method, path)
    assert_error(reply, 405, "method_not_allowed")
    assert allowed_in(reply.headers["allow"]) == with_head(METHODS[path])
    assert method not in allowed_in(reply.headers["allow"])


@pytest.mark.parametrize("path", METHODS)
def test_options_tells_the_methods(api: Api, path: str) -> None:
    reply = api.request("OPTIONS", path)
    assert allowed_in(reply.headers["allow"]) == with_head(METHODS[path])
    assert (reply.status, reply.text) == (204, "")
    assert allowed_in(reply.headers["allow"]) >= METHODS[path]
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_head_answers_as_get_without_a_body(api: Api) -> None:
    api.put("t")
    for path in ("/v0/topics/t", "/v0/topics", "/v0/health", "/v0/ready", "/v0/metrics"):
        reply = api.request("HEAD", path)
        assert (reply.status, reply.text) == (200, "")
        assert int(reply.headers["content-length"]) > 0
    assert api.request("HEAD", "/v0/topics/absent").status == 404
    assert api.request("HEAD", "/v0/topics/t/diff").status == 405


def test_a_connection_serves_many_requests_also_after_errors(api: Api) -> None:
    api.put("t")
    port = api.http.local_port
    assert port is not None
    api.state("absent")
    api.request("POST", "/v0/topics/t", b"{")
    api.request("POST", "/v0/topics/t", b"", Content_Type="text/plain")
    taken(api.state("t"))
    assert api.http.local_port == port


def test_success_bodies_are_bare_objects(api: Api) -> None:
    for reply in (api.put("t"), api.append("t"), api.diff("t"), api.state("t"), api.topics(), api.drop("t")):
        assert reply.headers["content-type"] == "application/json"
        assert not {"ok", "status"} & set(reply.json)
        assert "server_total_ms" in reply.json["performance"]


def test_messages_stay_short_whatever_was_sent(api: Api) -> None:
    long = "x" * 1_000_000
    api.put("t")
    for reply in (
        api.put("t", type=long),
        api.delete("t", match=["tag", long, long]),
        api.topics(cursor="é" * 2000),
        api.put("a" * 10_000),
    ):
        assert reply.status == 400
        assert len(reply.text) < 4096


# --- Other origins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:99", "127.0.0.1", "127.9.9.9:1", "[::1]:4000", "a.localhost"]
)
def test_loopback_names_are_answered(api: Api, host: str) -> None:
    assert api.request("GET", "/v0/topics", Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:4000", "127.0.0.1.evil.example", "10.0.0.1", "", "[x", "[::1]x"),
        *("127.0.0.1:80@evil.example", "localhost:80, evil.example", "localhost:80:80", "localhost:http"),
    ],
)
@pytest.mark.parametrize("path", ["/v0/topics", "/v0/health", "/v0/metrics", "/nothing", "/v0/ws"])
def test_a_request_to_another_host_is_misdirected(api: Api, host: str, path: str) -> None:
    for method in ("GET", "OPTIONS"):
        assert_error(api.request(method, path, Host=host), 421, "misdirected_request")


def test_configured_hosts_are_answered() -> None:
    with running(allowed_hosts=("topics.example",)) as server:
        assert server.api().request("GET", "/v0/topics", Host="Topics.example:443").status == 200
        assert_error(server.api().request("GET", "/v0/topics", Host="x.example"), 421, "misdirected_request")
    with running(allowed_hosts=("*",)) as server:
        assert server.api().request("GET", "/v0/topics", Host="x.example").status == 200


FOREIGN = [
    {"Origin": "https://page.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://page.example", "Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v0/topics"),
        ("GET", "/v0/topics/q/work?node=w"),
        ("DELETE", "/v0/topics/t"),
        ("OPTIONS", "/v0/topics"),
    ],
)
def test_pages_of_other_sites_are_refused(api: Api, headers: dict[str, str], method: str, path: str) -> None:
    reply = api.request(method, path, **headers)
    assert_error(reply, 403, "forbidden")
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_an_image_of_a_page_leases_no_jobs(api: Api) -> None:
    api.put("q", type="queue", max_deliveries=1, dead_letter="dead")
    api.fill("q", 1, 2)
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"User-Agent": "Mozilla/5.0 (an old one)"}):
        assert_error(api.request("GET", "/v0/topics/q/work?node=w&max=9", **headers), 403, "forbidden")
    assert taken(api.state("q"))["queue"] == {"ready": 2, "in_flight": 0, "dead_lettered": 0}


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_a_page_of_the_server_itself_and_a_typed_address_are_answered(api: Api, site: str) -> None:
    headers = {"Host": "localhost:7", "Origin": "http://localhost:7", "Sec-Fetch-Site": site}
    assert api.request("GET", "/v0/topics", **headers).status == 200


def test_an_allowed_origin_may_read_answers_and_errors() -> None:
    with running(cors_origins=("https://page.example",), keys="k") as server:
        api = server.api("k")
        for path, status in (("/v0/topics", 200), ("/v0/topics/absent", 404), ("/v0/metrics", 200)):
            reply = api.request("GET", path, Origin="https://page.example")
            assert reply.status == status
            assert reply.headers["access-control-allow-origin"] == "https://page.example"
            assert reply.headers["vary"] == "Origin"
            assert "retry-after" in reply.headers["access-control-expose-headers"].lower()
            other = api.request("GET", path, Origin="https://other.example")
            assert "access-control-allow-origin" not in other.headers


def test_a_preflight_needs_no_key() -> None:
    with running(cors_origins=("*",), keys="k") as server:
        reply = server.api().request(
            "OPTIONS",
            "/v0/topics/t",
            Origin="https://any.example",
            Access_Control_Request_Method="PUT",
            Access_Control_Request_Headers="authorization,content-type",
        )
        assert reply.status == 204
        assert reply.headers["access-control-allow-origin"] == "https://any.example"
        assert allowed_in(reply.headers["access-control-allow-methods"]) >= METHODS["/v0/topics/t"]
        headers = reply.headers["access-control-allow-headers"].lower()
        assert {"authorization", "content-type", "idempotency-key"} <= allowed_in(headers)


# --- Hostile clients -------------------------------------------------------------------------------------


def spoken(server: RunningServer, sent: bytes) -> bytes:
    """Everything the server says to these bytes, until it closes or the client has ended its side."""
    with socket.create_connection(server.server.address, PATIENCE_S) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while piece := sock.recv(65536):
            received += piece
    return received


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, b"invalid_request"),
        (b"GET /v0/topics HTTP/9.9\r\n\r\n", 400, b"invalid_request"),
        (
            b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
            400,
            b"invalid_request",
        ),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, b"invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431, b"invalid_request"),
    ],
)
def test_framework_errors_have_the_error_shape_too(
    server: RunningServer, sent: bytes, status: int, code: bytes
) -> None:
    received = spoken(server, sent)
    assert received.startswith(b"HTTP/1.1 %d " % status), received[:200]
    assert b'{"error":{"code":"%b"' % code in received


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    server.api().put("t")
    body = b'{"records":[{"data":1}]}'
    received = spoken(server, (append_head(len(body)) + body) * 40)
    seqs = [int(part.split(b",")[0]) for part in received.split(b'"first_seq":')[1:]]
    assert seqs == list(range(1, 41))


def test_a_client_that_stops_in_the_middle_of_a_body_appends_nothing(server: RunningServer) -> None:
    api = server.api()
    api.put("t")
    spoken(server, append_head(2400) + b'{"records":[{"data":1}]}')
    assert taken(api.state("t"))["head_seq"] == 0
