"""Memory for the results of books, reused once the arrays in it are no longer referenced.

Owns blocks of bytes and returns arrays. The system clears every page that it maps into a process, and for
large batches that takes about as long as the books need for their events.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig

MAX_BLOCKS: Final = 8
SMALLEST_BLOCK_BYTES: Final = 1 << 18
"""Smaller arrays are not kept, nor aligned: the allocator reuses memory for them, and where there are
many markets there is one for each of them in every batch."""

_LINE_BYTES: Final = 64
_WASTE_FACTOR: Final = 4
"""A block is not used for an array that needs less than one part in so many of it."""

Block = NDArray[np.uint8]


def aligned_array(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array, not cleared; a large one begins on a line of cache: books write whole lines then."""
    if _bytes(shape, dtype) < SMALLEST_BLOCK_BYTES:
        return np.empty(shape, dtype)
    return _view(np.empty(_bytes(shape, dtype) + _LINE_BYTES, dtype=np.uint8), shape, dtype)


def _bytes(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return how many bytes an array takes."""
    count = shape if isinstance(shape, int) else math.prod(shape)
    return count * dtype.itemsize


def _view(block: Block, shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    first = -block.ctypes.data % _LINE_BYTES
    return block[first : first + _bytes(shape, dtype)].view(dtype).reshape(shape)


def _holders(blocks: list[Block], index: int) -> int:
    """Count references to a block. Every array made of it, and every part of such an array, is one."""
    return sys.getrefcount(blocks[index])


# Measured rather than known: how many references a call itself takes is the interpreter's affair.
_HOLDERS_OF_UNUSED: Final = _holders([np.empty(1, dtype=np.uint8)], 0)


class ResultMemory:
    """Gives arrays to books: `book.apply_array(events, want, memory)`.

    A result stays as it is for as long as anything of it is held; memory is used again only after that. So
    a loop that drops each result before the next but one needs two results' worth of memory in all. Results
    that are kept for good are worth no memory: each takes new memory anyway.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        """Keep at most `max_blocks` blocks; every array of a result takes one, those below 256 KiB none."""
        if max_blocks < 1:
            raise InvalidConfig(f"max_blocks is {max_blocks}; at least 1 is needed")
        self._max_blocks = max_blocks
        self._blocks: list[Block] = []
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """Bytes of all blocks, in use or not."""
        with self._lock:
            return sum(block.nbytes for block in self._blocks)

    def array(self, shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array with anything in it, of memory that is not in use."""
        size = _bytes(shape, dtype)
        if size < SMALLEST_BLOCK_BYTES:
            return aligned_array(shape, dtype)
        with self._lock:
            return _view(self._take(size + _LINE_BYTES), shape, dtype)

    def release(self) -> None:
        """Forget every block; those in use live as long as their arrays."""
        with self._lock:
            self._blocks.clear()

    def _take(self, size: int) -> Block:
        """Return the smallest unused block that is large enough, or a new one."""
        unused = [at for at in range(len(self._blocks)) if _holders(self._blocks, at) <= _HOLDERS_OF_UNUSED]
        fitting = [at for at in unused if size <= self._blocks[at].nbytes <= _WASTE_FACTOR * size]
        if fitting:
            return self._blocks[min(fitting, key=lambda at: self._blocks[at].nbytes)]
        if len(self._blocks) >= self._max_blocks and unused:
            del self._blocks[min(unused, key=lambda at: self._blocks[at].nbytes)]
        block = np.empty(size, dtype=np.uint8)
        if len(self._blocks) < self._max_blocks:
            self._blocks.append(block)
        return block
