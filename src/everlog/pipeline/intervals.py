"""Arithmetic with sets of seqs: union, intersection and difference of half-open intervals.

A set is an array of rows `first, end`, sorted, without two that overlap or touch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.int64]
EMPTY: Intervals = np.empty((0, 2), np.int64)


def union(parts: Iterable[Intervals | tuple[int, int]]) -> Intervals:
    """Return all that is in one of the parts, which may overlap; empty ones count for nothing."""
    found = [np.asarray(part, np.int64).reshape(-1, 2) for part in parts]
    rows = np.concatenate([EMPTY, *found])
    rows = rows[rows[:, 1] > rows[:, 0]]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    if not len(rows):
        return EMPTY
    reach = np.maximum.accumulate(rows[:, 1])
    begins = np.flatnonzero(np.concatenate([[True], rows[1:, 0] > reach[:-1]]))
    return np.column_stack([rows[begins, 0], np.maximum.reduceat(rows[:, 1], begins)])


def size(some: Intervals) -> int:
    """Return how many seqs there are."""
    return int((some[:, 1] - some[:, 0]).sum())


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """Return what is in both."""
    low = np.searchsorted(other[:, 1], one[:, 0], side="right")
    counts = np.maximum(np.searchsorted(other[:, 0], one[:, 1], side="left") - low, 0)
    rows = np.repeat(np.arange(len(one)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = low[rows] + within
    firsts = np.maximum(one[rows, 0], other[columns, 0])
    return np.column_stack([firsts, np.minimum(one[rows, 1], other[columns, 1])])


def difference(one: Intervals, other: Intervals) -> Intervals:
    """Return what is in the first and not in the second."""
    if not len(one):
        return EMPTY
    low, high = int(one[0, 0]), int(one[-1, 1])
    firsts = np.concatenate([[low], other[:, 1]])
    ends = np.concatenate([other[:, 0], [high]])
    return intersection(one, union([np.column_stack([firsts, ends])]))


def runs_of(seqs: NDArray[np.int64]) -> Intervals:
    """Return seqs, in any order and with repeats, as a set."""
    if not len(seqs):
        return EMPTY
    ordered = np.unique(seqs)
    begins = np.flatnonzero(np.concatenate([[True], np.diff(ordered) > 1]))
    lasts = np.concatenate([begins[1:], [len(ordered)]]) - 1
    return np.column_stack([ordered[begins], ordered[lasts] + 1])
