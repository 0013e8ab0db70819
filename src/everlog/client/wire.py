"""HTTP/1.1 for the clients: addresses, requests to bytes, answers from bytes, failures to exceptions.

Opens no socket and waits for nothing; `connection` and `async_connection` move the bytes. Never puts the key
into a message.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

import httptools
import msgspec

from everlog.api_types import ErrorAnswer
from everlog.client.errors import UNREACHABLE, ApiFailed, api_failed
from everlog.errors import InvalidConfig, InvalidRequest

DEFAULT_URL: Final = "http://127.0.0.1:4000"
TIMEOUT_S: Final = 30.0
"""Without a single byte from the server."""

UNAUTHORIZED: Final = 401
PIECE_BYTES: Final = 256 * 1024
_PATH_SAFE: Final = ":"
_EXAMPLE: Final = f"it must be like {DEFAULT_URL}"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Scheme, host, port and path prefix of a server."""

    host: str
    port: int
    is_tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Read a URL; a path in it is put before every route, a closing `/v0` may be left out."""
        if not isinstance(url, str):
            raise InvalidConfig(f"the server's URL is {url!r}; {_EXAMPLE}")
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise InvalidConfig(f"the server's URL {url!r} cannot be read ({error}); {_EXAMPLE}") from None
        if parts.username is not None or parts.password is not None:
            # Not repeated: it holds a secret.
            raise InvalidConfig(
                "the server's URL holds a user or password; give the key as `key` or by EVERLOG_KEY"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidConfig(f"the server's URL is {url!r}; {_EXAMPLE}")
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v0").rstrip("/")
        default_port = 443 if is_tls else 80
        return cls(parts.hostname, default_port if port is None else port, is_tls, quote(prefix, safe="/%"))

    @property
    def host_and_port(self) -> str:
        """As the header `Host` wants it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.host_and_port}{self.prefix}"


def topic_path(topic: str, action: str = "") -> str:
    """The route of a topic, whatever its name holds."""
    return f"/topics/{_segment(topic)}{action}"


def consumer_path(topic: str, consumer: str, action: str = "") -> str:
    """The route of a consumer of a topic, whatever their names hold."""
    return f"{topic_path(topic)}/consumers/{_segment(consumer)}{action}"


def router_path(router: str) -> str:
    """The route of a router, whatever its name holds."""
    return f"/routers/{_segment(router)}"


def schedule_path(schedule: str) -> str:
    """The route of a schedule."""
    return f"/schedules/{_segment(schedule)}"


def _segment(name: str) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"a name must be text, got {name!r}")
    quoted = quote(name.encode("utf-8", "surrogateescape"), safe=_PATH_SAFE)
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


# --- Requests --------------------------------------------------------------------------------------------


class RequestWriter:
    """Builds requests to one server; head and body are sent together, so that one read gets both."""

    def __init__(self, address: ServerAddress, key: str | None = None) -> None:
        self.address = address
        self.authorization = _authorization(key)
        self._target_start = f"{address.prefix}/v0".encode()
        self._after_target = b" HTTP/1.1\r\nHost: " + address.host_and_port.encode("idna") + b"\r\n"
        if self.authorization is not None:
            self._after_target += b"Authorization: " + self.authorization + b"\r\n"

    def request(self, method: str, path: str, body: bytes | None, more_headers: bytes = b"") -> bytes:
        """A request to a path below `/v0`; `more_headers` are whole lines."""
        start = b"%b %b%b%b%b" % (
            method.encode(),
            self._target_start,
            path.encode(),
            self._after_target,
            more_headers,
        )
        if body is None:
            # A method that may carry a body says that it carries none.
            return start + (b"\r\n" if method == "GET" else b"Content-Length: 0\r\n\r\n")
        return b"%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (start, len(body), body)

    def bare_request(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        """A request to any target with exactly these headers, besides host, key and length."""
        words = [word for header in headers.items() for word in header]
        if any("\r" in word or "\n" in word for word in (*words, target)):
            raise InvalidRequest(f"a line break in the target {target!r} or the headers {list(headers)}")
        # Whatever a byte stands for, HTTP takes it for Latin-1.
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")
        path = f"{self.address.prefix}{target}".encode()
        start = b"%b %b%b%b" % (method.encode(), path, self._after_target, lines)
        if body is None:
            return start + (b"\r\n" if method == "GET" else b"Content-Length: 0\r\n\r\n")
        return b"%bContent-Length: %d\r\n\r\n%b" % (start, len(body), body)


def _authorization(key: str | None) -> bytes | None:
    if not key:
        return None
    if not isinstance(key, str):
        raise InvalidConfig(f"the key must be text, got {type(key).__name__}")
    if not key.isprintable():
        raise InvalidConfig(
            "the key holds a line break or another control character; check EVERLOG_KEY or --key"
        )
    return b"Bearer " + key.encode("utf-8", "surrogateescape")


# --- Answers ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """An answer; names of headers are lower-case."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        """Whether the server carried the request out."""
        return 200 <= self.status < 300


class BrokenAnswer(Exception):
    """The answer is not HTTP, or ended early."""


class AnswerReader:
    """Reads one answer from pieces; `pieces` are the parts of its body that were not taken yet."""

    __slots__ = ("_parser", "answer", "has_head", "is_complete", "keeps_open", "pieces")

    def __init__(self) -> None:
        self.answer = Answer()
        self.pieces: list[bytes] = []
        self.has_head = False
        self.is_complete = False
        self.keeps_open = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take in a piece; raises BrokenAnswer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise BrokenAnswer("an upgrade without a request for it") from None
        except httptools.HttpParserError as error:
            raise BrokenAnswer(type(error).__name__) from None

    def receive(self, data: bytes) -> None:
        """Take in received bytes, none at the end; raises BrokenAnswer or ConnectionResetError."""
        if data:
            self.feed(data)
        elif not self.has_head and not self.answer.status:
            raise ConnectionResetError("the server closed the connection without an answer")
        else:
            self.end()

    @property
    def is_readable(self) -> bool:
        """Whether an answer to a request for a stream can be used: its head, or all of a refusal."""
        return self.has_head and (self.answer.is_success or self.is_complete)

    def end(self) -> None:
        """The connection ended; raises BrokenAnswer unless that is how this answer ends."""
        headers = self.answer.headers
        if self.has_head and b"content-length" not in headers and b"transfer-encoding" not in headers:
            self.is_complete = True
        elif not self.is_complete:
            raise BrokenAnswer("the answer broke off")
        self.keeps_open = False

    def take(self) -> bytes:
        """The part of the body since the last call."""
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        return data

    def complete(self) -> Answer:
        """The whole answer."""
        self.answer.body = self.take()
        return self.answer

    # Called by the parser.

    def on_message_begin(self) -> None:
        """An answer begins."""
        self.answer = Answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line was read."""
        self.answer.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is there; that of an interim answer is passed over."""
        self.answer.status = self._parser.get_status_code()
        self.has_head = self.answer.status >= 200

    def on_body(self, data: bytes) -> None:
        """A piece of the body was read."""
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        """The answer is complete, unless it is only an interim one."""
        if self.has_head:
            self.is_complete = True
            self.keeps_open = self._parser.should_keep_alive()


# --- Failures --------------------------------------------------------------------------------------------


_error_answers: Final = msgspec.json.Decoder(ErrorAnswer)


def unreachable(address: ServerAddress, error: Exception, timeout_s: float, was_sent: bool) -> ApiFailed:
    """The failure for a missing answer."""
    if isinstance(error, ConnectionRefusedError):
        reason = "nothing listens there; start one with `everlog serve`"
    elif isinstance(error, TimeoutError | BlockingIOError):
        reason = f"no answer within {timeout_s:g} s"
    elif isinstance(error, socket.gaierror):
        reason = f"the host name cannot be resolved ({error.strerror})"
    elif isinstance(error, ssl.SSLError):
        reason = f"no secure connection ({error.reason or error})"
    elif isinstance(error, BrokenAnswer) and str(error) != "the answer broke off":
        reason = f"what answers does not speak HTTP properly ({error})"
    else:
        reason = str(error) or type(error).__name__
    message = f"cannot reach the server at {address}: {reason}"
    return ApiFailed(UNREACHABLE, "unreachable", message, was_sent=was_sent)


def refusal(writer: RequestWriter, answer: Answer) -> ApiFailed:
    """The failure that an answer other than a success reports."""
    address = writer.address
    try:
        error = _error_answers.decode(answer.body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return foreign(address, answer.status, "no everlog error in its body")
    retry_after = answer.headers.get(b"retry-after", b"")
    retry_after_s = float(retry_after) if retry_after.isdigit() else 0.0
    message = error.message or error.code
    if answer.status == UNAUTHORIZED:
        message = _key_wanted(writer)
    return api_failed(answer.status, error.code, message, error.detail, retry_after_s)


def _key_wanted(writer: RequestWriter) -> str:
    """What is wrong with the key, and how to give one; the key itself is not shown."""
    if writer.authorization is None:
        reason = "asks for a key, and none was given"
    else:
        reason = "does not know the key that was given"
    return (
        f"the server at {writer.address} {reason}; give `key` in a program, EVERLOG_KEY or --key to a command"
    )


def foreign(address: ServerAddress, status: int, reason: str) -> ApiFailed:
    """The failure for an answer that a topics server would not give."""
    message = f"{address} answered {status}, but not as a topics server does ({reason}); check the URL"
    return ApiFailed(status, "not_everlog", message)
