"""Runs of holes stay ascending, apart and bounded, and say the same as a plain set of seqs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from everlog.native.topics.log import TopicLog
from everlog.topics.retention import count_holes
from everlog.topics.topic import HOLE_RUNS_MAX, SeqRun, add_holes, drop_holes_below

spans = st.tuples(st.integers(1, 200), st.integers(0, 12)).map(lambda span: (span[0], span[0] + span[1]))


@given(noted=st.lists(spans, max_size=30), below=st.integers(1, 210), asked=spans)
def test_runs_say_what_a_set_of_seqs_says(
    noted: list[tuple[int, int]], below: int, asked: tuple[int, int]
) -> None:
    runs: list[SeqRun] = []
    seqs: set[int] = set()
    for first_seq, last_seq in noted:
        add_holes(runs, first_seq, last_seq)
        seqs |= set(range(first_seq, last_seq + 1))
    assert {seq for first, last in runs for seq in range(first, last + 1)} == seqs
    assert all(before[1] + 1 < after[0] for before, after in pairwise(runs))
    log = TopicLog(1, 1)
    first_seq, end_seq = asked[0], asked[1] + 1
    assert count_holes(runs, log, first_seq, end_seq) == len(seqs & set(range(first_seq, end_seq)))
    drop_holes_below(runs, below)
    assert {seq for seq in seqs if seq >= below} <= {
        seq for first, last in runs for seq in range(first, last + 1)
    }


def test_an_empty_run_is_no_run() -> None:
    runs: list[SeqRun] = []
    add_holes(runs, 5, 4)
    assert runs == []


def test_of_too_many_runs_the_oldest_two_become_one() -> None:
    runs: list[SeqRun] = []
    for number in range(HOLE_RUNS_MAX + 1):
        add_holes(runs, 1 + 3 * number, 1 + 3 * number)
    assert (len(runs), runs[0], runs[1]) == (HOLE_RUNS_MAX, (1, 4), (7, 7))
