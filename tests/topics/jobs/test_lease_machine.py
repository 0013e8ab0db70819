"""The lease table against a model without heaps: after any sequence of calls both have the same state."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from everlog.topics.jobs.lease_table import DELAYED, DELETING, LEASED, READY, LeaseTable, StoredLease
from tests.support.effort import effort
from tests.topics.jobs.lease_model import Holding, LeaseModel

seqs = st.integers(1, 12)
lists = st.lists(seqs, max_size=6)
nodes = st.sampled_from(["w1", "w2"])
times = st.integers(0, 60)


class LeaseMachine(RuleBasedStateMachine):
    """Everything that a job queue does with its table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable()
        self.model = LeaseModel()
        self.now_ms = 1000
        self.lease_id = 0
        self.holdings: list[tuple[Holding, Holding]] = []
        self.sweep(0)

    @rule(wanted=st.lists(seqs, unique=True, max_size=6), node=nodes, lease_ms=times, is_noted=st.booleans())
    def lease(self, wanted: list[int], node: str, lease_ms: int, is_noted: bool) -> None:
        ascending = sorted(wanted)
        known = [seq for seq in ascending if seq in self.model.jobs]
        assert self.table.unleased(ascending) == [seq for seq in ascending if seq not in known]
        deliveries = [self.model.jobs[seq].deliveries + 1 if seq in known else 1 for seq in ascending]
        assert self.table.next_deliveries(ascending) == deliveries
        leases = {seq: self.lease_id + place for place, seq in enumerate(ascending, 1)}
        self.lease_id += len(leases)
        pair: tuple[Holding, Holding] = ({}, {})
        if is_noted:
            self.holdings.append(pair)
        deadline_ms = self.now_ms + lease_ms
        self.table.lease(leases, node, deadline_ms, pair[0] if is_noted else None)
        self.model.lease(leases, node, deadline_ms, pair[1] if is_noted else None)

    @rule(wanted=lists, node=nodes, data=st.data())
    def begin_ack(self, wanted: list[int], node: str, data: st.DataObject) -> None:
        fence = st.none() | st.integers(1, max(1, self.lease_id)) | st.just(2**64 - 1)
        fences = [data.draw(fence) for _ in wanted]
        for seq, lease_id in zip(wanted, fences, strict=True):
            assert self.table.holds(seq, node, lease_id) == self.model.holds(seq, node, lease_id)
        assert self.table.begin_ack(node, wanted, fences) == self.model.begin_ack(node, wanted, fences)

    @rule(seq=seqs, delay_ms=st.sampled_from([0, 0, 30]))
    def release(self, seq: int, delay_ms: int) -> None:
        if seq in self.model.jobs and self.model.jobs[seq].phase == LEASED:
            self.table.release(seq, self.now_ms, delay_ms)
            self.model.release(seq, self.now_ms, delay_ms)

    @rule(wanted=lists, lease_ms=times)
    def extend(self, wanted: list[int], lease_ms: int) -> None:
        held = [seq for seq in wanted if seq in self.model.jobs and self.model.jobs[seq].phase == LEASED]
        self.table.extend(held, self.now_ms + lease_ms)
        for seq in held:
            self.model.jobs[seq].until_ms = self.now_ms + lease_ms

    @rule(seq=seqs, until_ms=times)
    def defer(self, seq: int, until_ms: int) -> None:
        self.table.defer(seq, self.now_ms + until_ms)
        self.model.defer(seq, self.now_ms + until_ms)

    @rule(seq=seqs)
    def begin_or_abort_delete(self, seq: int) -> None:
        if seq in self.model.jobs and self.model.jobs[seq].phase == READY:
            self.table.begin_delete(seq)
            self.model._end(seq, DELETING)
        else:
            self.table.abort_delete(seq)
            self.model.abort_delete(seq)

    @rule(seq=seqs, behind=st.integers(0, 2))
    def cancel_lease(self, seq: int, behind: int) -> None:
        job = self.model.jobs.get(seq)
        lease_id = max(0, (job.lease_id if job else 0) - behind)
        self.table.cancel_lease(seq, lease_id)
        self.model.cancel_lease(seq, lease_id)

    @rule(seq=seqs, phase=st.sampled_from([READY, LEASED, DELAYED]), node=nodes, behind=st.integers(-1, 2))
    def restore(self, seq: int, phase: int, node: str, behind: int) -> None:
        job = self.model.jobs.get(seq)
        event = (seq, phase, node, max(0, (job.lease_id if job else 0) - behind), self.now_ms + 20, 3)
        self.lease_id = max(self.lease_id, event[3])
        self.table.restore(StoredLease(*event))
        self.model.restore(*event)

    @rule(first=seqs, count=st.integers(0, 20), how=st.sampled_from(["list", "range", "floor"]))
    def drop(self, first: int, count: int, how: str) -> None:
        if how == "floor":
            self.table.drop_below(first)
            self.model.drop(list(range(first)))
            return
        gone = range(first, first + count)
        if how == "list":
            self.table.drop(list(gone))
        else:
            self.table.drop_range(gone.start, gone.stop)
        self.model.drop(list(gone))

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.model.drop(list(self.model.jobs))
        self.model.cursor = 1

    @rule(times=st.integers(1, 4), are_put_back=st.booleans())
    def reclaim(self, times: int, are_put_back: bool) -> None:
        taken = [self.table.pop_reclaimed() for _ in range(times)]
        assert taken == [self.model.pop_reclaimed() for _ in range(times)]
        for seq in taken if are_put_back else ():
            if seq is not None:
                self.table.put_back(seq)
                self.model.put_back(seq)

    @rule(duration_ms=times)
    def sweep(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        assert self.table.sweep(self.now_ms) == self.model.sweep(self.now_ms)
        assert self.table.next_due_ms() == self.model.next_due_ms()

    @invariant()
    def both_say_the_same(self) -> None:
        found = {
            seq: (job.phase, job.node, job.lease_id, job.until_ms, job.deliveries)
            for seq, job in self.table.jobs.items()
        }
        assert found == self.model.states()
        assert (self.table.leased, self.table.delayed, self.table.deleting) == self.model.counts()
        assert self.table.cursor == self.model.cursor
        for noted, expected in self.holdings:
            assert noted == expected


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=effort(60), stateful_step_count=40, deadline=None)
