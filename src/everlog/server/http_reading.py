"""Bytes to requests: one parser per connection, and the bounds on what a request may be.

Owns the httptools parser and the request that is being read. Calls its listener with heads and whole
requests and raises a `Refusal` for everything that is not a request; it never writes and holds no timer.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn, Protocol

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserInvalidMethodError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from everlog.server.http_exchange import HttpLimits, Refusal, Request, Targets, error_body

END_OF_HEAD: Final = b"\r\n\r\n"
COPIED_BYTES: Final = 4096
# So much of a head that is not complete is bounded by the number of connections.
UNCOUNTED_HEAD_BYTES: Final = 4096
# Beyond target and headers a head has a method, a version and some blanks.
HEAD_SLACK_BYTES: Final = 1024
METHOD_BYTES_MAX: Final = 64
# A method that the parser does not know: a token of RFC 9110 and a target.
METHOD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) [/*h]")
# What is wrong with a request, by a part of the parser's message.
NOT_HTTP: Final = {
    "PRI/Upgrade": "HTTP/2 is not spoken here",
    "version": "the version must be HTTP/1.1 or HTTP/1.0",
    "url": "the target has a character that must be percent-encoded, or does not begin with /",
    "method": "it does not begin with a method and a target",
    "Duplicate Content-Length": "Content-Length comes twice",
    "Transfer-Encoding can't": "Content-Length and Transfer-Encoding exclude each other",
    "Content-Length": "Content-Length is not a number below 2^64",
    "Transfer-Encoding": "the only Transfer-Encoding is chunked",
    "chunk": "a chunk does not begin with its size in hexadecimal digits",
    "header": "a header line must be name, colon and value, without control characters",
    "LF": "lines must end with CR and LF",
}


class Listener(Protocol):
    """What a reader calls with the requests it finds, in their order."""

    def head_received(self, request: Request, body_bytes: int | None) -> None:
        """The headers are complete; the body has this many bytes (None: not known before its end)."""
        ...

    def head_held(self, size: int) -> None:
        """So many bytes are held of a head that is worth counting and not complete; may raise a Refusal."""
        ...

    def body_received(self, size: int) -> None:
        """So many bytes more are held of a body that is worth counting; may raise a Refusal."""
        ...

    def request_received(self, request: Request) -> None:
        """The request is complete."""
        ...


class RequestReader:
    """Reads the requests of one connection, at most one for each call of `feed`."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_left",
        "_counted_bytes",
        "_headers",
        "_held_bytes",
        "_limits",
        "_listener",
        "_parser",
        "_peer",
        "_repeated_lines",
        "_request",
        "_resuming",
        "_target",
        "_targets",
        "_unread_bytes",
        "_unread_limit_bytes",
    )

    def __init__(self, limits: HttpLimits, listener: Listener, peer: str, targets: Targets) -> None:
        self._limits = limits
        self._listener = listener
        self._peer = peer
        self._targets = targets
        self._resuming = False
        self._unread_limit_bytes = limits.max_target_bytes + limits.max_header_bytes + HEAD_SLACK_BYTES
        self._parser = HttpRequestParser(self)
        # Header lines of the head; then trailer lines, which are dropped.
        self._headers: dict[bytes, bytes] = {}
        self._repeated_lines = 0
        self._held_bytes = 0
        # What is still to come of a body whose length is known; zero again at its end.
        self._body_left = 0
        self._forget()

    def _forget(self) -> None:
        """Be ready for the next request."""
        self._target = b""
        # Bytes that went to the parser and from which nothing has come out.
        self._unread_bytes = 0
        self._request: Request | None = None
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._counted_bytes = 0

    def close(self) -> None:
        """Read nothing more. Parser and reader refer to each other; this spares the collector the work."""
        del self._parser

    def feed(self, data: bytes, position: int) -> int:
        """Read on from `position`, up to where a request may end; returns how far it came.

        Every head and every chunked body ends with an empty line, so stopping there means that at most one
        request comes out of a call (two, if the empty line itself came in two pieces). The caller can then
        decide whether it wants the next one.
        """
        if not self._body_left:
            found = data.find(END_OF_HEAD, position)
            position = self._feed(data, position, len(data) if found < 0 else found + len(END_OF_HEAD))
        if self._body_left and position < len(data):
            position = self._feed(data, position, min(len(data), position + self._body_left))
        return position

    def _feed(self, data: bytes, position: int, end: int) -> int:
        """Give one piece to the parser; returns how far it came."""
        piece_bytes = end - position
        if piece_bytes == len(data):
            piece: bytes | memoryview = data
        else:
            # For short pieces a copy is cheaper than a view.
            piece = data[position:end] if piece_bytes < COPIED_BYTES else memoryview(data)[position:end]
        self._unread_bytes += piece_bytes
        try:
            self._parser.feed_data(piece)
        except HttpParserUpgrade as upgrade:
            end = position + int(upgrade.args[0])
            self._upgrade_offered()
        except HttpParserCallbackError as error:
            raise (error.__context__ or error) from None
        except HttpParserError as error:
            raise _not_http(error, bytes(piece[:METHOD_BYTES_MAX])) from None
        # The parser gathers a header (or trailer) until it is complete, and that may be never.
        if self._unread_bytes > self._unread_limit_bytes:
            self._refuse_headers()
        held_bytes = self._unread_bytes if self._unread_bytes > UNCOUNTED_HEAD_BYTES else 0
        if held_bytes != self._held_bytes:
            self._held_bytes = held_bytes
            self._listener.head_held(held_bytes)
        return end

    # --- What the parser calls ---

    def on_url(self, piece: bytes) -> None:
        """A part of the request target."""
        if self._resuming:
            return
        self._target = self._target + piece if self._target else piece
        if len(self._target) > self._limits.max_target_bytes:
            raise Refusal.because(
                414,
                f"the request target is longer than {self._limits.max_target_bytes} bytes; send the "
                "parameters in the body",
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line, or one trailer line. The parser leaves blanks behind a value."""
        headers = self._headers
        name = name.lower()
        value = value.rstrip()
        if name in headers:
            self._repeated_lines += 1
            if name == b"host":
                raise Refusal.because(400, "the request has more than one Host header; send exactly one")
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        """The end of the head: this is a request now, perhaps with a body to come."""
        if self._resuming:
            self._headers = {}
            return
        parser = self._parser
        headers = self._headers
        self._bound_headers(headers)
        target = self._targets.find(parser.get_method(), self._target)
        method = target.method
        request = Request(target, headers, self._peer)
        keep_alive = request.keep_alive = parser.should_keep_alive()
        if keep_alive and b"connection" not in headers:
            # Only HTTP/1.1 is kept alive without asking, so the version need not be looked at.
            request.is_plain = method != "HEAD"
        else:
            self._check_version(request)
        if b"host" not in headers and not request.is_http_1_0:
            raise Refusal.because(400, "the request has no Host header; HTTP/1.1 needs exactly one")
        if not method or method == "CONNECT":
            raise _unknown_method(parser.get_method())
        body_bytes: int | None = 0
        if b"transfer-encoding" in headers:
            self._check_coding(request)
            body_bytes = None
        elif b"content-length" in headers:
            # The parser has already refused whatever is no number.
            self._body_left = body_bytes = int(headers[b"content-length"])
        if b"upgrade" in headers:
            request.offers_upgrade = parser.should_upgrade()
        self._headers = {}
        self._unread_bytes = 0
        self._request = request
        self._listener.head_received(request, body_bytes)

    def on_body(self, piece: bytes) -> None:
        """A part of the body; one that comes in a single piece is never copied."""
        self._unread_bytes = 0
        self._body_bytes += len(piece)
        if self._body_left:
            self._body_left -= len(piece)
        elif self._body_bytes > self._limits.max_body_bytes:
            raise body_too_large(self._limits.max_body_bytes)
        if self._body_bytes > self._limits.uncounted_body_bytes:
            self._listener.body_received(self._body_bytes - self._counted_bytes)
            self._counted_bytes = self._body_bytes
        if not self._body:
            self._body = piece
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += piece

    def on_message_complete(self) -> None:
        """The end of the request; one that offers an upgrade is received when the parser has returned."""
        request = self._request
        if request is None or request.offers_upgrade:
            return
        if self._headers:
            self._bound_headers(self._headers)
            self._headers = {}
        body = self._body
        request.body = body if isinstance(body, bytes) else bytes(body)
        self._forget()
        self._listener.request_received(request)

    # --- Details ---

    def _bound_headers(self, headers: dict[bytes, bytes]) -> None:
        """Refuse headers that are too many or too long together."""
        limits = self._limits
        if len(headers) + self._repeated_lines > limits.max_headers:
            self._refuse_headers()
        self._repeated_lines = 0
        # What the parser got is an upper bound, so most heads need not be measured. It is zero if the last
        # bytes of the request before came in the same piece.
        if 0 < self._unread_bytes <= limits.max_header_bytes:
            return
        if (
            sum(map(len, headers)) + sum(map(len, headers.values())) + 4 * len(headers)
            > limits.max_header_bytes
        ):
            self._refuse_headers()

    def _check_version(self, request: Request) -> None:
        """Only HTTP/1.0 and HTTP/1.1 are spoken here; the parser knows more."""
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise Refusal.because(400, f"HTTP version {version} is not supported; use HTTP/1.1")
        request.is_http_1_0 = version == "1.0"

    def _check_coding(self, request: Request) -> None:
        """Chunks are understood; anything that would have to be unpacked is not."""
        if request.headers[b"transfer-encoding"].lower() != b"chunked" or request.is_http_1_0:
            raise Refusal.because(
                400, "the request has a Transfer-Encoding that is not understood; use chunked over HTTP/1.1"
            )

    def _refuse_headers(self) -> NoReturn:
        limits = self._limits
        raise Refusal.because(
            431,
            f"the headers are more than {limits.max_headers} lines or {limits.max_header_bytes} bytes; "
            "send fewer or shorter ones",
        )

    def _upgrade_offered(self) -> None:
        """The parser stops at a request that offers an upgrade and never reads its body.

        An offer need not be taken: clients make it with ordinary requests (to change to HTTP/2, say). So a
        fresh parser goes on behind the head. A head made here says how long the body is.
        """
        request = self._request
        assert request is not None, "only a head that was received can offer an upgrade"
        self._parser = HttpRequestParser(self)
        if b"transfer-encoding" in request.headers:
            framing = b"Transfer-Encoding: chunked"
        elif self._body_left:
            framing = b"Content-Length: %d" % self._body_left
        else:
            self._forget()
            self._listener.request_received(request)
            return
        request.offers_upgrade = False
        self._resuming = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._resuming = False


def _not_http(error: HttpParserError, start: bytes) -> Refusal:
    """The refusal of what the parser does not take, by the subject of its complaint."""
    method = METHOD.match(start)
    if isinstance(error, HttpParserInvalidMethodError) and method is not None:
        return _unknown_method(method[1])
    complaint = str(error)
    reason = next((words for part, words in NOT_HTTP.items() if part in complaint), "it cannot be read")
    return Refusal.because(400, f"this is not a valid HTTP/1.1 request: {reason}")


def _unknown_method(method: bytes) -> Refusal:
    allowed = "DELETE, GET, HEAD, OPTIONS, POST, PUT"
    message = f"the method {method.decode('latin-1')} is not supported; there are {allowed}"
    return Refusal(405, error_body("method_not_allowed", message), ((b"Allow", allowed.encode()),))


def body_too_large(max_body_bytes: int) -> Refusal:
    """The refusal of a body above the limit."""
    return Refusal.because(
        413, f"the body is longer than {max_body_bytes} bytes; send less at a time", "payload_too_large"
    )
