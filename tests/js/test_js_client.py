"""The JavaScript client in Node: its cases with and without a key, a watch across kills of the server."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.js.node_programs import FOLDER, find_node
from tests.support.processes import PATIENCE_S
from tests.support.server_clients import PlainClient
from tests.support.server_processes import running_server

CASES = re.findall(r"^  async (\w+)\(", (FOLDER / "cases.mjs").read_text(), re.MULTILINE)
CLIENT = FOLDER.parents[1] / "clients" / "js"
GUIDE = CLIENT.parents[1] / "docs" / "guide" / "javascript.md"
KEY = "js-key-0123456789"


@pytest.mark.parametrize("key", [None, KEY])
def test_every_case_of_the_client_holds(
    key: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key is not None:
        monkeypatch.setenv("TOPICS_API_KEYS", key)
    with running_server(tmp_path, key=key) as server:
        command = [find_node(), str(FOLDER / "run_cases.mjs"), server.url, *([key] if key else [])]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * 4, check=False)
    assert ended.returncode == 0, ended.stderr
    outcomes = {found["name"]: found["failure"] for found in map(json.loads, ended.stdout.splitlines())}
    assert outcomes == dict.fromkeys(CASES), ended.stderr


def test_a_watch_continues_after_kills_without_a_missing_or_repeated_record(tmp_path: Path) -> None:
    node = find_node()
    with running_server(tmp_path) as server:
        port, url = server.port, server.url
        with PlainClient(url) as client:
            client.append("orders", [{"data": number} for number in range(10)])
        watching = subprocess.Popen(
            [node, str(FOLDER / "watch.mjs"), url, "30"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert watching.stdout is not None
            seen = [int(watching.stdout.readline()) for _ in range(10)]
            server.kill()
            for start in (10, 20):
                with running_server(tmp_path, port=port) as again, PlainClient(again.url) as client:
                    client.append("orders", [{"data": number} for number in range(start, start + 10)])
                    seen += [int(watching.stdout.readline()) for _ in range(10)]
                    again.kill()
            assert watching.wait(PATIENCE_S) == 0
        finally:
            watching.kill()
            watching.wait()
    assert seen == list(range(1, 31))


def test_the_types_name_every_method_of_the_client() -> None:
    source = (CLIENT / "everlog.js").read_text()
    methods = set(
        re.findall(r"^  (?:async )?\*?([a-z]\w+)\(.*\{$", source.split("class Watched")[0], re.MULTILINE)
    )
    methods -= {"constructor", "reset", "pause", "for", "while", "if", "catch", "switch"}
    typed = set(
        re.findall(r"^  ([a-z]\w+)(?:<[^(]*>)?\(", (CLIENT / "everlog.d.ts").read_text(), re.MULTILINE)
    )
    assert {"append", "read", "watch", "claim", "putConsumer", "putSchedule"} <= methods
    assert methods <= typed | {"isBusy", "isOutage"}


def test_the_example_of_the_guide_prints_what_it_shows(tmp_path: Path) -> None:
    code, shown = re.findall(r"^```(?:js|text)\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    with running_server(tmp_path) as server:
        program = tmp_path / "example.mjs"
        module = (CLIENT / "everlog.js").as_uri()
        program.write_text(
            code.replace('"everlog"', f'"{module}"').replace("http://127.0.0.1:4000", server.url)
        )
        ended = subprocess.run(
            [find_node(), str(program)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert (ended.stdout, ended.stderr) == (shown, "")
