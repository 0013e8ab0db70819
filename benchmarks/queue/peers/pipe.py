"""`multiprocessing.Pipe`: what the standard library offers between two processes."""

from __future__ import annotations

import multiprocessing
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.queue.peers.base import Mode, Peer, ReceiveSide, SendSide, Setup, send_each


class PipePeer(Peer):
    """A one-way pipe; both ends are made by the parent and inherited."""

    name = "pipe"
    title = "mp.Pipe"
    distribution = ""
    install_command = "part of Python"
    spinning_pace_ns = 100_000
    stream_messages = 200_000

    def installed_version(self) -> str | None:
        """Comes with Python."""
        return platform.python_version()

    @contextmanager
    def channel(self, directory: Path) -> Iterator[Any]:
        """The two connections; each child uses one of them."""
        reading, writing = multiprocessing.get_context("spawn").Pipe(duplex=False)
        with reading, writing:
            yield reading, writing

    @contextmanager
    def sender(self, setup: Setup) -> Iterator[SendSide]:
        """Send with `send_bytes`, which does not pickle."""
        _, connection = setup.address
        send_bytes = connection.send_bytes
        yield SendSide(send=lambda payload, _: send_bytes(payload), send_all=send_each(send_bytes))

    @contextmanager
    def receiver(self, setup: Setup) -> Iterator[ReceiveSide]:
        """Spin on `poll`, or block in `recv_bytes`."""
        connection, _ = setup.address
        blocking = connection.recv_bytes
        ready = connection.poll
        yield ReceiveSide(
            take=(lambda: blocking() if ready() else None) if setup.mode is Mode.SPINNING else blocking,
            wait=None,
            messages=iter(blocking, None),
        )
