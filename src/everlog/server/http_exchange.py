"""What the application holds of a connection: an exchange, and what an exchange can turn into.

Owns the promise that a request gets one response, or that its owner learns that the client has gone. The
order of the responses and the socket belong to `http_connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from everlog.server.http_messages import (
    BODILESS_STATUSES,
    JSON_TYPE,
    LAST_CHUNK,
    Headers,
    Request,
    render_head,
)

if TYPE_CHECKING:
    from everlog.server.http_connection import HttpConnection

# A longer body goes to the transport beside its head instead of being copied behind it.
JOINED_BODY_BYTES: Final = 64 * 1024


class Exchange:
    """One request and its one response.

    `on_gone` is called once if the client goes away before the exchange was answered; answering it after
    that does nothing. A client that only closes its sending side counts as gone if `is_gone_at_eof` is left
    true and `on_gone` is set. Otherwise it still gets its answer.
    """

    __slots__ = (
        "_connection",
        "channel",
        "closes",
        "counted_bytes",
        "held",
        "is_answered",
        "is_gone_at_eof",
        "on_gone",
        "request",
    )

    def __init__(self, connection: HttpConnection, request: Request) -> None:
        self.request = request
        self.on_gone: Callable[[], None] | None = None
        self.is_gone_at_eof = True
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
        return self.channel is not None or (
            self.on_gone is not None and self.is_gone_at_eof and not self.is_answered
        )

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
    """A connection that one owner writes to whenever it likes.

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

    __slots__ = ("on_data", "received")

    def __init__(self, connection: HttpConnection | None, received: bytes) -> None:
        super().__init__(connection)
        self.received = received
        self.on_data: Callable[[bytes], None] | None = None

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport, to pause and resume reading; None when the connection is over."""
        return None if self._connection is None else self._connection.transport

    def write(self, data: bytes) -> None:
        """Send bytes. After the end of the connection it does nothing."""
        if self._connection is not None and data:
            self._connection.write(data)

    def close(self) -> None:
        """End the connection once everything is out."""
        connection = self._shut()
        if connection is not None:
            connection.close()
