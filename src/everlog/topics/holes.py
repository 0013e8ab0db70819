"""Seqs that hold no record although nobody deleted one: runs of them, noted where they arise. Pure.

A note says that a seq *may* be empty: what could not be synced is there again after some restarts. So holes
are those seqs of the runs that are not alive.
"""

from __future__ import annotations

from typing import Final

from everlog.native.topic_log import TopicLog

HoleRun = tuple[int, int]  # first and last seq

RUNS_MAX: Final = 1024


def note(runs: list[HoleRun], first_seq: int, last_seq: int) -> None:
    """Remember a run; known ones may be noted again. Runs stay ascending, apart and bounded.

    Of too many the two oldest become one, so that records deleted between them count as holes too.
    """
    if last_seq < first_seq:
        return
    merged: list[HoleRun] = []
    for first, last in sorted([*runs, (first_seq, last_seq)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    if len(merged) > RUNS_MAX:
        merged[:2] = [(merged[0][0], merged[1][1])]
    runs[:] = merged


def forget_below(runs: list[HoleRun], seq: int) -> None:
    """Drop the runs that lie wholly below `seq`."""
    runs[:] = [run for run in runs if run[1] >= seq]


def count(runs: list[HoleRun], log: TopicLog, first_seq: int, end_seq: int) -> int:
    """How many seqs from `first_seq` up to before `end_seq` are holes."""
    total = 0
    for run_first, run_last in runs:
        begin, end = max(run_first, first_seq), min(run_last + 1, end_seq)
        if begin < end:
            total += end - begin - log.live_in(begin, end)[0]
    return total
