"""Change many jobs by one call: cancel, retry, purge.

Owns what each does to a job in each state, and in which slices. Which jobs are meant is in `job_states`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from everlog.api_types import Durability
from everlog.errors import BatchTooLarge, InvalidRequest
from everlog.topics.commits import COMMITTED, Commit, together
from everlog.topics.config import U64_MAX
from everlog.topics.filters import Filter
from everlog.topics.jobs.claims import SEQS_MAX
from everlog.topics.jobs.job_states import Selection, look, state_of
from everlog.topics.jobs.lease_log import delete_jobs, lease_table_of, log_leases
from everlog.topics.jobs.lease_table import CANCELLED, DELAYED, LEASED, READY
from everlog.topics.jobs.steps import Load, Steps, Turn, check_there
from everlog.topics.storage.control import Jobs, encode
from everlog.topics.storage.layout import FrameType

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.topic import Topic

_STEP_JOBS: Final = 500


class JobsChanged(NamedTuple):
    """How many jobs were changed."""

    changed: int
    commit: Commit


Change = Callable[["Core", "Topic", list[int]], JobsChanged]


def check_selection(seqs: Sequence[int] | None, selection: Filter | None) -> None:
    """Refuse a call that names no jobs, or both by seq and by filter."""
    if (seqs is None) == (selection is None):
        raise InvalidRequest("name jobs by seqs or by filter, one of them")
    if seqs is None:
        return
    if len(seqs) > SEQS_MAX:
        raise BatchTooLarge(f"{len(seqs)} seqs in one call; at most {SEQS_MAX} are allowed, split it")
    wrong = next((seq for seq in seqs if not 0 <= seq <= U64_MAX), None)
    if wrong is not None:
        raise InvalidRequest(f"seq {wrong} is not an unsigned 64-bit number")


def change(
    core: Core, topic: Topic, step: Change, seqs: Sequence[int] | None, selection: Filter | None, load: Load
) -> Steps[JobsChanged]:
    """Change the jobs `seqs`, or all that there are now and that pass the filter."""
    if seqs is not None:
        known = sorted({seq for seq in seqs if 0 < seq <= topic.visible and topic.log.is_live(seq)})
        return step(core, topic, known)
    turn = Turn(core.clock)
    after_seq, end_seq = 0, topic.visible
    count, commits = 0, [COMMITTED]
    while after_seq < end_seq:
        rows, after_seq = yield from look(
            core, topic, Selection(filter=selection), load, after_seq, end_seq, limit=_STEP_JOBS
        )
        changed = step(core, topic, [row.seq for row in rows])
        count += changed.changed
        commits = [commit for commit in (*commits, changed.commit) if not commit.done or commit.error]
        if turn.is_over:
            yield None
            turn.begin()
            check_there(topic)
    return JobsChanged(count, together(commits))


def count_only(core: Core, topic: Topic, seqs: list[int]) -> JobsChanged:
    """Change nothing."""
    table = lease_table_of(topic)
    return JobsChanged(sum(state_of(table, seq) is not None for seq in seqs), COMMITTED)


def delete(core: Core, topic: Topic, seqs: list[int]) -> JobsChanged:
    """Delete jobs, leased or not; a later ack of such a lease is skipped."""
    table = lease_table_of(topic)
    going = [seq for seq in seqs if state_of(table, seq) is not None]
    if not going:
        return JobsChanged(0, COMMITTED)
    if core.logs_changes(topic):
        core.writable_shard(topic)  # raises before anything has changed
    for seq in going:
        table.begin_delete(seq)
    return JobsChanged(len(going), delete_jobs(core, topic, table, going))


def cancel(core: Core, topic: Topic, seqs: list[int]) -> JobsChanged:
    """Delete jobs; a leased one when its lease ends, unless it is acknowledged."""
    table = lease_table_of(topic)
    leased = [seq for seq in seqs if seq in table.jobs and table.jobs[seq].phase == LEASED]
    new = [seq for seq in leased if not table.jobs[seq].is_cancelled]
    commit = COMMITTED
    if new and core.logs_changes(topic):
        needs_sync = topic.durability is Durability.FSYNC
        commit = core.log_change(topic, FrameType.JOBS, encode(Jobs([], new)), needs_sync=needs_sync)
    for seq in new:
        table.cancel(seq)
    topic.snapshot_record = None
    deleted = delete(core, topic, sorted(set(seqs).difference(leased)))
    if deleted.changed:
        table.count_outcome(CANCELLED, deleted.changed)
    return JobsChanged(deleted.changed + len(leased), together([commit, deleted.commit]))


def retry(core: Core, topic: Topic, seqs: list[int]) -> JobsChanged:
    """Make delayed jobs due."""
    table, board = lease_table_of(topic), lease_table_of(topic).board
    returned = [seq for seq in seqs if seq in table.jobs and table.jobs[seq].phase == DELAYED]
    fresh = [] if board is None else [seq for seq in seqs if seq in board.delayed]
    commits: list[Commit] = []
    if fresh and board is not None:
        changed = [(seq, board.due_now(seq)) for seq in fresh]
        if core.logs_changes(topic):
            needs_sync = topic.durability is Durability.FSYNC
            commits.append(
                core.log_change(topic, FrameType.JOBS, encode(Jobs(changed)), needs_sync=needs_sync)
            )
        for seq, options in changed:
            board.set_options(seq, options)
            board.make_due(seq)
    if returned:
        leases = {seq: table.jobs[seq].lease_id for seq in returned}
        commits.append(log_leases(core, topic, READY, "", core.now_ms(), leases))
        for seq in returned:
            table.make_due(seq)
    topic.snapshot_record = None
    if fresh or returned:
        table.wake()
    return JobsChanged(len(fresh) + len(returned), together(commits))
