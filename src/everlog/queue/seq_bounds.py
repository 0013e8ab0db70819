"""The first and last seq of a queue, and seqs of positions, found by searching: a queue stores no count.

Owns the search. It moves the reader it is given, which should have no name and no other use meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left

from everlog.queue.reader import QueueReader


class SeqBounds:
    """The seqs of a queue; `first` and `last` are None if it holds no message."""

    def __init__(self, reader: QueueReader) -> None:
        """`reader` stands before the oldest message."""
        self._reader = reader
        view = reader.next()
        self.first = None if view is None else view.seq
        self.last = None if view is None else self._last(view.seq)

    def _last(self, first: int) -> int:
        step = 1
        while self._reader.seek_seq(first + step):
            step *= 2
        # True from where no message has so high a seq; the first such place is one behind the last.
        span = range(first, first + step + 1)
        return first + bisect_left(span, True, key=lambda seq: not self._reader.seek_seq(seq)) - 1

    def before(self, segment_id: int, offset: int) -> int:
        """How many messages lie before a position."""
        if self.first is None or self.last is None:
            return 0
        span = range(self.first, self.last + 2)
        return bisect_left(span, True, key=lambda seq: self._place(seq) >= (segment_id, offset))

    def _place(self, seq: int) -> tuple[int, int]:
        self._reader.seek_seq(seq)
        return self._reader.position
