"""Requests and responses as values: what a request is, and how a response head is written.

Owns the error body and the bytes of a head. Touches no socket and knows no route.
"""

from __future__ import annotations

import logging
import uuid
from http import HTTPStatus
from typing import Any, Final

import msgspec

Headers = tuple[tuple[bytes, bytes], ...]
# Status, JSON body and headers of an answer that is given before the body of the request is read.
EarlyAnswer = tuple[int, bytes, Headers]
log = logging.getLogger("everlog.server.http")
JSON_TYPE: Final = b"application/json"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
# Answers of these statuses have no body, whatever the application says.
BODILESS_STATUSES: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}


# All methods of RFC 9110 and the one of RFC 5789.
METHODS: Final = {
    name.encode(): name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
}


class Target:
    """Method and target of requests, taken apart once for all requests that have the same ones.

    `meaning` is the application's own: what it found out about them.
    """

    __slots__ = ("meaning", "method", "path", "query")

    def __init__(self, method: str, path: bytes, query: bytes) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.meaning: Any = None


class Targets:
    """The targets that a server was asked for, by the raw bytes of method and target; bounded."""

    __slots__ = ("_known",)

    COUNT_MAX: Final = 4096
    BYTES_MAX: Final = 512

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], Target] = {}

    def find(self, method: bytes, raw: bytes) -> Target:
        """What a request asks for; raises a Refusal if its target is not valid."""
        target = self._known.get((method, raw))
        if target is None:
            target = parse_target(method, raw)
            # A query may carry a secret, which must not outlive its request.
            if len(raw) <= self.BYTES_MAX and b"token" not in raw:
                if len(self._known) >= self.COUNT_MAX:
                    self._known.clear()
                self._known[method, raw] = target
        return target


def parse_target(method: bytes, raw: bytes) -> Target:
    """Method, path and query of a request line."""
    if b"#" in raw:
        raise Refusal.because(400, "the request target has a fragment (#...); percent-encode it as %23")
    path, _, query = (raw if raw.startswith(b"/") else origin_form(raw)).partition(b"?")
    return Target(METHODS.get(method, ""), path, query)


class Request:
    """One request: complete when the application's `handle` sees it, without its body in `check_head`.

    `context` is the application's own: what it learned from the head (such as the key) and needs again when
    the body is there. Header names are in lower case; several lines of one name are joined by commas.
    """

    __slots__ = (
        "body",
        "context",
        "headers",
        "is_http_1_0",
        "is_plain",
        "keep_alive",
        "method",
        "offers_upgrade",
        "path",
        "peer",
        "query",
        "target",
    )

    def __init__(self, target: Target, headers: dict[bytes, bytes], peer: str) -> None:
        self.target = target
        self.method = target.method
        self.path = target.path
        self.query = target.query
        self.headers = headers
        self.peer = peer
        self.body = b""
        self.context: Any = None
        self.keep_alive = True
        self.is_http_1_0 = False
        self.offers_upgrade = False
        # Whether a response to it needs nothing but the usual head.
        self.is_plain = False

    def header(self, name: bytes) -> bytes | None:
        """The value of a header by its lower-case name."""
        return self.headers.get(name)


class Refusal(Exception):
    """A request that is answered here, before the application sees it; the connection ends with it."""

    def __init__(self, status: int, body: bytes, headers: Headers = ()) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = headers

    @classmethod
    def because(cls, status: int, message: str, code: str = "invalid_request") -> Refusal:
        """A refusal with the usual error body."""
        return cls(status, error_body(code, message))


def error_body(code: str, message: str, detail: dict[str, object] | None = None) -> bytes:
    """The JSON body that every answer other than a success carries."""
    error: dict[str, object] = {"code": code, "message": message}
    if detail is not None:
        error["detail"] = detail
    return msgspec.json.encode({"error": error})


def internal_error(what: str) -> bytes:
    """Log the exception that is being handled, and return the error body that refers to the log."""
    request_id = uuid.uuid4().hex[:16]
    log.exception("%s failed (request id %s)", what, request_id)
    return error_body("internal", f"internal error; see the server log (request id {request_id})")


def origin_form(target: bytes) -> bytes:
    """A request target without scheme and authority, if it has them: what follows is path and query."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return target
    ends = [end for end in (rest.find(b"/"), rest.find(b"?")) if end >= 0]
    target = rest[min(ends) :] if ends else b""
    return target if target.startswith(b"/") else b"/" + target


def render_head(
    status: int, date_line: bytes, fields: Headers, content_type: bytes | None, length: int | None
) -> bytes:
    """The head of a response, with its blank line. A field that would break out of its line is an error."""
    status_line = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    parts = [status_line, date_line]
    if content_type is not None:
        fields = ((b"Content-Type", content_type), *fields)
    for name, value in fields:
        if any(mark in text for text in (name, value) for mark in (b"\r", b"\n", b"\0")):
            raise ValueError(f"response header {name!r} has a line break or NUL in it: {value!r}")
        parts.append(b"%b: %b\r\n" % (name, value))
    if length is not None:
        parts.append(b"Content-Length: %d\r\n" % length)
    parts.append(b"\r\n")
    return b"".join(parts)
