"""When an operation is kept: a `Commit` is done once its topic's class is satisfied.

Owns only that fact and who waits for it. No locks: one thread owns all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from everlog.errors import EverlogError


class Commit:
    """The pending promise of one operation; `error` tells why it was not kept."""

    __slots__ = ("_callbacks", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: EverlogError | None = None
        self._callbacks: list[Callable[[Commit], None]] | None = None

    def on_done(self, callback: Callable[[Commit], None]) -> None:
        """Call back once done; at once if it already is."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def finish(self, error: EverlogError | None = None) -> None:
        """Mark done, with the reason if it failed; a second call changes nothing."""
        if self.done:
            return
        self.done = True
        self.error = error
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)


def finished() -> Commit:
    """Return a commit that has nothing to wait for."""
    commit = Commit()
    commit.done = True
    return commit


def failed(error: EverlogError) -> Commit:
    """Return a commit that was not kept."""
    commit = Commit()
    commit.finish(error)
    return commit


def together(commits: Iterable[Commit]) -> Commit:
    """A commit that is done when all of these are; it fails as soon as one of them does."""
    waiting = [commit for commit in commits if not commit.done or commit.error is not None]
    if not waiting:
        return KEPT
    if len(waiting) == 1:
        return waiting[0]
    whole = Commit()
    left = len(waiting)

    def done(commit: Commit) -> None:
        nonlocal left
        left -= 1
        if left == 0 or commit.error is not None:
            whole.finish(commit.error)

    for commit in waiting:
        commit.on_done(done)
    return whole


KEPT = finished()  # shared by everything that is kept at once; never failed, so never changed
