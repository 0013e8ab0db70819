"""Many queues, one consumer: merges readers by timestamp.

Owns one pending message per source and the rule which is next; reads nothing by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from everlog.errors import Unsupported
from everlog.native.queue.ring import MessageView, wait_any
from everlog.queue.reader import QueueReader


class FanInReader:
    """Delivers the smallest (timestamp_ns, source index) among the messages visible now.

    Order inside a source is never changed, even where its timestamps go back, and an empty
    source does not hold the others back. Use it from one thread; it does not close its readers.
    """

    def __init__(self, readers: Iterable[QueueReader] = ()) -> None:
        """Merge `readers`; their index is their place in the list."""
        self._readers: dict[int, QueueReader] = {}
        self._pending: list[tuple[int, int, MessageView]] = []  # a heap; indexes are unique in it
        self._empty: set[int] = set()
        self._delivered: dict[int, tuple[int, int]] = {}
        self._next_index = 0
        for reader in readers:
            self.add(reader)

    def add(self, reader: QueueReader) -> int:
        """Add a source and return its index."""
        index = self._next_index
        self._next_index += 1
        self._readers[index] = reader
        self._delivered[index] = reader.position
        self._empty.add(index)
        return index

    def remove(self, index: int) -> QueueReader:
        """Remove a source and return its reader; its index is not used again.

        A message that was buffered but not delivered was never committed: reading on from the
        committed position returns it again.
        """
        reader = self.reader(index)
        del self._readers[index], self._delivered[index]
        self._empty.discard(index)
        self._pending = [entry for entry in self._pending if entry[1] != index]
        heapq.heapify(self._pending)
        return reader

    def reader(self, index: int) -> QueueReader:
        """Return a source."""
        try:
            return self._readers[index]
        except KeyError:
            raise Unsupported(f"there is no source {index}; there are {sorted(self._readers)}") from None

    def next(self) -> tuple[int, MessageView] | None:
        """Return (source index, message) of the next message, None if no source has one."""
        self._require_sources()
        self._fill()
        if not self._pending:
            return None
        _, index, view = heapq.heappop(self._pending)
        self._empty.add(index)
        self._delivered[index] = (view.segment_id, view.end_offset)
        return index, view

    def __iter__(self) -> Iterator[tuple[int, MessageView]]:
        """Yield what is available now."""
        while (item := self.next()) is not None:
            yield item

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until any source has a message; the first source's wait strategy is used."""
        self._require_sources()
        return bool(self._pending) or wait_any(list(self._readers.values()), timeout_s)

    def commit(self, index: int, durable: bool = True) -> None:
        """Persist the position after the last message of this source that was delivered."""
        self.reader(index)._commit_at(self._delivered[index], durable)

    def commit_all(self, durable: bool = True) -> None:
        """Commit every source."""
        for index in self._readers:
            self.commit(index, durable)

    def _fill(self) -> None:
        for index in tuple(self._empty):  # in any order: the heap orders them
            view = self._readers[index].next()
            if view is not None:
                self._empty.discard(index)
                heapq.heappush(self._pending, (view.timestamp_ns, index, view))

    def _require_sources(self) -> None:
        if not self._readers:
            raise Unsupported("a fan-in needs at least one source; add() one first")
