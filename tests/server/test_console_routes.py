"""What is served at the root: the files of the console with their guards, links, the documents of the API."""

from __future__ import annotations

import gzip
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import everlog
from everlog.server.console_routes import POLICY, console_files
from tests.support.http_cases import running

ROOT = Path(__file__).resolve().parents[2]
CONSOLE = ROOT / "src/everlog/server/console"
WIRE_BYTES_MAX = 250_000
# Ways to make markup or code out of text; none of them has a place in the console.
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(keys="secret") as server:
        yield server.server.address[1]


def ask(port: int, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_the_root_is_a_page_for_a_browser_and_links_for_all_else(port: int) -> None:
    answer, body = ask(port, "/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"<everlog-console>" in body
    for accept in ("*/*", "application/json"):
        answer, body = ask(port, "/", Accept=accept)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        index = json.loads(body)
        assert index["version"] == everlog.__version__
        for path in ("openapi", "asyncapi", "health"):
            assert ask(port, index["links"][path])[0].status == 200


def test_every_file_is_guarded_and_needs_no_key(port: int) -> None:
    names = sorted(path.name for path in CONSOLE.iterdir())
    assert sorted(console_files()) == names
    for name in names:
        answer, body = ask(port, f"/console/{name}")
        assert answer.status == 200, name
        assert answer.headers["Content-Security-Policy"] == POLICY.decode()
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert body == (CONSOLE / name).read_bytes()
    assert "unsafe" not in POLICY.decode()
    for path in (
        "/console/",
        "/console/nothing.js",
        "/console/../console_routes.py",
        "/console/%2e%2e/app.py",
    ):
        assert ask(port, path)[0].status in (401, 404), path


def test_a_browser_that_has_a_file_is_told_so(port: int) -> None:
    answer, _ = ask(port, "/console/app.js")
    again, body = ask(port, "/console/app.js", If_None_Match=answer.headers["ETag"])
    assert (again.status, body) == (304, b"")


def test_the_console_is_small_over_the_wire(port: int) -> None:
    total = 0
    for name, file in console_files().items():
        answer, body = ask(port, f"/console/{name}", Accept_Encoding="gzip")
        assert answer.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(body) == file.content
        total += len(body) + len(bytes(answer.headers))
    assert total <= WIRE_BYTES_MAX


def test_the_documents_are_those_of_the_reference(port: int) -> None:
    for name in ("openapi.json", "asyncapi.json"):
        answer, body = ask(port, f"/{name}")
        assert answer.headers["Content-Type"] == "application/json"
        assert body == (ROOT / "docs/reference" / name).read_bytes()


def test_no_source_of_the_console_makes_markup_of_text_or_loads_from_elsewhere() -> None:
    for path in CONSOLE.iterdir():
        text = path.read_text(encoding="utf-8")
        assert MARKUP.findall(text) == [], path.name
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert addresses == set(), path.name
    page = (CONSOLE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page) == []
