"""A job queue as a plain dictionary: the oracle that says who must get which job. Knows no log and no heap.

Slow and obvious on purpose: every question is answered by looking at all jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from everlog.topics import TopicConfig

CLAIM_MAX = 1000


class ModelLease(NamedTuple):
    """Who holds a job, and until when."""

    node: str
    lease_id: int
    deadline_ms: int


@dataclass
class ModelJob:
    """One job that is there."""

    seq: int
    ts: int
    value: object
    tag: str | None = None
    deliveries: int = 0
    lease: ModelLease | None = None
    delayed_until_ms: int | None = None


class ModelClaim(NamedTuple):
    """One claimer of a pass."""

    node: str
    maximum: int
    lease_ms: int | None = None


@dataclass
class ModelQueue:
    """One queue. `jobs` are the live ones, in the order of seq."""

    config: TopicConfig
    jobs: dict[int, ModelJob] = field(default_factory=dict)
    head: int = 0
    last_ts: int = 0
    dead_letters: list[object] = field(default_factory=list)
    dead_lettered: int = 0

    # --- The log -----------------------------------------------------------------------------------------

    def append(self, values: list[tuple[object, str | None]], now_ms: int) -> None:
        """Jobs come in; the oldest go if there are too many."""
        self.sweep(now_ms)
        self.last_ts = max(self.last_ts, now_ms)
        for value, tag in values:
            self.head += 1
            self.jobs[self.head] = ModelJob(self.head, self.last_ts, value, tag)
        self._evict()

    def _evict(self) -> None:
        while self.config.cap_records and len(self.jobs) > self.config.cap_records:
            del self.jobs[min(self.jobs)]

    def delete(self, before_seq: int | None, tag: str | None, now_ms: int) -> int:
        """Jobs are deleted, leased or not."""
        self.sweep(now_ms)
        hit = [
            seq
            for seq, job in self.jobs.items()
            if (before_seq is None or seq < before_seq) and (tag is None or job.tag == tag)
        ]
        for seq in hit:
            del self.jobs[seq]
        return len(hit)

    def configure(self, config: TopicConfig, now_ms: int) -> None:
        """Another configuration, which takes effect at once."""
        self.sweep(now_ms)
        self.config = config
        self.sweep(now_ms)
        self._evict()

    def restart(self) -> None:
        """What a new start makes of it."""
        if self.config.durability == "ephemeral":
            self.jobs.clear()
        if not self.config.leases_durable:
            for job in self.jobs.values():
                job.lease, job.delayed_until_ms, job.deliveries = None, None, 0

    # --- Leases ------------------------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> None:
        """Jobs that are too old go; leases and delays end."""
        ttl_ms = self.config.ttl_ms
        self.jobs = {seq: job for seq, job in self.jobs.items() if not ttl_ms or now_ms - job.ts <= ttl_ms}
        for job in self.jobs.values():
            if job.lease is not None and now_ms > job.lease.deadline_ms:
                job.lease = None
            if job.delayed_until_ms is not None and now_ms >= job.delayed_until_ms:
                job.delayed_until_ms = None

    @property
    def in_flight(self) -> int:
        """Jobs that are leased."""
        return sum(job.lease is not None for job in self.jobs.values())

    @property
    def ready(self) -> int:
        """Jobs that can be claimed."""
        return len(self._supply())

    def _supply(self) -> list[ModelJob]:
        """Claimable jobs in the order in which they are given out: those that were out before come first."""
        free = [job for job in self.jobs.values() if job.lease is None and job.delayed_until_ms is None]
        return sorted(free, key=lambda job: (job.deliveries == 0, job.seq))

    def claim(self, claims: list[ModelClaim], now_ms: int) -> list[list[ModelJob]]:
        """Deal jobs; the caller enters the lease ids."""
        self.sweep(now_ms)
        maxima = [min(claim.maximum or 1, CLAIM_MAX) for claim in claims]
        picked = self._pick(sum(maxima))
        hands: list[list[ModelJob]] = [[] for _ in claims]
        place = 0
        for job in picked:
            while len(hands[place % len(claims)]) == maxima[place % len(claims)]:
                place += 1
            hands[place % len(claims)].append(job)
            place += 1
        for hand in hands:
            hand.sort(key=lambda job: job.seq)
            for job in hand:
                job.deliveries += 1
        return hands

    def _pick(self, wanted: int) -> list[ModelJob]:
        picked: list[ModelJob] = []
        most = self.config.max_deliveries if self.config.dead_letter else 0
        for job in self._supply():
            if len(picked) == wanted:
                break
            if most and job.deliveries >= most:
                del self.jobs[job.seq]
                self.dead_letters.append(job.value)
                self.dead_lettered += 1
            else:
                picked.append(job)
        return picked

    def lease_ms_of(self, claim: ModelClaim) -> int:
        """For how long a claimer gets its jobs."""
        wanted = self.config.lease_ms if claim.lease_ms is None else claim.lease_ms
        return min(max(wanted, 100), 86_400_000)

    def holder(self, seq: int, node: str, lease_id: int | None) -> ModelJob | None:
        """The job, if this node holds it under this lease (None: under any)."""
        job = self.jobs.get(seq)
        if job is None or job.lease is None or job.lease.node != node:
            return None
        return job if lease_id in (None, job.lease.lease_id) else None
