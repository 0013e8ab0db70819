"""What is gathered in the log, and what happens when it is kept or lost: one class per kind.

Owns the moment when a change becomes visible. Frames are written elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from everlog.errors import StorageFailed
from everlog.native.commits import BatchEntry, Commit
from everlog.topics.topic import Topic

__all__ = ["BatchEntry", "ChangeEntry", "ceiling_entry", "nothing", "reserve_entry"]


class ChangeEntry:
    """A change that waits for a sync: `apply` when it is kept, `undo` when it is not."""

    __slots__ = ("_apply", "_undo", "commit", "needs_sync")

    def __init__(
        self, apply: Callable[[], None], undo: Callable[[], None], *, needs_sync: bool = True
    ) -> None:
        self.needs_sync = needs_sync
        self.commit = Commit()
        self._apply = apply
        self._undo = undo

    def committed(self) -> None:
        """Make the change."""
        self._apply()
        self.commit.finish()

    def withdraw(self) -> None:
        """Take it back before it was gathered: its frame never got into the log."""
        self._undo()

    def failed(self, error: StorageFailed, written: bool) -> None:
        """Take it back."""
        self._undo()
        self.commit.finish(error)


def nothing() -> None:
    """Do nothing: for a change that needs no step on one of its ways."""


def ceiling_entry(topic: Topic, ceiling: int) -> ChangeEntry:
    """Seqs up to `ceiling` may be acknowledged without a sync once this one is synced."""
    topic.ceiling_logged = ceiling

    def kept() -> None:
        topic.ceiling_durable = max(topic.ceiling_durable, ceiling)

    def lost() -> None:
        topic.ceiling_logged = topic.ceiling_durable

    return ChangeEntry(kept, lost)


def reserve_entry(topic: Topic, reserved: int) -> ChangeEntry:
    """Floors up to `reserved` may be shown without a sync once this one is synced."""
    topic.reserved_logged = reserved

    def kept() -> None:
        topic.reserved_durable = max(topic.reserved_durable, reserved)

    def lost() -> None:
        topic.reserved_logged = topic.reserved_durable

    return ChangeEntry(kept, lost)
