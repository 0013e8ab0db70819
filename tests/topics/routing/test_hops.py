"""Runs of hops against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.topics.routing.copying import HopRun, forget_hops_below, note_hops, split_by_hops

notes = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 3)), max_size=12)


def noted(steps: list[tuple[int, int, int]]) -> tuple[list[HopRun], dict[int, int]]:
    """Runs and a dictionary after the same notes: length, gap before it, hops."""
    runs: list[HopRun] = []
    known: dict[int, int] = {}
    seq = 1
    for length, gap, hop_count in steps:
        seq += gap
        note_hops(runs, seq, seq + length - 1, hop_count)
        known |= dict.fromkeys(range(seq, seq + length), hop_count)
        seq += length
    return runs, known


@given(notes, st.integers(1, 60), st.integers(1, 60))
def test_pieces_have_the_hops_of_every_seq(
    steps: list[tuple[int, int, int]], first_seq: int, end_seq: int
) -> None:
    runs, known = noted(steps)
    found: dict[int, int] = {}
    for piece_first, piece_end, hop_count in split_by_hops(runs, first_seq, end_seq):
        assert piece_first < piece_end
        found |= dict.fromkeys(range(piece_first, piece_end), hop_count)
    assert found == {seq: known.get(seq, 0) for seq in range(first_seq, end_seq)}
    assert list(found) == sorted(found)


@given(notes, st.integers(1, 60))
def test_what_is_forgotten_is_below_and_what_is_noted_twice_changes_nothing(
    steps: list[tuple[int, int, int]], seq: int
) -> None:
    runs, known = noted(steps)
    again = list(runs)
    for first_seq, last_seq, _ in runs:
        note_hops(again, first_seq, last_seq, 7)
    assert again == runs
    forget_hops_below(runs, seq)
    kept = {each: hop_count for each, hop_count in known.items() if each >= seq}
    end_seq = max(known, default=0) + 1
    found: dict[int, int] = {}
    for piece_first, piece_end, hop_count in split_by_hops(runs, seq, end_seq):
        found |= dict.fromkeys(range(piece_first, piece_end), hop_count)
    assert {each: hop_count for each, hop_count in found.items() if hop_count} == kept
