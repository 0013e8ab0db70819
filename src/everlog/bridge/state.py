"""The state of a bridge on disk: its identity, and the plan of the batch that it sends next.

The file is `bridges/<name>.state` in the directory of the queue: two slots, written in turn and synced, so
one of them is always valid. A plan is stored before its batch is sent. So after any crash at most one batch
is in doubt, and its seqs are known.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from typing import ClassVar, Final, Generic, TypeVar

import msgspec

from everlog.errors import CorruptMetadata, InvalidConfig
from everlog.fs import Fs, create_directory, replace_file
from everlog.queue.faults import io_errors
from everlog.queue.names import check_component

BRIDGES_DIR: Final = "bridges"
STATE_SUFFIX: Final = ".state"
READER_PREFIX: Final = "bridge-"
NAME_MAX_BYTES: Final = 64
VERSION: Final = 1
STAMPS: Final = 1 << 32
"""A plan keeps the times of its messages modulo this: enough to tell one message from another."""

_STAMP_BYTES: Final = 4
_SLOT_HEAD: Final = struct.Struct("<II")


class Plan(msgspec.Struct, frozen=True):
    """A batch for a topic: messages `first_seq` to `last_seq` of the queue, both included, `count` records.

    `end` is the position of the queue's reader behind it. `topic_head` was the head of the topic when the
    batch was planned: if the batch is in the topic, it has higher seqs.
    """

    first_seq: int
    last_seq: int
    count: int
    end: tuple[int, int]
    topic_head: int
    planned_ms: int


class QueueToTopicState(msgspec.Struct, frozen=True, tag="queue-to-topic", tag_field="direction"):
    """The state of a bridge to a topic. `forwarded` counts the records of all batches before the plan."""

    SLOT_BYTES: ClassVar[int] = 1024

    version: int
    name: str
    identity: str
    topic: str
    generation: int = 0
    forwarded: int = 0
    first_seq: int | None = None
    plan: Plan | None = None

    @property
    def node(self) -> str:
        """The `$node` of every record that this bridge appends; no other writer has it."""
        return f"bridge:{self.name}:{self.identity}"

    def key(self, plan: Plan) -> str:
        """Return the idempotency key of a batch: the same in every attempt."""
        return f"{self.node}:{plan.first_seq}-{plan.last_seq}"


class QueuePlan(msgspec.Struct, frozen=True):
    """A batch for a queue: `count` messages from `first_queue_seq` on.

    The first one is a gap message if `gap_cursor` is given: the topic is read from there behind the gap. The
    others are the records of the topic whose seqs are in `runs` (first seq, length). `from_seq` and
    `next_from_seq` are the cursors before and behind the whole batch. `stamps` are the times of all messages,
    see `stamps_of`; plans of earlier versions have none.
    """

    first_queue_seq: int
    count: int
    from_seq: int
    next_from_seq: int
    runs: list[tuple[int, int]]
    gap_cursor: int | None = None
    stamps: bytes = b""

    def stamp(self, messages: int) -> int | None:
        """Return the time of the last of the first `messages`, modulo `STAMPS`; None if it is not known."""
        found = self.stamps[(messages - 1) * _STAMP_BYTES : messages * _STAMP_BYTES]
        return int.from_bytes(found, "little") if found else None

    def cursor_after(self, messages: int) -> int:
        """Return the cursor of the topic if only the first `messages` are in the queue."""
        if messages <= 0:
            return self.from_seq
        if messages >= self.count:
            return self.next_from_seq
        record_seq = self.record_seq(messages)
        return (self.gap_cursor or 0) if record_seq is None else record_seq

    def record_seq(self, messages: int) -> int | None:
        """Return the topic's seq of the last of the first `messages`; None if that is a gap or missing."""
        left = messages - (1 if self.gap_cursor is not None else 0)
        for first_seq, length in self.runs:
            if 0 < left <= length:
                return first_seq + left - 1
            left -= length
        return None


class TopicToQueueState(msgspec.Struct, frozen=True, tag="topic-to-queue", tag_field="direction"):
    """The state of a bridge to a queue. The counts are those of all batches before the plan."""

    SLOT_BYTES: ClassVar[int] = 1 << 17

    version: int
    name: str
    identity: str
    topic: str
    plan: QueuePlan
    generation: int = 0
    records: int = 0
    gaps: int = 0

    def counts(self, arrived: int) -> tuple[int, int]:
        """Return the records and gaps in the queue if `arrived` messages of the plan are in it."""
        gaps = min(arrived, 1 if self.plan.gap_cursor is not None else 0)
        return self.records + arrived - gaps, self.gaps + gaps

    def behind(self, arrived: int, plan: QueuePlan) -> TopicToQueueState:
        """Return the state with the next plan, if `arrived` messages of this one are in the queue."""
        records, gaps = self.counts(arrived)
        return msgspec.structs.replace(
            self, generation=self.generation + 1, plan=plan, records=records, gaps=gaps
        )


State = QueueToTopicState | TopicToQueueState
S = TypeVar("S", QueueToTopicState, TopicToQueueState)
_decoder: Final[msgspec.json.Decoder[State]] = msgspec.json.Decoder(State)
_encode: Final = msgspec.json.Encoder().encode


def stamps_of(times_ns: list[int]) -> bytes:
    """Return the times of messages as a plan keeps them."""
    return b"".join((time_ns % STAMPS).to_bytes(_STAMP_BYTES, "little") for time_ns in times_ns)


def new_identity() -> str:
    """Return an identity that no other bridge has, not even one of the same name on another queue."""
    return secrets.token_hex(8)


def check_name(name: str) -> str:
    """Return the name if it is valid for a bridge."""
    check_component(name, "bridge name")
    if len(name.encode()) > NAME_MAX_BYTES or not name.isprintable():
        raise InvalidConfig(
            f"the bridge name {name!r} is not printable or longer than {NAME_MAX_BYTES} bytes; give another "
            "one by --name"
        )
    return name


def state_path(queue_path: str, name: str) -> str:
    """Return the path of the state of a bridge."""
    return os.path.join(queue_path, BRIDGES_DIR, check_name(name) + STATE_SUFFIX)


def reader_name(name: str) -> str:
    """Return the name of the reader with which a bridge reads its queue."""
    return READER_PREFIX + check_name(name)


def bridge_names(fs: Fs, queue_path: str) -> list[str]:
    """Return the bridges that have run on a queue."""
    try:
        files = fs.listdir(os.path.join(queue_path, BRIDGES_DIR))
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(STATE_SUFFIX) for name in files if name.endswith(STATE_SUFFIX))


class StateFile(Generic[S]):
    """The file of one bridge. Only the process that holds the bridge's lock may store.

    That lock is the one of its reader (out of a queue) or of the writer (into a queue).
    """

    def __init__(self, fs: Fs, queue_path: str, name: str, kind: type[S]) -> None:
        self.path = state_path(queue_path, name)
        self._kind: type[S] = kind
        self._slot_bytes = kind.SLOT_BYTES
        self._fs = fs
        self._queue_path = queue_path
        self._fd: int | None = None

    def load(self) -> S | None:
        """Return the state that was stored last, None if there is none."""
        with io_errors(f"read the state of the bridge at {self.path}"):
            try:
                fd = self._fs.open(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                data = self._fs.pread(fd, 2 * self._slot_bytes, 0)
            finally:
                self._fs.close(fd)
        found = [state for start in (0, self._slot_bytes) if (state := _slot(data, start)) is not None]
        if not found:
            raise CorruptMetadata(
                f"{self.path} holds no valid state; restore it, or use another --name to begin again"
            )
        latest = max(found, key=lambda state: state.generation)
        kind: type[S] = self._kind
        if not isinstance(latest, kind):
            raise InvalidConfig(
                f"{self.path} belongs to a bridge in the other direction; give this one another --name"
            )
        if latest.version != VERSION:
            raise CorruptMetadata(f"{self.path} has version {latest.version}; this build knows {VERSION}")
        return latest

    def create(self, state: S) -> S:
        """Store the state of a new bridge; if another process has just done so, return that one."""
        with io_errors(f"create the state of the bridge at {self.path}"):
            create_directory(self._fs, os.path.join(self._queue_path, BRIDGES_DIR))
            own = f"{self.path}.{state.identity}"
            replace_file(self._fs, own, self._slot_of(state).ljust(2 * self._slot_bytes, b"\0"))
            try:
                # Two that start at the same time must end up with one identity.
                self._fs.rename_noreplace(own, self.path)
            except FileExistsError:
                self._fs.unlink(own)
            self._fs.fsync_dir(os.path.dirname(self.path))
        return self.load() or state

    def store(self, state: S) -> None:
        """Store the next generation; it survives a power loss."""
        with io_errors(f"store the state of the bridge at {self.path}"):
            if self._fd is None:
                self._fd = self._fs.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._fs.pwrite(self._fd, self._slot_of(state), state.generation % 2 * self._slot_bytes)
            self._fs.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            self._fs.close(self._fd)
            self._fd = None

    def _slot_of(self, state: S) -> bytes:
        text = _encode(state)
        if len(text) > self._slot_bytes - _SLOT_HEAD.size:
            raise InvalidConfig(f"the names of bridge {state.name!r} and topic {state.topic!r} are too long")
        return _SLOT_HEAD.pack(zlib.crc32(text), len(text)) + text


def load_any(fs: Fs, queue_path: str, name: str) -> State | None:
    """Return the state of a bridge in whichever direction; None if there is none."""
    try:
        return StateFile(fs, queue_path, name, QueueToTopicState).load()
    except (InvalidConfig, CorruptMetadata):
        # Of the other direction, whose slots are larger: none may be valid at the offsets of this one.
        return StateFile(fs, queue_path, name, TopicToQueueState).load()


def _slot(data: bytes, start: int) -> State | None:
    if len(data) < start + _SLOT_HEAD.size:
        return None
    checksum, length = _SLOT_HEAD.unpack_from(data, start)
    text = data[start + _SLOT_HEAD.size : start + _SLOT_HEAD.size + length]
    if length == 0 or len(text) != length or zlib.crc32(text) != checksum:
        return None
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError:
        return None
