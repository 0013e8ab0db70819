"""A change of the class of a large topic: in steps of a bounded size, with the topic in use meanwhile."""

from __future__ import annotations

import errno
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from everlog.api_types import TopicType
from everlog.errors import StorageFailed
from everlog.job_types import JobMembers
from everlog.topics import TopicConfig, record_of
from everlog.topics.class_change import SEQS_A_STEP
from everlog.topics.config import Durability
from everlog.topics.delivery.consumers import Start
from everlog.topics.jobs.steps import Steps
from everlog.topics.routing.definitions import RouterConfig
from tests.support.effort import effort
from tests.support.engines import EngineHarness

COUNT = 5500
DISK = TopicConfig(durability=Durability.DISK)


def large(root: Path, count: int = COUNT, **settings: Any) -> EngineHarness:
    """An engine with an ephemeral topic of many records."""
    harness = EngineHarness(root, **{"file_bytes": 1 << 20, **settings})
    harness.put("t", durability="ephemeral")
    for first in range(0, count, 500):
        harness.append("t", *range(first + 1, first + 501))
    return harness


def finish(harness: EngineHarness, steps: Steps[Any]) -> Any:
    """Take the steps that are left, and wait for the answer."""
    answer = harness.engine.run_steps(steps)
    harness.wait_for(answer.commit)
    return answer


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_no_step_logs_more_than_a_bounded_number_of_records(tmp_path: Path, durability: str) -> None:
    harness = large(tmp_path)
    storage = harness.engine._core.topics["t"].storage
    steps = harness.engine.put_steps("t", TopicConfig(durability=Durability(durability)))
    logged = [0]
    for _ in steps:
        logged.append(storage.logged_seq)
    assert logged[-1] == COUNT - SEQS_A_STEP - SEQS_A_STEP // 2
    assert max(after - before for before, after in pairwise(logged)) == SEQS_A_STEP
    harness.put("t", durability=durability)
    harness.crash()
    assert harness.values("t") == list(range(1, COUNT + 1))


def test_a_step_is_short_if_records_are_large(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, file_bytes=1 << 24)
    harness.put("t", durability="ephemeral")
    for number in range(1200):
        harness.append("t", f"{number}" + "x" * 9000)
    storage = harness.engine._core.topics["t"].storage
    steps = harness.engine.put_steps("t", DISK)
    next(steps)
    assert storage.logged_seq < 130
    finish(harness, steps)
    harness.crash()
    assert len(harness.values("t")) == 1200


def test_appends_that_come_faster_than_a_step_do_not_keep_a_change_from_its_end(tmp_path: Path) -> None:
    harness = large(tmp_path)
    steps = harness.engine.put_steps("t", DISK)
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            harness.wait_for(done.value.commit)
            break
        turns += 1
        for _ in range(4):
            harness.append("t", *[turns] * (SEQS_A_STEP // 2))
    assert turns < 20
    before = harness.values("t")
    harness.crash()
    assert harness.values("t") == before


@pytest.mark.parametrize("stop", ["crash", "power", "checkpoint", "restart"])
def test_a_change_that_is_cut_short_leaves_the_topic_as_it_was(tmp_path: Path, stop: str) -> None:
    harness = large(tmp_path)
    steps = harness.engine.put_steps("t", DISK)
    for _ in range(3):
        next(steps)
    if stop == "checkpoint":
        harness.checkpoint(2)
    steps.close()
    if stop == "restart":
        harness.restart()
    elif stop == "power":
        harness.lose_power()
    else:
        harness.crash()
    assert (harness.values("t"), harness.state("t").config.durability) == ([], Durability.EPHEMERAL)
    harness.append("t", "next")
    harness.put("t", durability="disk")
    harness.crash()
    assert harness.values("t") == ["next"]


def test_a_change_that_is_given_up_can_be_made_again(tmp_path: Path) -> None:
    harness = large(tmp_path)
    steps = harness.engine.put_steps("t", DISK)
    next(steps)
    steps.close()
    harness.delete("t", before_seq=10)
    harness.put("t", durability="disk")
    harness.crash()
    assert harness.values("t") == list(range(10, COUNT + 1))


def test_a_topic_that_is_deleted_meanwhile_is_made_anew(tmp_path: Path) -> None:
    harness = large(tmp_path)
    steps = harness.engine.put_steps("t", DISK)
    next(steps)
    harness.delete_topic("t")
    assert finish(harness, steps).created
    harness.append("t", "first")
    harness.crash()
    assert harness.values("t") == ["first"]


def test_a_step_that_cannot_be_written_ends_the_change_and_the_next_one_logs_all(tmp_path: Path) -> None:
    harness = large(tmp_path)
    steps = harness.engine.put_steps("t", DISK)
    next(steps)
    harness.disk.fail_when("pwrite", errno.ENOSPC, path="wal", times=1)
    with pytest.raises(StorageFailed):
        finish(harness, steps)
    assert harness.state("t").config.durability is Durability.EPHEMERAL
    harness.put("t", durability="disk")
    before = harness.values("t")
    harness.crash()
    assert harness.values("t") == before == list(range(1, COUNT + 1))


@pytest.mark.parametrize("seed", range(effort(12)))
def test_whatever_happens_between_steps_a_crash_shows_what_could_be_read(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    harness = large(tmp_path, 4000, shards=rng.choice((1, 3)))
    harness.put("copies", durability=rng.choice(("memory", "disk", "fsync")))
    router = RouterConfig(source="t", dest="copies")
    harness.wait_for(harness.engine.put_router("r", router).commit)
    steps = harness.engine.put_steps(
        "t", TopicConfig(durability=rng.choice((Durability.DISK, Durability.FSYNC)))
    )
    number = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            harness.wait_for(done.value.commit)
            break
        for _ in range(rng.randrange(4)):
            number += 1
            action = rng.randrange(6)
            head = harness.state("t").head_seq
            if action < 2:
                harness.append("t", *[record_of(number, tag=f"x{number % 3}")] * rng.choice((1, 700)))
            elif action == 2:
                harness.delete("t", before_seq=rng.randrange(1, head // 2))
            elif action == 3:
                harness.delete("t", match=f"x{rng.randrange(3)}")
            elif action == 4:
                harness.checkpoint()
            else:
                harness.wait_for(harness.engine.forward("copies"))
    before = {name: harness.items(name) for name in ("t", "copies")}
    heads = {name: harness.state(name).head_seq for name in before}
    harness.crash()
    assert {name: harness.items(name) for name in before} == before
    assert {name: harness.state(name).head_seq for name in before} == heads


# --- What a topic has besides records --------------------------------------------------------------------

BATCH = 500


def add_state(harness: EngineHarness, first: int) -> None:
    """Add some keys and consumers to "keyed", and some leased jobs with options to "jobs"."""
    engine, jobs = harness.engine, {}
    for place in range(BATCH):
        name = f"k{first + place}"
        engine.append("keyed", [record_of(1)], idempotency_key=name)
        engine.consumers.put("keyed", name)
        jobs[place] = JobMembers(concurrency_key=name, unique_key=name)
        engine.write()
    engine.append("jobs", [record_of(1)] * BATCH, jobs=jobs)
    engine.claim("jobs", "node", BATCH)
    harness.wait_for(engine.append("keyed", [record_of(1)]).commit)


def with_state(root: Path, batches: int, durability: Durability = Durability.EPHEMERAL) -> EngineHarness:
    """An engine with a topic of keys and consumers, and one of leased jobs with options."""
    harness = EngineHarness(root, file_bytes=1 << 24)
    harness.put("keyed", durability=durability)
    harness.put("jobs", durability=durability, type=TopicType.QUEUE, leases_durable=True)
    for batch in range(batches):
        add_state(harness, batch * BATCH)
    return harness


def state_of(harness: EngineHarness) -> list[Any]:
    """The keys and consumers of "keyed", the leases and options of "jobs"."""
    topics = harness.engine._core.topics
    keyed, table = topics["keyed"], topics["jobs"].leases
    assert keyed.consumers is not None and table is not None and table.board is not None
    return [
        [(key.key, key.first_seq) for _, keys in keyed.keys.slices() for key in keys],
        [(name, consumer.cursor) for name, consumer in keyed.consumers.by_name.items()],
        sorted(table.stored()),
        sorted(seq for seq, job in table.jobs.items() if job.is_cancelled),
        sorted(table.board.options.items()),
    ]


def config_of(name: str, durability: Durability) -> TopicConfig:
    """The configuration of a topic of `with_state` with another class."""
    if name == "keyed":
        return TopicConfig(durability=durability)
    return TopicConfig(durability=durability, type=TopicType.QUEUE, leases_durable=True)


@pytest.mark.parametrize("name", ["keyed", "jobs"])
def test_no_step_logs_more_than_a_bounded_number_of_keys_leases_and_options(
    tmp_path: Path, name: str
) -> None:
    harness = with_state(tmp_path, 12)
    wal = harness.engine._core.shards[0].wal
    steps = harness.engine.put_steps(name, config_of(name, Durability.DISK))
    written = [wal.metrics.bytes_written]
    while True:
        try:
            next(steps)
        except StopIteration as done:
            harness.wait_for(done.value.commit)
            break
        finally:
            written.append(wal.metrics.bytes_written)
    assert len(written) > 15
    assert max(after - before for before, after in pairwise(written)) < 150_000
    before_state = state_of(harness)
    harness.put("keyed", durability="disk")
    harness.put("jobs", durability="disk", type=TopicType.QUEUE, leases_durable=True)
    harness.crash()
    assert state_of(harness) == before_state


@pytest.mark.parametrize("seed", range(effort(12)))
def test_whatever_changes_between_steps_a_crash_shows_keys_leases_options_and_consumers(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    harness = with_state(tmp_path, 5, rng.choice((Durability.EPHEMERAL, Durability.MEMORY)))
    engine, number = harness.engine, 0
    wanted = rng.choice((Durability.DISK, Durability.FSYNC))
    for name in rng.sample(("keyed", "jobs"), 2):
        steps = engine.put_steps(name, config_of(name, wanted))
        while True:
            try:
                next(steps)
            except StopIteration as done:
                change(harness, rng, number)  # before the configuration is synced
                harness.wait_for(done.value.commit)
                break
            for _ in range(rng.randrange(3)):
                number += 1
                change(harness, rng, number)
    harness.wait_for(engine.append("keyed", [record_of(1)]).commit)
    harness.wait_for(engine.append("jobs", [record_of(1)]).commit)
    before = state_of(harness)
    harness.crash()
    assert state_of(harness) == before
    harness.checkpoint(2)
    harness.crash()
    assert state_of(harness) == before


def change(harness: EngineHarness, rng: random.Random, number: int) -> None:
    """Change some of what is being logged."""
    engine, action = harness.engine, rng.randrange(9)
    seq = rng.randrange(1, 5 * BATCH)
    if action == 0:
        engine.append("keyed", [record_of(1)], idempotency_key=f"new {number}")
    elif action == 1:
        engine.consumers.put("keyed", f"k{number}x")
    elif action == 2:
        engine.consumers.delete("keyed", f"k{seq}")
    elif action == 3 and engine.consumers.has("keyed", f"k{seq}"):
        engine.consumers.reset("keyed", f"k{seq}", Start(seq=seq))
    elif action == 4:
        engine.append("jobs", [record_of(1)] * 3, jobs={1: JobMembers(unique_key=f"u{number}", priority=5)})
        engine.claim("jobs", "other", 2)
    elif action == 5:
        engine.ack("jobs", "node", [seq, seq + 1])
    elif action == 6:
        engine.nack("jobs", "node", [seq], delay_ms=60_000)
    elif action == 7:
        engine.run_steps(engine.jobs.cancel("jobs", seqs=[seq]))
    else:
        harness.checkpoint(rng.randrange(1, 3))


def test_another_change_that_comes_first_does_not_leave_keys_and_leases_unlogged(tmp_path: Path) -> None:
    harness = with_state(tmp_path, 5)
    engine = harness.engine
    for name in ("keyed", "jobs"):
        steps = engine.put_steps(name, config_of(name, Durability.DISK))
        for _ in range(5):
            next(steps)
        for durability in (Durability.DISK, Durability.EPHEMERAL):
            harness.wait_for(engine.put_topic(name, config_of(name, durability)).commit)
        finish(harness, steps)
    before = state_of(harness)
    harness.crash()
    assert state_of(harness) == before


def test_a_change_that_is_given_up_leaves_nothing_logged_at_once(tmp_path: Path) -> None:
    harness = with_state(tmp_path, 5)
    for name in ("keyed", "jobs"):
        steps = harness.engine.put_steps(name, config_of(name, Durability.DISK))
        next(steps)
        topic = harness.engine._core.topics[name]
        assert topic.storage.changes == 1
        steps.close()
        assert topic.storage.changes == 0
    harness.crash()
    assert harness.engine._core.totals.keys == 0
    assert harness.engine.consumers.count == 0


@pytest.mark.parametrize("seed", range(effort(100)))
def test_changes_that_overlap_leave_what_was_read_as_durable_as_the_last_one_says(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    harness = EngineHarness(tmp_path)
    engine = harness.engine
    harness.put("t", durability=rng.choice(list(Durability)))
    commits = []
    for number in range(rng.randrange(4, 30)):
        action = rng.randrange(5)
        if action == 0:
            config = TopicConfig(durability=rng.choice(list(Durability)))
            commits.append(engine.put_topic("t", config).commit)
        elif action < 4:
            commits.append(engine.append("t", [record_of(number)], idempotency_key=f"k{number}").commit)
        else:
            engine.poll()
    last = rng.choice((Durability.DISK, Durability.FSYNC))
    commits.append(engine.put_topic("t", TopicConfig(durability=last)).commit)
    for commit in commits:
        harness.wait_for(commit)
    before = harness.items("t")
    keys = [key.key for _, known in engine._core.topics["t"].keys.slices() for key in known]
    harness.crash()
    assert harness.items("t") == before
    topic = harness.engine._core.topics["t"]
    assert [key.key for _, known in topic.keys.slices() for key in known] == keys
