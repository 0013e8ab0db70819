"""`everlog console`: the console of this machine for a server elsewhere; other pages must not reach it."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.command_lines import run, started
from tests.support.server_processes import running_server


@contextmanager
def console_of(url: str) -> Iterator[int]:
    """The command for a server; gives its port. It must end with exit code 0."""
    with started("everlog", "console", "--url", url) as command:
        line = command.line()
        yield int(line.strip().rstrip("/").rpartition(":")[2])
        assert command.end(signal.SIGTERM)[0] == 0


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    text = None if body is None else json.dumps(body)
    spelled = {name.replace("_", "-"): value for name, value in headers.items()}
    if text is not None:
        spelled["Content-Type"] = "application/json"
    try:
        connection.request(method, path, text, spelled)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_calls_are_passed_on_with_their_key_and_files_come_from_here(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('api_keys = ["secret"]\n')
    with (
        running_server(tmp_path, "--config", tmp_path / "server.toml", key="secret") as server,
        console_of(server.url) as port,
    ):
        assert b"<everlog-console>" in ask(port, "GET", "/", Accept="text/html")[1]
        assert ask(port, "GET", "/console/app.js")[0] == 200
        assert ask(port, "GET", "/v0/overview")[0] == 401
        key = {"Authorization": "Bearer secret"}
        status, body = ask(port, "POST", "/v0/topics/orders?strict=true", {"records": [{"data": 1}]}, **key)
        assert (status, json.loads(body)["head_seq"]) == (201, 1)
        assert json.loads(ask(port, "GET", "/v0/overview", **key)[1])["appended_total"] == 1
        assert ask(port, "GET", "/openapi.json")[0] == 200


def test_other_pages_hosts_and_streams_are_refused(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, console_of(server.url) as port:
        assert ask(port, "GET", "/v0/overview", Origin="https://evil.example")[0] == 403
        assert ask(port, "GET", "/v0/overview", Host="evil.example")[0] == 421
        for path in ("/v0/watch/wid_x", "/v0/ws", "/v0/topics/q/work?node=n", "/metrics", "/console/no.js"):
            assert ask(port, "GET", path)[0] == 404, path
        server.stop_cleanly()
        status, body = ask(port, "GET", "/v0/overview")
        assert (status, json.loads(body)["error"]["code"]) == (502, "unreachable")


def test_an_address_that_is_none_is_refused() -> None:
    done = run("everlog", "console", "--url", "ftp://somewhere")
    assert done.returncode != 0
    assert "http://HOST:PORT" in done.stderr + done.stdout
