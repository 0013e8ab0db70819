"""The hand-off between a sidecar thread and the hot thread.

Owns one small bounded channel. The hot thread must never wait for a lock that a sidecar may
hold while it opens files, so it only reads a deque; the lock is shared by the senders alone.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from everlog.errors import InvalidConfig

HAND_OFF_CAPACITY = 16

Item = TypeVar("Item")


class HandOff(Generic[Item]):
    """Passes finished objects (readers, channels, commands) to the one thread that uses them.

    Any number of threads may `offer`; one thread, the hot one, calls `drain`. What is offered
    belongs to the receiver from then on. When the hot thread ends, drain once more and close
    what is left.
    """

    def __init__(self, capacity: int = HAND_OFF_CAPACITY) -> None:
        if capacity < 1:
            raise InvalidConfig(f"capacity is {capacity}; a hand-off needs room for at least 1 item")
        self.capacity = capacity
        # Left without maxlen: a full deque with maxlen silently drops its oldest item.
        self._items: deque[Item] = deque()
        self._senders = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, item: Item) -> bool:
        """Pass `item` on; False (and nothing happened) while `capacity` items are waiting."""
        with self._senders:
            if len(self._items) >= self.capacity:
                return False
            self._items.append(item)
            return True

    def drain(self) -> list[Item]:
        """Take everything that is waiting, oldest first. Never blocks; usually returns `[]`."""
        # Only the receiver removes items, so what it counted is there. Items that arrive
        # meanwhile wait for the next call, which bounds this one.
        items = self._items
        return [items.popleft() for _ in range(len(items))] if items else []
