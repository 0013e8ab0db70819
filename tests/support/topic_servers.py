"""Topics servers as processes, commands against them, and servers that answer whatever a test scripts.

Owns starting and ending; every server listens on 127.0.0.1 on a port that it chose itself.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from everlog.cli.main import app
from everlog.client.http_api import ApiFailed, HttpApi
from tests.support.command_lines import Started, command_line, readable, started
from tests.support.processes import PATIENCE_S, eventually

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


# --- Real servers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningServer:
    """A server process that is ready."""

    url: str
    command: Started

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def stop(self) -> tuple[int, str, str]:
        """End it by SIGTERM; return the exit code and what it printed."""
        return self.command.end(signal.SIGTERM)


@contextmanager
def running_server(
    folder: Path, *flags: object, port: int = 0, key: str | None = None
) -> Iterator[RunningServer]:
    """A server with its data in `folder`, from the moment it is ready; killed if it runs at the end."""
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    place = () if "--memory" in flags else ("--data-dir", folder / "data")
    with started("everlog", "serve", "--port", port, "--port-file", port_file, *place, *flags) as command:
        eventually("the server listens", lambda: port_file.exists() or command.process.poll() is not None)
        assert command.process.poll() is None, command.wait()
        url = f"http://{port_file.read_text().strip()}"
        with HttpApi(url, key) as api:
            eventually("the server is ready", lambda: is_ready(api))
        yield RunningServer(url, command)


def is_ready(api: HttpApi) -> bool:
    """Whether the server says so."""
    try:
        return bool(api.get("/ready", dict[str, Any])["wal_replay_complete"])
    except ApiFailed:
        return False


# --- Commands --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TopicCommands:
    """`everlog topic ...`, or another noun, against one server, run in this process."""

    url: str
    noun: str = "topic"

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Run a command and return its standard output."""
        return self.run(*arguments, code=code)[0]

    def json(self, *arguments: object, code: int = 0) -> Any:
        """The document that a command prints with --json."""
        return json.loads(self(*arguments, "--json", code=code))

    def lines(self, *arguments: object, code: int = 0) -> list[Any]:
        """The JSON lines that a command prints with --json."""
        return [json.loads(line) for line in self(*arguments, "--json", code=code).splitlines()]

    def error(self, *arguments: object, code: int = 1) -> Any:
        """What a command that fails says with --json."""
        return json.loads(self.run(*arguments, "--json", code=code)[1].splitlines()[-1])["error"]

    def run(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """Run a command; return its standard output and standard error."""
        words = [self.noun, *map(str, arguments), "--url", self.url]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.stdout, result.stderr


def with_input(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `everlog ...` as a process that reads `text` from its standard input."""
    return subprocess.run(
        command_line("everlog", *arguments),
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


class Terminal:
    """A command on a pseudo terminal, with a person who reads and types."""

    def __init__(self, *arguments: object) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            command_line("everlog", *arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        self.shown = ""

    def until(self, pattern: str) -> str:
        """Read until the pattern is shown; return everything shown so far."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.shown):
            assert self._read(deadline_s), f"{pattern!r} was not shown: {self.shown!r}"
        return self.shown

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._ours, text.encode())

    def wait(self) -> int:
        """Read to the end; return the exit code."""
        while self._read(time.monotonic() + PATIENCE_S):
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self, deadline_s: float) -> bool:
        ready = readable(self._ours, deadline_s - time.monotonic())
        try:
            data = os.read(self._ours, 65536) if ready else b""
        except OSError:  # the other side is closed
            data = b""
        self.shown += _STYLE.sub("", data.decode(errors="replace"))
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


# --- Scripted servers ------------------------------------------------------------------------------------


def http_answer(status: int, body: bytes, *headers: str, close: bool = False) -> bytes:
    """An HTTP response."""
    lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(body)}", *headers]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


class ScriptedServer:
    """Gives, connection by connection, one scripted answer after each request, then closes."""

    def __init__(self, *connections: Sequence[bytes]) -> None:
        self._script = connections
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        for answers in self._script:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the test is over
            with connection:
                connection.settimeout(PATIENCE_S)
                for answer in answers:
                    request = _read_request(connection)
                    if not request:
                        break
                    self.requests.append(request)
                    connection.sendall(answer)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def _read_request(connection: socket.socket) -> bytes:
    request = b""
    while True:
        head, end, body = request.partition(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: (\d+)", head)
        if end and len(body) >= (int(found[1]) if found else 0):
            return request
        data = connection.recv(65536)
        if not data:
            return b""
        request += data
