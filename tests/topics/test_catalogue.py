"""Which topics there are: creating, configuring, listing and deleting them, and when that is kept."""

from __future__ import annotations

import errno
import time
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
def harness(tmp_path: Path, request: pytest.FixtureRequest) -> EngineHarness:
    """An empty engine, on a disk or not."""
    return EngineHarness(tmp_path if request.param == "disk" else None)


def names(harness: EngineHarness) -> list[str]:
    """All topics."""
    return [state.topic for state in harness.engine.topics(limit=1000)]


# --- Names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d-e", "x" * 255, "9" + "-" * 254])
def test_a_good_name_is_taken_as_it_is(harness: EngineHarness, name: str) -> None:
    assert harness.put(name).created
    assert names(harness) == [name]


@pytest.mark.parametrize(
    "name", ["", "x" * 256, "-a", ".a", "_a", ":a", "a b", "a/b", "a\n", "ü", "a>b", "a\x00", "../x"]
)
def test_a_bad_name_is_refused_when_a_topic_would_be_created(harness: EngineHarness, name: str) -> None:
    with pytest.raises(InvalidRequest):
        harness.engine.put_topic(name)
    with pytest.raises(InvalidRequest):
        harness.engine.append(name, records([1]))
    assert names(harness) == []


def test_names_are_case_sensitive(harness: EngineHarness) -> None:
    harness.put("A")
    with pytest.raises(TopicNotFound):
        harness.engine.state("a")


# --- Configuration ---------------------------------------------------------------------------------------


def test_putting_an_existing_topic_replaces_its_whole_configuration(harness: EngineHarness) -> None:
    first = harness.put("t", cap_records=5, priority=7, durable=True, dedupe_node=False)
    harness.append("t", 1, 2)
    second = harness.put("t", ttl_ms=9000)
    assert (first.created, second.created) == (True, False)
    assert second.config == TopicConfig(ttl_ms=9000).resolved("t")
    assert harness.state("t").config == second.config
    assert harness.values("t") == [1, 2]


def test_the_type_of_a_topic_cannot_change_not_even_by_leaving_it_out(harness: EngineHarness) -> None:
    harness.put("log")
    harness.put("queue", type="queue")
    with pytest.raises(TopicIncompatible):
        harness.engine.put_topic("log", TopicConfig(type="queue"))  # type: ignore[arg-type]
    with pytest.raises(TopicIncompatible):
        harness.engine.put_topic("queue")
    assert not harness.put("queue", type="queue", priority=1).created


def test_a_refused_configuration_changes_nothing(harness: EngineHarness) -> None:
    harness.put("t", cap_records=5)
    with pytest.raises(InvalidRequest):
        harness.engine.put_topic("t", TopicConfig(cap_records=-1))
    with pytest.raises(InvalidRequest):
        harness.engine.put_topic("new", TopicConfig(dead_letter="new"))
    assert harness.state("t").config.cap_records == 5
    assert names(harness) == ["t"]


def test_a_configuration_survives_every_restart(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        harness.put(durability, durability=durability, cap_bytes=77, dead_letter="dead", priority=-3)
    expected = {name: harness.state(name).config for name in names(harness)}
    for again in (harness.lose_power, harness.restart, harness.crash):
        again()
        assert {name: harness.state(name).config for name in names(harness)} == expected


def test_a_change_takes_effect_when_it_is_synced_and_later_appends_wait_for_it(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="memory")
    change = harness.engine.put_topic("t", TopicConfig(cap_records=1))
    appended = harness.engine.append("t", records([1, 2]))
    harness.engine.write()
    assert not change.commit.done
    assert not appended.commit.done
    assert harness.engine.state("t").config.cap_records == 0
    harness.wait_for(change.commit)
    harness.wait_for(appended.commit)
    assert harness.state("t").config.cap_records == 1
    assert harness.append("t", 3).commit.done
    assert harness.values("t") == [3]


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_change_that_cannot_be_logged_changes_nothing(tmp_path: Path, operation: str) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", cap_records=5)
    harness.disk.fail_when(operation, errno.EIO)
    with pytest.raises(StorageFailed):
        harness.put("t", cap_records=1)
    assert harness.state("t").config.cap_records == 5


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_topic_that_cannot_be_logged_is_not_there(tmp_path: Path, operation: str) -> None:
    harness = EngineHarness(tmp_path)
    harness.disk.fail_when(operation, errno.EIO)
    with pytest.raises(StorageFailed):
        harness.put("t")
    assert names(harness) == []
    if operation == "pwrite":
        harness.crash()
        assert names(harness) == []


def test_a_change_that_is_kept_is_done_even_if_its_floor_cannot_be_logged(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, file_bytes=8192)
    harness.put("t", durability="fsync")
    harness.append("t", 1, 2)
    shard = harness.engine._core.shards[0]
    change = harness.engine.put_topic("t", TopicConfig(durable=True, cap_records=1))
    shard.write()
    # The log is full now: the floor that the tighter cap needs goes into a new file, which cannot be made.
    shard.wal.limit = shard.wal.source_offset
    harness.disk.fail_when(lambda call: call.name in ("open", "allocate"), errno.ENOSPC, times=1)
    harness.engine.poll()
    harness.engine.poll()
    assert change.commit.done
    assert change.commit.error is None
    harness.append("t", 3)
    assert (harness.values("t"), harness.gap("t")) == ([3], (1, 2, "cap"))


# --- State -----------------------------------------------------------------------------------------------


def test_a_new_topic_reports_that_it_was_never_used(harness: EngineHarness) -> None:
    harness.put("t")
    state = harness.engine.state("t", touch=False)
    assert (state.head_seq, state.next_seq, state.earliest_seq, state.count, state.bytes) == (0, 1, 1, 0, 0)
    assert (state.last_write_ts, state.last_read_ts, state.effective_priority) == (None, None, 0)


def test_the_time_of_the_last_write_survives_a_crash_with_its_record(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.append("t", 1)
    harness.advance_ms(10)
    harness.append("t", 2)
    for again in (harness.crash, harness.restart, harness.crash):
        again()
        assert harness.state("t").last_write_ts == START_MS + 10


def test_the_caller_may_put_the_most_topics_allowed_and_none_more(harness: EngineHarness) -> None:
    harness = EngineHarness(None, max_topics=2)
    harness.put("a")
    harness.append("b", 1)
    with pytest.raises(LimitReached):
        harness.engine.put_topic("c")
    with pytest.raises(LimitReached):
        harness.engine.append("c", records([1]))
    harness.put("a", priority=1)
    harness.delete_topic("b")
    harness.put("c")


# --- Listing ---------------------------------------------------------------------------------------------


def test_topics_are_listed_in_byte_order_by_prefix_and_page(harness: EngineHarness) -> None:
    for name in ("b:2", "a", "B", "b:10", "b", "c"):
        harness.put(name)
    engine = harness.engine
    assert names(harness) == ["B", "a", "b", "b:10", "b:2", "c"]
    assert [state.topic for state in engine.topics(prefix="b")] == ["b", "b:10", "b:2"]
    assert [state.topic for state in engine.topics(limit=2)] == ["B", "a"]
    assert [state.topic for state in engine.topics(after="a", limit=2)] == ["b", "b:10"]
    assert [state.topic for state in engine.topics(prefix="b:", after="b:10")] == ["b:2"]
    assert [state.topic for state in engine.topics(after="aa")] == ["b", "b:10", "b:2", "c"]
    assert engine.topics(prefix="zz") == []
    with pytest.raises(InvalidRequest):
        engine.topics(limit=0)


def test_listing_does_not_count_as_reading(harness: EngineHarness) -> None:
    harness.put("t")
    assert harness.engine.topics()[0].last_read_ts is None


# --- Deleting --------------------------------------------------------------------------------------------


def test_deleting_an_absent_topic_is_no_error(harness: EngineHarness) -> None:
    assert not harness.delete_topic("absent").deleted


def test_a_deleted_topic_is_gone_and_the_next_one_starts_anew(harness: EngineHarness) -> None:
    harness.put("t", cap_records=1)
    harness.append("t", 1, 2, idempotency_key="k")
    epoch = harness.state("t").epoch
    assert harness.delete_topic("t").deleted
    with pytest.raises(TopicNotFound):
        harness.engine.diff("t")
    answer = harness.append("t", record_of("new", tag="x"), idempotency_key="k")
    assert (answer.created, answer.deduped, answer.first_seq) == (True, False, 1)
    state = harness.state("t")
    assert state.epoch > epoch
    assert (state.config, state.evict_floor) == (TopicConfig().resolved("t"), 1)
    assert harness.values("t") == ["new"]


def test_if_empty_refuses_a_topic_with_live_records(harness: EngineHarness) -> None:
    harness.put("t", ttl_ms=100)
    harness.append("t", 1)
    with pytest.raises(TopicNotEmpty):
        harness.engine.delete_topic("t", if_empty=True)
    harness.advance_ms(101)
    assert harness.delete_topic("t", if_empty=True).deleted


def test_if_empty_refuses_a_topic_with_records_that_are_about_to_be_visible(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    pending = harness.engine.append("t", records([1]))
    with pytest.raises(TopicNotEmpty):
        harness.engine.delete_topic("t", if_empty=True)
    harness.wait_for(pending.commit)
    assert harness.values("t") == [1]


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_recreated_topic_survives_restarts_and_the_old_one_stays_gone(
    tmp_path: Path, shards: int, rounds: int
) -> None:
    harness = EngineHarness(tmp_path, shards=shards)
    for number in range(rounds):
        harness.append("t", f"old {number}")
        harness.delete_topic("t")
        harness.append("gone", number)
        harness.delete_topic("gone")
    harness.append("t", "new")
    epoch = harness.state("t").epoch
    for again in (harness.crash, harness.lose_power, harness.restart, harness.crash):
        again()
        assert names(harness) == ["t"]
        assert (harness.values("t"), harness.state("t").epoch) == (["new"], epoch)
    harness.delete_topic("t")
    harness.append("t", "newest")
    assert harness.state("t").epoch > epoch


def test_a_deleted_topic_leaves_no_file_behind(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, segment_max_events=2)
    harness.append("t", 1, 2, 3)
    harness.checkpoint(2)
    harness.delete_topic("t")
    harness.checkpoint(3)
    assert list((tmp_path / "data" / "topics").rglob("*.data")) == []


def test_a_topic_whose_deletion_cannot_be_logged_is_still_there(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.append("t", 1)
    harness.disk.fail_when("pwrite", errno.EIO)
    with pytest.raises(StorageFailed):
        harness.delete_topic("t")
    assert harness.values("t") == [1]
    harness.append("t", sized(5))
    harness.crash()
    assert harness.state("t").count == 2


def test_concurrent_creates_of_one_name_have_one_winner(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    answers = [harness.engine.put_topic("t") for _ in range(3)]
    assert [answer.created for answer in answers] == [True, False, False]
    assert not any(answer.commit.done for answer in answers)
    for answer in answers:
        harness.wait_for(answer.commit)


def test_a_page_of_topics_costs_as_much_among_many_topics_as_among_few() -> None:
    few, many = EngineHarness(None), EngineHarness(None)
    for harness, count in ((few, 100), (many, 20_000)):
        for number in range(count):
            harness.engine.put_topic(f"t{number}")

    def page_ns(harness: EngineHarness) -> int:
        started_ns = time.perf_counter_ns()
        harness.engine.topics("t", "t50", 1)
        return time.perf_counter_ns() - started_ns

    pairs = [(page_ns(few), page_ns(many)) for _ in range(200)]
    # A look at every name would take 200 times as long.
    assert min(of_many for _, of_many in pairs) < 20 * min(of_few for of_few, _ in pairs)
