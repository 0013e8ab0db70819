"""A change of the durability class: what is visible becomes as durable as the new class says.

Owns what is logged and synced before such a change is answered. Records, floors and keys of an ephemeral
topic are logged before the new configuration, so that a replay which ends in between finds it still
ephemeral and forgets them with the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from everlog.api_types import Durability
from everlog.errors import EverlogError
from everlog.native.topics.log import read_log_frame
from everlog.topics.commits import COMMITTED, ChangeEntry, Commit, together
from everlog.topics.core import CONTROL_ROOM
from everlog.topics.jobs.lease_log import runs_of
from everlog.topics.storage.control import (
    Delete,
    DeleteSeqs,
    EvictWatermark,
    Forward,
    ForwardEntry,
    HeadWatermark,
    IdempotencyKey,
    encode,
)
from everlog.topics.storage.layout import FLAG_BATCH_CONTINUES, FrameType

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.topic import Topic


_PROMISED: Final = (Durability.DISK, Durability.FSYNC)
"""Classes whose records, seqs and keys survive."""


def becomes_logged(core: Core, topic: Topic, durability: Durability) -> bool:
    """Whether records of the topic are in memory only now and would be in the log with this class."""
    return bool(core.shards) and durability is not Durability.EPHEMERAL and not core.is_logged(topic)


def sync_copies(core: Core, topic: Topic, durability: Durability) -> Commit:
    """Sync the copies that a topic holds, if its new class promises them; done when they are.

    They are made again from the shards of their sources, which the sync of the topic's own shard leaves out.
    """
    if durability is topic.durability or durability not in _PROMISED or topic.routes.order is None:
        return COMMITTED
    for shard in core.shards:
        shard.write()  # what is only gathered would become visible without a sync
    return core.sync(core.shards)


def log_memory(core: Core, topic: Topic) -> None:
    """Log what an ephemeral topic that is about to be logged has in memory only, and where its head is."""
    shard = core.writable_shard(topic)
    first_seq = max(topic.storage.logged_seq + 1, topic.earliest_seq)
    # One entry for all of them: the change of the configuration behind them is what is waited for.
    shard.gather(ChangeEntry(needs_sync=False), 0)
    for seq in range(first_seq, topic.visible + 1):
        if topic.log.is_live(seq):
            source, offset, size, _ = topic.log.place(seq)
            frame = read_log_frame(core.sources.buffer(source) or b"", offset)
            shard.reserve(size + CONTROL_ROOM)
            shard.wal.buffer.append_log(
                FrameType.APPEND,
                frame.flags & ~FLAG_BATCH_CONTINUES,
                topic.topic_id,
                seq,
                frame.ts,
                frame.node,
                frame.tag,
                frame.data,
            )
            shard.wal.frames_gathered += 1
    _log_absent(core, topic, first_seq)
    core.log_change(topic, FrameType.HEAD_WATERMARK, encode(HeadWatermark(0, topic.visible)))
    topic.storage.logged_seq = topic.visible
    topic.totals.unsaved[topic.topic_id] = topic


def _log_absent(core: Core, topic: Topic, first_seq: int) -> None:
    """Log which records are gone and why.

    The log may still have some of them: from before the topic became ephemeral, or from a change of its class
    that failed.
    """
    floors = topic.floors
    mark = EvictWatermark(floors.cap, floors.ttl, floors.cap, floors.trim, floors.trim_runs, floors.holes)
    core.log_change(topic, FrameType.EVICT_WATERMARK, encode(mark))
    earliest_seq = topic.earliest_seq
    core.log_change(topic, FrameType.DELETE, encode(Delete(earliest_seq, earliest_seq)))
    dead = topic.log.dead_seqs(first_seq, topic.visible).tolist()
    if dead:
        core.log_change(topic, FrameType.DELETE_SEQS, encode(DeleteSeqs(runs_of(dead))))


def log_head(core: Core, topic: Topic, durability: Durability) -> None:
    """Log the head of a topic whose new class reserves no seqs, so that a restart does not lower it."""
    if core.shards and durability not in _PROMISED and topic.durability in _PROMISED:
        core.log_change(topic, FrameType.HEAD_WATERMARK, encode(HeadWatermark(0, topic.visible)))


def log_keys(core: Core, topic: Topic, durability: Durability) -> None:
    """Log the idempotency keys of a topic whose new class remembers them over a restart."""
    if not core.shards or durability not in _PROMISED or topic.durability in _PROMISED or not topic.keys:
        return
    shard = core.writable_shard(topic)
    shard.gather(ChangeEntry(needs_sync=False), 0)
    for key, remembered in topic.keys.items():
        payload = encode(IdempotencyKey(key, remembered.first_seq, remembered.count, list(remembered.seqs)))
        shard.reserve(len(payload) + CONTROL_ROOM)
        shard.wal.buffer.append_control(
            FrameType.IDEMPOTENCY_KEY, 0, topic.topic_id, remembered.first_seq, remembered.ts, payload
        )
        shard.wal.frames_gathered += 1


def log_cursors(core: Core, source: Topic) -> Commit:
    """Log how far the routers of a topic that becomes logged are, once their copies are synced.

    Cursors in an ephemeral topic are not logged, because a restart moves them to its head. Once its
    records stay, those that were copied must not be copied again, and those whose copies were lost must be.
    """
    if not source.routes.feeds:
        return COMMITTED
    logged = Commit()

    def on_synced(commit: Commit) -> None:
        try:
            if commit.error is None and not source.gone:
                commit = _log_cursors(core, source)
        except EverlogError as error:
            logged.finish(error)
        else:
            commit.on_done(lambda done: logged.finish(done.error))

    under_way = together(router.last_commit for router in source.routes.feeds)
    under_way.on_done(lambda _: core.sync(core.shards).on_done(on_synced))
    return logged


def _log_cursors(core: Core, source: Topic) -> Commit:
    entries = [
        ForwardEntry(
            router.router_id, router.dest.topic_id, router.committed_cursor, router.committed_total, 0, 0, []
        )
        for router in source.routes.feeds
    ]
    return core.log_change(source, FrameType.FORWARD, encode(Forward(source.name, source.epoch, entries)))
