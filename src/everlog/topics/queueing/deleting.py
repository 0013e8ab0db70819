"""Deleting exactly the jobs that are done: what an acknowledgement writes and what it changes.

Owns the shape of the entry (runs of seqs) and its effect, the same on the first run and on replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from everlog.api_types import Durability
from everlog.topics.commits import KEPT, Commit
from everlog.topics.queueing.lease_state import LeaseState
from everlog.topics.storage.control import DeleteSeqs, encode
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import Topic

if TYPE_CHECKING:
    from everlog.topics.core import Core


def lease_state_of(topic: Topic) -> LeaseState:
    """The leases of a queue; most topics never have any."""
    if topic.queue is None:
        topic.queue = LeaseState()
    return topic.queue


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
    core: Core, topic: Topic, state: LeaseState, seqs: list[int], *, dead_lettered: int = 0
) -> Commit:
    """Delete jobs that are leaving, ascending; they stay, claimable again, if that is not kept."""
    frame = DeleteSeqs(runs_of(seqs), dead_lettered)

    def kept() -> None:
        apply_delete_seqs(topic, frame)
        if state.waiters:
            state.wake()

    def lost() -> None:
        for seq in seqs:
            state.stay(seq)
        state.wake()

    if not core.logs_changes(topic):
        kept()
        return KEPT
    waits = topic.durability is Durability.FSYNC
    return core.log_change(topic, FrameType.DELETE_SEQS, encode(frame), kept, lost, needs_sync=waits)


def apply_delete_seqs(topic: Topic, frame: DeleteSeqs) -> int:
    """Remove these jobs; return how many there were."""
    deleted = 0
    for first_seq, count in frame.runs:
        deleted += topic.kill_range(first_seq, first_seq + count)
    # What is dead at the front is kept as one number; only jobs done out of order need marks in segments.
    floor = topic.delete_below = max(topic.delete_below, topic.earliest_seq)
    for first_seq, count in frame.runs:
        begin, end = max(first_seq, floor), min(first_seq + count, topic.saved_seq + 1)
        if begin < end:
            topic.flips.append(np.arange(begin, end, dtype=np.uint64))
            topic.totals.unsaved[topic.topic_id] = topic
    if frame.dead_lettered:
        queue = lease_state_of(topic)
        queue.dead_lettered = max(queue.dead_lettered, frame.dead_lettered)
    topic.snapshot_record = None
    topic.reclaim()
    return deleted
