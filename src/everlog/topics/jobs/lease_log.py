"""The log entries of a job queue: deleted jobs, and leases if the topic has `leases_durable`.

Owns the shape of both entries and their effect, which is the same on the first run and on replay.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from everlog.api_types import Durability, TopicType
from everlog.errors import LimitReached, StorageFailed
from everlog.topics.commits import COMMITTED, ChangeEntry, Commit, nothing
from everlog.topics.config import TopicConfig
from everlog.topics.core import CONTROL_ROOM, Core
from everlog.topics.jobs.lease_table import LeaseTable, StoredLease
from everlog.topics.storage.control import DeleteSeqs, Lease, TopicRecord, encode
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import Topic


def lease_table_of(topic: Topic) -> LeaseTable:
    """The leases of a job queue, created on first use."""
    if topic.leases is None:
        topic.leases = LeaseTable()
    return topic.leases


# --- Deleted jobs -----------------------------------------------------------------------------------------


def runs_of(seqs: list[int]) -> list[tuple[int, int]]:
    """Ascending seqs as runs of neighbours: (first seq, length)."""
    runs: list[tuple[int, int]] = []
    first_seq = end_seq = 0
    for seq in seqs:
        if seq != end_seq:
            if end_seq:
                runs.append((first_seq, end_seq - first_seq))
            first_seq = seq
        end_seq = seq + 1
    if end_seq:
        runs.append((first_seq, end_seq - first_seq))
    return runs


def delete_jobs(
    core: Core, topic: Topic, table: LeaseTable, seqs: list[int], *, dead_lettered: int = 0
) -> Commit:
    """Delete ascending jobs whose deletion has begun; if that does not commit, they are claimable again."""
    entry = DeleteSeqs(runs_of(seqs), dead_lettered)

    def on_commit() -> None:
        apply_delete_seqs(topic, entry)
        if table.waiters:
            table.wake()

    def on_abort() -> None:
        for seq in seqs:
            table.abort_delete(seq)
        table.wake()

    if not core.logs_changes(topic):
        on_commit()
        return COMMITTED
    needs_sync = topic.durability is Durability.FSYNC
    return core.log_change(
        topic, FrameType.DELETE_SEQS, encode(entry), on_commit, on_abort, needs_sync=needs_sync
    )


def apply_delete_seqs(topic: Topic, entry: DeleteSeqs) -> int:
    """Delete the jobs of an entry; return how many existed."""
    deleted = 0
    for first_seq, count in entry.runs:
        deleted += topic.kill_range(first_seq, first_seq + count)
    # The deleted front is stored as one number; only jobs deleted out of order need marks in segments.
    floor = topic.floors.delete_below = max(topic.floors.delete_below, topic.earliest_seq)
    for first_seq, count in entry.runs:
        begin, end = max(first_seq, floor), min(first_seq + count, topic.storage.saved_seq + 1)
        if begin < end:
            topic.storage.unmarked.append(np.arange(begin, end, dtype=np.uint64))
            topic.totals.unsaved[topic.topic_id] = topic
    if entry.dead_lettered:
        table = lease_table_of(topic)
        table.dead_lettered = max(table.dead_lettered, entry.dead_lettered)
    topic.snapshot_record = None
    topic.reclaim()
    return deleted


# --- Leases -----------------------------------------------------------------------------------------------


def has_durable_leases(config: TopicConfig) -> bool:
    """Whether leases of such a topic survive a restart."""
    return (
        config.type is TopicType.QUEUE
        and config.leases_durable
        and config.durability is not Durability.EPHEMERAL
    )


def logs_leases(core: Core, topic: Topic) -> bool:
    """Whether the leases of a topic go to the log."""
    return bool(core.shards) and has_durable_leases(topic.config)


def log_leases(
    core: Core,
    topic: Topic,
    phase: int,
    node: str,
    until_ms: int,
    leases: dict[int, int],
    *,
    must_log: bool = True,
) -> Commit:
    """Log the new phase of these jobs (seq -> lease id), if the topic has durable leases."""
    if not leases or not logs_leases(core, topic):
        return COMMITTED
    table = lease_table_of(topic)
    jobs = [(seq, lease_id, table.deliveries(seq)) for seq, lease_id in leases.items()]
    needs_sync = topic.durability is Durability.FSYNC
    topic.snapshot_record = None
    try:
        entry = Lease(phase, node, until_ms, jobs)
        return core.log_change(topic, FrameType.LEASE, encode(entry), needs_sync=needs_sync)
    except (StorageFailed, LimitReached):
        if must_log:
            raise
        return COMMITTED


def log_all_leases(core: Core, topic: Topic, config: TopicConfig) -> None:
    """Log every current lease, because with this configuration leases survive a restart."""
    if topic.leases is None or not core.shards or not has_durable_leases(config):
        return
    groups: dict[tuple[int, str, int], list[tuple[int, int, int]]] = {}
    for lease in topic.leases.stored():
        group = groups.setdefault((lease.phase, lease.node, lease.until_ms), [])
        group.append((lease.seq, lease.lease_id, lease.deliveries))
    # What cannot be logged now is in the next snapshot; if that fails too, the job is claimable.
    with suppress(StorageFailed, LimitReached):
        shard = core.writable_shard(topic)
        # One entry for all of them: nothing waits for it, and it must not fill the queue of the log.
        shard.gather(ChangeEntry(nothing, nothing, needs_sync=False), 0)
        for (phase, node, until_ms), jobs in groups.items():
            payload = encode(Lease(phase, node, until_ms, jobs))
            shard.reserve(len(payload) + CONTROL_ROOM)
            shard.wal.buffer.append_control(FrameType.LEASE, 0, topic.topic_id, 0, core.now_ms(), payload)
            shard.wal.frames_gathered += 1


def apply_lease(topic: Topic, entry: Lease) -> None:
    """Replay one entry."""
    table = lease_table_of(topic)
    for seq, lease_id, deliveries in entry.jobs:
        table.restore(StoredLease(seq, entry.phase, entry.node, lease_id, entry.until_ms, deliveries))


def stored_leases(topic: Topic) -> list[tuple[int, int, str, int, int, int]]:
    """The leases of a topic as a snapshot stores them."""
    if topic.leases is None or not has_durable_leases(topic.config):
        return []
    return list(topic.leases.stored())


def restore_leases(topic: Topic, record: TopicRecord) -> None:
    """Apply the leases of a snapshot."""
    if record.leases or record.dead_lettered:
        table = lease_table_of(topic)
        table.dead_lettered = record.dead_lettered
        for stored in record.leases:
            table.restore(StoredLease(*stored))


def clear_volatile_leases(topic: Topic) -> None:
    """Forget the leases if the configuration says that they do not survive."""
    if topic.leases is not None and not has_durable_leases(topic.config):
        topic.leases.clear()


def finish_lease_replay(topic: Topic) -> None:
    """End a replay: forget the leases of jobs that do not exist."""
    clear_volatile_leases(topic)
    if topic.leases is not None:
        topic.leases.drop_missing(topic.log.is_live)
