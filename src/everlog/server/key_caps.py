"""How much of the server one key may take: topics, routers, consumers, schedules and watch sessions.

Owns who created what since the server started; that is not stored, so things from before a restart count for
no key. Requests in progress and streams are counted where they begin and end (`app`, `streams`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from everlog.server.auth import Key
from everlog.server.errors import limit_reached


class KeyCap:
    """Counts the things of one kind by the key that created them; 0 as the limit means no limit."""

    __slots__ = ("_limit", "_limit_of", "_names", "_owners", "_what")

    def __init__(self, what: str, limit: int, limit_of: Callable[[Key, int], int] | None = None) -> None:
        """`limit_of` gives the limit of a key that has one of its own."""
        self._what = what
        self._limit = limit
        self._limit_of = limit_of
        self._owners: dict[str, int] = {}
        self._names: dict[int, set[str]] = {}

    def check(self, key: Key | None, names: Sequence[str], exists: Callable[[str], bool]) -> None:
        """Raise the error for a request that would create more than its key may have."""
        if key is None:
            return
        limit = self._limit if self._limit_of is None else self._limit_of(key, self._limit)
        if not limit:
            return
        room = limit - len(self.names_of(key))
        if len(names) <= room or sum(not exists(name) for name in names) <= room:
            return
        message = f"this key has created {limit} {self._what.replace('_', ' ')}; delete some"
        raise limit_reached(message, f"max_{self._what}_per_key", limit)

    def names_of(self, key: Key) -> Set[str]:
        """What the key has created and is still there."""
        return self._names.get(key.number, frozenset())

    def counts(self, name: str) -> bool:
        """Whether a name counts for any key."""
        return name in self._owners

    def created(self, key: Key | None, name: str) -> None:
        """Count what a key has created."""
        if key is not None and name not in self._owners:
            self._owners[name] = key.number
            self._names.setdefault(key.number, set()).add(name)

    def deleted_below(self, prefix: str) -> None:
        """Count nothing any more whose name begins so."""
        if self._owners:
            for name in [name for name in self._owners if name.startswith(prefix)]:
                self.deleted(name)

    def deleted(self, name: str) -> None:
        """Count it no more."""
        number = self._owners.pop(name, None)
        if number is not None:
            self._names[number].discard(name)
