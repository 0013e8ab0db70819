"""The copying of all routers as one piece of work among the topics that are served.

Owns its place in the ready set; what is copied, and how much at a time, is the business of `routing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from everlog.native.ready_set import Work


class Source(Protocol):
    """A topic whose records are to be copied."""

    def priority_at(self, now_ms: int) -> int:
        """Its priority at this wall time."""
        ...


class RouterWork(Work):
    """As important as the most important source that has something to copy."""

    __slots__ = ("_copy", "_sources")

    def __init__(self, sources: Callable[[], Iterable[Source]], copy: Callable[[], object]) -> None:
        self._sources = sources
        self._copy = copy

    def priority_at(self, now_ms: int) -> int:
        """The highest priority of a source."""
        return max((source.priority_at(now_ms) for source in self._sources()), default=0)

    def serve(self) -> None:
        """Copy for a while."""
        self._copy()
