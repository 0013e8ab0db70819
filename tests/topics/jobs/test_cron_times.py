"""The instants of cron expressions: those that a look at a range in short steps finds, in every zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from everlog.topics.jobs.cron_times import instants

STEP_S = 60 * 5
# Both changes of a year by one hour, by half an hour, and at midnight.
CHANGES = {
    "Europe/Berlin": ("2024-03-31T01:00", "2024-10-27T01:00"),
    "America/New_York": ("2024-03-10T07:00", "2024-11-03T06:00"),
    "Australia/Lord_Howe": ("2024-10-05T15:30", "2024-04-06T15:00"),
    "America/Santiago": ("2024-09-08T04:00", "2024-04-07T03:00"),
    "Asia/Kolkata": ("2024-03-31T01:00", "2024-10-27T01:00"),
}
PLACES = [(zone, at) for zone, both in CHANGES.items() for at in both]
EXPRESSIONS = [
    *("*/5 * * * *", "0 * * * *", "30 * * * *", "*/5 2 * * *", "*/15 3 * * *", "30 */2 * * *"),
    *("0 2 * * *", "30 2 * * *", "15,45 1-3 * * *", "0 0 * * *", "30 1 * * SUN", "10 3 * * *"),
    *("0 30 2 * * *", "0 0 3 * * *", "0 */10 1-3 * * *", "0 45 1 * * *", "0 0 0 * * *"),
]
EARLIER_S = 3 * 3600


def utc_s(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def expected(cron: str, zone: str, begin_s: int, end_s: int) -> list[int]:
    """What the expression means, second after second of the range, all multiples of five minutes."""
    fields = cron.split()
    is_time_of_day = len(fields) == 5 and fields[0][0] != "*" and fields[1][0] != "*"
    found: list[int] = []
    seen: set[datetime] = set()
    left_out: list[datetime] = []
    previous: datetime | None = None
    for at in range(begin_s - EARLIER_S, end_s + 1, STEP_S):
        wall = datetime.fromtimestamp(at, ZoneInfo(zone)).replace(tzinfo=None, fold=0)
        if previous is not None:
            missing = previous + timedelta(seconds=STEP_S)
            while missing < wall:
                left_out.append(missing)
                missing += timedelta(seconds=STEP_S)
        previous = wall
        is_match = matches(cron, wall) and not (is_time_of_day and wall in seen)
        is_moved = is_time_of_day and any(matches(cron, each) for each in left_out)
        if at >= begin_s and (is_match or is_moved):
            found.append(at * 1000)
        seen.add(wall)
        left_out.clear()
    return found


def matches(cron: str, wall: datetime) -> bool:
    return next(CronSim(cron, wall - timedelta(seconds=1))) == wall


@pytest.mark.parametrize("cron", EXPRESSIONS)
@pytest.mark.parametrize(("zone", "change"), PLACES)
def test_a_change_of_the_offset_loses_and_repeats_no_instant(zone: str, change: str, cron: str) -> None:
    begin_s, end_s = utc_s(change) - 6 * 3600, utc_s(change) + 24 * 3600
    wanted = expected(cron, zone, begin_s, end_s)
    forward = instants(cron, zone, begin_s * 1000 - 1)
    assert list(takewhile(lambda ms: ms <= end_s * 1000, forward)) == wanted
    back = instants(cron, zone, end_s * 1000, reverse=True)
    assert list(takewhile(lambda ms: ms >= begin_s * 1000, back)) == wanted[::-1]


@given(
    place=st.sampled_from(PLACES),
    cron=st.sampled_from(EXPRESSIONS),
    offset_ms=st.integers(-4 * 3_600_000, 4 * 3_600_000),
)
def test_the_next_and_the_last_instant_are_the_same_from_anywhere(
    place: tuple[str, str], cron: str, offset_ms: int
) -> None:
    zone, change = place
    middle_ms = utc_s(change) * 1000
    begin_ms = middle_ms - 40 * 3_600_000
    every = list(islice(instants(cron, zone, begin_ms), 1200))
    at_ms = middle_ms + offset_ms
    behind = [ms for ms in every if ms > at_ms]
    assert list(islice(instants(cron, zone, at_ms), 3)) == behind[:3]
    before = [ms for ms in reversed(every) if ms <= at_ms]
    found = instants(cron, zone, at_ms, reverse=True)
    assert list(takewhile(lambda ms: ms > begin_ms, islice(found, 3))) == before[:3]


def test_a_time_of_day_at_lord_howe_comes_on_every_day() -> None:
    zone = "Australia/Lord_Howe"
    for cron in ("0 0 3 * * *", "0 3 * * *", "59 2 * * *"):
        year = islice(instants(cron, zone, utc_s("2024-01-01T00:00") * 1000), 400)
        days = [datetime.fromtimestamp(ms / 1000, ZoneInfo(zone)).date() for ms in year]
        assert {after - before for before, after in pairwise(days)} == {timedelta(days=1)}
