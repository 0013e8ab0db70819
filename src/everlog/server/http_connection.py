"""One client connection: the order of its responses, flow control both ways, and its timeouts.

Owns the transport and the list of unanswered exchanges. What bytes mean is in `http_reading`, how they leave
in `native.topics`, what an exchange promises in `http_exchange`. It knows no route; it calls the
application and the application calls exchanges, always on the thread of the event loop.

The path of a request: `data_received` -> `RequestReader.feed` -> `head_received` -> `request_received` ->
application -> `Exchange.respond` -> `answer`. A connection that must not read on (too many unanswered
requests, or a client that does not read) keeps the rest of what came in and stops reading its socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from everlog.native.topics.socket_writer import SocketWriter
from everlog.server.http_exchange import (
    CONTINUE,
    Exchange,
    Refusal,
    Request,
    Target,
    Upgraded,
    internal_error,
)
from everlog.server.http_reading import RequestReader, body_too_large

if TYPE_CHECKING:
    from everlog.server.http import HttpServer

log = logging.getLogger("everlog.server.http")

# What a connection does with input. The first four parse it, the others do not.
NEW: Final = 0  # nothing has come in yet
IDLE: Final = 1  # between two requests
HEAD: Final = 2  # inside the head of a request
BODY: Final = 3  # inside the body of a request
DISCARDING: Final = 4  # drops input: the last response is due or on its way
LINGERING: Final = 5  # the same, until a client that was refused has stopped sending
UPGRADED: Final = 6  # passes input to the owner of the upgraded connection
CLOSED: Final = 7

# Other connections get their turn after so many requests that arrived in one piece.
REQUESTS_PER_TURN: Final = 64
# A body up to this size is read before its request is checked; a longer one only if its head is accepted.
SHORT_BODY_BYTES: Final = 64 * 1024
NO_TARGET: Final = Target("", b"", b"")  # of what is not a request


class HttpConnection(SocketWriter, asyncio.Protocol):
    """The server's side of one connection."""

    __slots__ = (
        "_body_since_s",
        "_continue_is_due",
        "_counted_bytes",
        "_exchanges",
        "_flushed_bytes",
        "_flushed_since_s",
        "_head_bytes",
        "_is_parsing",
        "_is_read_paused",
        "_is_refusing",
        "_now_s",
        "_parked",
        "_peer",
        "_reader",
        "_requests_in_turn",
        "_resume_is_due",
        "_since_s",
        "_state",
        "_unread",
        "_unread_start",
        "server",
    )

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._state = NEW
        self._now_s = self._since_s = server.now_s()
        self._exchanges: list[Exchange] = []  # unanswered, in the order of their requests
        self._reader: RequestReader | None = None
        self._peer = ""
        self._body_since_s = 0.0
        # What the server counts for the body that is being read.
        self._counted_bytes = 0
        self._head_bytes = 0
        self._continue_is_due = False
        self._unread = b""
        self._unread_start = 0
        self._requests_in_turn = 0
        self._is_parsing = False
        self._is_read_paused = False
        self._is_refusing = False
        self._parked: Exchange | None = None
        self._resume_is_due = False
        self._flushed_bytes = -1
        self._flushed_since_s = 0.0

    # --- What the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected; one beyond the limit gets an error and is closed."""
        self.open_writer(cast(asyncio.Transport, transport), _socket_number(transport))
        if not self.server.admit(self):
            self.write(self.server.full_response)
            self.close()
            return
        limits = self.server.limits
        self.transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
        self._peer = _peer_name(transport)
        self._reader = RequestReader(limits, self, self._peer, self.server.targets)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._state >= DISCARDING:
            self._discard(data)
        elif self._unread:
            # The transport had this under way when it was paused.
            self._unread = self._unread[self._unread_start :] + data
            self._unread_start = 0
        else:
            self._requests_in_turn = 0
            self._parse(data, 0)

    def eof_received(self) -> bool:
        """The client sends nothing more. It may still read: then what it asked for is answered first."""
        exchanges = self._exchanges
        if self._state == UPGRADED or not exchanges or any(exchange.ends_at_eof for exchange in exchanges):
            # The transport closes now.
            self.stop_direct()
            return False
        self._state = DISCARDING
        exchanges[-1].closes = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over: the owners of unanswered exchanges are called back."""
        self._state = CLOSED
        self.stop_direct()
        self._drop_reader()
        self.server.forget(self)
        exchanges, self._exchanges = self._exchanges, []
        for exchange in exchanges:
            self._release_body(exchange)
            self._call(exchange.gone())

    def pause_writing(self) -> None:
        """The client does not keep up with the output: take no more requests from it."""
        self.is_write_paused = True
        if self._state <= BODY:
            self._pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.is_write_paused = False
        self._notify_writable()
        self._resume_soon()

    # --- Input ---

    def _parse(self, data: bytes, position: int) -> None:
        """Read requests out of `data`; what must wait is kept."""
        reader = self._reader
        assert reader is not None, "only a connection that was admitted and is open parses"
        now_s = self._now_s = self.server.now_s()
        size = len(data)
        self._is_parsing = True
        try:
            while position < size:
                if self._requests_in_turn >= REQUESTS_PER_TURN or self._must_wait():
                    self._unread, self._unread_start = data, position
                    self._pause_reading()
                    break
                if self._state <= IDLE:
                    self._state = HEAD
                    self._since_s = now_s
                elif self._state == BODY:
                    self._since_s = now_s
                position = reader.feed(data, position)
                if self._state >= DISCARDING:
                    break
        except Refusal as refusal:
            self._refuse(refusal)
        finally:
            self._is_parsing = False
        if self._unread and not self._must_wait():
            self._resume_soon()

    def _must_wait(self) -> bool:
        """Whether the next request may not be read yet."""
        exchanges = self._exchanges
        if not exchanges:
            return self.is_write_paused
        return (
            self.is_write_paused
            or len(exchanges) >= self.server.limits.max_pipelined
            or exchanges[-1].offers_upgrade
        )

    def head_received(self, request: Request, body_bytes: int | None) -> None:
        """The reader has a head: the application may refuse it before a body is read that is not short.

        To read a short one that is on its way is cheaper for both sides than a new connection.
        """
        if body_bytes == 0:
            return
        headers = request.headers
        expects_continue = b"expect" in headers and headers[b"expect"].lower() == b"100-continue"
        if body_bytes is None or body_bytes > SHORT_BODY_BYTES or expects_continue:
            self._check_head(request)
        max_body_bytes = self.server.limits.max_body_bytes
        if body_bytes is not None and body_bytes > max_body_bytes:
            raise body_too_large(max_body_bytes)
        self._state = BODY
        self._since_s = self._body_since_s = self._now_s
        if expects_continue and not request.is_http_1_0:
            # 100 Continue must not come between the parts of an earlier response.
            if self._exchanges:
                self._continue_is_due = True
            else:
                self.write(CONTINUE)

    def _check_head(self, request: Request) -> None:
        """Raise a Refusal if the application refuses the head."""
        try:
            answer = self.server.application.check_head(request)
        except Exception:
            answer = (500, internal_error(f"checking the head of {request.method} {request.path!r}"), ())
        if answer is not None:
            raise Refusal(*answer)

    def head_held(self, size: int) -> None:
        """The reader holds so much of a head that is not complete."""
        self.server.take_head(size - self._head_bytes)
        self._head_bytes = size

    def body_received(self, size: int) -> None:
        """The reader holds more of a body."""
        self.server.take_body(size)
        self._counted_bytes += size

    def _release_body(self, exchange: Exchange | None = None) -> None:
        """Uncount a body that is no longer held: that of an exchange, or the one that was being read."""
        if exchange is None:
            self.server.bodies_bytes -= self._counted_bytes
            self._counted_bytes = 0
        else:
            self.server.bodies_bytes -= exchange.counted_bytes
            exchange.counted_bytes = 0

    def request_received(self, request: Request) -> None:
        """The reader has a whole request."""
        self._state = IDLE if request.keep_alive else DISCARDING
        self._requests_in_turn += 1
        self._continue_is_due = False
        exchange = Exchange(self, request)
        exchange.counted_bytes, self._counted_bytes = self._counted_bytes, 0
        exchanges = self._exchanges
        exchanges.append(exchange)
        if request.offers_upgrade:
            # A connection can be upgraded only when nothing else is due on it, and when what came in
            # behind the request is put aside; that is done when the parser returns.
            self._parked = exchange
            if len(exchanges) == 1:
                self._advance()
        else:
            self._handle(exchange)

    def _handle(self, exchange: Exchange) -> None:
        try:
            self.server.application.handle(exchange)
        except Exception:
            request = exchange.request
            body = internal_error(f"handling {request.method} {request.path!r}")
            if not exchange.is_answered:
                exchange.respond(500, body)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what is not a request, or not one that is read to its end, and read nothing more.

        The answer has its place behind those of earlier requests.
        """
        self._state = DISCARDING
        self._drop_reader()
        self._continue_is_due = False
        request = Request(NO_TARGET, {}, "")
        request.keep_alive = False
        exchange = Exchange(self, request)
        self._is_refusing = True
        self._exchanges.append(exchange)
        # Input is thrown away from here on, and that needs reading.
        self._resume_reading()
        exchange.respond(refusal.status, refusal.body, headers=refusal.headers)

    def _discard(self, data: bytes) -> None:
        """Input that is not parsed."""
        if self._state == UPGRADED:
            channel = self._exchanges[0].channel if self._exchanges else None
            if isinstance(channel, Upgraded) and channel.on_data is not None:
                self._call(partial(channel.on_data, data))
        elif self._state == LINGERING:
            self._since_s = self.server.now_s()

    def _drop_reader(self) -> None:
        """End parsing for good."""
        self._unread = b""
        self._release_body()
        self.head_held(0)
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _resume_soon(self) -> None:
        """Go on with what was kept, but not inside the call that made it possible.

        That call may come from the middle of the application, which must not get a new request there.
        """
        if self._is_read_paused and not self._is_parsing and not self._resume_is_due:
            self._resume_is_due = True
            self.server.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_is_due = False
        if self._state > BODY:
            return
        self._requests_in_turn = 0
        if self._must_wait():
            return
        # The client did not cause this wait, so it does not count as the client's.
        self._since_s = self._body_since_s = self.server.now_s()
        data, start = self._unread, self._unread_start
        self._unread = b""
        if data:
            self._parse(data, start)
        if not self._unread and not self._must_wait():
            self._resume_reading()

    def take_unread(self) -> bytes:
        """What came in behind a request that offers an upgrade."""
        unread = self._unread[self._unread_start :]
        self._unread = b""
        return unread

    def _pause_reading(self) -> None:
        if not self._is_read_paused:
            self._is_read_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_read_paused:
            self._is_read_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # --- Output ---

    def answer(self, exchange: Exchange, data: bytes, body: bytes = b"") -> None:
        """The response to an exchange, whole: it goes out when all earlier ones are out.

        `body` is what was not worth copying behind its head.
        """
        exchanges = self._exchanges
        if exchange.counted_bytes:
            self._release_body(exchange)
        if exchanges[0] is not exchange:
            exchange.held = bytearray(data + body)
            return
        del exchanges[0]
        if body:
            self.write_two(data, body)
        else:
            self.write(data)
        if exchange.closes:
            self._end()
        elif exchanges or self._state != IDLE or self._is_read_paused or self.server.is_draining:
            self._advance()
        else:
            self._since_s = self._now_s if self._is_parsing else self.server.now_s()

    def _advance(self) -> None:
        """The first response is out: send those that waited for it."""
        exchanges = self._exchanges
        while exchanges:
            exchange = exchanges[0]
            held = exchange.held
            if held is None:
                if exchange is self._parked:
                    self._parked = None
                    self.server.loop.call_soon(self._handle_parked, exchange)
                break
            exchange.held = None
            self.write(held)
            if exchange.channel is not None and not exchange.channel.is_closed:
                self.server.loop.call_soon(self._notify_writable)
                return
            del exchanges[0]
            if exchange.closes:
                self._end()
                return
        else:
            self._all_answered()
        if self._is_read_paused:
            self._resume_soon()

    def _all_answered(self) -> None:
        """Nothing is due any more, at least until the next request is complete."""
        if self._state == IDLE:
            self._since_s = self.server.now_s()
            if self.server.is_draining and not self._unread and not self._is_parsing:
                self.close()
        elif self._continue_is_due:
            self._continue_is_due = False
            self.write(CONTINUE)

    def _notify_writable(self) -> None:
        """Call the owner of the stream on this connection if it may write again."""
        channel = self._exchanges[0].channel if self._exchanges else None
        if channel is not None and channel.is_writable:
            self._call(channel.on_writable)

    def _handle_parked(self, exchange: Exchange) -> None:
        if self._state != CLOSED:
            self._handle(exchange)

    def should_close_after(self, exchange: Exchange) -> bool:
        """Whether a response is to be the last: when the server is going and nothing else is due."""
        if self.server.is_draining and self._exchanges[-1] is exchange and not self._unread:
            self._state = max(self._state, DISCARDING)
            return True
        return False

    def start_stream(self, exchange: Exchange, head: bytes) -> None:
        """Begin a response without an end. No request is read after it, but the end of the input is."""
        self._state = DISCARDING
        self._unread = b""
        self._release_body(exchange)
        self._resume_reading()
        if self._exchanges[0] is exchange:
            self.write(head)
        else:
            exchange.held = bytearray(head)

    def end_stream(self, exchange: Exchange) -> None:
        """A stream was closed by its owner."""
        exchange.channel = None
        if exchange.held is None:
            self._exchanges.remove(exchange)
            self._end()

    def start_raw(self, exchange: Exchange, head: bytes) -> None:
        """Leave HTTP."""
        self._state = UPGRADED
        self._release_body(exchange)
        self._drop_reader()
        self.write(head)
        self._resume_reading()

    def _end(self) -> None:
        """The last response is written.

        A client that is still sending would lose it: the kernel answers unread bytes with a
        reset, which discards what the client has not read. So a refused one is read on for a while.
        """
        if not self._is_refusing or self.transport.is_closing():
            self.close()
            return
        self._state = LINGERING
        self._since_s = self._body_since_s = self.server.now_s()
        self.stop_direct()
        self.transport.write_eof()

    def close(self) -> None:
        """End the connection once everything is out."""
        if self._state != CLOSED:
            self._state = DISCARDING
            self._unread = b""
            self.stop_direct()
            self.transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._state != CLOSED:
            self._state = DISCARDING
            self._unread = b""
            self.stop_direct()
            self.transport.abort()

    # --- Time ---

    def drain(self) -> None:
        """The server is going: an idle connection ends now, any other with its last response."""
        if self._state <= IDLE and not self._exchanges and not self._unread:
            self.close()

    def sweep(self, now_s: float) -> None:
        """Look whether this connection has used up its time."""
        if self._is_stalled(now_s):
            self.abort()
            return
        limits = self.server.limits
        state = self._state
        waited_s = now_s - self._since_s
        if state == IDLE:
            if not self._exchanges and waited_s >= limits.idle_timeout_s:
                self.close()
        elif state == NEW:
            if waited_s >= limits.header_timeout_s:
                self.close()
        elif state == LINGERING:
            if (
                waited_s >= limits.linger_stall_timeout_s
                or now_s - self._body_since_s >= limits.linger_timeout_s
            ):
                self.abort()
        elif self._is_read_paused:
            return
        elif state == HEAD:
            if waited_s >= limits.header_timeout_s:
                self._refuse(
                    Refusal.because(408, f"the headers took longer than {limits.header_timeout_s:g} s")
                )
        elif state == BODY:
            if waited_s >= limits.body_stall_timeout_s:
                self._refuse(
                    Refusal.because(408, f"no part of the body came for {limits.body_stall_timeout_s:g} s")
                )
            elif now_s - self._body_since_s >= limits.body_timeout_s:
                self._refuse(Refusal.because(408, f"the body took longer than {limits.body_timeout_s:g} s"))

    def _is_stalled(self, now_s: float) -> bool:
        """Whether output waits and the client has not taken a byte of it for too long."""
        waiting_bytes = self.buffered
        if not waiting_bytes:
            self._flushed_bytes = -1
            return False
        flushed_bytes = self.written_bytes - waiting_bytes
        if flushed_bytes != self._flushed_bytes:
            self._flushed_bytes = flushed_bytes
            self._flushed_since_s = now_s
            return False
        return now_s - self._flushed_since_s >= self.server.limits.write_stall_timeout_s

    def _call(self, callback: Callable[[], None] | None) -> None:
        """Call back into the application; its errors must not end the connection or the sweep."""
        if callback is None:
            return
        try:
            callback()
        except Exception:
            log.exception("a callback of the application failed")


def _socket_number(transport: asyncio.BaseTransport) -> int:
    """The socket that may be written to past its transport; -1 if there is more to that than bytes.

    What this needs holds for plain TCP of uvloop: bytes that it does not hold are with the kernel, and the
    socket stays open until `connection_lost`.
    """
    kind = type(transport)
    if kind.__module__ != "uvloop.loop" or kind.__name__ != "TCPTransport":
        return -1
    number: int = transport.get_extra_info("socket").fileno()
    return number


def _peer_name(transport: asyncio.BaseTransport) -> str:
    """The client's address as text; empty if it has gone already."""
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return ""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
