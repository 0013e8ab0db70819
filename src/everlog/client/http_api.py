"""A small synchronous client of a topics server, for commands.

Owns one kept-alive connection, its timeouts, and how failures are told: everything that goes wrong between
here and the server, and everything the server refuses, is an `ApiFailed`. Prints nothing, repeats nothing
that may do harm, and never puts the key into a message. Programs use `everlog.Client`, which does more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import urlencode

import msgspec

from everlog.client.connection import Connection
from everlog.client.encoding import encode
from everlog.client.errors import BUSY_STATUSES, GATEWAY_STATUSES, UNREACHABLE, ApiFailed
from everlog.client.wire import (
    DEFAULT_URL,
    TIMEOUT_S,
    Answer,
    Place,
    RequestWriter,
    foreign,
    refusal,
    topic_path,
)

__all__ = [
    "BUSY_STATUSES",
    "DEFAULT_URL",
    "GATEWAY_STATUSES",
    "TIMEOUT_S",
    "UNREACHABLE",
    "ApiFailed",
    "Backoff",
    "HttpApi",
    "Place",
    "topic_path",
]

_Answer = TypeVar("_Answer")


class HttpApi:
    """One server, reached through one connection that is opened when needed and kept."""

    def __init__(self, url: str = DEFAULT_URL, key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.place = Place.parse(url)
        self._timeout_s = timeout_s
        self._writer = RequestWriter(self.place, key)
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the next call opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def get(self, path: str, kind: type[_Answer], query: Mapping[str, str] | None = None) -> _Answer:
        """GET a route and read its answer as `kind`."""
        return self.call("GET", path, kind, query=query)

    def call(
        self,
        method: str,
        path: str,
        kind: type[_Answer],
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        repeatable: bool = False,
        wait_s: float = 0.0,
    ) -> _Answer:
        """Send a request with a JSON body and read its answer as `kind`.

        A connection that the server closed while it was idle is opened again and the request repeated, if
        its method or the caller says that this does no harm. `wait_s` is what the server may take by plan.
        """
        answer = self._ask(method, path, body, query, repeatable, wait_s)
        return self._decoded(answer.body, kind, f"{method} {path}", answer.status)

    def fetch(self, method: str, path: str, *, body: object = None, repeatable: bool = False) -> bytes:
        """As `call`, for an answer that is taken as the text it is; see `decode`."""
        return self._ask(method, path, body, None, repeatable, 0.0).body

    def decode(self, text: bytes, kind: type[_Answer], what: str) -> _Answer:
        """Read the text of an answer as `kind`; `what` names it if it is something else."""
        return self._decoded(text, kind, what, HTTPStatus.OK)

    def _decoded(self, text: bytes, kind: type[_Answer], what: str, status: int) -> _Answer:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise foreign(self.place, status, f"{what}: {error}") from None

    def _ask(
        self,
        method: str,
        path: str,
        body: object,
        query: Mapping[str, str] | None,
        repeatable: bool,
        wait_s: float,
    ) -> Answer:
        target = f"{path}?{urlencode(query)}" if query else path
        content = None if body is None else encode(body)
        request = self._writer.request(method, target, content)
        answer = self._exchange(request, repeatable or method != "POST", self._timeout_s + wait_s)
        if not answer.is_success:
            raise refusal(self._writer, answer)
        return answer

    def _exchange(self, request: bytes, may_repeat: bool, timeout_s: float) -> Answer:
        while True:
            kept = self._connection
            connection = kept or Connection(self.place, self._timeout_s)
            self._connection = connection
            try:
                return connection.exchange(request, timeout_s)
            except ApiFailed as error:
                if not (kept is not None and may_repeat and isinstance(error.__context__, ConnectionError)):
                    raise
            finally:
                if not connection.is_open:
                    self._connection = None


class Backoff:
    """How long to wait before the next try: longer each time, never in step with other clients."""

    FIRST_S: Final = 0.1
    LONGEST_S: Final = 5.0

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._next_s = first_s
        self._longest_s = longest_s

    def pause_s(self, error: ApiFailed) -> float:
        """The pause after this failure; at least what the server asked for."""
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._longest_s)
        return max(pause_s, min(error.retry_after_s, self._longest_s))
