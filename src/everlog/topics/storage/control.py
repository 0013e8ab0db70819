"""The control entries of the log: what each kind of frame that is not a record says.

One small class per kind, stored as msgpack in the frame's data. Owns these shapes and those of the
snapshot; a new field needs a default, so that older logs stay readable.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from everlog.errors import Corrupt
from everlog.topics.config import TopicConfig


class TopicCreate(msgspec.Struct, array_like=True, frozen=True):
    """A topic came into being; the frame's topic_id is its id."""

    name: str
    epoch: int
    config: TopicConfig


class TopicDelete(msgspec.Struct, array_like=True, frozen=True):
    """The topic and all it held are gone."""

    name: str


class ConfigUpdate(msgspec.Struct, array_like=True, frozen=True):
    """The topic has this configuration from here on."""

    config: TopicConfig


class Delete(msgspec.Struct, array_like=True, frozen=True):
    """Records below `before_seq` that match were deleted; `bound` is one past the last that existed."""

    before_seq: int
    bound: int
    tag: bytes | None = None
    prefix: bool = False


class EvictWatermark(msgspec.Struct, array_like=True, frozen=True):
    """Everything below these seqs is lost to the cap or to age.

    `reserved` may be ahead of `cap_floor`: after a crash the floor is there, so that the floor need
    not be synced at every eviction.
    """

    cap_floor: int
    ttl_floor: int
    reserved: int


class HeadWatermark(msgspec.Struct, array_like=True, frozen=True):
    """No seq up to `ceiling` will be given out again after a crash; those up to `head` were given out."""

    ceiling: int
    head: int = 0


class IdempotencyKey(msgspec.Struct, array_like=True, frozen=True):
    """The batch that follows was written under `key`."""

    key: str
    first_seq: int
    count: int


class TopicRecord(msgspec.Struct, array_like=True, frozen=True):
    """One topic in a snapshot."""

    topic_id: int
    name: str
    epoch: int
    config: TopicConfig
    head_seq: int
    ceiling: int
    cap_floor: int
    ttl_floor: int
    reserved_floor: int
    delete_below: int
    last_ts: int
    saved_seq: int
    last_write_ts: int | None
    last_read_ts: int | None
    segments: list[tuple[int, int, int]]  # first seq, last seq, bytes of data
    keys: list[tuple[str, int, int, int]]  # idempotency key, first seq, count, ts


class SnapshotBody(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot: the state as of some moment, and where replay has to begin."""

    clean: bool
    next_topic_id: int
    next_epoch: int
    next_file_number: int  # files from this number on are replayed whole
    starts: list[tuple[int, int]]  # earlier files of which the rest is replayed: number, offset
    topics: list[msgspec.Raw]  # TopicRecord each


_Entry = TypeVar("_Entry")
_encoder = msgspec.msgpack.Encoder()


def encode(entry: msgspec.Struct) -> bytes:
    """Return the stored form of a control entry."""
    return _encoder.encode(entry)


def decode(data: bytes | msgspec.Raw, kind: type[_Entry]) -> _Entry:
    """Read the stored form back; `Corrupt` if it is not one."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a stored {kind.__name__} cannot be read: {error}") from error
