"""Wait until the routers that write to a topic have copied what is due.

Owns that wait. A topic without routers costs one look.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from everlog.server.app import App, Call
from everlog.topics import Commit


def when_forwarded(app: App, call: Call, name: str, step: Callable[[], None]) -> None:
    """Take a step of a call once its topic has everything that was written to the sources of its routers.

    If a copy fails, the step is taken with what is there.
    """
    commit = app.ready_engine().forward(name)
    if commit.done:
        step()
        return

    def again(done: Commit) -> None:
        following = step if done.error is not None else partial(when_forwarded, app, call, name, step)
        # Not here: this may be the middle of a commit.
        app.loop.call_soon(_resume, app, call, following)

    commit.on_done(again)
    app.turn_soon()


def _resume(app: App, call: Call, step: Callable[[], None]) -> None:
    app.guarded(call, step)
    app.turn_soon()
