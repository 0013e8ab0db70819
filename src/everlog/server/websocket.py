"""The WebSocket protocol on an upgraded connection: handshake, frames, closing, and flow control both ways.

Owns one connection after its upgrade: received events that were not processed yet, and the short queue of
messages that the client has not taken. Knows no command and no topic; its owner gets whole text messages and
sends frames. A client that does not read stops its own socket only: its owner sees no room, renders nothing,
accepts no more messages, and then nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import socket
import struct
from collections import deque
from typing import Final, Protocol

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from everlog.server.errors import ApiError, invalid
from everlog.server.http import Headers, Request, Upgraded

QUEUE_MESSAGES: Final = 4
"""Messages that may wait for the client, besides the one that it is taking."""
CLOSE_TIMEOUT_S: Final = 5.0
"""How long a client may take to answer the end of the conversation."""
MESSAGE_TIMEOUT_S: Final = 60.0
"""How long a client may take for one message, from its first piece to its last."""
SUBPROTOCOL: Final = b"everlog"
KEY_PROTOCOL: Final = b"everlog.key."
VERSION: Final = b"13"
KEY_BYTES: Final = 16
# Small messages go out together; large ones are not worth another copy.
JOINED_BYTES: Final = 64 * 1024
# A peer that vanished without a word is noticed after about two minutes, though nothing is sent to it.
KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 3))
FIN_TEXT: Final = 0x81
# What a client did wrong, by a part of the library's message.
BROKEN_RULES: Final = {
    "unexpected CONTINUATION": "a message was continued that had not begun",
    "expected CONTINUATION": "a message began before the one before it was complete",
    "unmasked": "a frame was not masked",
    "fragment control": "a control frame was fragmented",
    "Control frame": "a control frame had more than 125 bytes",
    "Reserved bit": "a reserved bit was set, and no extension was agreed on",
    "opcode": "a frame had an unknown opcode",
    "CLOSE": "a close frame had an invalid code or reason",
    "length": "the length of a frame was not valid",
}
log = logging.getLogger("everlog.server.websocket")


def handshake_headers(request: Request) -> Headers:
    """Check a request for an upgrade to WebSocket; returns what the answer has to carry."""
    if request.method != "GET" or not request.offers_upgrade:
        raise invalid("this route speaks WebSocket only: send GET with Connection: Upgrade")
    protocols = {part.strip().lower() for part in (request.header(b"upgrade") or b"").split(b",")}
    if b"websocket" not in protocols:
        raise invalid("the only upgrade that is possible here is to websocket")
    if request.header(b"sec-websocket-version") != VERSION:
        headers = ((b"Sec-WebSocket-Version", VERSION),)
        message = f"only version {VERSION.decode()} of WebSocket is spoken here"
        raise ApiError(400, "invalid_request", message, None, headers)
    key = request.header(b"sec-websocket-key") or b""
    if not _is_key(key):
        raise invalid(f"Sec-WebSocket-Key must be {KEY_BYTES} bytes in base64")
    answer = ((b"Upgrade", b"websocket"), (b"Sec-WebSocket-Accept", generate_accept_token(key)))
    if SUBPROTOCOL in offered_protocols(request):
        return (*answer, (b"Sec-WebSocket-Protocol", SUBPROTOCOL))
    return answer


def offered_protocols(request: Request) -> list[bytes]:
    """The subprotocols that a client offers."""
    return [part.strip() for part in (request.header(b"sec-websocket-protocol") or b"").split(b",")]


def key_of_protocols(request: Request) -> bytes | None:
    """The key that a browser sends as a subprotocol, since it cannot send headers; None if there is none."""
    for offered in offered_protocols(request):
        if offered.startswith(KEY_PROTOCOL):
            text = offered.removeprefix(KEY_PROTOCOL).rstrip(b"=")
            try:
                return base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
            except binascii.Error:
                return None
    return None


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == KEY_BYTES
    except binascii.Error:
        return False


def text_frame(*parts: bytes | memoryview) -> bytes:
    """One whole text message in one frame, put together in a single copy; the same for every client."""
    size = sum(map(len, parts))
    if size < 126:
        head = bytes((FIN_TEXT, size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", FIN_TEXT, 126, size)
    else:
        head = struct.pack("!BBQ", FIN_TEXT, 127, size)
    return b"".join((head, *parts))


def push_frame(op: str, lines: bytes) -> bytes:
    """A pushed message: the fields of an event of a watch stream, with the op before them."""
    # The data of an event is one line, and the only part of its lines with a brace.
    fields = memoryview(lines)[lines.index(b"{") + 1 : -1]
    return text_frame(b'{"op":"%b",' % op.encode(), fields)


def _broken_rule(event: CloseConnection) -> str:
    """What is wrong with what a client sent, in words for the client."""
    if event.code == CloseReason.INVALID_FRAME_PAYLOAD_DATA:
        return "the text is not UTF-8"
    reason = event.reason or ""
    return next((rule for part, rule in BROKEN_RULES.items() if part in reason), "a frame was not valid")


class Owner(Protocol):
    """The user of a socket. Nothing is called after `ended`."""

    @property
    def accepts_message(self) -> bool:
        """Whether another message may be received now."""
        ...

    def message_received(self, message: bytes | bytearray) -> None:
        """A whole text message; it is UTF-8."""
        ...

    def message_refused(self, code: str, reason: str) -> None:
        """A message came that cannot be received."""
        ...

    def hold(self, size: int) -> bool:
        """Count bytes of an unfinished message; False if there is no room for them."""
        ...

    def release(self) -> None:
        """Uncount what was held."""
        ...

    def error_frame(self, code: str, message: str) -> bytes:
        """The frame that reports an error after which the connection ends."""
        ...

    def room_made(self) -> None:
        """The client has taken something: there is room for more."""
        ...

    def ended(self) -> None:
        """The connection is over."""
        ...


class WebSocket:
    """The server side of one connection."""

    def __init__(
        self, channel: Upgraded, owner: Owner, loop: asyncio.AbstractEventLoop, max_message_bytes: int
    ) -> None:
        self._channel = channel
        self._owner = owner
        self._loop = loop
        self._max_message_bytes = max_message_bytes
        self._protocol = Connection(ConnectionType.SERVER)
        self._pieces: bytearray | None = None  # of a message that is not complete
        self._deadline: asyncio.TimerHandle | None = None  # for its end
        self._refused: tuple[str, str] | None = None  # code and reason, if nothing of the message is kept
        self._queue: deque[bytes] = deque()
        self._pong: bytes | None = None
        self._is_read_paused = False
        self._is_reading = False
        self._closer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._has_failed = False
        self._is_over = False

    def start(self) -> None:
        """Begin with what came in behind the request."""
        channel = self._channel
        channel.on_gone = self._end
        channel.on_writable = self._writable
        channel.on_data = self._receive
        if channel.transport is None:
            self._end()
            return
        # The queue is here: the transport says that it is full as soon as the kernel does not take all.
        channel.transport.set_write_buffer_limits(high=0)
        connection = channel.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        received, channel.received = channel.received, b""
        self._receive(received)

    # --- Output ------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more messages may be sent now; look before rendering one."""
        return 0 if self._is_closing else max(0, QUEUE_MESSAGES - len(self._queue))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits to be sent, and the conversation goes on."""
        return not (self._is_closing or self._queue or self._pong is not None)

    def send(self, frame: bytes) -> None:
        """Queue a frame; `flush` when the last of several is there."""
        if not self._is_closing:
            self._queue.append(frame)

    def send_now(self, frame: bytes) -> bool:
        """Send a frame at once, past the queue; False if something is queued or the client has no room."""
        if not self.is_quiet or not self._channel.is_writable:
            return False
        self._channel.write(frame)
        return True

    def flush(self) -> None:
        """Write as many queued frames as the client takes."""
        queue, channel = self._queue, self._channel
        while (queue or self._pong is not None) and channel.is_writable:
            frames = []
            if self._pong is not None:
                frames.append(self._pong)
                self._pong = None
            size = 0
            while queue and (size == 0 or size + len(queue[0]) <= JOINED_BYTES):
                size += len(queue[0])
                frames.append(queue.popleft())
            channel.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def _writable(self) -> None:
        self.flush()
        if not self._is_over and not self._is_closing:
            self._owner.room_made()

    # --- Input -------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if self._is_over or self._has_failed:
            return
        self._protocol.receive_data(data)
        self.read_on()

    def read_on(self) -> None:
        """Process events as long as the owner accepts messages; the rest waits, at last in the kernel."""
        if self._is_reading or self._is_over:
            return
        self._is_reading = True
        try:
            has_more = self._read_events()
        finally:
            self._is_reading = False
        self.flush()
        if not self._is_over:
            self._pause_reading(has_more)

    def _read_events(self) -> bool:
        """Process events one by one; returns whether more wait because the owner accepts none now."""
        while self._is_closing or self._owner.accepts_message:
            event = next(self._protocol.events(), None)
            if event is None:
                return False
            self._take(event)
        return True

    def _take(self, event: Event) -> None:
        if isinstance(event, CloseConnection):
            self._close_received(event)
        elif self._is_closing:
            return
        elif isinstance(event, TextMessage):
            self._take_piece(event.data.encode(), is_last=event.message_finished)
        elif isinstance(event, BytesMessage):
            if event.message_finished:
                self._owner.message_refused("unsupported_message", "send JSON as text; binary is not read")
        elif isinstance(event, Ping):
            # Of several pings that could not be answered yet, the last one is enough.
            self._pong = bytes(self._protocol.send(Pong(payload=bytes(event.payload))))

    def _take_piece(self, piece: bytes, *, is_last: bool) -> None:
        """A part of a text message; of one that is too large, or finds no room, nothing is kept."""
        if is_last and self._deadline is None and len(piece) <= self._max_message_bytes:
            self._owner.message_received(piece)  # it came whole
            return
        if self._deadline is None:
            self._deadline = self._loop.call_later(MESSAGE_TIMEOUT_S, self._message_timed_out)
            self._pieces = bytearray()
        # One growing buffer: a list would cost a client's tiny fragments many times their size.
        pieces = self._pieces
        if pieces is not None:
            self._refused = self._refusal(len(pieces), len(piece))
            if self._refused is None:
                pieces += piece
            else:
                self._pieces = None
                self._owner.release()
        if is_last:
            refused = self._refused
            self._forget_message()
            if refused is not None:
                self._owner.message_refused(*refused)
            elif pieces is not None:
                self._owner.message_received(pieces)

    def _refusal(self, held: int, size: int) -> tuple[str, str] | None:
        """Why a message cannot be kept with so many bytes more; they are counted if it can."""
        if held + size > self._max_message_bytes:
            reason = f"the message is longer than {self._max_message_bytes} bytes; send less at a time"
            return "payload_too_large", reason
        if self._owner.hold(size):
            return None
        return "throttled", "unfinished messages and requests hold too many bytes; send this one later"

    def _forget_message(self) -> None:
        """Nothing of an unfinished message is held any more."""
        self._pieces = self._refused = None
        self._owner.release()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _message_timed_out(self) -> None:
        reason = f"a message was not complete after {MESSAGE_TIMEOUT_S:.0f} s"
        self.send(self._owner.error_frame("invalid_request", reason))
        self.close(CloseReason.POLICY_VIOLATION, reason)

    def _pause_reading(self, wanted: bool) -> None:
        transport = self._channel.transport
        if wanted == self._is_read_paused or transport is None or transport.is_closing():
            return
        self._is_read_paused = wanted
        if wanted:
            transport.pause_reading()
        else:
            transport.resume_reading()

    # --- The end -----------------------------------------------------------------------------------------

    def close(self, code: CloseReason, reason: str) -> None:
        """End the conversation behind what is queued; the client is given a while to agree."""
        if self._is_closing or self._is_over:
            return
        self._queue.append(bytes(self._protocol.send(CloseConnection(code=code, reason=reason))))
        self._is_closing = True
        self._forget_message()
        self._closer = self._loop.call_later(CLOSE_TIMEOUT_S, self._abort)
        self.flush()
        # The answer has to be read, whatever the owner still wants. Not here: it may be in the middle of it.
        self._loop.call_soon(self.read_on)

    def _close_received(self, event: CloseConnection) -> None:
        state = self._protocol.state
        if state is ConnectionState.OPEN:
            self._fail(event)
        elif state is ConnectionState.REMOTE_CLOSING:
            self._is_closing = True
            self._queue.append(bytes(self._protocol.send(event.response())))
            self._close_channel()
        else:
            self._close_channel()

    def _fail(self, event: CloseConnection) -> None:
        """The client broke the protocol, after which nothing that it sends can be understood.

        So its agreement cannot be waited for; but what it still sends is taken from the kernel, which would
        otherwise reset the connection before the client has read why.
        """
        self._has_failed = True
        if event.code == CloseReason.INVALID_FRAME_PAYLOAD_DATA:
            self.send(self._owner.error_frame("invalid_json", "the message is not UTF-8"))
        self.close(CloseReason(event.code), _broken_rule(event))
        self._write_all()
        transport = self._channel.transport
        if transport is not None and not transport.is_closing():
            transport.write_eof()

    def _close_channel(self) -> None:
        """Both sides have said that they are done: the connection ends when everything is out."""
        self._write_all()
        self._channel.close()
        self._end()

    def _write_all(self) -> None:
        """Leave the rest to the transport: nothing will come behind it."""
        for frame in self._queue:
            self._channel.write(frame)
        self._queue.clear()

    def _abort(self) -> None:
        self._channel.abort()
        self._end()

    def _end(self) -> None:
        """Give everything back, once."""
        if self._is_over:
            return
        self._is_over = self._is_closing = True
        if self._closer is not None:
            self._closer.cancel()
        self._queue.clear()
        self._forget_message()
        self._owner.ended()
