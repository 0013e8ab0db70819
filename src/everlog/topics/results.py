"""What the engine answers: one small class per operation.

Owns shapes only. `commit` is done when the answer may be shown.
"""

from __future__ import annotations

import msgspec

from everlog.api_types import Durability, Tombstone
from everlog.topics.commits import Commit
from everlog.topics.config import TopicConfig
from everlog.topics.storage.wal import WalMetrics


class TopicPut(msgspec.Struct, frozen=True):
    """Answer of `put_topic`."""

    created: bool
    config: TopicConfig
    commit: Commit


class Appended(msgspec.Struct, frozen=True):
    """Answer of `append`."""

    first_seq: int
    last_seq: int
    count: int
    head_seq: int
    created: bool
    deduped: bool
    commit: Commit
    seqs: tuple[int, ...] = ()
    """All seqs of the request, if its jobs have unique keys; `count` is without those that were there."""


class Diff(msgspec.Struct, frozen=True):
    """Answer of `diff`; `records` is a JSON array, ready to be sent.

    `incomplete` is set only if the read was not to block: a cold segment is being fetched;
    when `commit` is done, the same read will find it. `paused` is set only then too: a filter has more to
    look at, after a turn for others; pass the answer as `after`.
    """

    records: bytes
    delivered: int
    scanned: int
    cold_segments_read: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    commit: Commit
    incomplete: bool = False
    paused: bool = False

    @property
    def caught_up(self) -> bool:
        """Nothing is left to read."""
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        """How far the cursor is behind the head."""
        return self.head_seq - self.next_from_seq


class Claimed(msgspec.Struct, frozen=True):
    """Answer of `claim`; each job is a JSON object, ready to be sent.

    `ready` jobs are left. `incomplete` is set only if the claim was not to block, and only without
    any job: a cold segment is being fetched; when `commit` is done, the same claim will find it.
    """

    jobs: list[bytes]
    leases: dict[int, int]  # seq -> lease id
    ready: int
    commit: Commit
    incomplete: bool = False

    @property
    def count(self) -> int:
        """How many jobs."""
        return len(self.jobs)


class Settled(msgspec.Struct, frozen=True):
    """Answer of `ack`, `nack` and `extend`: the jobs that were held, and those that were not."""

    done: list[int]
    skipped: list[int]
    ready: int
    in_flight: int
    commit: Commit
    deadline_ms: int = 0


class EngineCounts(msgspec.Struct, frozen=True):
    """What an engine holds and has done, for metrics."""

    topics: int = 0
    by_class: dict[Durability, int] = {}
    records_live: int = 0
    bytes_live: int = 0
    read_only: int = 0
    queue_depth: int = 0
    queue_depth_peak: int = 0
    queue_refused: int = 0
    queue_topics: int = 0
    queue_leases_in_flight: int = 0
    wal: WalMetrics = msgspec.field(default_factory=WalMetrics)


class EngineVitals(msgspec.Struct, frozen=True):
    """What an engine knows without looking at each topic, so it can be asked every second."""

    topics: int = 0
    routers: int = 0
    consumers: int = 0
    appended: int = 0
    """Records that were accepted since the start."""
    bytes_live: int = 0
    read_only: int = 0
    queue_depth: int = 0
    wal: WalMetrics = msgspec.field(default_factory=WalMetrics)


class RecordsDeleted(msgspec.Struct, frozen=True):
    """Answer of `delete_records`."""

    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    commit: Commit


class TopicDeleted(msgspec.Struct, frozen=True):
    """Answer of `delete_topic`."""

    deleted: bool
    commit: Commit
    routers_removed: tuple[str, ...] = ()
