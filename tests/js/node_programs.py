"""Node, and the JavaScript client in it as the client of the server's conformance cases."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_cases import JSON, PATIENCE_S, Reply

FOLDER = Path(__file__).resolve().parent


def find_node() -> str:
    """The program; the test is skipped, saying so, where it is not installed."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("no Node is installed; the JavaScript client needs version 18 or newer")
    return program


class NodeProgram:
    """One process of `exchange.mjs`: requests from any thread go through the JavaScript client."""

    def __init__(self, node: str) -> None:
        self._process = subprocess.Popen(
            [node, str(FOLDER / "exchange.mjs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ids = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(answer)

    def exchange(self, **request: Any) -> Any:
        """Send a request and wait for its answer."""
        number, future = next(self._ids), Future[Any]()
        self._waiting[number] = future
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"id": number, **request}) + "\n")
            self._process.stdin.flush()
        return future.result(PATIENCE_S)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(PATIENCE_S)


class NodeClient:
    """The JavaScript client as the client of the conformance cases; see `http_cases.Client`."""

    def __init__(self, program: NodeProgram, address: tuple[str, int], token: str | None = None) -> None:
        self._program = program
        self._url = "http://{}:{}".format(*address)
        self._token = token

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str | None] | None = None
    ) -> Reply:
        """Send a request and wait for its reply."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        wanted: dict[str, str | None] = {} if data is None else {"Content-Type": JSON}
        wanted |= headers or {}
        answer = self._program.exchange(
            url=self._url,
            key=self._token,
            method=method,
            path=path,
            body=None if data is None else base64.b64encode(data).decode(),
            headers={name: value for name, value in wanted.items() if value is not None},
        )
        assert "failure" not in answer, answer["failure"]
        is_json = answer["headers"].get("content-type") == JSON and bool(answer["text"])
        found = json.loads(answer["text"]) if is_json else None
        return Reply(answer["status"], answer["headers"], found, answer["text"])

    def close(self) -> None:
        """There is nothing to give back: connections belong to Node."""
