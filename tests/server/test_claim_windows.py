"""Windows of claims by themselves, with time that the test moves: who is served together, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from everlog.clock import TestClock
from everlog.errors import EverlogError, NotAQueue, TopicNotFound
from everlog.server.app import App
from everlog.server.job_routes import ClaimWindows
from everlog.topics import Claimed, ClaimRequest, Engine, NewRecord, TopicConfig, TopicType
from tests.support.watch_servers import ManualTimers


class Waiting:
    """A claimer that notes what it gets."""

    def __init__(self, node: str, maximum: int = 10, lease_ms: int | None = None) -> None:
        self.wish: ClaimRequest | None = ClaimRequest(node, maximum, lease_ms)
        self.got: list[int] | None = None
        self.error: EverlogError | None = None

    def request(self) -> ClaimRequest | None:
        return self.wish

    def served(self, claimed: Claimed) -> None:
        self.got = list(claimed.leases)

    def refused(self, error: EverlogError) -> None:
        self.error = error


class Office:
    """A queue, its windows, and their time."""

    def __init__(self, jitter_ms: int, jobs: int) -> None:
        self.clock = TestClock()
        self.engine = Engine.open(None, clock=self.clock)
        self.engine.put_topic("q", TopicConfig(type=TopicType.QUEUE, claim_jitter_ms=jitter_ms))
        if jobs:
            self.engine.append("q", [NewRecord(b"1")] * jobs)
        self.timers = ManualTimers()
        app: Any = SimpleNamespace(ready_engine=lambda: self.engine, turn_soon=lambda: None)
        self.windows = ClaimWindows(cast(App, app), self.timers)

    def claim(self, *claimers: Waiting) -> None:
        self.windows.claim("q", list(claimers))


def test_without_a_window_every_claim_is_served_at_once() -> None:
    office = Office(0, 3)
    first, second = Waiting("a", 2), Waiting("b", 2)
    office.claim(first)
    office.claim(second)
    assert (first.got, second.got) == ([1, 2], [3])
    assert office.timers.pending == 0


def test_the_first_claimer_opens_the_window_and_all_in_it_share() -> None:
    office = Office(100, 5)
    first, second, third = Waiting("a"), Waiting("b"), Waiting("c", 1)
    office.claim(first)
    office.timers.advance(0.099)
    office.claim(second, third)
    assert (first.got, second.got, third.got) == (None, None, None)
    office.timers.advance(0.001)
    assert (first.got, second.got, third.got) == ([1, 4], [2, 5], [3])


def test_who_comes_after_the_window_opens_the_next_one() -> None:
    office = Office(100, 1)
    first, second = Waiting("a"), Waiting("b")
    office.claim(first)
    office.timers.advance(0.1)
    office.claim(second)
    assert (first.got, second.got) == ([1], None)
    office.timers.advance(0.1)
    assert second.got == []


def test_who_has_left_or_wants_nothing_any_more_gets_nothing() -> None:
    office = Office(100, 3)
    left, sated, stays = Waiting("a"), Waiting("b"), Waiting("c")
    office.claim(left, sated, stays)
    office.windows.leave("q", left)
    sated.wish = None
    office.timers.advance(0.1)
    assert (left.got, sated.got, stays.got) == (None, None, [1, 2, 3])


def test_a_claimer_that_comes_twice_is_served_once() -> None:
    office = Office(100, 4)
    claimer = Waiting("a", 2)
    office.claim(claimer)
    office.claim(claimer)
    office.timers.advance(0.1)
    assert claimer.got == [1, 2]


def test_each_keeps_its_own_time() -> None:
    office = Office(100, 2)
    short, long = Waiting("a", 1, 200), Waiting("b", 1, 5000)
    office.claim(short, long)
    office.timers.advance(0.1)
    office.clock.advance_ns(201_000_000)
    assert office.engine.ack("q", "a", [1]).skipped == [1]
    assert office.engine.ack("q", "b", [2]).done == [2]


def test_a_queue_that_is_gone_when_the_window_closes_is_told_to_all() -> None:
    office = Office(100, 1)
    first, second = Waiting("a"), Waiting("b")
    office.claim(first, second)
    office.engine.delete_topic("q")
    office.timers.advance(0.1)
    assert isinstance(first.error, TopicNotFound)
    assert isinstance(second.error, TopicNotFound)


def test_a_log_has_no_windows() -> None:
    office = Office(100, 1)
    office.engine.append("log", [NewRecord(b"1")])
    with pytest.raises(NotAQueue):
        office.windows.claim("log", [Waiting("a")])
