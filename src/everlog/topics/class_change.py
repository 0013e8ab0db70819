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
from everlog.topics.delivery.consumer_table import log_consumers
from everlog.topics.jobs.lease_log import (
    has_durable_leases,
    log_cancelled,
    log_known_leases,
    log_options,
    runs_of,
)
from everlog.topics.jobs.steps import Steps
from everlog.topics.storage.control import (
    Delete,
    DeleteSeqs,
    EvictWatermark,
    Forward,
    ForwardEntry,
    HeadWatermark,
    IdempotencyKey,
    JobOptions,
    encode,
)
from everlog.topics.storage.layout import FLAG_BATCH_CONTINUES, FrameType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everlog.topics.config import TopicConfig
    from everlog.topics.core import Core
    from everlog.topics.remembered_keys import RememberedKey
    from everlog.topics.topic import Topic


_PROMISED: Final = (Durability.DISK, Durability.FSYNC)
"""Classes whose records, seqs and keys survive."""
SEQS_A_STEP: Final = 1000
"""Seqs whose records one step logs: two to three milliseconds."""
_BYTES_A_STEP: Final = 1 << 20


def becomes_logged(core: Core, topic: Topic, durability: Durability) -> bool:
    """Whether the topic is in memory only, by its newest configuration, and is in the log with this class.

    Its records may go to the log all the same: while older ones wait there, or another change does.
    """
    was_logged = topic.newest_config.durability is not Durability.EPHEMERAL
    return bool(core.shards) and durability is not Durability.EPHEMERAL and not was_logged


def sync_copies(core: Core, topic: Topic, durability: Durability) -> Commit:
    """Sync the copies that a topic holds, if its new class promises them; done when they are.

    They are made again from the shards of their sources, which the sync of the topic's own shard leaves out.
    """
    if (
        durability is topic.newest_config.durability
        or durability not in _PROMISED
        or topic.routes.order is None
    ):
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
    if core.shards and durability not in _PROMISED and topic.newest_config.durability in _PROMISED:
        core.log_change(topic, FrameType.HEAD_WATERMARK, encode(HeadWatermark(0, topic.visible)))


def _log_keys(core: Core, topic: Topic, keys: list[RememberedKey]) -> Commit:
    """Log idempotency keys, because with the next configuration they are remembered over a restart."""
    entries = (
        (key.first_seq, key.ts, encode(IdempotencyKey(key.key, key.first_seq, key.count, list(key.seqs))))
        for key in keys
    )
    return core.log_state(topic, FrameType.IDEMPOTENCY_KEY, entries)


class StateChange:
    """What a new configuration needs in the log besides records: keys, leases, options, consumers.

    All of it is gone through in steps. What changes of it meanwhile is logged at once, see
    `TopicStorage.changes`; only new keys and the options of new jobs are left for the last step.
    """

    def __init__(self, core: Core, topic: Topic, config: TopicConfig) -> None:
        durability = config.durability or Durability.DISK
        self._core = core
        self._topic = topic
        self._updates = topic.storage.updates
        before = topic.newest_config
        self._has_keys = durability in _PROMISED and before.durability not in _PROMISED
        self._is_logged = becomes_logged(core, topic, durability)
        self._has_leases = has_durable_leases(config) and not has_durable_leases(before)
        self._key_block = 0  # before this block all keys are logged
        self._option_seq = 0  # before this seq all options are logged
        self._left = self._slices()
        self._is_open = bool(core.shards) and (self._has_keys or self._is_logged or self._has_leases)
        if self._is_open:
            self._count(1)

    def is_of(self, topic: Topic) -> bool:
        """Whether it is still right: at another configuration a replay forgets what was logged before."""
        return topic is self._topic and topic.storage.updates == self._updates

    def close(self) -> None:
        """The change is over, or given up."""
        if self._is_open:
            self._is_open = False
            self._count(-1)

    def _count(self, changes: int) -> None:
        self._topic.storage.changes += changes
        self._topic.snapshot_record = None  # while a change is under way, a snapshot has what it has logged

    def log_ahead(self) -> Steps[None]:
        """Log in steps what is there."""
        shards, topic = self._core.shards, self._topic
        for logged in self._left if self._is_open else ():
            shards[topic.shard].write()
            if logged.error is not None:
                raise logged.error
            yield None
            if topic.deleted:
                return

    def log_rest(self) -> None:
        """Log what is left, in the step that logs the configuration."""
        core, topic = self._core, self._topic
        if not self._is_open:
            return
        for _ in self._left:
            pass
        if self._has_keys:
            for _, keys in topic.keys.slices(self._key_block):
                _log_keys(core, topic, keys)
        if self._is_logged:
            for _, options in self._options():
                log_options(core, topic, options)

    def _slices(self) -> Iterator[Commit]:
        """Log what is there, some of it each time."""
        core, topic, table = self._core, self._topic, self._topic.leases
        if self._has_keys:
            for block, keys in topic.keys.slices():
                if block < topic.keys.last_block:
                    self._key_block = block + 1
                    yield _log_keys(core, topic, keys)
        if self._is_logged and topic.consumers is not None:
            for consumers in topic.consumers.slices():
                yield log_consumers(core, topic, consumers)
        begin_seq = -1
        while self._is_logged and begin_seq < self._option_seq:  # until there are no more whole slices
            begin_seq = self._option_seq
            for end_seq, options in self._options():
                if end_seq <= topic.visible:
                    self._option_seq = end_seq
                    yield log_options(core, topic, options)
        if table is None or not (self._is_logged or self._has_leases):
            return
        for jobs in table.slices():
            if self._has_leases:
                yield log_known_leases(core, topic, jobs)
            if self._is_logged:
                yield log_cancelled(core, topic, jobs)

    def _options(self) -> Iterator[tuple[int, list[tuple[int, JobOptions]]]]:
        """Options that are not logged, and up to before which seq; jobs get higher and higher seqs."""
        board = None if self._topic.leases is None else self._topic.leases.board
        return iter(()) if board is None else board.option_slices(self._option_seq)


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
