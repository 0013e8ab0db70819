"""The order in which due jobs are claimed: bands of priority that rise with waiting time, then seq. Pure.

A job is in band `priority // 250`, and one higher for every 10 s since it was due. The highest band comes
first; inside a band come jobs that were delivered before, then the others, each by seq.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

BAND_WIDTH: Final = 250
AGEING_MS: Final = 10_000
_CELL_MS: Final = 1000


class Candidate(NamedTuple):
    """The next job; the one with the smallest `rank` comes first."""

    rank: tuple[int, bool, int]  # the band, negative; whether it was never delivered; seq
    base_band: int
    due_ms: int

    @property
    def seq(self) -> int:
        """Which job."""
        return self.rank[2]


def base_band(priority: int) -> int:
    """The band of a job that has not waited."""
    return priority // BAND_WIDTH


def rank_of(band: int, due_ms: int, is_fresh: bool, seq: int, now_ms: int) -> tuple[int, bool, int]:
    """What a job is sorted by now."""
    return -(band + (now_ms - due_ms) // AGEING_MS), is_fresh, seq


_Entry = tuple[bool, int, int]  # is fresh, seq, due ms


class _Cell:
    """The jobs of a band that became due in the same second."""

    __slots__ = ("heap", "low_ms")

    def __init__(self) -> None:
        self.heap: list[_Entry] = []
        self.low_ms = 1 << 64  # none became due before this

    def first_until(self, last_ms: int) -> _Entry | None:
        """The first of the jobs that were due at `last_ms`, None if there is none."""
        if self.low_ms > last_ms:
            return None
        first = self.heap[0]
        if first[2] <= last_ms:
            return first
        found = min((entry for entry in self.heap if entry[2] <= last_ms), default=None)
        if found is None:
            self.low_ms = min(entry[2] for entry in self.heap)
        return found


_Cells = SortedDict[int, _Cell]


class ClaimOrder:
    """Due jobs, in cells by band and second."""

    __slots__ = ("_bands", "size")

    def __init__(self) -> None:
        self._bands: dict[int, _Cells] = {}
        self.size = 0
        """How many jobs there are."""

    def add(self, seq: int, band: int, due_ms: int, is_fresh: bool) -> None:
        """Add a job that is not in here."""
        cells = self._bands.get(band)
        if cells is None:
            cells = self._bands[band] = SortedDict()
        cell = cells.get(due_ms // _CELL_MS)
        if cell is None:
            cell = cells[due_ms // _CELL_MS] = _Cell()
        heappush(cell.heap, (is_fresh, seq, due_ms))
        cell.low_ms = min(cell.low_ms, due_ms)
        self.size += 1

    def first(self, now_ms: int) -> Candidate | None:
        """The job that comes first now, None if there is none."""
        best: Candidate | None = None
        for band, cells in self._bands.items():
            is_fresh, seq, due_ms = _first_of(cells, now_ms)
            rank = rank_of(band, due_ms, is_fresh, seq, now_ms)
            if best is None or rank < best.rank:
                best = Candidate(rank, band, due_ms)
        return best

    def remove(self, candidate: Candidate) -> None:
        """Take out a job that `first` has given."""
        cells = self._bands[candidate.base_band]
        second = candidate.due_ms // _CELL_MS
        heap = cells[second].heap
        entry = (candidate.rank[1], candidate.seq, candidate.due_ms)
        if heap[0] == entry:
            heappop(heap)
        else:
            heap.remove(entry)
            heapify(heap)
        self.size -= 1
        if not heap:
            del cells[second]
            if not cells:
                del self._bands[candidate.base_band]


def _first_of(cells: _Cells, now_ms: int) -> _Entry:
    """The first of those jobs of a band that have risen the most."""
    oldest_ms = cells.peekitem(0)[0] * _CELL_MS
    last_ms = now_ms - (now_ms - oldest_ms) // AGEING_MS * AGEING_MS
    # The oldest second may be cut by a step of ageing, with no job before the cut.
    best = _first_until(cells, last_ms) or _first_until(cells, last_ms + AGEING_MS)
    assert best is not None, "the oldest job has risen that often, or once less"
    return best


def _first_until(cells: _Cells, last_ms: int) -> _Entry | None:
    best: _Entry | None = None
    for second in cells.irange(maximum=last_ms // _CELL_MS):
        first = cells[second].first_until(last_ms)
        if first is not None and (best is None or first < best):
            best = first
    return best
