"""A model of the lease table without heaps: every call looks at every job."""

from __future__ import annotations

from dataclasses import dataclass

from everlog.topics.jobs.lease_table import DELAYED, DELETING, LEASED, READY

Holding = dict[int, int]  # seq -> lease id


@dataclass
class ModelJob:
    """A job that was leased at least once."""

    phase: int = READY
    node: str = ""
    lease_id: int = 0
    until_ms: int = 0
    deliveries: int = 0
    held: Holding | None = None
    is_supplied: bool = False
    """Claimable, and not taken by a claim that is under way."""


class LeaseModel:
    """What the table promises, without any of its heaps."""

    def __init__(self) -> None:
        self.jobs: dict[int, ModelJob] = {}
        self.cursor = 1

    def counts(self) -> tuple[int, int, int]:
        """Jobs that are leased, delayed and being deleted."""
        phases = [job.phase for job in self.jobs.values()]
        return phases.count(LEASED), phases.count(DELAYED), phases.count(DELETING)

    def states(self) -> dict[int, tuple[int, str, int, int, int]]:
        """All that is known of each job."""
        return {
            seq: (job.phase, job.node, job.lease_id, job.until_ms, job.deliveries)
            for seq, job in self.jobs.items()
        }

    def _end(self, seq: int, phase: int, *, is_supplied: bool = False) -> ModelJob:
        job = self.jobs[seq]
        if job.phase == LEASED and job.held is not None:
            job.held.pop(seq, None)
            job.held = None
        job.phase, job.is_supplied = phase, is_supplied
        return job

    def sweep(self, now_ms: int) -> bool:
        """End what is over."""
        over = [
            seq
            for seq, job in self.jobs.items()
            if (job.phase == LEASED and job.until_ms < now_ms)
            or (job.phase == DELAYED and job.until_ms <= now_ms)
        ]
        for seq in over:
            self._end(seq, READY, is_supplied=True)
        return bool(over)

    def next_due_ms(self) -> int | None:
        """When something is over."""
        leases = [job.until_ms + 1 for job in self.jobs.values() if job.phase == LEASED]
        delays = [job.until_ms for job in self.jobs.values() if job.phase == DELAYED]
        return min([*leases, *delays], default=None)

    def pop_reclaimed(self) -> int | None:
        """Take the lowest one that is claimable again."""
        seq = min((seq for seq, job in self.jobs.items() if job.is_supplied), default=None)
        if seq is not None:
            self.jobs[seq].is_supplied = False
        return seq

    def put_back(self, seq: int) -> None:
        """Return a job that was not leased."""
        job = self.jobs.get(seq)
        if job is None:
            self.cursor = min(self.cursor, seq)
        elif job.phase == READY:
            job.is_supplied = True

    def lease(self, leases: Holding, node: str, deadline_ms: int, held: Holding | None) -> None:
        """Lease jobs."""
        for seq, lease_id in leases.items():
            self.jobs.setdefault(seq, ModelJob())
            job = self._end(seq, LEASED)
            job.node, job.lease_id, job.until_ms, job.held = node, lease_id, deadline_ms, held
            job.deliveries += 1
        if held is not None:
            held.update(leases)

    def holds(self, seq: int, node: str, fence: int | None) -> bool:
        """Whether this node has the lease that is meant."""
        job = self.jobs.get(seq)
        return (
            job is not None
            and (job.phase, job.node) == (LEASED, node)
            and (fence is None or fence == job.lease_id)
        )

    def begin_ack(self, node: str, seqs: list[int], fences: list[int | None]) -> tuple[list[int], list[int]]:
        """Begin to delete the jobs this node holds; return those and the others."""
        held: list[int] = []
        skipped: list[int] = []
        for seq, fence in zip(seqs, fences, strict=True):
            if self.holds(seq, node, fence):
                self._end(seq, DELETING)
                held.append(seq)
            else:
                skipped.append(seq)
        return held, skipped

    def release(self, seq: int, now_ms: int, delay_ms: int) -> None:
        """End a lease."""
        if delay_ms:
            self._end(seq, DELAYED).until_ms = now_ms + delay_ms
        else:
            self._end(seq, READY, is_supplied=True)

    def defer(self, seq: int, until_ms: int) -> None:
        """Delay a job."""
        self.jobs.setdefault(seq, ModelJob())
        self._end(seq, DELAYED).until_ms = until_ms

    def abort_delete(self, seq: int) -> None:
        """Make it claimable again."""
        if seq in self.jobs and self.jobs[seq].phase == DELETING:
            self._end(seq, READY, is_supplied=True)

    def cancel_lease(self, seq: int, lease_id: int) -> None:
        """Undo a lease."""
        job = self.jobs.get(seq)
        if job is not None and (job.phase, job.lease_id) == (LEASED, lease_id):
            job.deliveries -= 1
            self._end(seq, READY, is_supplied=True)

    def restore(self, seq: int, phase: int, node: str, lease_id: int, until_ms: int, deliveries: int) -> None:
        """An event: older ones change nothing."""
        if seq in self.jobs and lease_id < self.jobs[seq].lease_id:
            return
        self.jobs.setdefault(seq, ModelJob())
        job = self._end(seq, phase, is_supplied=phase == READY)
        job.node, job.lease_id, job.until_ms, job.deliveries = node, lease_id, until_ms, deliveries

    def drop(self, seqs: list[int]) -> None:
        """Forget jobs."""
        for seq in seqs:
            if seq in self.jobs:
                self._end(seq, READY)
                del self.jobs[seq]
