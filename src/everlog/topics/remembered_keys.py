"""The idempotency keys of one topic, in the order of their writing.

Owns how keys are found, forgotten and gone through, a bounded number at a time however many there are. The
order is kept in blocks: the first key of a dictionary takes long to find once many before it are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from everlog.topics.commits import Commit

BLOCK_KEYS: Final = 1000
"""Keys that are gone through in one step."""


class RememberedKey(msgspec.Struct, frozen=True):
    """An idempotency key and the batch that it stands for."""

    key: str
    first_seq: int
    count: int
    ts: int
    commit: Commit
    seqs: tuple[int, ...] = ()
    """All seqs of the answer, if some of them are of jobs that were there already."""


class _Position(NamedTuple):
    """A place in a block."""

    block: int
    place: int


class RememberedKeys:
    """See the module."""

    __slots__ = ("_blocks", "_by_key", "_first", "_last")

    def __init__(self) -> None:
        self._by_key: dict[str, RememberedKey] = {}
        self._blocks: dict[int, list[RememberedKey]] = {0: []}
        """By number, without gaps; some of their keys are forgotten, or were written again since."""
        self._first = _Position(0, 0)  # all before this are forgotten
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def get(self, key: str) -> RememberedKey | None:
        """What a key stands for."""
        return self._by_key.get(key)

    def add(self, remembered: RememberedKey) -> None:
        """Remember a key as the one that was written last."""
        block = self._blocks[self._last]
        if len(block) >= BLOCK_KEYS:
            self._last += 1
            block = self._blocks[self._last] = []
        self._by_key[remembered.key] = remembered
        block.append(remembered)

    def forget(self, key: str) -> bool:
        """Drop a key; whether it was there."""
        return self._by_key.pop(key, None) is not None

    def clear(self) -> None:
        """Drop all keys."""
        self.__init__()  # type: ignore[misc]

    @property
    def oldest(self) -> RememberedKey | None:
        """The key that was written before all others; None if there is none."""
        number, place = self._first
        found = None
        while found is None:
            block = self._blocks[number]
            if place < len(block):
                found = block[place]
                if self._by_key.get(found.key) is not found:
                    found, place = None, place + 1
            elif number < self._last:
                del self._blocks[number]
                number, place = number + 1, 0
            else:
                break
        self._first = _Position(number, place)
        return found

    @property
    def last_block(self) -> int:
        """The number of the block to which the next key comes, unless it is full."""
        return self._last

    def slices(self, first_block: int = 0) -> Iterator[tuple[int, list[RememberedKey]]]:
        """Yield the keys from a block on up to the last one as it is then, and the number of each block.

        Keys may come and go between two of them.
        """
        number = max(first_block, self._first.block)
        while number <= self._last:
            block = self._blocks.get(number, ())
            yield number, [known for known in block if self._by_key.get(known.key) is known]
            number = max(number + 1, self._first.block)
