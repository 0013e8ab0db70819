"""Claiming jobs and settling them: ack, nack, extend.

Owns the order of a pass (reclaimed jobs first, then fresh ones, dealt round-robin) and what is logged of it.
The state itself is in `lease_state`, the move to a dead-letter topic in `dead_letters`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

from everlog.api_types import TopicType
from everlog.errors import BatchTooLarge, Corrupt, InvalidRequest, NotAQueue, StorageFailed
from everlog.native.jobs import CORRUPT, DELETED, DONE, FULL, MISSING, live_seqs, render_jobs
from everlog.topics.commits import KEPT, Commit, failed, together
from everlog.topics.config import U64_MAX
from everlog.topics.core import Core
from everlog.topics.queueing.dead_letters import move_to_dead_letters
from everlog.topics.queueing.deleting import delete_jobs, lease_state_of
from everlog.topics.queueing.lease_events import log_leases, logs_leases
from everlog.topics.queueing.lease_state import LeaseState, Phase
from everlog.topics.reading import ColdRead
from everlog.topics.results import Claimed, Settled
from everlog.topics.topic import Topic

CLAIM_MAX: Final = 1000
SEQS_MAX: Final = 1000
NODE_BYTES_MAX: Final = 128
CLAIM_BYTES_MAX: Final = 8 << 20
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 86_400_000
# So many jobs at most are moved to the dead-letter topic by one pass; the next pass goes on.
MOVES_MAX: Final = 1000
_LEASE_ID: Final = re.compile(r"lease_([0-9a-fA-F]{1,16})")

Load = Callable[[int], bool]


class ClaimRequest(NamedTuple):
    """One claimer of a pass. `held`, if given, is kept equal to the leases of it that are still alive.

    It gets no more jobs than fit into `max_bytes`, but one in any case.
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
        raise InvalidRequest(f"the lease id {text!r} is none; use what the claim gave, or an empty string")
    return int(match[1], 16)


def check_queue(topic: Topic) -> LeaseState:
    """The leases of a topic; `NotAQueue` if it is a log."""
    if topic.config.type is not TopicType.QUEUE:
        raise NotAQueue(f"topic {topic.name!r} is a log; only a topic of type queue has jobs")
    return lease_state_of(topic)


def _swept(core: Core, topic: Topic, now_ms: int) -> LeaseState:
    """The leases, after everything that is over has ended."""
    state = check_queue(topic)
    core.sweep(topic, now_ms)
    if state.sweep(now_ms) and state.waiters:
        state.wake()
    return state


def expire(core: Core, topic: Topic) -> int | None:
    """See `Engine.expire_jobs`."""
    now_ms = core.now_ms()
    due_ms = _swept(core, topic, now_ms).next_due_ms()
    return None if due_ms is None else max(0, due_ms - now_ms)


# --- Claiming ---------------------------------------------------------------------------------------------


def claim(core: Core, topic: Topic, requests: Sequence[ClaimRequest], load: Load) -> list[Claimed]:
    """Serve all claimers in one pass. `load` brings a segment into memory, or raises `ColdRead`."""
    for request in requests:
        check_node(request.node)
        if request.maximum < 0 or not 0 <= (request.lease_ms or 0) <= U64_MAX:
            raise InvalidRequest(
                f"max is {request.maximum}, lease_ms {request.lease_ms}; both must be 0 or more"
            )
    now_ms = core.now_ms()
    state = _swept(core, topic, now_ms)
    if logs_leases(core, topic):
        core.writable_shard(topic)  # or refuse before anything has changed
    maxima = [min(request.maximum or 1, CLAIM_MAX) for request in requests]
    picked, poisoned = _pick(topic, state, sum(maxima))
    cold: list[Commit] = []
    try:
        moves = [move_to_dead_letters(core, topic, state, seq, load, cold) for seq in poisoned]
        answers = [
            _serve(core, topic, state, request, hand, now_ms, load, cold)
            for request, hand in zip(requests, _deal(picked, maxima), strict=True)
        ]
    except BaseException:
        for seq in (*picked, *poisoned):
            state.put_back(seq)  # no job may be out of the supply and in nobody's hands
        raise
    ready = state.ready(topic.count)
    results = []
    for jobs, leases, commit in answers:
        incomplete = not jobs and bool(cold)
        commits = cold[:1] if incomplete else [commit, *moves]
        results.append(Claimed(jobs, leases, ready, together(commits), incomplete))
    return results


def _pick(topic: Topic, state: LeaseState, wanted: int) -> tuple[list[int], list[int]]:
    """Take up to `wanted` jobs from the supply; beside them those that were delivered too often."""
    config = topic.config
    most = config.max_deliveries if config.dead_letter is not None else 0
    picked: list[int] = []
    poisoned: list[int] = []
    while len(picked) < wanted and len(poisoned) < MOVES_MAX:
        seq = state.pop_reclaimed()
        if seq is None:
            break
        (poisoned if most and state.deliveries(seq) >= most else picked).append(seq)
    while len(picked) < wanted and len(poisoned) < MOVES_MAX:
        found = live_seqs(topic.log, state.cursor, topic.visible, wanted - len(picked))
        if not found:
            state.cursor = max(state.cursor, topic.visible + 1)
            break
        state.cursor = found[-1] + 1
        picked += state.unknown(found)
    return picked, poisoned


def _deal(picked: list[int], maxima: list[int]) -> list[list[int]]:
    """Share jobs round-robin, each claimer getting up to its maximum."""
    if len(maxima) == 1:
        return [picked]
    hands: list[list[int]] = [[] for _ in maxima]
    supply = iter(picked)
    open_hands = list(range(len(maxima)))
    while open_hands:
        for place in tuple(open_hands):
            seq = next(supply, None)
            if seq is None:
                return hands
            hands[place].append(seq)
            if len(hands[place]) == maxima[place]:
                open_hands.remove(place)
    return hands


def _serve(
    core: Core,
    topic: Topic,
    state: LeaseState,
    request: ClaimRequest,
    hand: list[int],
    now_ms: int,
    load: Load,
    cold: list[Commit],
) -> tuple[list[bytes], dict[int, int], Commit]:
    """Lease one claimer's jobs, in the order of seq, and render them."""
    if not hand:
        return [], {}, KEPT
    hand.sort()  # fresh jobs that were put back may be lower than those that come back
    lease_ms = topic.config.lease_ms if request.lease_ms is None else request.lease_ms
    deadline_ms = now_ms + min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)
    first_lease_id = core.take_lease_ids(len(hand))
    deliveries = state.next_deliveries(hand)
    jobs: list[bytes] = []
    leases: dict[int, int] = {}
    at, outcome, room = 0, DONE, request.max_bytes
    while at < len(hand):
        texts, outcome, source = render_jobs(
            topic.log, core.sources, hand, deliveries, at, first_lease_id, deadline_ms, room
        )
        jobs += texts
        leases.update(zip(hand[at : at + len(texts)], count(first_lease_id + at), strict=False))
        at += len(texts)
        room -= min(room, sum(map(len, texts)))
        if at == len(hand):
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
        _pass_over(topic, state, hand[at], outcome, deadline_ms)
        at += 1
    for seq in hand[at:]:
        state.put_back(seq)
    if not jobs and outcome == CORRUPT:
        return jobs, leases, failed(_corrupt(topic, hand[-1]))
    state.give(leases, request.node, deadline_ms, request.held)
    try:
        commit = log_leases(core, topic, Phase.LEASED, request.node, deadline_ms, leases)
    except StorageFailed as error:
        commit = failed(error)
    if commit is not KEPT:
        commit.on_done(lambda done: _take_back(state, leases, done))
    return jobs, leases, commit


def _corrupt(topic: Topic, seq: int) -> Corrupt:
    return Corrupt(
        f"job {seq} of queue {topic.name!r} does not match its checksum and is set aside; "
        f"run `everlog verify` on the stopped data directory"
    )


def _pass_over(topic: Topic, state: LeaseState, seq: int, outcome: int, until_ms: int) -> None:
    """Go on without a job that cannot be read."""
    if outcome == DELETED:
        topic.kill_range(seq, seq + 1)  # its mark in the segment was lost from the index
    else:
        state.set_aside(seq, until_ms)


def _take_back(state: LeaseState, leases: dict[int, int], commit: Commit) -> None:
    """Leases that could not be logged were given to nobody."""
    if commit.error is not None:
        for seq, lease_id in leases.items():
            state.take_back(seq, lease_id)
        state.wake()


# --- Settling ---------------------------------------------------------------------------------------------


def _match(
    state: LeaseState,
    node: str,
    seqs: Sequence[int],
    fences: list[int | None],
    each: Callable[[int], None],
) -> tuple[list[int], list[int]]:
    """Do `each` to the jobs that this node holds; return those and the others, as they were asked for."""
    held: list[int] = []
    skipped: list[int] = []
    for seq, fence in zip(seqs, fences, strict=True):
        if state.holds(seq, node, fence):
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
    topic: Topic, state: LeaseState, done: list[int], skipped: list[int], commit: Commit, deadline_ms: int = 0
) -> Settled:
    return Settled(done, skipped, state.ready(topic.count), state.leased, commit, deadline_ms)


def check_settling(node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None) -> list[int | None]:
    """Refuse what no queue can do anything with."""
    check_node(node)
    return _fences(seqs, lease_ids)


def ack(core: Core, topic: Topic, node: str, seqs: Sequence[int], fences: list[int | None]) -> Settled:
    """See `Engine.ack`."""
    state = _swept(core, topic, core.now_ms())
    is_logged = core.logs_changes(topic)
    failure: StorageFailed | None = None
    try:
        if is_logged:
            core.writable_shard(topic)  # a full queue of the log refuses before anything has changed
    except StorageFailed as error:
        failure = error
    acked, skipped = state.take(node, seqs, fences)
    if not acked:
        return _settled(topic, state, acked, skipped, KEPT)
    if failure is None:
        try:
            commit = delete_jobs(core, topic, state, sorted(acked))
        except StorageFailed as error:
            failure = error
    if failure is not None:
        for seq in acked:
            state.stay(seq)
        state.wake()
        raise failure
    return _settled(topic, state, acked, skipped, commit)


def nack(
    core: Core, topic: Topic, node: str, seqs: Sequence[int], fences: list[int | None], delay_ms: int
) -> Settled:
    """See `Engine.nack`."""
    now_ms = core.now_ms()
    delay_ms = min(delay_ms, LEASE_MS_MAX)
    state = _swept(core, topic, now_ms)
    if logs_leases(core, topic):
        core.writable_shard(topic)
    nacked, skipped = _match(state, node, seqs, fences, lambda seq: state.release(seq, now_ms, delay_ms))
    leases = {seq: state.jobs[seq].lease_id for seq in nacked}
    phase = Phase.DELAYED if delay_ms else Phase.READY
    commit = log_leases(core, topic, phase, node, now_ms + delay_ms, leases)
    if nacked and state.waiters:
        state.wake()
    return _settled(topic, state, nacked, skipped, commit)


def extend(
    core: Core, topic: Topic, node: str, seqs: Sequence[int], fences: list[int | None], lease_ms: int
) -> Settled:
    """See `Engine.extend`."""
    now_ms = core.now_ms()
    deadline_ms = now_ms + min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)
    state = _swept(core, topic, now_ms)
    if logs_leases(core, topic):
        core.writable_shard(topic)
    extended, skipped = _match(state, node, seqs, fences, lambda _: None)
    state.extend(extended, deadline_ms)
    leases = {seq: state.jobs[seq].lease_id for seq in extended}
    commit = log_leases(core, topic, Phase.LEASED, node, deadline_ms, leases)
    return _settled(topic, state, extended, skipped, commit, deadline_ms)


def release(core: Core, topic: Topic, node: str, leases: dict[int, int]) -> None:
    """End exactly these leases (seq -> lease id) as far as they are still alive; who held them is gone."""
    state = check_queue(topic)
    now_ms = core.now_ms()
    ended: dict[int, int] = {}
    for seq, lease_id in leases.items():
        if state.holds(seq, node, lease_id):
            ended[seq] = lease_id
    for seq in ended:
        state.release(seq, now_ms)
    # If that cannot be logged, a restart brings the leases back and they end at their deadlines.
    log_leases(core, topic, Phase.READY, node, now_ms, ended, must_log=False)
    if ended:
        state.wake()
