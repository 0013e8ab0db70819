"""Sets of seqs as intervals, against sets of numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from everlog.pipeline.intervals import Intervals, difference, intersection, runs_of, size, union

PARTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def members(some: Intervals) -> set[int]:
    """The seqs of a set."""
    return {seq for first, end in some.tolist() for seq in range(first, end)}


@given(one=PARTS, other=PARTS)
def test_sets_of_intervals_are_like_sets_of_numbers(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    plain, second = ({seq for first, end in some for seq in range(first, end)} for some in (one, other))
    left, right = union(one), union(other)
    for found, wanted in (
        (left, plain),
        (union([left, right]), plain | second),
        (intersection(left, right), plain & second),
        (difference(left, right), plain - second),
        (runs_of(np.array([*plain, *plain], np.int64)), plain),
    ):
        assert members(found) == wanted
        assert size(found) == len(wanted)
        flat = found.reshape(-1).tolist()
        assert flat == sorted(set(flat)), "sorted, and no two touch"
