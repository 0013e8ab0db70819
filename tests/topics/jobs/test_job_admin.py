"""Operators of job queues in an engine: states, cancel, retry, purge, redrive, and what crashes leave."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import InvalidRequest, JobNotFound, NotAQueue, StorageFailed, TopicFull, TopicNotFound
from everlog.job_types import JobError
from everlog.topics import record_of
from everlog.topics.filters import compile_filter
from everlog.topics.jobs.job_states import Selection
from everlog.topics.jobs.redrive import Redrive
from tests.topics.jobs.test_job_options import JobQueue

BOOM = JobError("ValueError", "boom", "line 1")


class Office(JobQueue):
    """A job queue and its operator."""

    def states(self, **selection: Any) -> dict[int, str]:
        page = self.engine.run_steps(self.engine.jobs.page("q", Selection(**selection)))
        return {job.seq: job.state for job in page.jobs}

    def counts(self) -> tuple[int, int, int, int]:
        counts = self.engine.jobs.counts("q")
        return counts.ready, counts.delayed, counts.leased, counts.failed

    def job(self, seq: int) -> Any:
        return self.engine.run_steps(self.engine.jobs.show("q", seq))

    def cancel(self, *seqs: int) -> int:
        changed = self.engine.run_steps(self.engine.jobs.cancel("q", seqs))
        self.wait_for(changed.commit)
        return changed.changed

    def retry(self, *seqs: int) -> int:
        changed = self.engine.run_steps(self.engine.jobs.retry("q", seqs))
        self.wait_for(changed.commit)
        return changed.changed

    def purge(self, filter_text: str | None = None, **options: Any) -> int:
        chosen = None if filter_text is None else compile_filter(filter_text)
        changed = self.engine.run_steps(self.engine.jobs.purge("q", chosen, **options))
        self.wait_for(changed.commit)
        return changed.changed

    def redrive(self, topic: str = "dead", **options: Any) -> tuple[int, int]:
        """How many were moved and left."""
        redrove = self.engine.run_steps(self.engine.jobs.redrive(topic, Redrive(**options)))
        assert sum(redrove.queues.values()) == redrove.moved
        return redrove.moved, redrove.left

    def letters(self, number: int, **config: Any) -> None:
        self.put("dead", **config)
        meta = {"$dead_letter_from": "q", "$dead_letter_deliveries": "3", "k": "v"}
        for first in range(0, number, 1000):
            values = range(first, min(first + 1000, number))
            records = [record_of(value, tag="t", meta=meta) for value in values]
            self.wait_for(self.engine.append("dead", records).commit)


@pytest.mark.parametrize("crashes", [False, True])
def test_every_job_has_one_state_and_the_counts_agree(tmp_path: Path, crashes: bool) -> None:
    office = Office(tmp_path)
    office.open_queue(leases_durable=True)
    office.enqueue({}, {}, {}, {"delay_ms": 60_000}, {"priority": -300}, {"concurrency_key": "c"})
    assert office.claimed(3) == [1, 2, 3]
    office.nack(1, error=BOOM)
    office.nack(2, delay_ms=5000)
    if crashes:
        office.crash()
    expected = {1: "failed", 2: "delayed", 3: "leased", 4: "delayed", 5: "ready", 6: "ready"}
    assert office.states() == expected
    assert office.counts() == (2, 2, 1, 1)
    assert office.states(state="failed") == {1: "failed"}
    assert office.states(key="c") == {6: "ready"}
    job = office.job(1)
    assert (job.state, job.deliveries, job.last_error) == ("failed", 1, BOOM)
    assert [(each.delivery, each.node, each.outcome, each.error) for each in job.attempts] == [
        (1, "w", "nacked", BOOM)
    ]
    assert office.job(3).node == "w"
    with pytest.raises(JobNotFound):
        office.job(7)


def test_an_expired_lease_is_an_attempt_and_a_failure() -> None:
    office = Office(None)
    office.open_queue(lease_ms=1000)
    office.enqueue({})
    for _ in range(12):
        office.claim()
        office.advance_ms(1001)
    assert office.states() == {1: "failed"}
    attempts = office.job(1).attempts
    assert [each.delivery for each in attempts] == list(range(3, 13))
    assert {each.outcome for each in attempts} == {"expired"}
    assert attempts[-1].ended_ts - attempts[-1].claimed_ts == 1000
    assert office.engine.jobs.counts("q").failed_total == 12


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_cancelled_job_goes_at_once_or_with_its_lease(tmp_path: Path, is_durable: bool) -> None:
    office = Office(tmp_path)
    office.open_queue(leases_durable=is_durable, lease_ms=1000)
    office.enqueue({}, {}, {}, {"delay_ms": 9000}, {"priority": 300})
    assert office.claimed(3) == [5, 1, 2]
    assert office.cancel(1, 2, 3, 4, 99) == 4
    assert office.states() == {1: "leased", 2: "leased", 5: "leased"}
    office.ack(1)
    office.crash()
    office.advance_ms(1001)
    assert office.claimed() == [5]
    assert office.states() == {5: "leased"}
    office.engine.write()
    assert office.state("q").count == 1


def test_retry_makes_delayed_jobs_due_also_after_a_crash(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.open_queue(leases_durable=True)
    office.enqueue({}, {"delay_ms": 60_000}, {"delay_ms": 60_000})
    office.claim(1)
    office.nack(1, delay_ms=60_000, error=BOOM)
    assert office.retry(1, 2) == 2
    office.crash()
    assert office.states() == {1: "failed", 2: "ready", 3: "delayed"}
    assert office.claimed() == [1, 2]


def test_purge_deletes_what_matches_and_a_dry_run_nothing() -> None:
    office = Office(None)
    office.open_queue()
    office.append("q", *range(2000))
    assert office.purge('["data","Lt",500]', dry_run=True) == 500
    assert office.state("q").count == 2000
    assert office.purge('["data","Lt",500]') == 500
    office.claim(1)
    assert office.purge(all_jobs=True) == 1500
    assert office.counts() == (0, 0, 0, 0)
    for wrong in ({}, {"filter_text": '["data","Lt",1]', "all_jobs": True}):
        with pytest.raises(InvalidRequest):
            office.purge(**wrong)


# --- Redrive ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_letters_go_back_without_their_marks(kind: str) -> None:
    office = Office(None)
    office.open_queue()
    office.letters(10, type=kind)
    assert office.redrive(limit=4, dry_run=True) == (4, 6)
    assert office.redrive(limit=4) == (4, 6)
    assert office.redrive(filter=compile_filter('["data","Eq",9]')) == (1, 0)
    assert office.redrive() == (5, 0)
    assert office.state("dead").count == 0
    jobs = [json.loads(job) for job in office.claim().jobs]
    assert sorted(job["data"] for job in jobs) == list(range(10))
    assert {json.dumps(job["meta"]) for job in jobs} == {'{"k": "v", "$redriven_from": "dead"}'}


def test_letters_without_a_place_to_go_are_left() -> None:
    office = Office(None)
    office.open_queue()
    office.append("dead", 1)
    office.letters(1)
    assert office.redrive(allows=lambda _: False) == (0, 2)
    assert office.redrive() == (1, 1)
    assert office.redrive(to="q") == (1, 0)
    with pytest.raises(TopicNotFound):
        office.redrive(to="absent")
    with pytest.raises(InvalidRequest):
        office.redrive(to="dead")


def test_jobs_are_brought_back_to_job_queues_only() -> None:
    office = Office(None)
    office.put("q")
    office.letters(1)
    assert office.redrive() == (0, 1)
    with pytest.raises(NotAQueue) as refused:
        office.redrive(to="q")
    assert refused.value.detail == {"topic": "q"}
    assert (office.state("dead").count, office.state("q").count) == (1, 0)


def test_a_job_queue_without_room_takes_what_fits_and_the_rest_is_left() -> None:
    office = Office(None)
    office.open_queue(cap_records=5, discard="reject")
    office.append("q", "there")
    office.letters(600)
    assert office.redrive(filter=compile_filter('["data","Ge",300]')) == (4, 296)
    values = [json.loads(job)["data"] for job in office.claim().jobs]
    assert values == ["there", 300, 301, 302, 303]
    with pytest.raises(TopicFull):
        office.redrive()
    assert (office.state("dead").count, office.state("q").count) == (596, 5)


def test_a_crash_between_copy_and_delete_brings_no_letter_back_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office(tmp_path)
    office.open_queue()
    office.letters(700)
    monkeypatch.setattr("everlog.topics.jobs.redrive._delete_moved", lambda *_: None)
    assert office.redrive(limit=600) == (600, 100)
    office.crash()
    monkeypatch.undo()
    assert office.state("dead").count == 100
    assert office.redrive() == (100, 0)
    assert office.state("q").count == 700
    office.crash()
    assert (office.state("dead").count, office.state("q").count) == (0, 700)


def test_a_copy_that_cannot_be_written_leaves_its_letters(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.open_queue()
    office.letters(3, type="queue")
    office.disk.fail_when("pwrite", errno.EIO, times=1)
    with pytest.raises(StorageFailed):
        office.redrive()
    assert office.state("dead").count == 3
    assert office.redrive() == (3, 0)


def test_a_hundred_thousand_letters_take_less_than_five_seconds_in_short_steps() -> None:
    office = Office(None)
    office.open_queue()
    office.letters(100_000)
    steps = office.engine.jobs.redrive("dead", Redrive())
    began = time.process_time()
    assert office.engine.run_steps(steps) == (100_000, 0, {"q": 100_000})
    assert time.process_time() - began < 5


def test_attempts_are_counted_by_how_they_ended(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.open_queue(leases_durable=True, lease_ms=1000)
    office.enqueue({}, {}, {}, {})
    office.claimed(4)
    office.nack(1)
    office.cancel(2)
    office.wait_for(office.engine.ack("q", "w", [3]).commit)
    office.advance_ms(1001)

    def outcomes() -> dict[str, int]:
        counted = office.engine.count_topics(lambda _: True, 10)
        while not counted.step():
            pass
        return {name: count for name, count in counted.jobs[0].outcomes.items() if count}

    assert office.claimed(4) == [1, 4]  # which deletes the cancelled one
    assert outcomes() == {"acked": 1, "nacked": 1, "expired": 2, "cancelled": 1}
    office.crash()
    assert outcomes() == {}
