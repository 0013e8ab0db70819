"""everlog's own queue, in the shapes that its documentation recommends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.queue.peers.base import Mode, Peer, ReceiveSide, SendSide, Setup
from benchmarks.queue.stats import MIB

TYPE_ID = 1
# A caller has the exchange's or its own time at hand; a constant stands for it.
TIMESTAMP_NS = 1_700_000_000_000_000_000
READER = "benchmark"
WAIT_MAX_S = 1.0

HEADER_BYTES = 64
RECORD_ALIGN_BYTES = 64
SEGMENT_BYTES_MIN = 16 * MIB
PREPARE_TIMEOUT_S = 30.0


class EverlogPeer(Peer):
    """A queue whose segments lie ready; payload checksums are written and checked."""

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

        segment_size = segment_size_for(setup.messages, setup.payload_bytes)
        with Queue.open_publisher(setup.address, segment_size=segment_size) as writer:
            enter_prepared_segment(writer)
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
        with Queue.open_subscriber(setup.address, READER, "latest", wait_strategy=strategy) as reader:
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


def segment_size_for(count: int, payload_bytes: int) -> int:
    """A segment that holds `count` messages without a roll."""
    record_bytes = HEADER_BYTES + -(-payload_bytes // RECORD_ALIGN_BYTES) * RECORD_ALIGN_BYTES
    return max(SEGMENT_BYTES_MIN, (count * record_bytes // MIB + 1) * MIB)


def enter_prepared_segment(writer: Any) -> None:
    """Fill the first segment, giving the writer's helper the time to prepare the second.

    All but the first segment of a queue are prepared (allocated and page-faulted) before they are
    used, so this is the state in which a queue spends its life.
    """
    filler = bytes(MIB // 2)
    deadline_s = time.monotonic() + PREPARE_TIMEOUT_S
    while writer.segment_id == 0:
        if writer.offset > writer.segment_size // 2:
            while len(list(Path(writer.path).glob("*.q"))) < 2:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"no segment was prepared within {PREPARE_TIMEOUT_S} s")
                time.sleep(0.001)
        writer.append(TYPE_ID, filler)


def _wait_strategy(mode: Mode) -> Any:
    from everlog.queue import BusySpin, SpinThenPark

    return SpinThenPark(spin_us=0) if mode is Mode.ASLEEP else BusySpin()
