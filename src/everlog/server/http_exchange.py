"""HTTP as values: requests, responses, and the exchange that joins one of each; also the bounds on them.

Owns the bytes of a response head, the error body, and the promise that a request gets one response, or that
its owner learns that the client has gone. The order of the responses and the socket belong to
`http_connection`; what happens at a bound is decided there and in `http_reading`. Knows no route.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from everlog.server.http_connection import HttpConnection

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
# A longer body goes to the transport beside its head instead of being copied behind it.
JOINED_BODY_BYTES: Final = 64 * 1024
# All methods of RFC 9110 and the one of RFC 5789.
METHODS: Final = {
    name.encode(): name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one client may use. Every time is in seconds, every size in bytes."""

    max_body_bytes: int = 64 * 1024 * 1024
    """A longer body is refused with 413: by its Content-Length, or while its chunks arrive."""
    max_bodies_bytes: int = 256 * 1024 * 1024
    """Bodies of all connections together, from their first byte to the answer; one more is refused with 429.
    Those of at most `uncounted_body_bytes` are not counted."""
    uncounted_body_bytes: int = 16 * 1024
    """So small a body is bounded by the number of connections; counting it would cost every request."""
    max_heads_bytes: int = 64 * 1024 * 1024
    """Incomplete heads of more than 4 KiB, of all connections together; more is refused with 429."""
    max_target_bytes: int = 16 * 1024
    """A longer request target is refused with 414."""
    max_header_bytes: int = 64 * 1024
    """Names and values of all headers, four more for each; trailers count too. Above: 431."""
    max_headers: int = 100
    """More header lines than this are refused with 431."""
    max_pipelined: int = 16
    """Requests of one connection that may be unanswered; the rest stays unread."""
    max_connections: int = 20_000
    """A connection beyond this is answered with 503 and closed."""
    listen_backlog: int = 4096
    """Connections that may wait to be accepted, and that are accepted at once."""
    write_buffer_bytes: int = 64 * 1024
    """Output that the kernel has not taken before a connection stops reading requests."""
    header_timeout_s: float = 60.0
    """From the connect to the first byte, and from the first byte of a request to the end of its headers."""
    body_stall_timeout_s: float = 30.0
    """Between two pieces of a body."""
    body_timeout_s: float = 600.0
    """For a whole body, so that a trickle cannot hold a connection without end."""
    idle_timeout_s: float = 75.0
    """Between the last response and the next request."""
    write_stall_timeout_s: float = 60.0
    """Without the client taking a single byte of what is waiting for it."""
    linger_stall_timeout_s: float = 5.0
    """After a refusal: without a further byte of the refused request."""
    linger_timeout_s: float = 30.0
    """After a refusal: for the client to stop sending and read the answer."""
    sweep_interval_s: float = 1.0
    """Between two looks at all timeouts; no timeout is more exact than this."""


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

    Header names are in lower case; several lines of one name are joined by commas.
    """

    __slots__ = (
        "body",
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


class Exchange:
    """One request and its one response.

    `on_gone` is called once if the client goes away, or only stops sending, before the exchange was answered;
    answering it after that does nothing. A client that stops sending to an exchange without it still gets
    its answer.
    """

    __slots__ = (
        "_connection",
        "channel",
        "closes",
        "counted_bytes",
        "held",
        "is_answered",
        "on_gone",
        "request",
    )

    def __init__(self, connection: HttpConnection, request: Request) -> None:
        self.request = request
        self.on_gone: Callable[[], None] | None = None
        self._connection: HttpConnection | None = connection
        self.is_answered = False
        # The rest is for the connection: output that must wait for earlier responses, the stream or upgraded
        # connection this has turned into, and whether the connection ends with it.
        self.held: bytearray | None = None
        self.channel: Stream | Upgraded | None = None
        self.closes = not request.keep_alive
        # What the server counts for the body until this is answered.
        self.counted_bytes = 0

    def respond(
        self, status: int, body: bytes, content_type: bytes = JSON_TYPE, headers: Headers = ()
    ) -> None:
        """Send the response, now or later, exactly once; after the client has gone it does nothing.

        HEAD gets the head alone, and 204 and 304 have no body.
        """
        connection = self._connection
        if self.is_answered or connection is None:
            self._unanswered()
            return
        request = self.request
        server = connection.server
        if (
            status == 200
            and request.is_plain
            and not headers
            and content_type == JSON_TYPE
            and not server.is_draining
        ):
            self.is_answered = True
            if len(body) <= JOINED_BODY_BYTES:
                connection.answer(self, b"%b%d\r\n\r\n%b" % (server.ok_json_head, len(body), body))
                return
            head = b"%b%d\r\n\r\n" % (server.ok_json_head, len(body))
        else:
            self.closes = self.closes or connection.should_close_after(self)
            bodiless = status in BODILESS_STATUSES
            head = render_head(
                status,
                server.date_line,
                headers + self._connection_field(),
                None if bodiless else content_type,
                None if bodiless else len(body),
            )
            if bodiless or request.method == "HEAD":
                body = b""
        self.is_answered = True
        if len(body) > JOINED_BODY_BYTES:
            connection.answer(self, head, body)
        else:
            connection.answer(self, head + body)

    def start_stream(self, status: int, headers: Headers) -> Stream:
        """Begin a response without an end, such as server-sent events; `headers` name the content type.

        The connection serves nothing after it. A HEAD request gets the head alone: the stream is closed
        from the start.
        """
        connection = self._unanswered()
        stream = Stream(connection, self)
        stream.on_gone = self.on_gone
        if connection is None:
            stream.is_closed = True
            return stream
        self.closes = True
        is_chunked = not self.request.is_http_1_0
        fields = headers + self._connection_field()
        if is_chunked:
            fields += ((b"Transfer-Encoding", b"chunked"),)
        head = render_head(status, connection.server.date_line, fields, None, None)
        self.is_answered = True
        if self.request.method == "HEAD":
            stream.is_closed = True
            connection.answer(self, head)
            return stream
        self.channel = stream
        connection.start_stream(self, head)
        return stream

    def upgrade(self, response_headers: Headers) -> Upgraded:
        """Leave HTTP: send 101 and return the raw connection. Only for a request that `offers_upgrade`."""
        if not self.request.offers_upgrade:
            raise RuntimeError("this request offers no upgrade; look at request.offers_upgrade first")
        connection = self._unanswered()
        if connection is None:
            upgraded = Upgraded(None, b"")
            upgraded.is_closed = True
            return upgraded
        if not any(name.lower() == b"connection" for name, _ in response_headers):
            response_headers = ((b"Connection", b"Upgrade"), *response_headers)
        head = render_head(101, connection.server.date_line, response_headers, None, None)
        self.is_answered = True
        upgraded = Upgraded(connection, connection.take_unread())
        upgraded.on_gone = self.on_gone
        self.channel = upgraded
        connection.start_raw(self, head)
        return upgraded

    @property
    def offers_upgrade(self) -> bool:
        """Whether this may leave HTTP, so that what comes behind it is not read as a request."""
        return self.request.offers_upgrade

    @property
    def ends_at_eof(self) -> bool:
        """Whether a client that sends nothing more counts as gone."""
        return self.channel is not None or (self.on_gone is not None and not self.is_answered)

    def gone(self) -> Callable[[], None] | None:
        """The client has gone: what is to be called for it, once."""
        channel, self.channel = self.channel, None
        if channel is not None:
            return channel.gone()
        callback = None if self.is_answered else self.on_gone
        self._connection = None
        self.on_gone = None
        return callback

    def _unanswered(self) -> HttpConnection | None:
        """The connection to answer on; None if the client has gone."""
        if self.is_answered:
            raise RuntimeError(f"{self.request.method} {self.request.path!r} was answered a second time")
        return self._connection

    def _connection_field(self) -> Headers:
        """What the response says about the connection; nothing if it does what its version implies."""
        if self.closes:
            return ((b"Connection", b"close"),)
        return ((b"Connection", b"keep-alive"),) if self.request.is_http_1_0 else ()


class Channel:
    """A connection that one owner writes to at any time.

    `on_gone` is called once if the client goes away before the owner closes. `is_writable` turns false when
    so much is waiting that the owner should stop; `on_writable` is called when it may go on.
    """

    __slots__ = ("_connection", "is_closed", "on_gone", "on_writable")

    def __init__(self, connection: HttpConnection | None) -> None:
        self._connection = connection
        self.is_closed = False
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    @property
    def buffered(self) -> int:
        """Bytes that were written and that the kernel has not taken."""
        return 0 if self._connection is None else self._connection.buffered

    @property
    def is_writable(self) -> bool:
        """Whether more should be written now. Nothing is lost if it is written all the same."""
        return self._connection is not None and not self.is_closed and not self._connection.is_write_paused

    def abort(self) -> None:
        """End the connection at once; what the kernel has not taken is thrown away. Calls nothing."""
        connection = self._shut()
        if connection is not None:
            connection.abort()

    def gone(self) -> Callable[[], None] | None:
        """The client has gone: what is to be called for it, once."""
        callback = None if self.is_closed else self.on_gone
        self._shut()
        return callback

    def _shut(self) -> HttpConnection | None:
        """Accept nothing more. The connection, if it still has to be ended."""
        connection = None if self.is_closed else self._connection
        self.is_closed = True
        self._connection = None
        self.on_gone = self.on_writable = None
        return connection


class Stream(Channel):
    """A response that is written piece by piece; each piece goes out at once."""

    __slots__ = ("_exchange", "_is_chunked")

    def __init__(self, connection: HttpConnection | None, exchange: Exchange) -> None:
        super().__init__(connection)
        self._exchange = exchange
        self._is_chunked = not exchange.request.is_http_1_0

    @property
    def buffered(self) -> int:
        """Bytes that were written and that the kernel has not taken, or not even been offered."""
        held, connection = self._exchange.held, self._connection
        if connection is None:
            return 0
        return connection.buffered if held is None else len(held)

    @property
    def is_writable(self) -> bool:
        """As for every channel, and not before the responses to earlier requests are out."""
        connection = self._connection
        return (
            connection is not None
            and not connection.is_write_paused
            and not self.is_closed
            and self._exchange.held is None
        )

    def write(self, data: bytes) -> None:
        """Send one piece. After the end of the stream it does nothing."""
        if data and not self.is_closed:
            self._emit(as_chunk(data) if self._is_chunked else data)

    @property
    def takes_chunks(self) -> bool:
        """Whether `write_chunk` may be used; an HTTP/1.0 client would not understand it."""
        return self._is_chunked

    def write_chunk(self, chunk: bytes) -> bool | None:
        """Send one piece that `as_chunk` has framed, which streams share, if the stream `is_writable`.

        Returns whether the kernel has taken all of it; None if the stream has no room and nothing was sent.
        """
        connection = self._connection
        if connection is None or connection.is_write_paused or self._exchange.held is not None:
            return None
        return connection.write(chunk)

    def close(self) -> None:
        """End the response, and the connection once everything is out."""
        if self.is_closed:
            return
        if self._is_chunked:
            self._emit(LAST_CHUNK)
        connection = self._shut()
        if connection is not None:
            connection.end_stream(self._exchange)

    def _emit(self, data: bytes) -> None:
        held = self._exchange.held
        if held is not None:
            held += data
        elif self._connection is not None:
            self._connection.write(data)


def as_chunk(data: bytes) -> bytes:
    """A piece of a stream in the framing of HTTP/1.1; it must not be empty, that would be the end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Upgraded(Channel):
    """A connection that no longer speaks HTTP: raw bytes both ways.

    `received` came in behind the request, before `on_data` could be set. A client that ends its
    sending side has gone.
    """

    __slots__ = ("_held_bytes", "_server", "on_data", "received")

    def __init__(self, connection: HttpConnection | None, received: bytes) -> None:
        super().__init__(connection)
        self._server = None if connection is None else connection.server
        self._held_bytes = 0
        self.received = received
        self.on_data: Callable[[bytes], None] | None = None

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport, to pause and resume reading; None when the connection is over."""
        return None if self._connection is None else self._connection.transport

    def hold(self, size: int) -> bool:
        """Count bytes of an unfinished message, which are held like those of a body; False: no room."""
        if self._server is not None:
            try:
                self._server.take_body(size)
            except Refusal:
                return False
            self._held_bytes += size
        return True

    def release(self) -> None:
        """Uncount what is no longer held."""
        if self._server is not None:
            self._server.bodies_bytes -= self._held_bytes
            self._held_bytes = 0

    def write(self, data: bytes) -> None:
        """Send bytes. After the end of the connection it does nothing."""
        if self._connection is not None and data:
            self._connection.write(data)

    def close(self) -> None:
        """End the connection once everything is out."""
        connection = self._shut()
        if connection is not None:
            connection.close()
