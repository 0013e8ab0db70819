"""Ranges of seqs and gaps in them, as the planes below and the pipeline pass them on.

Both are half-open: `first` is included, `end` is not. Only what users see has an inclusive end: the options
`toSeq` and `toTs`, the column `gap_to`, and the ranges in error messages and reports.
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


class Gap(NamedTuple):
    """Seqs from `first` up to, but not including, `end` that cannot be read any more, and the reason."""

    first: int
    end: int
    reason: str

    @property
    def last(self) -> int:
        """The last seq of the gap, for messages and for the column `gap_to`."""
        return self.end - 1
