"""Merging of sorted streams of event blocks, in bounded memory.

Owns the order: ascending keys, equal keys in the order of the streams. Never reorders one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class KeyedBlock:
    """Events with one non-decreasing key each."""

    keys: NDArray[np.uint64]
    records: NDArray[Any]

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.keys)


class _Source:
    """One stream and what of its current block is still to be taken."""

    __slots__ = ("_blocks", "keys", "records")

    def __init__(self, blocks: Iterable[KeyedBlock]) -> None:
        self._blocks = iter(blocks)
        self.keys: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self.records: NDArray[Any] = np.zeros(0)

    def fill(self) -> bool:
        """Have at least one event at hand; False at the end."""
        while len(self.keys) == 0:
            block = next(self._blocks, None)
            if block is None:
                return False
            self.keys, self.records = block.keys, block.records
        return True

    def take(self, up_to: np.uint64) -> KeyedBlock:
        """Remove and return the events whose key is not above `up_to`."""
        count = int(np.searchsorted(self.keys, up_to, side="right"))
        taken = KeyedBlock(self.keys[:count], self.records[:count])
        self.keys, self.records = self.keys[count:], self.records[count:]
        return taken


def merge(streams: Iterable[Iterable[KeyedBlock]]) -> Iterator[KeyedBlock]:
    """Yield the events of all streams in the order of their keys.

    Everything up to the smallest last key at hand is complete, because no stream can still bring
    a smaller one.
    """
    sources = [source for source in map(_Source, streams) if source.fill()]
    while len(sources) > 1:
        complete = min(source.keys[-1] for source in sources)
        parts = [part for source in sources if len(part := source.take(complete))]
        keys = np.concatenate([part.keys for part in parts])
        order = np.argsort(keys, kind="stable")
        yield KeyedBlock(keys[order], np.concatenate([part.records for part in parts])[order])
        sources = [source for source in sources if source.fill()]
    for source in sources:
        while source.fill():
            yield source.take(source.keys[-1])
