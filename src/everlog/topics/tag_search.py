"""Which live records have a tag, or one that begins with a text: found in slices, however many they are.

Owns how much one slice looks at and that nothing is missed meanwhile: records that are appended during the
search are looked at once more, from where it began up to the head. What is deleted meanwhile is among the
seqs all the same. A search changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from everlog.native.topics.log import select_records
from everlog.topics.config import U64_MAX
from everlog.topics.jobs.steps import Load, Steps, Turn, check_there, loaded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from everlog.topics.core import Core
    from everlog.topics.records import TagMatch
    from everlog.topics.topic import Topic

SEARCH_STEPS: Final = 20_000
"""Tags and records that one step looks at: one to two milliseconds."""
# So many seqs are sorted in three milliseconds.
_SORTED_AT_ONCE: Final = 50_000
_MARKS_A_STEP: Final = 500_000


class TagSearch:
    """The seqs below `before_seq` of live records that match; they are complete up to `end_seq`."""

    def __init__(self, core: Core, topic: Topic, match: TagMatch, before_seq: int) -> None:
        self._core = core
        self._topic = topic
        self._match = match
        self._todo: list[Callable[[], None]] = [partial(self._search, match.tag, match.prefix)]
        self._turn = Turn(core.clock)
        self.end_seq = before_seq
        self.pieces: list[NDArray[np.uint64]] = []
        """What was found; ascending from piece to piece once `run` is over."""

    @property
    def found(self) -> int:
        """How many seqs were found."""
        return sum(len(piece) for piece in self.pieces)

    def run(self) -> Steps[None]:
        """Search what is there now."""
        while self._todo:
            self._todo.pop()()
            yield from self._pause()
        if not self._match.prefix:
            self.pieces.reverse()  # the newest were found first
        elif self.found <= _SORTED_AT_ONCE:
            self.pieces = [np.sort(np.concatenate(self.pieces))] if self.pieces else []
        else:
            yield from self._sort()

    def _search(self, tag: bytes, prefix: bool, from_seq: int = 0) -> None:
        seqs, rest = self._topic.log.search_tag(tag, prefix, self.end_seq, SEARCH_STEPS, from_seq)
        if len(seqs):
            self.pieces.append(seqs)
        if rest is not None and prefix:
            self._todo.append(partial(self._branch, tag))
        elif rest is not None:
            self._todo.append(partial(self._search, tag, False, rest))

    def _branch(self, tag: bytes) -> None:
        """Search this tag, and those that are longer by their next byte."""
        self._todo.append(partial(self._search, tag, False))
        branches = []
        for byte in range(256):
            branch = tag + bytes((byte,))
            seqs, rest = self._topic.log.search_tag(branch, True, self.end_seq, 2)
            if len(seqs):
                self.pieces.append(seqs)
            elif rest is not None:
                branches.append(branch)
        # If there is one way only, it has too many as well.
        then = self._branch if len(branches) == 1 else partial(self._search, prefix=True)
        self._todo.extend(partial(then, branch) for branch in branches)

    def _sort(self) -> Steps[None]:
        """Put what was found in tags into the order of seqs; a sort would take too long for one step."""
        first_seq = min(int(piece.min()) for piece in self.pieces)
        marks = np.zeros(self.end_seq - first_seq, np.bool_)
        for piece in self.pieces:
            marks[piece - np.uint64(first_seq)] = True
            yield from self._pause()
        self.pieces = []
        for start in range(0, len(marks), _MARKS_A_STEP):
            places = np.flatnonzero(marks[start : start + _MARKS_A_STEP])
            if len(places):
                self.pieces.append(places.astype(np.uint64) + np.uint64(first_seq + start))
            yield from self._pause()

    def extend(self, before_seq: int, load: Load) -> Steps[None]:
        """Search the records that were appended since, by their frames: the tags are all too many."""
        while self.end_seq < before_seq:
            end_seq = min(before_seq, self.end_seq + SEARCH_STEPS)
            found = select_records(
                self._core.sources, self._topic.log, self.end_seq, end_seq, *self._match, U64_MAX, U64_MAX
            )
            runs = (range(first_seq, first_seq + count) for first_seq, count in found.runs)
            seqs = np.fromiter(chain.from_iterable(runs), np.uint64)
            if found.corrupt_seq:  # only the index knows its tag now
                end_seq = found.corrupt_seq + 1
                seqs = self._topic.log.find_tag(*self._match, end_seq)
                seqs = seqs[seqs >= self.end_seq]
            elif found.missing_source:
                end_seq = found.next_seq
                yield from loaded(load, found.missing_source)
                check_there(self._topic)
            if len(seqs):
                self.pieces.append(seqs)
            self.end_seq = end_seq
            yield from self._pause()

    def _pause(self) -> Steps[None]:
        if self._turn.is_over:
            yield None
            self._turn.begin()
            check_there(self._topic)
