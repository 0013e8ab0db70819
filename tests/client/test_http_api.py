"""The client of the commands: addresses, keep-alive, repeated requests, failures in words."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.client.wire import ServerAddress
from everlog.errors import InvalidConfig
from tests.support.http_api import UNREACHABLE, ApiFailed, Backoff, HttpApi, topic_path
from tests.support.server_processes import running_server
from tests.support.tcp_peers import ScriptedServer, http_answer

Document = dict[str, Any]
OK = http_answer(200, b'{"fine":true}')
BUSY = ApiFailed(503, "not_ready", "soon", None, retry_after_s=1.0)
GONE = ApiFailed(UNREACHABLE, "unreachable", "gone")


@pytest.mark.parametrize(
    ("url", "place", "shown"),
    [
        ("http://127.0.0.1:4000", ("127.0.0.1", 4000, False, ""), "http://127.0.0.1:4000"),
        ("localhost:81/", ("localhost", 81, False, ""), "http://localhost:81"),
        ("https://example.org/logs/v0/", ("example.org", 443, True, "/logs"), "https://example.org:443/logs"),
        ("http://[::1]:5", ("::1", 5, False, ""), "http://[::1]:5"),
        ("http://host/v0", ("host", 80, False, ""), "http://host:80"),
    ],
)
def test_a_url_says_where_the_server_is(url: str, place: tuple[str, int, bool, str], shown: str) -> None:
    found = ServerAddress.parse(url)
    assert (found.host, found.port, found.is_tls, found.prefix) == place
    assert str(found) == shown


@pytest.mark.parametrize(
    "url", ["", "ftp://host", "http://", "http://host:70000", "http://host?x=1", "http://[x"]
)
def test_a_url_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"http://127\.0\.0\.1:4000"):
        ServerAddress.parse(url)


def test_a_secret_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidConfig) as raised:
        ServerAddress.parse("http://user:sesame@host")
    assert "sesame" not in str(raised.value)


@given(st.text(min_size=1))
def test_any_name_stays_one_segment_of_the_path(name: str) -> None:
    encoded = name.encode("utf-8", "surrogatepass")
    text = encoded.decode("utf-8", "surrogateescape")
    path = topic_path(text, "/diff")
    assert path.isascii()
    assert path.count("/") == 3
    segment = path.split("/")[2]
    assert segment not in (".", "..")
    assert unquote(segment, errors="surrogateescape") == text


def test_one_connection_carries_several_requests() -> None:
    with ScriptedServer([OK, OK, OK]) as server, HttpApi(server.url) as api:
        for _ in range(3):
            assert api.get("/topics", Document) == {"fine": True}
        assert len(server.requests) == 3


def test_a_request_holds_method_path_query_body_and_key() -> None:
    with ScriptedServer([OK]) as server, HttpApi(f"{server.url}/logs", "sesame") as api:
        api.call("POST", topic_path("a b"), Document, body={"x": 1}, query={"q": "ä&"})
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /logs/v0/topics/a%20b?q=%C3%A4%26&strict=true HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer sesame\r\n" in head + b"\r\n"
    assert b"\r\nContent-Type: application/json" in head
    assert json.loads(body) == {"x": 1}


def test_without_a_key_no_authorization_is_sent() -> None:
    with ScriptedServer([OK]) as server, HttpApi(server.url, "") as api:
        api.get("/topics", Document)
        assert b"uthorization" not in server.requests[0]


@pytest.mark.parametrize("key", ["ses\r\name", "ses\name", "\0sesame"])
def test_a_key_that_would_break_the_header_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidConfig, match="EVERLOG_KEY") as raised:
        HttpApi(key=key)
    assert "same" not in str(raised.value)


@pytest.mark.parametrize(("method", "repeatable"), [("GET", False), ("PUT", False), ("POST", True)])
def test_a_connection_that_was_closed_while_idle_is_opened_again(method: str, repeatable: bool) -> None:
    with ScriptedServer([OK], [OK]) as server, HttpApi(server.url) as api:
        api.get("/topics", Document)
        assert api.call(method, "/topics", Document, body={}, repeatable=repeatable) == {"fine": True}
        assert len(server.requests) == 2


def test_a_request_that_may_do_harm_twice_is_not_repeated() -> None:
    with ScriptedServer([OK, b""], [OK]) as server, HttpApi(server.url) as api:
        api.get("/topics", Document)
        with pytest.raises(ApiFailed) as raised:
            api.call("POST", "/topics", Document, body={})
        assert raised.value.is_outage
        assert len(server.requests) == 2
        assert api.get("/topics", Document) == {"fine": True}  # the next one opens a new connection


def test_a_server_that_announces_the_end_of_the_connection_is_believed() -> None:
    closing = http_answer(200, b"{}", close=True)
    with ScriptedServer([closing], [OK]) as server, HttpApi(server.url) as api:
        api.get("/topics", Document)
        assert api.call("POST", "/topics", Document) == {"fine": True}


def test_a_refusal_carries_code_message_detail_and_when_to_come_back() -> None:
    body = b'{"error":{"code":"throttled","message":"full","detail":{"limit":"max_topics","max":1}}}'
    with ScriptedServer([http_answer(429, body, "Retry-After: 7")]) as server, HttpApi(server.url) as api:
        with pytest.raises(ApiFailed) as raised:
            api.get("/topics", Document)
        assert len(server.requests) == 1
    error = raised.value
    assert str(error) == "full"
    assert (error.status, error.code, error.retry_after_s) == (429, "throttled", 7.0)
    assert error.detail == {"limit": "max_topics", "max": 1}
    assert error.is_busy
    assert not error.is_outage


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (http_answer(502, b"<html>Bad Gateway</html>"), "not_everlog", "answered 502"),
        (http_answer(302, b"", "Location: http://elsewhere"), "not_everlog", "answered 302"),
        (http_answer(404, b'{"error":"no"}'), "not_everlog", "check the URL"),
        (http_answer(200, b"<html>hello</html>"), "not_everlog", "answered 200"),
        (http_answer(200, b"[1]"), "not_everlog", "answered 200"),
        (b"SSH-2.0-OpenSSH\r\n", "unreachable", "does not speak HTTP"),
        (b"", "unreachable", "cannot reach the server"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "unreachable", "broke off"),
    ],
)
def test_whatever_else_answers_is_told_in_words(answer: bytes, code: str, words: str) -> None:
    with ScriptedServer([answer]) as server, HttpApi(server.url, "sesame") as api:
        with pytest.raises(ApiFailed, match=words) as raised:
            api.get("/topics", Document)
        assert raised.value.code == code
        assert server.url in str(raised.value)
        assert "sesame" not in str(raised.value)


def test_nothing_listening_is_told_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with HttpApi(f"http://127.0.0.1:{port}") as api, pytest.raises(ApiFailed, match="everlog serve"):
        api.get("/topics", Document)


def test_a_silent_server_is_given_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with HttpApi(url, timeout_s=0.05) as api, pytest.raises(ApiFailed, match=r"within 0\.05 s"):
            api.get("/topics", Document)


def test_a_refusal_before_the_whole_body_was_sent_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_MAX_BODY_BYTES", "1000")
    with running_server(tmp_path, "--memory") as server, HttpApi(server.url) as api:
        with pytest.raises(ApiFailed) as raised:
            api.call("POST", topic_path("t"), Document, body={"x": "y" * 5_000_000})
        assert (raised.value.status, raised.value.code) == (413, "payload_too_large")
        assert api.get("/topics", Document)["topics"] == []


@given(st.integers(1, 30))
def test_pauses_grow_to_a_bound_and_honour_the_server(tries: int) -> None:
    backoff = Backoff()
    pauses = [backoff.pause_s(GONE) for _ in range(tries)]
    for number, pause_s in enumerate(pauses):
        longest_s = min(Backoff.FIRST_S * 2**number, Backoff.LONGEST_S)
        assert longest_s / 2 <= pause_s <= longest_s
    assert Backoff().pause_s(BUSY) == 1.0
