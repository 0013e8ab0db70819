"""Requests and responses as values: what a request is, and how a response head is written.

Owns the error body and the bytes of a head; the `Request` itself is native. Touches no socket and knows no
route.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

from everlog.native.http_request import Request

Headers = tuple[tuple[bytes, bytes], ...]
# Status, JSON body and headers of an answer that is given before the body of the request is read.
EarlyAnswer = tuple[int, bytes, Headers]
__all__ = [
    "BODILESS_STATUSES",
    "CONTINUE",
    "JSON_TYPE",
    "LAST_CHUNK",
    "EarlyAnswer",
    "Headers",
    "Refusal",
    "Request",
    "error_body",
    "origin_form",
    "render_head",
]

JSON_TYPE: Final = b"application/json"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
# Answers of these statuses have no body, whatever the application says.
BODILESS_STATUSES: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}


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
