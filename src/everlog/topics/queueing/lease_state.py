"""Who holds which job of one queue: the projection of its lease events.

Owns leases, delivery counts, what is claimable again and what waits, and the claim cursor. Pure: all time is
passed in, nothing is read from or written to anywhere. Which jobs exist is the topic's log; it tells when
one dies.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

# Entries of heaps that stand for nothing any more are swept out when they are most of it and more than this.
_STALE_MIN: Final = 1024


class Phase(IntEnum):
    """Where a job is that was given out at least once."""

    READY = 0  # claimable again
    LEASED = 1
    DELAYED = 2  # claimable again later
    LEAVING = 3  # acknowledged or being moved; decided when the log has it


# By their own names: looking a member up in its class costs more than all else that a step does.
READY: Final = Phase.READY
LEASED: Final = Phase.LEASED
DELAYED: Final = Phase.DELAYED
LEAVING: Final = Phase.LEAVING


class Job:
    """One such job. `until_ms` is the deadline of a lease, or the end of a delay."""

    __slots__ = ("deliveries", "held", "lease_id", "node", "phase", "until_ms")

    def __init__(self) -> None:
        self.phase = READY
        self.node = ""
        self.lease_id = 0
        self.until_ms = 0
        self.deliveries = 0
        self.held: dict[int, int] | None = None


class KeptLease(NamedTuple):
    """A job as a snapshot keeps it."""

    seq: int
    phase: int
    node: str
    lease_id: int
    until_ms: int
    deliveries: int


class LeaseState:
    """The state of one queue."""

    __slots__ = (
        "_delays",
        "_expiries",
        "_expiry_seqs",
        "_highest",
        "_order",
        "_reclaimed",
        "_seqs",
        "cursor",
        "dead_lettered",
        "delayed",
        "jobs",
        "leased",
        "leaving",
        "waiters",
    )

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.cursor = 1  # no job from here on was given out, but for those in `jobs`
        self.dead_lettered = 0
        self.leased = 0
        self.delayed = 0
        self.leaving = 0
        self.waiters: dict[Callable[[], None], None] = {}
        # Heaps; an entry counts only if its job says the same.
        self._reclaimed: list[int] = []
        self._expiries: list[tuple[int, int, list[int]]] = []  # deadline, order, seqs with that deadline
        self._expiry_seqs = 0
        self._order = 0
        self._delays: list[tuple[int, int]] = []  # end of the delay, seq
        self._seqs: list[int] = []  # of all jobs here, to find those below a floor
        self._highest = 0

    # --- Counting ----------------------------------------------------------------------------------------

    def ready(self, count: int) -> int:
        """How many of the `count` live jobs can be claimed now."""
        return count - self.leased - self.delayed - self.leaving

    def sweep(self, now_ms: int) -> bool:
        """Let leases and delays end whose time is over; True if that made a job claimable."""
        found = False
        while self._expiries and self._expiries[0][0] < now_ms:
            _, _, seqs = heapq.heappop(self._expiries)
            self._expiry_seqs -= len(seqs)
            for seq in seqs:
                job = self.jobs.get(seq)
                if job is not None and job.phase is LEASED and job.until_ms < now_ms:
                    self._reclaim(seq, job)
                    found = True
        while self._delays and self._delays[0][0] <= now_ms:
            _, seq = heapq.heappop(self._delays)
            job = self.jobs.get(seq)
            if job is not None and job.phase is DELAYED and job.until_ms <= now_ms:
                self._reclaim(seq, job)
                found = True
        return found

    def next_due_ms(self) -> int | None:
        """When `sweep` will next make a job claimable; None if nothing is out."""
        times = []
        while self._expiries:
            deadline_ms, _, seqs = self._expiries[0]
            if any(self._is_leased_until(seq, deadline_ms) for seq in seqs):
                times.append(deadline_ms + 1)
                break
            heapq.heappop(self._expiries)
            self._expiry_seqs -= len(seqs)
        while self._delays:
            until_ms, seq = self._delays[0]
            job = self.jobs.get(seq)
            if job is not None and job.phase is DELAYED and job.until_ms == until_ms:
                times.append(until_ms)
                break
            heapq.heappop(self._delays)
        return min(times, default=None)

    def _is_leased_until(self, seq: int, deadline_ms: int) -> bool:
        job = self.jobs.get(seq)
        return job is not None and job.phase is LEASED and job.until_ms == deadline_ms

    # --- Supply ------------------------------------------------------------------------------------------

    def pop_reclaimed(self) -> int | None:
        """Take the lowest job that is claimable again; the caller gives it out, or puts it back."""
        while self._reclaimed:
            seq = heapq.heappop(self._reclaimed)
            while self._reclaimed and self._reclaimed[0] == seq:
                heapq.heappop(self._reclaimed)  # it was claimable, gone from here, and is claimable again
            job = self.jobs.get(seq)
            if job is not None and job.phase is READY:
                return seq
        return None

    def unknown(self, seqs: list[int]) -> list[int]:
        """Those of the ascending `seqs` that were never given out."""
        if not seqs or seqs[0] > self._highest:
            return seqs
        return [seq for seq in seqs if seq not in self.jobs]

    def put_back(self, seq: int) -> None:
        """A job that was taken from the supply is not given out after all."""
        job = self.jobs.get(seq)
        if job is None:
            self.cursor = min(self.cursor, seq)
        elif job.phase is READY:
            heapq.heappush(self._reclaimed, seq)

    def deliveries(self, seq: int) -> int:
        """How often a job was given out."""
        job = self.jobs.get(seq)
        return 0 if job is None else job.deliveries

    def next_deliveries(self, seqs: list[int]) -> list[int]:
        """Which delivery it would be if each of the ascending `seqs` were given out."""
        if seqs and seqs[0] > self._highest:
            return [1] * len(seqs)
        return [self.deliveries(seq) + 1 for seq in seqs]

    # --- Transitions -------------------------------------------------------------------------------------

    def give(
        self, leases: dict[int, int], node: str, deadline_ms: int, held: dict[int, int] | None = None
    ) -> None:
        """Lease jobs (seq -> lease id) to a node. `held` is kept equal to those of them it still holds."""
        jobs = self.jobs
        for seq, lease_id in leases.items():
            job = jobs.get(seq) or self._track(seq)
            if job.phase is not READY:
                self._leave_phase(seq, job)
            job.phase = LEASED
            job.node = node
            job.lease_id = lease_id
            job.until_ms = deadline_ms
            job.deliveries += 1
            job.held = held
        self.leased += len(leases)
        if held is not None:
            held.update(leases)
        self._expect(deadline_ms, list(leases))

    def holds(self, seq: int, node: str, lease_id: int | None) -> bool:
        """Whether the live lease of a job is this node's, and the one that is named if one is."""
        job = self.jobs.get(seq)
        return (
            job is not None
            and job.phase is LEASED
            and job.node == node
            and (lease_id is None or job.lease_id == lease_id)
        )

    def take(
        self, node: str, seqs: Sequence[int], fences: Sequence[int | None]
    ) -> tuple[list[int], list[int]]:
        """Let the jobs that this node holds leave; return them, and those that it does not hold."""
        held: list[int] = []
        skipped: list[int] = []
        jobs = self.jobs
        for seq, fence in zip(seqs, fences, strict=True):
            job = jobs.get(seq)
            if (
                job is None
                or job.phase is not LEASED
                or job.node != node
                or (fence is not None and job.lease_id != fence)
            ):
                skipped.append(seq)
                continue
            if job.held is not None:
                job.held.pop(seq, None)
                job.held = None
            job.phase = LEAVING
            held.append(seq)
        self.leased -= len(held)
        self.leaving += len(held)
        return held, skipped

    def extend(self, seqs: Iterable[int], deadline_ms: int) -> None:
        """Give leases another deadline."""
        for seq in seqs:
            self.jobs[seq].until_ms = deadline_ms
        self._expect(deadline_ms, list(seqs))

    def release(self, seq: int, now_ms: int, delay_ms: int = 0) -> None:
        """End a lease; the job is claimable again, at once or after a delay."""
        job = self.jobs[seq]
        if delay_ms == 0:
            self._reclaim(seq, job)
            return
        self._delay(seq, job, now_ms + delay_ms)

    def set_aside(self, seq: int, until_ms: int) -> None:
        """A job that cannot be given out now must not hold up the others."""
        self._delay(seq, self.jobs.get(seq) or self._track(seq), until_ms)

    def leave(self, seq: int) -> None:
        """A job is about to go for good; until that is decided nobody gets it."""
        job = self.jobs[seq]
        self._leave_phase(seq, job)
        job.phase = LEAVING
        self.leaving += 1

    def stay(self, seq: int) -> None:
        """It did not go: claimable again."""
        job = self.jobs.get(seq)
        if job is not None and job.phase is LEAVING:
            self._reclaim(seq, job)

    def take_back(self, seq: int, lease_id: int) -> None:
        """A lease was never handed over: as if it had not been given."""
        job = self.jobs.get(seq)
        if job is not None and job.phase is LEASED and job.lease_id == lease_id:
            job.deliveries -= 1
            self._reclaim(seq, job)

    # --- Deaths ------------------------------------------------------------------------------------------

    def drop(self, seqs: Iterable[int]) -> None:
        """These jobs are gone, whoever held them."""
        if not self.jobs:
            return
        forget = self.jobs.pop
        for seq in seqs:
            job = forget(seq, None)
            if job is None:
                continue
            if job.phase is LEAVING:
                self.leaving -= 1
            else:
                self._leave_phase(seq, job)
        self._sweep_out()

    def drop_below(self, floor: int) -> None:
        """All jobs below `floor` are gone."""
        while self._seqs and self._seqs[0] < floor:
            seq = heapq.heappop(self._seqs)
            job = self.jobs.pop(seq, None)
            if job is not None:
                self._leave_phase(seq, job)

    def forget(self) -> None:
        """Lose every lease and every count: all jobs are as if they had just come."""
        for seq, job in self.jobs.items():
            self._leave_phase(seq, job)
        self.jobs.clear()
        self.cursor = 1
        self._sweep_out()

    # --- Events ------------------------------------------------------------------------------------------

    def replay(self, lease: KeptLease) -> None:
        """Take over what an event or a snapshot says of a job; an older lease never changes a newer one."""
        job = self.jobs.get(lease.seq)
        if job is not None and lease.lease_id < job.lease_id:
            return
        job = job or self._track(lease.seq)
        self._leave_phase(lease.seq, job)
        job.node = lease.node
        job.lease_id = lease.lease_id
        job.deliveries = lease.deliveries
        job.until_ms = lease.until_ms
        if lease.phase == LEASED:
            job.phase = LEASED
            self.leased += 1
            self._expect(lease.until_ms, [lease.seq])
        elif lease.phase == DELAYED:
            self._delay(lease.seq, job, lease.until_ms)
        else:
            heapq.heappush(self._reclaimed, lease.seq)

    def kept(self) -> Iterator[KeptLease]:
        """What a snapshot has to keep."""
        for seq, job in self.jobs.items():
            # One that is leaving has its end in the log behind the snapshot, or stays and is claimable.
            phase = READY if job.phase is LEAVING else job.phase
            yield KeptLease(seq, phase, job.node, job.lease_id, job.until_ms, job.deliveries)

    def retain(self, is_live: Callable[[int], bool]) -> None:
        """Forget the jobs that are not there any more; the end of a replay."""
        self.drop([seq for seq in self.jobs if not is_live(seq)])

    # --- Waiting -----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Tell everyone who waits for jobs or for room that there may be some; each is told once."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter()

    # --- Steps -------------------------------------------------------------------------------------------

    def _track(self, seq: int) -> Job:
        job = self.jobs[seq] = Job()
        heapq.heappush(self._seqs, seq)
        self._highest = max(self._highest, seq)
        return job

    def _reclaim(self, seq: int, job: Job) -> None:
        self._leave_phase(seq, job)
        heapq.heappush(self._reclaimed, seq)

    def _delay(self, seq: int, job: Job, until_ms: int) -> None:
        self._leave_phase(seq, job)
        job.phase = DELAYED
        job.until_ms = until_ms
        self.delayed += 1
        heapq.heappush(self._delays, (until_ms, seq))

    def _leave_phase(self, seq: int, job: Job) -> None:
        """Count a job out of where it is; it is READY then, but in no heap yet."""
        phase = job.phase
        if phase is LEASED:
            self.leased -= 1
            if job.held is not None:
                job.held.pop(seq, None)
                job.held = None
        elif phase is DELAYED:
            self.delayed -= 1
        elif phase is LEAVING:
            self.leaving -= 1
        job.phase = READY

    def _expect(self, deadline_ms: int, seqs: list[int]) -> None:
        """Look at these leases when their deadline is over."""
        if not seqs:
            return
        self._order += 1
        heapq.heappush(self._expiries, (deadline_ms, self._order, seqs))
        self._expiry_seqs += len(seqs)
        if self._expiry_seqs > 4 * self.leased + _STALE_MIN:
            self._rebuild_expiries()

    def _rebuild_expiries(self) -> None:
        """Keep only what stands for a lease: a queue with long leases would remember every job it had."""
        by_deadline: dict[int, list[int]] = {}
        for seq, job in self.jobs.items():
            if job.phase is LEASED:
                by_deadline.setdefault(job.until_ms, []).append(seq)
        self._expiries = [(deadline_ms, 0, seqs) for deadline_ms, seqs in by_deadline.items()]
        heapq.heapify(self._expiries)
        self._expiry_seqs = self.leased

    def _sweep_out(self) -> None:
        """Give back the memory of heaps whose entries are mostly about jobs that are gone."""
        most = 2 * len(self.jobs) + _STALE_MIN
        if len(self._seqs) > most:
            self._seqs = sorted(self.jobs)
        if len(self._reclaimed) > most:
            self._reclaimed = sorted(seq for seq, job in self.jobs.items() if job.phase is READY)
        if len(self._delays) > most:
            delays = ((job.until_ms, seq) for seq, job in self.jobs.items() if job.phase is DELAYED)
            self._delays = sorted(delays)
        if self._expiry_seqs > 4 * self.leased + _STALE_MIN:
            self._rebuild_expiries()
