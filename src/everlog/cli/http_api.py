"""A small synchronous client of a topics server, for commands.

Owns one kept-alive connection, its timeouts, and how failures are told: everything that goes wrong between
here and the server, and everything the server refuses, is an `ApiFailed`. Prints nothing, and never puts
the key into a message.
"""

from __future__ import annotations

import http.client
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from everlog.errors import InvalidConfig

DEFAULT_URL: Final = "http://127.0.0.1:4000"
TIMEOUT_S: Final = 30.0
"""Without a single byte from the server."""

UNREACHABLE: Final = 0
"""The `status` of a failure without any answer."""

BUSY_STATUSES: Final = frozenset({429, 503})
GATEWAY_STATUSES: Final = frozenset({502, 504})
_PATH_SAFE: Final = ":"

_Answer = TypeVar("_Answer")


class ApiFailed(Exception):
    """A request was refused, or was not answered (`status` is then UNREACHABLE)."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        detail: dict[str, Any] | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def is_busy(self) -> bool:
        """Whether the server asks to come back: it starts, stops, or has no room now."""
        return self.status in BUSY_STATUSES

    @property
    def is_outage(self) -> bool:
        """Whether no server answered."""
        return self.status == UNREACHABLE or self.status in GATEWAY_STATUSES


class _ErrorText(msgspec.Struct):
    code: str
    message: str = ""
    detail: dict[str, Any] | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorText


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is."""

    host: str
    port: int
    is_tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Place:
        """Read a URL; a path in it is put before every route, a closing `/v0` may be left out."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise InvalidConfig(f"the server's URL {url!r} cannot be read ({error}); {_EXAMPLE}") from None
        if parts.username is not None or parts.password is not None:
            # Not repeated: it holds a secret.
            raise InvalidConfig("the server's URL holds a user or password; give the key by EVERLOG_KEY")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidConfig(f"the server's URL is {url!r}; {_EXAMPLE}")
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v0").rstrip("/")
        default_port = 443 if is_tls else 80
        return cls(parts.hostname, default_port if port is None else port, is_tls, quote(prefix, safe="/%"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.prefix}"


_EXAMPLE: Final = f"it must be like {DEFAULT_URL}"


class HttpApi:
    """One server, reached through one connection that is opened when needed and kept."""

    def __init__(self, url: str = DEFAULT_URL, key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.place = Place.parse(url)
        self._timeout_s = timeout_s
        self._headers = _headers(key)
        self._connection: http.client.HTTPConnection | None = None

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

    # --- Calls ---------------------------------------------------------------------------------------------

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
        target = f"{self.place.prefix}/v0{path}"
        if query:
            target += f"?{urlencode(query)}"
        content = None if body is None else msgspec.json.encode(body)
        may_repeat = repeatable or method != "POST"
        status, headers, answer = self._exchange(method, target, content, may_repeat, wait_s)
        if not 200 <= status < 300:
            raise self._refusal(status, headers, answer)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            raise self._foreign(status, f"{method} {path}: {error}") from None

    def _exchange(
        self, method: str, target: str, content: bytes | None, may_repeat: bool, wait_s: float
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        while True:
            was_kept = self._connection is not None
            try:
                return self._exchange_once(method, target, content, wait_s)
            except (http.client.RemoteDisconnected, ConnectionError) as error:
                self.close()
                if not (was_kept and may_repeat):
                    raise self._unreachable(error) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise self._unreachable(error) from None
            except BaseException:
                # Interrupted in the middle: what comes next on this connection is not our answer.
                self.close()
                raise

    def _exchange_once(
        self, method: str, target: str, content: bytes | None, wait_s: float
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = self._connection or self._open()
        self._connection = connection
        if connection.sock is not None:
            connection.sock.settimeout(self._timeout_s + wait_s)
        headers = dict(self._headers)
        if content is not None:
            headers["Content-Type"] = b"application/json"
        try:
            connection.request(method, target, content, headers)
        except (BrokenPipeError, ConnectionResetError):
            # The server may refuse a body before it has all of it; its answer is there then.
            if connection.sock is None:
                raise
        response = connection.getresponse()
        body = response.read()
        if response.will_close:
            self.close()
        return response.status, response.headers, body

    def _open(self) -> http.client.HTTPConnection:
        place = self.place
        kind = http.client.HTTPSConnection if place.is_tls else http.client.HTTPConnection
        connection = kind(place.host, place.port, timeout=self._timeout_s)
        connection.connect()
        return connection

    # --- Failures ------------------------------------------------------------------------------------------

    def _unreachable(self, error: Exception) -> ApiFailed:
        if isinstance(error, ConnectionRefusedError):
            reason = "nothing listens there; start one with `everlog serve`"
        elif isinstance(error, TimeoutError):
            reason = f"no answer within {self._timeout_s:g} s"
        elif isinstance(error, socket.gaierror):
            reason = f"the host name cannot be resolved ({error.strerror})"
        elif isinstance(error, http.client.HTTPException) and not isinstance(error, ConnectionError):
            reason = f"what answers does not speak HTTP properly ({type(error).__name__})"
        else:
            reason = str(error) or type(error).__name__
        return ApiFailed(UNREACHABLE, "unreachable", f"cannot reach the server at {self.place}: {reason}")

    def _refusal(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> ApiFailed:
        try:
            error = msgspec.json.decode(body, type=_ErrorBody).error
        except msgspec.MsgspecError:
            return self._foreign(status, "no everlog error in its body")
        retry_after = headers.get("Retry-After", "")
        retry_after_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
        message = error.message or error.code
        if status == http.client.UNAUTHORIZED:
            message += " (--key or EVERLOG_KEY)"
        return ApiFailed(status, error.code, message, error.detail, retry_after_s)

    def _foreign(self, status: int, reason: str) -> ApiFailed:
        message = f"{self.place} answered {status}, but not as a topics server does ({reason}); check the URL"
        return ApiFailed(status, "not_everlog", message)


def _headers(key: str | None) -> dict[str, bytes]:
    if not key:
        return {}
    if not key.isprintable():
        # Checked here because http.client would repeat the key in its complaint.
        raise InvalidConfig(
            "the key holds a line break or another control character; check EVERLOG_KEY or --key"
        )
    return {"Authorization": b"Bearer " + key.encode("utf-8", "surrogateescape")}


def topic_path(topic: str, action: str = "") -> str:
    """The route of a topic, whatever its name holds."""
    name = quote(topic.encode("utf-8", "surrogateescape"), safe=_PATH_SAFE)
    if name in (".", ".."):
        name = name.replace(".", "%2E")
    return f"/topics/{name}{action}"


class Backoff:
    """How long to wait before the next try: longer each time, never in step with other clients."""

    FIRST_S: Final = 0.1
    LONGEST_S: Final = 5.0

    def __init__(self) -> None:
        self._next_s = self.FIRST_S

    def pause_s(self, error: ApiFailed) -> float:
        """The pause after this failure; at least what the server asked for."""
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self.LONGEST_S)
        return max(pause_s, min(error.retry_after_s, self.LONGEST_S))
