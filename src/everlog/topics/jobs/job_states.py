"""What is told about jobs: the state of each, how many there are in each state, and pages of them.

Owns these answers and how records are looked through for them, in slices. Changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from everlog.errors import Corrupt, JobNotFound
from everlog.job_types import JobAttempt, JobCounts, JobState
from everlog.native.topics.log import live_seqs
from everlog.topics.filters import Filter, rows_of
from everlog.topics.jobs.lease_log import lease_table_of
from everlog.topics.jobs.lease_table import DELAYED, DELETING, LEASED, LeaseTable
from everlog.topics.jobs.options import NO_OPTIONS
from everlog.topics.jobs.steps import Load, Steps, Turn, check_there, loaded

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.topic import Topic

StateName = Literal["ready", "delayed", "leased", "failed"]
PAGE_LOOKS_MAX: Final = 100_000
"""Jobs that are looked at for one page; its cursor leads on."""
_STEP_JOBS: Final = 500
_STEP_BYTES: Final = 256 * 1024
_NO_TEXT: Final = msgspec.Raw(b"")


_ROW_NAMES: Final = {"seq": "$seq", "ts": "$ts", "tag": "$tag", "node": "$node"}


class StoredRow(msgspec.Struct, frozen=True, rename=_ROW_NAMES):
    """A record as the kernel renders it, with data and meta as text."""

    seq: int
    ts: int
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = _NO_TEXT
    data: msgspec.Raw = _NO_TEXT


_rows: Final = msgspec.json.Decoder(list[StoredRow])


class Selection(NamedTuple):
    """Which jobs are meant; None: any."""

    state: StateName | None = None
    tag: str | None = None
    key: str | None = None
    filter: Filter | None = None

    @property
    def needs_data(self) -> bool:
        """Whether records have to be read whole to decide."""
        return self.filter is not None and not self.filter.is_tag_only


class JobPage(NamedTuple):
    """Some jobs by seq, and the seq behind which the next page begins; 0: there is none."""

    jobs: list[JobState]
    counts: JobCounts
    after_seq: int


def state_of(table: LeaseTable, seq: int) -> StateName | None:
    """The state of a job that exists; None while it is being deleted."""
    job = table.jobs.get(seq)
    if job is None:
        return "delayed" if table.board is not None and seq in table.board.delayed else "ready"
    if job.phase == LEASED:
        return "leased"
    if job.phase == DELETING:
        return None
    if job.is_failed:
        return "failed"
    return "delayed" if job.phase == DELAYED else "ready"


def counts_of(topic: Topic) -> JobCounts:
    """How many jobs there are in each state."""
    table = lease_table_of(topic)
    return JobCounts(
        ready=table.ready(topic.count) - (table.failed - table.failed_delayed),
        delayed=table.delayed - table.failed_delayed,
        leased=table.leased,
        failed=table.failed,
        done_total=table.done_total,
        failed_total=table.failed_total,
        dead_lettered=table.dead_lettered,
    )


def job_state(
    topic: Topic, row: StoredRow, *, with_data: bool, with_attempts: bool = False
) -> JobState | None:
    """What is told about one job."""
    table = lease_table_of(topic)
    state = state_of(table, row.seq)
    if state is None:
        return None
    job = table.jobs.get(row.seq)
    board = table.board
    options = NO_OPTIONS if board is None else board.options.get(row.seq, NO_OPTIONS)
    is_leased = job is not None and job.phase == LEASED
    run_at = job.until_ms if job is not None and job.phase == DELAYED else options.run_at
    more: dict[str, Any] = {}
    if with_data:
        more["data"] = row.data
        if bytes(row.meta):
            more["meta"] = row.meta
    if with_attempts:
        attempts = () if job is None else job.attempts
        more["attempts"] = [JobAttempt(*attempt) for attempt in attempts]
    return JobState(
        seq=row.seq,
        ts_ms=row.ts,
        state=state,
        deliveries=0 if job is None else job.deliveries,
        priority=options.priority,
        run_at=run_at or None,
        node=job.node if is_leased and job is not None else None,
        lease_id=f"lease_{job.lease_id:x}" if is_leased and job is not None else None,
        deadline=job.until_ms if is_leased and job is not None else None,
        last_error=table.last_error(row.seq),
        unique_key=options.unique_key or None,
        concurrency_key=options.concurrency_key or None,
        max_deliveries=options.max_deliveries,
        tag=row.tag,
        **more,
    )


# --- Looking through jobs ---------------------------------------------------------------------------------


def look(
    core: Core,
    topic: Topic,
    selection: Selection,
    load: Load,
    after_seq: int,
    end_seq: int,
    *,
    with_data: bool = False,
    limit: int = _STEP_JOBS,
) -> Steps[tuple[list[StoredRow], int]]:
    """Look at the next few jobs behind `after_seq`: those that match, and how far it came."""
    check_there(topic)
    with_all = with_data or selection.needs_data
    while True:
        seqs = live_seqs(topic.log, after_seq + 1, end_seq, limit)
        if not seqs:
            return [], end_seq
        found = topic.log.render(
            core.sources, after_seq, seqs[-1], limit, _STEP_BYTES, (), True, with_all, with_all
        )
        if not found.missing_source:
            break
        if found.delivered:
            break
        yield from loaded(load, found.missing_source)
        check_there(topic)
    if found.corrupt_seq and not found.delivered:
        raise Corrupt(
            f"job {found.corrupt_seq} of job queue {topic.name!r} does not match its checksum; "
            f"run `everlog verify` on the stopped data directory"
        )
    came_to = seqs[-1] if found.delivered == len(seqs) else max(found.next_from_seq, after_seq)
    rows = _rows.decode(found.json) if found.delivered else []
    return _selected(topic, selection, rows, found.json), came_to


def _selected(topic: Topic, selection: Selection, rows: list[StoredRow], text: bytes) -> list[StoredRow]:
    if selection.filter is not None:
        matches = selection.filter.matches
        rows = [row for row, plain in zip(rows, rows_of(text) if rows else [], strict=True) if matches(plain)]
    if selection.tag is not None:
        rows = [row for row in rows if row.tag == selection.tag]
    if selection.key is not None:
        rows = [row for row in rows if _has_key(topic, row.seq, selection.key)]
    if selection.state is not None:
        table = lease_table_of(topic)
        rows = [row for row in rows if state_of(table, row.seq) == selection.state]
    return rows


def _has_key(topic: Topic, seq: int, key: str) -> bool:
    board = lease_table_of(topic).board
    options = None if board is None else board.options.get(seq)
    return options is not None and key in (options.unique_key, options.concurrency_key)


def page(
    core: Core,
    topic: Topic,
    selection: Selection,
    load: Load,
    after_seq: int,
    limit: int,
    *,
    with_data: bool = False,
) -> Steps[JobPage]:
    """One page of jobs by seq."""
    jobs: list[JobState] = []
    turn = Turn(core.clock)
    looked = 0
    end_seq = topic.visible
    room = _STEP_BYTES * 8
    while after_seq < end_seq and looked < PAGE_LOOKS_MAX and room > 0:
        wanted = limit - len(jobs) if selection == Selection() else _STEP_JOBS
        rows, came_to = yield from look(
            core, topic, selection, load, after_seq, end_seq, with_data=with_data, limit=wanted
        )
        looked += wanted
        for row in rows:
            job = job_state(topic, row, with_data=with_data)
            if job is not None:
                jobs.append(job)
                room -= len(bytes(row.data)) + len(bytes(row.meta))
            if len(jobs) == limit:
                has_more = bool(live_seqs(topic.log, row.seq + 1, end_seq, 1))
                return JobPage(jobs, counts_of(topic), row.seq if has_more else 0)
        after_seq = came_to
        if turn.is_over:
            yield None
            turn.begin()
            check_there(topic)
    return JobPage(jobs, counts_of(topic), after_seq if after_seq < end_seq else 0)


def one(core: Core, topic: Topic, seq: int, load: Load) -> Steps[JobState]:
    """One job, with its data and attempts."""
    if 0 < seq <= topic.visible and topic.log.is_live(seq):
        rows, _ = yield from look(core, topic, Selection(), load, seq - 1, seq, with_data=True)
        for row in rows:
            job = job_state(topic, row, with_data=True, with_attempts=True)
            if job is not None:
                return job
    raise JobNotFound(f"there is no job {seq} in job queue {topic.name!r}", topic.name, seq)
