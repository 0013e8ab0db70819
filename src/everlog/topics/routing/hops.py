"""How often a record was passed on: runs of seqs with the same number of hops. Pure.

Records that are in no run were written by somebody and have none.
"""

from __future__ import annotations

from collections.abc import Iterator

HopRun = tuple[int, int, int]  # first seq, last seq, hops


def note(runs: list[HopRun], first_seq: int, last_seq: int, hops: int) -> None:
    """Remember the hops of copies; those at or before the last known seq are known already."""
    first_seq = max(first_seq, runs[-1][1] + 1 if runs else 0)
    if last_seq < first_seq:
        return
    if runs and runs[-1][1] + 1 == first_seq and runs[-1][2] == hops:
        first_seq = runs.pop()[0]
    runs.append((first_seq, last_seq, hops))


def forget_below(runs: list[HopRun], seq: int) -> None:
    """Drop the runs whose records are all below `seq`."""
    gone = 0
    while gone < len(runs) and runs[gone][1] < seq:
        gone += 1
    del runs[:gone]


def pieces(runs: list[HopRun], first_seq: int, end_seq: int) -> Iterator[HopRun]:
    """Cut the seqs from `first_seq` to before `end_seq` into pieces (first seq, end seq, hops)."""
    if first_seq >= end_seq:
        return
    for run_first, run_last, hops in runs:
        if run_last < first_seq:
            continue
        if run_first >= end_seq:
            break
        if first_seq < run_first:
            yield first_seq, run_first, 0
            first_seq = run_first
        run_end = min(run_last + 1, end_seq)
        yield first_seq, run_end, hops
        first_seq = run_end
    if first_seq < end_seq:
        yield first_seq, end_seq, 0
