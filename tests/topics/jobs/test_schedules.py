"""Schedules: when they fire, what missed instants become, and that none fires twice whatever crashes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import InvalidRequest, LimitReached, NotAQueue, ScheduleNotFound, TopicNotFound
from everlog.job_types import JobMembers, ScheduleState
from everlog.topics import record_of
from tests.support.engines import START_MS, EngineHarness

MINUTE_MS = 60_000
FIRST_MS = (START_MS // MINUTE_MS + 1) * MINUTE_MS


class Clockwork(EngineHarness):
    """An engine with a topic and a schedule that fires every minute."""

    def plan(self, name: str = "s", **options: Any) -> ScheduleState:
        given = {"topic_name": "t", "cron": "* * * * *", "record": record_of(1, meta={"k": 1})} | options
        change = self.engine.schedules.put(name, **given)
        self.wait_for(change.commit)
        assert change.state is not None
        return change.state

    def until(self, time_ms: int) -> None:
        """Let time pass in one step, and do what is due."""
        self.advance_ms(time_ms - self.now_ms())
        self.turn()

    def turn(self) -> None:
        for _ in range(3):
            self.engine.write()
            self.engine.poll()

    def shown(self, name: str = "s") -> ScheduleState:
        state = self.engine.schedules.show(name).state
        assert state is not None
        return state

    def fired(self) -> list[int]:
        return [item["meta"]["$scheduled_ts"] for item in self.items("t")]


def started(root: Path | None, **config: Any) -> Clockwork:
    clockwork = Clockwork(root)
    clockwork.put("t", **config)
    return clockwork


def test_a_schedule_fires_at_its_instants_with_its_marks() -> None:
    clockwork = started(None)
    assert clockwork.plan().next_ts == FIRST_MS
    clockwork.until(FIRST_MS - 1)
    assert clockwork.fired() == []
    clockwork.until(FIRST_MS)
    clockwork.until(FIRST_MS + MINUTE_MS)
    assert clockwork.fired() == [FIRST_MS, FIRST_MS + MINUTE_MS]
    assert clockwork.items("t")[0]["meta"] == {"k": 1, "$schedule": "s", "$scheduled_ts": FIRST_MS}
    state = clockwork.shown()
    assert (state.last_ts, state.last_seq, state.fired_total) == (FIRST_MS + MINUTE_MS, 2, 2)
    assert state.next_ts == FIRST_MS + 2 * MINUTE_MS


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("is_clean", [False, True])
def test_no_instant_fires_twice_across_a_restart(tmp_path: Path, durability: str, is_clean: bool) -> None:
    clockwork = started(tmp_path, durability=durability, idempotency_window_ms=1)
    clockwork.plan()
    clockwork.until(FIRST_MS)
    for _ in range(3):
        clockwork.restart() if is_clean else clockwork.crash()
        clockwork.turn()
    assert clockwork.fired() == [FIRST_MS]
    assert clockwork.shown().fired_total == 1
    clockwork.until(FIRST_MS + MINUTE_MS)
    assert clockwork.fired() == [FIRST_MS, FIRST_MS + MINUTE_MS]


@pytest.mark.parametrize(("catch_up", "missed"), [("none", 0), ("one", 1), ("all", 5)])
def test_missed_instants_follow_the_policy(tmp_path: Path, catch_up: str, missed: int) -> None:
    clockwork = started(tmp_path)
    clockwork.plan(catch_up=catch_up)
    clockwork.engine.close()
    clockwork.advance_ms(FIRST_MS + 4 * MINUTE_MS + 500 - clockwork.now_ms())
    clockwork.open_with()
    clockwork.turn()
    last = FIRST_MS + 4 * MINUTE_MS
    assert clockwork.fired() == [last - MINUTE_MS * back for back in reversed(range(missed))]
    clockwork.until(last + MINUTE_MS)
    assert clockwork.fired()[-1] == last + MINUTE_MS
    assert len(clockwork.fired()) == missed + 1


def test_a_topic_that_goes_away_pauses_its_schedule(tmp_path: Path) -> None:
    clockwork = started(tmp_path)
    clockwork.plan()
    clockwork.delete_topic("t")
    clockwork.until(FIRST_MS)
    clockwork.put("t")
    clockwork.crash()
    state = clockwork.shown()
    assert state.paused
    assert "deleted" in (state.paused_reason or "")
    clockwork.until(FIRST_MS + MINUTE_MS)
    assert clockwork.fired() == []
    clockwork.plan()
    clockwork.until(FIRST_MS + 2 * MINUTE_MS)
    assert clockwork.fired() == [FIRST_MS + 2 * MINUTE_MS]


def test_a_paused_or_deleted_schedule_does_not_fire(tmp_path: Path) -> None:
    clockwork = started(tmp_path)
    assert clockwork.plan(paused=True).next_ts is None
    clockwork.plan("gone")
    clockwork.wait_for(clockwork.engine.schedules.delete("gone").commit)
    clockwork.crash()
    clockwork.until(FIRST_MS)
    assert clockwork.fired() == []
    with pytest.raises(ScheduleNotFound):
        clockwork.shown("gone")
    assert [state.name for state in clockwork.engine.schedules.page()] == ["s"]


def test_six_fields_have_seconds_and_zones_count() -> None:
    clockwork = started(None)
    assert clockwork.plan(cron="*/10 * * * * *").next_ts == (START_MS // 10_000 + 1) * 10_000
    daily = clockwork.plan("day", cron="30 12 * * *", timezone="Asia/Tokyo")
    assert daily.next_ts is not None
    assert daily.next_ts % 86_400_000 == (3 * 60 + 30) * 60_000


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text + "+00:00").timestamp()) * 1000


@pytest.mark.parametrize(
    ("cron", "begin", "end", "instants"),
    [
        # 02:30 does not exist on March 31: that day's record comes at 03:00.
        (
            "30 2 * * *",
            "2024-03-30T00:00",
            "2024-04-01T12:00",
            ["2024-03-30T01:30", "2024-03-31T01:00", "2024-04-01T00:30"],
        ),
        # 02:30 comes twice on October 27, and counts once.
        (
            "30 2 * * *",
            "2024-10-26T00:00",
            "2024-10-28T12:00",
            ["2024-10-26T00:30", "2024-10-27T00:30", "2024-10-28T01:30"],
        ),
        # What comes every hour comes in both of them.
        (
            "30 * * * *",
            "2024-10-26T23:45",
            "2024-10-27T02:45",
            ["2024-10-27T00:30", "2024-10-27T01:30", "2024-10-27T02:30"],
        ),
    ],
)
@pytest.mark.parametrize("catch_up", ["none", "one", "all"])
def test_a_change_of_summer_time_loses_and_repeats_nothing(
    tmp_path: Path, cron: str, begin: str, end: str, instants: list[str], catch_up: str
) -> None:
    clockwork = started(tmp_path)
    clockwork.until(utc(begin))
    clockwork.plan(cron=cron, timezone="Europe/Berlin", catch_up=catch_up)
    step_ms = 15 * MINUTE_MS
    for time_ms in range(utc(begin) + step_ms, utc(end) + 1, step_ms):
        clockwork.until(time_ms)
        if time_ms % (16 * step_ms) == 0:
            clockwork.crash()
    assert clockwork.fired() == [utc(each) for each in instants]


def test_the_hour_that_comes_twice_neither_hides_a_missed_instant_nor_gives_one_of_the_past(
    tmp_path: Path,
) -> None:
    clockwork = started(tmp_path)
    clockwork.until(utc("2024-10-26T12:00"))
    clockwork.plan(cron="30 2 * * *", timezone="Europe/Berlin")
    clockwork.engine.close()
    clockwork.advance_ms(utc("2024-10-27T01:10") - clockwork.now_ms())  # 02:10 for the second time
    clockwork.open_with()
    clockwork.turn()
    assert clockwork.fired() == [utc("2024-10-27T00:30")]
    new = clockwork.plan("new", cron="30 2 * * *", timezone="Europe/Berlin")
    assert new.next_ts == utc("2024-10-28T01:30")


def test_what_could_never_fire_is_refused() -> None:
    clockwork = started(None)
    wrong: list[dict[str, Any]] = [
        {"cron": "x"},
        {"cron": "0 0 30 2 *"},
        {"timezone": "Mars/Base"},
        {"name": "a b"},
        {"members": JobMembers(priority=5000)},
    ]
    for options in wrong:
        with pytest.raises(InvalidRequest):
            clockwork.plan(**options)
    with pytest.raises(TopicNotFound):
        clockwork.plan(topic_name="absent")
    with pytest.raises(NotAQueue):
        clockwork.plan(members=JobMembers(priority=5))
    clockwork.settings = clockwork.engine._core.settings = type(clockwork.settings)(max_schedules=1)
    clockwork.plan()
    with pytest.raises(LimitReached):
        clockwork.plan("second")


def test_a_schedule_that_waits_is_late_until_it_fires(tmp_path: Path) -> None:
    clockwork = started(tmp_path)
    clockwork.plan()
    clockwork.plan("later", cron="*/2 * * * *")
    clockwork.plan("paused", paused=True)
    late_ms = clockwork.engine.schedules.late_ms
    clockwork.advance_ms(FIRST_MS - 1 - clockwork.now_ms())
    assert late_ms() == 0
    clockwork.advance_ms(2501)
    assert late_ms() == 2500
    clockwork.turn()
    assert (clockwork.fired()[0], late_ms()) == (FIRST_MS, 0)
