"""What a contender must offer to be measured: two ends of a channel, nothing else.

The loops in `benchmarks.queue.loops` do the timing; a contender only says how one sends, takes
and waits. Each uses the fastest public shape of its library for the mode it is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar


class Mode(Enum):
    """How the receiver waits, which decides what each contender opens."""

    SPINNING = "spinning"  # the receiver never sleeps
    POLLING = "polling"  # as above, by asking in a Python loop where there is a better way
    ASLEEP = "asleep"  # the receiver sleeps in the kernel before each message
    STREAM = "stream"  # as fast as it goes


@dataclass(frozen=True)
class Setup:
    """One run: where the channel is and what will go through it."""

    address: Any
    mode: Mode
    payload_bytes: int
    messages: int


@dataclass(frozen=True)
class SendSide:
    """An open sender.

    `send(prepared, timestamp_ns)` sends one message; `send_all` sends many at full speed.
    `prepare` turns a payload into what the library takes best, outside the timed region.
    """

    send: Callable[[Any, int], object]
    send_all: Callable[[Iterable[Any]], object]
    prepare: Callable[[bytes], Any] = bytes


@dataclass(frozen=True)
class ReceiveSide:
    """An open receiver.

    `take` returns one message as a buffer, or None when there is none (unless it blocks).
    `wait` returns when `take` is worth calling; None where `take` alone is the way.
    `messages` never ends and yields at full speed.
    """

    take: Callable[[], Any]
    wait: Callable[[], object] | None
    messages: Iterator[Any]


class Peer(ABC):
    """One contender. Instances hold no state: child processes make their own."""

    name: ClassVar[str]
    title: ClassVar[str]
    distribution: ClassVar[str]
    install_command: ClassVar[str]
    # Pace of the spinning measurement: slow enough that messages never queue up.
    spinning_pace_ns: ClassVar[int]
    # Length of a throughput run with small payloads: about half a second to a second of work.
    stream_messages: ClassVar[int]

    def installed_version(self) -> str | None:
        """The version that would be measured, or None when something is missing."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return None

    def channel(self, directory: Path) -> AbstractContextManager[Any]:
        """Whatever must exist before the two ends open, made in the parent; yields the address."""
        return nullcontext(str(directory / self.name))

    @abstractmethod
    def sender(self, setup: Setup) -> AbstractContextManager[SendSide]:
        """Open the sending end; called first, in its own process."""

    @abstractmethod
    def receiver(self, setup: Setup) -> AbstractContextManager[ReceiveSide]:
        """Open the receiving end; called once the sender is open, in its own process."""


def send_each(send: Callable[[Any], object]) -> Callable[[Iterable[Any]], object]:
    """The fastest loop Python has over a one-argument `send`."""
    return lambda payloads: deque(map(send, payloads), maxlen=0)
