"""How many jobs were claimed in the last while, by key: the memory of a rate limit. Pure."""

from __future__ import annotations

from collections import deque

from everlog.job_types import RateLimit

QUEUE_KEY = ""
"""Stands for the whole job queue."""


class ClaimRates:
    """Times of claims, as long as they count; none is forgotten before its time is over."""

    __slots__ = ("_claims", "_totals", "limit")

    def __init__(self, limit: RateLimit | None) -> None:
        self.limit = limit
        self._claims: dict[str, deque[list[int]]] = {}  # ms, how many
        self._totals: dict[str, int] = {}

    def room(self, key: str, now_ms: int) -> int:
        """How many more jobs of a key may be claimed now."""
        assert self.limit is not None
        self._forget(key, now_ms)
        return self.limit.count - self._totals.get(key, 0)

    def free_ms(self, key: str) -> int:
        """When the first claim of a key that counts now does no more."""
        assert self.limit is not None
        return self._claims[key][0][0] + self.limit.per_ms

    def note(self, key: str, claimed_ms: int, count: int = 1) -> None:
        """Jobs were claimed, at this time or, while a log is replayed, earlier."""
        claims = self._claims.get(key)
        if claims is None:
            claims = self._claims[key] = deque()
        # A clock that was set back must not let a claim count for less long.
        claimed_ms = max(claimed_ms, claims[-1][0]) if claims else claimed_ms
        if claims and claims[-1][0] == claimed_ms:
            claims[-1][1] += count
        else:
            claims.append([claimed_ms, count])
        self._totals[key] = self._totals.get(key, 0) + count

    def undo(self, key: str) -> None:
        """The last claim of a key was not made after all."""
        claims = self._claims.get(key)
        if claims:
            claims[-1][1] -= 1
            self._totals[key] -= 1
            if not claims[-1][1]:
                claims.pop()

    def _forget(self, key: str, now_ms: int) -> None:
        claims = self._claims.get(key)
        if claims is None or self.limit is None:
            return
        while claims and now_ms - claims[0][0] >= self.limit.per_ms:
            self._totals[key] -= claims.popleft()[1]
        if not claims:
            del self._claims[key], self._totals[key]

    def forget_all(self, now_ms: int) -> None:
        """Forget what counts no more, of every key."""
        for key in list(self._claims):
            self._forget(key, now_ms)

    def stored(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """What a snapshot stores."""
        return [(key, [(ms, count) for ms, count in claims]) for key, claims in self._claims.items()]
