"""The control entries of the log: what each kind of frame that is not a record says.

One small class per kind, stored as msgpack in the frame's data. Owns these shapes and those of the
snapshot; a new field needs a default, so that older logs stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from everlog.errors import Corrupt
from everlog.job_types import JobError, JobMembers
from everlog.topics.config import TopicConfig
from everlog.topics.storage.layout import FrameType


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


class DeleteSeqs(msgspec.Struct, array_like=True, frozen=True):
    """Exactly these records were deleted: jobs that were acknowledged or moved to another topic.

    `runs` are first seq and length, ascending. `dead_lettered` is how many jobs of the topic were moved to
    its dead-letter topic up to now, 0 if none of these were.
    """

    runs: list[tuple[int, int]]
    dead_lettered: int = 0
    done_total: int = 0  # how many jobs of the topic were acknowledged up to now, 0 if none of these were


class Lease(msgspec.Struct, array_like=True, frozen=True):
    """Jobs of a job queue changed: all of them went into the same phase, to or from the same node."""

    phase: int  # of topics.jobs.lease_table: 0 ready, 1 leased, 2 delayed
    node: str
    until_ms: int  # deadline of the leases, or end of the delay
    jobs: list[tuple[int, int, int]]  # seq, lease id, deliveries
    outcome: str = ""  # how the lease of the jobs ended; empty: it did not
    error: JobError | None = None
    failed_total: int = 0  # how many attempts of the topic had failed up to then


class JobOptions(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the record of a job says about its claims; see `api_types.JobMembers`."""

    run_at: int = 0  # 0: it is due when it is appended
    priority: int = 0
    unique_key: str = ""
    concurrency_key: str = ""
    max_deliveries: int | None = None


class Jobs(msgspec.Struct, array_like=True, frozen=True):
    """Jobs have these options: those of the batch that follows, or others whose options were changed.

    `cancelled` are leased jobs that are deleted when their leases end.
    """

    jobs: list[tuple[int, JobOptions]]
    cancelled: list[int] = []


class Redriven(msgspec.Struct, array_like=True, frozen=True):
    """The batch that follows are copies of records of another topic, which are deleted there.

    A run is first seq, length, and the ts of its first and last record.
    """

    topic_id: int
    runs: list[tuple[int, int, int, int]]


class ScheduleRecord(msgspec.Struct, array_like=True, frozen=True):
    """A schedule was created, changed or deleted; also one schedule in a snapshot.

    `instance` tells it from others of its name. Instants up to `from_ts` have fired, or do not count.
    """

    name: str
    instance: int
    topic: str
    topic_id: int
    cron: str
    timezone: str
    data: bytes
    tag: str | None
    node: str | None
    meta: bytes | None
    members: JobMembers | None
    catch_up: Literal["none", "one", "all"]
    paused: bool
    paused_reason: str | None
    from_ts: int
    created_ts: int
    last_ts: int | None
    last_seq: int | None
    fired_total: int
    is_deleted: bool = False


class ScheduleFired(msgspec.Struct, array_like=True, frozen=True):
    """The batch that follows was appended by a schedule, for the instant `ts`."""

    instance: int
    ts: int
    seq: int
    fired_total: int


Attempt = tuple[int, str, int, int, str, JobError | None]
"""Delivery, node, claimed and ended (ms), outcome, error."""


class EvictWatermark(msgspec.Struct, array_like=True, frozen=True):
    """Everything below these seqs is lost to the cap or to age.

    `reserved` may be ahead of `cap_floor`: after a crash the floor is there, so that the floor need
    not be synced at every eviction. The others are those of `Floors`, logged when an ephemeral topic
    becomes durable.
    """

    cap_floor: int
    ttl_floor: int
    reserved: int
    trim_floor: int = 1
    trim_runs: list[tuple[int, int]] = []
    holes: list[tuple[int, int]] = []


class HeadWatermark(msgspec.Struct, array_like=True, frozen=True):
    """No seq up to `ceiling` will be assigned again after a crash; those up to `head` were assigned."""

    ceiling: int
    head: int = 0


class IdempotencyKey(msgspec.Struct, array_like=True, frozen=True):
    """The batch that follows was written under `key`."""

    key: str
    first_seq: int
    count: int
    seqs: list[int] = []  # all seqs of the answer, if some are of jobs that were there already


class Damage(msgspec.Struct, array_like=True, frozen=True):
    """Frames that were here are lost: so many bytes, with at most so many records.

    They were written by shard `shard` of `shards`; 0 shards: it is not known how many there were.
    """

    lost_bytes: int
    records: int
    shard: int = 0
    shards: int = 0


class RouterRecord(msgspec.Struct, array_like=True, frozen=True):
    """A router came into being or was changed; also one router in a snapshot.

    Everything of its source up to `cursor` was passed on, or was there before the router. `reused` has a seq
    of the source and one of the destination for each start of a source that may give out seqs again: copies
    up to the second are not of the records that got seqs above the first after that start.
    """

    router_id: int
    name: str
    source_id: int
    dest_id: int
    cursor: int
    total: int
    preserve_node: bool
    preserve_tag: bool
    allow_cycle: bool
    exactly_once: bool
    filter_tag: bytes | None
    filter_prefix: bool
    reused: list[tuple[int, int]] = []
    filter: str = ""


class RouterDelete(msgspec.Struct, array_like=True, frozen=True):
    """The router is gone; what it copied stays."""

    router_id: int


class ForwardEntry(msgspec.Struct, array_like=True, frozen=True):
    """What one router did in one pass: its copies are the seqs of `dest_id` from `first_seq` on.

    A run is the first source seq, how many, and the hops of the copies; a first source seq of 0 stands for
    seqs without a record, because the source had lost what they stand for. Without runs the copies are not to
    be made again: the destination was not in the log. `drops` has bit 1 if copies carry no node, 2 if no tag.
    """

    router_id: int
    dest_id: int
    cursor: int
    total: int
    first_seq: int
    ts: int
    runs: list[tuple[int, int, int]]
    drops: int = 0
    router: str = ""  # the name, if the copies carry where they are from
    ceiling: int = 0  # as in HeadWatermark and EvictWatermark, but of the destination
    cap_floor: int = 1
    reserved: int = 1


class Forward(msgspec.Struct, array_like=True, frozen=True):
    """Records of the frame's topic were copied to others; the copies themselves are in no frame."""

    source: str
    epoch: int
    entries: list[ForwardEntry]


class ConsumerRecord(msgspec.Struct, array_like=True, frozen=True):
    """A consumer was created or changed other than by a commit; also one consumer in a snapshot."""

    name: str
    cursor: int
    hold: bool
    hold_max_ms: int
    filter: str  # JSON text, empty if there is none
    nodes: list[str]
    owner: str
    owner_epoch: int  # 0: it was never acquired
    owner_ttl_ms: int
    expires_ts: int
    created_ts: int
    committed_ts: int | None


class ConsumerCommit(msgspec.Struct, array_like=True, frozen=True):
    """A consumer has processed everything up to `cursor`."""

    name: str
    cursor: int
    committed_ts: int
    expires_ts: int


class ConsumerDelete(msgspec.Struct, array_like=True, frozen=True):
    """The consumer is gone."""

    name: str


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
    leases: list[tuple[int, int, str, int, int, int]] = []  # see topics.jobs.lease_table.StoredLease
    dead_lettered: int = 0
    trim_floor: int = 1
    trim_holes: list[tuple[int, int]] = []  # first and last seq, behind trim_floor
    hop_runs: list[tuple[int, int, int]] = []  # first and last seq, hops; only what may be passed on again
    holes: list[tuple[int, int]] = []  # first and last seq; see `Floors.holes`
    corrupt: list[tuple[int, int]] = []  # first and last seq; see `Floors.corrupt`
    index_checksums: list[int] = []  # of the indexes of `segments`; version 0.1 has none
    consumers: list[ConsumerRecord] = []
    job_options: list[bytes] = []  # each the msgpack of jobs as in `Jobs.jobs`, of some thousand seqs
    attempts: list[tuple[int, int, list[Attempt]]] = []  # seq, claimed ms, those that ended
    cancelled: list[int] = []
    unique_keys: list[tuple[str, int, int]] = []  # of jobs that are gone: key, seq, ts
    claims: list[tuple[str, list[tuple[int, int]]]] = []  # by key, for the rate limit: ms, how many
    done_total: int = 0
    failed_total: int = 0
    key_seqs: list[tuple[str, list[int]]] = []  # see `IdempotencyKey.seqs`
    index_identities: list[int] = []  # of the indexes of `segments`, see `identity_of`; version 0.2 has none


class SnapshotBody(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot: the state as of some moment, and where replay has to begin."""

    clean: bool
    next_topic_id: int
    next_epoch: int
    next_file_number: int  # files from this number on are replayed whole
    starts: list[tuple[int, int]]  # earlier files of which the rest is replayed: number, offset
    topics: list[msgspec.Raw]  # TopicRecord each
    routers: list[RouterRecord] = []
    next_router_id: int = 1
    has_synced_file: bool = False  # directories of version 0.1 have none
    schedules: list[ScheduleRecord] = []
    number: int = 0  # that of its file name; version 0.2 has none


ENTRY_TYPES: Final[dict[int, type[msgspec.Struct]]] = {
    FrameType.TOPIC_CREATE: TopicCreate,
    FrameType.TOPIC_DELETE: TopicDelete,
    FrameType.CONFIG_UPDATE: ConfigUpdate,
    FrameType.DELETE: Delete,
    FrameType.EVICT_WATERMARK: EvictWatermark,
    FrameType.HEAD_WATERMARK: HeadWatermark,
    FrameType.IDEMPOTENCY_KEY: IdempotencyKey,
    FrameType.ROUTER_CREATE: RouterRecord,
    FrameType.ROUTER_DELETE: RouterDelete,
    FrameType.FORWARD: Forward,
    FrameType.DELETE_SEQS: DeleteSeqs,
    FrameType.LEASE: Lease,
    FrameType.DAMAGE: Damage,
    FrameType.CONSUMER: ConsumerRecord,
    FrameType.CONSUMER_COMMIT: ConsumerCommit,
    FrameType.CONSUMER_DELETE: ConsumerDelete,
    FrameType.JOBS: Jobs,
    FrameType.REDRIVEN: Redriven,
    FrameType.SCHEDULE: ScheduleRecord,
    FrameType.SCHEDULE_FIRED: ScheduleFired,
}
"""The class of each kind of frame that is neither a record nor the end of a file."""

_Entry = TypeVar("_Entry")
_encoder = msgspec.msgpack.Encoder()


def encode(entry: msgspec.Struct) -> bytes:
    """Return the stored form of a control entry."""
    return _encoder.encode(entry)


class Rows:
    """The items of a list field, encoded some at a time."""

    __slots__ = ("count", "pieces")

    def __init__(self, count: int = 0, pieces: list[bytes] | None = None) -> None:
        self.count = count
        self.pieces = pieces or []

    def add(self, items: list[Any]) -> None:
        """Encode items behind those that are there."""
        begin = 1 if len(items) < 16 else 3 if len(items) < 65_536 else 5  # behind the length of an array
        self.count += len(items)
        self.pieces.append(_encoder.encode(items)[begin:])


def _array_of(count: int) -> bytes:
    """What stands before the items of an array."""
    return b"\xdd" + count.to_bytes(4, "big")


def encode_in_pieces(entry: msgspec.Struct, rows: Mapping[str, Rows]) -> list[bytes]:
    """Return the stored form of an entry in pieces, with `rows` in place of fields of these names."""
    if not rows:
        return [_encoder.encode(entry)]
    names = entry.__struct_fields__
    pieces = [_array_of(len(names))]
    for name in names:
        if name in rows:
            pieces += [_array_of(rows[name].count), *rows[name].pieces]
        else:
            pieces.append(_encoder.encode(getattr(entry, name)))
    return pieces


def decode(data: bytes | msgspec.Raw, kind: type[_Entry]) -> _Entry:
    """Read the stored form back; `Corrupt` if it is not one."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a stored {kind.__name__} cannot be read: {error}") from error
