"""Copies and durability classes: what was visible in a topic stays as its class says, whatever the source."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import StorageFailed
from everlog.topics import Engine, TopicConfig
from everlog.topics.config import Durability
from everlog.topics.routing.definitions import Guarantee, RouterConfig
from everlog.topics.storage.syncs import Done, InlineSyncs, Job
from tests.support.engines import EngineHarness, parse, record_of, sized
from tests.support.files import names_below

LOGGED = ("memory", "disk", "fsync")


def engine_with(root: Path, *edges: tuple[str, str], shards: int = 3, **classes: str) -> EngineHarness:
    """An engine with these topics (name=class) and a router for each pair of them."""
    harness = EngineHarness(root, shards=shards)
    for name, durability in classes.items():
        harness.put(name, durability=durability)
    for source, dest in edges:
        connect(harness, source, dest)
    return harness


def connect(harness: EngineHarness, source: str, dest: str, name: str = "", **options: Any) -> None:
    """Add a router."""
    config = RouterConfig(source=source, dest=dest, **options)
    harness.wait_for(harness.engine.put_router(name or f"{source}>{dest}", config).commit)


# --- Ephemeral topics on the way -------------------------------------------------------------------------


def test_copies_through_two_ephemeral_topics_stay_in_an_fsync_topic(tmp_path: Path) -> None:
    harness = engine_with(tmp_path, ("a", "b"), ("b", "c"), a="ephemeral", b="ephemeral", c="fsync")
    harness.append("a", 1)
    harness.append("a", 2)
    before = harness.items("c")
    assert [item["data"] for item in before] == [1, 2]
    harness.crash()
    assert (harness.items("c"), harness.gap("c")) == (before, None)


@pytest.mark.parametrize("source", ["ephemeral", *LOGGED])
@pytest.mark.parametrize("durability", LOGGED)
def test_direct_records_and_copies_of_an_ephemeral_topic_stay_once_it_becomes_durable(
    tmp_path: Path, source: str, durability: str
) -> None:
    harness = engine_with(tmp_path, ("s", "q"), s=source, q="ephemeral")
    harness.append("q", "direct")
    harness.append("s", "copied")
    before = harness.items("q")
    assert [item["data"] for item in before] == ["direct", "copied"]
    harness.put("q", durability=durability)
    harness.append("s", "later")
    before = harness.items("q")
    harness.crash()
    assert (harness.items("q"), harness.gap("q")) == (before, None)


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("dest", LOGGED)
@pytest.mark.parametrize("durability", LOGGED)
def test_a_source_that_becomes_durable_is_not_copied_a_second_time(
    tmp_path: Path, durability: str, dest: str, guarantee: Guarantee
) -> None:
    harness = engine_with(tmp_path, s="ephemeral", d=dest)
    connect(harness, "s", "d", guarantee=guarantee)
    harness.append("s", 1)
    before = harness.items("d")
    harness.put("s", durability=durability)
    harness.crash()
    assert harness.items("d") == before
    harness.append("s", 2)
    assert harness.values("d") == [1, 2]


def test_a_source_that_becomes_durable_while_copies_are_synced_is_not_copied_a_second_time(
    tmp_path: Path,
) -> None:
    harness = engine_with(tmp_path, ("s", "d"), s="ephemeral", d="fsync")
    harness.append("s", 1)
    assert not harness.engine.forward("d").done
    harness.put("s", durability="disk")
    harness.crash()
    assert harness.values("d") == [1]


@pytest.mark.parametrize("dest", ["disk", "fsync"])
def test_a_kill_before_the_cursors_are_logged_copies_nothing_twice_by_a_router_that_copies_once(
    tmp_path: Path, dest: str
) -> None:
    harness = engine_with(tmp_path, s="ephemeral", d=dest)
    connect(harness, "s", "d", guarantee=Guarantee.EXACTLY_ONCE)
    harness.append("s", 1, 2)
    before = harness.items("d")
    harness.engine.append("d", [record_of("direct")])
    harness.engine.write()
    harness.engine.put_topic("s", TopicConfig(durability=Durability.DISK))
    harness.engine.write()  # records and their class; the cursors follow when all before it is synced
    harness.crash()
    assert harness.values("s") == [1, 2]
    assert harness.values("d") == [1, 2, "direct"]
    assert harness.items("d")[:2] == before
    harness.append("s", 3)
    assert harness.values("d") == [1, 2, "direct", 3]


@pytest.mark.parametrize("copies", [1, 2])
def test_copies_into_an_ephemeral_topic_never_reach_the_disk(tmp_path: Path, copies: int) -> None:
    harness = engine_with(tmp_path, s="memory", q="ephemeral")
    for number in range(copies):
        connect(harness, "s", "q", f"r{number}", preserve_tag=False)
    harness.append("s", sized(50))
    assert len(harness.values("q")) == copies
    harness.checkpoint(2)
    harness.append("s", sized(50))
    assert len(harness.values("q")) == 2 * copies
    harness.checkpoint(2)
    topic_id = harness.engine._core.topics["q"].topic_id
    assert names_below(harness.data_dir / "topics" / f"{topic_id:08X}", "*") == []
    harness.crash()
    assert (harness.values("q"), len(harness.values("s"))) == ([], 2)


def test_what_was_lost_with_an_ephemeral_topic_does_not_return_when_it_becomes_durable(
    tmp_path: Path,
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk")
    harness.append("t", 1, 2)
    harness.put("t", durability="ephemeral")
    harness.crash()
    assert harness.values("t") == []
    harness.append("t", 3)
    harness.put("t", durability="disk")
    before = harness.items("t"), harness.state("t").earliest_seq, harness.engine.account("t")
    harness.crash()
    assert (harness.items("t"), harness.state("t").earliest_seq, harness.engine.account("t")) == before


def test_a_gap_that_a_source_left_in_an_ephemeral_topic_stays_once_it_becomes_durable(tmp_path: Path) -> None:
    harness = engine_with(tmp_path, ("s", "q"), s="disk", q="ephemeral")
    harness.append("s", 1)
    assert harness.values("q") == [1]
    harness.put("s", durability="disk", cap_records=1)
    harness.append("s", 2, 3, 4)
    assert harness.values("q") == [1, 4]
    harness.put("q", durability="fsync")
    before = harness.gap("q", 1)
    assert before == (2, 3, "source_trim")
    harness.crash()
    assert (harness.gap("q", 1), harness.values("q")) == (before, [1, 4])


@pytest.mark.parametrize(("selection", "gone"), [({"match": "x"}, 2), ({"before_seq": 2}, 1)])
def test_a_failed_change_of_class_brings_no_deleted_record_back(
    tmp_path: Path, selection: dict[str, Any], gone: int
) -> None:
    harness = EngineHarness(tmp_path, file_bytes=16384)
    harness.put("t", durability="ephemeral")
    harness.append("t", 0, record_of(0, tag="x"), *(sized(500) for _ in range(60)))
    harness.disk.fail_when("allocate", errno.ENOSPC)
    with pytest.raises(StorageFailed, match="cannot make a log file"):
        harness.put("t", durability="disk")  # whose first records are in the log nevertheless
    harness.delete("t", **selection)
    harness.put("t", durability="disk")
    harness.crash()
    assert harness.seqs("t") == [seq for seq in range(1, 63) if seq != gone]


# --- Shards of the log -----------------------------------------------------------------------------------


def shard_of(harness: EngineHarness, name: str) -> int:
    """The shard of the log that a topic writes to."""
    return harness.engine._core.topics[name].shard


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("seed", range(8))
def test_copies_are_synced_before_a_stronger_class_is_answered(
    tmp_path: Path, seed: int, durability: str
) -> None:
    harness = EngineHarness(tmp_path, seed, shards=3)
    for name in ("s", "m1", "d"):
        harness.put(name, durability="memory")
    connect(harness, "s", "m1")
    connect(harness, "m1", "d")
    assert len({shard_of(harness, name) for name in ("s", "m1", "d")}) > 1
    harness.append("s", 1, 2)
    harness.append("d", "direct")
    before = harness.items("d")
    assert len(before) == 3
    harness.put("d", durability=durability)
    harness.lose_power()
    assert (harness.items("d")[:3], harness.gap("d")) == (before, None)


@pytest.mark.parametrize("first", ["memory", "disk"])
@pytest.mark.parametrize("seed", range(8))
def test_copies_of_copies_in_an_fsync_topic_stay_when_the_power_goes(
    tmp_path: Path, seed: int, first: str
) -> None:
    harness = EngineHarness(tmp_path, seed, shards=3)
    for name, durability in (("s", first), ("m1", first), ("d", "fsync")):
        harness.put(name, durability=durability)
    connect(harness, "s", "m1")
    connect(harness, "m1", "d")
    harness.append("s", 1, 2)
    before = harness.items("d")
    harness.lose_power()
    assert (harness.items("d")[:2], harness.gap("d")) == (before, None)


class OneLaneHeld(InlineSyncs):
    """Syncs of which one lane waits until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.held_lane = -1
        self._waiting: list[tuple[int, Job, Done]] = []

    def start(self, lane: int, job: Job, done: Done) -> None:
        if lane == self.held_lane:
            self._waiting.append((lane, job, done))
        else:
            super().start(lane, job, done)

    def release(self) -> None:
        self.held_lane = -1
        for entry in self._waiting:
            self.start(*entry)


def test_copies_of_copies_are_shown_when_the_shard_of_the_first_source_is_synced(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, shards=3)
    harness.engine.abandon()
    syncs = OneLaneHeld()
    data_dir, settings = harness.data_dir, harness.settings
    harness.engine = Engine.open(data_dir, settings, clock=harness.clock, fs=harness.fs, syncs=syncs)
    for name, durability in (("s", "memory"), ("m1", "memory"), ("d", "fsync")):
        harness.put(name, durability=durability)
    connect(harness, "s", "m1")
    connect(harness, "m1", "d")
    assert shard_of(harness, "s") != shard_of(harness, "m1")
    syncs.held_lane = shard_of(harness, "s")
    harness.append("s", 1, 2)
    harness.engine.forward("d")
    for _ in range(20):
        harness.advance_ms(11)
        harness.engine.write()
        harness.engine.poll()
    assert parse(harness.engine.diff("d", block=False)) == []
    syncs.release()
    before = harness.items("d")
    assert [item["data"] for item in before] == [1, 2]
    harness.lose_power()
    assert harness.items("d") == before


@pytest.mark.parametrize("durability", ["ephemeral", "memory"])
def test_seqs_that_a_power_loss_left_empty_are_not_given_out_after_a_change_of_class(
    tmp_path: Path, durability: str
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk")
    harness.append("t", 1)
    harness.lose_power()
    head = harness.state("t").head_seq
    assert head > 1
    harness.put("t", durability=durability)
    harness.crash()
    assert harness.append("t", 2).first_seq == head + 1


@pytest.mark.parametrize("crashes", [1, 2])
def test_seqs_that_are_given_out_again_are_copied_by_a_router_that_copies_once(
    tmp_path: Path, crashes: int
) -> None:
    harness = engine_with(tmp_path, s="ephemeral", d="disk")
    connect(harness, "s", "d", guarantee=Guarantee.EXACTLY_ONCE)
    harness.append("s", 1, 2, 3)
    assert harness.values("d") == [1, 2, 3]
    harness.crash()
    harness.append("s", 4)
    harness.put("s", durability="disk")
    for _ in range(crashes):
        harness.crash()
    harness.append("s", 5, 6)
    assert harness.values("d") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("durability", ["ephemeral", "memory"])
def test_a_key_that_a_restart_has_lost_does_not_return_when_the_topic_becomes_durable(
    tmp_path: Path, durability: str
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk")
    harness.append("t", 1, idempotency_key="k")
    harness.put("t", durability=durability)
    harness.crash()
    harness.put("t", durability="disk")
    harness.crash()
    assert not harness.append("t", 2, idempotency_key="k").deduped
