"""Queues against the model: random claims, settlements, deletes, times and restarts, all answers compared."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from everlog.topics import ClaimRequest, TopicConfig, TopicType, record_of
from everlog.topics.config import Durability
from everlog.topics.results import Claimed
from tests.support.effort import effort
from tests.support.engines import EngineOnDisk
from tests.support.model_checks import all_records
from tests.topics.jobs.queue_model import ModelClaim, ModelLease, ModelQueue

QUEUE = "jobs"
LETTERS = "jobs.dead"
NODES = ("w1", "w2", "w3")

nodes = st.sampled_from(NODES)
tags = st.sampled_from((None, "a", "b"))
seqs = st.lists(st.integers(0, 40), max_size=5)
lease_times = st.sampled_from((None, 0, 100, 250, 5000))
claims = st.builds(ModelClaim, nodes, st.sampled_from((0, 1, 2, 3, 10)), lease_times)
configs = st.builds(
    TopicConfig,
    type=st.just(TopicType.QUEUE),
    durability=st.sampled_from((Durability.DISK, Durability.FSYNC, Durability.MEMORY)),
    ttl_ms=st.sampled_from((0, 0, 0, 3000)),
    cap_records=st.sampled_from((0, 0, 4, 12)),
    lease_ms=st.sampled_from((200, 1000)),
    max_deliveries=st.sampled_from((0, 1, 2)),
    dead_letter=st.sampled_from((None, LETTERS)),
    leases_durable=st.booleans(),
)
fence_kinds = st.sampled_from(("none", "empty", "right", "old"))


class QueueMachine(EngineOnDisk):
    """Operations of one queue; `queue` is the whole truth."""

    segment_max_events = 5

    def __init__(self) -> None:
        super().__init__()
        self.queue = ModelQueue(self._put(TopicConfig(type=TopicType.QUEUE, lease_ms=1000)))
        self.highest_lease_id = 0
        self.number = 0

    def _put(self, config: TopicConfig) -> TopicConfig:
        answer = self.engine.put_topic(QUEUE, config)
        self.engine.wait_for(answer.commit)
        return answer.config

    # --- The log ---

    @rule(batch=st.lists(tags, min_size=1, max_size=6))
    def append(self, batch: list[str | None]) -> None:
        values: list[tuple[object, str | None]] = []
        for tag in batch:
            self.number += 1
            values.append(({"job": self.number}, tag))
        answer = self.engine.append(QUEUE, [record_of(value, tag=tag) for value, tag in values])
        self.engine.wait_for(answer.commit)
        self.queue.append(values, self.now_ms)

    @rule(before=st.none() | st.integers(0, 40), tag=tags)
    @precondition(lambda self: self.queue.jobs)
    def delete(self, before: int | None, tag: str | None) -> None:
        if before is None and tag is None:
            return
        answer = self.engine.delete_records(QUEUE, before_seq=before, match=tag)
        self.engine.wait_for(answer.commit)
        assert answer.deleted == self.queue.delete(before, tag, self.now_ms)

    @rule(config=configs)
    def configure(self, config: TopicConfig) -> None:
        self.queue.configure(self._put(config), self.now_ms)

    # --- Leases ---

    @rule(wanted=st.lists(claims, min_size=1, max_size=3))
    def claim(self, wanted: list[ModelClaim]) -> None:
        now_ms = self.now_ms
        answers = self.engine.claim_together(QUEUE, [ClaimRequest(*claim) for claim in wanted])
        for answer in answers:
            self.engine.wait_for(answer.commit)
        hands = self.queue.claim(wanted, now_ms)
        for claim, answer, hand in zip(wanted, answers, hands, strict=True):
            deadline_ms = now_ms + self.queue.lease_ms_of(claim)
            assert list(answer.leases) == [job.seq for job in hand]
            for job, text in zip(hand, answer.jobs, strict=True):
                lease_id = answer.leases[job.seq]
                assert lease_id > self.highest_lease_id, "a lease id was given before"
                self.highest_lease_id = lease_id
                job.lease = ModelLease(claim.node, lease_id, deadline_ms)
                expected: dict[str, Any] = {
                    "$seq": job.seq,
                    "lease_id": f"lease_{lease_id:x}",
                    "deadline": deadline_ms,
                    "$ts": job.ts,
                    **({"$tag": job.tag} if job.tag else {}),
                    "deliveries": job.deliveries,
                    "data": job.value,
                }
                assert list(json.loads(text).items()) == list(expected.items())
        for answer in answers:
            assert answer.ready == self.queue.ready

    def _fences(
        self, node: str, asked: list[int], kinds: list[str]
    ) -> tuple[list[str] | None, list[int | None]]:
        """Lease ids to send with these seqs, and what the model has to compare."""
        if not kinds or kinds[0] == "none":
            return None, [None] * len(asked)
        texts: list[str] = []
        fences: list[int | None] = []
        for place, seq in enumerate(asked):
            job = self.queue.jobs.get(seq)
            current = job.lease.lease_id if job is not None and job.lease is not None else 1
            fence = {"right": current, "old": current - 1}.get(kinds[place % len(kinds)])
            fences.append(fence)
            texts.append("" if fence is None else f"lease_{fence:x}")
        return texts, fences

    def _split(
        self, node: str, asked: list[int], fences: list[int | None], ends: bool
    ) -> tuple[list[int], list[int]]:
        """Which of these jobs the node holds; each only once if that ends the lease."""
        self.queue.sweep(self.now_ms)
        done: list[int] = []
        skipped: list[int] = []
        for seq, fence in zip(asked, fences, strict=True):
            is_held = self.queue.holder(seq, node, fence) is not None and not (ends and seq in done)
            (done if is_held else skipped).append(seq)
        return done, skipped

    @rule(node=nodes, asked=seqs, kinds=st.lists(fence_kinds, max_size=3))
    def ack(self, node: str, asked: list[int], kinds: list[str]) -> None:
        texts, fences = self._fences(node, asked, kinds)
        done, skipped = self._split(node, asked, fences, True)
        answer = self.engine.ack(QUEUE, node, asked, texts)
        self.engine.wait_for(answer.commit)
        assert (answer.done, answer.skipped) == (done, skipped)
        for seq in done:
            del self.queue.jobs[seq]
        assert (answer.ready, answer.in_flight) == (self.queue.ready, self.queue.in_flight)

    @rule()
    def ack_all(self) -> None:
        held = [(job.seq, job.lease.node) for job in self.queue.jobs.values() if job.lease is not None]
        for node in NODES:
            self.ack(node, [seq for seq, holder in held if holder == node], [])

    @rule(
        node=nodes, asked=seqs, kinds=st.lists(fence_kinds, max_size=3), delay_ms=st.sampled_from((0, 0, 300))
    )
    def nack(self, node: str, asked: list[int], kinds: list[str], delay_ms: int) -> None:
        texts, fences = self._fences(node, asked, kinds)
        done, skipped = self._split(node, asked, fences, True)
        answer = self.engine.nack(QUEUE, node, asked, texts, delay_ms=delay_ms)
        self.engine.wait_for(answer.commit)
        assert (answer.done, answer.skipped) == (done, skipped)
        for seq in done:
            job = self.queue.jobs[seq]
            job.lease = None
            job.delayed_until_ms = self.now_ms + delay_ms if delay_ms else None
        assert (answer.ready, answer.in_flight) == (self.queue.ready, self.queue.in_flight)

    @rule(node=nodes, asked=seqs, lease_ms=st.sampled_from((0, 150, 4000)))
    def extend(self, node: str, asked: list[int], lease_ms: int) -> None:
        done, skipped = self._split(node, asked, [None] * len(asked), False)
        answer = self.engine.extend(QUEUE, node, asked, lease_ms=lease_ms)
        self.engine.wait_for(answer.commit)
        deadline_ms = self.now_ms + max(lease_ms, 100)
        assert (answer.done, answer.skipped, answer.deadline_ms) == (done, skipped, deadline_ms)
        for seq in done:
            job = self.queue.jobs[seq]
            assert job.lease is not None
            job.lease = job.lease._replace(deadline_ms=deadline_ms)

    @rule(node=nodes)
    def lose_a_connection(self, node: str) -> None:
        """Exactly the leases that one claim gave are released, if they still are its own."""
        held: dict[int, int] = {}
        answer = self.engine.claim(QUEUE, node, 2, held=held)
        self.engine.wait_for(answer.commit)
        (hand,) = self.queue.claim([ModelClaim(node, 2)], self.now_ms)
        assert held == answer.leases
        self._note_leases(answer)
        self.engine.release(QUEUE, node, {**answer.leases, 999: 1})
        self.engine.write()
        self.engine.poll()
        assert held == {}
        assert [job.seq for job in hand] == list(answer.leases)

    def _note_leases(self, answer: Claimed) -> None:
        self.highest_lease_id = max([self.highest_lease_id, *answer.leases.values()])

    # --- Time and restarts ---

    @rule(duration_ms=st.sampled_from((1, 99, 100, 101, 300, 1000, 2500)))
    def wait(self, duration_ms: int) -> None:
        due_ms = self.engine.expire_jobs(QUEUE)
        self.queue.sweep(self.now_ms)
        ends = [job.lease.deadline_ms + 1 for job in self.queue.jobs.values() if job.lease is not None]
        ends += [job.delayed_until_ms for job in self.queue.jobs.values() if job.delayed_until_ms is not None]
        assert due_ms == (min(ends) - self.now_ms if ends else None)
        self.clock.advance_ns(duration_ms * 1_000_000)

    @rule()
    def checkpoint(self) -> None:
        self.engine.checkpoint()
        self.engine.relocate()

    @rule(clean=st.booleans(), shards=st.integers(1, 2))
    def restart(self, clean: bool, shards: int) -> None:
        if clean:
            self.engine.close()
        else:
            self.engine.abandon()
        self.engine = self._open(shards)
        self.queue.restart()

    # --- Always ---

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        self.queue.sweep(self.now_ms)
        state = self.engine.state(QUEUE, touch=False)
        assert state.queue is not None
        found = (state.count, state.queue.ready, state.queue.in_flight, state.queue.dead_lettered)
        wanted = (len(self.queue.jobs), self.queue.ready, self.queue.in_flight, self.queue.dead_lettered)
        assert found == wanted
        assert [record.seq for record in all_records(self.engine, QUEUE)] == list(self.queue.jobs)
        if self.engine.has_topic(LETTERS):
            letters = [json.loads(letter.data) for letter in all_records(self.engine, LETTERS)]
            assert letters == self.queue.dead_letters
        else:
            assert self.queue.dead_letters == []


class EphemeralQueueMachine(QueueMachine):
    """The same without any log: every restart begins with an empty queue."""

    def _put(self, config: TopicConfig) -> TopicConfig:
        if config.durability is not Durability.EPHEMERAL:
            fields = {name: getattr(config, name) for name in config.__struct_fields__}
            config = TopicConfig(**{**fields, "durability": Durability.EPHEMERAL, "dead_letter": None})
        return super()._put(config)

    @precondition(lambda self: False)
    @rule(clean=st.booleans(), shards=st.integers(1, 2))
    def restart(self, clean: bool, shards: int) -> None:
        """See test_leases: an ephemeral queue is empty afterwards, its head is kept if it was clean."""


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=effort(60), stateful_step_count=40, deadline=None)
TestEphemeralQueue = EphemeralQueueMachine.TestCase
TestEphemeralQueue.settings = settings(max_examples=effort(20), stateful_step_count=30, deadline=None)
