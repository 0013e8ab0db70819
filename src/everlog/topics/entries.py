"""What is gathered in the log, and what happens when it is kept or lost: one class per kind.

Owns the moment when a change becomes visible. Frames are written elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from everlog.errors import StorageFailed
from everlog.topics.commits import Commit
from everlog.topics.retention import EvictionPlan
from everlog.topics.storage.wal import WalShard
from everlog.topics.topic import Topic


class BatchEntry:
    """A batch of records; until it is written its frames are in the buffer of `shard` (None: in memory)."""

    __slots__ = (
        "_floor_before",
        "_shard",
        "bytes",
        "commit",
        "count",
        "first_seq",
        "key",
        "last_seq",
        "needs_sync",
        "plan",
        "topic",
        "ts",
    )

    def __init__(
        self,
        topic: Topic,
        first_seq: int,
        count: int,
        size: int,
        ts: int,
        shard: WalShard | None,
        commit: Commit | None = None,
    ) -> None:
        self.topic = topic
        self.first_seq = first_seq
        self.last_seq = first_seq + count - 1
        self.count = count
        self.bytes = size
        self.ts = ts
        self.plan: EvictionPlan | None = None
        self.key: str | None = None
        self.commit = commit or Commit()
        self.needs_sync = False
        self._floor_before = 1
        self._shard = shard
        topic.pending_count += count
        topic.pending_bytes += size
        topic.totals.bytes += size
        if topic.order is not None:
            topic.order.join(self)

    def wait_for_sync(self, needed: bool) -> None:
        """Ask for a sync; later batches of the topic then wait as well, so that order is kept."""
        if needed and not self.needs_sync:
            self.needs_sync = True
            self.topic.pending_syncs += 1

    def take_plan(self, plan: EvictionPlan) -> None:
        """Evict this when the batch becomes visible; until then later batches count it as gone."""
        self.plan = plan
        self._floor_before = self.topic.planned_floor
        self.topic.planned_floor = plan.floor

    def committed(self) -> None:
        """The condition is met: the records can be read, once those before them can."""
        order = self.topic.order
        if order is None:
            self.publish()
        else:
            order.met(self)

    def publish(self) -> None:
        """Make the records readable and evict what they push out."""
        topic = self.topic
        self._leave_pending()
        topic.visible = self.last_seq
        topic.last_write_ts = self.ts
        topic.snapshot_record = None
        topic.totals.unsaved[topic.topic_id] = topic
        if self.plan is not None and self.plan.count:
            topic.kill_below(self.plan.floor)
            topic.raise_floor(cap=self.plan.floor)
        if topic.feeds is not None:
            topic.totals.unforwarded[topic.topic_id] = topic
        self.commit.finish()
        if topic.waiters:
            topic.has_news(self.ts)

    def failed(self, error: StorageFailed, written: bool) -> None:
        """Forget the batch: its seqs are free again, or silent holes if they are logged or not the last."""
        topic = self.topic
        if topic.order is not None:
            topic.order.lost(self)
        self._leave_pending()
        if self.plan is not None:
            topic.planned_floor = self._floor_before
        if self.key is not None:
            topic.keys.pop(self.key, None)
        if written or topic.log.next_seq != self.first_seq + self.count:
            topic.kill_range(self.first_seq, self.first_seq + self.count)
        elif self._shard is not None:
            topic.totals.bytes -= self.bytes
            topic.log.pop(self._shard.buffer, self._shard.source_offset, self.count)
        self.commit.finish(error)

    def _leave_pending(self) -> None:
        topic = self.topic
        if self.needs_sync:
            topic.pending_syncs -= 1
        topic.pending_count -= self.count
        topic.pending_bytes -= self.bytes


class ChangeEntry:
    """A change that waits for a sync: `apply` when it is kept, `undo` when it is not."""

    __slots__ = ("_apply", "_undo", "commit", "needs_sync")

    def __init__(
        self, apply: Callable[[], None], undo: Callable[[], None], *, needs_sync: bool = True
    ) -> None:
        self.needs_sync = needs_sync
        self.commit = Commit()
        self._apply = apply
        self._undo = undo

    def committed(self) -> None:
        """Make the change."""
        self._apply()
        self.commit.finish()

    def withdraw(self) -> None:
        """Take it back before it was gathered: its frame never got into the log."""
        self._undo()

    def failed(self, error: StorageFailed, written: bool) -> None:
        """Take it back."""
        self._undo()
        self.commit.finish(error)


def nothing() -> None:
    """Do nothing: for a change that needs no step on one of its ways."""


def ceiling_entry(topic: Topic, ceiling: int) -> ChangeEntry:
    """Seqs up to `ceiling` may be acknowledged without a sync once this one is synced."""
    topic.ceiling_logged = ceiling

    def kept() -> None:
        topic.ceiling_durable = max(topic.ceiling_durable, ceiling)

    def lost() -> None:
        topic.ceiling_logged = topic.ceiling_durable

    return ChangeEntry(kept, lost)


def reserve_entry(topic: Topic, reserved: int) -> ChangeEntry:
    """Floors up to `reserved` may be shown without a sync once this one is synced."""
    topic.reserved_logged = reserved

    def kept() -> None:
        topic.reserved_durable = max(topic.reserved_durable, reserved)

    def lost() -> None:
        topic.reserved_logged = topic.reserved_durable

    return ChangeEntry(kept, lost)
