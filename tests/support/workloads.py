"""What writer and reader processes do in tests, and what every record must hold.

Content follows from the seq alone, so a reader can check every byte of a record, whichever
process wrote it and however that process ended.
"""

import contextlib
import itertools
import os
import random
import select
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlog.errors import Closed, EverlogError
from everlog.fs import Fs, OsFs
from everlog.queue import Queue, QueueReader, QueueWriter, SpinThenPark
from tests.support.files import UnsyncedFs, hooked_fs

APPEND, IN_PLACE, MANY, ARRAY, ABORTED = "append", "in-place", "many", "array", "aborted"
ALL_KINDS = (APPEND, IN_PLACE, MANY, ARRAY, ABORTED)
TYPE_IDS = {APPEND: 1, IN_PLACE: 2, MANY: 3, ARRAY: 4}

ITEM = np.dtype([("seq", "<u8"), ("noise", "V48")])

OPENED, ACKED = 0, 1
"""Words a writer shares: next_seq + 1 as found on opening, and next_seq after each call that returned."""

_NOISE_LENGTH = 1 << 16
_STAMP_BASE = 1_700_000_000_000_000_000

# A committed, empty, sound record: what a reader must never take an aborted payload for.
_GHOST = struct.pack("<IB3xQQHHI32x", 1, 1, 2**63, 7, 0x0BAD, 0, 0)


STEP = 64
"""Messages a reader takes before it looks at anything else."""


class Aborted(Exception):
    """Raised by a builder that changes its mind."""


class Payloads:
    """The content of every record of a test, as a function of its seq."""

    def __init__(self, seed: int, length_max: int) -> None:
        self.length_max = length_max
        rng = random.Random(seed)
        self._noise = rng.randbytes(_NOISE_LENGTH + length_max)
        edges = [length for length in (0, 1, 63, 64, 65, 128, length_max) if length <= length_max]
        self._lengths = edges + [rng.randint(0, length_max) for _ in range(1021 - len(edges))]
        rng.shuffle(self._lengths)
        array = np.frombuffer(self._noise, np.uint8)
        self._windows = np.lib.stride_tricks.sliding_window_view(array, ITEM["noise"].itemsize)

    def payload(self, seq: int) -> bytes:
        """Return the content of a record of variable length."""
        start = seq * 97 % _NOISE_LENGTH
        return self._noise[start : start + self._lengths[seq % len(self._lengths)]]

    def item(self, seq: int) -> bytes:
        """Return the content of a record that came from an array."""
        start = seq * 97 % _NOISE_LENGTH
        return struct.pack("<Q", seq) + self._noise[start : start + ITEM["noise"].itemsize]

    def items(self, first: int, count: int) -> NDArray[np.void]:
        """Return an array of `item`s."""
        seqs = np.arange(first, first + count, dtype=np.uint64)
        items = np.empty(count, ITEM)
        items["seq"] = seqs
        noise = np.ascontiguousarray(self._windows[(seqs * np.uint64(97)) % np.uint64(_NOISE_LENGTH)])
        items["noise"] = noise.view(ITEM["noise"]).reshape(count)
        return items

    @staticmethod
    def stamp(seq: int) -> int:
        """Return the timestamp of a record, unless it came from `append_many`."""
        return _STAMP_BASE + seq


class Checker:
    """Sees every message once and complains about the first that is not the next one, byte for byte."""

    def __init__(self, payloads: Payloads, next_seq: int = 0) -> None:
        self.payloads = payloads
        self.next_seq = next_seq

    def see(self, message: Any) -> None:
        """Check the next message (a `MessageView` or an owned `Message`)."""
        seq, type_id = message.seq, message.type_id
        if seq != self.next_seq:
            raise AssertionError(f"expected seq {self.next_seq}, got {message!r}")
        content = self.payloads.item(seq) if type_id == TYPE_IDS[ARRAY] else self.payloads.payload(seq)
        if bytes(message.payload) != content:
            raise AssertionError(f"{message!r} holds {bytes(message.payload)!r}, expected {content!r}")
        if type_id != TYPE_IDS[MANY] and message.timestamp_ns != Payloads.stamp(seq):
            raise AssertionError(f"{message!r} has another timestamp than {Payloads.stamp(seq)}")
        self.next_seq += 1


# --- Writing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WriterPlan:
    """What a writer process does. `length_max` is part of the content: all writers of a queue share it."""

    payload_seed: int
    length_max: int
    seed: int = 0
    kinds: tuple[str, ...] = ALL_KINDS
    batch_max: int = 40
    total: int | None = None
    """Close when next_seq reaches this; None: write until killed."""
    flush_every: int = 0
    """Calls between two flush_sync; 0: never."""
    synced: bool = False
    kill_at_call: int = 0
    """Die just before this call of the file system; 0: never."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def in_flight_max(self) -> int:
        """How many records can be there without having been acknowledged."""
        return self.batch_max if {MANY, ARRAY} & set(self.kinds) else 1


def write_queue(channel: Connection, path: str, plan: WriterPlan, words: Any) -> None:
    """Write until the plan's total, telling `words` what OPENED and ACKED say; send next_seq at the end."""
    rng = random.Random(plan.seed)
    payloads = Payloads(plan.payload_seed, plan.length_max)
    with Queue.open_publisher(path, fs=_file_system(plan), **plan.settings) as writer:
        words[OPENED] = writer.next_seq + 1
        words[ACKED] = writer.next_seq
        for call in itertools.count(1):
            if plan.total is not None and writer.next_seq >= plan.total:
                break
            write_once(writer, rng.choice(plan.kinds), payloads, rng, plan)
            words[ACKED] = writer.next_seq
            if plan.flush_every and call % plan.flush_every == 0:
                writer.flush_sync()
    channel.send(words[ACKED])


def _file_system(plan: WriterPlan) -> Fs:
    if plan.kill_at_call == 0:
        return OsFs() if plan.synced else UnsyncedFs()
    calls = itertools.count(1)

    def before(_: str, __: tuple[Any, ...]) -> None:
        if next(calls) == plan.kill_at_call:
            os.kill(os.getpid(), signal.SIGKILL)

    return hooked_fs(before)


def write_once(
    writer: QueueWriter, kind: str, payloads: Payloads, rng: random.Random, plan: WriterPlan
) -> None:
    """One call of the writer of the given kind."""
    seq = writer.next_seq
    room = plan.batch_max if plan.total is None else min(plan.batch_max, plan.total - seq)
    call = prepared_call(writer, kind, payloads, rng.randint(1, room), pause=rng.randint(0, 200))
    returned = call()
    if returned != seq:
        raise AssertionError(f"{kind} returned seq {returned}, next_seq was {seq}")


def prepared_call(
    writer: QueueWriter, kind: str, payloads: Payloads, count: int, pause: int = 0
) -> Callable[[], int]:
    """Make everything ready for one call of the writer, which returns the first seq it was for."""
    seq = writer.next_seq
    stamp = Payloads.stamp(seq)
    if kind == APPEND:
        return partial(writer.append, TYPE_IDS[APPEND], payloads.payload(seq), stamp)
    if kind == IN_PLACE:
        content = payloads.payload(seq)
        builder = haunted_builder(content, pause)
        return partial(writer.append_in_place, TYPE_IDS[IN_PLACE], len(content), builder, stamp)
    if kind == MANY:
        many = [payloads.payload(number) for number in range(seq, seq + count)]
        return partial(writer.append_many, TYPE_IDS[MANY], many)
    if kind == ARRAY:
        stamps = np.arange(count, dtype=np.uint64) + np.uint64(stamp)
        return partial(writer.append_array, TYPE_IDS[ARRAY], payloads.items(seq, count), stamps)

    def abort() -> int:
        with contextlib.suppress(Aborted):
            writer.append_in_place(TYPE_IDS[IN_PLACE], payloads.length_max, haunted_builder(None, pause))
        return seq

    return abort


def haunted_builder(content: bytes | None, pause: int) -> Callable[[memoryview], None]:
    """Return a builder that first fills its payload with forged records; without content it then fails.

    `pause` makes it linger in between, where a kill leaves the forgeries behind.
    """

    def build(view: memoryview) -> None:
        view[:] = (_GHOST * (len(view) // len(_GHOST) + 1))[: len(view)]
        for _ in range(pause):
            pass
        if content is None:
            raise Aborted
        view[:] = content

    return build


def write_and_fork(channel: Connection, path: str) -> None:
    """Append, fork, and send the pid of the forked process and what it met when it tried to append."""
    writer = Queue.open_publisher(path, segment_size=4096)
    for _ in range(3):
        writer.append(1, b"before the fork")
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            writer.append(1, b"from the forked process")
        except Closed:
            os.write(write_end, b"Closed")
        finally:
            os.close(write_end)
            hang_up = select.poll()
            hang_up.register(channel.fileno(), 0)
            hang_up.poll()  # until the test closes the other end
            os._exit(0)
    os.close(write_end)
    channel.send((pid, os.read(read_end, 100).decode()))
    if channel.recv() == "close":
        writer.close()
        channel.send("closed")
        channel.recv()


# --- Reading ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReaderPlan:
    """What a reader process does."""

    payload_seed: int
    length_max: int
    name: str | None
    how: str = "next"
    commit_every: int = 0
    """Messages between two commits; 0: only at the end."""
    spin_us: float = 10.0
    first_seq: int = 0


def _by_next(reader: QueueReader, checker: Checker) -> None:
    for _ in range(STEP):
        view = reader.next()
        if view is None:
            break
        checker.see(view)


def _by_iteration(reader: QueueReader, checker: Checker) -> None:
    for view in itertools.islice(reader, STEP):
        checker.see(view)


def _by_batch(reader: QueueReader, checker: Checker) -> None:
    with reader.read_batch(STEP) as batch:
        first = checker.next_seq
        if batch.seq.tolist() != list(range(first, first + len(batch))):
            raise AssertionError(f"expected a batch from seq {first} on, got {batch.seq.tolist()}")
        for view in batch:
            checker.see(view)


def _by_drain(reader: QueueReader, checker: Checker) -> None:
    for message in reader.drain(STEP):
        checker.see(message)


WAYS_TO_READ = {"next": _by_next, "iterate": _by_iteration, "batch": _by_batch, "drain": _by_drain}


def read_queue(channel: Connection, path: str, plan: ReaderPlan, words: Any) -> None:
    """Read and check until the total that is sent; `words[0]` is the next seq expected.

    Sends "open", and the total when it is reached.
    """
    checker = Checker(Payloads(plan.payload_seed, plan.length_max), plan.first_seq)
    strategy = SpinThenPark(spin_us=plan.spin_us)
    with Queue.open_subscriber(path, plan.name, wait_strategy=strategy, fs=UnsyncedFs()) as reader:
        channel.send("open")
        total: int | None = None
        committed = checker.next_seq
        while total is None or checker.next_seq < total:
            before = checker.next_seq
            WAYS_TO_READ[plan.how](reader, checker)
            words[0] = checker.next_seq
            if plan.commit_every and checker.next_seq - committed >= plan.commit_every:
                reader.commit(durable=False)
                committed = checker.next_seq
            if checker.next_seq == before:
                reader.wait(0.05)
            if channel.poll():
                total = channel.recv()
        if checker.next_seq != total:
            raise AssertionError(f"read up to seq {checker.next_seq}, but only {total} were written")
        if plan.name is not None:
            reader.commit()
    channel.send(total)


def serve_reader(channel: Connection, path: str, name: str, start: str) -> None:
    """Do with a reader what is asked: "read" (answers the seqs there are, or an error code), "commit"
    and "heartbeat" (answer the committed position)."""
    with Queue.open_subscriber(path, name, start) as reader:
        channel.send("open")
        while (request := channel.recv()) is not None:
            if request == "read":
                channel.send(_seqs_or_error(reader))
            else:
                getattr(reader, request)()
                channel.send(reader.committed_position)


def _seqs_or_error(reader: QueueReader) -> list[int] | str:
    seqs: list[int] = []
    try:
        while (view := reader.next()) is not None:
            seqs.append(view.seq)
    except EverlogError as error:
        return error.code
    return seqs
