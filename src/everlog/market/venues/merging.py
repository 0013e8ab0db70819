"""Merging of sorted streams of event blocks, in bounded memory.

Owns the order: ascending keys, equal keys in the order of the streams. Never reorders one stream.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

EVENTS_READ: Final = 1 << 16
"""Read between two rounds of merging, from all streams together: a round looks at every stream, and there may
be thousands of them."""


@dataclass(slots=True)
class KeyedBlock:
    """Events with one non-decreasing key each."""

    keys: NDArray[np.uint64]
    records: NDArray[Any]

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.keys)

    def split(self, place: int) -> tuple[KeyedBlock, KeyedBlock]:
        """Return the events before a place, and those from there on."""
        return (
            KeyedBlock(self.keys[:place], self.records[:place]),
            KeyedBlock(self.keys[place:], self.records[place:]),
        )


class _Source:
    """One stream and the blocks read from it, in order, none of them empty."""

    __slots__ = ("_blocks", "at_hand")

    def __init__(self, blocks: Iterable[KeyedBlock]) -> None:
        self._blocks = iter(blocks)
        self.at_hand: list[KeyedBlock] = []

    def read(self) -> int:
        """Read one more block and return how many events it has; 0 at the end."""
        for block in self._blocks:
            if len(block):
                self.at_hand.append(block)
                return len(block)
        return 0

    @property
    def last_key(self) -> int:
        return int(self.at_hand[-1].keys[-1])

    def take(self, below: int | None) -> list[KeyedBlock]:
        """Remove and return the events with keys below this one, None for all."""
        if below is None:
            taken, self.at_hand = self.at_hand, []
            return taken
        taken = []
        while self.at_hand and self.at_hand[0].keys[0] < below:
            block = self.at_hand.pop(0)
            if block.keys[-1] >= below:
                block, rest = block.split(int(np.searchsorted(block.keys, np.uint64(below))))
                self.at_hand.insert(0, rest)
            taken.append(block)
        return taken


def merge(streams: Iterable[Iterable[KeyedBlock]]) -> Iterator[KeyedBlock]:
    """Yield the events of all streams in the order of their keys.

    Everything below the smallest last key read so far is complete, because no stream can still bring it. The
    stream with that key is read on, until there is enough to merge.
    """
    sources = [_Source(stream) for stream in streams]
    # Streams that can still bring events, the one with the smallest last key first.
    unfinished = [(source.last_key, number) for number, source in enumerate(sources) if source.read()]
    heapq.heapify(unfinished)
    while unfinished:
        count = 0
        while unfinished and count < EVENTS_READ:
            number = unfinished[0][1]
            events = sources[number].read()
            count += events
            if events:
                heapq.heapreplace(unfinished, (sources[number].last_key, number))
            else:
                heapq.heappop(unfinished)
        below = unfinished[0][0] if unfinished else None
        yield from _sorted([part for source in sources for part in source.take(below)])


def _sorted(parts: list[KeyedBlock]) -> Iterator[KeyedBlock]:
    """Yield the events of all parts by their keys; records are moved as bytes, not field by field."""
    if len(parts) <= 1:
        yield from parts
        return
    dtype = parts[0].records.dtype
    opaque = dtype if dtype.names is None else np.dtype(f"V{dtype.itemsize}")
    keys = np.concatenate([part.keys for part in parts])
    records = np.concatenate([part.records.view(opaque) for part in parts])
    parts.clear()
    order = np.argsort(keys, kind="stable")
    for start in range(0, len(order), EVENTS_READ):
        chosen = order[start : start + EVENTS_READ]
        yield KeyedBlock(keys[chosen], records[chosen].view(dtype))
