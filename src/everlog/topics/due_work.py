"""What happens by time alone: records expire, idle segments are sealed, schedules fire.

Owns this work, in the order of `due_topics`. It changes no file: a checkpoint frees what it leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from everlog.errors import LimitReached, StorageFailed
from everlog.topics.retention import sweep
from everlog.topics.topic import Topic

if TYPE_CHECKING:
    from everlog.topics.core import Core

TOPICS_PER_TURN: Final = 64
"""Two to three milliseconds of work, after which requests get their turn."""
# A topic that is always written to is not looked at more often: each time may cost a sync.
_INTERVAL_MS: Final = 200
_RETRY_MS: Final = 1000
# Work that nothing waits for leaves the rest of a shard's queue to writers.
_QUEUE_SHARE: Final = 512


def schedule(core: Core, topic: Topic, not_before_ms: int = 0) -> None:
    """Put a topic in line for the next thing that time alone does to it, if there is any."""
    times: list[int] = []
    ttl_ms, first_live = topic.config.ttl_ms, topic.log.first_live
    if ttl_ms and first_live <= topic.visible:
        held_ms = 0 if topic.consumers is None else topic.consumers.longest_hold_ms(first_live)
        times.append(topic.log.timestamp(first_live) + ttl_ms + held_ms + 1)
    if topic.storage.segments is not None:
        sealed_ms = topic.storage.segments.seal_due_ms
        times.extend([] if sealed_ms is None else [sealed_ms])
    if times:
        core.totals.due.add(topic, max(min(times), not_before_ms))


def run_due(core: Core, now_ms: int, limit: int = TOPICS_PER_TURN) -> None:
    """Do what is due for up to `limit` topics."""
    due = core.totals.due
    for _ in range(limit):
        if any(shard.depth > _QUEUE_SHARE for shard in core.shards):
            return
        topic = due.pop(now_ms)
        if topic is None:
            return
        if not isinstance(topic, Topic):
            topic.run_due(now_ms)
            continue
        try:
            sweep(core, topic, now_ms)
        except (StorageFailed, LimitReached):
            due.add(topic, now_ms + _RETRY_MS)
            continue
        saved = topic.storage.segments
        if saved is not None and saved.seal_due(now_ms) is not None:
            core.totals.sealed[topic.topic_id] = topic
        schedule(core, topic, now_ms + _INTERVAL_MS)
