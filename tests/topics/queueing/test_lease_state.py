"""The projection of lease events by itself: order, stale events, counters, and memory that stays bounded."""

from __future__ import annotations

import random

from everlog.native.lease_table import DELAYED, LEASED, READY
from everlog.topics.queueing.deleting import runs_of
from everlog.topics.queueing.lease_state import KeptLease, LeaseState

NOW = 1_000_000


def lease(state: LeaseState, seq: int, lease_id: int, deadline_ms: int = NOW + 100, node: str = "w") -> None:
    state.give({seq: lease_id}, node, deadline_ms)


def test_an_event_of_an_older_lease_never_changes_a_newer_one() -> None:
    state = LeaseState()
    state.replay(KeptLease(7, LEASED, "new", 20, NOW + 500, 2))
    state.replay(KeptLease(7, READY, "old", 19, NOW, 1))
    state.replay(KeptLease(7, LEASED, "old", 10, NOW + 900, 1))
    state.replay(KeptLease(7, DELAYED, "old", 19, NOW + 900, 1))
    assert state.holds(7, "new", 20)
    assert (state.leased, state.delayed, state.deliveries(7)) == (1, 0, 2)
    assert state.next_due_ms() == NOW + 501


def test_events_that_a_snapshot_already_has_change_nothing() -> None:
    events = [
        KeptLease(1, LEASED, "a", 1, NOW + 100, 1),
        KeptLease(1, READY, "a", 1, NOW, 1),
        KeptLease(2, LEASED, "a", 2, NOW + 100, 1),
        KeptLease(1, LEASED, "b", 3, NOW + 200, 2),
        KeptLease(2, DELAYED, "a", 2, NOW + 300, 1),
        KeptLease(1, LEASED, "b", 3, NOW + 700, 2),
    ]
    for seen in range(len(events) + 1):
        state = LeaseState()
        for event in (*events[:seen], *events):
            state.replay(event)
        kept = sorted(state.kept())
        assert kept == [
            KeptLease(1, LEASED, "b", 3, NOW + 700, 2),
            KeptLease(2, DELAYED, "a", 2, NOW + 300, 1),
        ]
        assert (state.leased, state.delayed) == (1, 1)
        assert state.pop_reclaimed() is None


def test_what_is_kept_and_replayed_is_the_same_state() -> None:
    rng = random.Random(4)
    state = LeaseState()
    for lease_id in range(1, 200):
        seq = rng.randrange(1, 40)
        lease(state, seq, lease_id, NOW + rng.randrange(100))
        if rng.random() < 0.5:
            state.release(seq, NOW, rng.choice((0, 50)))
    again = LeaseState()
    for kept in state.kept():
        again.replay(kept)
    assert sorted(again.kept()) == sorted(state.kept())
    assert (again.leased, again.delayed) == (state.leased, state.delayed)
    assert again.next_due_ms() == state.next_due_ms()
    reclaimed = [state.pop_reclaimed() for _ in range(40)]
    assert [again.pop_reclaimed() for _ in range(40)] == reclaimed


def test_a_job_is_never_claimable_twice_at_a_time() -> None:
    state = LeaseState()
    for lease_id in range(1, 6):
        lease(state, 3, lease_id)
        state.release(3, NOW)
        assert state.pop_reclaimed() == 3
        assert state.pop_reclaimed() is None
        state.put_back(3)
        state.put_back(3)
        assert state.pop_reclaimed() == 3
        assert state.pop_reclaimed() is None
        state.put_back(3)
        assert state.pop_reclaimed() == 3


def test_a_sweep_at_the_very_deadline_ends_nothing_and_forgets_nothing() -> None:
    state = LeaseState()
    lease(state, 1, 1, NOW)
    lease(state, 2, 2, NOW)
    state.release(2, NOW - 10, 10)
    assert not LeaseState().sweep(NOW)
    assert state.sweep(NOW)
    assert (state.leased, state.delayed, state.pop_reclaimed()) == (1, 0, 2)
    assert state.next_due_ms() == NOW + 1
    assert state.sweep(NOW + 1)
    assert (state.leased, state.pop_reclaimed()) == (0, 1)


def test_held_leases_are_known_to_their_holder_until_they_end() -> None:
    state = LeaseState()
    held: dict[int, int] = {}
    state.give({1: 11, 2: 12, 3: 13, 4: 14, 5: 15}, "w", NOW + 100, held)
    state.release(1, NOW)
    state.take("w", [2], [None])
    state.drop([3])
    state.extend([5], NOW + 900)
    assert held == {4: 14, 5: 15}
    state.sweep(NOW + 101)
    assert held == {5: 15}
    state.give({5: 99}, "other", NOW + 2000, None)
    assert held == {}


def test_heaps_do_not_remember_every_job_that_ever_was() -> None:
    """With leases of a day, and settled in all ways, memory is that of the jobs that are there."""
    state = LeaseState()
    lease_id = 0
    for first in range(1, 200_001, 10):
        seqs = list(range(first, first + 10))
        for verb in ("nack", "delay", "extend", "ack"):
            state.give({seq: (lease_id := lease_id + 1) for seq in seqs}, "w", NOW + 86_400_000)
            if verb == "nack":
                for seq in seqs:
                    state.release(seq, NOW)
            elif verb == "delay":
                for seq in seqs:
                    state.release(seq, NOW, 86_400_000)
            elif verb == "extend":
                state.extend(seqs, NOW + 86_400_000 + first)
            else:
                state.take("w", seqs, [None] * 10)
                state.drop(seqs)
        assert not state.jobs
    assert state.entries < 10_000
    assert (state.leased, state.delayed, state.leaving) == (0, 0, 0)


def test_runs_are_the_shortest_description_of_seqs() -> None:
    assert runs_of([]) == []
    assert runs_of([5]) == [(5, 1)]
    assert runs_of([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 1), (9, 2)]
