"""When claims of a queue are served, and together with whom.

Owns the window of a queue with `claim_jitter_ms`: the first claimer opens it, and all who have come until
it closes are served in one pass. Without it everybody is served at once. Knows no request and no stream;
they are claimers that are asked what they want when their pass begins.
"""

from __future__ import annotations

from typing import Protocol

from everlog.errors import EverlogError
from everlog.server.app import App
from everlog.server.watch_stream import Timer, Timers
from everlog.topics import Claimed, ClaimRequest, Commit


class Claimer(Protocol):
    """Somebody who wants jobs."""

    def request(self) -> ClaimRequest | None:
        """What it wants now; None if it wants nothing any more."""
        ...

    def served(self, claimed: Claimed) -> None:
        """What it gets: perhaps nothing. To be told to others when `claimed.commit` is done."""
        ...

    def refused(self, error: EverlogError) -> None:
        """Why its pass was not possible."""
        ...


class _Window:
    """The claimers who have come since it was opened, in that order."""

    __slots__ = ("claimers", "timer")

    def __init__(self) -> None:
        self.claimers: dict[Claimer, None] = {}
        self.timer: Timer | None = None


class ClaimWindows:
    """The open windows of all queues."""

    def __init__(self, app: App, timers: Timers) -> None:
        self._app = app
        self._timers = timers
        self._open: dict[str, _Window] = {}

    def claim(self, name: str, claimers: list[Claimer]) -> None:
        """Serve these claimers now, or when the window of their queue closes."""
        jitter_ms = self._app.ready_engine().claim_jitter_ms(name)
        if not jitter_ms:
            self._serve(name, claimers)
            return
        window = self._open.get(name)
        if window is None:
            window = self._open[name] = _Window()
            window.timer = self._timers.call_later(jitter_ms / 1000, lambda: self._close(name))
        window.claimers.update(dict.fromkeys(claimers))

    def leave(self, name: str, claimer: Claimer) -> None:
        """A claimer has gone; it is served no more."""
        window = self._open.get(name)
        if window is not None:
            window.claimers.pop(claimer, None)

    def _close(self, name: str) -> None:
        claimers = list(self._open.pop(name).claimers)
        self._serve(name, claimers)
        self._app.turn_soon()

    def _serve(self, name: str, claimers: list[Claimer]) -> None:
        """Deal jobs to all of them in one pass."""
        asked = [(claimer, request) for claimer in claimers if (request := claimer.request()) is not None]
        if not asked:
            return
        try:
            answers = self._app.ready_engine().claim_together(
                name, [request for _, request in asked], block=False
            )
        except EverlogError as error:
            for claimer, _ in asked:
                claimer.refused(error)
            return
        for (claimer, _), claimed in zip(asked, answers, strict=True):
            if claimed.incomplete:
                claimed.commit.on_done(lambda commit, claimer=claimer: self._fetched(name, claimer, commit))  # type: ignore[misc]
            else:
                claimer.served(claimed)

    def _fetched(self, name: str, claimer: Claimer, commit: Commit) -> None:
        """The segment of the next jobs is in memory, or cannot be read."""
        if commit.error is not None:
            claimer.refused(commit.error)
        else:
            self._serve(name, [claimer])
        self._app.turn_soon()
