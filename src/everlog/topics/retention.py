"""What a topic may keep: caps by records and bytes, and age.

Owns the decision how far the floors move; the caller logs that and applies it.
"""

from __future__ import annotations

import msgspec

from everlog.api_types import Discard
from everlog.errors import RecordTooLarge, TopicFull
from everlog.topics.config import SEQ_RESERVATION
from everlog.topics.topic import Topic


class EvictionPlan(msgspec.Struct, frozen=True):
    """Live records below `floor` have to go: how many, with how many bytes."""

    floor: int
    count: int
    bytes: int


def has_caps(topic: Topic) -> bool:
    """Tell whether appends can evict."""
    config = topic.config
    return config.discard is Discard.OLD and bool(config.cap_records or config.cap_bytes)


def plan_caps(topic: Topic) -> EvictionPlan:
    """Plan what has to go so that the caps hold, counting records that are not visible yet."""
    config, log = topic.config, topic.log
    count, size = log.live_count, log.live_bytes
    if topic.planned_floor > log.first_live:
        # Batches that wait will evict these when they become visible.
        planned_count, planned_size = log.live_in(log.first_live, topic.planned_floor)
        count -= planned_count
        size -= planned_size
    start = max(topic.planned_floor, log.first_live)
    floor, left, left_bytes = log.plan_caps(start, count, size, config.cap_records, config.cap_bytes)
    if left == count:
        return EvictionPlan(topic.planned_floor, 0, 0)
    return EvictionPlan(floor, count - left, size - left_bytes)


def reservation(topic: Topic) -> int:
    """How many records ahead of the floor are given up if the machine crashes now."""
    return min(SEQ_RESERVATION, topic.log.live_count // 8)


def check_room(topic: Topic, count: int, size: int) -> None:
    """Refuse a batch that was just framed if a rejecting topic has no room for it."""
    config, log = topic.config, topic.log
    if config.discard is not Discard.REJECT:
        return
    if (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes):
        raise RecordTooLarge(
            f"a batch of {count} records with {size} bytes can never fit into topic {topic.name!r}, capped "
            f"at {config.cap_records} records and {config.cap_bytes} bytes (0 = none); split it"
        )
    if (config.cap_records and log.live_count > config.cap_records) or (
        config.cap_bytes and log.live_bytes > config.cap_bytes
    ):
        raise _full(topic)


def _full(topic: Topic) -> TopicFull:
    config = topic.config
    return TopicFull(
        f"topic {topic.name!r} is full: {topic.count} records with {topic.bytes} bytes, capped at "
        f"{config.cap_records} records and {config.cap_bytes} bytes (0 = none); delete records or retry later"
    )


def expired_floor(topic: Topic, now_ms: int) -> int:
    """Return one past the last live record that is too old; 1 if none is."""
    ttl_ms = topic.config.ttl_ms
    if ttl_ms == 0 or now_ms <= ttl_ms:
        return 1
    log = topic.log
    first_live = log.first_live
    if first_live > topic.visible or log.timestamp(first_live) >= now_ms - ttl_ms:
        return 1
    return log.last_live_below(log.find_ts(now_ms - ttl_ms, topic.visible + 1)) + 1
