"""Claim jobs, and end their leases: ack, nack, extend.

Owns how a claim is served and what it logs. Without a board its order is reclaimed jobs first, then fresh
ones; otherwise `job_board` decides it. The state of leases is in `lease_table`, the move to a dead-letter
topic in `dead_letters`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from everlog.api_types import TopicType
from everlog.errors import (
    BatchTooLarge,
    Corrupt,
    InvalidRequest,
    LimitReached,
    NotAQueue,
    StorageFailed,
)
from everlog.job_types import JobError, Retry
from everlog.native.topics.log import CORRUPT, DELETED, DONE, FULL, MISSING, live_seqs, render_jobs
from everlog.topics.commits import COMMITTED, Commit, failed, together
from everlog.topics.config import U64_MAX
from everlog.topics.core import Core
from everlog.topics.jobs.dead_letters import move_to_dead_letters
from everlog.topics.jobs.lease_log import delete_jobs, lease_table_of, log_leases, logs_leases
from everlog.topics.jobs.lease_table import (
    CANCELLED,
    DELAYED,
    LEASED,
    NACKED,
    READY,
    RELEASED,
    Job,
    LeaseTable,
)
from everlog.topics.jobs.options import with_members
from everlog.topics.reading import ColdRead
from everlog.topics.results import Claimed, Settled
from everlog.topics.retention import sweep
from everlog.topics.storage.control import JobOptions
from everlog.topics.topic import Topic

CLAIM_MAX: Final = 1000
SEQS_MAX: Final = 1000
NODE_BYTES_MAX: Final = 128
CLAIM_BYTES_MAX: Final = 8 << 20
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 86_400_000
# Jobs moved to the dead-letter topic by one claim; the next claim moves more.
MOVES_MAX: Final = 1000
ERROR_BYTES_MAX: Final = 8192
_LEASE_ID: Final = re.compile(r"lease_([0-9a-fA-F]{1,16})")

Load = Callable[[int], bool]


class ClaimRequest(NamedTuple):
    """What one claimer asks for. `held`, if given, always equals those of its leases that are still running.

    The claimer gets no more jobs than fit into `max_bytes`, but at least one.
    """

    node: str
    maximum: int
    lease_ms: int | None = None
    held: dict[int, int] | None = None
    max_bytes: int = CLAIM_BYTES_MAX


def check_node(node: str) -> None:
    """Refuse a node that is empty or too long."""
    if not 1 <= len(node.encode("utf-8", "surrogatepass")) <= NODE_BYTES_MAX:
        raise InvalidRequest(f"node is {node!r}; it must have 1 to {NODE_BYTES_MAX} bytes")


def lease_id_of(text: str) -> int | None:
    """Read a fence; None for the empty one."""
    if not text:
        return None
    match = _LEASE_ID.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text!r} is not a lease id; use the one from the claim, or an empty string")
    return int(match[1], 16)


def check_queue(topic: Topic) -> LeaseTable:
    """The leases of a topic; `NotAQueue` if it is a log."""
    if topic.config.type is not TopicType.QUEUE:
        raise NotAQueue(f"topic {topic.name!r} is a log; only a topic of type queue has jobs")
    return lease_table_of(topic)


def _swept(core: Core, topic: Topic, now_ms: int) -> LeaseTable:
    """The leases, after ending every lease and delay whose time is over."""
    table = check_queue(topic)
    sweep(core, topic, now_ms)
    if table.sweep(now_ms) and table.waiters:
        table.wake()
    if table.cancelled:
        _delete_cancelled(core, topic, table)
    return table


def _delete_cancelled(core: Core, topic: Topic, table: LeaseTable) -> None:
    """Delete jobs that were cancelled while they were leased; what fails is tried by the next call."""
    seqs, table.cancelled = sorted(table.cancelled), []
    # Aborted, they are reclaimed, which notes them as cancelled again.
    with suppress(StorageFailed, LimitReached):
        delete_jobs(core, topic, table, seqs)
        table.count_outcome(CANCELLED, len(seqs))


def expire(core: Core, topic: Topic) -> int | None:
    """End the leases and delays that are over; return the ms until the next one ends, None if none runs."""
    now_ms = core.now_ms()
    due_ms = _swept(core, topic, now_ms).next_due_ms(now_ms, topic.count)
    return None if due_ms is None else max(0, due_ms - now_ms)


# --- Claiming ---------------------------------------------------------------------------------------------


def claim(core: Core, topic: Topic, requests: Sequence[ClaimRequest], load: Load) -> list[Claimed]:
    """Lease jobs to all claimers at once. `load` brings a segment into memory, or raises `ColdRead`."""
    for request in requests:
        check_node(request.node)
        if request.maximum < 0 or not 0 <= (request.lease_ms or 0) <= U64_MAX:
            raise InvalidRequest(
                f"max is {request.maximum}, lease_ms {request.lease_ms}; both must be 0 or more"
            )
    now_ms = core.now_ms()
    table = _swept(core, topic, now_ms)
    if logs_leases(core, topic):
        core.writable_shard(topic)  # raises before anything has changed
    maxima = [min(request.maximum or 1, CLAIM_MAX) for request in requests]
    board = table.board
    picked: list[int]
    poisoned: list[int]
    if topic.config.paused:
        picked, poisoned = [], []
    elif board is None:
        picked, poisoned = _pick(topic, table, sum(maxima))
    else:
        picked, poisoned = board.pick(sum(maxima), MOVES_MAX, now_ms)
    cold: list[Commit] = []
    try:
        moves = [move_to_dead_letters(core, topic, table, seq, load, cold) for seq in poisoned]
        answers = [
            _lease(core, topic, table, request, share, now_ms, load, cold)
            for request, share in zip(requests, _share(picked, maxima), strict=True)
        ]
    except BaseException:
        for seq in (*picked, *poisoned):
            table.put_back(seq)  # no job may be neither claimable nor leased
        if board is not None:
            board.end_claim([])
        raise
    if board is not None:
        board.end_claim([leases for _, leases, _ in answers])
        if board.is_unfinished:
            cold.append(COMMITTED)
    ready = table.ready(topic.count)
    results = []
    for jobs, leases, commit in answers:
        incomplete = not jobs and bool(cold)
        commits = cold[:1] if incomplete else [commit, *moves]
        results.append(Claimed(jobs, leases, ready, together(commits), incomplete))
    return results


def _pick(topic: Topic, table: LeaseTable, wanted: int) -> tuple[list[int], list[int]]:
    """Take up to `wanted` jobs, and apart from them those that were delivered too often."""
    config = topic.config
    most = config.max_deliveries if config.dead_letter is not None else 0
    picked: list[int] = []
    poisoned: list[int] = []
    while len(picked) < wanted and len(poisoned) < MOVES_MAX:
        seq = table.pop_reclaimed()
        if seq is None:
            break
        (poisoned if most and table.deliveries(seq) >= most else picked).append(seq)
    while len(picked) < wanted and len(poisoned) < MOVES_MAX:
        found = live_seqs(topic.log, table.cursor, topic.visible, wanted - len(picked))
        if not found:
            table.cursor = max(table.cursor, topic.visible + 1)
            break
        table.cursor = found[-1] + 1
        picked += table.unleased(found)
    return picked, poisoned


def _share(picked: list[int], maxima: list[int]) -> list[list[int]]:
    """Share jobs round-robin, each claimer getting up to its maximum."""
    if len(maxima) == 1:
        return [picked]
    shares: list[list[int]] = [[] for _ in maxima]
    supply = iter(picked)
    unfilled = list(range(len(maxima)))
    while unfilled:
        for claimer in tuple(unfilled):
            seq = next(supply, None)
            if seq is None:
                return shares
            shares[claimer].append(seq)
            if len(shares[claimer]) == maxima[claimer]:
                unfilled.remove(claimer)
    return shares


def _lease(
    core: Core,
    topic: Topic,
    table: LeaseTable,
    request: ClaimRequest,
    share: list[int],
    now_ms: int,
    load: Load,
    cold: list[Commit],
) -> tuple[list[bytes], dict[int, int], Commit]:
    """Lease one claimer's jobs, in the order of the claim, and render them."""
    if not share:
        return [], {}, COMMITTED
    if table.board is None:
        share.sort()  # fresh jobs that were put back may be lower than reclaimed ones
    lease_ms = topic.config.lease_ms if request.lease_ms is None else request.lease_ms
    deadline_ms = now_ms + min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)
    first_lease_id = core.take_lease_ids(len(share))
    deliveries = table.next_deliveries(share)
    jobs: list[bytes] = []
    leases: dict[int, int] = {}
    at, outcome, room = 0, DONE, request.max_bytes
    while at < len(share):
        texts, outcome, source = render_jobs(
            topic.log, core.sources, share, deliveries, at, first_lease_id, deadline_ms, room
        )
        jobs += texts
        leases.update(zip(share[at : at + len(texts)], count(first_lease_id + at), strict=False))
        at += len(texts)
        room -= min(room, sum(map(len, texts)))
        if at == len(share):
            break
        if outcome == FULL or (jobs and not room):
            break
        if outcome == MISSING:
            try:
                load(source)
                continue
            except ColdRead as read:
                cold.append(read.commit)
                break
        _skip_unreadable(topic, table, share[at], outcome, deadline_ms)
        at += 1
    for seq in share[at:]:
        table.put_back(seq)
    if not jobs and outcome == CORRUPT:
        return jobs, leases, failed(_corrupt(topic, share[-1]))
    if table.board is not None:
        jobs = _with_options(table.board.options, leases, jobs)
    table.lease(leases, request.node, deadline_ms, request.held, now_ms)
    try:
        commit = log_leases(core, topic, LEASED, request.node, deadline_ms, leases)
    except StorageFailed as error:
        commit = failed(error)
    if commit is not COMMITTED:
        commit.on_done(lambda done: _cancel_unlogged(table, leases, done))
    return jobs, leases, commit


def _with_options(options: dict[int, JobOptions], leases: dict[int, int], jobs: list[bytes]) -> list[bytes]:
    """The jobs with the options that they were appended with."""
    return [
        job if (found := options.get(seq)) is None else with_members(job, found)
        for seq, job in zip(leases, jobs, strict=True)
    ]


def _corrupt(topic: Topic, seq: int) -> Corrupt:
    return Corrupt(
        f"job {seq} of job queue {topic.name!r} does not match its checksum and is deferred; "
        f"run `everlog verify` on the stopped data directory"
    )


def _skip_unreadable(topic: Topic, table: LeaseTable, seq: int, outcome: int, until_ms: int) -> None:
    """Delete or defer a job that cannot be read."""
    if outcome == DELETED:
        topic.kill_range(seq, seq + 1)  # the segment marks it as deleted, the index did not
    else:
        table.defer(seq, until_ms)


def _cancel_unlogged(table: LeaseTable, leases: dict[int, int], commit: Commit) -> None:
    """Cancel leases that could not be logged: their claimer never got them."""
    if commit.error is not None:
        for seq, lease_id in leases.items():
            table.cancel_lease(seq, lease_id)
        table.wake()


# --- Ending leases ----------------------------------------------------------------------------------------


def _match(
    table: LeaseTable,
    node: str,
    seqs: Sequence[int],
    fences: list[int | None],
    now_ms: int,
    each: Callable[[int], None],
) -> tuple[list[int], list[int]]:
    """Call `each` with the jobs that this node holds; return those and the others, in the order asked for."""
    held: list[int] = []
    skipped: list[int] = []
    for seq, fence in zip(seqs, fences, strict=True):
        if table.holds(seq, node, fence, now_ms):
            each(seq)
            held.append(seq)
        else:
            skipped.append(seq)
    return held, skipped


def _fences(seqs: Sequence[int], lease_ids: Sequence[str] | None) -> list[int | None]:
    """Check the shape of a request; return its fences."""
    if len(seqs) > SEQS_MAX:
        raise BatchTooLarge(f"{len(seqs)} seqs in one call; at most {SEQS_MAX} are allowed, split it")
    if seqs and not 0 <= min(seqs) <= max(seqs) <= U64_MAX:
        wrong = next(seq for seq in seqs if not 0 <= seq <= U64_MAX)
        raise InvalidRequest(f"seq {wrong} is not an unsigned 64-bit number")
    if lease_ids is None:
        return [None] * len(seqs)
    if len(lease_ids) != len(seqs):
        raise InvalidRequest(
            f"there are {len(lease_ids)} lease_ids for {len(seqs)} seqs; send one for each, or none at all"
        )
    return [lease_id_of(text) for text in lease_ids]


def _settled(
    topic: Topic, table: LeaseTable, done: list[int], skipped: list[int], commit: Commit, deadline_ms: int = 0
) -> Settled:
    return Settled(done, skipped, table.ready(topic.count), table.leased, commit, deadline_ms)


def check_settling(node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None) -> list[int | None]:
    """Check the arguments of ack, nack and extend; return the fences."""
    check_node(node)
    return _fences(seqs, lease_ids)


def ack(core: Core, topic: Topic, node: str, seqs: Sequence[int], fences: list[int | None]) -> Settled:
    """Delete the jobs that this node holds and that the fences name."""
    now_ms = core.now_ms()
    table = _swept(core, topic, now_ms)
    is_logged = core.logs_changes(topic)
    failure: StorageFailed | None = None
    try:
        if is_logged:
            core.writable_shard(topic)  # a full log buffer raises before anything has changed
    except StorageFailed as error:
        failure = error
    acked, skipped = table.begin_ack(node, seqs, fences, now_ms)
    if not acked:
        return _settled(topic, table, acked, skipped, COMMITTED)
    if failure is None:
        try:
            commit = delete_jobs(core, topic, table, sorted(acked), are_done=True)
        except StorageFailed as error:
            failure = error
    if failure is not None:
        for seq in acked:
            table.abort_delete(seq)
        table.wake()
        raise failure
    return _settled(topic, table, acked, skipped, commit)


def nack(
    core: Core,
    topic: Topic,
    node: str,
    seqs: Sequence[int],
    fences: list[int | None],
    delay_ms: int | None = None,
    error: JobError | None = None,
) -> Settled:
    """End leases; their jobs are claimable again, at once or after a delay, by default that of `retry`."""
    now_ms = core.now_ms()
    table = _swept(core, topic, now_ms)
    if logs_leases(core, topic):
        core.writable_shard(topic)
    error = None if error is None else _bounded(error)
    retry = topic.config.retry if delay_ms is None else None
    groups: dict[int, dict[int, int]] = {}  # by delay: seq -> lease id

    def release(seq: int) -> None:
        job = table.jobs[seq]
        delay = min(delay_ms or 0, LEASE_MS_MAX) if retry is None else retry_delay_ms(retry, job)
        groups.setdefault(delay, {})[seq] = job.lease_id
        table.release(seq, now_ms, delay, NACKED, error)

    nacked, skipped = _match(table, node, seqs, fences, now_ms, release)
    commits = [
        log_leases(
            core,
            topic,
            DELAYED if delay else READY,
            node,
            now_ms + delay,
            leases,
            outcome=NACKED,
            error=error,
        )
        for delay, leases in groups.items()
    ]
    if table.cancelled:
        _delete_cancelled(core, topic, table)
    if nacked and table.waiters:
        table.wake()
    return _settled(topic, table, nacked, skipped, together(commits))


def retry_delay_ms(retry: Retry, job: Job) -> int:
    """How long a job waits after this delivery; the share of chance in it follows from the lease."""
    delay = min(retry.base_ms * retry.factor ** min(job.deliveries - 1, 1000), retry.max_ms)
    chance = xxh3_64_intdigest(job.lease_id.to_bytes(8, "little")) / 2**64
    return int(delay * (1 - retry.jitter * chance))


def _bounded(error: JobError) -> JobError:
    """An error that is cut to what is kept of it: first the trace, then the message."""
    left = ERROR_BYTES_MAX
    texts = []
    for text in (error.type, error.message, error.trace):
        kept = text.encode("utf-8", "replace")[:left]
        left -= len(kept)
        texts.append(kept.decode("utf-8", "ignore"))
    return JobError(*texts)


def extend(
    core: Core, topic: Topic, node: str, seqs: Sequence[int], fences: list[int | None], lease_ms: int
) -> Settled:
    """Move the deadline of leases to `lease_ms` from now."""
    now_ms = core.now_ms()
    deadline_ms = now_ms + min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)
    table = _swept(core, topic, now_ms)
    if logs_leases(core, topic):
        core.writable_shard(topic)
    extended, skipped = _match(table, node, seqs, fences, now_ms, lambda _: None)
    table.extend(extended, deadline_ms)
    leases = {seq: table.jobs[seq].lease_id for seq in extended}
    commit = log_leases(core, topic, LEASED, node, deadline_ms, leases)
    return _settled(topic, table, extended, skipped, commit, deadline_ms)


def release(core: Core, topic: Topic, node: str, leases: dict[int, int]) -> None:
    """End those of these leases (seq -> lease id) that still run; their holder is disconnected."""
    table = check_queue(topic)
    now_ms = core.now_ms()
    ended: dict[int, int] = {}
    for seq, lease_id in leases.items():
        if table.holds(seq, node, lease_id):
            ended[seq] = lease_id
    for seq in ended:
        table.release(seq, now_ms)
    # If that cannot be logged, a restart brings the leases back and they end at their deadlines.
    log_leases(core, topic, READY, node, now_ms, ended, must_log=False, outcome=RELEASED)
    if table.cancelled:
        _delete_cancelled(core, topic, table)
    if ended:
        table.wake()
