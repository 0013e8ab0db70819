"""The log entries of a job queue: deleted jobs, and leases if the topic has `leases_durable`.

Owns the shape of both entries and their effect, which is the same on the first run and on replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from everlog.api_types import Durability, TopicType
from everlog.errors import LimitReached, StorageFailed
from everlog.job_types import JobError
from everlog.topics.commits import COMMITTED, Commit
from everlog.topics.config import TopicConfig
from everlog.topics.core import Core
from everlog.topics.jobs.claim_rates import QUEUE_KEY
from everlog.topics.jobs.job_board import JobBoard
from everlog.topics.jobs.lease_table import ACKED, Job, LeaseTable, StoredLease, stored_lease
from everlog.topics.storage.control import DeleteSeqs, JobOptions, Jobs, Lease, Redriven, TopicRecord, encode
from everlog.topics.storage.layout import FrameType
from everlog.topics.topic import Topic

if TYPE_CHECKING:
    pass


def lease_table_of(topic: Topic) -> LeaseTable:
    """The leases of a job queue, created on first use."""
    if topic.leases is None:
        topic.leases = LeaseTable()
        if wants_board(topic):
            board_of(topic)
    return topic.leases


def board_of(topic: Topic) -> JobBoard:
    """The board of a job queue, created on first use."""
    table = lease_table_of(topic)
    if table.board is None:
        table.attach(JobBoard(topic, table))
    assert table.board is not None
    return table.board


def wants_board(topic: Topic) -> bool:
    """Whether claims of a job queue need a board although no job has options."""
    return topic.config.type is TopicType.QUEUE and topic.config.rate_limit is not None


def reconfigure_jobs(topic: Topic) -> None:
    """Apply a configuration that has changed."""
    if wants_board(topic):
        board_of(topic)
    if topic.leases is not None:
        if topic.leases.board is not None:
            topic.leases.board.reconfigure()
        topic.leases.wake()


# --- Deleted jobs -----------------------------------------------------------------------------------------


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
    core: Core,
    topic: Topic,
    table: LeaseTable,
    seqs: list[int],
    *,
    dead_lettered: int = 0,
    are_done: bool = False,
) -> Commit:
    """Delete ascending jobs whose deletion has begun; if that does not commit, they are claimable again."""
    if are_done:
        table.done_total += len(seqs)
    entry = DeleteSeqs(runs_of(seqs), dead_lettered, table.done_total if are_done else 0)

    def on_commit() -> None:
        apply_delete_seqs(topic, entry)
        if are_done:
            table.count_outcome(ACKED, len(seqs))
        if table.waiters:
            table.wake()

    def on_abort() -> None:
        if are_done:
            table.done_total -= len(seqs)
        for seq in seqs:
            table.abort_delete(seq)
        table.wake()

    if not core.logs_changes(topic):
        on_commit()
        return COMMITTED
    needs_sync = topic.durability is Durability.FSYNC
    try:
        return core.log_change(
            topic, FrameType.DELETE_SEQS, encode(entry), on_commit, on_abort, needs_sync=needs_sync
        )
    except BaseException:
        on_abort()
        raise


def apply_delete_seqs(topic: Topic, entry: DeleteSeqs) -> int:
    """Delete the jobs of an entry; return how many existed."""
    deleted = 0
    for first_seq, count in entry.runs:
        deleted += topic.kill_range(first_seq, first_seq + count)
    # The deleted front is stored as one number; only jobs deleted out of order need marks in segments.
    floor = topic.floors.delete_below = max(topic.floors.delete_below, topic.earliest_seq)
    for first_seq, count in entry.runs:
        begin, end = max(first_seq, floor), min(first_seq + count, topic.storage.saved_seq + 1)
        if begin < end:
            topic.storage.unmarked.append(np.arange(begin, end, dtype=np.uint64))
            topic.totals.unsaved[topic.topic_id] = topic
    if entry.dead_lettered:
        table = lease_table_of(topic)
        table.dead_lettered = max(table.dead_lettered, entry.dead_lettered)
    if entry.done_total:
        table = lease_table_of(topic)
        table.done_total = max(table.done_total, entry.done_total)
    topic.snapshot_record = None
    topic.reclaim()
    return deleted


def apply_redriven(topic: Topic | None, note: Redriven) -> None:
    """Recover: delete the letters whose copies are there."""
    if topic is None:
        return
    log = topic.log
    for first_seq, count, first_ts, last_ts in note.runs:
        # The seqs of a topic that loses records in a crash may be given out again, but later.
        seqs = [
            seq
            for seq in range(first_seq, min(first_seq + count, log.next_seq))
            if log.is_live(seq) and first_ts <= log.timestamp(seq) <= last_ts
        ]
        if seqs:
            apply_delete_seqs(topic, DeleteSeqs(runs_of(seqs)))


# --- Leases -----------------------------------------------------------------------------------------------


def has_durable_leases(config: TopicConfig) -> bool:
    """Whether leases of such a topic survive a restart."""
    return (
        config.type is TopicType.QUEUE
        and config.leases_durable
        and config.durability is not Durability.EPHEMERAL
    )


def logs_leases(core: Core, topic: Topic) -> bool:
    """Whether the leases of a topic go to the log."""
    return bool(core.shards) and (has_durable_leases(topic.config) or topic.storage.changes > 0)


def log_leases(
    core: Core,
    topic: Topic,
    phase: int,
    node: str,
    until_ms: int,
    leases: dict[int, int],
    *,
    must_log: bool = True,
    outcome: str = "",
    error: JobError | None = None,
) -> Commit:
    """Log the new phase of these jobs (seq -> lease id), if the topic has durable leases."""
    if not leases or not logs_leases(core, topic):
        return COMMITTED
    table = lease_table_of(topic)
    jobs = [(seq, lease_id, table.deliveries(seq)) for seq, lease_id in leases.items()]
    needs_sync = topic.durability is Durability.FSYNC
    topic.snapshot_record = None
    try:
        entry = Lease(phase, node, until_ms, jobs, outcome, error, table.failed_total)
        return core.log_change(topic, FrameType.LEASE, encode(entry), needs_sync=needs_sync)
    except (StorageFailed, LimitReached):
        if must_log:
            raise
        return COMMITTED


def log_known_leases(core: Core, topic: Topic, jobs: list[tuple[int, Job]]) -> Commit:
    """Log leases as they are, because with the next configuration they survive a restart."""
    groups: dict[tuple[int, str, int], list[tuple[int, int, int]]] = {}
    for lease in (stored_lease(seq, job) for seq, job in jobs):
        group = groups.setdefault((lease.phase, lease.node, lease.until_ms), [])
        group.append((lease.seq, lease.lease_id, lease.deliveries))
    now_ms = core.now_ms()
    return core.log_state(
        topic,
        FrameType.LEASE,
        (
            (0, now_ms, encode(Lease(phase, node, until_ms, leases)))
            for (phase, node, until_ms), leases in groups.items()
        ),
    )


def log_cancelled(core: Core, topic: Topic, jobs: list[tuple[int, Job]]) -> Commit:
    """Log which of these jobs are deleted when their lease ends."""
    cancelled = [seq for seq, job in jobs if job.is_cancelled]
    if not cancelled:
        return COMMITTED
    return core.log_state(topic, FrameType.JOBS, [(0, core.now_ms(), encode(Jobs([], cancelled)))])


def apply_lease(topic: Topic, entry: Lease, ts: int) -> None:
    """Replay one entry, which was logged at `ts`."""
    table = lease_table_of(topic)
    failed_total = max(table.failed_total, entry.failed_total)
    rate = topic.config.rate_limit
    for seq, lease_id, deliveries in entry.jobs:
        stored = StoredLease(seq, entry.phase, entry.node, lease_id, entry.until_ms, deliveries)
        if table.restore(stored, ts, entry.outcome, entry.error) and rate is not None:
            board = board_of(topic)
            key = board.options[seq].concurrency_key if seq in board.options else QUEUE_KEY
            if rate.by == "queue" or key:
                board.rates.note(QUEUE_KEY if rate.by == "queue" else key, ts)
    table.failed_total = failed_total


# --- Options ----------------------------------------------------------------------------------------------


def apply_jobs(topic: Topic, entry: Jobs, ts: int) -> None:
    """Replay options of jobs, and which of them were cancelled while leased."""
    board = board_of(topic)
    for seq, options in entry.jobs:
        known = board.unique.get(options.unique_key)
        appended_ms = known.ts if known is not None and known.seq == seq and known.ts else ts
        board.register(seq, options, appended_ms, COMMITTED)
    for seq in entry.cancelled:
        board.table.cancel(seq)


def log_options(core: Core, topic: Topic, jobs: list[tuple[int, JobOptions]]) -> Commit:
    """Log the options of jobs of a topic that is about to be logged."""
    return core.log_state(topic, FrameType.JOBS, [(0, core.now_ms(), encode(Jobs(jobs)))])


# --- Snapshots --------------------------------------------------------------------------------------------


def _keeps_jobs(topic: Topic) -> bool:
    return topic.durability is not Durability.EPHEMERAL or topic.storage.changes > 0


def stored_job_counts(topic: Topic) -> dict[str, Any]:
    """What a snapshot counts of a job queue, by the fields of `TopicRecord`."""
    table = topic.leases
    if table is None or not _keeps_jobs(topic):
        return {}
    return {
        "dead_lettered": table.dead_lettered,
        "done_total": table.done_total,
        "failed_total": table.failed_total,
    }


def stored_job_rows(topic: Topic) -> Iterator[tuple[str, list[Any]]]:
    """What else a snapshot stores of a job queue: a field of `TopicRecord`, and some of its items."""
    table = topic.leases
    if table is None or not _keeps_jobs(topic):
        return
    keeps_leases = has_durable_leases(topic.config) or topic.storage.changes > 0
    for jobs in table.slices():
        if keeps_leases:
            yield "leases", [stored_lease(seq, job) for seq, job in jobs]
            kept = [(seq, job) for seq, job in jobs if job.attempts or job.claimed_ms]
            yield "attempts", [(seq, job.claimed_ms, list(job.attempts)) for seq, job in kept]
        yield "cancelled", [seq for seq, job in jobs if job.is_cancelled]
    if table.board is not None:
        for text in table.board.stored_options():
            yield "job_options", [text]
        for keys in table.board.stored_unique_keys():
            yield "unique_keys", keys
        for claims in table.board.rates.stored_slices() if keeps_leases else ():
            yield "claims", claims


def restore_leases(topic: Topic, record: TopicRecord) -> None:
    """Apply the leases of a snapshot."""
    if wants_board(topic) or record.job_options or record.unique_keys:
        board = board_of(topic)
        board.restore(record.job_options, record.unique_keys)
        board.restore_claims(record.claims)
    if record.leases or record.dead_lettered or record.done_total or record.failed_total or record.cancelled:
        table = lease_table_of(topic)
        table.dead_lettered = record.dead_lettered
        table.done_total = record.done_total
        for stored in record.leases:
            table.restore(StoredLease(*stored))
        for seq, claimed_ms, attempts in record.attempts:
            table.restore_attempts(seq, claimed_ms, attempts)
        for seq in record.cancelled:
            table.cancel(seq)
        table.failed_total = record.failed_total


def clear_volatile_leases(topic: Topic) -> None:
    """Forget the leases if the configuration says that they do not survive."""
    if topic.leases is not None and not has_durable_leases(topic.config):
        topic.leases.clear()


def finish_lease_replay(topic: Topic) -> None:
    """End a replay: forget the leases of jobs that do not exist."""
    clear_volatile_leases(topic)
    if topic.leases is not None:
        topic.leases.drop_missing(topic.log.is_live)
        topic.leases.outcomes.clear()  # what the replay has counted was before the start
        if topic.leases.board is not None:
            topic.leases.board.finish_replay()
    if wants_board(topic):
        board_of(topic).reconfigure()
