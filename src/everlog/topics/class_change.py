"""A change of the durability class: what is visible becomes as durable as the new class says.

Owns what is logged and synced before such a change is answered. Records, floors and keys of an ephemeral
topic are logged before the new configuration, so that a replay which ends in between finds it still
ephemeral and forgets them with the rest. Millions of records are logged in steps, and the topic is used
meanwhile: appends go on in memory until the last step, which logs what is left with the configuration.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from everlog.api_types import Durability
from everlog.errors import EverlogError
from everlog.native.topics.log import next_live, read_log_frame
from everlog.topics.commits import COMMITTED, ChangeEntry, Commit, together
from everlog.topics.config import U64_MAX
from everlog.topics.core import CONTROL_ROOM, QUEUE_MAX
from everlog.topics.jobs.lease_log import runs_of
from everlog.topics.jobs.steps import Steps
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
SEQS_A_STEP: Final = 1000
"""Seqs whose records one step logs: two to three milliseconds."""
_BYTES_A_STEP: Final = 1 << 20


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


def log_ahead(core: Core, topic: Topic, durability: Durability) -> Steps[None]:
    """Log in steps most of what a change to this class has to log; it stays what it is until then.

    A step logs as many seqs more as were appended since the one before, so that there is a last one.
    """
    known, appended = topic.visible, 0
    while not topic.deleted and becomes_logged(core, topic, durability) and _has_many_unlogged(topic):
        shard = core.writable_shard(topic)
        entry = ChangeEntry(undo=partial(_set_back, topic, topic.storage.logged_seq), needs_sync=False)
        shard.gather(entry, 0)
        _log_records(core, topic, _first_unlogged(topic) + SEQS_A_STEP + appended, _BYTES_A_STEP)
        shard.write()
        if entry.commit.error is not None:
            raise entry.commit.error
        if not _has_many_unlogged(topic):
            return  # before there are more
        yield entry.commit if shard.depth * 8 > QUEUE_MAX and not entry.commit.done else None
        known, appended = topic.visible, topic.visible - known


def _has_many_unlogged(topic: Topic) -> bool:
    """Whether there is more to log than belongs to one step."""
    return topic.visible + 1 - _first_unlogged(topic) > SEQS_A_STEP


def _set_back(topic: Topic, logged_seq: int) -> None:
    """What a step logged is not in the log."""
    topic.storage.logged_seq = min(topic.storage.logged_seq, logged_seq)


def _first_unlogged(topic: Topic) -> int:
    """The first seq that may hold a record in memory only."""
    return max(topic.storage.logged_seq + 1, topic.storage.saved_seq + 1, topic.earliest_seq)


def log_memory(core: Core, topic: Topic) -> None:
    """Log what an ephemeral topic that is about to be logged has in memory only, and where its head is."""
    # One entry for all of them: the change of the configuration behind them is what is waited for.
    core.writable_shard(topic).gather(ChangeEntry(needs_sync=False), 0)
    _log_records(core, topic, topic.visible + 1, U64_MAX)
    _log_floors(core, topic)
    core.log_change(topic, FrameType.HEAD_WATERMARK, encode(HeadWatermark(0, topic.visible)))


def _log_records(core: Core, topic: Topic, end_seq: int, bytes_max: int) -> None:
    """Log the records below `end_seq` that are in memory only, or the first of them; and which are gone.

    The log may still have some of those: from before the topic became ephemeral, or from a change of its
    class that failed.
    """
    shard, first_seq = core.shards[topic.shard], _first_unlogged(topic)
    end_seq = min(end_seq, topic.visible + 1)
    seq = next_live(topic.log, first_seq)
    while seq < end_seq:
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
        bytes_max -= size
        if bytes_max <= 0:
            end_seq = seq + 1
        seq = next_live(topic.log, seq + 1)
    dead = topic.log.dead_seqs(first_seq, end_seq - 1).tolist()
    if dead:
        core.log_change(topic, FrameType.DELETE_SEQS, encode(DeleteSeqs(runs_of(dead))), needs_sync=False)
    topic.storage.logged_seq = max(topic.storage.logged_seq, end_seq - 1)
    topic.totals.unsaved[topic.topic_id] = topic


def _log_floors(core: Core, topic: Topic) -> None:
    """Log what is gone below the first record that is left, and why."""
    floors = topic.floors
    mark = EvictWatermark(floors.cap, floors.ttl, floors.cap, floors.trim, floors.trim_runs, floors.holes)
    core.log_change(topic, FrameType.EVICT_WATERMARK, encode(mark))
    earliest_seq = topic.earliest_seq
    core.log_change(topic, FrameType.DELETE, encode(Delete(earliest_seq, earliest_seq)))


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
