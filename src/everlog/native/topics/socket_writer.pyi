"""Types of the native output of a connection."""

import asyncio

class SocketWriter:
    transport: asyncio.Transport
    is_write_paused: bool
    written_bytes: int
    """Written so far, whether the kernel has taken them or not."""
    is_direct: bool
    buffered: int
    def open_writer(self, transport: asyncio.Transport, fd: int) -> None: ...
    def stop_direct(self) -> None: ...
    def write(self, data: bytes | bytearray | memoryview) -> bool: ...
    def write_two(self, head: bytes, body: bytes) -> None: ...
