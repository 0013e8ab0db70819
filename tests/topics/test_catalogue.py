"""Which topics there are: creating, configuring, listing and deleting them, and when that is kept."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from everlog.errors import (
    InvalidRequest,
    LimitReached,
    StorageFailed,
    TopicIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)
from everlog.topics import TopicConfig, record_of
from tests.support.engines import START_MS, EngineHarness, records, sized


@pytest.fixture(params=["disk", "memory"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> EngineHarness:
    """An empty engine, on a disk or not."""
    return EngineHarness(tmp_path if request.param == "disk" else None)


def names(stage: EngineHarness) -> list[str]:
    """All topics."""
    return [state.topic for state in stage.engine.topics(limit=1000)]


# --- Names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d-e", "x" * 255, "9" + "-" * 254])
def test_a_good_name_is_taken_as_it_is(stage: EngineHarness, name: str) -> None:
    assert stage.put(name).created
    assert names(stage) == [name]


@pytest.mark.parametrize(
    "name", ["", "x" * 256, "-a", ".a", "_a", ":a", "a b", "a/b", "a\n", "ü", "a>b", "a\x00", "../x"]
)
def test_a_bad_name_is_refused_when_a_topic_would_be_created(stage: EngineHarness, name: str) -> None:
    with pytest.raises(InvalidRequest):
        stage.engine.put_topic(name)
    with pytest.raises(InvalidRequest):
        stage.engine.append(name, records([1]))
    assert names(stage) == []


def test_names_are_case_sensitive(stage: EngineHarness) -> None:
    stage.put("A")
    with pytest.raises(TopicNotFound):
        stage.engine.state("a")


# --- Configuration ---------------------------------------------------------------------------------------


def test_putting_an_existing_topic_replaces_its_whole_configuration(stage: EngineHarness) -> None:
    first = stage.put("t", cap_records=5, priority=7, durable=True, dedupe_node=False)
    stage.append("t", 1, 2)
    second = stage.put("t", ttl_ms=9000)
    assert (first.created, second.created) == (True, False)
    assert second.config == TopicConfig(ttl_ms=9000).resolved("t")
    assert stage.state("t").config == second.config
    assert stage.values("t") == [1, 2]


def test_the_type_of_a_topic_cannot_change_not_even_by_leaving_it_out(stage: EngineHarness) -> None:
    stage.put("log")
    stage.put("queue", type="queue")
    with pytest.raises(TopicIncompatible):
        stage.engine.put_topic("log", TopicConfig(type="queue"))  # type: ignore[arg-type]
    with pytest.raises(TopicIncompatible):
        stage.engine.put_topic("queue")
    assert not stage.put("queue", type="queue", priority=1).created


def test_a_refused_configuration_changes_nothing(stage: EngineHarness) -> None:
    stage.put("t", cap_records=5)
    with pytest.raises(InvalidRequest):
        stage.engine.put_topic("t", TopicConfig(cap_records=-1))
    with pytest.raises(InvalidRequest):
        stage.engine.put_topic("new", TopicConfig(dead_letter="new"))
    assert stage.state("t").config.cap_records == 5
    assert names(stage) == ["t"]


def test_a_configuration_survives_every_restart(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        stage.put(durability, durability=durability, cap_bytes=77, dead_letter="dead", priority=-3)
    expected = {name: stage.state(name).config for name in names(stage)}
    for again in (stage.lose_power, stage.restart, stage.crash):
        again()
        assert {name: stage.state(name).config for name in names(stage)} == expected


def test_a_change_takes_effect_when_it_is_synced_and_later_appends_wait_for_it(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="memory")
    change = stage.engine.put_topic("t", TopicConfig(cap_records=1))
    appended = stage.engine.append("t", records([1, 2]))
    stage.engine.write()
    assert not change.commit.done
    assert not appended.commit.done
    assert stage.engine.state("t").config.cap_records == 0
    stage.wait_for(change.commit)
    stage.wait_for(appended.commit)
    assert stage.state("t").config.cap_records == 1
    assert stage.append("t", 3).commit.done
    assert stage.values("t") == [3]


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_change_that_cannot_be_logged_changes_nothing(tmp_path: Path, operation: str) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", cap_records=5)
    stage.disk.fail_when(operation, errno.EIO)
    with pytest.raises(StorageFailed):
        stage.put("t", cap_records=1)
    assert stage.state("t").config.cap_records == 5


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_topic_that_cannot_be_logged_is_not_there(tmp_path: Path, operation: str) -> None:
    stage = EngineHarness(tmp_path)
    stage.disk.fail_when(operation, errno.EIO)
    with pytest.raises(StorageFailed):
        stage.put("t")
    assert names(stage) == []
    if operation == "pwrite":
        stage.crash()
        assert names(stage) == []


def test_a_change_that_is_kept_is_done_even_if_its_floor_cannot_be_logged(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path, file_bytes=8192)
    stage.put("t", durability="fsync")
    stage.append("t", 1, 2)
    shard = stage.engine._core.shards[0]
    change = stage.engine.put_topic("t", TopicConfig(durable=True, cap_records=1))
    shard.write()
    # The log is full now: the floor that the tighter cap needs goes into a new file, which cannot be made.
    shard.wal.limit = shard.wal.source_offset
    stage.disk.fail_when(lambda call: call.name in ("open", "allocate"), errno.ENOSPC, times=1)
    stage.engine.poll()
    stage.engine.poll()
    assert change.commit.done
    assert change.commit.error is None
    stage.append("t", 3)
    assert (stage.values("t"), stage.gap("t")) == ([3], (1, 2, "cap"))


# --- State -----------------------------------------------------------------------------------------------


def test_a_new_topic_reports_that_it_was_never_used(stage: EngineHarness) -> None:
    stage.put("t")
    state = stage.engine.state("t", touch=False)
    assert (state.head_seq, state.next_seq, state.earliest_seq, state.count, state.bytes) == (0, 1, 1, 0, 0)
    assert (state.last_write_ts, state.last_read_ts, state.effective_priority) == (None, None, 0)


def test_the_time_of_the_last_write_survives_a_crash_with_its_record(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.append("t", 1)
    stage.advance_ms(10)
    stage.append("t", 2)
    for again in (stage.crash, stage.restart, stage.crash):
        again()
        assert stage.state("t").last_write_ts == START_MS + 10


def test_the_caller_may_put_the_most_topics_allowed_and_none_more(stage: EngineHarness) -> None:
    stage = EngineHarness(None, max_topics=2)
    stage.put("a")
    stage.append("b", 1)
    with pytest.raises(LimitReached):
        stage.engine.put_topic("c")
    with pytest.raises(LimitReached):
        stage.engine.append("c", records([1]))
    stage.put("a", priority=1)
    stage.delete_topic("b")
    stage.put("c")


# --- Listing ---------------------------------------------------------------------------------------------


def test_topics_are_listed_in_byte_order_by_prefix_and_page(stage: EngineHarness) -> None:
    for name in ("b:2", "a", "B", "b:10", "b", "c"):
        stage.put(name)
    engine = stage.engine
    assert names(stage) == ["B", "a", "b", "b:10", "b:2", "c"]
    assert [state.topic for state in engine.topics(prefix="b")] == ["b", "b:10", "b:2"]
    assert [state.topic for state in engine.topics(limit=2)] == ["B", "a"]
    assert [state.topic for state in engine.topics(after="a", limit=2)] == ["b", "b:10"]
    assert [state.topic for state in engine.topics(prefix="b:", after="b:10")] == ["b:2"]
    assert [state.topic for state in engine.topics(after="aa")] == ["b", "b:10", "b:2", "c"]
    assert engine.topics(prefix="zz") == []
    with pytest.raises(InvalidRequest):
        engine.topics(limit=0)


def test_listing_does_not_count_as_reading(stage: EngineHarness) -> None:
    stage.put("t")
    assert stage.engine.topics()[0].last_read_ts is None


# --- Deleting --------------------------------------------------------------------------------------------


def test_deleting_an_absent_topic_is_no_error(stage: EngineHarness) -> None:
    assert not stage.delete_topic("absent").deleted


def test_a_deleted_topic_is_gone_and_the_next_one_starts_anew(stage: EngineHarness) -> None:
    stage.put("t", cap_records=1)
    stage.append("t", 1, 2, idempotency_key="k")
    epoch = stage.state("t").epoch
    assert stage.delete_topic("t").deleted
    with pytest.raises(TopicNotFound):
        stage.engine.diff("t")
    answer = stage.append("t", record_of("new", tag="x"), idempotency_key="k")
    assert (answer.created, answer.deduped, answer.first_seq) == (True, False, 1)
    state = stage.state("t")
    assert state.epoch > epoch
    assert (state.config, state.evict_floor) == (TopicConfig().resolved("t"), 1)
    assert stage.values("t") == ["new"]


def test_if_empty_refuses_a_topic_with_live_records(stage: EngineHarness) -> None:
    stage.put("t", ttl_ms=100)
    stage.append("t", 1)
    with pytest.raises(TopicNotEmpty):
        stage.engine.delete_topic("t", if_empty=True)
    stage.advance_ms(101)
    assert stage.delete_topic("t", if_empty=True).deleted


def test_if_empty_refuses_a_topic_with_records_that_are_about_to_be_visible(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.put("t", durability="fsync")
    pending = stage.engine.append("t", records([1]))
    with pytest.raises(TopicNotEmpty):
        stage.engine.delete_topic("t", if_empty=True)
    stage.wait_for(pending.commit)
    assert stage.values("t") == [1]


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_recreated_topic_survives_restarts_and_the_old_one_stays_gone(
    tmp_path: Path, shards: int, rounds: int
) -> None:
    stage = EngineHarness(tmp_path, shards=shards)
    for number in range(rounds):
        stage.append("t", f"old {number}")
        stage.delete_topic("t")
        stage.append("gone", number)
        stage.delete_topic("gone")
    stage.append("t", "new")
    epoch = stage.state("t").epoch
    for again in (stage.crash, stage.lose_power, stage.restart, stage.crash):
        again()
        assert names(stage) == ["t"]
        assert (stage.values("t"), stage.state("t").epoch) == (["new"], epoch)
    stage.delete_topic("t")
    stage.append("t", "newest")
    assert stage.state("t").epoch > epoch


def test_a_deleted_topic_leaves_no_file_behind(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path, segment_max_events=2)
    stage.append("t", 1, 2, 3)
    stage.checkpoint(2)
    stage.delete_topic("t")
    stage.checkpoint(3)
    assert list((tmp_path / "data" / "topics").rglob("*.data")) == []


def test_a_topic_whose_deletion_cannot_be_logged_is_still_there(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    stage.append("t", 1)
    stage.disk.fail_when("pwrite", errno.EIO)
    with pytest.raises(StorageFailed):
        stage.delete_topic("t")
    assert stage.values("t") == [1]
    stage.append("t", sized(5))
    stage.crash()
    assert stage.state("t").count == 2


def test_concurrent_creates_of_one_name_have_one_winner(tmp_path: Path) -> None:
    stage = EngineHarness(tmp_path)
    answers = [stage.engine.put_topic("t") for _ in range(3)]
    assert [answer.created for answer in answers] == [True, False, False]
    assert not any(answer.commit.done for answer in answers)
    for answer in answers:
        stage.wait_for(answer.commit)
