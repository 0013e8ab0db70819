"""Requests by path, for tests that set something up: a `Client` that tries once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, TypeVar
from urllib.parse import urlencode

import msgspec

from everlog.client.encoding import encode
from everlog.client.errors import UNREACHABLE, ApiFailed
from everlog.client.flows import Call
from everlog.client.retrying import ONCE, Backoff
from everlog.client.sync_client import Client
from everlog.client.wire import DEFAULT_URL, TIMEOUT_S, foreign, topic_path

__all__ = ["DEFAULT_URL", "UNREACHABLE", "ApiFailed", "Backoff", "HttpApi", "topic_path"]

_Answer = TypeVar("_Answer")


class HttpApi:
    """One server."""

    def __init__(self, url: str = DEFAULT_URL, key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._client = Client(url, key, retry=ONCE, timeout_s=timeout_s)
        self.address = self._client.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

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
        """Send a request with a JSON body and read its answer as `kind`."""
        target = f"{path}?{urlencode(query)}" if query else path
        content = None if body is None else encode(body)
        return self._client.call(
            Call(method, target, kind, content, may_repeat=repeatable or method != "POST", wait_s=wait_s)
        )

    def fetch(self, method: str, path: str, *, body: object = None, repeatable: bool = False) -> bytes:
        """As `call`, for an answer that stays the text it is; see `decode`."""
        return self.call(method, path, bytes, body=body, repeatable=repeatable)

    def decode(self, text: bytes, kind: type[_Answer], what: str) -> _Answer:
        """Read the text of an answer as `kind`; `what` names it if it is something else."""
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise foreign(self.address, 200, f"{what}: {error}") from None
