"""Clients of a server that runs as a process of its own: plain requests, event streams and WebSockets.

They are made of the standard library and the package `websockets`, so nothing of everlog's own client code
can hide a mistake of the server. A lost connection is an `OSError`, whatever it looked like.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

from tests.support.watch_servers import Frame, parse_frame

TIMEOUT_S = 30.0


class Reply(NamedTuple):
    """The answer to a request."""

    status: int
    json: Any

    @property
    def code(self) -> str | None:
        """The code of an error, None for a success."""
        return None if self.status < 300 else str(self.json["error"]["code"])


class PlainClient:
    """One keep-alive connection that is opened again after it was lost."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """Send a request; OSError if there was no whole answer."""
        content = None if body is None else json.dumps(body).encode()
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        if content is not None:
            spelled["Content-Type"] = "application/json"
        try:
            self._connection.request(method, f"/v0{path}", content, spelled)
            answer = self._connection.getresponse()
            return Reply(answer.status, json.loads(answer.read()))
        except http.client.HTTPException as error:
            self._connection.close()
            raise ConnectionError(f"no whole answer: {error!r}") from error
        except OSError:
            self._connection.close()
            raise

    def append(self, topic: str, records: Sequence[object], **fields: object) -> Reply:
        """Append records."""
        return self.ask("POST", f"/topics/{topic}", {"records": list(records), **fields})

    def diff(self, topic: str, from_seq: int = 0, **fields: object) -> Reply:
        """Read from a cursor."""
        return self.ask("POST", f"/topics/{topic}/diff", {"from_seq": from_seq, **fields})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class EventStream:
    """An open stream of server-sent events, frame by frame."""

    def __init__(
        self, url: str, path: str, last_event_id: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        try:
            self._connection.request("GET", path, headers=headers)
            self._answer = self._connection.getresponse()
        except http.client.HTTPException as error:
            self._connection.close()
            raise ConnectionError(f"no stream: {error!r}") from error
        self.status = self._answer.status

    def frames(self) -> Iterator[Frame]:
        """Every frame up to the end of the stream; OSError if the connection is lost."""
        text = b""
        try:
            while line := self._answer.readline():
                if line != b"\n":
                    text += line
                elif text:
                    yield parse_frame(text.rstrip(b"\n"))
                    text = b""
        except http.client.HTTPException as error:
            raise ConnectionError(f"the stream broke off: {error!r}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class JsonSocket:
    """A WebSocket of the package `websockets` that speaks JSON."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S, **headers: str) -> None:
        self._timeout_s = timeout_s
        self._open = ExitStack()
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        address = url.replace("http://", "ws://", 1) + "/v0/ws"
        try:
            # No proxy of the environment: the server is on this machine.
            self.connection: ClientConnection = self._open.enter_context(
                connect(
                    address, additional_headers=spelled, open_timeout=timeout_s, max_size=None, proxy=None
                )
            )
        except (InvalidHandshake, EOFError) as error:
            raise ConnectionError(f"no socket: {error!r}") from error

    def send(self, **message: object) -> None:
        """Send a command."""
        try:
            self.connection.send(json.dumps(message))
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    def receive(self) -> dict[str, Any]:
        """The next message; OSError if none will come."""
        try:
            text = self.connection.recv(self._timeout_s)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error
        assert isinstance(text, str)
        message: dict[str, Any] = json.loads(text)
        return message

    def until(self, op: str) -> list[dict[str, Any]]:
        """All messages up to the first with this `op`."""
        messages = [self.receive()]
        while messages[-1]["op"] != op:
            messages.append(self.receive())
        return messages

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
