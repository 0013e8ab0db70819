"""Prints records of a topic as they come: the loop behind `everlog topic read` and `tail`.

Owns the cursor and the way it ends: at the count, at the end of the log, or by a signal. What it missed it
says loudly. How a record looks is the caller's business.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

import msgspec
import typer

from everlog.cli.output import write_patiently
from everlog.client.http_api import ApiFailed, Backoff, HttpApi, topic_path

GAPS_EXIT_CODE: Final = 4
LIMIT_MAX: Final = 1000
WAIT_MS: Final = 25_000
"""How long one request waits for news: shorter than the idle limits of usual proxies."""


class Place(Enum):
    """Where to start, if not at a seq."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Last:
    """Start so many seqs before the end."""

    count: int


Start = Place | Last | int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to print. A number as `start` is the first seq wanted."""

    topic: str
    start: Start
    follow: bool = False
    count: int | None = None
    nodes: tuple[str, ...] = ()
    allow_gaps: bool = False


class Tombstone(msgspec.Struct):
    """Records that are gone."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int


class Diff(msgspec.Struct):
    """What the server has behind a cursor."""

    records: list[msgspec.Raw]
    next_from_seq: int
    head_seq: int
    caught_up: bool
    tombstone: Tombstone | None = None


class TopicEnds(msgspec.Struct):
    """Where a topic begins and ends."""

    head_seq: int
    earliest_seq: int


_Answer = TypeVar("_Answer")


class _Stopped(Exception):
    """A signal came while waiting."""


Warn = Callable[[str, str, dict[str, Any] | None], None]
"""Say something on standard error: code, message, detail."""


def read_topic(
    api: HttpApi, request: ReadRequest, render: Callable[[str, msgspec.Raw], str], warn: Warn
) -> None:
    """Print records until the count, the present end (without `follow`) or a signal."""
    _Reading(api, request, render, warn).run()


class _Reading:
    def __init__(
        self, api: HttpApi, request: ReadRequest, render: Callable[[str, msgspec.Raw], str], warn: Warn
    ) -> None:
        self._api = api
        self._request = request
        self._render = render
        self._warn = warn
        self._left = request.count
        self._has_answered = False
        self._gaps = 0
        self._signal = 0
        self._is_waiting = False

    def run(self) -> None:
        request = self._request
        with self._stopping_on_signals(), suppress(_Stopped):
            self._loop()
        if self._signal and not request.follow:
            raise typer.Exit(128 + self._signal)
        if self._gaps and not request.allow_gaps:
            raise typer.Exit(GAPS_EXIT_CODE)

    def _loop(self) -> None:
        cursor = self._patiently(self._first_cursor)
        end: int | None = None
        # Asked for what is there, a reader misses nothing that is gone already.
        takes_what_is_there = not isinstance(self._request.start, int)
        while not self._signal and self._left != 0:
            diff = self._patiently(partial(self._diff, cursor))
            if diff.tombstone is not None and not takes_what_is_there:
                self._report_gap(diff.tombstone, diff.head_seq)
            takes_what_is_there = False
            self._print(diff.records)
            cursor = diff.next_from_seq
            if not self._request.follow:
                # A topic that is being written would otherwise never end.
                end = diff.head_seq if end is None else end
                if diff.caught_up or cursor >= end:
                    return

    def _first_cursor(self) -> int:
        start = self._request.start
        if isinstance(start, int):
            return max(start - 1, 0)
        if start is Place.EARLIEST:
            return 0
        ends = self._api.get(topic_path(self._request.topic), TopicEnds, {"touch": "false"})
        if isinstance(start, Last):
            return max(ends.head_seq - start.count, ends.earliest_seq - 1, 0)
        return ends.head_seq

    def _diff(self, cursor: int) -> Diff:
        wait_ms = WAIT_MS if self._request.follow else 0
        body: dict[str, object] = {
            "from_seq": cursor,
            "limit": LIMIT_MAX if self._left is None else min(self._left, LIMIT_MAX),
            "include_tags": True,
            "wait_ms": wait_ms,
        }
        if self._request.nodes:
            body["node"] = self._request.nodes
        path = topic_path(self._request.topic, "/diff")
        return self._api.call("POST", path, Diff, body=body, repeatable=True, wait_s=wait_ms / 1000)

    # --- Outages -------------------------------------------------------------------------------------------

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask; a follower asks again for as long as the server is away."""
        backoff = Backoff()
        is_away = False
        while True:
            try:
                with self._waiting():
                    answer = ask()
            except ApiFailed as error:
                if not self._may_wait_for(error):
                    raise
                if not is_away:
                    self._warn(error.code, f"{error}; trying again until it answers", error.detail)
                is_away = True
                with self._waiting():
                    time.sleep(backoff.pause_s(error))
                continue
            if is_away:
                self._warn("server_back", "the server answers again", None)
            self._has_answered = True
            return answer

    def _may_wait_for(self, error: ApiFailed) -> bool:
        # A server that never answered is more likely a wrong address than a restart.
        return self._request.follow and (error.is_busy or (error.is_outage and self._has_answered))

    # --- Output --------------------------------------------------------------------------------------------

    def _print(self, records: list[msgspec.Raw]) -> None:
        text = "".join(self._render(self._request.topic, record) for record in records)
        if not text or not write_patiently(text, give_up=lambda: self._signal != 0):
            return
        if self._left is not None:
            self._left -= len(records)

    def _report_gap(self, gap: Tombstone, head_seq: int) -> None:
        self._gaps += 1
        name = self._request.topic
        if gap.reason == "recreated":
            message = (
                f"{name} ends with seq {head_seq}, before what was to be read: it was deleted and created "
                "again, or never was longer; reading it from its start"
            )
        else:
            message = (
                f"{name} lost seq {gap.gap_from} to {gap.gap_to} ({gap.reason}): "
                f"about {gap.missed_estimate} records were not read"
            )
        self._warn("gap", message, msgspec.to_builtins(gap))

    # --- Signals -------------------------------------------------------------------------------------------

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """A block that a signal may end at any point; outside of it, it is heeded between two batches."""
        self._is_waiting = True
        try:
            if self._signal:
                raise _Stopped
            yield
        finally:
            self._is_waiting = False

    @contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            self._signal = number
            if self._is_waiting:
                raise _Stopped

        previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
