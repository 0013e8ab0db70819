"""What leaves a topic by caps and by age; and the account of what has become of every seq.

Owns how far the floors move and the order "logged, then applied". A floor that is not synced as the class of
the topic requires is not shown: see `floor_commit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from everlog.api_types import Discard, TopicAccount
from everlog.errors import InvalidRequest, OutcomeUnknown, RecordTooLarge, TopicFull
from everlog.topics import ack_policy
from everlog.topics.commits import COMMITTED, Commit, unless_unknown
from everlog.topics.config import U64_MAX, TopicConfig
from everlog.topics.storage.control import EvictWatermark, encode
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import SeqRun, Topic, add_holes

if TYPE_CHECKING:
    from everlog.native.topics.log import TopicLog
    from everlog.topics.core import Core

# As many seqs are counted at a time: a few milliseconds.
ACCOUNT_SEQS_MAX: Final = 1_000_000


# With more records over a cap, those that have to go are counted in blocks and not one by one.
_LOOKED_AT: Final = 1 << 16

# --- Caps and age ----------------------------------------------------------------------------------------


class EvictionPlan(msgspec.Struct, frozen=True):
    """Live records below `floor` have to go: how many, with how many bytes."""

    floor: int
    count: int
    bytes: int


def has_caps(topic: Topic) -> bool:
    """Whether appends can evict."""
    config = topic.config
    return config.discard is Discard.OLD and bool(config.cap_records or config.cap_bytes)


def plan_caps(topic: Topic) -> EvictionPlan:
    """Plan what has to go so that the caps hold, counting records that are not visible yet."""
    config, log, planned = topic.config, topic.log, topic.floors.planned
    count, size = log.live_count, log.live_bytes
    if planned > log.first_live:
        # Batches that wait will evict these when they become visible.
        planned_count, planned_size = log.live_in(log.first_live, planned)
        count -= planned_count
        size -= planned_size
    start = max(planned, log.first_live)
    left, left_bytes = count, size
    if _is_over(config, count, size, _LOOKED_AT):
        start, left, left_bytes = _pass_surely(config, log, start, count, size)
    floor, left, left_bytes = log.plan_caps(start, left, left_bytes, config.cap_records, config.cap_bytes)
    if left == count:
        return EvictionPlan(planned, 0, 0)
    return EvictionPlan(floor, count - left, size - left_bytes)


def _is_over(config: TopicConfig, count: int, size: int, by: int = 0) -> bool:
    """Whether so many records and bytes are more than the caps allow, by more than `by`."""
    over_count, over_bytes = count - config.cap_records, size - config.cap_bytes
    return (config.cap_records > 0 and over_count > by) or (config.cap_bytes > 0 and over_bytes > by)


def _pass_surely(
    config: TopicConfig, log: TopicLog, start: int, count: int, size: int
) -> tuple[int, int, int]:
    """Pass over seqs that surely have to go, counting whole blocks; returns seq, records and bytes left.

    To look at each of millions of records, as `TopicLog.plan_caps` does, would take tens of milliseconds.
    """
    stride = _LOOKED_AT
    while stride >= _LOOKED_AT and start < log.next_seq:
        passed, passed_bytes = log.live_in(start, start + stride)
        if _is_over(config, count - passed, size - passed_bytes):
            start, count, size = start + stride, count - passed, size - passed_bytes
            stride *= 2
        else:
            stride //= 2
    return start, count, size


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
        raise _full(
            topic,
            f"it holds {log.live_count - count} records with {log.live_bytes - size} bytes, capped at "
            f"{config.cap_records} records and {config.cap_bytes} bytes (0 = none); delete records or retry "
            f"later",
        )


def _full(topic: Topic, cause: str, held_by: Sequence[str] = ()) -> TopicFull:
    error = TopicFull(f"topic {topic.name!r} is full: {cause}", held_by)
    error.detail = {
        "topic": topic.name,
        "cap_records": topic.config.cap_records,
        "cap_bytes": topic.config.cap_bytes,
        "head_seq": topic.visible,
        "earliest_seq": topic.earliest_seq,
    }
    if held_by:
        error.detail["held_by"] = list(held_by)
    return error


def held_floor(topic: Topic, since_ms: int) -> int:
    """The first seq that consumers hold back from eviction; caps count from now, age from the expiry."""
    consumers = topic.consumers
    if consumers is None or not consumers.has_holders:
        return U64_MAX
    return consumers.held_floor(topic.log, since_ms)


def check_held(topic: Topic, plan: EvictionPlan, now_ms: int) -> None:
    """Refuse a batch that was just framed if what it has to evict is held by a consumer."""
    if topic.consumers is None or not plan.count or plan.floor <= held_floor(topic, now_ms):
        return
    names = topic.consumers.held_by(topic.log, now_ms, plan.floor)
    cause = (
        f"{', '.join(names[:3])} and perhaps others hold records that have to go first; let these consumers "
        f"commit, or reset or delete them"
    )
    raise _full(topic, cause, names)


def expired_floor(topic: Topic, now_ms: int) -> int:
    """Return one past the last live record that is too old; 1 if none is."""
    ttl_ms = topic.config.ttl_ms
    if ttl_ms == 0 or now_ms <= ttl_ms:
        return 1
    log = topic.log
    first_live = log.first_live
    if first_live > topic.visible or log.timestamp(first_live) >= now_ms - ttl_ms:
        return 1
    end_seq = min(log.find_ts(now_ms - ttl_ms, topic.visible + 1), held_floor(topic, now_ms - ttl_ms))
    return log.last_live_below(end_seq) + 1 if end_seq > first_live else 1


def sweep(core: Core, topic: Topic, now_ms: int) -> None:
    """Evict what is too old or over a cap that became tighter; see `floor_commit` before showing it."""
    floors = topic.floors
    floor = expired_floor(topic, now_ms)
    # A floor that could not be logged is never shown: it is logged again, or the call fails.
    has_failed = floors.commit is not None and floors.commit.error is not None
    if floor > 1 or has_failed:
        floor = max(floor, floors.ttl)
        _log_floors(core, topic, floors.cap, floor)
        topic.kill_below(floor)
        topic.raise_floor(ttl=floor)
    if floors.caps_due:
        _enforce_caps(core, topic, now_ms)


def _enforce_caps(core: Core, topic: Topic, now_ms: int) -> None:
    plan = plan_caps(topic) if has_caps(topic) else None
    is_over = plan is not None and plan.count > 0
    if plan is not None and is_over:
        floor = min(plan.floor, topic.visible + 1, held_floor(topic, now_ms))
        if floor > topic.log.first_live:
            _log_floors(core, topic, floor, topic.floors.ttl)
            topic.kill_below(floor)
            topic.raise_floor(cap=floor)
        is_over = floor < plan.floor  # the others are not visible yet or held, and go when they are not
    topic.floors.caps_due = is_over


def _log_floors(core: Core, topic: Topic, cap_floor: int, ttl_floor: int) -> None:
    """Log the floors of a topic whose records are logged.

    A shard that is closed for writes takes none: reads go on, and the restart evicts the same records again.
    """
    if not core.logs_changes(topic) or core.shards[topic.shard].wal.read_only is not None:
        topic.floors.commit = None
        return
    mark = EvictWatermark(cap_floor, ttl_floor, max(cap_floor, topic.reserved.floor_logged))
    waits = ack_policy.sweep_needs_sync(topic.durability)
    commit = core.log_change(topic, FrameType.EVICT_WATERMARK, encode(mark), needs_sync=waits)
    topic.floors.commit = commit if waits else None


def floor_commit(topic: Topic) -> Commit:
    """What an answer about the topic has to wait for: a floor that is not synced yet, or nothing.

    If the sync fails, the answer is given all the same: its shard is closed for writes, and reads go on.
    """
    commit = topic.floors.commit
    if commit is not None and commit.done and isinstance(commit.error, OutcomeUnknown | None):
        commit = topic.floors.commit = None
    if commit is None:
        return COMMITTED
    return commit if commit.done else unless_unknown(commit)


# --- Accounts --------------------------------------------------------------------------------------------


def account(topic: Topic, from_seq: int, to_seq: int) -> TopicAccount:
    """Account for seqs; `to_seq` is lowered to the head, and to what one answer covers.

    Below the floors nothing is known of a single seq: what caps took is evicted, what age took beyond that
    is expired, and the rest was lost by the source of a router, which leaves holes.
    """
    for name, seq in (("from_seq", from_seq), ("to_seq", to_seq)):
        if not 0 <= seq <= U64_MAX:
            raise InvalidRequest(f"{name} is {seq}; it must be from 0 to {U64_MAX}")
    floors, floor = topic.floors, topic.evict_floor
    end = max(min(to_seq, topic.visible, from_seq + ACCOUNT_SEQS_MAX), from_seq) + 1
    start = from_seq + 1
    evicted = max(0, min(floors.cap, end) - start)
    expired = max(0, min(floors.ttl, end) - start - evicted)
    trimmed = max(0, min(floor, end) - start - evicted - expired)
    behind = max(start, floor)
    live = topic.log.live_in(behind, end)[0] if behind < end else 0
    runs = list(floors.holes)
    for run in floors.trim_runs:
        add_holes(runs, *run)
    empty = count_holes(runs, topic.log, behind, end)
    return TopicAccount(
        topic=topic.name,
        from_seq=from_seq,
        to_seq=end - 1,
        live=live,
        deleted=max(0, end - behind) - live - empty,
        evicted=evicted,
        expired=expired,
        holes=trimmed + empty,
        evict_floor=floor,
        head_seq=topic.visible,
        epoch=topic.epoch,
    )


def count_holes(runs: list[SeqRun], log: TopicLog, first_seq: int, end_seq: int) -> int:
    """How many seqs of the runs, from `first_seq` up to before `end_seq`, hold no live record."""
    total = 0
    for run_first, run_last in runs:
        begin, end = max(run_first, first_seq), min(run_last + 1, end_seq)
        if begin < end:
            total += end - begin - log.live_in(begin, end)[0]
    return total
