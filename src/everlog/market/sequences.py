"""Sequence numbers of one stream: is anything missing?

Owns the rule (each number is the last one plus one) and what a gap leads to. Knows no book.
"""

from __future__ import annotations

from typing import NamedTuple

from everlog.errors import BookGap
from everlog.market.books import GapPolicy


class SequenceGap(NamedTuple):
    """The number that came is not the one after the last."""

    position: int
    seen: int
    found: int


class SequenceValidator:
    """Watches the numbers of one stream; the first number is always accepted."""

    def __init__(self, policy: str = GapPolicy.PANIC) -> None:
        self.policy = GapPolicy(policy)
        self.last: int | None = None

    def check(self, seq: int) -> SequenceGap | None:
        """Take the next number; a gap raises BookGap under `panic`, else it is returned."""
        seen, self.last = self.last, seq
        if seen is None or seq == seen + 1:
            return None
        gap = SequenceGap(0, seen, seq)
        if self.policy is GapPolicy.PANIC:
            self.last = seen
            raise gap_error(gap)
        return gap

    def reset(self) -> None:
        """Forget the last number."""
        self.last = None


def gap_error(gap: SequenceGap) -> BookGap:
    """Return the error of a gap under `panic`."""
    return BookGap(
        f"event {gap.position} has sequence number {gap.found}, but {gap.seen} was the last; rebuild from a "
        "snapshot, or choose gap policy quarantine or ignore (--gaps)",
        gap.seen,
        gap.found,
    )
