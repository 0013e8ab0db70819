"""Where the frames of ephemeral topics live: chunks of memory, freed from the front.

Owns the chunks of one topic. A chunk never moves, because readers follow its address.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from everlog.native.frames import FrameBuffer
from everlog.native.topic_log import Sources

_FIRST_BYTES: Final = 2048
_MAX_BYTES: Final = 1 << 20


class _Chunk:
    __slots__ = ("last_seq", "memory", "source", "used")

    def __init__(self, source: int, memory: bytearray) -> None:
        self.source = source
        self.memory = memory
        self.used = 0
        self.last_seq = 0


class MemoryChunks:
    """The chunks of one topic, oldest first."""

    __slots__ = ("_chunks", "_sources")

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._chunks: deque[_Chunk] = deque()

    def room(self, size: int) -> tuple[int, int]:
        """Make room for `size` bytes; return the source and the offset in it where they will lie."""
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is None or len(chunk.memory) - chunk.used < size:
            before = len(chunk.memory) if chunk is not None else _FIRST_BYTES // 2
            memory = bytearray(max(size, min(before * 2, _MAX_BYTES)))
            chunk = _Chunk(self._sources.add(memory), memory)
            self._chunks.append(chunk)
        return chunk.source, chunk.used

    def store(self, frames: FrameBuffer, last_seq: int) -> None:
        """Keep the frames that were encoded for the room made last."""
        chunk = self._chunks[-1]
        end = chunk.used + len(frames)
        memoryview(chunk.memory)[chunk.used : end] = memoryview(frames)
        chunk.used = end
        chunk.last_seq = last_seq

    @property
    def last_seq(self) -> int:
        """The newest record here, 0 if there is none."""
        return self._chunks[-1].last_seq if self._chunks else 0

    def drop_below(self, seq: int) -> None:
        """Free the chunks whose records are all below `seq`; the newest stays for what comes next."""
        while len(self._chunks) > 1 and self._chunks[0].last_seq < seq:
            self._sources.remove(self._chunks.popleft().source)

    def clear(self) -> None:
        """Free all of it."""
        while self._chunks:
            self._sources.remove(self._chunks.popleft().source)
