"""Prints records of a topic as they come: the loop behind `everlog topic read` and `tail`.

Owns the cursor and the way it ends: at the count, at the end of the log, or by a signal. Gaps are reported on
standard error. How a record looks is decided by the caller.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal, TypeVar

import msgspec
import typer

from everlog.api_types import Tombstone
from everlog.cli.output import handled_signals, write_patiently
from everlog.cli.record_format import Renderer
from everlog.cli.session import Session
from everlog.client import calls
from everlog.client.errors import ApiFailed
from everlog.client.flows import Call
from everlog.client.retrying import Backoff

GAPS_EXIT_CODE: Final = 4
LIMIT_MAX: Final = 1000
WAIT_MS: Final = 25_000
"""How long one request waits for records: shorter than the idle limits of usual proxies."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Last:
    """Start so many seqs before the end."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """Start with the first record of a time."""

    time_ms: int


Start = Literal["earliest", "latest"] | Last | Since | int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to print. A number as `start` is the first seq wanted."""

    topic: str
    start: Start
    follow: bool = False
    count: int | None = None
    nodes: tuple[str, ...] = ()
    allow_gaps: bool = False
    filter: list[Any] | None = None


class _Page(msgspec.Struct):
    """A diff whose records stay the text that the server sent."""

    records: list[msgspec.Raw]
    next_from_seq: int
    head_seq: int
    caught_up: bool
    tombstone: Tombstone | None = None


class _Stopped(Exception):
    """A signal came while waiting."""


class TopicReading:
    """Prints records until the count, the present end (without `follow`) or a signal."""

    def __init__(self, session: Session, request: ReadRequest, render: Renderer) -> None:
        self._session = session
        self._request = request
        self._render = render
        self._left = request.count
        self._has_answered = False
        self._gaps = 0
        self._signal = 0
        self._is_waiting = False

    def run(self) -> None:
        """Print; ends the command with an exit code if a gap or a signal asks for it."""
        request = self._request
        with self._stopping_on_signals(), suppress(_Stopped):
            self._loop()
        if self._signal and not request.follow:
            raise typer.Exit(128 + self._signal)
        if self._gaps and not request.allow_gaps:
            raise typer.Exit(GAPS_EXIT_CODE)

    def _loop(self) -> None:
        cursor = self._first_cursor()
        end: int | None = None
        # A reader that starts with what is there misses nothing that had gone before.
        ignores_gap = not isinstance(self._request.start, int)
        while not self._signal and self._left != 0:
            page = self._patiently(self._page_call(cursor))
            if page.tombstone is not None and not ignores_gap:
                self._report_gap(page.tombstone, page.head_seq)
            ignores_gap = False
            self._print(page.records)
            cursor = page.next_from_seq
            if not self._request.follow:
                # The end of the first page: reading a topic that is being written would otherwise never end.
                end = page.head_seq if end is None else end
                if page.caught_up or cursor >= end:
                    return

    def _first_cursor(self) -> int:
        start = self._request.start
        if isinstance(start, int):
            return max(start - 1, 0)
        if start == "earliest" or isinstance(start, Since):
            return 0
        state = self._patiently(calls.topic(self._request.topic, touch=False))
        if isinstance(start, Last):
            return max(state.head_seq - start.count, state.earliest_seq - 1, 0)
        return state.head_seq

    def _page_call(self, cursor: int) -> Call[_Page]:
        start = self._request.start
        return calls.diff(
            self._request.topic,
            cursor,
            from_time_ms=start.time_ms if isinstance(start, Since) and not cursor else None,
            filter=self._request.filter,
            limit=LIMIT_MAX if self._left is None else min(self._left, LIMIT_MAX),
            node=self._request.nodes or None,
            include_tags=True,
            wait_ms=WAIT_MS if self._request.follow else 0,
        ).reading(_Page)

    # --- Outages -------------------------------------------------------------------------------------------

    def _patiently(self, call: Call[_Answer]) -> _Answer:
        """Send a request; a follower repeats it for as long as the server is away."""
        backoff = Backoff()
        is_away = False
        while True:
            try:
                with self._waiting():
                    answer = self._session.client.call(call)
            except ApiFailed as error:
                if not self._may_wait_for(error):
                    raise
                if not is_away:
                    self._session.warn(error.code, f"{error}; trying again until it answers", error.detail)
                is_away = True
                with self._waiting():
                    time.sleep(backoff.pause_s(error))
                continue
            if is_away:
                self._session.warn("server_back", "the server answers again")
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
                f"{name} ends with seq {head_seq}, before the seq to be read: it was deleted and created "
                "again, or never was longer; reading it from its start"
            )
        else:
            message = (
                f"{name} lost seq {gap.gap_from} to {gap.gap_to} ({gap.reason}): "
                f"about {gap.missed_estimate} records were not read"
            )
        fields = ("gap_from", "gap_to", "reason", "missed_estimate")
        self._session.warn("gap", message, {name: getattr(gap, name) for name in fields})

    # --- Signals -------------------------------------------------------------------------------------------

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """A block that a signal may end at any point; elsewhere a signal takes effect between two batches."""
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

        with handled_signals(stop):
            yield
