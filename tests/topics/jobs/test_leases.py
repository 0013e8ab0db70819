"""Queues in an engine: what failures do, what is logged, and what a restart or a power loss leaves."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import (
    BatchTooLarge,
    Corrupt,
    InvalidRequest,
    LimitReached,
    NotAQueue,
    ReadOnly,
    StorageFailed,
    TopicNotFound,
)
from everlog.fs import OsFs
from everlog.topics import Claimed, ClaimRequest, Engine, NewRecord, Settled
from everlog.topics.core import QUEUE_MAX
from everlog.topics.storage.verify import verify
from tests.support.engines import EngineHarness


class Shop(EngineHarness):
    """An engine with one job queue, and short calls to work on it."""

    def open_queue(self, jobs: int = 3, **config: Any) -> None:
        self.put("q", type="queue", **config)
        if jobs:
            self.append("q", *range(1, jobs + 1))

    def claim(self, maximum: int = 1, node: str = "w", **options: Any) -> Claimed:
        answer = self.engine.claim("q", node, maximum, **options)
        self.wait_for(answer.commit)
        return answer

    def seqs_claimed(self, maximum: int = 1, node: str = "w") -> list[int]:
        return list(self.claim(maximum, node).leases)

    def ack(self, *seqs: int, node: str = "w") -> Settled:
        answer = self.engine.ack("q", node, seqs)
        self.wait_for(answer.commit)
        return answer

    def nack(self, *seqs: int, node: str = "w", delay_ms: int = 0) -> Settled:
        answer = self.engine.nack("q", node, seqs, delay_ms=delay_ms)
        self.wait_for(answer.commit)
        return answer

    @property
    def counts(self) -> tuple[int, int, int]:
        queue = self.state("q").queue
        assert queue is not None
        return queue.ready, queue.in_flight, queue.dead_lettered


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


# --- When an ack is kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durability", "at_once", "when_written"),
    [("ephemeral", True, True), ("memory", False, True), ("disk", False, True), ("fsync", False, False)],
)
def test_an_ack_is_done_when_its_class_says(
    shop: Shop, durability: str, at_once: bool, when_written: bool
) -> None:
    shop.open_queue(durability=durability)
    shop.claim(2)
    answer = shop.engine.ack("q", "w", [1])
    assert (answer.commit.done, shop.state("q").count == 2) == (at_once, at_once)
    assert (answer.ready, answer.in_flight) == (1, 1)
    shop.engine.write()
    assert answer.commit.done == when_written
    shop.wait_for(answer.commit)
    assert shop.seqs("q") == [2, 3]


def test_while_an_ack_is_on_its_way_the_job_is_not_claimed(shop: Shop) -> None:
    shop.open_queue(1, durability="fsync", lease_ms=100)
    shop.claim()
    first = shop.engine.ack("q", "w", [1])
    shop.advance_ms(200)
    assert shop.engine.ack("q", "w", [1]).skipped == [1]
    assert shop.engine.claim("q", "other").count == 0
    shop.wait_for(first.commit)
    assert shop.counts == (0, 0, 0)


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_if_an_ack_cannot_be_kept_its_jobs_are_claimable_again(shop: Shop, operation: str) -> None:
    shop.open_queue(durability="fsync")
    shop.claim(2)
    shop.disk.fail_when(operation, errno.EIO, times=1)
    answer = shop.engine.ack("q", "w", [1, 2])
    with pytest.raises(StorageFailed):
        shop.wait_for(answer.commit)
    assert shop.counts == (3, 0, 0)
    assert [json.loads(job)["deliveries"] for job in shop.engine.claim("q", "other", 3).jobs] == [2, 2, 1]


def test_an_ack_to_a_log_that_takes_nothing_more_fails_and_frees_its_jobs(shop: Shop) -> None:
    shop.open_queue(durability="fsync")
    shop.claim(2)
    shop.disk.fail_when("fdatasync", errno.EIO, times=1)
    with pytest.raises(StorageFailed):
        shop.append("q", 4)
    with pytest.raises(ReadOnly):
        shop.engine.ack("q", "w", [1, 2])
    assert shop.counts == (3, 0, 0)


def test_an_ack_that_finds_the_log_busy_changes_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path, file_bytes=16 << 20)
    shop.open_queue()
    shop.claim()
    with pytest.raises(LimitReached):
        for _ in range(QUEUE_MAX + 1):
            shop.engine.append("q", [NewRecord(b"1")])
    with pytest.raises(LimitReached):
        shop.engine.ack("q", "w", [1])
    shop.engine.write()
    assert shop.ack(1).done == [1]


@pytest.mark.parametrize("restart", ["restart", "crash", "lose_power"])
@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_acked_jobs_never_come_back(shop: Shop, restart: str, checkpoints: int) -> None:
    """Not from the log, not from segments that were written before or after the ack."""
    shop.open_queue(30, durability="fsync")
    shop.checkpoint()
    shop.claim(20)
    shop.ack(*range(2, 20, 3))
    shop.checkpoint(checkpoints)
    shop.ack(1, 20)
    getattr(shop, restart)()
    left = [seq for seq in range(1, 31) if seq not in (*range(2, 20, 3), 1, 20)]
    assert shop.seqs("q") == left
    assert shop.seqs_claimed(100) == left
    shop.restart()
    assert shop.seqs("q") == left
    shop.engine.close()
    assert verify(str(shop.data_dir), OsFs(), None).findings == []
    shop.open_with()


def test_segments_whose_jobs_are_all_done_are_removed(shop: Shop) -> None:
    shop.open_queue(0)
    shop.restart(segment_max_events=10)
    shop.append("q", *range(100))
    shop.checkpoint()
    assert len(list(shop.data_dir.glob("topics/*/*.data"))) == 10
    shop.claim(95)
    shop.ack(*range(1, 96))
    shop.checkpoint(3)
    assert len(list(shop.data_dir.glob("topics/*/*.data"))) == 1
    shop.crash()
    assert shop.seqs("q") == [96, 97, 98, 99, 100]


# --- Durable leases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", ["restart", "crash", "lose_power"])
@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_durable_leases_come_back_as_they_were(shop: Shop, restart: str, checkpoints: int) -> None:
    shop.open_queue(5, durability="fsync", leases_durable=True, lease_ms=1000)
    shop.claim(4)
    shop.nack(2)
    shop.nack(3, delay_ms=5000)
    shop.checkpoint(checkpoints)
    extended = shop.engine.extend("q", "w", [4], lease_ms=9000)
    shop.wait_for(extended.commit)
    shop.ack(1)
    getattr(shop, restart)()
    assert shop.counts == (2, 1, 0)
    again = shop.claim(5, "other")
    assert [(job["$seq"], job["deliveries"]) for job in map(json.loads, again.jobs)] == [(2, 2), (5, 1)]
    shop.advance_ms(5000)
    assert shop.seqs_claimed(5, "other") == [2, 3, 5]
    assert shop.ack(4).done == [4]


def test_a_claim_that_cannot_be_logged_leases_nothing(shop: Shop) -> None:
    shop.open_queue(durability="fsync", leases_durable=True)
    shop.disk.fail_when("pwrite", errno.EIO, times=1)
    held: dict[int, int] = {}
    with pytest.raises(StorageFailed):
        shop.claim(2, held=held)
    assert held == {}
    assert shop.counts == (3, 0, 0)
    (job, *_) = shop.claim(1).jobs
    assert json.loads(job)["deliveries"] == 1


def test_leases_become_durable_with_the_configuration(shop: Shop) -> None:
    shop.open_queue(durability="disk")
    shop.claim(2)
    shop.nack(2)
    shop.put("q", type="queue", leases_durable=True)
    shop.crash()
    assert shop.counts == (2, 1, 0)
    assert json.loads(shop.claim(1).jobs[0])["deliveries"] == 2
    shop.put("q", type="queue", leases_durable=False)
    shop.crash()
    assert shop.counts == (3, 0, 0)
    assert json.loads(shop.claim(1).jobs[0])["deliveries"] == 1


def test_as_many_leases_as_there_are_become_durable_with_one_entry(tmp_path: Path) -> None:
    shop = Shop(tmp_path, file_bytes=16 << 20)
    jobs = 2 * QUEUE_MAX
    shop.open_queue(jobs)
    while shop.claim(1000, node=f"w{shop.counts[1]}").count:
        shop.nack(shop.counts[1], node=f"w{shop.counts[1] - 1000}", delay_ms=1000)
    leased = shop.counts[1]
    shop.put("q", type="queue", leases_durable=True)
    shop.crash()
    assert leased > QUEUE_MAX
    assert shop.counts[1] == leased


def test_leases_of_an_ephemeral_queue_are_not_logged(shop: Shop) -> None:
    shop.open_queue(durability="ephemeral", leases_durable=True)
    before = shop.engine.counts().wal.frames
    shop.claim(3)
    shop.ack(1)
    assert shop.engine.counts().wal.frames == before
    shop.restart()
    assert (shop.counts, shop.state("q").head_seq) == ((0, 0, 0), 3)


def test_nothing_is_logged_for_leases_that_need_not_survive(shop: Shop) -> None:
    shop.open_queue()
    before = shop.engine.counts().wal.frames
    shop.claim(3)
    shop.nack(1, 2)
    shop.engine.write()
    assert shop.engine.counts().wal.frames == before


def test_a_lease_id_is_never_given_again(shop: Shop) -> None:
    seen: set[int] = set()
    shop.open_queue(1, lease_ms=100)
    for number in range(30):
        given = set(shop.claim().leases.values())
        assert not seen & given
        assert not seen or min(given) > max(seen)
        seen |= given
        if number % 3 == 2:
            shop.crash() if number % 2 else shop.restart()
        else:
            shop.nack(1)
    assert len(seen) == 30


# --- Dead letters -----------------------------------------------------------------------------------------


def poison(shop: Shop, **config: Any) -> None:
    """A queue whose first job was delivered as often as it may be."""
    shop.open_queue(max_deliveries=1, dead_letter="dead", **config)
    shop.claim()
    shop.nack(1)


@pytest.mark.parametrize("restart", ["restart", "crash", "lose_power"])
@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_dead_letters_and_their_number_survive(shop: Shop, restart: str, checkpoints: int) -> None:
    shop.put("dead", durability="fsync")
    poison(shop, durability="fsync")
    assert shop.seqs_claimed() == [2]
    shop.checkpoint(checkpoints)
    getattr(shop, restart)()
    assert shop.values("dead") == [1]
    assert shop.seqs("q") == [2, 3]
    assert shop.counts == (2, 0, 1)


def test_many_dead_letters_of_one_pass_are_all_counted(shop: Shop) -> None:
    shop.open_queue(20, max_deliveries=1, dead_letter="dead", durability="fsync")
    shop.claim(15)
    shop.nack(*range(1, 16))
    assert shop.seqs_claimed(3) == [16, 17, 18]
    assert shop.counts == (2, 3, 15)
    shop.crash()
    assert shop.counts == (5, 0, 15)
    assert shop.values("dead") == list(range(1, 16))


def test_if_the_copy_is_not_kept_the_job_stays(shop: Shop) -> None:
    shop.put("dead", durability="fsync")
    poison(shop, durability="disk")
    shop.disk.fail_when("pwrite", errno.EIO, times=1)
    assert shop.seqs_claimed() == [2]
    assert shop.counts == (2, 1, 0)
    assert shop.values("dead") == []
    assert shop.seqs_claimed() == [3]
    assert shop.counts == (1, 2, 0) or shop.values("dead") == [1]


def test_a_job_whose_meta_has_no_room_for_marks_is_moved_without_them(shop: Shop) -> None:
    shop.open_queue(0, max_deliveries=1, dead_letter="dead")
    meta = json.dumps({f"k{number}": number for number in range(64)}, separators=(",", ":")).encode()
    shop.append("q", NewRecord(b"1", meta=meta))
    shop.claim()
    shop.nack(1)
    assert shop.seqs_claimed() == []
    assert shop.items("dead")[0]["meta"] == json.loads(meta)


def test_a_copy_keeps_every_byte_of_the_job(shop: Shop) -> None:
    shop.open_queue(0, max_deliveries=1, dead_letter="dead")
    text = b'{"b":1.50,"a":[1e3,"\\u00e9"],"b":2}'
    shop.append("q", NewRecord(text, tag="t\n", node="n", meta=b'{"z":1.0,"z":2}'))
    shop.checkpoint()
    shop.claim()
    shop.nack(1)
    shop.claim()
    letter = shop.diff("dead", include_tags=True).records
    assert b'"data":' + text in letter
    assert b'"$node":"n","$tag":"t\\u000a"' in letter
    assert b'"meta":{"z":1.0,"z":2,"$dead_letter_from":"q"' in letter


# --- Jobs in segments -------------------------------------------------------------------------------------


def cold_shop(tmp_path: Path) -> Shop:
    """A queue of 50 jobs, ten in each segment, all but the last segments cold and out of memory."""
    shop = Shop(tmp_path, segment_max_events=10, hot_retain_segments=1, cold_dir=str(tmp_path / "cold"))
    shop.open_queue(50)
    shop.checkpoint()
    shop.engine.relocate()
    return shop


def test_jobs_in_cold_segments_are_fetched_without_blocking(tmp_path: Path) -> None:
    shop = cold_shop(tmp_path)
    first = shop.engine.claim("q", "w", 5, block=False)
    assert (first.incomplete, first.jobs, first.ready) == (True, [], 50)
    assert not first.commit.done
    shop.wait_for(first.commit)
    second = shop.engine.claim("q", "w", 15, block=False)
    assert list(second.leases) == list(range(1, 11)), "what is in memory is given at once"
    assert not second.incomplete
    assert shop.counts == (40, 10, 0)
    assert shop.seqs_claimed(100) == list(range(11, 51))


def test_a_cold_job_is_moved_to_the_dead_letters_when_it_is_there(tmp_path: Path) -> None:
    shop = cold_shop(tmp_path)
    shop.put("q", type="queue", max_deliveries=1, dead_letter="dead", leases_durable=True)
    shop.claim(2)
    shop.nack(1, 2)
    shop.crash()
    answer = shop.engine.claim("q", "w", 3, block=False)
    assert answer.incomplete
    shop.wait_for(answer.commit)
    answer = shop.engine.claim("q", "w", 3, block=False)
    shop.wait_for(answer.commit)
    assert shop.values("dead") == [1, 2]
    assert list(answer.leases) == [3, 4, 5]


def test_a_damaged_job_does_not_hold_up_the_others(tmp_path: Path) -> None:
    shop = cold_shop(tmp_path)
    (first, *_) = sorted((tmp_path / "cold").glob("topics/*/*.data"))
    damaged = bytearray(first.read_bytes())
    damaged[29] ^= 0xFF  # the data of the first job
    first.write_bytes(damaged)
    shop.crash()
    with pytest.raises(Corrupt, match="deferred"):
        shop.claim()
    assert shop.seqs_claimed(3) == [2, 3, 4]
    assert shop.counts == (46, 3, 0)
    shop.advance_ms(30_000)
    with pytest.raises(Corrupt):
        shop.claim()


def test_a_claim_takes_no_more_than_fits(shop: Shop) -> None:
    shop.open_queue(0)
    shop.append("q", *["x" * 1000] * 5)
    small = shop.engine.claim_together("q", [ClaimRequest("w", 5, None, None, 2500)])[0]
    assert (list(small.leases), small.ready) == ([1, 2], 3)
    tiny = shop.engine.claim_together("q", [ClaimRequest("w", 5, None, None, 1)])[0]
    assert list(tiny.leases) == [3]
    assert shop.seqs_claimed(5) == [4, 5]


def test_jobs_are_given_ascending_also_if_fresh_ones_were_put_back_below(shop: Shop) -> None:
    shop.open_queue(6)
    tiny, large = shop.engine.claim_together(
        "q", [ClaimRequest("w", 3, max_bytes=1), ClaimRequest("other", 3)]
    )
    assert (list(tiny.leases), list(large.leases)) == ([1], [2, 4, 6])
    shop.nack(4, node="other")
    assert shop.seqs_claimed(3) == [3, 4, 5]


# --- Speed and shapes -------------------------------------------------------------------------------------


def test_jobs_that_are_done_cost_later_claims_nothing(tmp_path: Path) -> None:
    """Settled out of order, so that they cannot be forgotten: one job at the front is never done."""

    def pass_s(shop: Shop, jobs: int) -> float:
        best_s = 1e9
        for _ in range(jobs // 1000):
            started_s = time.perf_counter()
            leases = shop.engine.claim("q", "w", 1000).leases
            best_s = min(best_s, time.perf_counter() - started_s)
            settled = shop.engine.ack("q", "w", list(leases))
            shop.engine.write()
            assert settled.commit.done
        return best_s

    shop = Shop(tmp_path, file_bytes=16 << 20)
    shop.open_queue(1, durability="memory", lease_ms=86_400_000)
    shop.claim(1, "stuck")
    for _ in range(40):
        shop.engine.append("q", [NewRecord(b"1")] * 5000)
        shop.engine.write()
    early_s = pass_s(shop, 20_000)
    pass_s(shop, 160_000)
    assert pass_s(shop, 20_000) < 5 * early_s
    assert shop.counts == (0, 1, 0)


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_what_makes_no_sense_is_refused(shop: Shop, verb: str) -> None:
    shop.open_queue()
    options = {"lease_ms": 1000} if verb == "extend" else {}

    def settle(name: str, node: str, seqs: list[int], ids: list[str] | None = None) -> None:
        getattr(shop.engine, verb)(name, node, seqs, ids, **options)

    with pytest.raises(BatchTooLarge):
        settle("q", "w", [1] * 1001)
    for node, seqs, ids in (("", [1], None), ("w", [-1], None), ("w", [1], ["?"]), ("w", [1], [])):
        with pytest.raises(InvalidRequest):
            settle("q", node, seqs, ids)
    with pytest.raises(TopicNotFound):
        settle("none", "w", [1])
    shop.append("log", 1)
    with pytest.raises(NotAQueue):
        settle("log", "w", [1])


def test_who_waits_for_jobs_is_told_of_each_reason_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.open_queue(2)
    told: list[str] = []

    def wait() -> None:
        shop.engine.on_jobs("q", call)

    def call() -> None:
        told.append("told")

    for step in (
        lambda: shop.append("q", 3),
        lambda: shop.nack(1),
        lambda: shop.ack(2),
        lambda: shop.engine.release("q", "w", shop.claim().leases),
        lambda: shop.delete_topic("q"),
    ):
        if not told:
            shop.claim(2)
        wait()
        before = len(told)
        step()
        assert len(told) > before
    shop.open_queue(1)
    wait()
    shop.engine.forget_jobs("q", call)
    before = len(told)
    shop.append("q", 1)
    assert len(told) == before


def test_without_a_directory_queues_work_the_same() -> None:
    engine = Engine.open(None)
    engine.put_topic("q", Shop(None).put("q", type="queue", leases_durable=True).config)
    engine.append("q", [NewRecord(b"1"), NewRecord(b"2")])
    claimed = engine.claim("q", "w", 2)
    assert engine.ack("q", "w", [1]).commit.done
    engine.release("q", "w", claimed.leases)
    assert list(engine.claim("q", "w", 2).leases) == [2]
