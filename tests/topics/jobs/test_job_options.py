"""Jobs with options in an engine: order, delays, unique keys, limits, attempts, and what restarts leave."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import InvalidRequest, NotAQueue, TopicNotFound
from everlog.job_types import JobError, JobMembers, RateLimit, Retry
from everlog.topics import Appended, Claimed, record_of
from everlog.topics.jobs import job_board
from everlog.topics.jobs.lease_log import board_of
from everlog.topics.jobs.lease_table import DUE_AT_ONCE
from tests.support.engines import EngineHarness

FOREVER_MS = 31_536_000_000


class JobQueue(EngineHarness):
    """An engine with one job queue, and short calls to work on it."""

    def open_queue(self, **config: Any) -> JobQueue:
        self.put("q", type="queue", **config)
        return self

    def enqueue(self, *members: dict[str, Any], key: str | None = None) -> Appended:
        records = [record_of(place) for place in range(len(members))]
        jobs = {place: JobMembers(**each) for place, each in enumerate(members) if each}
        answer = self.engine.append("q", records, jobs=jobs, idempotency_key=key)
        self.wait_for(answer.commit)
        return answer

    def claim(self, maximum: int = 100, node: str = "w", **options: Any) -> Claimed:
        answer = self.engine.claim("q", node, maximum, **options)
        self.wait_for(answer.commit)
        return answer

    def claimed(self, maximum: int = 100, node: str = "w") -> list[int]:
        return list(self.claim(maximum, node).leases)

    def nack(self, *seqs: int, **options: Any) -> None:
        self.wait_for(self.engine.nack("q", "w", seqs, **options).commit)

    def ack(self, *seqs: int) -> None:
        self.wait_for(self.engine.ack("q", "w", seqs).commit)

    @property
    def ready(self) -> int:
        queue = self.state("q").queue
        assert queue is not None
        return queue.ready


# --- Members ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "members",
    [
        {"delay_ms": -1},
        {"delay_ms": FOREVER_MS + 1},
        {"run_at": -1},
        {"priority": 1001},
        {"priority": -1001},
        {"unique_key": ""},
        {"unique_key": "x" * 257},
        {"concurrency_key": "é" * 129},
        {"max_deliveries": -1},
        {"delay_ms": 1, "run_at": 1},
    ],
)
def test_a_member_out_of_range_is_refused_and_changes_nothing(members: dict[str, Any]) -> None:
    shop = JobQueue(None).open_queue()
    with pytest.raises(InvalidRequest):
        shop.enqueue({}, members)
    assert shop.state("q").head_seq == 0


def test_the_bounds_themselves_are_taken() -> None:
    shop = JobQueue(None).open_queue()
    shop.enqueue({"delay_ms": FOREVER_MS}, {"priority": 1000}, {"priority": -1000}, {"unique_key": "x" * 256})
    assert shop.state("q").head_seq == 4


def test_a_log_takes_no_job_and_is_not_created_by_one() -> None:
    shop = JobQueue(None)
    shop.put("log")
    for name in ("log", "absent"):
        with pytest.raises(NotAQueue):
            shop.engine.append(name, [record_of(1)], jobs={0: JobMembers(priority=0)})
    with pytest.raises(TopicNotFound):
        shop.engine.state("absent")


def test_members_come_back_on_claim() -> None:
    shop = JobQueue(None).open_queue()
    shop.enqueue({"priority": 5, "unique_key": "u", "concurrency_key": "c", "max_deliveries": 0}, {})
    first, second = map(json.loads, shop.claim().jobs)
    assert first["priority"] == 5
    assert (first["unique_key"], first["concurrency_key"], first["max_deliveries"]) == ("u", "c", 0)
    assert {"priority", "unique_key"}.isdisjoint(second)


# --- Order ------------------------------------------------------------------------------------------------


def test_higher_bands_come_first_and_waiting_raises_them() -> None:
    shop = JobQueue(None).open_queue()
    shop.enqueue({"priority": 0}, {"priority": 600}, {"priority": -600}, {"priority": 510}, {})
    assert shop.claimed() == [2, 4, 1, 5, 3]
    shop = JobQueue(None).open_queue()
    shop.enqueue({})
    shop.advance_ms(30_000)
    shop.enqueue({"priority": 500})
    assert shop.claimed() == [1, 2]


def test_a_delayed_job_is_claimed_when_it_is_due_not_before() -> None:
    shop = JobQueue(None).open_queue()
    shop.enqueue({"delay_ms": 1000}, {"run_at": shop.now_ms() + 500}, {"run_at": 1})
    assert shop.ready == 1
    assert shop.claimed() == [3]
    assert shop.engine.expire_jobs("q") == 500
    shop.advance_ms(499)
    assert shop.claimed() == []
    shop.advance_ms(1)
    assert shop.claimed() == [2]
    shop.advance_ms(500)
    assert shop.claimed() == [1]


def test_returned_jobs_of_a_band_come_before_new_ones() -> None:
    shop = JobQueue(None).open_queue()
    shop.enqueue({"priority": 300}, {"priority": 300}, {"priority": 300})
    assert shop.claimed(2) == [1, 2]
    shop.nack(2)
    assert shop.claimed() == [2, 3]


# --- Unique keys ------------------------------------------------------------------------------------------


def test_a_live_job_stands_for_later_ones_with_its_key() -> None:
    shop = JobQueue(None).open_queue()
    assert shop.enqueue({"unique_key": "a"}).seqs == (1,)
    again = shop.enqueue({"unique_key": "a"}, {}, {"unique_key": "b"}, {"unique_key": "b"})
    assert again.seqs == (1, 2, 3, 3)
    assert (again.first_seq, again.last_seq, again.count) == (2, 3, 2)
    none = shop.enqueue({"unique_key": "a"})
    assert (none.seqs, none.count, none.head_seq) == ((1,), 0, 3)
    shop.claim(1)
    shop.ack(1)
    assert shop.enqueue({"unique_key": "a"}).seqs == (4,)


def test_a_window_counts_from_the_append_also_when_the_job_is_done(tmp_path: Path) -> None:
    shop = JobQueue(tmp_path).open_queue(unique_window_ms=1000)
    shop.enqueue({"unique_key": "a"})
    shop.claim()
    shop.ack(1)
    shop.restart()
    shop.advance_ms(1000)
    assert shop.enqueue({"unique_key": "a"}).seqs == (1,)
    shop.advance_ms(1)
    assert shop.enqueue({"unique_key": "a"}).seqs == (2,)


@pytest.mark.parametrize("is_clean", [False, True])
def test_unique_keys_and_answers_survive_a_restart(tmp_path: Path, is_clean: bool) -> None:
    shop = JobQueue(tmp_path).open_queue()
    shop.enqueue({"unique_key": "a"})
    first = shop.enqueue({"unique_key": "a"}, {"unique_key": "b"}, key="k")
    only_hits = shop.enqueue({"unique_key": "b"}, key="h")
    shop.restart() if is_clean else shop.crash()
    again = shop.enqueue({"unique_key": "a"}, {"unique_key": "b"}, key="k")
    assert (again.deduped, again.seqs) == (True, first.seqs) == (True, (1, 2))
    again = shop.enqueue({"unique_key": "b"}, key="h")
    assert (again.deduped, again.seqs) == (True, only_hits.seqs) == (True, (2,))
    assert shop.enqueue({"unique_key": "b"}).seqs == (2,)


# --- Limits -----------------------------------------------------------------------------------------------


def test_one_lease_for_each_key_unless_the_limit_says_more() -> None:
    shop = JobQueue(None).open_queue()
    shop.enqueue(*({"concurrency_key": key} for key in "aaabb"), {})
    assert shop.claimed() == [1, 4, 6]
    assert shop.claimed() == []
    shop.ack(1)
    assert shop.claimed() == [2]
    shop.nack(2)
    assert shop.claimed() == [2]
    shop.put("q", type="queue", concurrency_limit=2)
    assert shop.claimed() == [3, 5]


def test_many_blocked_jobs_do_not_hide_the_one_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_board, "LOOKS_MAX", 10)
    shop = JobQueue(None).open_queue()
    shop.enqueue(*({"concurrency_key": "a"} for _ in range(50)), {})
    assert shop.claimed(1) == [1]
    incomplete = shop.engine.claim("q", "w", 1, block=False)
    assert incomplete.incomplete
    assert shop.claimed(1) == [51]


def test_a_configuration_wakes_no_more_jobs_of_a_key_than_may_be_leased() -> None:
    shop = JobQueue(None).open_queue()
    shop.enqueue(*({"concurrency_key": key} for key in "ab" for _ in range(10)))
    assert shop.claimed() == [1, 11]
    board = board_of(shop.engine._core.topics["q"])
    for paused in (True, False):
        shop.put("q", type="queue", paused=paused)
        assert board._order.size == 0
    shop.put("q", type="queue", concurrency_limit=3)
    board.sweep(shop.now_ms())
    assert board._order.size == 6
    assert shop.claimed() == [2, 3, 12, 13]
    shop.ack(3, 13)
    assert shop.claimed() == [4, 14]
    shop.put("q", type="queue", concurrency_limit=9, rate_limit=RateLimit(1, 1000, "key"))
    assert shop.claimed() == [5, 15]
    shop.put("q", type="queue", concurrency_limit=9)
    assert shop.claimed() == [6, 7, 8, 9, 10, 16, 17, 18, 19, 20]


@pytest.mark.parametrize("keys", [1, 40, 4000])
def test_new_limits_wake_a_bounded_number_of_jobs_in_a_step_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    monkeypatch.setattr(job_board, "DUE_AT_ONCE", 50)
    shop = JobQueue(None).open_queue()
    jobs = [{"concurrency_key": f"k{number % keys}", "priority": number % 5 * 250} for number in range(8000)]
    shop.enqueue(*jobs)
    board = board_of(shop.engine._core.topics["q"])
    while shop.claimed(1000):
        pass
    parked = len(board._queued)
    assert parked == 8000 - keys
    shop.put("q", type="queue", concurrency_limit=8000)
    assert board._order.size == 0, "the change itself wakes nothing"
    steps, woken = 0, 0
    while (answer := shop.engine.claim("q", "w", 1, block=False)).incomplete:
        assert 0 < board._order.size - woken <= 50
        assert board.next_due_ms(shop.now_ms(), 1) == shop.now_ms()
        steps, woken = steps + 1, board._order.size
    assert steps >= parked // 50 - 1
    assert board._order.size == parked - 1
    assert jobs[next(iter(answer.leases)) - 1]["priority"] == 1000, "jobs that wake later may come first"


def test_a_claim_does_not_walk_through_the_keys_of_all_leases() -> None:
    class Unwalkable(dict[str, int]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("a claim of two jobs looked at the keys of all leases")

    shop = JobQueue(None).open_queue()
    shop.enqueue(*({"concurrency_key": f"k{number}"} for number in range(22)))
    shop.claim(20)
    board = board_of(shop.engine._core.topics["q"])
    board._key_leases = Unwalkable(board._key_leases)
    assert shop.claimed(2) == [21, 22]


def test_a_claim_passes_over_many_delayed_jobs_in_steps_and_keeps_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_board, "PASSED_MAX", 100)
    shop = JobQueue(None).open_queue()
    shop.enqueue(*({"delay_ms": 3_600_000} for _ in range(1000)), {"priority": -1000}, {})
    steps = 0
    while (claimed := shop.engine.claim("q", "w", 1, block=False)).incomplete:
        steps += 1
    assert list(claimed.leases) == [1002]
    assert steps > 5
    assert not shop.engine.claim("q", "w", 0, block=False).incomplete  # the cursor has moved behind them


def test_the_rate_of_a_job_queue_holds_in_every_window() -> None:
    shop = JobQueue(None).open_queue(rate_limit=RateLimit(2, 1000))
    shop.enqueue({}, {}, {}, {}, {})
    assert shop.claimed() == [1, 2]
    shop.ack(1)
    assert shop.claimed() == []
    assert shop.engine.expire_jobs("q") == 1000
    shop.advance_ms(999)
    assert shop.claimed() == []
    shop.advance_ms(1)
    assert shop.claimed() == [3, 4]


def test_the_rate_of_a_key_leaves_other_keys_alone() -> None:
    shop = JobQueue(None).open_queue(rate_limit=RateLimit(1, 1000, "key"), concurrency_limit=9)
    shop.enqueue(*({"concurrency_key": key} for key in "aab"), {})
    assert shop.claimed() == [1, 3, 4]
    assert shop.claimed() == []
    shop.advance_ms(1000)
    assert shop.claimed() == [2]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_limits_hold_across_a_kill(tmp_path: Path, durability: str, checkpoints: bool) -> None:
    shop = JobQueue(tmp_path).open_queue(
        durability=durability, leases_durable=True, rate_limit=RateLimit(3, 1000)
    )
    shop.enqueue(*({"concurrency_key": key} for key in "aabb"), {"priority": 999, "delay_ms": 100}, {})
    assert shop.claimed() == [1, 3, 6]
    if checkpoints:
        shop.engine.checkpoint()
    shop.crash()
    assert shop.claimed() == []
    shop.advance_ms(1000)
    assert shop.claimed() == [5]  # the keys of the others are leased
    shop.ack(1)
    assert shop.claimed() == [2]


def test_a_paused_job_queue_gives_nothing_and_takes_everything() -> None:
    shop = JobQueue(None).open_queue()
    shop.enqueue({}, {"priority": 300})
    shop.claim(1)
    shop.put("q", type="queue", paused=True)
    assert shop.claimed() == []
    shop.enqueue({})
    shop.ack(2)
    shop.put("q", type="queue")
    assert shop.claimed() == [1, 3]


# --- Failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["delay", "nack", "expiry"])
def test_of_very_many_jobs_that_become_due_together_a_step_takes_a_bounded_number(how: str) -> None:
    shop = JobQueue(None).open_queue(lease_ms=FOREVER_MS)
    count = 2 * DUE_AT_ONCE + 500
    for _ in range(0, count, 500):
        if how == "delay":
            shop.enqueue(*[{"delay_ms": 1000}] * 500)
        else:
            shop.append("q", *range(500))
            leased = shop.claim(500, lease_ms=1000 if how == "expiry" else None).leases
            if how == "nack":
                shop.nack(*leased, delay_ms=1000)
    shop.advance_ms(1001 if how == "expiry" else 1000)
    if how == "expiry":  # that some are left makes none of them valid again
        assert shop.engine.ack("q", "w", [count]).skipped == [count]
        assert shop.engine.nack("q", "w", [count - 1]).skipped == [count - 1]
        assert shop.ready == count
        return
    assert [shop.ready for _ in range(4)] == [DUE_AT_ONCE, 2 * DUE_AT_ONCE, count, count]
    assert sorted(seq for _ in range(count // 500) for seq in shop.claimed(500)) == list(range(1, count + 1))


def test_a_claim_that_leaves_due_jobs_for_the_next_step_says_that_they_are_due() -> None:
    shop = JobQueue(None).open_queue()
    for _ in range(0, DUE_AT_ONCE + 500, 500):
        shop.enqueue(*[{"delay_ms": 1000, "concurrency_key": "k"}] * 500)
    shop.advance_ms(1000)
    assert shop.engine.expire_jobs("q") == 0
    assert shop.engine.expire_jobs("q") is None


def test_the_delay_of_a_nack_follows_the_retry_of_the_topic() -> None:
    shop = JobQueue(None).open_queue(retry=Retry(base_ms=100, factor=3, max_ms=500))
    shop.enqueue({})
    for delay_ms in (100, 300, 500, 500):
        assert shop.claimed() == [1]
        shop.nack(1)
        assert shop.engine.expire_jobs("q") == delay_ms
        shop.advance_ms(delay_ms)
    assert shop.claimed() == [1]
    shop.nack(1, delay_ms=0)
    assert shop.claimed() == [1]


def test_dead_letters_carry_the_error_and_the_limit_of_the_job() -> None:
    shop = JobQueue(None).open_queue(dead_letter="dead", max_deliveries=5)
    shop.enqueue({"max_deliveries": 1}, {"max_deliveries": 0})
    shop.claim()
    shop.nack(1, 2, error=JobError("ValueError", "no price", "x" * 10_000))
    assert shop.claimed() == [2]
    (letter,) = json.loads(shop.engine.diff("dead").records)
    assert letter["meta"]["$dead_letter_error"] == {"type": "ValueError", "message": "no price"}
    assert letter["meta"]["$dead_letter_deliveries"] == "1"


# --- A model ----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("abc-"), st.integers(-2, 2)),
            st.tuples(st.sampled_from(["claim", "ack", "nack", "wait", "kill"]), st.integers(1, 3)),
        ),
        max_size=40,
    ),
    st.integers(0, 2),
)
def test_no_key_ever_has_more_leases_than_its_limit_and_no_job_is_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], limit: int
) -> None:
    shop = JobQueue(tmp_path_factory.mktemp("jobs")).open_queue(
        leases_durable=True, concurrency_limit=limit, lease_ms=5000
    )
    keys: dict[int, str] = {}
    leased: dict[int, int] = {}  # until when
    done: set[int] = set()
    for verb, *rest in steps:
        leased = {seq: until for seq, until in leased.items() if until >= shop.now_ms()}
        if verb == "add":
            key, band = rest
            members = {"priority": 250 * band} | ({} if key == "-" else {"concurrency_key": key})
            keys[shop.enqueue(members).first_seq] = key
        elif verb == "claim":
            got = shop.claimed(rest[0])
            assert not set(got) & (set(leased) | done)
            leased |= dict.fromkeys(got, shop.now_ms() + 5000)
            counted = Counter(keys[seq] for seq in leased if keys[seq] != "-")
            assert all(number <= (limit or 1) for number in counted.values())
            free = [
                seq
                for seq in keys
                if seq not in leased and seq not in done and counted[keys[seq]] < (limit or 1)
            ]
            assert len(got) == rest[0] or not free
        elif verb == "kill":
            shop.crash()
        elif verb == "wait":
            shop.advance_ms(2000 * rest[0])
        elif leased:
            seq = min(leased)
            del leased[seq]
            if verb == "ack":
                shop.ack(seq)
                done.add(seq)
            else:
                shop.nack(seq)
    shop.advance_ms(10_000)
    left = set(keys) - done
    while got := shop.claimed(1):
        left.discard(got[0])
        shop.ack(*got)
    assert not left
