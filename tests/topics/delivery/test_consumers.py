"""Consumers of the engine: cursors, owners, lags, holds, and what survives a restart."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from everlog.api_types import Durability
from everlog.clock import TestClock
from everlog.errors import ConsumerNotFound, CursorBackwards, Fenced, InvalidRequest, LimitReached, TopicFull
from everlog.topics import Engine, EngineSettings, TopicConfig, record_of
from everlog.topics.delivery.consumers import Start


def opened(path: Path | None, clock: TestClock | None = None, **settings: int) -> Engine:
    return Engine.open(path, EngineSettings(shards=2, **settings), clock=clock or TestClock())


def append(engine: Engine, count: int, topic: str = "t", **config: object) -> None:
    settings = TopicConfig(**config) if config else None  # type: ignore[arg-type]
    for number in range(count):
        engine.wait_for(engine.append(topic, [record_of(number)], config=settings).commit)


def test_the_cursor_begins_where_start_says_and_moves_by_commits_only() -> None:
    with opened(None) as engine:
        append(engine, 5)
        consumers = engine.consumers
        cursors = {
            "first": (Start(), 0),
            "last": (Start("latest"), 5),
            "third": (Start(seq=3), 2),
            "never": (Start(time_ms=2**60), 5),
        }
        for name, (start, cursor) in cursors.items():
            put = consumers.put("t", name, start)
            assert put.created
            assert put.state.cursor == cursor
            assert put.state.next_seq == cursor + 1
            assert put.state.lag_records == 5 - cursor
        assert not consumers.put("t", "third", Start("latest")).created
        assert consumers.show("t", "third").state.cursor == 2
        assert consumers.commit("t", "third", 4).state.lag_records == 1
        assert consumers.commit("t", "third", 4).state.cursor == 4
        with pytest.raises(CursorBackwards):
            consumers.commit("t", "third", 3)
        with pytest.raises(InvalidRequest):
            consumers.commit("t", "third", 6)
        with pytest.raises(ConsumerNotFound):
            consumers.show("t", "none")
        assert [state.name for state in consumers.page("t", "first", 2)[0]] == ["last", "never"]
        assert consumers.delete("t", "third").deleted
        assert not consumers.delete("t", "third").deleted
        assert consumers.count == 3


def test_lags_are_exact_after_deletes_eviction_and_age() -> None:
    clock = TestClock()
    with opened(None, clock) as engine:
        append(engine, 5, cap_records=10, ttl_ms=1000)
        clock.advance_ns(500_000_000)
        append(engine, 5)
        consumers = engine.consumers
        consumers.put("t", "c")
        engine.delete_records("t", before_seq=3)
        state = consumers.show("t", "c").state
        assert (state.lag_records, state.lag_ms, state.at_risk) == (8, 500, False)
        clock.advance_ns(600_000_000)
        state = consumers.show("t", "c").state
        assert (state.lag_records, state.lag_ms, state.at_risk) == (5, 600, True)
        append(engine, 8)
        assert consumers.show("t", "c").state.lag_records == 10
        consumers.commit("t", "c", engine.state("t").head_seq)
        state = consumers.show("t", "c").state
        assert (state.lag_records, state.lag_ms, state.at_risk) == (0, 0, False)


def test_a_consumer_is_at_risk_within_a_tenth_of_what_is_left() -> None:
    with opened(None) as engine:
        engine.put_topic("t", TopicConfig(cap_records=101))
        engine.append("t", [record_of(number) for number in range(101)])
        consumers = engine.consumers
        consumers.put("t", "first")
        assert not consumers.show("t", "first").state.at_risk, "nothing has been evicted"
        engine.append("t", [record_of(number) for number in range(99)])
        assert engine.state("t").evict_floor == 100
        for cursor, at_risk in ((98, True), (99, True), (100, True), (109, True), (110, False), (200, False)):
            consumers.reset("t", "first", Start(seq=cursor + 1))
            assert consumers.show("t", "first").state.at_risk is at_risk, cursor


def test_a_consumer_at_the_head_is_not_warned_of_what_was_evicted_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = TestClock()
    with opened(None, clock) as engine:
        append(engine, 5, ttl_ms=1000)
        consumers = engine.consumers
        consumers.put("t", "done", Start("latest"))
        consumers.put("t", "behind")
        clock.advance_ns(3_000_000_000)
        state = consumers.show("t", "done").state
        # The floor is behind the head, where the cursor is: below the floor, as the contract has it.
        assert (state.lag_records, state.at_risk) == (0, True)
        assert consumers.lags(10, lambda _: True)[1] == 1, "only one has lost anything"
        assert consumers.risk("t", "done") is None
        consumers.warn()
    assert [record.args[0] for record in caplog.records if record.args] == ["behind"]  # type: ignore[index]


def test_many_consumers_are_warned_of_in_steps_each_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = TestClock()
    with opened(None, clock) as engine:
        append(engine, 1, cap_records=10)
        names = [f"c{number:04}" for number in range(1200)]
        for name in names:
            engine.consumers.put("t", name)
        append(engine, 30)
        steps = []
        while engine.consumers.is_looking or not steps:
            engine.consumers.warn()
            steps.append(len(caplog.records))
            engine.consumers.delete("t", names[-1])  # others may come and go meanwhile
        warned = [record.args[0] for record in caplog.records if record.args]  # type: ignore[index]
        assert warned == names[:-1]
        assert max(after - before for before, after in itertools.pairwise(steps)) <= 500
        clock.advance_ns(5_000_000_000)
        append(engine, 1)
        engine.consumers.warn()
        assert not engine.consumers.is_looking
        assert len(caplog.records) == len(warned)


def test_a_second_owner_fences_the_first() -> None:
    clock = TestClock()
    with opened(None, clock) as engine:
        append(engine, 3)
        consumers = engine.consumers
        consumers.put("t", "c")
        consumers.commit("t", "c", 1)
        with pytest.raises(Fenced):
            consumers.commit("t", "c", 1, 7)
        first = consumers.acquire("t", "c", "one").owner_epoch
        with pytest.raises(Fenced):
            consumers.commit("t", "c", 2)
        assert consumers.commit("t", "c", 2, first).state.owner == "one"
        second = consumers.acquire("t", "c", "two", 1000).owner_epoch
        assert second > first
        with pytest.raises(Fenced):
            consumers.reading("t", "c", first)
        clock.advance_ns(1_100_000_000)
        assert consumers.show("t", "c").state.owner is None
        assert consumers.reading("t", "c", second).cursor == 2
        for ttl_ms in (999, 3_600_001):
            with pytest.raises(InvalidRequest):
                consumers.acquire("t", "c", "one", ttl_ms)
        for owner in ("", "x" * 129):
            with pytest.raises(InvalidRequest):
                consumers.acquire("t", "c", owner)


def test_a_hold_stops_caps_and_age_at_the_cursor_until_it_has_lasted_too_long() -> None:
    clock = TestClock()
    with opened(None, clock) as engine:
        append(engine, 3, cap_records=3, ttl_ms=1000)
        consumers = engine.consumers
        consumers.put("t", "c", hold=True, hold_max_ms=5000)
        with pytest.raises(TopicFull) as refused:
            append(engine, 1)
        assert refused.value.held_by == ("c",)
        assert engine.state("t").head_seq == 3
        clock.advance_ns(2_000_000_000)
        assert engine.state("t").earliest_seq == 1
        consumers.commit("t", "c", 2)
        assert engine.state("t").earliest_seq == 3
        append(engine, 2)
        with pytest.raises(TopicFull):
            append(engine, 1)
        clock.advance_ns(6_100_000_000)
        append(engine, 1)
        assert consumers.show("t", "c").state.at_risk
        assert engine.diff("t", consumers.reading("t", "c").cursor).tombstone is not None


def test_a_reset_moves_the_cursor_both_ways_and_counts_what_lies_between() -> None:
    with opened(None) as engine:
        append(engine, 10)
        engine.delete_records("t", before_seq=3)
        consumers = engine.consumers
        consumers.put("t", "c", Start("latest"))
        dry = consumers.reset("t", "c", Start(seq=1), dry_run=True)
        assert (dry.cursor_before, dry.cursor, dry.records) == (10, 0, 8)
        assert consumers.show("t", "c").state.cursor == 10
        assert consumers.reset("t", "c", Start(seq=1)).records == 8
        assert consumers.show("t", "c").state.cursor == 0
        with pytest.raises(InvalidRequest):
            consumers.reset("t", "c", Start(seq=12))


def test_there_are_no_more_consumers_than_the_cap_and_deleting_frees_it() -> None:
    with opened(None, max_consumers=2) as engine:
        append(engine, 1)
        append(engine, 1, "u")
        engine.consumers.put("t", "a")
        engine.consumers.put("u", "a")
        with pytest.raises(LimitReached):
            engine.consumers.put("t", "b")
        engine.consumers.put("t", "a", hold=True)
        engine.delete_topic("u")
        engine.consumers.put("t", "b")
        append(engine, 1, "u")
        assert engine.consumers.page("u")[0] == []


@pytest.mark.parametrize("ends", ["clean", "killed"])
@pytest.mark.parametrize("durability", list(Durability))
def test_consumers_are_as_durable_as_their_topic(tmp_path: Path, durability: Durability, ends: str) -> None:
    engine = opened(tmp_path)
    append(engine, 4, durability=durability)
    consumers = engine.consumers
    for name in ("kept", "gone", "moved"):
        engine.wait_for(consumers.put("t", name, hold=name == "kept").commit)
    engine.checkpoint()
    engine.wait_for(consumers.acquire("t", "kept", "me").commit)
    engine.wait_for(consumers.commit("t", "kept", 2, 1).commit)
    engine.wait_for(consumers.reset("t", "moved", Start("latest")).commit)
    engine.wait_for(consumers.delete("t", "gone").commit)
    expected = consumers.page("t")[0]
    engine.close() if ends == "clean" else engine.abandon()
    with opened(tmp_path) as engine:
        found = engine.consumers.page("t")[0]
        assert found == ([] if durability is Durability.EPHEMERAL else expected)
        assert engine.consumers.count == len(found)


def test_consumers_follow_a_change_of_the_class(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    append(engine, 4, durability=Durability.EPHEMERAL)
    engine.wait_for(engine.consumers.put("t", "early").commit)
    engine.wait_for(engine.put_topic("t", TopicConfig(durability=Durability.FSYNC)).commit)
    engine.wait_for(engine.consumers.commit("t", "early", 3).commit)
    engine.abandon()
    engine = opened(tmp_path)
    assert [(each.name, each.cursor) for each in engine.consumers.page("t")[0]] == [("early", 3)]
    engine.wait_for(engine.put_topic("t", TopicConfig(durability=Durability.EPHEMERAL)).commit)
    assert engine.consumers.count == 1
    engine.abandon()
    with opened(tmp_path) as engine:
        assert engine.consumers.page("t")[0] == []


def test_a_warning_is_logged_before_a_consumer_loses_records_and_once_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = TestClock()
    with opened(None, clock) as engine:
        append(engine, 100, cap_records=100)
        engine.consumers.put("t", "c", Start(seq=20))
        messages = []
        for _ in range(40):
            append(engine, 1)
            clock.advance_ns(1_100_000_000)
            engine.poll()
            messages.append([record.getMessage() for record in caplog.records])
        first = next(index for index, found in enumerate(messages) if found)
        # At seq 10 the distance to the floor is a tenth of what is kept; nothing unread is gone then.
        assert first < 19
        assert len(messages[-1]) == 1
        assert "consumer 'c' of topic 't' is about to lose records: its cursor is 19" in messages[-1][0]
        engine.consumers.commit("t", "c", 140)
        append(engine, 1)
        clock.advance_ns(1_100_000_000)
        engine.poll()
        assert len(caplog.records) == 1
