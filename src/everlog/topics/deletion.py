"""Deleting records for good: by seq, by tag, by prefix of a tag; as of now, never for later ones.

Owns the order "logged, then applied"; what a predicate means is in `matching`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlog.api_types import Durability
from everlog.errors import InvalidRequest
from everlog.topics.commits import KEPT
from everlog.topics.config import U64_MAX
from everlog.topics.core import Core, floor_commit
from everlog.topics.matching import parse_match
from everlog.topics.results import RecordsDeleted
from everlog.topics.storage.control import Delete, encode
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import Topic


def delete_records(
    core: Core, topic: Topic, before_seq: int | None, match: str | Sequence[Any] | None
) -> RecordsDeleted:
    """See `Engine.delete_records`."""
    if before_seq is None and match is None:
        raise InvalidRequest("a delete needs before_seq, match, or both")
    if before_seq is not None and not 0 <= before_seq <= U64_MAX:
        raise InvalidRequest(f"before_seq is {before_seq}; it must be from 0 to {U64_MAX}")
    selector = None if match is None else parse_match(match)
    core.sweep(topic, core.now_ms())
    bound = topic.visible + 1
    before = bound if before_seq is None else min(before_seq, bound)
    frame = Delete(before, bound) if selector is None else Delete(before, bound, *selector)
    commit = KEPT
    if core.logs_changes(topic):
        waits = topic.durability is Durability.FSYNC
        commit = core.log_change(topic, FrameType.DELETE, encode(frame), needs_sync=waits)
        # Written at once: a delete cannot be taken back, so nothing may happen before it is in the log.
        core.shards[topic.shard].write()
        if commit.done and commit.error is not None:
            raise commit.error
    deleted = apply_delete(topic, frame)
    if not commit.done:
        topic.floor_commit = commit  # nobody sees a front that a crash could bring back
    return RecordsDeleted(
        deleted, topic.earliest_seq, topic.visible, topic.count, topic.bytes, floor_commit(topic)
    )


def apply_delete(topic: Topic, frame: Delete) -> int:
    """Remove what the frame selects; the same on the first run and on replay."""
    if frame.tag is None:
        deleted = topic.kill_below(frame.before_seq)
        topic.delete_below = max(topic.delete_below, frame.before_seq)
    else:
        seqs = topic.log.find_tag(frame.tag, frame.prefix, frame.before_seq)
        if len(seqs):
            topic.flips.append(seqs)
            topic.totals.unsaved[topic.topic_id] = topic
        deleted = topic.kill(seqs)
    topic.snapshot_record = None
    topic.reclaim()
    return deleted
