"""The lease table by itself: order, stale events, counters, and memory that stays bounded."""

from __future__ import annotations

import random

from everlog.topics.jobs.lease_log import runs_of
from everlog.topics.jobs.lease_table import DELAYED, LEASED, READY, LeaseTable, StoredLease

NOW = 1_000_000


def lease(table: LeaseTable, seq: int, lease_id: int, deadline_ms: int = NOW + 100, node: str = "w") -> None:
    table.lease({seq: lease_id}, node, deadline_ms)


def test_an_event_of_an_older_lease_never_changes_a_newer_one() -> None:
    table = LeaseTable()
    table.restore(StoredLease(7, LEASED, "new", 20, NOW + 500, 2))
    table.restore(StoredLease(7, READY, "old", 19, NOW, 1))
    table.restore(StoredLease(7, LEASED, "old", 10, NOW + 900, 1))
    table.restore(StoredLease(7, DELAYED, "old", 19, NOW + 900, 1))
    assert table.holds(7, "new", 20)
    assert (table.leased, table.delayed, table.deliveries(7)) == (1, 0, 2)
    assert table.next_due_ms() == NOW + 501


def test_events_that_a_snapshot_already_has_change_nothing() -> None:
    events = [
        StoredLease(1, LEASED, "a", 1, NOW + 100, 1),
        StoredLease(1, READY, "a", 1, NOW, 1),
        StoredLease(2, LEASED, "a", 2, NOW + 100, 1),
        StoredLease(1, LEASED, "b", 3, NOW + 200, 2),
        StoredLease(2, DELAYED, "a", 2, NOW + 300, 1),
        StoredLease(1, LEASED, "b", 3, NOW + 700, 2),
    ]
    for seen in range(len(events) + 1):
        table = LeaseTable()
        for event in (*events[:seen], *events):
            table.restore(event)
        stored = sorted(table.stored())
        assert stored == [
            StoredLease(1, LEASED, "b", 3, NOW + 700, 2),
            StoredLease(2, DELAYED, "a", 2, NOW + 300, 1),
        ]
        assert (table.leased, table.delayed) == (1, 1)
        assert table.pop_reclaimed() is None


def test_a_stored_table_is_restored_to_the_same_state() -> None:
    rng = random.Random(4)
    table = LeaseTable()
    for lease_id in range(1, 200):
        seq = rng.randrange(1, 40)
        lease(table, seq, lease_id, NOW + rng.randrange(100))
        if rng.random() < 0.5:
            table.release(seq, NOW, rng.choice((0, 50)))
    again = LeaseTable()
    for lease_ in table.stored():
        again.restore(lease_)
    assert sorted(again.stored()) == sorted(table.stored())
    assert (again.leased, again.delayed) == (table.leased, table.delayed)
    assert again.next_due_ms() == table.next_due_ms()
    reclaimed = [table.pop_reclaimed() for _ in range(40)]
    assert [again.pop_reclaimed() for _ in range(40)] == reclaimed


def test_a_job_is_never_claimable_twice_at_a_time() -> None:
    table = LeaseTable()
    for lease_id in range(1, 6):
        lease(table, 3, lease_id)
        table.release(3, NOW)
        assert table.pop_reclaimed() == 3
        assert table.pop_reclaimed() is None
        table.put_back(3)
        table.put_back(3)
        assert table.pop_reclaimed() == 3
        assert table.pop_reclaimed() is None
        table.put_back(3)
        assert table.pop_reclaimed() == 3


def test_a_sweep_at_the_very_deadline_ends_nothing_and_forgets_nothing() -> None:
    table = LeaseTable()
    lease(table, 1, 1, NOW)
    lease(table, 2, 2, NOW)
    table.release(2, NOW - 10, 10)
    assert not LeaseTable().sweep(NOW)
    assert table.sweep(NOW)
    assert (table.leased, table.delayed, table.pop_reclaimed()) == (1, 0, 2)
    assert table.next_due_ms() == NOW + 1
    assert table.sweep(NOW + 1)
    assert (table.leased, table.pop_reclaimed()) == (0, 1)


def test_held_leases_are_known_to_their_holder_until_they_end() -> None:
    table = LeaseTable()
    held: dict[int, int] = {}
    table.lease({1: 11, 2: 12, 3: 13, 4: 14, 5: 15}, "w", NOW + 100, held)
    table.release(1, NOW)
    table.begin_ack("w", [2], [None])
    table.drop([3])
    table.extend([5], NOW + 900)
    assert held == {4: 14, 5: 15}
    table.sweep(NOW + 101)
    assert held == {5: 15}
    table.lease({5: 99}, "other", NOW + 2000, None)
    assert held == {}


def test_heaps_do_not_grow_with_deleted_jobs() -> None:
    """With leases of a day, ended in every way, the heaps are bounded by the current jobs."""
    table = LeaseTable()
    lease_id = 0
    for first in range(1, 200_001, 10):
        seqs = list(range(first, first + 10))
        for verb in ("nack", "delay", "extend", "ack"):
            table.lease({seq: (lease_id := lease_id + 1) for seq in seqs}, "w", NOW + 86_400_000)
            if verb == "nack":
                for seq in seqs:
                    table.release(seq, NOW)
            elif verb == "delay":
                for seq in seqs:
                    table.release(seq, NOW, 86_400_000)
            elif verb == "extend":
                table.extend(seqs, NOW + 86_400_000 + first)
            else:
                table.begin_ack("w", seqs, [None] * 10)
                table.drop(seqs)
        assert not table.jobs
    assert table.entries < 10_000
    assert (table.leased, table.delayed, table.deleting) == (0, 0, 0)


def test_runs_are_the_shortest_description_of_seqs() -> None:
    assert runs_of([]) == []
    assert runs_of([5]) == [(5, 1)]
    assert runs_of([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 1), (9, 2)]
