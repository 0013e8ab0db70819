"""The write path: a batch is framed once, gathered in its shard, and kept as its class says.

Owns the order of checks and what a batch needs besides its records (key, ceiling, floor).
"""

from __future__ import annotations

from typing import Final

from everlog.errors import BatchTooLarge, InvalidRequest, LimitReached
from everlog.native.record_batch import RecordBatch
from everlog.topics.catalogue import frame_create, log_create, new_topic, register
from everlog.topics.commits import KEPT
from everlog.topics.committing import ShardLog
from everlog.topics.config import (
    MAX_IDEMPOTENCY_KEY_BYTES,
    MAX_RECORDS_PER_APPEND,
    SEQ_RESERVATION,
    Durability,
    TopicConfig,
)
from everlog.topics.core import CONTROL_ROOM, Core, floor_commit
from everlog.topics.entries import BatchEntry, ChangeEntry, ceiling_entry, reserve_entry
from everlog.topics.memory import MemoryChunks
from everlog.topics.records import AnyRecord
from everlog.topics.results import Appended
from everlog.topics.retention import EvictionPlan, check_room, has_caps, plan_caps, reservation
from everlog.topics.storage.control import EvictWatermark, HeadWatermark, IdempotencyKey, encode
from everlog.topics.storage.layout import FLAG_BATCH_CONTINUES, FLAG_DURABLE, FrameType
from everlog.topics.topic import RememberedKey, Topic

_CEILING_LOW: Final = SEQ_RESERVATION // 2  # with fewer seqs left, the next ceiling is logged ahead


class Batch:
    """An append on its way in: what was asked, before and while it is framed."""

    __slots__ = ("created", "key", "records", "topic", "ts")

    def __init__(self, topic: Topic, records: RecordBatch, key: str | None, ts: int, created: bool) -> None:
        self.topic = topic
        self.records = records
        self.key = key
        self.ts = ts
        self.created = created


def append(
    core: Core,
    name: str,
    records: list[AnyRecord],
    node: str | None,
    key: str | None,
    create: bool | None,
    config: TopicConfig | None,
) -> Appended:
    """See `Engine.append`."""
    if not records:
        raise InvalidRequest("an append needs at least one record")
    if len(records) > MAX_RECORDS_PER_APPEND:
        raise BatchTooLarge(
            f"an append of {len(records)} records; at most {MAX_RECORDS_PER_APPEND} are allowed, split it"
        )
    if key is not None and len(key.encode("utf-8", "surrogatepass")) > MAX_IDEMPOTENCY_KEY_BYTES:
        raise InvalidRequest(
            f"the idempotency key is longer than {MAX_IDEMPOTENCY_KEY_BYTES} bytes; use a hash"
        )
    checked = RecordBatch(records, node)
    now_ms = core.now_ms()
    topic = core.topics.get(name)
    created = topic is None
    if topic is None:
        topic = new_topic(core, name, create, config)
    else:
        if topic.keys:
            topic.forget_keys(now_ms)
            remembered = None if key is None else topic.keys.get(key)
            if remembered is not None:
                return _repeat(topic, remembered)
        core.sweep(topic, now_ms)
    batch = Batch(topic, checked, key, max(now_ms, topic.log.last_ts, topic.restored_ts), created)
    entry = _frame_into_log(core, batch) if core.is_logged(topic) else _frame_into_memory(core, batch)
    if key is not None:
        # A pending key stands for its batch too: whoever repeats it waits for the same commit.
        topic.keys[key] = RememberedKey(entry.first_seq, entry.count, entry.ts, entry.commit)
    last_seq = entry.first_seq + entry.count - 1
    return Appended(entry.first_seq, last_seq, entry.count, last_seq, created, False, entry.commit)


def _repeat(topic: Topic, remembered: RememberedKey) -> Appended:
    last_seq = remembered.first_seq + remembered.count - 1
    return Appended(
        remembered.first_seq, last_seq, remembered.count, last_seq, False, True, remembered.commit
    )


def _check_room(core: Core, topic: Topic, count: int, size: int) -> EvictionPlan | None:
    """Refuse a framed batch that has no room; return what it evicts, None for a topic without caps."""
    check_room(topic, count, size)
    plan = plan_caps(topic) if has_caps(topic) else None
    quota = core.settings.max_total_bytes
    after = core.totals.bytes + size - (plan.bytes if plan is not None else 0)
    if quota and after > quota:
        raise LimitReached(
            f"the live bytes of all topics would be {after}, more than max_total_bytes {quota}; delete "
            f"records or raise it",
            "max_total_bytes",
            quota,
        )
    return plan


def _frame_into_memory(core: Core, batch: Batch) -> BatchEntry:
    """Keep the frames of an ephemeral topic in its memory; visible at once."""
    topic, log = batch.topic, batch.topic.log
    count = len(batch.records)
    buffer = core.scratch
    buffer.clear()
    chunks = topic.chunks or MemoryChunks(core.sources)
    source, offset = chunks.room(batch.records.frame_bytes)
    first_seq = log.next_seq
    size = log.append(buffer, source, offset, batch.records, batch.ts, 0, None, False)
    try:
        plan = _check_room(core, topic, count, size)
        created = log_create(core, topic) if batch.created else KEPT
    except BaseException:
        log.pop(buffer, offset, count)
        if topic.chunks is None:
            chunks.clear()
        raise
    topic.chunks = chunks
    chunks.store(buffer, first_seq + count - 1)
    entry = BatchEntry(topic, first_seq, count, size, batch.ts, None)
    if plan is not None:
        entry.take_plan(plan)
    entry.committed()
    entry.commit = created
    return entry


def _frame_into_log(core: Core, batch: Batch) -> BatchEntry:
    """Frame the batch at the end of its shard's gathered bytes, all of it or nothing, and gather it."""
    topic, log = batch.topic, batch.topic.log
    shard = core.writable_shard(topic)
    buffer = shard.buffer
    shard.reserve(batch.records.frame_bytes + CONTROL_ROOM)
    mark = len(buffer)
    first_seq = log.next_seq
    companions: list[ChangeEntry] = []
    durable = FLAG_DURABLE if topic.durability is Durability.FSYNC else 0
    try:
        if batch.created:
            companions.append(frame_create(core, shard, topic))
        frames = len(companions) + _frame_key_and_ceiling(shard, batch, companions)
        size = log.append(
            buffer,
            shard.shard.source,
            shard.shard.source_offset,
            batch.records,
            batch.ts,
            durable,
            None,
            has_caps(topic),
        )
        try:
            plan = _check_room(core, topic, len(batch.records), size)
        except BaseException:
            log.pop(buffer, shard.shard.source_offset, len(batch.records))
            raise
    except BaseException:
        buffer.truncate(mark)
        for companion in companions:
            companion.withdraw()
        raise
    entry = BatchEntry(topic, first_seq, len(batch.records), size, batch.ts, shard.shard)
    entry.key = batch.key
    topic.logged_seq = first_seq + entry.count - 1
    entry.wait_for_sync(_needs_sync(batch, entry))
    if plan is not None:
        entry.take_plan(plan)
        frames += _frame_floor(shard, batch, entry, plan, companions)
    if batch.created:
        register(core, topic)
    # The companions first: what fails is taken back in reverse, the batch before its topic.
    for companion in companions:
        shard.gather(companion, 0)
    shard.gather(entry, frames + entry.count)
    return entry


def _needs_sync(batch: Batch, entry: BatchEntry) -> bool:
    """Whether the acknowledgement has to wait for a sync rather than for the write alone."""
    topic = batch.topic
    if batch.created or topic.pending_syncs or not floor_commit(topic).done:
        return True
    if topic.durability is Durability.DISK:
        return entry.first_seq + entry.count - 1 > topic.ceiling_durable
    return topic.durability is Durability.FSYNC


def _frame_key_and_ceiling(shard: ShardLog, batch: Batch, companions: list[ChangeEntry]) -> int:
    """Write the frames that stand before the records; return how many."""
    topic = batch.topic
    first_seq, count = topic.log.next_seq, len(batch.records)
    frames = 0
    if batch.key is not None and topic.durability is not Durability.MEMORY:
        payload = encode(IdempotencyKey(batch.key, first_seq, count))
        shard.buffer.append_control(
            FrameType.IDEMPOTENCY_KEY, FLAG_BATCH_CONTINUES, topic.topic_id, first_seq, batch.ts, payload
        )
        frames += 1
    last_seq = first_seq + count - 1
    if topic.durability is Durability.DISK and topic.ceiling_logged - last_seq < _CEILING_LOW:
        ceiling = last_seq + SEQ_RESERVATION
        payload = encode(HeadWatermark(ceiling))
        shard.buffer.append_control(
            FrameType.HEAD_WATERMARK, FLAG_BATCH_CONTINUES, topic.topic_id, 0, batch.ts, payload
        )
        companions.append(ceiling_entry(topic, ceiling))
        frames += 1
    return frames


def _frame_floor(
    shard: ShardLog, batch: Batch, entry: BatchEntry, plan: EvictionPlan, companions: list[ChangeEntry]
) -> int:
    """Write the frame that ends the batch of a capped topic: what it evicts. Return 1."""
    topic = batch.topic
    reserved = plan.floor
    if topic.durability is Durability.DISK:
        reserved = max(topic.reserved_logged, plan.floor)
        if plan.floor > topic.reserved_logged:
            reserved = min(plan.floor + reservation(topic), topic.log.next_seq)
            companions.append(reserve_entry(topic, reserved))
        if plan.floor > topic.reserved_durable:
            entry.wait_for_sync(True)
    mark = EvictWatermark(plan.floor, topic.ttl_floor, reserved)
    shard.buffer.append_control(FrameType.EVICT_WATERMARK, 0, topic.topic_id, 0, batch.ts, encode(mark))
    return 1
