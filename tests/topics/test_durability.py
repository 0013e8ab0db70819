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
def stage(tmp_path: Path) -> EngineHarness:
    """One topic per class, each named after it and written to once."""
    stage = EngineHarness(tmp_path)
    for durability in CLASSES:
        stage.put(durability, durability=durability)
        stage.append(durability, 0)
    return stage


def visible(stage: EngineHarness, name: str) -> int:
    """The head that a reader sees now, without waiting for anything."""
    return stage.engine.diff(name, touch=False).head_seq


# --- When a batch is done --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durability", "at_once", "when_written"),
    [("ephemeral", True, True), ("memory", False, True), ("disk", False, True), ("fsync", False, False)],
)
def test_a_batch_is_done_and_visible_when_its_class_says(
    stage: EngineHarness, durability: str, at_once: bool, when_written: bool
) -> None:
    answer = stage.engine.append(durability, records([1]))
    assert (answer.commit.done, visible(stage, durability) == 2) == (at_once, at_once)
    stage.engine.write()
    assert (answer.commit.done, visible(stage, durability) == 2) == (when_written, when_written)
    stage.wait_for(answer.commit)
    assert visible(stage, durability) == 2


@pytest.mark.parametrize("durability", CLASSES)
def test_the_write_that_creates_a_topic_waits_for_a_sync_in_every_class(
    stage: EngineHarness, durability: str
) -> None:
    config = TopicConfig(durability=durability)  # type: ignore[arg-type]
    answer = stage.engine.append("new", records([1]), config=config)
    stage.engine.write()
    assert not answer.commit.done
    stage.wait_for(answer.commit)
    assert stage.values("new") == [1]


def test_callbacks_come_once_with_the_outcome_and_at_once_if_it_is_known(stage: EngineHarness) -> None:
    seen: list[object] = []
    answer = stage.engine.append("fsync", records([1]))
    answer.commit.on_done(lambda commit: seen.append(commit.error))
    answer.commit.on_done(lambda commit: seen.append(commit.done))
    assert seen == []
    stage.wait_for(answer.commit)
    assert seen == [None, True]
    answer.commit.on_done(lambda commit: seen.append("later"))
    assert seen == [None, True, "later"]


def test_batches_of_a_topic_become_visible_in_their_order(stage: EngineHarness) -> None:
    order: list[int] = []
    answers = [stage.engine.append("fsync", records([number])) for number in range(5)]
    for answer in answers:
        answer.commit.on_done(lambda _, last=answer.last_seq: order.append(last))  # type: ignore[misc]
    for answer in reversed(answers):
        stage.wait_for(answer.commit)
    assert order == [2, 3, 4, 5, 6]


def test_a_disk_batch_behind_the_synced_ceiling_is_done_when_written_and_one_beyond_waits(
    stage: EngineHarness,
) -> None:
    stage.put("t", durability="disk")
    stage.append("t", 0)  # syncs the ceiling 257
    within = stage.engine.append("t", records(range(RESERVED)))
    stage.engine.write()
    assert (within.last_seq, within.commit.done) == (RESERVED + 1, True)
    beyond = stage.engine.append("t", records(range(2 * RESERVED)))
    stage.engine.write()
    assert not beyond.commit.done
    stage.wait_for(beyond.commit)


def test_a_steady_disk_writer_hardly_ever_waits_for_a_sync(stage: EngineHarness) -> None:
    waited = 0
    for number in range(600):
        answer = stage.engine.append("disk", records([number]))
        stage.engine.write()
        waited += not answer.commit.done
        stage.wait_for(answer.commit)
        stage.engine.poll()
    assert waited <= 5


# --- What a restart keeps --------------------------------------------------------------------------------


def test_a_clean_stop_keeps_everything_but_ephemeral_records(stage: EngineHarness) -> None:
    for durability in CLASSES:
        stage.append(durability, 1, 2)
    for _ in range(2):
        stage.restart()
        for durability in LOGGED:
            assert stage.values(durability) == [0, 1, 2]
            assert stage.state(durability).head_seq == 3
        assert (stage.values("ephemeral"), stage.state("ephemeral").head_seq) == ([], 3)
        assert stage.gap("ephemeral") is None
    assert stage.append("ephemeral", "new").first_seq == 4


@pytest.mark.parametrize("seed", range(10))
def test_what_a_power_loss_leaves_of_each_class(tmp_path: Path, seed: int) -> None:
    stage = EngineHarness(tmp_path, seed)
    for durability in CLASSES:
        stage.put(durability, durability=durability)
    for number in range(20):
        for durability in CLASSES:
            stage.append(durability, number)
    for durability in ("memory", "disk"):
        stage.engine.append(durability, records(["last"] * 3))
    stage.engine.write()
    stage.lose_power()
    everything = [*range(20), *["last"] * 3]
    assert stage.values("fsync") == list(range(20))
    assert stage.values("ephemeral") == []
    for durability in ("memory", "disk"):
        kept = stage.values(durability)
        assert kept == everything[: len(kept)]
        assert len(kept) <= 20 or len(kept) == 23, "a batch is kept whole or not at all"
    assert stage.state("memory").head_seq <= 23
    disk = stage.state("disk")
    assert 23 <= disk.head_seq <= 23 + RESERVED
    assert stage.gap("disk") is None
    assert stage.append("disk", "new").first_seq == disk.head_seq + 1
    assert stage.append("fsync", "new").first_seq == 21


def test_unused_seqs_of_the_reservation_are_silent_holes(stage: EngineHarness) -> None:
    stage.lose_power()
    state = stage.state("disk")
    assert (state.head_seq, state.count, state.earliest_seq) == (1 + RESERVED, 1, 1)
    assert (stage.values("disk"), stage.diff("disk").caught_up) == ([0], True)
    assert stage.gap("disk", 5) is None
    stage.lose_power()
    assert stage.state("disk").head_seq == 1 + RESERVED, "holes are not made again by every power loss"


def test_a_process_that_is_killed_leaves_no_holes_and_evicts_nothing(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="disk", cap_records=100)
    for value in range(150):
        stage.append("t", value)
    before = stage.state("t")
    stage.crash()
    after = stage.state("t")
    assert (after.head_seq, after.earliest_seq, after.count) == (150, 51, 100)
    assert (after.head_seq, after.earliest_seq) == (before.head_seq, before.earliest_seq)


def test_a_power_loss_costs_a_capped_disk_topic_at_most_its_reserve(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="disk", cap_records=100)
    for value in range(150):
        stage.append("t", value)
    before = stage.state("t")
    stage.lose_power()
    after = stage.state("t")
    assert before.earliest_seq <= after.earliest_seq <= before.earliest_seq + 100 // 8


def test_an_incomplete_batch_is_no_batch(tmp_path: Path) -> None:
    for seed in range(10):
        (tmp_path / str(seed)).mkdir()
        stage = EngineHarness(tmp_path / str(seed), seed)
        stage.put("t", durability="memory")
        stage.append("t", *[sized(3000)] * 4)
        stage.append("t", *[sized(3000)] * 4)
        stage.lose_power()
        assert stage.state("t").count in (0, 4, 8)


@pytest.mark.parametrize("again", ["restart", "crash", "checkpoint and crash"])
def test_an_ephemeral_topic_keeps_its_head_over_a_restart_if_a_snapshot_had_it(
    stage: EngineHarness, again: str
) -> None:
    stage.append("ephemeral", 1, 2)
    if again == "checkpoint and crash":
        stage.checkpoint()
        again = "crash"
        expected = [3]
    else:
        expected = [3] if again == "restart" else [0, 3]
    getattr(stage, again)()
    assert stage.state("ephemeral").head_seq in expected
    assert stage.values("ephemeral") == []


def test_nothing_of_an_ephemeral_record_reaches_the_disk(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="ephemeral")
    stage.append("t", "needle in a haystack")
    stage.checkpoint()
    stage.engine.close()
    assert not any(b"needle" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# --- Changing the class ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", LOGGED)
@pytest.mark.parametrize("again", ["restart", "crash"])
@pytest.mark.parametrize("snapshots_before", [0, 1, 2])
@pytest.mark.parametrize("snapshots_after", [0, 2])
def test_an_ephemeral_topic_that_becomes_persistent_keeps_its_records_over_restarts(
    tmp_path: Path, target: str, again: str, snapshots_before: int, snapshots_after: int
) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="ephemeral")
    stage.append("t", 1, 2, 3)
    stage.checkpoint(snapshots_before)
    stage.put("t", durability=target)
    stage.checkpoint(snapshots_after)
    assert stage.append("t", 4).first_seq == 4
    for _ in range(2):
        getattr(stage, again)()
        assert stage.values("t") == [1, 2, 3, 4]


@pytest.mark.parametrize("snapshots", [0, 2])
def test_a_topic_that_becomes_persistent_without_another_write_keeps_its_records(
    tmp_path: Path, snapshots: int
) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="ephemeral")
    stage.append("t", 1, 2, 3)
    stage.checkpoint(snapshots)
    stage.put("t", durability="fsync")
    stage.restart()
    assert (stage.values("t"), stage.state("t").head_seq) == ([1, 2, 3], 3)


@pytest.mark.parametrize("seed", range(4))
def test_records_are_safe_once_the_change_to_fsync_is_acknowledged(tmp_path: Path, seed: int) -> None:
    stage = EngineHarness(tmp_path, seed)
    stage.put("t", durability="ephemeral")
    stage.append("t", 1, 2, 3)
    stage.put("t", durability="fsync")
    stage.lose_power()
    assert (stage.values("t"), stage.state("t").head_seq) == ([1, 2, 3], 3)


@pytest.mark.parametrize("way", ["match", "before_seq", "cap", "ttl"])
def test_records_that_were_gone_before_a_topic_became_persistent_never_return(
    tmp_path: Path, way: str
) -> None:
    stage = EngineHarness(tmp_path)
    limits = {"cap": {"cap_records": 2}, "ttl": {"ttl_ms": 100}}.get(way, {})
    stage.put("t", durability="ephemeral", **limits)
    stage.append("t", record_of(1, tag="x"))
    stage.advance_ms(101)
    stage.append("t", 2, 3)
    if way in ("match", "before_seq"):
        stage.delete("t", **{way: "x" if way == "match" else 2})
    gap = stage.gap("t")
    assert stage.values("t") == [2, 3]
    stage.put("t", durability="fsync")
    stage.crash()
    assert (stage.values("t"), stage.gap("t")) == ([2, 3], gap)


def test_a_persistent_topic_that_becomes_ephemeral_stays_readable_and_is_lost_with_a_restart(
    tmp_path: Path,
) -> None:
    stage = EngineHarness(tmp_path, file_bytes=8192)
    stage.put("t", durability="disk")
    stage.append("t", 1, 2)
    stage.put("t", durability="ephemeral")
    stage.append("t", 3)
    for _ in range(4):  # the log files that hold 1 and 2 are trimmed
        stage.append_each("other", [sized(500)] * 10)
        stage.checkpoint()
    assert stage.values("t") == [1, 2, 3]
    stage.restart()
    assert (stage.values("t"), stage.state("t").head_seq) == ([], 3)


def test_a_topic_that_was_ephemeral_for_a_while_keeps_what_was_safe_before(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="fsync")
    stage.append("t", 1, 2)
    stage.checkpoint(2)
    stage.put("t", durability="ephemeral")
    stage.append("t", 3)
    stage.checkpoint(2)
    stage.put("t", durability="fsync")
    stage.append("t", 4)
    stage.crash()
    assert stage.values("t") == [1, 2, 3, 4]


@pytest.mark.parametrize("selection", [{"match": "x"}, {"before_seq": 2}])
def test_records_deleted_while_a_topic_was_ephemeral_never_return(
    tmp_path: Path, selection: dict[str, Any]
) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="fsync")
    stage.append("t", record_of(1, tag="x"), record_of(2))
    stage.put("t", durability="ephemeral")
    stage.delete("t", **selection)
    stage.put("t", durability="fsync")
    stage.crash()
    assert stage.values("t") == [2]


def test_an_empty_topic_that_becomes_persistent_keeps_its_head(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="ephemeral")
    stage.append("t", 1, 2, 3)
    stage.delete("t", before_seq=9)
    stage.put("t", durability="fsync")
    stage.crash()
    assert (stage.state("t").head_seq, stage.append("t", 4).first_seq) == (3, 4)
    stage.restart()
    assert stage.seqs("t") == [4]


def test_operations_behind_a_pending_change_of_class_are_kept_with_it(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="ephemeral")
    stage.append("t", record_of(1, tag="x"), record_of(2))
    change = stage.engine.put_topic("t", TopicConfig(durable=True))
    stage.engine.delete_records("t", match="x")
    appended = stage.engine.append("t", records([3]))
    stage.wait_for(change.commit)
    stage.wait_for(appended.commit)
    assert stage.values("t") == [2, 3]
    stage.crash()
    assert stage.values("t") == [2, 3]


def test_the_head_never_goes_back_when_a_topic_becomes_ephemeral_with_a_batch_on_its_way(
    tmp_path: Path,
) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="fsync")
    change = stage.engine.put_topic("t", TopicConfig(durability=Durability.EPHEMERAL))
    stage.engine.write()
    first = stage.engine.append("t", records([1]))
    while not change.commit.done:
        stage.engine.poll()
    second = stage.engine.append("t", records([2]))
    heads = [visible(stage, "t")]
    for answer in (second, first):
        stage.wait_for(answer.commit)
        heads.append(visible(stage, "t"))
    assert heads == sorted(heads)
    assert stage.values("t") == [1, 2]


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_topic_whose_change_of_class_fails_is_as_it_was(tmp_path: Path, operation: str) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="ephemeral")
    stage.append("t", 1, 2)
    stage.disk.fail_when(operation, errno.EIO)
    with pytest.raises(StorageFailed):
        stage.put("t", durability="fsync")
    assert stage.state("t").config.durability == "ephemeral"
    assert stage.append("t", 3).commit.done
    assert stage.values("t") == [1, 2, 3]
    if operation == "pwrite":
        stage.put("t", durability="fsync")
        stage.crash()
        assert stage.values("t") == [1, 2, 3]


# --- Failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", LOGGED)
def test_a_failed_write_publishes_nothing_and_takes_no_seq(stage: EngineHarness, durability: str) -> None:
    before = stage.state(durability)
    stage.disk.fail_when("pwrite", errno.ENOSPC)
    answers = [stage.engine.append(durability, [record_of(n, tag="x")]) for n in (1, 2)]
    stage.engine.write()
    for answer in answers:
        assert isinstance(answer.commit.error, StorageFailed)
        assert answer.commit.error.errno == errno.ENOSPC
    assert stage.state(durability) == before
    assert stage.delete(durability, match="x").deleted == 0
    assert stage.append(durability, "next").first_seq == 2
    stage.crash()
    assert stage.values(durability) == [0, "next"]


def test_a_failed_write_fails_every_topic_that_was_gathered_with_it(stage: EngineHarness) -> None:
    stage.disk.fail_when("pwrite", errno.EIO)
    answers = [stage.engine.append(name, records([1])) for name in LOGGED for _ in range(2)]
    new = stage.engine.append("new", records([1]))
    ephemeral = stage.engine.append("ephemeral", records([1]))
    stage.engine.write()
    assert all(answer.commit.error for answer in (*answers, new))
    assert ephemeral.commit.done
    assert ephemeral.commit.error is None
    assert "new" not in [state.topic for state in stage.engine.topics()]
    assert [stage.append(name, 1).first_seq for name in LOGGED] == [2, 2, 2]


def test_a_failed_sync_fails_its_writers_and_later_ones_while_reads_go_on(stage: EngineHarness) -> None:
    stage.disk.fail_when("fdatasync", errno.EIO)
    with pytest.raises(ReadOnly):
        stage.append("fsync", 1)
    for durability in LOGGED:
        with pytest.raises(ReadOnly):
            stage.append(durability, 2)
    with pytest.raises(ReadOnly):
        stage.put("new")
    with pytest.raises(ReadOnly):
        stage.delete("disk", before_seq=2)
    assert stage.append("ephemeral", 1).first_seq == 2
    assert [stage.values(durability) for durability in LOGGED] == [[0], [0], [0]]
    with pytest.raises(ReadOnly):
        stage.engine.close()
    stage.open_with()
    assert stage.values("fsync")[:1] == [0]
    assert stage.append("fsync", "goes on").commit.done


def test_after_a_failed_sync_nothing_that_was_acknowledged_is_lost(stage: EngineHarness) -> None:
    stage.append("fsync", 1)
    stage.disk.fail_when("fdatasync", errno.EIO)
    with pytest.raises(ReadOnly):
        stage.append("fsync", 2)
    stage.lose_power()
    assert stage.values("fsync") in ([0, 1], [0, 1, 2])
    assert stage.append("fsync", 3).commit.done


def test_a_refused_batch_leaves_no_trace_in_the_log(stage: EngineHarness) -> None:
    stage.put("t", durability="disk", discard="reject", cap_bytes=10)
    with pytest.raises(RecordTooLarge):
        stage.engine.append("t", [sized(11)], idempotency_key="k")
    stage.append("memory", 1)
    stage.crash()
    assert stage.state("t").head_seq == 0
    assert not stage.append("t", 1, idempotency_key="k").deduped
    follower = stage.engine.append("t", records([2]))
    stage.engine.write()
    assert follower.commit.done, "the ceiling of the first batch covers it"


def test_a_stop_whose_snapshot_fails_says_so_and_loses_nothing(stage: EngineHarness) -> None:
    stage.disk.fail_when("rename", errno.ENOSPC, path="snapshot-")
    with pytest.raises(Io):
        stage.engine.close()
    stage.open_with()
    assert [stage.values(durability) for durability in LOGGED] == [[0], [0], [0]]


def test_one_read_only_shard_does_not_stop_the_others(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path, shards=2)
    names = [f"t{number}" for number in range(8)]
    for name in names:
        stage.append(name, 0, config=TopicConfig(durable=True))
    stage.disk.fail_when("fdatasync", errno.EIO)
    failed = []
    for name in names:
        try:
            stage.append(name, 1)
        except StorageFailed:
            failed.append(name)
    assert 0 < len(failed) < len(names)
    assert failed[0] == names[0]


# --- The engine itself -----------------------------------------------------------------------------------


def test_a_directory_belongs_to_one_engine_at_a_time(stage: EngineHarness) -> None:
    with pytest.raises(DataDirInUse):
        Engine.open(stage.data_dir)
    stage.engine.close()
    Engine.open(stage.data_dir, stage.settings).close()


def test_a_closed_engine_refuses_everything_and_may_be_closed_again(stage: EngineHarness) -> None:
    engine = stage.engine
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


def test_the_engine_tells_when_it_has_to_be_polled(stage: EngineHarness) -> None:
    stage.engine.append("disk", records([1]))
    stage.engine.write()
    due_ns = stage.engine.due_ns()
    assert due_ns is not None
    assert due_ns <= stage.clock.monotonic_ns() + 10_000_000


def test_polls_can_wait_while_a_sync_is_on_its_way_but_not_while_one_has_to_be_started(
    stage: EngineHarness,
) -> None:
    stage.put("t", durability="fsync")
    stage.engine.poll()
    assert stage.engine.is_quiet
    answer = stage.engine.append("t", records([1]))
    stage.engine.write()
    assert not stage.engine.is_quiet
    stage.engine.poll()
    assert stage.engine.is_quiet
    assert not answer.commit.done
    later = stage.engine.append("t", records([2]))
    stage.engine.write()
    assert stage.engine.is_quiet, "the sync that it needs can start when the first is over"
    stage.engine.poll()
    assert answer.commit.done
    stage.wait_for(later.commit)


def test_a_sync_that_waits_for_more_writers_starts_when_nobody_is_writing(stage: EngineHarness) -> None:
    stage.put("t", durability="fsync")
    stage.append("t", 0)
    answers = []
    for number in (1, 2):
        answers.append(stage.engine.append("t", records([number])))
        assert stage.engine.write()
    stage.engine.poll()
    assert not any(answer.commit.done for answer in answers)
    due_ns = stage.engine.due_ns()
    assert due_ns is not None and due_ns > stage.clock.monotonic_ns(), "no window between the two syncs"
    assert stage.engine.holds_sync
    assert not stage.engine.write()
    stage.engine.start_held_syncs()
    assert not stage.engine.holds_sync
    stage.engine.poll()
    assert all(answer.commit.done for answer in answers)


def test_a_large_ephemeral_topic_can_become_durable_in_one_step(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path, file_bytes=1 << 20)
    stage.put("t", durability="ephemeral")
    for first in range(0, QUEUE_MAX + 1000, 1000):
        stage.append("t", *range(first, first + 1000))
    stage.put("t", durability="fsync")
    before = stage.state("t")
    stage.lose_power()
    after = stage.state("t")
    assert (after.head_seq, after.count, after.bytes) == (before.head_seq, before.count, before.bytes)
    assert after.count > QUEUE_MAX
