"""The append path: a batch is checked, framed once, and gathered in its shard of the log, or held in memory.

Owns the order of checks and what is logged besides the records (key, reservations, floor). When the batch is
acknowledged is decided by `ack_policy` and happens in `commits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, NamedTuple

from everlog.api_types import Discard, Durability
from everlog.errors import BatchTooLarge, InvalidRequest, LimitReached
from everlog.job_types import JobMembers
from everlog.native.topics.log import RecordBatch
from everlog.topics import ack_policy
from everlog.topics.catalogue import frame_create, log_create, new_topic, register
from everlog.topics.commits import COMMITTED, BatchEntry, ChangeEntry, ShardCommits, together
from everlog.topics.config import MAX_IDEMPOTENCY_KEY_BYTES, MAX_RECORDS_PER_APPEND, TopicConfig
from everlog.topics.core import CONTROL_ROOM, Core
from everlog.topics.due_work import run_due
from everlog.topics.jobs.new_jobs import NewJobs, check_job_queue
from everlog.topics.jobs.options import options_of
from everlog.topics.memory import MemoryChunks
from everlog.topics.records import AnyRecord
from everlog.topics.remembered_keys import RememberedKey
from everlog.topics.results import Appended
from everlog.topics.retention import (
    EvictionPlan,
    check_held,
    check_room,
    floor_commit,
    has_caps,
    held_floor,
    plan_caps,
    sweep,
)
from everlog.topics.storage.control import EvictWatermark, HeadWatermark, IdempotencyKey, encode
from everlog.topics.storage.layout import FLAG_BATCH_CONTINUES, FLAG_DURABLE, FrameType
from everlog.topics.topic import Topic

Extras = Sequence[tuple[FrameType, bytes]]
"""Entries of the log, by kind, that stand before the records of their batch."""


class ByteQuota(NamedTuple):
    """How many live bytes some topics may hold together; a topic that an append creates is one of them."""

    names: Set[str]
    limit: int


_KEYED_A_LOOK: Final = 16  # topics that are looked through for keys whose window is over


def append(  # noqa: PLR0913
    core: Core,
    name: str,
    records: list[AnyRecord] | RecordBatch,
    node: str | None,
    key: str | None,
    create: bool | None,
    config: TopicConfig | None,
    disable_backpressure: bool = False,
    jobs: Mapping[int, JobMembers] | None = None,
    *,
    extras: Extras = (),
    quota: ByteQuota | None = None,
) -> Appended:
    """See `Engine.append`. `extras` are entries of the log that count exactly if the batch does."""
    _check_size(records, key)
    batch = records if isinstance(records, RecordBatch) else RecordBatch(records, node)
    now_ms = core.now_ms()
    options = options_of(jobs, now_ms) if jobs else None
    topic = core.topics.get(name)
    created = topic is None
    if topic is None:
        topic = new_topic(core, name, create, config)
    else:
        if topic.keys:
            topic.forget_keys(now_ms)
            remembered = None if key is None else topic.find_key(key, now_ms)
            if remembered is not None:
                return _repeat(remembered)
        if topic.config.ttl_ms or topic.floors.caps_due or topic.floors.commit is not None:
            sweep(core, topic, now_ms)
    keys_max = core.settings.max_idempotency_keys
    if key is not None and keys_max and core.totals.keys >= keys_max:
        _check_keys(core, now_ms)
    if options:
        check_job_queue(topic)
    if core.delivery.is_refusing and not disable_backpressure:
        core.check_pressure(topic)
    total_bytes_max = core.settings.max_total_bytes
    if total_bytes_max and core.totals.bytes + batch.frame_bytes > total_bytes_max:
        run_due(core, now_ms)  # idle topics may hold records that have expired
    ts = max(now_ms, topic.log.last_ts, topic.storage.restored_ts)
    if options:
        new_jobs = NewJobs(topic, options, now_ms)
        return _append_jobs(core, topic, records, node, key, ts, created, new_jobs, extras, quota)
    if core.is_logged(topic):
        entry = _frame_into_log(core, topic, batch, key, ts, created, extras, quota=quota)
    else:
        entry = _frame_into_memory(core, topic, batch, ts, created, quota)
    core.totals.appended += entry.count
    if key is not None:
        # A pending key stands for its batch too: a repeated write waits for the same commit.
        topic.remember_key(RememberedKey(key, entry.first_seq, entry.count, ts, entry.commit))
    return Appended(
        entry.first_seq, entry.last_seq, entry.count, entry.last_seq, created, False, entry.commit
    )


def _check_size(records: list[AnyRecord] | RecordBatch, key: str | None) -> None:
    if not records:
        raise InvalidRequest("an append needs at least one record")
    if len(records) > MAX_RECORDS_PER_APPEND:
        raise BatchTooLarge(
            f"an append of {len(records)} records; at most {MAX_RECORDS_PER_APPEND} are allowed, split it"
        )
    if key is not None and not 1 <= len(key.encode("utf-8", "surrogatepass")) <= MAX_IDEMPOTENCY_KEY_BYTES:
        raise InvalidRequest(
            f"the idempotency key {key[:100]!r} has {len(key)} characters; it must have 1 to "
            f"{MAX_IDEMPOTENCY_KEY_BYTES} bytes: use a hash, or leave it out"
        )


def _append_jobs(
    core: Core,
    topic: Topic,
    records: list[AnyRecord] | RecordBatch,
    node: str | None,
    key: str | None,
    ts: int,
    created: bool,
    new_jobs: NewJobs,
    extras: Extras,
    quota: ByteQuota | None,
) -> Appended:
    """Append jobs with options, except those that are there already by their unique keys."""
    assert not isinstance(records, RecordBatch), "records with options come one by one"
    kept = [record for place, record in enumerate(records) if place not in new_jobs.hits]
    if not kept:
        return _only_hits(core, topic, new_jobs, len(records), key, ts)
    batch = RecordBatch(kept, node)
    seqs = new_jobs.seqs(topic.log.next_seq, len(records))
    if core.is_logged(topic):
        extras = (*extras, *new_jobs.extras(topic.log.next_seq))
        entry = _frame_into_log(core, topic, batch, key, ts, created, extras, seqs, quota)
    else:
        entry = _frame_into_memory(core, topic, batch, ts, created, quota)
    new_jobs.register(entry.first_seq, ts, entry.commit)
    commit = together([entry.commit, *new_jobs.waits_for])
    if key is not None:
        topic.remember_key(RememberedKey(key, entry.first_seq, entry.count, ts, commit, seqs))
    return Appended(
        entry.first_seq, entry.last_seq, entry.count, entry.last_seq, created, False, commit, seqs
    )


def _check_keys(core: Core, now_ms: int) -> None:
    """Refuse another idempotency key if too many are remembered: none is forgotten before its time."""
    totals, limit = core.totals, core.settings.max_idempotency_keys
    for _ in range(min(_KEYED_A_LOOK, len(totals.keyed))):
        topic_id = next(iter(totals.keyed))
        topic = totals.keyed.pop(topic_id)
        topic.forget_keys(now_ms)
        if topic.keys:
            totals.keyed[topic_id] = topic
    if totals.keys >= limit:
        raise LimitReached(
            f"{totals.keys} idempotency keys are remembered, as many as max_idempotency_keys allows; try "
            f"again when the window of some is over, or shorten idempotency_window_ms",
            "max_idempotency_keys",
            limit,
        )


def _repeat(remembered: RememberedKey) -> Appended:
    last_seq = remembered.first_seq + remembered.count - 1
    return Appended(
        remembered.first_seq,
        last_seq,
        remembered.count,
        last_seq if remembered.count else max(remembered.seqs, default=0),
        False,
        True,
        remembered.commit,
        remembered.seqs,
    )


def _only_hits(core: Core, topic: Topic, new_jobs: NewJobs, count: int, key: str | None, ts: int) -> Appended:
    """Answer an append whose jobs are all there already; what is remembered of it is its key."""
    seqs = new_jobs.seqs(0, count)
    commits = list(new_jobs.waits_for)
    if key is not None:
        if core.is_logged(topic) and _logs_keys(topic):
            payload = encode(IdempotencyKey(key, 0, 0, list(seqs)))
            waits = topic.durability is Durability.FSYNC
            commits.append(core.log_change(topic, FrameType.IDEMPOTENCY_KEY, payload, needs_sync=waits))
        topic.remember_key(RememberedKey(key, 0, 0, ts, together(commits), seqs))
        topic.snapshot_record = None
    return Appended(0, 0, 0, topic.visible, False, False, together(commits), seqs)


def _check_room(
    core: Core, topic: Topic, count: int, size: int, is_capped: bool, ts: int, quota: ByteQuota | None
) -> EvictionPlan | None:
    """Refuse a framed batch that has no room; return what it evicts, None for a topic without caps."""
    if topic.config.discard is Discard.REJECT:
        check_room(topic, count, size)
    plan = plan_caps(topic) if is_capped else None
    if plan is not None and topic.consumers is not None:
        check_held(topic, plan, ts)
    evicted = plan.bytes if plan is not None else 0
    limit = core.settings.max_total_bytes
    if limit and core.totals.bytes + size - evicted > limit:
        after = core.totals.bytes + size - evicted
        raise LimitReached(
            f"the live bytes of all topics would be {after}, more than max_total_bytes {limit}; delete "
            f"records or raise it",
            "max_total_bytes",
            limit,
        )
    if quota is not None:
        _check_quota(core, topic, evicted, quota)
    return plan


def _check_quota(core: Core, topic: Topic, evicted: int, quota: ByteQuota) -> None:
    """Refuse a framed batch with which the topics of its key hold too much; other topics do not count."""
    is_new = topic.name not in core.topics
    if not is_new and topic.name not in quota.names:
        return
    held = sum(core.topics[name].log.live_bytes for name in quota.names if name in core.topics)
    after = held + (topic.log.live_bytes if is_new else 0) - evicted
    if after > quota.limit:
        raise LimitReached(
            f"the topics that this key has created would hold {after} bytes, more than its {quota.limit}; "
            f"delete records",
            "max_total_bytes_per_key",
            quota.limit,
        )


def _frame_into_memory(
    core: Core, topic: Topic, records: RecordBatch, ts: int, created: bool, quota: ByteQuota | None
) -> BatchEntry:
    """Keep the frames of an ephemeral topic in its memory; visible at once."""
    log = topic.log
    chunks = topic.storage.chunks or MemoryChunks(core.sources, core.spare_chunks)
    chunk = chunks.chunk_for(records.frame_bytes)
    buffer = chunk.buffer
    mark = len(buffer)
    first_seq, count, last_ts = log.next_seq, records.count, log.last_ts
    size = log.append(buffer, chunk.source, 0, records, ts, 0, None, False)
    try:
        plan = _check_room(core, topic, count, size, has_caps(topic), ts, quota)
        chunks.publish(chunk, first_seq + count - 1)
        commit = log_create(core, topic) if created else COMMITTED
    except BaseException:
        log.pop(buffer, 0, count, last_ts)
        buffer.truncate(mark)
        if topic.storage.chunks is None:
            chunks.clear()
        raise
    topic.storage.chunks = chunks
    entry = BatchEntry(topic, first_seq, count, size, ts, None, COMMITTED)
    if plan is not None:
        entry.evict_by(plan)
    entry.on_commit()
    entry.commit = commit
    return entry


def _frame_into_log(
    core: Core,
    topic: Topic,
    records: RecordBatch,
    key: str | None,
    ts: int,
    created: bool,
    extras: Extras = (),
    seqs: tuple[int, ...] = (),
    quota: ByteQuota | None = None,
) -> BatchEntry:
    """Frame the batch at the end of its shard's gathered bytes, all of it or nothing, and gather it."""
    log, durability = topic.log, topic.durability
    shard = core.writable_shard(topic)
    extra_bytes = sum(len(payload) for _, payload in extras) if extras else 0
    shard.reserve(records.frame_bytes + CONTROL_ROOM + extra_bytes)
    wal = shard.wal
    buffer = wal.buffer
    mark = len(buffer)
    first_seq, count, last_ts = log.next_seq, records.count, log.last_ts
    last_seq = first_seq + count - 1
    is_capped = has_caps(topic)
    flags = FLAG_DURABLE if durability is Durability.FSYNC else 0
    companions: list[ChangeEntry] = []
    frames = count
    try:
        if created:
            companions.append(frame_create(core, shard, topic))
            frames += 1
        if key is not None and _logs_keys(topic):
            _frame_key(shard, topic, key, count, ts, seqs)
            frames += 1
        for kind, payload in extras:
            buffer.append_control(kind, FLAG_BATCH_CONTINUES, topic.topic_id, 0, ts, payload)
            frames += 1
        ceiling = ack_policy.next_ceiling(durability, last_seq, topic.reserved.ceiling_logged)
        if ceiling:
            frame_ceiling(shard, topic, ceiling, ts, FLAG_BATCH_CONTINUES)
            companions.append(topic.reserved.reserve_seqs(ceiling))
            frames += 1
        size = log.append(buffer, wal.source, wal.source_offset, records, ts, flags, None, is_capped)
        try:
            plan = _check_room(core, topic, count, size, is_capped, ts, quota)
        except BaseException:
            log.pop(buffer, wal.source_offset, count, last_ts)
            raise
    except BaseException:
        buffer.truncate(mark)
        for companion in companions:
            companion.withdraw()
        raise
    entry = BatchEntry(topic, first_seq, count, size, ts, wal)
    entry.key = key
    topic.storage.logged_seq = last_seq
    entry.require_sync(
        created
        or _follows_a_sync(topic)
        or ack_policy.needs_sync(durability, last_seq, topic.reserved.ceiling_durable)
    )
    if plan is not None:
        entry.evict_by(plan)
        _frame_floor(shard, topic, plan, reserve_floor(entry, plan, companions), ts)
        frames += 1
    if created:
        register(core, topic)
    # The companions first: what fails is undone in reverse, the batch before its topic.
    for companion in companions:
        shard.gather(companion, 0)
    shard.gather(entry, frames)
    return entry


def _follows_a_sync(topic: Topic) -> bool:
    """Whether something earlier of the topic waits for a sync, which a batch may not overtake."""
    if topic.pending.syncs:
        return True
    return topic.floors.commit is not None and not floor_commit(topic).done


def reserve_floor(entry: BatchEntry, plan: EvictionPlan, companions: list[ChangeEntry]) -> int:
    """Let a batch that evicts wait until that may be shown; return the reserved floor to log with it.

    A new reservation is added to `companions`.
    """
    topic = entry.topic
    durability, reserved, log = topic.durability, topic.reserved, topic.log
    # What a consumer holds is not reserved: a crash would evict it.
    end_seq = min(log.next_seq, max(plan.floor, held_floor(topic, entry.ts)))
    floor = ack_policy.next_reserved_floor(
        durability, plan.floor, reserved.floor_logged, log.live_count, end_seq
    )
    if durability is Durability.DISK and floor > reserved.floor_logged:
        companions.append(reserved.reserve_floor(floor))
    entry.require_sync(ack_policy.floor_needs_sync(durability, plan.floor, reserved.floor_durable))
    return floor


def _logs_keys(topic: Topic) -> bool:
    """Whether keys go to the log with their records: a restart forgets those of class memory."""
    return topic.durability is not Durability.MEMORY or topic.storage.logged_changes > 0


def _frame_key(
    shard: ShardCommits, topic: Topic, key: str, count: int, ts: int, seqs: tuple[int, ...]
) -> None:
    """Write the frame that remembers the key of the batch behind it."""
    first_seq = topic.log.next_seq
    payload = encode(IdempotencyKey(key, first_seq, count, list(seqs)))
    shard.wal.buffer.append_control(
        FrameType.IDEMPOTENCY_KEY, FLAG_BATCH_CONTINUES, topic.topic_id, first_seq, ts, payload
    )


def frame_ceiling(shard: ShardCommits, topic: Topic, ceiling: int, ts: int, flags: int = 0) -> None:
    """Write the frame that reserves the seqs up to `ceiling`."""
    payload = encode(HeadWatermark(ceiling))
    shard.wal.buffer.append_control(FrameType.HEAD_WATERMARK, flags, topic.topic_id, 0, ts, payload)


def _frame_floor(shard: ShardCommits, topic: Topic, plan: EvictionPlan, reserved: int, ts: int) -> None:
    """Write the frame that ends the batch of a capped topic: what it evicts."""
    payload = encode(EvictWatermark(plan.floor, topic.floors.ttl, reserved))
    shard.wal.buffer.append_control(FrameType.EVICT_WATERMARK, 0, topic.topic_id, 0, ts, payload)
