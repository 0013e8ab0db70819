"""A change of the class of a large topic: in steps of a bounded size, with the topic in use meanwhile."""

from __future__ import annotations

import errno
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import StorageFailed
from everlog.topics import TopicConfig, record_of
from everlog.topics.class_change import SEQS_A_STEP
from everlog.topics.config import Durability
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
