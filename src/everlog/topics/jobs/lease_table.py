"""Which node holds which job of one job queue: leases, delivery counts, and when a job is claimable again.

Owns the state of every job that was leased at least once and is not deleted, and its transitions:

    READY --lease--> LEASED --begin_ack--> DELETING --drop--> gone
      ^                |                      |
      |<--deadline-----+<----abort_delete-----+
      +<--delay ends-- DELAYED <--release with a delay, or defer

Pure: every time is an argument, and nothing is read or written elsewhere. Which jobs exist is decided by the
log of the topic, which calls `drop` and its variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from everlog.job_types import JobError
    from everlog.topics.jobs.job_board import JobBoard
    from everlog.topics.storage.control import Attempt

BLOCK_BITS: Final = 9
DUE_AT_ONCE: Final = 2500
"""Jobs whose delay or lease one step ends: five milliseconds."""
# A heap is rebuilt when it has more than this many entries besides those of current jobs.
STALE_MAX: Final = 1024


# The phase of a job that was leased at least once. The values are stored in the log.
READY: Final = 0
LEASED: Final = 1
DELAYED: Final = 2
DELETING: Final = 3  # acknowledged or being moved; decided when the log has committed that


# How leases end. Jobs that were acknowledged or cancelled are gone, so these two show in metrics only.
NACKED: Final = "nacked"
EXPIRED: Final = "expired"
RELEASED: Final = "released"
ACKED: Final = "acked"
CANCELLED: Final = "cancelled"
OUTCOMES: Final = (ACKED, NACKED, EXPIRED, RELEASED, CANCELLED)
ATTEMPTS_MAX: Final = 10


class StoredLease(NamedTuple):
    """A job as log and snapshot store it."""

    seq: int
    phase: int
    node: str
    lease_id: int
    until_ms: int
    deliveries: int


class Job:
    """A job that was leased at least once; `until_ms` is the end of its lease or of its delay."""

    __slots__ = (
        "attempts",
        "claimed_ms",
        "deliveries",
        "held",
        "is_cancelled",
        "is_failed",
        "lease_id",
        "node",
        "phase",
        "until_ms",
    )

    def __init__(
        self,
        phase: int = READY,
        node: str = "",
        lease_id: int = 0,
        until_ms: int = 0,
        deliveries: int = 0,
        held: dict[int, int] | None = None,
        claimed_ms: int = 0,
    ) -> None:
        self.phase = phase
        self.node = node
        self.lease_id = lease_id
        self.until_ms = until_ms
        self.deliveries = deliveries
        self.held = held
        self.claimed_ms = claimed_ms
        self.attempts: tuple[Attempt, ...] = ()
        self.is_failed = False  # it waits again after an error or an expiry
        self.is_cancelled = False  # it is deleted when its lease ends

    def is_held_by(self, node: str, fence: int | None, now_ms: int) -> bool:
        """Whether this node has the lease, which is not over and is the lease `fence` if one is named."""
        return (
            self.phase == LEASED
            and self.node == node
            and (fence is None or self.lease_id == fence)
            and self.until_ms >= now_ms
        )


def stored_lease(seq: int, job: Job) -> StoredLease:
    """A job as a snapshot stores it."""
    # The end of a deletion is in the log behind the snapshot; if not, the job is claimable.
    phase = READY if job.phase == DELETING else job.phase
    return StoredLease(seq, phase, job.node, job.lease_id, job.until_ms, job.deliveries)


class LeaseTable:
    """The jobs of one job queue that were leased and still exist, and the callbacks that wait for jobs."""

    __slots__ = (
        "_blocks",
        "_delays",
        "_expiries",
        "_expiring",
        "_highest",
        "_order",
        "_reclaimed",
        "_tracked",
        "board",
        "cancelled",
        "cursor",
        "dead_lettered",
        "delayed",
        "deleting",
        "done_total",
        "failed",
        "failed_delayed",
        "failed_total",
        "jobs",
        "leased",
        "outcomes",
        "waiters",
    )

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.cursor = 1
        """No job from here on was leased, except those in `jobs`."""
        self.leased = 0
        self.delayed = 0
        self.deleting = 0
        self.dead_lettered = 0
        self.done_total = 0
        """How many jobs were acknowledged."""
        self.failed_total = 0
        """How many attempts ended with an error or expired."""
        self.failed = 0
        """Jobs that wait again after that, of which `failed_delayed` are delayed."""
        self.failed_delayed = 0
        self.outcomes: dict[str, int] = {}
        """How many attempts ended in each way, and jobs were cancelled, since the start of the server."""
        self.cancelled: list[int] = []
        """Jobs whose lease has ended after they were cancelled: `DELETING`, and still to be deleted."""
        self.board: JobBoard | None = None
        """Once jobs have options, or the job queue a rate limit: decides the order of claims."""
        self.waiters: dict[Callable[[], None], None] = {}
        # Heaps. An entry is valid only if its job still says the same; others are skipped.
        self._reclaimed: list[int] = []
        self._expiries: list[tuple[int, int, list[int]]] = []  # deadline, order of insertion, seqs
        self._expiring = 0  # seqs in all entries of `_expiries`
        self._order = count(1)
        self._delays: list[tuple[int, int]] = []  # end of the delay, seq
        self._tracked: list[int] = []  # every seq in `jobs`, to find those below a floor
        self._highest = 0
        self._blocks: dict[int, int] = {}  # of some hundred seqs, by number: how many jobs are in `jobs`

    def count_outcome(self, outcome: str, jobs: int = 1) -> None:
        """Count attempts that ended."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + jobs

    def wake(self) -> None:
        """Call everything that waits for jobs or for room, each once."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter()

    # --- Counts and time ---------------------------------------------------------------------------------

    def ready(self, live: int) -> int:
        """Return how many of the `live` jobs of the topic can be claimed now."""
        return live - self.leased - self.delayed - self.deleting

    @property
    def entries(self) -> int:
        """The size of all heaps, stale entries included."""
        return len(self._tracked) + len(self._reclaimed) + len(self._delays) + self._expiring

    def sweep(self, now_ms: int) -> bool:
        """End the leases and delays whose time is over; True if that made a job claimable.

        Of very many that end together some are left: `next_due_ms` says that they are due.
        """
        found = False
        room = DUE_AT_ONCE
        while room > 0 and self._expiries and self._expiries[0][0] < now_ms:
            deadline_ms, order, seqs = heappop(self._expiries)
            if len(seqs) > room:
                heappush(self._expiries, (deadline_ms, order, seqs[room:]))
                seqs = seqs[:room]
            room -= len(seqs)
            self._expiring -= len(seqs)
            for seq in seqs:
                job = self.jobs.get(seq)
                if job is not None and job.phase == LEASED and job.until_ms < now_ms:
                    self._end_attempt(job, job.until_ms, EXPIRED, None)
                    self._reclaim(seq, job)
                    found = True
        for _ in range(DUE_AT_ONCE):
            if not self._delays or self._delays[0][0] > now_ms:
                break
            _, seq = heappop(self._delays)
            job = self.jobs.get(seq)
            if job is not None and job.phase == DELAYED and job.until_ms <= now_ms:
                self._reclaim(seq, job)
                found = True
        if self.board is not None:
            found |= self.board.sweep(now_ms)
        return found

    def next_due_ms(self, now_ms: int = 0, live: int = 0) -> int | None:
        """When a job may next become claimable by time alone; None if none will."""
        times = []
        if self.board is not None:
            due_ms = self.board.next_due_ms(now_ms, self.ready(live))
            times.extend([] if due_ms is None else [due_ms])
        while self._expiries:
            deadline_ms, _, seqs = self._expiries[0]
            if any(self._is_in(LEASED, seq, deadline_ms) for seq in seqs):
                times.append(deadline_ms + 1)
                break
            heappop(self._expiries)
            self._expiring -= len(seqs)
        while self._delays:
            until_ms, seq = self._delays[0]
            if self._is_in(DELAYED, seq, until_ms):
                times.append(until_ms)
                break
            heappop(self._delays)
        return min(times, default=None)

    def _is_in(self, phase: int, seq: int, until_ms: int) -> bool:
        job = self.jobs.get(seq)
        return job is not None and job.phase == phase and job.until_ms == until_ms

    # --- Supply ------------------------------------------------------------------------------------------

    def pop_reclaimed(self) -> int | None:
        """Take the lowest job that was leased before and is claimable again."""
        heap = self._reclaimed
        while heap:
            seq = heappop(heap)
            while heap and heap[0] == seq:
                heappop(heap)  # the job became claimable, was leased, and became claimable again
            job = self.jobs.get(seq)
            if job is not None and job.phase == READY:
                return seq
        return None

    def unleased(self, seqs: list[int]) -> list[int]:
        """Return those of the ascending `seqs` that were never leased."""
        if not seqs or seqs[0] > self._highest:
            return seqs
        return [seq for seq in seqs if seq not in self.jobs]

    def put_back(self, seq: int) -> None:
        """Return a job to the supply that was taken from it and not leased."""
        job = self.jobs.get(seq)
        if self.board is not None:
            if job is None or job.phase == READY:
                self.board.add(seq)
            return
        if job is None:
            self.cursor = min(self.cursor, seq)
        elif job.phase == READY:
            heappush(self._reclaimed, seq)

    def deliveries(self, seq: int) -> int:
        """Return how often a job was leased."""
        job = self.jobs.get(seq)
        return 0 if job is None else job.deliveries

    def next_deliveries(self, seqs: list[int]) -> list[int]:
        """Return the delivery count that each of `seqs` has next."""
        if seqs and min(seqs) > self._highest:
            return [1] * len(seqs)
        return [self.deliveries(seq) + 1 for seq in seqs]

    def last_error(self, seq: int) -> JobError | None:
        """The error of the last attempt at a job that has one."""
        job = self.jobs.get(seq)
        attempts = () if job is None else job.attempts
        return next((attempt[5] for attempt in reversed(attempts) if attempt[5] is not None), None)

    # --- Transitions -------------------------------------------------------------------------------------

    def lease(
        self,
        leases: dict[int, int],
        node: str,
        deadline_ms: int,
        held: dict[int, int] | None = None,
        now_ms: int = 0,
    ) -> None:
        """Lease jobs (seq -> lease id) to a node; `held` always equals those of its leases that still run."""
        jobs = self.jobs
        for seq, lease_id in leases.items():
            job = jobs.get(seq)
            if job is None:
                self._track(seq, Job(LEASED, node, lease_id, deadline_ms, 1, held, now_ms))
                continue
            self._leave_phase(seq, job)
            self._recover(job)
            job.claimed_ms = now_ms
            job.phase = LEASED
            job.node = node
            job.lease_id = lease_id
            job.until_ms = deadline_ms
            job.deliveries += 1
            job.held = held
        self.leased += len(leases)
        if held is not None:
            held.update(leases)
        self._expect_expiry(deadline_ms, list(leases))

    def holds(self, seq: int, node: str, fence: int | None, now_ms: int = 0) -> bool:
        """Whether this node has the lease of a job, which is not over and is `fence` if one is named."""
        job = self.jobs.get(seq)
        return job is not None and job.is_held_by(node, fence, now_ms)

    def begin_ack(
        self, node: str, seqs: Sequence[int], fences: Sequence[int | None], now_ms: int = 0
    ) -> tuple[list[int], list[int]]:
        """End the leases that this node holds, to delete their jobs; return those jobs, and the others."""
        acked: list[int] = []
        skipped: list[int] = []
        find = self.jobs.get
        for seq, fence in zip(seqs, fences, strict=True):
            job = find(seq)
            if job is None or not job.is_held_by(node, fence, now_ms):
                skipped.append(seq)
                continue
            if job.held is not None:
                job.held.pop(seq, None)
                job.held = None
            job.phase = DELETING
            acked.append(seq)
        if self.board is not None:
            self.board.leases_ended(acked)
        self.leased -= len(acked)
        self.deleting += len(acked)
        return acked, skipped

    def extend(self, seqs: Sequence[int], deadline_ms: int) -> None:
        """Move the deadline of running leases."""
        for seq in seqs:
            self.jobs[seq].until_ms = deadline_ms
        self._expect_expiry(deadline_ms, list(seqs))

    def release(
        self,
        seq: int,
        now_ms: int,
        delay_ms: int = 0,
        outcome: str = RELEASED,
        error: JobError | None = None,
    ) -> None:
        """End a lease; the job is claimable again, at once or after a delay."""
        job = self.jobs[seq]
        self._end_attempt(job, now_ms, outcome, error)
        if delay_ms:
            self._delay(seq, job, now_ms + delay_ms)
        else:
            self._reclaim(seq, job)

    def defer(self, seq: int, until_ms: int) -> None:
        """Delay a job that cannot be leased now, so that it does not block the others."""
        self._delay(seq, self.jobs.get(seq) or self._track(seq, Job()), until_ms)

    def begin_delete(self, seq: int) -> None:
        """Make a job unclaimable until its deletion is decided."""
        job = self.jobs.get(seq) or self._track(seq, Job())
        if self.board is not None:
            self.board.begin_delete(seq)
        self._leave_phase(seq, job)
        job.phase = DELETING
        self.deleting += 1

    def abort_delete(self, seq: int) -> None:
        """Make a job claimable again whose deletion failed."""
        job = self.jobs.get(seq)
        if job is not None and job.phase == DELETING:
            self._reclaim(seq, job)

    def cancel_lease(self, seq: int, lease_id: int) -> None:
        """Undo a lease that never reached its node, its delivery count included."""
        job = self.jobs.get(seq)
        if job is not None and job.phase == LEASED and job.lease_id == lease_id:
            job.deliveries -= 1
            self._reclaim(seq, job)

    def cancel(self, seq: int) -> None:
        """Delete a leased job when its lease ends, unless it is acknowledged."""
        job = self.jobs.get(seq) or self._track(seq, Job())
        job.is_cancelled = True

    def make_due(self, seq: int) -> None:
        """End the delay of a job."""
        self._reclaim(seq, self.jobs[seq])

    def restore(
        self, stored: StoredLease, ts: int = 0, outcome: str = "", error: JobError | None = None
    ) -> bool:
        """Apply what log or snapshot say of a job; an older lease never changes a newer one.

        With `outcome` its lease ended at `ts`. Returns whether it is a lease that was not known.
        """
        seq = stored.seq
        job = self.jobs.get(seq)
        is_new = job is None or stored.lease_id > job.lease_id
        if job is None:
            job = self._track(seq, Job())
        elif stored.lease_id < job.lease_id:
            return False
        if job.phase == LEASED and (is_new or outcome):
            ended_ms = job.until_ms if is_new else ts
            self._end_attempt(job, ended_ms, EXPIRED if is_new else outcome, error)
        self._leave_phase(seq, job)
        if stored.phase == LEASED and is_new:
            self._recover(job)
            job.claimed_ms = ts
        job.node = stored.node
        job.lease_id = stored.lease_id
        job.deliveries = stored.deliveries
        job.until_ms = stored.until_ms
        if stored.phase == LEASED:
            job.phase = LEASED
            self.leased += 1
            self._expect_expiry(stored.until_ms, [seq])
        elif stored.phase == DELAYED:
            self._delay(seq, job, stored.until_ms)
        else:
            heappush(self._reclaimed, seq)
        return is_new and stored.phase == LEASED

    def restore_attempts(self, seq: int, claimed_ms: int, attempts: list[Attempt]) -> None:
        """Apply how earlier leases of a job ended, as a snapshot stores it."""
        job = self.jobs.get(seq)
        if job is None:
            return
        job.claimed_ms = claimed_ms
        job.attempts = tuple(attempts)
        is_failed = bool(attempts) and (attempts[-1][4] == EXPIRED or attempts[-1][5] is not None)
        if is_failed and job.phase in (READY, DELAYED) and not job.is_failed:
            job.is_failed = True
            self.failed += 1
            self.failed_delayed += job.phase == DELAYED

    def slices(self) -> Iterator[list[tuple[int, Job]]]:
        """Yield all jobs by seq, some hundred at a time; others may come and go between two."""
        if len(self.jobs) >> BLOCK_BITS == 0:
            yield sorted(self.jobs.items())
            return
        find = self.jobs.get
        for block in sorted(self._blocks):
            seqs = range(block << BLOCK_BITS, (block + 1) << BLOCK_BITS)
            yield [(seq, job) for seq in seqs if (job := find(seq)) is not None]

    def stored(self) -> Iterator[StoredLease]:
        """What a snapshot stores."""
        return (stored_lease(seq, job) for jobs in self.slices() for seq, job in jobs)

    # --- Deleted jobs ------------------------------------------------------------------------------------

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget jobs that are deleted, leased or not."""
        if self.board is not None:
            seqs = list(seqs)
        if self.jobs:
            pop = self.jobs.pop
            for seq in seqs:
                job = pop(seq, None)
                if job is None:
                    continue
                if job.phase == DELETING and not job.is_failed:  # what `_forget` does with nearly all
                    self.deleting -= 1
                else:
                    self._forget(seq, job)
            self._drop_stale()
        if self.board is not None:
            self.board.drop(seqs)

    def known_among(self, seqs: NDArray[np.uint64]) -> list[int]:
        """Those of `seqs`, ascending, that `drop` has something to do for; perhaps others, too."""
        known = [self.jobs] if self.board is None else [self.jobs, *self.board.known]
        if sum(map(len, known)) >= len(seqs):
            return list(seqs.tolist())
        tracked = np.fromiter(chain.from_iterable(known), np.uint64)
        places = np.minimum(np.searchsorted(seqs, tracked), len(seqs) - 1)
        return list(np.unique(tracked[seqs[places] == tracked]).tolist())

    def drop_range(self, first_seq: int, end_seq: int) -> None:
        """Forget the jobs from `first_seq` up to before `end_seq`."""
        board, self.board = self.board, None
        self.drop(range(first_seq, min(end_seq, self._highest + 1)))
        self.board = board
        if board is not None:
            board.drop_range(first_seq, end_seq)

    def drop_below(self, floor: int) -> None:
        """Forget all jobs below `floor`."""
        while self._tracked and self._tracked[0] < floor:
            seq = heappop(self._tracked)
            job = self.jobs.pop(seq, None)
            if job is not None:
                self._forget(seq, job)
        if self.board is not None:
            self.board.drop_below(floor)

    def drop_missing(self, is_live: Callable[[int], bool]) -> None:
        """Forget the jobs that do not exist; called at the end of a replay."""
        self.drop([seq for seq in self.jobs if not is_live(seq)])

    def clear(self) -> None:
        """Forget every lease and every count, as if no job had been leased."""
        cancelled = [seq for seq, job in self.jobs.items() if job.is_cancelled]
        for seq, job in self.jobs.items():
            self._forget(seq, job)
        self.jobs.clear()
        self.cancelled.clear()
        for seq in cancelled:  # their leases are over now
            self.cancel(seq)
            self._reclaim(seq, self.jobs[seq])
        self.cursor = 1
        self._drop_stale()
        if self.board is not None:
            self.board.rebuild()

    def attach(self, board: JobBoard) -> None:
        """Let a board decide the order of claims from now on."""
        self.board = board
        self._reclaimed.clear()
        board.rebuild()

    # --- Steps -------------------------------------------------------------------------------------------

    def _track(self, seq: int, job: Job) -> Job:
        self.jobs[seq] = job
        block = seq >> BLOCK_BITS
        self._blocks[block] = self._blocks.get(block, 0) + 1
        if seq > self._highest:
            self._highest = seq
            self._tracked.append(seq)  # the largest entry may stand at the end of a heap
        else:
            heappush(self._tracked, seq)
        return job

    def _reclaim(self, seq: int, job: Job) -> None:
        self._leave_phase(seq, job)
        if job.is_cancelled:
            self._delete_cancelled(seq, job)
        elif self.board is not None:
            self.board.add(seq)
        else:
            heappush(self._reclaimed, seq)

    def _delay(self, seq: int, job: Job, until_ms: int) -> None:
        self._leave_phase(seq, job)
        if job.is_cancelled:
            self._delete_cancelled(seq, job)
            return
        job.phase = DELAYED
        job.until_ms = until_ms
        self.delayed += 1
        self.failed_delayed += job.is_failed
        heappush(self._delays, (until_ms, seq))

    def _delete_cancelled(self, seq: int, job: Job) -> None:
        job.phase = DELETING
        self.deleting += 1
        self.cancelled.append(seq)

    def _end_attempt(self, job: Job, ended_ms: int, outcome: str, error: JobError | None) -> None:
        """Note how a lease ended that was not acknowledged."""
        attempt = (job.deliveries, job.node, job.claimed_ms, ended_ms, outcome, error)
        if job.attempts and job.attempts[-1][0] == job.deliveries:
            job.attempts = job.attempts[:-1]  # the log says it once more than the snapshot
        job.attempts = (*job.attempts[1 - ATTEMPTS_MAX :], attempt)
        self.count_outcome(outcome)
        if outcome == EXPIRED or error is not None:
            self.failed_total += 1
            if not job.is_failed:
                job.is_failed = True
                self.failed += 1

    def _recover(self, job: Job) -> None:
        """A job does not wait after an error any more; it is not delayed."""
        if job.is_failed:
            job.is_failed = False
            self.failed -= 1

    def _forget(self, seq: int, job: Job) -> None:
        """Take a job that is in `jobs` no more, or soon not, out of all counts."""
        self._leave_phase(seq, job)
        self._recover(job)
        block = seq >> BLOCK_BITS
        left = self._blocks[block] = self._blocks[block] - 1
        if not left:
            del self._blocks[block]

    def _leave_phase(self, seq: int, job: Job) -> None:
        """Subtract a job from the count of its phase; it is READY then, but in no heap yet."""
        phase = job.phase
        if phase == LEASED:
            self.leased -= 1
            if self.board is not None:
                self.board.leases_ended((seq,))
            if job.held is not None:
                job.held.pop(seq, None)
                job.held = None
        elif phase == DELETING:
            self.deleting -= 1
        elif phase == DELAYED:
            self.delayed -= 1
            self.failed_delayed -= job.is_failed
        job.phase = READY

    def _expect_expiry(self, deadline_ms: int, seqs: list[int]) -> None:
        if seqs:
            heappush(self._expiries, (deadline_ms, next(self._order), seqs))
            self._expiring += len(seqs)
            self._drop_stale_expiries()

    def _drop_stale_expiries(self) -> None:
        """Rebuild the heap of deadlines if most of it is stale: with long leases it would grow forever."""
        if self._expiring <= 4 * self.leased + STALE_MAX:
            return
        by_deadline: dict[int, list[int]] = {}
        for seq, job in self.jobs.items():
            if job.phase == LEASED:
                by_deadline.setdefault(job.until_ms, []).append(seq)
        self._expiries = [(deadline_ms, 0, seqs) for deadline_ms, seqs in by_deadline.items()]
        heapify(self._expiries)
        self._expiring = self.leased

    def _drop_stale(self) -> None:
        """Rebuild the heaps whose entries are mostly of deleted jobs."""
        entries_max = 2 * len(self.jobs) + STALE_MAX
        if len(self._tracked) > entries_max:
            self._tracked = sorted(self.jobs)
        if len(self._reclaimed) > entries_max:
            self._reclaimed = sorted(seq for seq, job in self.jobs.items() if job.phase == READY)
        if len(self._delays) > entries_max:
            self._delays = sorted(
                (job.until_ms, seq) for seq, job in self.jobs.items() if job.phase == DELAYED
            )
        self._drop_stale_expiries()
