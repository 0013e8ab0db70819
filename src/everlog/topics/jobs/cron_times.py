"""The instants of a cron expression in a time zone. Pure.

Owns what a change of the zone's offset does to them. The wall times come from `cronsim`, without a zone: with
one it steps by whole hours, and misses times where an offset changes by half an hour.

    a wall time that comes twice    both instants; only the first for a time of day
    a wall time that is left out    none; for a time of day the first whole minute behind the gap

A time of day is an expression of five fields of which neither minute nor hour begins with a star.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from heapq import heappop, heappush
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim

_MINUTE: Final = timedelta(minutes=1)


def instants(cron: str, timezone: str, from_ms: int, *, reverse: bool = False) -> Iterator[int]:
    """Instants in ms behind a time, or from a time back, it included; raises `CronSimError`."""
    zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
    fields = cron.split()
    is_time_of_day = len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")
    sign = -1 if reverse else 1
    waiting: list[int] = []  # a heap of signed instants
    last: int | None = None
    for wall_time in CronSim(cron, _begin(from_ms, zone, reverse=reverse), reverse=reverse):
        found = sorted(sign * ms for ms in _instants_of(wall_time, zone, is_time_of_day=is_time_of_day))
        for each in found:
            if (sign * each <= from_ms) is reverse:
                heappush(waiting, each)
        # Of later wall times none comes before the first instant of this one.
        while waiting and found and waiting[0] <= found[0]:
            each = heappop(waiting)
            if each != last:
                yield sign * each
            last = each
    yield from (sign * each for each in sorted(waiting))


def _begin(from_ms: int, zone: tzinfo, *, reverse: bool) -> datetime:
    """The wall time from which to go, itself not included.

    In the hour that comes twice, wall times that are passed for one time round may still come for the other.
    """
    # Backwards begins behind the second, which counts.
    moment = datetime.fromtimestamp(from_ms // 1000 + (1 if reverse else 0), zone)
    first, second = moment.replace(fold=0).utcoffset(), moment.replace(fold=1).utcoffset()
    assert first is not None
    assert second is not None
    return moment.replace(tzinfo=None, fold=0) + (first - second) * (1 if reverse else -1)


def _instants_of(wall_time: datetime, zone: tzinfo, *, is_time_of_day: bool) -> set[int]:
    """The instants in ms that a wall time stands for."""
    while True:
        first, second = (int(wall_time.replace(tzinfo=zone, fold=fold).timestamp()) * 1000 for fold in (0, 1))
        if first <= second:
            return {first} if is_time_of_day else {first, second}
        if not is_time_of_day:
            return set()  # the zone leaves it out
        wall_time += _MINUTE
