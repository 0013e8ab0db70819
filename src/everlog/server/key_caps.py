"""How much of the server one key may take: topics, routers and watch sessions.

Owns who created what since the server started; that is not stored, so things from before a restart count for
no key. Requests in progress and streams are counted where they begin and end (`app`, `streams`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everlog.server.auth import Key
from everlog.server.errors import limit_reached


class KeyCap:
    """Counts the things of one kind by the key that created them; 0 as the limit means no limit."""

    __slots__ = ("_counts", "_limit", "_owners", "_what")

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._owners: dict[str, int] = {}
        self._counts: dict[int, int] = {}

    def check(self, key: Key | None, names: Sequence[str], exists: Callable[[str], bool]) -> None:
        """Raise the error for a request that would create more than its key may have."""
        if key is None or not self._limit:
            return
        room = self._limit - self._counts.get(key.number, 0)
        if len(names) <= room or sum(not exists(name) for name in names) <= room:
            return
        message = f"this key has created {self._limit} {self._what.replace('_', ' ')}; delete some"
        raise limit_reached(message, f"max_{self._what}_per_key", self._limit)

    def created(self, key: Key | None, name: str) -> None:
        """Count what a key has created."""
        if key is not None and name not in self._owners:
            self._owners[name] = key.number
            self._counts[key.number] = self._counts.get(key.number, 0) + 1

    def deleted(self, name: str) -> None:
        """Count it no more."""
        number = self._owners.pop(name, None)
        if number is not None:
            self._counts[number] -= 1
