"""When an operation is kept: a `Commit` is done once its topic's class is satisfied.

Owns only that fact and who waits for it. No locks: one thread owns all of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from everlog.errors import EverlogError
from everlog.native.commits import Commit

__all__ = ["KEPT", "Commit", "failed", "finished", "together"]


def finished() -> Commit:
    """Return a commit that has nothing to wait for."""
    commit = Commit()
    commit.finish()
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
