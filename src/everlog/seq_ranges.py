"""Ranges of seqs, gaps in them, and positions, as the planes below and the pipeline pass them on.

Ranges and gaps are half-open: `first` is included, `end` is not. Only what users see has an inclusive end:
the options `toSeq` and `toTs`, the column `gap_to`, and the ranges in error messages and reports.
"""

from __future__ import annotations

from typing import NamedTuple


class SeqRange(NamedTuple):
    """Seqs from `first` up to, but not including, `end`."""

    first: int
    end: int

    @property
    def size(self) -> int:
        """The number of seqs; 0 if `end` is not above `first`."""
        return max(0, self.end - self.first)


class Position(NamedTuple):
    """The next seq of a stream, and of which instance: a topic or queue made anew is another one.

    An instance of None is not known: it was stored by an earlier version, or its source has none.
    """

    seq: int
    instance: str | None = None

    def is_replaced_by(self, now: Position) -> bool:
        """Whether `now`, the end of the same stream at a later time, cannot continue from here."""
        if self.instance is not None and now.instance is not None and self.instance != now.instance:
            return True
        return now.seq < self.seq

    def next_in(self, now: Position, first_seq: int) -> int:
        """Return from which seq to read up to `now`: from the beginning of an instance that is new."""
        if not self.is_replaced_by(now):
            return self.seq
        is_same = self.instance is not None and self.instance == now.instance
        return now.seq if is_same else first_seq


class Gap(NamedTuple):
    """Seqs from `first` up to, but not including, `end` that cannot be read any more, and the reason.

    One that ends where it begins has no known end: what came from `first` on is gone with its instance.
    """

    first: int
    end: int
    reason: str

    @property
    def last(self) -> int | None:
        """The last seq of the gap, for messages and for the column `gap_to`; None if it is not known."""
        return None if self.end == self.first else self.end - 1
