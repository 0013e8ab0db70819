"""Topics by the time at which something happens to them although they are idle.

Owns that order. A topic has one entry, which may come too early (it is then put back) but never too late, so
that a write or a read need not change it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from everlog.topics.topic import Topic

_STALE_ENTRIES: Final = 1024


class TimedWork(Protocol):
    """Work that is due like that of a topic, under an id that no topic has."""

    due_ms: int
    topic_id: int
    deleted: bool

    def run_due(self, now_ms: int) -> None:
        """Do what is due."""
        ...


class DueTopics:
    """Topics by the time (wall, ms) at which they have to be looked at."""

    __slots__ = ("_entries", "_topics")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []  # a heap of due time and topic id
        self._topics: dict[int, Topic | TimedWork] = {}

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def first_ms(self) -> int | None:
        """When the first topic is due, None if there is none."""
        return self._entries[0][0] if self._entries else None

    def add(self, topic: Topic | TimedWork, due_ms: int) -> None:
        """Look at a topic at this time at the latest."""
        if topic.due_ms and topic.due_ms <= due_ms:
            return
        topic.due_ms = due_ms
        self._topics[topic.topic_id] = topic
        heapq.heappush(self._entries, (due_ms, topic.topic_id))
        if len(self._entries) > 2 * len(self._topics) + _STALE_ENTRIES:
            self._entries = [(each.due_ms, topic_id) for topic_id, each in self._topics.items()]
            heapq.heapify(self._entries)

    def pop(self, now_ms: int) -> Topic | TimedWork | None:
        """Take out a topic that is due, None if there is none; deleted ones are dropped."""
        while self._entries and self._entries[0][0] <= now_ms:
            due_ms, topic_id = heapq.heappop(self._entries)
            topic = self._topics.get(topic_id)
            if topic is None or topic.due_ms != due_ms:
                continue  # an earlier entry has replaced this one
            del self._topics[topic_id]
            topic.due_ms = 0
            if not topic.deleted:
                return topic
        return None
