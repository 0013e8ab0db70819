"""The timed code, written once and used for every contender.

Owns the loops between the two clock readings and the test messages; knows no contender. All
loops check what they receive, so a number is never the speed of losing or mixing up messages.
Times are CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle, islice, repeat
from typing import Any

from benchmarks.queue.stats import NS_PER_S

RING_BYTES_MAX = 4 << 20
# Prime, so that a lost or doubled block of any power of two shifts the order visibly.
RING_LENGTHS = (4093, 509, 61)
# Below this pace a sender has no time to sleep; above it, it leaves its core to helper threads.
NAP_PACE_NS = 400_000
# How long before the send time a sender is awake again, so that its own wake-up is not measured.
NAP_MARGIN_NS = 150_000


class WrongMessage(Exception):
    """A contender delivered something else than what was sent, or in another order."""


def ring(payload_bytes: int) -> list[bytes]:
    """Distinct test payloads, each filled with its own number; senders and receivers cycle through."""
    length = next((n for n in RING_LENGTHS if n * payload_bytes <= RING_BYTES_MAX), RING_LENGTHS[-1])
    return [number.to_bytes(8, "little") * (payload_bytes // 8) for number in range(length)]


def expected(payload_bytes: int, count: int) -> Iterator[bytearray]:
    """What the receiver must see.

    A bytearray, because it compares with any buffer in place: no contender pays for a copy.
    """
    return islice(cycle([bytearray(payload) for payload in ring(payload_bytes)]), count)


def endless(take: Callable[[], Any]) -> Iterator[Any]:
    """Messages from a non-blocking `take`, asked again and again."""
    return chain.from_iterable(iter(take, None) for _ in repeat(None))


def send_paced(
    send: Callable[[Any, int], object], payloads: list[Any], count: int, pace_ns: int
) -> array[int]:
    """Send one message every `pace_ns`; return when each was handed over.

    The next time is counted from the last send, so a slow send never makes a burst.
    """
    clock = time.monotonic_ns
    sent = array("q", bytes(8 * count))
    due_ns = clock() + pace_ns
    for index, payload in zip(range(count), cycle(payloads), strict=False):
        if pace_ns >= NAP_PACE_NS:
            time.sleep(max(0, due_ns - NAP_MARGIN_NS - clock()) / NS_PER_S)
        while (now_ns := clock()) < due_ns:
            pass
        send(payload, now_ns)
        sent[index] = now_ns
        due_ns = now_ns + pace_ns
    return sent


def receive_timed(
    take: Callable[[], Any],
    wait: Callable[[], object] | None,
    payload_bytes: int,
    count: int,
) -> array[int]:
    """Receive `count` messages; return when each was in hand (a buffer with its content).

    Without `wait`, `take` is called until it returns a message (it may also block itself).
    """
    clock = time.monotonic_ns
    received = array("q", bytes(8 * count))
    for index, want in enumerate(expected(payload_bytes, count)):
        # Taking comes first: one wake-up may stand for several messages.
        if wait is None:
            while (message := take()) is None:
                pass
        else:
            while (message := take()) is None:
                wait()
        received[index] = clock()
        if want != message:
            raise WrongMessage(f"message {index} is not the one that was sent")
    return received


def receive_polled(take: Callable[[], Any], payload_bytes: int, count: int) -> tuple[array[int], array[int]]:
    """Receive `count` messages; return when each was in hand, and when the last look before it began.

    A receiver that runs looks again and again; a long last look says that it was not running.
    """
    clock = time.monotonic_ns
    received, looked = array("q", bytes(8 * count)), array("q", bytes(8 * count))
    for index, want in enumerate(expected(payload_bytes, count)):
        looked_ns = clock()
        while (message := take()) is None:
            looked_ns = clock()
        received[index] = clock()
        looked[index] = looked_ns
        if want != message:
            raise WrongMessage(f"message {index} is not the one that was sent")
    return received, looked


def send_stream(send_all: Callable[[Iterable[Any]], object], payloads: list[Any], count: int) -> int:
    """Send `count` messages as fast as they are taken; return when the first was handed over."""
    stream = islice(cycle(payloads), count)
    started_ns = time.monotonic_ns()
    send_all(stream)
    return started_ns


def receive_stream(messages: Iterator[Any], payload_bytes: int, count: int) -> int:
    """Check content and order of `count` messages; return when the last was checked."""
    # `expected` comes first: zip then stops without asking for a message that never comes.
    for want, message in zip(expected(payload_bytes, count), messages, strict=False):
        if want != message:
            raise WrongMessage("a message differs from the one that was sent at its place")
    return time.monotonic_ns()
