"""Where frames live that are in no log: of ephemeral topics and of copies; freed from the front.

Owns the chunks of one topic, and the few that wait to be used again. A chunk never moves, because readers
follow its address.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from everlog.native.topics.log import FrameBuffer, Sources

CHUNK_BYTES_MAX: Final = 1 << 20
"""The size up to which chunks of a topic double; only a larger batch gets a larger one."""

_FIRST_BYTES: Final = 2048
_SPARE_CHUNKS_MAX: Final = 8
_DROPPED_CHUNKS: Final = 16  # at a time: returning one to the system takes up to a tenth of a millisecond


class SpareChunks:
    """Chunks of the usual size that topics no longer use: memory the system need not map and clear again."""

    __slots__ = ("_buffers",)

    def __init__(self) -> None:
        self._buffers: list[FrameBuffer] = []

    def acquire(self, size: int) -> FrameBuffer:
        """Return an empty buffer of `size` bytes, a used one if there is one."""
        if size == CHUNK_BYTES_MAX and self._buffers:
            return self._buffers.pop()
        buffer = FrameBuffer(size)
        if size == CHUNK_BYTES_MAX:
            buffer.populate()  # a topic that needs so much soon fills it
        return buffer

    def release(self, size: int, buffer: FrameBuffer) -> None:
        """Return a buffer of `size` bytes; it is freed if enough are held, or if it is still read."""
        # A checkpoint may be copying from it in another thread, and must find the frames it looks for.
        if size == CHUNK_BYTES_MAX and len(self._buffers) < _SPARE_CHUNKS_MAX and not buffer.is_viewed:
            buffer.clear()
            self._buffers.append(buffer)


class Chunk:
    """One piece of memory: the frames in `buffer` are those of `source`, at the same offsets."""

    __slots__ = ("buffer", "last_seq", "size", "source")

    def __init__(self, size: int, buffer: FrameBuffer, source: int) -> None:
        self.size = size
        self.buffer = buffer
        self.source = source
        self.last_seq = 0


class MemoryChunks:
    """The chunks of one topic, oldest first."""

    __slots__ = ("_chunks", "_sources", "_spare")

    def __init__(self, sources: Sources, spare: SpareChunks) -> None:
        self._sources = sources
        self._spare = spare
        self._chunks: deque[Chunk] = deque()

    def chunk_for(self, size: int) -> Chunk:
        """Return a chunk to whose buffer `size` bytes can be appended without moving it; see `keep`."""
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is None or chunk.size - len(chunk.buffer) < size:
            before = chunk.size if chunk is not None else _FIRST_BYTES // 2
            capacity = max(size, min(before * 2, CHUNK_BYTES_MAX))
            buffer = self._spare.acquire(capacity)
            chunk = Chunk(capacity, buffer, self._sources.add(buffer))
            self._chunks.append(chunk)
        return chunk

    def publish(self, chunk: Chunk, last_seq: int) -> None:
        """Let readers see what was appended to the chunk; `last_seq` is its newest record."""
        self._sources.set(chunk.source, chunk.buffer)  # which looks at the length again
        chunk.last_seq = last_seq

    @property
    def last_seq(self) -> int:
        """The newest record here, 0 if there is none."""
        return self._chunks[-1].last_seq if self._chunks else 0

    @property
    def held_bytes(self) -> int:
        """The memory of all chunks."""
        return sum(chunk.size for chunk in self._chunks)

    def drop_below(self, seq: int) -> bool:
        """Free some chunks whose records are all below `seq`, never the newest; whether that is done."""
        for _ in range(_DROPPED_CHUNKS):
            if len(self._chunks) <= 1 or self._chunks[0].last_seq >= seq:
                return True
            self._drop_oldest()
        return False

    def clear(self) -> None:
        """Free all of it."""
        while self._chunks:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        chunk = self._chunks.popleft()
        self._sources.remove(chunk.source)
        self._spare.release(chunk.size, chunk.buffer)
