"""Lease events in the log: what `leases_durable` writes, and how it comes back.

Owns the translation between the state of a queue and its entries in log and snapshot.
"""

from __future__ import annotations

from contextlib import suppress

from everlog.api_types import Durability, TopicType
from everlog.errors import LimitReached, StorageFailed
from everlog.topics.commits import KEPT, Commit
from everlog.topics.config import TopicConfig
from everlog.topics.core import CONTROL_ROOM, Core
from everlog.topics.entries import ChangeEntry, nothing
from everlog.topics.queueing.deleting import lease_state_of
from everlog.topics.queueing.lease_state import KeptLease, Phase
from everlog.topics.storage.control import Lease, TopicRecord, encode
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import Topic


def keeps_leases(config: TopicConfig) -> bool:
    """Whether leases of such a topic survive a restart."""
    return (
        config.type is TopicType.QUEUE
        and config.leases_durable
        and config.durability is not Durability.EPHEMERAL
    )


def logs_leases(core: Core, topic: Topic) -> bool:
    """Whether lease events of a topic go into the log."""
    return bool(core.shards) and keeps_leases(topic.config)


def log_leases(
    core: Core,
    topic: Topic,
    phase: Phase,
    node: str,
    until_ms: int,
    leases: dict[int, int],
    *,
    must_log: bool = True,
) -> Commit:
    """Log what has become of these jobs (seq -> lease id), if the topic wants that."""
    if not leases or not logs_leases(core, topic):
        return KEPT
    state = lease_state_of(topic)
    jobs = [(seq, lease_id, state.deliveries(seq)) for seq, lease_id in leases.items()]
    waits = topic.durability is Durability.FSYNC
    topic.snapshot_record = None
    try:
        entry = Lease(phase, node, until_ms, jobs)
        return core.log_change(topic, FrameType.LEASE, encode(entry), needs_sync=waits)
    except (StorageFailed, LimitReached):
        if must_log:
            raise
        return KEPT


def log_all_leases(core: Core, topic: Topic, config: TopicConfig) -> None:
    """Log every lease there is, if from this configuration on they are to survive a restart."""
    if topic.queue is None or not core.shards or not keeps_leases(config):
        return
    groups: dict[tuple[int, str, int], list[tuple[int, int, int]]] = {}
    for kept in topic.queue.kept():
        group = groups.setdefault((kept.phase, kept.node, kept.until_ms), [])
        group.append((kept.seq, kept.lease_id, kept.deliveries))
    # What cannot be logged now is in the next snapshot, or lost: then its job is claimable.
    with suppress(StorageFailed, LimitReached):
        shard = core.writable_shard(topic)
        # One entry for all of them: nobody waits for it, and it must not fill the queue of the log.
        shard.gather(ChangeEntry(nothing, nothing, needs_sync=False), 0)
        for (phase, node, until_ms), jobs in groups.items():
            payload = encode(Lease(phase, node, until_ms, jobs))
            shard.reserve(len(payload) + CONTROL_ROOM)
            shard.buffer.append_control(FrameType.LEASE, 0, topic.topic_id, 0, core.now_ms(), payload)
            shard.shard.frames_gathered += 1


def apply_lease(topic: Topic, entry: Lease) -> None:
    """Replay one entry."""
    state = lease_state_of(topic)
    for seq, lease_id, deliveries in entry.jobs:
        state.replay(KeptLease(seq, entry.phase, entry.node, lease_id, entry.until_ms, deliveries))


def kept_leases(topic: Topic) -> list[tuple[int, int, str, int, int, int]]:
    """What a snapshot keeps of the leases of a topic."""
    if topic.queue is None or not keeps_leases(topic.config):
        return []
    return list(topic.queue.kept())


def restore_leases(topic: Topic, record: TopicRecord) -> None:
    """Take over what a snapshot kept."""
    if record.leases or record.dead_lettered:
        state = lease_state_of(topic)
        state.dead_lettered = record.dead_lettered
        for kept in record.leases:
            state.replay(KeptLease(*kept))


def forget_leases(topic: Topic) -> None:
    """The configuration says that leases do not survive."""
    if topic.queue is not None and not keeps_leases(topic.config):
        topic.queue.forget()


def finish_leases(topic: Topic) -> None:
    """The end of a replay: what is left of the leases belongs to jobs that are there."""
    forget_leases(topic)
    if topic.queue is not None:
        topic.queue.retain(topic.log.is_live)
