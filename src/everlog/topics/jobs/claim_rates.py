"""How many jobs were claimed in the last while, by key: the memory of a rate limit. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from everlog.job_types import RateLimit

_KEYS_A_SLICE: Final = 500
QUEUE_KEY = ""
"""Stands for the whole job queue."""


class ClaimRates:
    """Times of claims, as long as they count; none is forgotten before its time is over."""

    __slots__ = ("_claims", "_totals", "limit")

    def __init__(self, limit: RateLimit | None) -> None:
        self.limit = limit
        # Times in ms and how many; the key whose last claim is oldest comes first.
        self._claims: OrderedDict[str, deque[list[int]]] = OrderedDict()
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
        self._forget_idle(claimed_ms)
        claims = self._claims.setdefault(key, deque())
        self._claims.move_to_end(key)
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

    def _forget_idle(self, now_ms: int) -> None:
        """Forget the keys whose last claim counts no more: most keys of a busy job queue never come again."""
        while self._claims and self.limit is not None:
            key, claims = next(iter(self._claims.items()))
            if claims and now_ms - claims[-1][0] < self.limit.per_ms:
                return
            del self._claims[key], self._totals[key]

    def stored(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """What a snapshot stores."""
        return list(chain.from_iterable(self.stored_slices()))

    def stored_slices(self) -> Iterator[list[tuple[str, list[tuple[int, int]]]]]:
        """What a snapshot stores, some keys at a time; they may come and go between two."""
        keys = iter(list(self._claims))
        while part := list(islice(keys, _KEYS_A_SLICE)):
            yield [
                (key, [(ms, count) for ms, count in self._claims[key]]) for key in part if key in self._claims
            ]
