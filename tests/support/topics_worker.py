"""A process that writes to a topics engine until it is killed, and tells the test every step on a pipe.

Owns what the process does and the lines it sends. Before an operation is handed to the engine a line says
what it is, and once the engine has kept it another line says what was answered, so the reader of the pipe
knows what was promised and what was under way. Wall time is part of the plan, not of the machine: both
sides know it to the millisecond. Everything else is real: files, syncs, threads.
"""

from __future__ import annotations

import os
import random
import signal
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from everlog.clock import SystemClock
from everlog.errors import EverlogError, RecordTooLarge, TopicFull, TopicNotFound
from everlog.topics import Engine, EngineSettings, NewRecord, TopicConfig
from everlog.topics.commits import Commit
from tests.support.model_checks import all_records, look
from tests.support.topics_model import Draft, Match, ModelRecord

CLASSES = {
    "eph": ("ephemeral",),
    "mem": ("memory",),
    "disk.a": ("disk", "disk", "disk", "fsync"),
    "disk.b": ("disk", "disk", "disk", "fsync"),
    "fsync.a": ("fsync", "fsync", "fsync", "disk"),
    "fsync.b": ("fsync",),
    "mixed": ("memory", "disk", "fsync"),
}
"""The topics, and which durability each may be given."""

KEY_WINDOW_MS = 10_000
_KEYS = tuple(f"key-{number}" for number in range(6))
_TAGS = (None, "a", "a:1", "a:2", "b", "b:1")
_NODES = (None, None, "n1", "n2")
_MATCHES: tuple[Match, ...] = (
    None,
    ("Eq", "a"),
    ("Eq", "b:1"),
    ("Glob", "a:*"),
    ("Glob", "b*"),
    ("Glob", "*"),
)
_IN_FLIGHT_MAX = 40

OPENING, OPEN, CLOSING, CLOSED = "opening", "open", "closing", "closed"


class WallClock(SystemClock):
    """Wall time that stands still until it is told; the monotonic clock is the real one."""

    def __init__(self, wall_ms: int) -> None:
        self.wall_ms = wall_ms

    def wall_ns(self) -> int:
        """The time that was set last."""
        return self.wall_ms * 1_000_000


# --- The lines -------------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True, tag=True):
    """Append `count` records that follow from `seed`; an absent topic is created with `config`."""

    name: str
    seed: int
    count: int
    node: str | None
    key: str | None
    config: TopicConfig

    def drafts(self) -> list[Draft]:
        """The records; no two appends have one in common."""
        rng = random.Random(self.seed)
        longest = rng.choice((5, 50, 50, 400, 400, 6000))
        return [
            Draft(
                {"of": self.seed, "number": number, "pad": "x" * rng.randrange(longest)},
                {"m": number} if rng.random() < 0.2 else None,
                rng.choice(_TAGS),
                rng.choice(_NODES),
            )
            for number in range(self.count)
        ]


class Put(msgspec.Struct, frozen=True, tag=True):
    """Create or configure a topic."""

    name: str
    config: TopicConfig


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Delete records; `bound` is one past the last one that can be read when the engine is asked."""

    name: str
    before_seq: int | None
    match: tuple[str, str] | None
    bound: int


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Delete a topic."""

    name: str


class Look(msgspec.Struct, frozen=True, tag=True):
    """Read a topic from beginning to end; nothing of it is in flight then."""

    name: str


class Advance(msgspec.Struct, frozen=True, tag=True):
    """Let wall time pass; nothing is in flight then."""

    wall_ms: int


Operation = Append | Put | Delete | Drop | Look | Advance


class Begun(msgspec.Struct, frozen=True, tag=True):
    """An operation is about to be handed to the engine."""

    number: int
    operation: Operation


class Kept(msgspec.Struct, frozen=True, tag=True):
    """The engine has kept the operation; the answer without its commit."""

    number: int
    answer: dict[str, Any]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The engine refused the operation, with this class of error."""

    number: int
    error: str


class Note(msgspec.Struct, frozen=True, tag=True):
    """The process has come so far: OPENING, OPEN, CLOSING or CLOSED."""

    text: str


Line = Begun | Kept | Refused | Note
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def digest(records: list[ModelRecord]) -> int:
    """A number for all the records of a topic, short enough for a line."""
    return zlib.crc32(repr(records).encode())


def decode_line(text: bytes) -> Line:
    """Read a line back."""
    return _decoder.decode(text)


# --- The process -----------------------------------------------------------------------------------------


class WorkerPlan(msgspec.Struct, frozen=True):
    """One life of a worker. With `operations` it closes the engine after so many, else it never ends."""

    data_dir: str
    settings: dict[str, Any]
    seed: int
    wall_ms: int
    operations: int | None = None


def write_topics(_: Connection, plan: WorkerPlan, sink: Connection) -> None:
    """Open the engine and write to it as the plan says; lines go to `sink`."""
    _Worker(plan, sink.fileno()).run()


def random_settings(rng: random.Random, cold_dir: str) -> dict[str, Any]:
    """Small files, small segments and frequent checkpoints, so that a short life sees many of each."""
    return {
        "shards": rng.randint(1, 3),
        "file_bytes": rng.choice((16_384, 65_536)),
        "segment_max_events": rng.choice((7, 40)),
        "segment_max_bytes": rng.choice((4096, 65_536)),
        "hot_retain_segments": 1,
        "cold_dir": cold_dir,
        "snapshot_log_bytes": rng.choice((4096, 16_384, 65_536)),
    }


class _Worker:
    """The engine's owner: a loop that operates, writes and polls."""

    def __init__(self, plan: WorkerPlan, sink_fd: int) -> None:
        self._plan = plan
        self._sink_fd = sink_fd
        self._rng = random.Random(plan.seed)
        self._clock = WallClock(plan.wall_ms)
        self._number = 0
        self._in_flight: dict[int, tuple[str, Commit]] = {}

    def run(self) -> None:
        """Live."""
        plan = self._plan
        self._tell(Note(OPENING))
        self._engine = Engine.open(plan.data_dir, EngineSettings(**plan.settings), clock=self._clock)
        self._tell(Note(OPEN))
        while plan.operations is None or self._number < plan.operations:
            self._turn()
        self._tell(Note(CLOSING))
        self._engine.close()
        assert not self._in_flight, f"closed, but {list(self._in_flight)} were never kept"
        self._tell(Note(CLOSED))

    def _tell(self, line: Line) -> None:
        os.write(self._sink_fd, msgspec.json.encode(line) + b"\n")

    def _turn(self) -> None:
        """One turn of the loop: some operations, one write."""
        rng = self._rng
        for _ in range(rng.choice((1, 1, 3, 8))):
            operate, name = rng.choices(_OPERATIONS, _WEIGHTS)[0], rng.choice(tuple(CLASSES))
            operate(self, name)
        self._engine.write()
        self._engine.poll()
        if len(self._in_flight) > _IN_FLIGHT_MAX or rng.random() < 0.2:
            self._settle()
        if rng.random() < 0.05:
            self._engine.relocate()
        if rng.random() < 0.02:
            self._engine.checkpoint()

    def _settle(self, name: str | None = None) -> None:
        """Wait until nothing is in flight, of one topic or of all."""
        for topic, commit in list(self._in_flight.values()):
            if name is None or topic == name:
                self._engine.wait_for(commit)

    def _begin(self, operation: Operation) -> int:
        self._number += 1
        self._tell(Begun(self._number, operation))
        return self._number

    def _do(self, operation: Append | Put | Delete | Drop, act: Callable[[], Any]) -> None:
        """Announce an operation, hand it to the engine, and tell once it is kept."""
        number = self._begin(operation)
        try:
            answer = act()
        except (TopicFull, RecordTooLarge, TopicNotFound) as error:
            self._tell(Refused(number, type(error).__name__))
            return
        fields = {field: getattr(answer, field) for field in answer.__struct_fields__ if field != "commit"}
        self._in_flight[number] = (operation.name, answer.commit)

        def kept(commit: Commit) -> None:
            if commit.error is not None:
                raise EverlogError(f"{operation} failed: {commit.error}")
            del self._in_flight[number]
            self._tell(Kept(number, fields))

        answer.commit.on_done(kept)

    # The operations.

    def _append(self, name: str) -> None:
        rng = self._rng
        key = rng.choice(_KEYS) if name != "mixed" and rng.random() < 0.3 else None
        if key is not None and name in ("eph", "mem"):
            key = f"{self._plan.seed}:{key}"  # these classes forget at a restart, or do not: both is allowed
        operation = Append(
            name,
            rng.getrandbits(52),
            rng.choice((1, 1, 1, 2, 5, 12)),
            rng.choice(_NODES),
            key,
            msgspec.structs.replace(self._some_config(name), discard="old"),
        )
        self._do(
            operation,
            lambda: self._engine.append(
                name,
                [draft.sent() for draft in operation.drafts()],
                node=operation.node,
                idempotency_key=key,
                create=True,
                config=operation.config,
            ),
        )

    def _some_config(self, name: str) -> TopicConfig:
        rng = self._rng
        fields = {
            "durability": rng.choice(CLASSES[name]),
            "ttl_ms": rng.choice((0, 0, 0, 50, 5000)),
            "cap_records": rng.choice((0, 0, 10, 40)),
            "cap_bytes": rng.choice((0, 0, 0, 4000)),
            "discard": "reject" if rng.random() < 0.15 else "old",
            "idempotency_window_ms": KEY_WINDOW_MS,
        }
        return msgspec.convert(fields, TopicConfig).resolved(name)

    def _put(self, name: str) -> None:
        # What is appended while a change is pending still meets the old configuration; the model does
        # not know such a state, so nothing of the topic is in flight besides the change.
        self._settle(name)
        operation = Put(name, self._some_config(name))
        self._do(operation, lambda: self._engine.put_topic(name, operation.config))
        if self._rng.random() < 0.5:
            self._engine.write()
        self._settle(name)

    def _delete(self, name: str) -> None:
        rng = self._rng
        # Written first, so that nothing but a sync can move the end of what can be read.
        self._engine.write()
        try:
            state = self._engine.state(name, touch=False)
        except TopicNotFound:
            return
        match = rng.choice(_MATCHES)
        head, earliest = state.head_seq, state.earliest_seq
        before_seq = rng.choice((None, head - rng.randint(-3, 30), earliest + rng.randint(0, 4)))
        if before_seq is None and match is None:
            before_seq = earliest + 1
        before_seq = None if before_seq is None else max(0, before_seq)
        self._do(
            Delete(name, before_seq, match, head + 1),
            lambda: self._engine.delete_records(
                name, before_seq=before_seq, match=None if match is None else ("tag", *match)
            ),
        )

    def _drop(self, name: str) -> None:
        self._do(Drop(name), lambda: self._engine.delete_topic(name))

    def _look(self, name: str) -> None:
        self._settle(name)
        number = self._begin(Look(name))
        try:
            self._tell(Kept(number, {"digest": digest(all_records(self._engine, name))}))
        except TopicNotFound as error:
            self._tell(Refused(number, type(error).__name__))

    def _advance(self, _: str) -> None:
        self._settle()
        wall_ms = self._clock.wall_ms + self._rng.choice((1, 20, 100, 4000, 12_000))
        self._begin(Advance(wall_ms))
        self._clock.wall_ms = wall_ms


_OPERATIONS = (
    _Worker._append,
    _Worker._put,
    _Worker._delete,
    _Worker._drop,
    _Worker._look,
    _Worker._advance,
)
_WEIGHTS = (80, 4, 8, 1.5, 4, 4)


# --- Processes that can be talked to ---------------------------------------------------------------------

STOPPABLE_TOPICS = ("ephemeral", "memory", "disk", "fsync")


def hold_topics(channel: Connection, path: str) -> None:
    """Hold a data directory: append what is sent to the topic "held", answer its head; None is the end."""
    with Engine.open(path, EngineSettings(shards=1, file_bytes=1 << 16)) as engine:
        channel.send(0)
        while (data := channel.recv()) is not None:
            answer = engine.append("held", [NewRecord(data)])
            engine.wait_for(answer.commit)
            channel.send(answer.head_seq)


def write_until_told(channel: Connection, path: str) -> None:
    """Write all four classes until SIGTERM comes, then stop in good order; answers what was there then."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    settings = EngineSettings(shards=2, file_bytes=1 << 15, segment_max_events=20, snapshot_log_bytes=1 << 14)
    engine = Engine.open(path, settings)
    for name in STOPPABLE_TOPICS:
        caps = {"durability": name, "cap_records": 150}
        engine.wait_for(engine.put_topic(name, msgspec.convert(caps, TopicConfig)).commit)
    number = 0
    while not told:
        number += 1
        for name in STOPPABLE_TOPICS:
            record = NewRecord(b'{"number":%d}' % number, f"tag:{number % 7}", None, b'{"m":%d}' % number)
            engine.append(name, [record] * (number % 3 + 1), idempotency_key=f"key-{number}")
        engine.write()
        engine.poll()
        if number % 50 == 0:
            for name in STOPPABLE_TOPICS:
                engine.delete_records(name, match=["tag", "Eq", f"tag:{number % 7}"])
        if number == 200:
            channel.send("writing")
    for name in STOPPABLE_TOPICS:
        engine.wait_for(engine.append(name, [NewRecord(b'"the last one"')]).commit)
    left = {name: look(engine, name) for name in STOPPABLE_TOPICS}
    engine.close()
    channel.send(left)
