"""Processes that sleep and wake each other, and the measure that tells a lost wake from a busy machine.

No futex sleep lasts longer than a second, so a lost wake does not hang: it shows as a reader that slept
on although its message had long been there, to the end of a bounded sleep. A reader that was awake but
waited for a core is no such case: the kernel counts that time, and it is taken off. Nor is one that was woken
earlier: then it was the writer who took long, from the time in its message to the wake.
"""

import os
import random
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from everlog.queue import FanInReader, Queue, QueueReader, QueueWriter, SpinThenPark
from tests.support.files import UnsyncedFs, hooked_fs
from tests.support.stepping import allow_tracing

SLEEP_NS = 1_000_000_000
"""How long one sleep in the kernel lasts without a wake."""
LOST_AFTER_NS = SLEEP_NS // 2
"""Asleep beside a message for so long, up to the end of a sleep: nothing but that end has helped."""

_TURN_S = 60.0


class WaitLog:
    """Waits on a reader (or fan-in) and remembers what the waits were like.

    The messages carry the monotonic time just before they were appended as their timestamp.
    """

    def __init__(self) -> None:
        self.waits = 0
        self.lost_wakes = 0
        self.longest_ns = 0
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def _core_wait_ns(self) -> int:
        """How long this thread was ready to run but had no core, ever."""
        return int(os.pread(self._schedule, 128, 0).split()[1])

    def next_of(self, reader: QueueReader) -> Any:
        """Wait for the next message of a reader and return it."""
        return self._next(reader)

    def next_of_many(self, fan_in: FanInReader) -> Any:
        """Wait for the next (source, message) of a fan-in and return it."""
        return self._next(fan_in)

    def _next(self, source: Any) -> Any:
        while (found := source.next()) is None:
            core_wait_ns = self._core_wait_ns()
            started_ns = time.monotonic_ns()
            if not source.wait(_TURN_S):
                raise AssertionError(f"nothing came within {_TURN_S} s")
            ended_ns = time.monotonic_ns()
            found = source.next()
            core_wait_ns = self._core_wait_ns() - core_wait_ns
            self.waits += 1
            self.longest_ns = max(self.longest_ns, ended_ns - started_ns)
            if found is not None:
                message = found[1] if isinstance(found, tuple) else found
                asleep_ns = ended_ns - max(started_ns, message.timestamp_ns) - core_wait_ns
                slept_to_the_end = ended_ns - started_ns >= SLEEP_NS
                self.lost_wakes += slept_to_the_end and asleep_ns >= LOST_AFTER_NS
                return found
        return found

    def report(self) -> "WaitReport":
        """What the waits were like, to be sent home."""
        return WaitReport(self.waits, self.lost_wakes, self.longest_ns)


@dataclass(frozen=True)
class WaitReport:
    """What the waits of one process were like."""

    waits: int
    lost_wakes: int
    longest_ns: int


def open_sleeper(path: str, name: str | None = None) -> QueueReader:
    """Open a reader that never spins: every wait ends in the kernel."""
    return Queue.open_subscriber(
        path, name, "earliest", wait_strategy=SpinThenPark(spin_us=0), fs=UnsyncedFs()
    )


def post(writer: QueueWriter, rng: random.Random, delay_ns_max: int = 30_000) -> None:
    """Append a message after a random moment, so that it meets the other side at all stages of its sleep."""
    until_ns = time.monotonic_ns() + rng.randrange(delay_ns_max)
    while time.monotonic_ns() < until_ns:
        pass
    writer.append(1, b"", time.monotonic_ns())


def reply(channel: Connection, hears: str, says: str, count: int, seed: int) -> None:
    """Answer each of `count` messages; sends "open" and a WaitReport."""
    rng, log = random.Random(seed), WaitLog()
    with Queue.open_publisher(says, fs=UnsyncedFs(), segment_size=4096) as writer:
        with open_sleeper(hears) as reader:
            channel.send("open")
            for _ in range(count):
                log.next_of(reader)
                post(writer, rng)
        channel.send(log.report())
        channel.recv()  # the answers stay where they are until all have read them


def doze(channel: Connection, hears: list[str], says: str, count: int) -> None:
    """Answer each of `count` messages at once and fall asleep; sends "open" and a WaitReport."""
    log = WaitLog()
    with Queue.open_publisher(says, fs=UnsyncedFs(), segment_size=65536) as writer:
        sources = [open_sleeper(path) for path in hears]
        fan_in = FanInReader(sources) if len(sources) > 1 else None
        channel.send("open")
        for _ in range(count):
            if fan_in is None:
                log.next_of(sources[0])
            else:
                log.next_of_many(fan_in)
            writer.append(1, b"")
        channel.send(log.report())
        channel.recv()


def sleep_until_woken(channel: Connection, path: str, name: str | None) -> None:
    """For each request, wait for the next message and answer with its seq and a WaitReport."""
    log = WaitLog()
    with open_sleeper(path, name) as reader:
        channel.send("open")
        while channel.recv():
            view = log.next_of(reader)
            channel.send((view.seq, log.report()))


def post_to_all(channel: Connection, paths: list[str], count: int, seed: int) -> None:
    """Append `count` messages to each queue, in random order; sends "open" first."""
    rng = random.Random(seed)
    writers = [Queue.open_publisher(path, fs=UnsyncedFs(), segment_size=4096) for path in paths]
    channel.send("open")
    channel.recv()
    todo = [writer for writer in writers for _ in range(count)]
    rng.shuffle(todo)
    for writer in todo:
        post(writer, rng)
    channel.recv()
    for writer in writers:
        writer.close()


def sleep_in_fan_in(channel: Connection, paths: list[str]) -> None:
    """For each request, wait for the next message of any queue; answers (source, seq, WaitReport)."""
    log = WaitLog()
    fan_in = FanInReader([open_sleeper(path) for path in paths])
    channel.send("open")
    while channel.recv():
        source, view = log.next_of_many(fan_in)
        channel.send((source, view.seq, log.report()))


def roll_and_die(channel: Connection, path: str, payload: bytes) -> None:
    """Append a record that needs a roll; die when the roll is visible but no reader was woken."""
    rolling = False

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        sealed = name == "fsync" and os.readlink(f"/proc/self/fd/{arguments[0]}").endswith(".q")
        if rolling and sealed:
            os.kill(os.getpid(), signal.SIGKILL)

    writer = Queue.open_publisher(path, fs=hooked_fs(before))
    channel.send("open")
    rolling = True
    writer.append(1, payload)


# --- Stopped at a chosen instruction ---------------------------------------------------------------------


def sleep_in_steps(channel: Connection, path: str) -> None:
    """For each request, stop (so that a tracer can take over) and wait for a message.

    Answers its seq, and whether it was there long before the reader woke.
    """
    allow_tracing()
    with open_sleeper(path) as reader:
        channel.send("open")
        while channel.recv():
            signal.raise_signal(signal.SIGSTOP)
            reader.wait(_TURN_S)
            woken_ns = time.monotonic_ns()
            view = reader.next()
            channel.send((view.seq, woken_ns - view.timestamp_ns >= LOST_AFTER_NS))


def read_in_steps(channel: Connection, path: str) -> None:
    """For each request, stop (so that a tracer can take over) and read; answers the seqs that came."""
    allow_tracing()
    with open_sleeper(path) as reader:
        channel.send("open")
        while channel.recv():
            signal.raise_signal(signal.SIGSTOP)
            first = reader.next()
            channel.send([view.seq for view in (first, *reader) if view is not None])


def append_in_steps(channel: Connection, path: str) -> None:
    """For each request, stop (so that a tracer can take over) and append a message."""
    allow_tracing()
    with Queue.open_publisher(path, fs=UnsyncedFs()) as writer:
        channel.send("open")
        while channel.recv():
            stamp_ns = time.monotonic_ns()
            signal.raise_signal(signal.SIGSTOP)
            writer.append(1, b"", stamp_ns)
            channel.send("appended")
