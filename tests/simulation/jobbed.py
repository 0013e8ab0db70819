"""Jobs with options and a schedule on the simulated machine: limits hold, nothing is lost, none comes early.

Owns two job queues whose jobs have delays, priorities, unique keys and concurrency keys, a topic that a
schedule appends to, and the plain model of them: every job, lease and claim in a dictionary. An `fsync`
queue keeps what it has answered. A `disk` queue does unless the power went, and then the model begins anew
with what is found. What an unanswered claim did is unknown until its leases and windows are over.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any, Final

from everlog.api_types import TopicType
from everlog.job_types import JobMembers, RateLimit
from everlog.topics import Engine, NewRecord, TopicConfig
from everlog.topics.commits import Commit
from everlog.topics.config import Durability
from tests.simulation.machine import Machine
from tests.simulation.routed import PREFIX
from tests.support.model_checks import require, require_equal

QUEUES: Final = {
    f"{PREFIX}jobbed.synced": Durability.FSYNC,
    f"{PREFIX}jobbed.written": Durability.DISK,
}
TICKS: Final = f"{PREFIX}jobbed.ticks"
SCHEDULE: Final = f"{PREFIX}jobbed"
NODE: Final = "worker"
KEYS: Final = ("a", "b", "c")
LIMIT: Final = 2
RATE: Final = RateLimit(4, 2000, "key")
LEASE_MS: Final = 3000
JOBS_MAX: Final = 14
BAND: Final = 250
AGEING_MS: Final = 10_000


@dataclass
class SimJob:
    """One job that is there, or may be."""

    number: int
    members: JobMembers
    due_ms: int
    deadline_ms: int | None = None
    is_fresh: bool = True

    def is_leased(self, now_ms: int) -> bool:
        """Whether a worker holds it."""
        return self.deadline_ms is not None and now_ms <= self.deadline_ms

    def band(self, now_ms: int) -> int:
        """Its priority, and one more for every ten seconds."""
        return (self.members.priority or 0) // BAND + (now_ms - self.due_ms) // AGEING_MS


class SimQueue:
    """The model of one job queue."""

    def __init__(self) -> None:
        self.jobs: dict[int, SimJob] = {}
        self.claims: dict[str, list[int]] = {key: [] for key in KEYS}
        self.maybe_new: dict[int, SimJob] = {}  # by number: appended without an answer
        self.maybe_gone: set[int] = set()  # acked without an answer
        self.unknown_until_ms = 0  # what an unanswered call did may still count
        self.is_vague = False  # whether a claim was not answered
        self.ever: dict[int, SimJob] = {}  # by number, as it was appended

    def is_free(self, key: str | None, now_ms: int) -> bool:
        """Whether limits let another job of a key be claimed."""
        if key is None:
            return True
        live = sum(job.is_leased(now_ms) and job.members.concurrency_key == key for job in self.jobs.values())
        recent = sum(now_ms - claimed_ms < RATE.per_ms for claimed_ms in self.claims[key])
        return live < LIMIT and recent < RATE.count


class JobbedTruth:
    """What is promised of the job queues and the schedule."""

    def __init__(self, rng: random.Random, machine: Machine) -> None:
        self._rng = rng
        self._machine = machine
        self._is_built = False
        self._is_unsure = False
        self._number = 0
        self._queues = {name: SimQueue() for name in QUEUES}
        self._ticks: list[int] = []

    def step(self, engine: Engine) -> None:
        """Enqueue, claim, ack and nack. Raises what the engine fails with."""
        if not self._is_built:
            self._build(engine)
        for _ in range(self._rng.randint(2, 6)):
            if self._is_unsure:
                return  # what failed is decided by the next start
            name = self._rng.choice(tuple(QUEUES))
            queue, chance = self._queues[name], self._rng.random()
            leased = [seq for seq, job in queue.jobs.items() if job.deadline_ms is not None]
            if chance < 0.4 and len(queue.jobs) < JOBS_MAX:
                self._enqueue(engine, name, self._machine.now_ms)
            elif chance < 0.75 or not leased:
                self._claim(engine, name, self._machine.now_ms)
            elif chance < 0.9:
                self._ack(engine, name, self._rng.choice(leased), self._machine.now_ms)
            else:
                self._nack(engine, name, self._rng.choice(leased), self._machine.now_ms)
        self._look_at_ticks(engine)

    def _build(self, engine: Engine) -> None:
        for name, durability in QUEUES.items():
            config = TopicConfig(
                type=TopicType.QUEUE,
                durability=durability,
                leases_durable=True,
                lease_ms=LEASE_MS,
                concurrency_limit=LIMIT,
                rate_limit=RATE,
            )
            engine.wait_for(engine.put_topic(name, config).commit)
        engine.wait_for(engine.put_topic(TICKS, TopicConfig(durability=Durability.FSYNC)).commit)
        put = engine.schedules.put(SCHEDULE, TICKS, "*/7 * * * * *", NewRecord(b'"tick"'))
        engine.wait_for(put.commit)
        self._is_built = True

    def _wait(self, engine: Engine, commit: Commit) -> None:
        """A call is answered; until then it may have happened or not."""
        engine.wait_for(commit)
        self._is_unsure = False

    # --- Jobs --------------------------------------------------------------------------------------------

    def _members(self, now_ms: int) -> JobMembers:
        rng, members = self._rng, JobMembers()
        if rng.random() < 0.3:
            members.delay_ms = rng.choice((0, 500, 5000))
        elif rng.random() < 0.2:
            members.run_at = max(0, now_ms + rng.choice((-5000, 0, 2000)))
        if rng.random() < 0.4:
            members.priority = rng.choice((-1000, -1, 249, 250, 1000))
        if rng.random() < 0.3:
            members.unique_key = rng.choice("uvw")
        if rng.random() < 0.7:
            members.concurrency_key = rng.choice(KEYS)
        return members

    def _enqueue(self, engine: Engine, name: str, now_ms: int) -> None:
        """One job; if its unique key is taken, the seq of the job that has it comes back."""
        queue, members = self._queues[name], self._members(now_ms)
        self._number += 1
        due_ms = now_ms + (members.delay_ms or 0) if members.run_at is None else max(now_ms, members.run_at)
        job = SimJob(self._number, members, due_ms)
        unique = members.unique_key
        known = [seq for seq, each in queue.jobs.items() if unique and each.members.unique_key == unique]
        if not known:
            queue.maybe_new[job.number] = job
            queue.ever[job.number] = replace(job)
        given = any(getattr(members, field) is not None for field in members.__struct_fields__)
        record = NewRecord(str(job.number).encode())
        self._is_unsure = True
        answer = engine.append(name, [record], jobs={0: members} if given else None)
        self._wait(engine, answer.commit)
        if known:
            is_hit = not answer.count and answer.seqs[0] in known
            require(is_hit, f"{name}: {answer} for unique key {unique}, which {known} has")
        else:
            require_equal(f"jobs appended to {name}", answer.count, 1)
            queue.jobs[answer.first_seq] = queue.maybe_new.pop(job.number)

    def _claim(self, engine: Engine, name: str, now_ms: int) -> None:
        queue, wanted = self._queues[name], self._rng.choice((1, 2, 20))
        before_ms, queue.unknown_until_ms = queue.unknown_until_ms, now_ms + max(LEASE_MS, RATE.per_ms) + 1
        queue.is_vague = True
        self._is_unsure = True
        answer = engine.claim(name, NODE, wanted)
        self._wait(engine, answer.commit)
        queue.unknown_until_ms, queue.is_vague = before_ms, False
        last: tuple[int, int] | None = None
        for text in answer.jobs:
            shown = json.loads(text)
            job = self._check_claimed(name, shown, now_ms)
            rank = (-job.band(now_ms), shown["$seq"])
            if job.is_fresh:
                require(last is None or last < rank, f"{name}: {rank} was claimed behind {last}")
                last = rank
            job.deadline_ms, job.is_fresh = now_ms + LEASE_MS, False
        if answer.count < wanted and now_ms >= queue.unknown_until_ms:
            left = [
                seq
                for seq, job in queue.jobs.items()
                if job.due_ms <= now_ms
                and not job.is_leased(now_ms)
                and queue.is_free(job.members.concurrency_key, now_ms)
            ]
            require_equal(f"jobs of {name} that could have been claimed", left, [])

    def _check_claimed(self, name: str, shown: dict[str, Any], now_ms: int) -> SimJob:
        """A claimed job is there, free and due; its key has room, and it has its members."""
        queue, seq = self._queues[name], shown["$seq"]
        job = queue.jobs.get(seq)
        require(job is not None, f"{name}: job {seq} was claimed, which is not there")
        assert job is not None
        members, key = job.members, job.members.concurrency_key
        require_equal(f"data of job {seq} of {name}", shown["data"], job.number)
        found = (shown.get("priority", 0), shown.get("unique_key"), shown.get("concurrency_key"))
        require_equal(f"members of {seq}", found, (members.priority or 0, members.unique_key, key))
        require(not job.is_leased(now_ms), f"{name}: job {seq} was claimed twice")
        require(job.due_ms <= now_ms, f"{name}: job {seq} came {job.due_ms - now_ms} ms early")
        require(queue.is_free(key, now_ms), f"{name}: key {key} was over its limit with job {seq}")
        if key is not None:
            queue.claims[key] = [each for each in queue.claims[key] if now_ms - each < RATE.per_ms]
            queue.claims[key].append(now_ms)
        job.deadline_ms = now_ms + LEASE_MS
        return job

    def _ack(self, engine: Engine, name: str, seq: int, now_ms: int) -> None:
        queue = self._queues[name]
        job = queue.jobs[seq]
        is_held = job.is_leased(now_ms)
        before_ms, queue.unknown_until_ms = queue.unknown_until_ms, now_ms + LEASE_MS + 1
        if is_held:
            queue.maybe_gone.add(seq)
            job.deadline_ms = None  # if the ack fails, the job can be claimed again at once, or later
        self._is_unsure = True
        answer = engine.ack(name, NODE, [seq])
        self._wait(engine, answer.commit)
        queue.unknown_until_ms = before_ms
        require_equal(f"ack of {seq} of {name}", answer.done, [seq] if is_held else [])
        if is_held:
            queue.maybe_gone.discard(seq)
            del queue.jobs[seq]

    def _nack(self, engine: Engine, name: str, seq: int, now_ms: int) -> None:
        queue, delay_ms = self._queues[name], self._rng.choice((0, 1000))
        job = queue.jobs[seq]
        is_held = job.is_leased(now_ms)
        before_ms, queue.unknown_until_ms = queue.unknown_until_ms, now_ms + LEASE_MS + 1
        if is_held:
            job.deadline_ms = None
        self._is_unsure = True
        answer = engine.nack(name, NODE, [seq], delay_ms=delay_ms)
        self._wait(engine, answer.commit)
        queue.unknown_until_ms = before_ms
        require_equal(f"nack of {seq} of {name}", answer.done, [seq] if is_held else [])
        if is_held:
            job.due_ms = now_ms + delay_ms

    # --- The schedule ------------------------------------------------------------------------------------

    def _look_at_ticks(self, engine: Engine) -> None:
        """What a reader has seen stays, and no instant is there twice."""
        found = [record["meta"]["$scheduled_ts"] for record in read_all(engine, TICKS)]
        now_ms = self._machine.now_ms
        require(found == sorted(set(found)), f"an instant fired twice, or out of order: {found}")
        require(all(each <= now_ms and each % 1000 == 0 for each in found), f"an instant is wrong: {found}")
        require_equal("instants that were seen before", found[: len(self._ticks)], self._ticks)
        self._ticks = found

    # --- A new life --------------------------------------------------------------------------------------

    def check(self, engine: Engine, how: str) -> None:
        """Hold what a new life finds against what was promised, and go on from what is there."""
        if not self._is_built:
            return
        self._is_unsure = False
        now_ms = self._machine.now_ms
        for name, queue in self._queues.items():
            found = {record["$seq"]: record["data"] for record in read_all(engine, name)}
            may_be_old = how == "power" and QUEUES[name] is not Durability.FSYNC
            self._adopt(name, queue, found, may_be_old=may_be_old)
            if may_be_old:
                # Leases may be lost, and so may nacks and claims that counted.
                queue.claims = {key: [] for key in KEYS}
                queue.unknown_until_ms = now_ms + max(LEASE_MS, RATE.per_ms) + 1
                for job in queue.jobs.values():
                    job.deadline_ms, job.is_fresh = None, False
                    job.due_ms = queue.ever[job.number].due_ms
            if queue.is_vague:
                queue.is_vague = False
                for job in queue.jobs.values():
                    job.is_fresh = False  # it may have been delivered
                    if not job.is_leased(now_ms):
                        job.deadline_ms = None  # or it is leased anew, so what an ack of it does is unknown
        self._look_at_ticks(engine)

    def _adopt(self, name: str, queue: SimQueue, found: dict[int, int], *, may_be_old: bool) -> None:
        by_number = {job.number: job for job in (*queue.jobs.values(), *queue.maybe_new.values())}
        if not may_be_old:
            sure = {seq: job.number for seq, job in queue.jobs.items() if seq not in queue.maybe_gone}
            lost = {seq for seq, number in sure.items() if found.get(seq) != number}
            require_equal(f"jobs of {name} that were lost", lost, set())
            foreign = {seq for seq, number in found.items() if number not in by_number}
            require_equal(f"jobs of {name} that came back", foreign, set())
        # After a power cut a job may be back that was acked.
        queue.jobs = {
            seq: by_number.get(number) or replace(queue.ever[number]) for seq, number in found.items()
        }
        queue.maybe_new.clear()
        queue.maybe_gone.clear()


def read_all(engine: Engine, name: str) -> list[dict[str, Any]]:
    """Every record of a topic."""
    found: list[dict[str, Any]] = []
    cursor = 0
    while True:
        answer = engine.diff(name, cursor, 1000)
        engine.wait_for(answer.commit)
        found += json.loads(answer.records)
        cursor = answer.next_from_seq
        if answer.caught_up:
            return found
