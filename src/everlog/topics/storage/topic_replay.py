"""What the entries of the log do to a topic when they are replayed, and what is left to do at the end.

Owns the effect of each entry on one topic; the order of the entries is that of the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everlog.api_types import Durability
from everlog.native.topics.log import LogFrame, TopicLog
from everlog.topics.commits import COMMITTED
from everlog.topics.deletion import replay_delete
from everlog.topics.delivery.consumer_table import (
    CONSUMER_FRAMES,
    apply_consumer,
    clear_volatile_consumers,
    finish_consumer_replay,
)
from everlog.topics.jobs.lease_log import (
    apply_delete_seqs,
    apply_jobs,
    apply_lease,
    clear_volatile_leases,
    finish_lease_replay,
)
from everlog.topics.remembered_keys import RememberedKey
from everlog.topics.storage import control
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import Topic, leave_holes

if TYPE_CHECKING:
    from everlog.topics.storage.store import Store


def apply_entry(topic: Topic, frame: LogFrame) -> None:
    """Apply one control frame of a topic, except its deletion."""
    if frame.type == FrameType.CONFIG_UPDATE:
        topic.configure(control.decode(frame.data, control.ConfigUpdate).config)
        if topic.durability not in (Durability.DISK, Durability.FSYNC):
            topic.keys.clear()  # a change back logs those that are still known
        clear_volatile_leases(topic)
        clear_volatile_consumers(topic)
    elif frame.type == FrameType.DELETE:
        topic.visible = topic.log.next_seq - 1
        replay_delete(topic, control.decode(frame.data, control.Delete))
    elif frame.type == FrameType.DELETE_SEQS:
        topic.visible = topic.log.next_seq - 1
        apply_delete_seqs(topic, control.decode(frame.data, control.DeleteSeqs))
    elif frame.type == FrameType.LEASE:
        apply_lease(topic, control.decode(frame.data, control.Lease), frame.ts)
    elif frame.type == FrameType.JOBS:
        apply_jobs(topic, control.decode(frame.data, control.Jobs), frame.ts)
    elif frame.type in (FrameType.REDRIVEN, FrameType.SCHEDULE_FIRED):
        return  # of the whole directory: recovery has applied it
    elif frame.type in CONSUMER_FRAMES:
        apply_consumer(topic, frame)
    elif frame.type == FrameType.EVICT_WATERMARK:
        mark = control.decode(frame.data, control.EvictWatermark)
        # A crash may have taken the evicted records and left the floor, which shows that they were there.
        _raise_head(topic, max(mark.cap_floor, mark.ttl_floor) - 1)
        topic.visible = topic.log.next_seq - 1
        topic.reserved.floor_logged = max(topic.reserved.floor_logged, mark.reserved)
        topic.kill_below(max(mark.cap_floor, mark.ttl_floor))
        topic.restore_gaps(mark.trim_floor, mark.trim_runs, mark.holes)
        topic.raise_floor(cap=mark.cap_floor, ttl=mark.ttl_floor)
    elif frame.type == FrameType.HEAD_WATERMARK:
        head = control.decode(frame.data, control.HeadWatermark)
        topic.reserved.ceiling_logged = max(topic.reserved.ceiling_logged, head.ceiling)
        _raise_head(topic, head.head)
    else:
        key = control.decode(frame.data, control.IdempotencyKey)
        topic.keys.add(RememberedKey(key.key, key.first_seq, key.count, frame.ts, COMMITTED, tuple(key.seqs)))


def finish_topic(store: Store, topic: Topic, *, crashed: bool) -> None:
    """Close the gap between what is there and what may have been promised, if there was a crash."""
    if topic.durability is Durability.EPHEMERAL:
        _forget_records(topic)
    log = topic.log
    # A class that is `fsync` now may have been `disk` before; `memory` promises nothing.
    promised = topic.durability in (Durability.DISK, Durability.FSYNC)
    if promised and crashed and topic.reserved.ceiling_logged >= log.next_seq:
        first_hole = log.next_seq
        leave_holes(log, topic.name, topic.reserved.ceiling_logged + 1)
        topic.note_holes(first_hole, topic.reserved.ceiling_logged)
        store.boot_pending = True
    topic.visible = log.next_seq - 1
    floor = min(topic.reserved.floor_logged, topic.visible + 1)
    if crashed and promised and floor > topic.floors.cap:
        store.boot_pending = True
        topic.kill_below(floor)
        topic.raise_floor(cap=floor)
    if log.last_ts:
        topic.last_write_ts = max(topic.last_write_ts or 0, log.last_ts)
    if not promised:
        topic.keys.clear()  # of a time when it was of another class
    topic.floors.planned = topic.floors.cap
    topic.reserved.floor_logged = topic.reserved.floor_durable = topic.floors.cap
    topic.reserved.ceiling_logged = 0
    topic.reclaim()
    topic.storage.logged_seq = topic.visible if topic.durability is not Durability.EPHEMERAL else 0
    finish_lease_replay(topic)
    finish_consumer_replay(topic)
    if topic.visible > topic.storage.saved_seq or topic.storage.unmarked:
        topic.totals.unsaved[topic.topic_id] = topic


def _forget_records(topic: Topic) -> None:
    """An ephemeral topic comes back empty, with its head."""
    topic.log = TopicLog(topic.topic_id, max(topic.log.next_seq, topic.storage.restored_head + 1))
    topic.note_holes(1, topic.log.next_seq - 1)
    if topic.storage.segments is not None:
        topic.storage.segments.seal()  # of a time when it had another class: a checkpoint drops them
    topic.storage.saved_seq = topic.log.next_seq - 1


def _raise_head(topic: Topic, head: int) -> None:
    """Leave holes up to a seq that was given out."""
    log = topic.log
    if head >= log.next_seq:
        first_hole = log.next_seq
        leave_holes(log, topic.name, head + 1)
        topic.note_holes(first_hole, head)
