"""When a change counts: commits, the entries that wait for one, and the order in which a shard commits them.

Owns the moment when records become visible or are withdrawn. An entry is committed when its bytes are
written, or synced if it needs that, and never before an earlier entry of its shard with the same need.
Whether it needs a sync is decided by `ack_policy`; frames are written elsewhere. One thread owns all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from everlog.errors import EverlogError, OutcomeUnknown, StorageFailed

if TYPE_CHECKING:
    from everlog.topics.retention import EvictionPlan
    from everlog.topics.storage.wal import Position, WalShard
    from everlog.topics.topic import Topic


class Commit:
    """The outcome of one operation: pending, committed, or failed with `error`."""

    __slots__ = ("_callbacks", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: EverlogError | None = None
        self._callbacks: list[Callable[[Commit], None]] | None = None

    def on_done(self, callback: Callable[[Commit], None]) -> None:
        """Call back once done; at once if it already is."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def finish(self, error: EverlogError | None = None) -> None:
        """Mark done, with the reason if it failed; a second call changes nothing."""
        if self.done:
            return
        self.done = True
        self.error = error
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                callback(self)


def committed() -> Commit:
    """Return a commit that is done."""
    commit = Commit()
    commit.finish()
    return commit


def failed(error: EverlogError) -> Commit:
    """Return a commit that has failed."""
    commit = Commit()
    commit.finish(error)
    return commit


COMMITTED = committed()  # shared by everything that has nothing to wait for


def together(commits: Iterable[Commit]) -> Commit:
    """A commit that is done when all of these are; it fails as soon as one of them does."""
    waiting = [commit for commit in commits if not commit.done or commit.error is not None]
    if not waiting:
        return COMMITTED
    if len(waiting) == 1:
        return waiting[0]
    whole = Commit()
    left = len(waiting)

    def done(commit: Commit) -> None:
        nonlocal left
        left -= 1
        if left == 0 or commit.error is not None:
            whole.finish(commit.error)

    for commit in waiting:
        commit.on_done(done)
    return whole


def unless_unknown(commit: Commit) -> Commit:
    """A commit that is done with the other one, without an error if the outcome of that is unknown."""
    answer = Commit()
    commit.on_done(lambda done: answer.finish(None if isinstance(done.error, OutcomeUnknown) else done.error))
    return answer


class Entry(Protocol):
    """A change whose frames are gathered in a shard of the log."""

    @property
    def needs_sync(self) -> bool:
        """Whether it waits for a sync, not only for the write."""
        ...

    def on_commit(self) -> None:
        """Its frames are written, and synced if it needs that."""
        ...

    def on_abort(self, error: StorageFailed, written: bool) -> None:
        """It failed; `written` says whether its bytes are in the log, although not synced."""
        ...


def nothing() -> None:
    """Do nothing: for a change without a step at its commit or abort."""


class ChangeEntry:
    """A change other than records: `apply` runs when it is committed, `undo` when it fails."""

    __slots__ = ("_apply", "_undo", "commit", "needs_sync")

    def __init__(
        self,
        apply: Callable[[], None] = nothing,
        undo: Callable[[], None] = nothing,
        *,
        needs_sync: bool = True,
    ) -> None:
        self.needs_sync = needs_sync
        self.commit = Commit()
        self._apply = apply
        self._undo = undo

    def on_commit(self) -> None:
        """Make the change."""
        self._apply()
        self.commit.finish()

    def on_abort(self, error: StorageFailed, written: bool) -> None:
        """Undo the change."""
        self._undo()
        self.commit.finish(error)

    def withdraw(self) -> None:
        """Undo it before it was gathered: its frame is not in the log."""
        self._undo()


class BatchEntry:
    """A batch of records. Until it is written its frames are in the buffer of `wal`; None: in memory only."""

    __slots__ = (
        "_floor_before",
        "_wal",
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
        wal: WalShard | None,
        commit: Commit | None = None,
    ) -> None:
        self.topic = topic
        self.first_seq = first_seq
        self.last_seq = first_seq + count - 1
        self.count = count
        self.bytes = size
        self.ts = ts
        self.needs_sync = False
        self.plan: EvictionPlan | None = None
        self.key: str | None = None
        self.commit = Commit() if commit is None else commit
        self._floor_before = 1
        self._wal = wal
        pending = topic.pending
        pending.count += count
        pending.bytes += size
        topic.totals.bytes += size
        order = topic.routes.order
        if order is not None:
            order.join(self)

    def require_sync(self, is_needed: bool = True) -> None:
        """Wait for a sync; later batches of the topic then wait as well, so that they commit in order."""
        if is_needed and not self.needs_sync:
            self.needs_sync = True
            self.topic.pending.syncs += 1

    def evict_by(self, plan: EvictionPlan) -> None:
        """Evict this when the batch becomes visible; until then later batches count it as gone."""
        floors = self.topic.floors
        self.plan = plan
        self._floor_before = floors.planned
        floors.planned = plan.floor

    def on_commit(self) -> None:
        """Publish the records, after those before them."""
        order = self.topic.routes.order
        if order is None:
            self.publish()
        else:
            order.on_commit(self)

    def publish(self) -> None:
        """Make the records readable and evict what they push out."""
        topic, plan = self.topic, self.plan
        self._leave_pending()
        topic.visible = self.last_seq
        topic.last_write_ts = self.ts
        topic.snapshot_record = None
        totals = topic.totals
        totals.unsaved[topic.topic_id] = topic
        if topic.config.ttl_ms and not topic.due_ms:
            totals.due.add(topic, self.ts + topic.config.ttl_ms + 1)
        if plan is not None and plan.count:
            topic.kill_below(plan.floor)
            topic.raise_floor(cap=plan.floor)
        if topic.routes.feeds:
            totals.unforwarded[topic.topic_id] = topic
        self.commit.finish()
        if topic.schedule.waiters:
            topic.schedule.mark_dirty(self.ts)

    def on_abort(self, error: EverlogError, written: bool) -> None:
        """Withdraw the batch: its seqs are free again, or holes if they are logged or not the last."""
        topic, log = self.topic, self.topic.log
        order = topic.routes.order
        if order is not None:
            order.on_abort(self)
        self._leave_pending()
        if self.plan is not None:
            topic.floors.planned = self._floor_before
        if self.key is not None:
            topic.forget_key(self.key)
        end_seq = self.first_seq + self.count
        if written or log.next_seq != end_seq:
            topic.kill_range(self.first_seq, end_seq)
            topic.note_holes(self.first_seq, end_seq - 1)
        elif self._wal is not None:
            topic.totals.bytes -= self.bytes
            log.pop(self._wal.buffer, self._wal.source_offset, self.count)
        self.commit.finish(error)

    def _leave_pending(self) -> None:
        pending = self.topic.pending
        if self.needs_sync:
            pending.syncs -= 1
        pending.count -= self.count
        pending.bytes -= self.bytes


class SeqOrder:
    """The batches of a topic that is written through more than one shard, visible in the order of their seqs.

    Each joins when it gets its seqs. Those with seqs below `start_seq` came before there was an order.
    """

    __slots__ = ("_is_committed", "start_seq")

    def __init__(self, start_seq: int) -> None:
        self.start_seq = start_seq
        self._is_committed: dict[BatchEntry, bool] = {}  # in the order of seqs

    def join(self, entry: BatchEntry) -> None:
        """Add a batch behind all others."""
        self._is_committed[entry] = False

    def on_commit(self, entry: BatchEntry) -> None:
        """The condition of a batch is met; it and those that waited for it become visible."""
        if entry not in self._is_committed:
            entry.publish()
            return
        self._is_committed[entry] = True
        self._publish()

    def on_abort(self, entry: BatchEntry) -> None:
        """A batch failed; later ones do not wait for it any more."""
        if self._is_committed.pop(entry, None) is not None:
            self._publish()

    def _publish(self) -> None:
        while self._is_committed:
            entry, is_committed = next(iter(self._is_committed.items()))
            if not is_committed:
                return
            del self._is_committed[entry]
            entry.publish()


class ShardCommits:
    """The entries of one shard of the log, `wal`: those gathered in it and those that wait for its sync."""

    __slots__ = ("_gathered", "_gathered_from", "_waiting", "depth", "depth_peak", "refused", "wal")

    def __init__(self, wal: WalShard) -> None:
        self.wal = wal
        self.depth = 0
        """How many entries are gathered or wait."""
        self.depth_peak = 0
        self.refused = 0
        """Writes that were refused because of the depth."""
        self._gathered: list[Entry] = []
        self._gathered_from = wal.position
        self._waiting: deque[tuple[Position, list[Entry]]] = deque()
        """Groups that were written together, with the position of their first frame."""

    @property
    def oldest_position(self) -> Position:
        """Where the first frame lies whose entry is not committed yet; the end if all are."""
        if self._waiting:
            return self._waiting[0][0]
        return self._gathered_from if self._gathered else self.wal.position

    def reserve(self, size: int, *, frees_space: bool = False) -> None:
        """Make room for `size` bytes of frames; entries gathered before may be committed or fail by it.

        On a full disk only what `frees_space` gets a new file.
        """
        wal = self.wal
        if wal.has_room(size):
            return
        had_frames = len(wal.buffer) > 0
        try:
            wal.reserve(size, frees_space=frees_space)
        except StorageFailed as error:
            if wal.needs_discard:
                self._abort_gathered(error)
            raise
        finally:
            if self._gathered and had_frames and not len(wal.buffer):
                self._gathered_is_written()  # a new file was begun, after what was gathered was written

    def gather(self, entry: Entry, frames: int) -> None:
        """Add an entry whose `frames` frames are at the end of the buffer."""
        if not self._gathered:
            self._gathered_from = self.wal.position
        self._gathered.append(entry)
        self.wal.frames_gathered += frames
        self.depth += 1
        self.depth_peak = max(self.depth_peak, self.depth)

    def write(self) -> bool:
        """Write what is gathered, if anything; failures reach the entries, not the caller."""
        if not self._gathered:
            return False
        try:
            self.wal.write()
        except StorageFailed as error:
            self._abort_gathered(error)
        else:
            self._gathered_is_written()
        return True

    def _gathered_is_written(self) -> None:
        """Commit the entries that only had to be written; the others wait for a sync."""
        entries, self._gathered = self._gathered, []
        waits_for_all = self.wal.acks_shipped
        waiting = [entry for entry in entries if waits_for_all or entry.needs_sync]
        if waiting:
            entries = [] if waits_for_all else [entry for entry in entries if not entry.needs_sync]
            self._waiting.append((self._gathered_from, waiting))
            self.wal.sync(self._synced)
        elif self.wal.requested_ns is None:
            self.wal.request_sync()
        self.depth -= len(entries)
        notify_committed(entries)

    def _abort_gathered(self, error: StorageFailed) -> None:
        entries, self._gathered = self._gathered, []
        self.depth -= len(entries)
        # Newest first: each removes what it appended to the end of its topic's log.
        for entry in reversed(entries):
            entry.on_abort(error, False)
        self.wal.discard()

    def _synced(self, error: StorageFailed | None) -> None:
        """The sync is over that the oldest group waits for."""
        _, entries = self._waiting.popleft()
        self.depth -= len(entries)
        if error is None:
            notify_committed(entries)
        else:
            # The bytes are in the page cache, and some or all of them may be on disk.
            notify_aborted(entries, OutcomeUnknown.of(error))


def notify_committed(entries: list[Entry]) -> None:
    """Commit all of them, also if one raises; the first error is raised in the end."""
    first_error: Exception | None = None
    for entry in entries:
        try:
            entry.on_commit()
        except Exception as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def notify_aborted(entries: list[Entry], reason: StorageFailed) -> None:
    """Abort all of them, also if one raises: they are written, but cannot be synced."""
    first_error: Exception | None = None
    for entry in entries:
        try:
            entry.on_abort(reason, True)
        except Exception as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
