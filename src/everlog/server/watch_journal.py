"""Event ids of streams that follow patterns: a number instead of the cursors of thousands of topics.

Owns which of the last frames moved which topic. An id that is older than these goes back to where the stream
began: the client gets some frames again and misses none.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

FRAMES_MAX: Final = 8192
FRAME_KEY: Final = "*"
"""Stands for the number of a frame in an event id; it is the name of no topic."""


class Moved(NamedTuple):
    """What a frame changed: the topic, and where it was before; -1: it was not followed."""

    number: int
    topic: str
    seq: int
    epoch: int


class FrameJournal:
    """The frames of the stream that a session had last; `start` is where that one began."""

    def __init__(self) -> None:
        self.start: dict[str, tuple[int, int]] = {}
        self._number = 0
        self._frames: deque[Moved] = deque(maxlen=FRAMES_MAX)
        self._first = 1

    def begin(self, positions: dict[str, tuple[int, int]]) -> None:
        """A new stream starts at these positions."""
        self._frames.clear()
        self._first = self._number + 1
        self.start = positions

    def note(self, topic: str, seq: int, epoch: int) -> int:
        """One more frame, which moves a topic from here; its number."""
        self._number += 1
        self._frames.append(Moved(self._number, topic, seq, epoch))
        return self._number

    def before(self, number: int) -> dict[str, tuple[int, int]] | None:
        """Where the topics were that frames behind `number` moved; None if that is forgotten: see `start`."""
        oldest = self._frames[0].number if self._frames else self._number + 1
        if max(number + 1, self._first) < oldest:
            return None
        moved: dict[str, tuple[int, int]] = {}
        for frame in reversed(self._frames):
            if frame.number <= number:
                break
            moved[frame.topic] = (frame.seq, frame.epoch)
        return moved
