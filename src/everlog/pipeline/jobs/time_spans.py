"""Spans of a queue that tasks replay at the same time, where one market has most of its events.

Tasks share the markets, so a market that is most of a queue would leave all but one of them idle. Then the
queue is cut into spans as well: a pass before builds the books alone and stores them at each cut, and every
span is replayed with the books that were there. Owns the choice, the cuts, and the stored books.
"""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import suppress
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from everlog.errors import Corrupt, ObjectNotFound
from everlog.pipeline import market_sources
from everlog.pipeline.jobs.market_tasks import TaskFilter, spread_book_keys
from everlog.pipeline.lake_places import LakePlace
from everlog.queue.batch import Batch
from everlog.seq_ranges import Gap, SeqRange

MESSAGES_MIN: Final = 1 << 20
"""Fewer are replayed sooner than they are looked at twice."""
SAMPLES: Final = 16
SAMPLE_MESSAGES: Final = 4096
ADVANCE_COST: Final = 0.25
"""What books alone cost, of what they cost with all rows written: 0.2 to 0.25 of the processor time."""
WORTH: Final = 0.8
"""Spans are chosen if they save a fifth of the time at least."""


class Spans(NamedTuple):
    """The parts of a queue and the groups of markets; each task has one of both."""

    held: SeqRange
    parts: int
    groups: int

    @classmethod
    def of(cls, path: str, held: SeqRange, tasks: int, count: int | None = None) -> Self:
        """Return so many spans, or as many as a sample of the queue makes worth while."""
        chosen = min(count or _worth_while(path, held, tasks), max(1, held.size))
        return cls(held, chosen, max(1, tasks // chosen))

    def ranges(self) -> list[SeqRange]:
        """Return the messages of each span."""
        cuts = [self.held.first + self.held.size * number // self.parts for number in range(self.parts + 1)]
        return [SeqRange(first, end) for first, end in itertools.pairwise(cuts)]

    def of_task(self, number: int) -> tuple[SeqRange, int]:
        """Return the span and the group of a task."""
        span, group = divmod(number, self.groups)
        return self.ranges()[span], group

    def filter(self, group: int) -> TaskFilter:
        """Return the filter that selects the markets of a group."""
        return TaskFilter(self.groups, group)


class BookStates:
    """The books of tasks before a message, stored where all workers see them."""

    def __init__(self, place: LakePlace) -> None:
        self._place = place

    def read(self, seq: int, number: int) -> bytes:
        """Return the books of a task before message `seq`."""
        key = f"{seq}/{number}.state"
        try:
            return self._place.objects().get(key).data
        except ObjectNotFound:
            raise Corrupt(
                f"the books before message {seq} are not at {self._place.path}/{key}; every worker has to "
                "see that place. If it is lost, replay into another table"
            ) from None

    def write(self, seq: int, number: int, state: bytes) -> None:
        """Store the books of a task before message `seq`."""
        # Two attempts of a task may run at once; each stores the same content whole.
        self._place.objects().put(f"{seq}/{number}.state", state)

    def drop(self, needed: int | None = None) -> None:
        """Delete all books but those before the message that is `needed`."""
        if not self._place.is_local:
            objects = self._place.objects()
            objects.delete([one.key for one in objects.list() if not one.key.startswith(f"{needed}/")])
            return
        with suppress(FileNotFoundError):
            for name in os.listdir(self._place.path):
                if name != str(needed):
                    shutil.rmtree(os.path.join(self._place.path, name), ignore_errors=True)
        if needed is None:
            with suppress(OSError):
                os.rmdir(self._place.path)


def _worth_while(path: str, held: SeqRange, tasks: int) -> int:
    """Return how many spans make the work of the busiest task least; 1 unless that saves much."""
    keys = _sample(path, held) if tasks > 1 and held.size >= MESSAGES_MIN else np.zeros(0, np.uint64)
    if not len(keys):
        return 1
    best, cost = 1, _busiest(keys, tasks) * WORTH
    for count in [*(1 << power for power in range(1, (tasks - 1).bit_length())), tasks]:
        spent = _busiest(keys, max(1, tasks // count)) * (ADVANCE_COST + 1 / count)
        if spent < cost:
            best, cost = count, spent
    return best


def _busiest(keys: NDArray[np.uint64], groups: int) -> float:
    """Return which part of the events the largest group has."""
    return int(np.bincount((keys % np.uint64(groups)).astype(np.int64)).max()) / len(keys)


def _sample(path: str, held: SeqRange) -> NDArray[np.uint64]:
    """Return the keys by which book events from all over a queue are assigned to tasks."""
    found = [np.zeros(0, np.uint64)]
    for number in range(SAMPLES):
        first = held.first + held.size * number // SAMPLES
        wanted = SeqRange(first, min(first + SAMPLE_MESSAGES, held.end))
        for piece in market_sources.read(path, wanted, read_next=_read_next):
            if not isinstance(piece, Gap):
                found.append(spread_book_keys(TaskFilter(1, 0).of_batch(piece)))
    return np.concatenate(found)


def _read_next(reader: market_sources.Reader, limit: int) -> Batch:
    return reader.read_batch(limit)
