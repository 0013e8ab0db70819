"""What the child processes do for any contender: one job for each end of each measurement.

Every job is a context manager for `benchmarks.queue.processes`: it opens, yields the function
that does the timed work, and closes. Joins peers and loops; holds no timing of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.queue import loops
from benchmarks.queue.machine import Memory
from benchmarks.queue.peers import PEERS, Setup


@contextmanager
def paced_sender(
    peer_name: str, setup: Setup, count: int, pace_ns: int
) -> Iterator[Callable[[], array[int]]]:
    """Send `count` messages at a pace; the result is when each was handed over."""
    with PEERS[peer_name].sender(setup) as side:
        payloads = [side.prepare(payload) for payload in loops.ring(setup.payload_bytes)]
        yield lambda: loops.send_paced(side.send, payloads, count, pace_ns)


@contextmanager
def timed_receiver(peer_name: str, setup: Setup, count: int) -> Iterator[Callable[[], array[int]]]:
    """Receive `count` messages; the result is when each was in hand."""
    with PEERS[peer_name].receiver(setup) as side:
        yield lambda: loops.receive_timed(side.take, side.wait, setup.payload_bytes, count)


@contextmanager
def polled_receiver(
    peer_name: str, setup: Setup, count: int
) -> Iterator[Callable[[], tuple[array[int], array[int]]]]:
    """The same without waiting; the result is also when the look began that found it."""
    with PEERS[peer_name].receiver(setup) as side:
        yield lambda: loops.receive_polled(side.take, setup.payload_bytes, count)


@contextmanager
def stream_sender(peer_name: str, setup: Setup, count: int) -> Iterator[Callable[[], tuple[int, Memory]]]:
    """Send `count` messages at full speed; the result is when it began, and the memory in use."""
    with PEERS[peer_name].sender(setup) as side:
        payloads = [side.prepare(payload) for payload in loops.ring(setup.payload_bytes)]
        yield lambda: (loops.send_stream(side.send_all, payloads, count), Memory.of_this_process())


@contextmanager
def stream_receiver(peer_name: str, setup: Setup, count: int) -> Iterator[Callable[[], tuple[int, Memory]]]:
    """Check `count` messages at full speed; the result is when it ended, and the memory in use."""
    with PEERS[peer_name].receiver(setup) as side:
        yield lambda: (
            loops.receive_stream(side.messages, setup.payload_bytes, count),
            Memory.of_this_process(),
        )
