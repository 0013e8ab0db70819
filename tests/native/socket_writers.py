"""Ways out of connections over real sockets, whose transport a test flushes by hand."""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from typing import Any

from everlog.native.topics.socket_writer import SocketWriter

PATIENCE_MS = 10_000
SMALL_BUFFER_BYTES = 4096


class HandTransport(asyncio.Transport):
    """A transport of the kind that may be passed by: what the socket does not take is held until `flush`."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock
        self.held = bytearray()
        self.written: list[bytes] = []
        self.error: OSError | None = None
        self.is_over = False

    def write(self, data: Any) -> None:
        """Send what the socket takes, unless something is before it."""
        self.written.append(bytes(data))
        self.held += data
        if len(self.held) == len(data):
            self.flush()

    def writelines(self, list_of_data: Any) -> None:
        """As one write."""
        self.write(b"".join(list_of_data))

    def flush(self) -> None:
        """The loop has seen that the socket can be written to."""
        try:
            while self.held:
                del self.held[: self.sock.send(self.held)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.error, self.is_over = error, True
            self.held.clear()

    def get_write_buffer_size(self) -> int:
        """What is held."""
        return len(self.held)

    def is_closing(self) -> bool:
        """Whether the connection is ending."""
        return self.is_over


class WriterPair:
    """A way out of a connection, and the client at its other end."""

    def __init__(self, server_side: socket.socket, client: socket.socket) -> None:
        server_side.setblocking(False)
        client.setblocking(False)
        self.client = client
        self.transport = HandTransport(server_side)
        self.writer = SocketWriter()
        self.writer.open_writer(self.transport, server_side.fileno())
        self.received = b""

    @classmethod
    def over_tcp(cls) -> WriterPair:
        """With buffers so small that much of what is written is taken in part."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            client.connect(listener.getsockname())
            server_side, _ = listener.accept()
        server_side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        server_side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(server_side, client)

    def read(self, size: int) -> None:
        """The client takes so much of what is there."""
        with suppress(BlockingIOError):
            self.received += self.client.recv(size)

    def fill(self) -> int:
        """Write past everything until the socket takes no more; returns how many bytes it took."""
        taken = 0
        try:
            while True:
                taken += self.transport.sock.send(b"-" * SMALL_BUFFER_BYTES)
        except BlockingIOError:
            return taken

    def drain(self, size: int) -> None:
        """The client takes everything up to so many bytes in all, and the transport sends what it holds."""
        poll = select.poll()
        poll.register(self.client, select.POLLIN)
        while len(self.received) < size:
            self.transport.flush()
            assert poll.poll(PATIENCE_MS), f"{len(self.received)} of {size} bytes came"
            self.read(1 << 20)

    def close(self) -> None:
        """Close both ends."""
        self.writer.stop_direct()
        self.transport.sock.close()
        self.client.close()
