"""The four classes: when a batch is done and visible, what a restart keeps, what failures do."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import Closed, DataDirInUse, Io, ReadOnly, RecordTooLarge, StorageFailed
from everlog.topics import Durability, Engine, TopicConfig, record_of
from everlog.topics.core import QUEUE_MAX
from everlog.topics.storage.syncs import ThreadSyncs
from tests.support.engines import EngineHarness, records, sized
from tests.support.files import UnsyncedFs

CLASSES = ("ephemeral", "memory", "disk", "fsync")
LOGGED = ("memory", "disk", "fsync")
RESERVED = 256


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    """One topic per class, each named after it and written to once."""
    harness = EngineHarness(tmp_path)
    for durability in CLASSES:
        harness.put(durability, durability=durability)
        harness.append(durability, 0)
    return harness


def visible(harness: EngineHarness, name: str) -> int:
    """The head that a reader sees now, without waiting for anything."""
    return harness.engine.diff(name, touch=False).head_seq


# --- When a batch is done --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durability", "at_once", "when_written"),
    [("ephemeral", True, True), ("memory", False, True), ("disk", False, True), ("fsync", False, False)],
)
def test_a_batch_is_done_and_visible_when_its_class_says(
    harness: EngineHarness, durability: str, at_once: bool, when_written: bool
) -> None:
    answer = harness.engine.append(durability, records([1]))
    assert (answer.commit.done, visible(harness, durability) == 2) == (at_once, at_once)
    harness.engine.write()
    assert (answer.commit.done, visible(harness, durability) == 2) == (when_written, when_written)
    harness.wait_for(answer.commit)
    assert visible(harness, durability) == 2


@pytest.mark.parametrize("durability", CLASSES)
def test_the_write_that_creates_a_topic_waits_for_a_sync_in_every_class(
    harness: EngineHarness, durability: str
) -> None:
    config = TopicConfig(durability=durability)  # type: ignore[arg-type]
    answer = harness.engine.append("new", records([1]), config=config)
    harness.engine.write()
    assert not answer.commit.done
    harness.wait_for(answer.commit)
    assert harness.values("new") == [1]


def test_callbacks_come_once_with_the_outcome_and_at_once_if_it_is_known(harness: EngineHarness) -> None:
    seen: list[object] = []
    answer = harness.engine.append("fsync", records([1]))
    answer.commit.on_done(lambda commit: seen.append(commit.error))
    answer.commit.on_done(lambda commit: seen.append(commit.done))
    assert seen == []
    harness.wait_for(answer.commit)
    assert seen == [None, True]
    answer.commit.on_done(lambda commit: seen.append("later"))
    assert seen == [None, True, "later"]


def test_batches_of_a_topic_become_visible_in_their_order(harness: EngineHarness) -> None:
    order: list[int] = []
    answers = [harness.engine.append("fsync", records([number])) for number in range(5)]
    for answer in answers:
        answer.commit.on_done(lambda _, last=answer.last_seq: order.append(last))  # type: ignore[misc]
    for answer in reversed(answers):
        harness.wait_for(answer.commit)
    assert order == [2, 3, 4, 5, 6]


def test_a_disk_batch_behind_the_synced_ceiling_is_done_when_written_and_one_beyond_waits(
    harness: EngineHarness,
) -> None:
    harness.put("t", durability="disk")
    harness.append("t", 0)  # syncs the ceiling 257
    within = harness.engine.append("t", records(range(RESERVED)))
    harness.engine.write()
    assert (within.last_seq, within.commit.done) == (RESERVED + 1, True)
    beyond = harness.engine.append("t", records(range(2 * RESERVED)))
    harness.engine.write()
    assert not beyond.commit.done
    harness.wait_for(beyond.commit)


def test_a_steady_disk_writer_hardly_ever_waits_for_a_sync(harness: EngineHarness) -> None:
    waited = 0
    for number in range(600):
        answer = harness.engine.append("disk", records([number]))
        harness.engine.write()
        waited += not answer.commit.done
        harness.wait_for(answer.commit)
        harness.engine.poll()
    assert waited <= 5


# --- What a restart keeps --------------------------------------------------------------------------------


def test_a_clean_stop_keeps_everything_but_ephemeral_records(harness: EngineHarness) -> None:
    for durability in CLASSES:
        harness.append(durability, 1, 2)
    for _ in range(2):
        harness.restart()
        for durability in LOGGED:
            assert harness.values(durability) == [0, 1, 2]
            assert harness.state(durability).head_seq == 3
        assert (harness.values("ephemeral"), harness.state("ephemeral").head_seq) == ([], 3)
        assert harness.gap("ephemeral") is None
    assert harness.append("ephemeral", "new").first_seq == 4


@pytest.mark.parametrize("seed", range(10))
def test_what_a_power_loss_leaves_of_each_class(tmp_path: Path, seed: int) -> None:
    harness = EngineHarness(tmp_path, seed)
    for durability in CLASSES:
        harness.put(durability, durability=durability)
    for number in range(20):
        for durability in CLASSES:
            harness.append(durability, number)
    for durability in ("memory", "disk"):
        harness.engine.append(durability, records(["last"] * 3))
    harness.engine.write()
    harness.lose_power()
    everything = [*range(20), *["last"] * 3]
    assert harness.values("fsync") == list(range(20))
    assert harness.values("ephemeral") == []
    for durability in ("memory", "disk"):
        kept = harness.values(durability)
        assert kept == everything[: len(kept)]
        assert len(kept) <= 20 or len(kept) == 23, "a batch is kept whole or not at all"
    assert harness.state("memory").head_seq <= 23
    disk = harness.state("disk")
    assert 23 <= disk.head_seq <= 23 + RESERVED
    assert harness.gap("disk") is None
    assert harness.append("disk", "new").first_seq == disk.head_seq + 1
    assert harness.append("fsync", "new").first_seq == 21


def test_unused_seqs_of_the_reservation_are_silent_holes(harness: EngineHarness) -> None:
    harness.lose_power()
    state = harness.state("disk")
    assert (state.head_seq, state.count, state.earliest_seq) == (1 + RESERVED, 1, 1)
    assert (harness.values("disk"), harness.diff("disk").caught_up) == ([0], True)
    assert harness.gap("disk", 5) is None
    harness.lose_power()
    assert harness.state("disk").head_seq == 1 + RESERVED, "holes are not made again by every power loss"


def test_a_process_that_is_killed_leaves_no_holes_and_evicts_nothing(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk", cap_records=100)
    for value in range(150):
        harness.append("t", value)
    before = harness.state("t")
    harness.crash()
    after = harness.state("t")
    assert (after.head_seq, after.earliest_seq, after.count) == (150, 51, 100)
    assert (after.head_seq, after.earliest_seq) == (before.head_seq, before.earliest_seq)


def test_a_power_loss_costs_a_capped_disk_topic_at_most_its_reserve(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk", cap_records=100)
    for value in range(150):
        harness.append("t", value)
    before = harness.state("t")
    harness.lose_power()
    after = harness.state("t")
    assert before.earliest_seq <= after.earliest_seq <= before.earliest_seq + 100 // 8


def test_an_incomplete_batch_is_no_batch(tmp_path: Path) -> None:
    for seed in range(10):
        (tmp_path / str(seed)).mkdir()
        harness = EngineHarness(tmp_path / str(seed), seed)
        harness.put("t", durability="memory")
        harness.append("t", *[sized(3000)] * 4)
        harness.append("t", *[sized(3000)] * 4)
        harness.lose_power()
        assert harness.state("t").count in (0, 4, 8)


@pytest.mark.parametrize("again", ["restart", "crash", "checkpoint and crash"])
def test_an_ephemeral_topic_keeps_its_head_over_a_restart_if_a_snapshot_had_it(
    harness: EngineHarness, again: str
) -> None:
    harness.append("ephemeral", 1, 2)
    if again == "checkpoint and crash":
        harness.checkpoint()
        again = "crash"
        expected = [3]
    else:
        expected = [3] if again == "restart" else [0, 3]
    getattr(harness, again)()
    assert harness.state("ephemeral").head_seq in expected
    assert harness.values("ephemeral") == []


def test_nothing_of_an_ephemeral_record_reaches_the_disk(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="ephemeral")
    harness.append("t", "needle in a haystack")
    harness.checkpoint()
    harness.engine.close()
    assert not any(b"needle" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# --- Changing the class ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", LOGGED)
@pytest.mark.parametrize("again", ["restart", "crash"])
@pytest.mark.parametrize("snapshots_before", [0, 1, 2])
@pytest.mark.parametrize("snapshots_after", [0, 2])
def test_an_ephemeral_topic_that_becomes_persistent_keeps_its_records_over_restarts(
    tmp_path: Path, target: str, again: str, snapshots_before: int, snapshots_after: int
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="ephemeral")
    harness.append("t", 1, 2, 3)
    harness.checkpoint(snapshots_before)
    harness.put("t", durability=target)
    harness.checkpoint(snapshots_after)
    assert harness.append("t", 4).first_seq == 4
    for _ in range(2):
        getattr(harness, again)()
        assert harness.values("t") == [1, 2, 3, 4]


@pytest.mark.parametrize("snapshots", [0, 2])
def test_a_topic_that_becomes_persistent_without_another_write_keeps_its_records(
    tmp_path: Path, snapshots: int
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="ephemeral")
    harness.append("t", 1, 2, 3)
    harness.checkpoint(snapshots)
    harness.put("t", durability="fsync")
    harness.restart()
    assert (harness.values("t"), harness.state("t").head_seq) == ([1, 2, 3], 3)


@pytest.mark.parametrize("seed", range(4))
def test_records_are_safe_once_the_change_to_fsync_is_acknowledged(tmp_path: Path, seed: int) -> None:
    harness = EngineHarness(tmp_path, seed)
    harness.put("t", durability="ephemeral")
    harness.append("t", 1, 2, 3)
    harness.put("t", durability="fsync")
    harness.lose_power()
    assert (harness.values("t"), harness.state("t").head_seq) == ([1, 2, 3], 3)


@pytest.mark.parametrize("way", ["match", "before_seq", "cap", "ttl"])
def test_records_that_were_gone_before_a_topic_became_persistent_never_return(
    tmp_path: Path, way: str
) -> None:
    harness = EngineHarness(tmp_path)
    limits = {"cap": {"cap_records": 2}, "ttl": {"ttl_ms": 100}}.get(way, {})
    harness.put("t", durability="ephemeral", **limits)
    harness.append("t", record_of(1, tag="x"))
    harness.advance_ms(101)
    harness.append("t", 2, 3)
    if way in ("match", "before_seq"):
        harness.delete("t", **{way: "x" if way == "match" else 2})
    gap = harness.gap("t")
    assert harness.values("t") == [2, 3]
    harness.put("t", durability="fsync")
    harness.crash()
    assert (harness.values("t"), harness.gap("t")) == ([2, 3], gap)


def test_a_persistent_topic_that_becomes_ephemeral_stays_readable_and_is_lost_with_a_restart(
    tmp_path: Path,
) -> None:
    harness = EngineHarness(tmp_path, file_bytes=8192)
    harness.put("t", durability="disk")
    harness.append("t", 1, 2)
    harness.put("t", durability="ephemeral")
    harness.append("t", 3)
    for _ in range(4):  # the log files that hold 1 and 2 are trimmed
        harness.append_each("other", [sized(500)] * 10)
        harness.checkpoint()
    assert harness.values("t") == [1, 2, 3]
    harness.restart()
    assert (harness.values("t"), harness.state("t").head_seq) == ([], 3)


def test_a_topic_that_was_ephemeral_for_a_while_keeps_what_was_safe_before(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    harness.append("t", 1, 2)
    harness.checkpoint(2)
    harness.put("t", durability="ephemeral")
    harness.append("t", 3)
    harness.checkpoint(2)
    harness.put("t", durability="fsync")
    harness.append("t", 4)
    harness.crash()
    assert harness.values("t") == [1, 2, 3, 4]


@pytest.mark.parametrize("selection", [{"match": "x"}, {"before_seq": 2}])
def test_records_deleted_while_a_topic_was_ephemeral_never_return(
    tmp_path: Path, selection: dict[str, Any]
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    harness.append("t", record_of(1, tag="x"), record_of(2))
    harness.put("t", durability="ephemeral")
    harness.delete("t", **selection)
    harness.put("t", durability="fsync")
    harness.crash()
    assert harness.values("t") == [2]


def test_an_empty_topic_that_becomes_persistent_keeps_its_head(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="ephemeral")
    harness.append("t", 1, 2, 3)
    harness.delete("t", before_seq=9)
    harness.put("t", durability="fsync")
    harness.crash()
    assert (harness.state("t").head_seq, harness.append("t", 4).first_seq) == (3, 4)
    harness.restart()
    assert harness.seqs("t") == [4]


def test_operations_behind_a_pending_change_of_class_are_kept_with_it(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="ephemeral")
    harness.append("t", record_of(1, tag="x"), record_of(2))
    change = harness.engine.put_topic("t", TopicConfig(durable=True))
    harness.engine.delete_records("t", match="x")
    appended = harness.engine.append("t", records([3]))
    harness.wait_for(change.commit)
    harness.wait_for(appended.commit)
    assert harness.values("t") == [2, 3]
    harness.crash()
    assert harness.values("t") == [2, 3]


def test_the_head_never_goes_back_when_a_topic_becomes_ephemeral_with_a_batch_on_its_way(
    tmp_path: Path,
) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    change = harness.engine.put_topic("t", TopicConfig(durability=Durability.EPHEMERAL))
    harness.engine.write()
    first = harness.engine.append("t", records([1]))
    while not change.commit.done:
        harness.engine.poll()
    second = harness.engine.append("t", records([2]))
    heads = [visible(harness, "t")]
    for answer in (second, first):
        harness.wait_for(answer.commit)
        heads.append(visible(harness, "t"))
    assert heads == sorted(heads)
    assert harness.values("t") == [1, 2]


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_topic_whose_change_of_class_fails_is_as_it_was(tmp_path: Path, operation: str) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="ephemeral")
    harness.append("t", 1, 2)
    harness.disk.fail_when(operation, errno.EIO)
    with pytest.raises(StorageFailed):
        harness.put("t", durability="fsync")
    assert harness.state("t").config.durability == "ephemeral"
    assert harness.append("t", 3).commit.done
    assert harness.values("t") == [1, 2, 3]
    if operation == "pwrite":
        harness.put("t", durability="fsync")
        harness.crash()
        assert harness.values("t") == [1, 2, 3]


# --- Failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", LOGGED)
def test_a_failed_write_publishes_nothing_and_takes_no_seq(harness: EngineHarness, durability: str) -> None:
    before = harness.state(durability)
    harness.disk.fail_when("pwrite", errno.ENOSPC)
    answers = [harness.engine.append(durability, [record_of(n, tag="x")]) for n in (1, 2)]
    harness.engine.write()
    for answer in answers:
        assert isinstance(answer.commit.error, StorageFailed)
        assert answer.commit.error.errno == errno.ENOSPC
    assert harness.state(durability) == before
    assert harness.delete(durability, match="x").deleted == 0
    assert harness.append(durability, "next").first_seq == 2
    harness.crash()
    assert harness.values(durability) == [0, "next"]


def test_a_failed_write_fails_every_topic_that_was_gathered_with_it(harness: EngineHarness) -> None:
    harness.disk.fail_when("pwrite", errno.EIO)
    answers = [harness.engine.append(name, records([1])) for name in LOGGED for _ in range(2)]
    new = harness.engine.append("new", records([1]))
    ephemeral = harness.engine.append("ephemeral", records([1]))
    harness.engine.write()
    assert all(answer.commit.error for answer in (*answers, new))
    assert ephemeral.commit.done
    assert ephemeral.commit.error is None
    assert "new" not in [state.topic for state in harness.engine.topics()]
    assert [harness.append(name, 1).first_seq for name in LOGGED] == [2, 2, 2]


def test_a_failed_sync_fails_its_writers_and_later_ones_while_reads_go_on(harness: EngineHarness) -> None:
    harness.disk.fail_when("fdatasync", errno.EIO)
    with pytest.raises(ReadOnly):
        harness.append("fsync", 1)
    for durability in LOGGED:
        with pytest.raises(ReadOnly):
            harness.append(durability, 2)
    with pytest.raises(ReadOnly):
        harness.put("new")
    with pytest.raises(ReadOnly):
        harness.delete("disk", before_seq=2)
    assert harness.append("ephemeral", 1).first_seq == 2
    assert [harness.values(durability) for durability in LOGGED] == [[0], [0], [0]]
    with pytest.raises(ReadOnly):
        harness.engine.close()
    harness.open_with()
    assert harness.values("fsync")[:1] == [0]
    assert harness.append("fsync", "goes on").commit.done


def test_after_a_failed_sync_nothing_that_was_acknowledged_is_lost(harness: EngineHarness) -> None:
    harness.append("fsync", 1)
    harness.disk.fail_when("fdatasync", errno.EIO)
    with pytest.raises(ReadOnly):
        harness.append("fsync", 2)
    harness.lose_power()
    assert harness.values("fsync") in ([0, 1], [0, 1, 2])
    assert harness.append("fsync", 3).commit.done


def test_a_refused_batch_leaves_no_trace_in_the_log(harness: EngineHarness) -> None:
    harness.put("t", durability="disk", discard="reject", cap_bytes=10)
    with pytest.raises(RecordTooLarge):
        harness.engine.append("t", [sized(11)], idempotency_key="k")
    harness.append("memory", 1)
    harness.crash()
    assert harness.state("t").head_seq == 0
    assert not harness.append("t", 1, idempotency_key="k").deduped
    follower = harness.engine.append("t", records([2]))
    harness.engine.write()
    assert follower.commit.done, "the ceiling of the first batch covers it"


def test_a_stop_whose_snapshot_fails_says_so_and_loses_nothing(harness: EngineHarness) -> None:
    harness.disk.fail_when("rename", errno.ENOSPC, path="snapshot-")
    with pytest.raises(Io):
        harness.engine.close()
    harness.open_with()
    assert [harness.values(durability) for durability in LOGGED] == [[0], [0], [0]]


def test_one_read_only_shard_does_not_stop_the_others(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, shards=2)
    names = [f"t{number}" for number in range(8)]
    for name in names:
        harness.append(name, 0, config=TopicConfig(durable=True))
    harness.disk.fail_when("fdatasync", errno.EIO)
    failed = []
    for name in names:
        try:
            harness.append(name, 1)
        except StorageFailed:
            failed.append(name)
    assert 0 < len(failed) < len(names)
    assert failed[0] == names[0]


# --- The engine itself -----------------------------------------------------------------------------------


def test_a_directory_belongs_to_one_engine_at_a_time(harness: EngineHarness) -> None:
    with pytest.raises(DataDirInUse):
        Engine.open(harness.data_dir)
    harness.engine.close()
    Engine.open(harness.data_dir, harness.settings).close()


def test_a_closed_engine_refuses_everything_and_may_be_closed_again(harness: EngineHarness) -> None:
    engine = harness.engine
    engine.close()
    engine.close()
    for operation in (
        lambda: engine.put_topic("t"),
        lambda: engine.append("disk", records([1])),
        lambda: engine.diff("disk"),
        lambda: engine.state("disk"),
        engine.topics,
        lambda: engine.delete_records("disk", before_seq=1),
        lambda: engine.delete_topic("disk"),
        lambda: engine.on_change("disk", lambda: None),
        engine.checkpoint,
        engine.relocate,
    ):
        with pytest.raises(Closed):
            operation()


def test_an_engine_in_memory_answers_like_one_on_disk_at_once() -> None:
    with Engine.open(None) as engine:
        assert engine.put_topic("t", TopicConfig(durable=True)).commit.done
        assert engine.append("t", records([1])).commit.done
        assert engine.delete_records("t", before_seq=2).commit.done
        engine.checkpoint()
        assert (engine.relocate(), engine.recovery) == (0, None)


def test_the_threads_of_the_default_engine_keep_the_same_promises(tmp_path: Path) -> None:
    woken: list[bool] = []
    syncs = ThreadSyncs(5, lambda: woken.append(True))
    settings = EngineHarness(None, shards=2).settings
    with Engine.open(tmp_path / "data", settings, fs=UnsyncedFs(), syncs=syncs) as engine:
        answers = [
            engine.append(f"t{number % 3}", records([number]), config=TopicConfig(durable=True))
            for number in range(30)
        ]
        for answer in answers:
            engine.wait_for(answer.commit)
        engine.checkpoint()
        assert woken
    with Engine.open(tmp_path / "data", settings) as engine:
        assert [engine.state(f"t{number}").count for number in range(3)] == [10, 10, 10]


def test_the_engine_tells_when_it_has_to_be_polled(harness: EngineHarness) -> None:
    harness.engine.append("disk", records([1]))
    harness.engine.write()
    due_ns = harness.engine.due_ns()
    assert due_ns is not None
    assert due_ns <= harness.clock.monotonic_ns() + 10_000_000


def test_polls_can_wait_while_a_sync_is_on_its_way_but_not_while_one_has_to_be_started(
    harness: EngineHarness,
) -> None:
    harness.put("t", durability="fsync")
    harness.engine.poll()
    assert harness.engine.is_quiet
    answer = harness.engine.append("t", records([1]))
    harness.engine.write()
    assert not harness.engine.is_quiet
    harness.engine.poll()
    assert harness.engine.is_quiet
    assert not answer.commit.done
    later = harness.engine.append("t", records([2]))
    harness.engine.write()
    assert harness.engine.is_quiet, "the sync that it needs can start when the first is over"
    harness.engine.poll()
    assert answer.commit.done
    harness.wait_for(later.commit)


def test_a_sync_that_waits_for_more_writes_starts_when_none_come(harness: EngineHarness) -> None:
    harness.put("t", durability="fsync")
    harness.append("t", 0)
    answers = []
    for number in (1, 2):
        answers.append(harness.engine.append("t", records([number])))
        assert harness.engine.write()
    harness.engine.poll()
    assert not any(answer.commit.done for answer in answers)
    due_ns = harness.engine.due_ns()
    assert due_ns is not None and due_ns > harness.clock.monotonic_ns(), "no window between the two syncs"
    assert harness.engine.holds_sync
    assert not harness.engine.write()
    harness.engine.start_held_syncs()
    assert not harness.engine.holds_sync
    harness.engine.poll()
    assert all(answer.commit.done for answer in answers)


def test_a_large_ephemeral_topic_can_become_durable_in_one_step(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, file_bytes=1 << 20)
    harness.put("t", durability="ephemeral")
    for first in range(0, QUEUE_MAX + 1000, 1000):
        harness.append("t", *range(first, first + 1000))
    harness.put("t", durability="fsync")
    before = harness.state("t")
    harness.lose_power()
    after = harness.state("t")
    assert (after.head_seq, after.count, after.bytes) == (before.head_seq, before.count, before.bytes)
    assert after.count > QUEUE_MAX
