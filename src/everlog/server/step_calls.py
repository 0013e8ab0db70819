"""Calls whose answer takes more than one turn of the loop; see `topics.jobs.steps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from everlog.server.app import App, Call
from everlog.topics import Commit
from everlog.topics.jobs.steps import Steps

T = TypeVar("T")


class StepCall:
    """One call that is answered from its steps; they end if the client goes away."""

    def __init__(self, app: App, call: Call, steps: Steps[T], answer: Callable[[T], None]) -> None:
        self._app = app
        self._call = call
        self._steps = steps
        self._answer: Callable[[T], None] = answer
        self._is_gone = False
        self._failed: Commit | None = None

    def run(self) -> None:
        """Take the first step, inside of the handler of the call."""
        try:
            waits_for = self._next()
        except StopIteration as done:
            self._answer(done.value)
            return
        self._app.on_gone(self._call, self._stop)
        if waits_for is None:
            self._app.loop.call_soon(self._turn)
        else:
            waits_for.on_done(self._when_done)

    def _next(self) -> Commit | None:
        failed, self._failed = self._failed, None
        if failed is not None and failed.error is not None:
            return self._steps.throw(failed.error)
        return next(self._steps)

    def _when_done(self, commit: Commit) -> None:
        self._failed = commit
        self._app.loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._is_gone:
            self._steps.close()
        else:
            self._app.guarded(self._call, self.run)
        self._app.turn_soon()

    def _stop(self) -> None:
        self._is_gone = True
