"""ZeroMQ through pyzmq: PUSH and PULL over an `ipc://` socket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.queue.peers.base import Mode, Peer, ReceiveSide, SendSide, Setup, send_each

# Large enough never to stall the sender in a throughput run, small enough to stay in memory.
HIGH_WATER_MARK = 100_000


class ZmqPeer(Peer):
    """One socket on each side; ZeroMQ's I/O threads may use every core."""

    name = "pyzmq"
    title = "pyzmq ipc"
    distribution = "pyzmq"
    install_command = "pip install pyzmq"
    spinning_pace_ns = 500_000
    stream_messages = 500_000

    @contextmanager
    def sender(self, setup: Setup) -> Iterator[SendSide]:
        """Bind a PUSH socket."""
        import zmq

        with _socket(zmq.PUSH) as socket:
            socket.bind(f"ipc://{setup.address}")
            send = socket.send
            yield SendSide(send=lambda payload, _: send(payload), send_all=send_each(send))

    @contextmanager
    def receiver(self, setup: Setup) -> Iterator[ReceiveSide]:
        """Connect a PULL socket; spin with `NOBLOCK`, or block in `recv`."""
        import zmq

        with _socket(zmq.PULL) as socket:
            socket.connect(f"ipc://{setup.address}")
            blocking = socket.recv

            def take_now() -> Any:
                try:
                    return blocking(zmq.NOBLOCK)
                except zmq.Again:
                    return None

            yield ReceiveSide(
                take=take_now if setup.mode is Mode.SPINNING else blocking,
                wait=None,
                messages=iter(blocking, None),
            )


@contextmanager
def _socket(kind: int) -> Iterator[Any]:
    import zmq

    with zmq.Context() as context:
        # A process pinned to one core would make the I/O thread fight with the thread it serves.
        for core in range(os.cpu_count() or 1):
            context.set(zmq.THREAD_AFFINITY_CPU_ADD, core)
        with context.socket(kind) as socket:
            socket.set_hwm(HIGH_WATER_MARK)
            socket.linger = 0
            yield socket
