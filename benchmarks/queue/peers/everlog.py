"""everlog's own queue, in the shapes that its documentation recommends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from benchmarks.queue.peers.base import Mode, Peer, ReceiveSide, SendSide, Setup

TYPE_ID = 1
# A caller has the exchange's or its own time at hand; a constant stands for it.
TIMESTAMP_NS = 1_700_000_000_000_000_000
READER = "benchmark"
WAIT_MAX_S = 1.0


class EverlogPeer(Peer):
    """A queue with default settings; payload checksums are written and checked."""

    name = "everlog"
    title = "everlog"
    distribution = "everlog"
    install_command = "make setup"
    spinning_pace_ns = 20_000
    stream_messages = 1_000_000

    def installed_version(self) -> str | None:
        """None also when the native code is not built."""
        try:
            from everlog.queue import Queue  # noqa: F401 - only to see whether it can be imported
        except ImportError:
            return None
        return super().installed_version()

    @contextmanager
    def sender(self, setup: Setup) -> Iterator[SendSide]:
        """`append` with the caller's timestamp."""
        from everlog.queue import Queue

        with Queue.open_publisher(setup.address) as writer:
            append = writer.append

            def send_all(payloads: Iterable[bytes]) -> None:
                for payload in payloads:
                    append(TYPE_ID, payload, TIMESTAMP_NS)

            yield SendSide(send=partial(append, TYPE_ID), send_all=send_all)

    @contextmanager
    def receiver(self, setup: Setup) -> Iterator[ReceiveSide]:
        """`wait` and `next`, or iteration at full speed."""
        from everlog.queue import Queue

        strategy = _wait_strategy(setup.mode)
        with Queue.open_subscriber(setup.address, READER, "earliest", wait_strategy=strategy) as reader:
            wait = partial(reader.wait, WAIT_MAX_S)

            def bursts() -> Iterator[Iterable[Any]]:
                while True:
                    wait()
                    yield reader

            yield ReceiveSide(
                take=reader.next,
                wait=None if setup.mode is Mode.POLLING else wait,
                messages=chain.from_iterable(bursts()),
            )


def _wait_strategy(mode: Mode) -> Any:
    from everlog.queue import BusySpin, SpinThenPark

    return SpinThenPark(spin_us=0) if mode is Mode.ASLEEP else BusySpin()
