"""The consumers of one topic: their cursors, owners and holds, and how they are stored.

Owns this state and its log entries, whose effect is the same on the first run and on replay. What a caller
may do is decided in `consumers`, what a hold keeps back in `retention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedDict, SortedList

from everlog.api_types import Durability
from everlog.topics.commits import COMMITTED, Commit
from everlog.topics.storage.control import ConsumerCommit, ConsumerDelete, ConsumerRecord, decode, encode
from everlog.topics.storage.layout import FrameType

if TYPE_CHECKING:
    from everlog.native.topics.log import LogFrame, TopicLog
    from everlog.topics.core import Core
    from everlog.topics.filters import Filter
    from everlog.topics.topic import Topic

CONSUMER_FRAMES: Final = {FrameType.CONSUMER, FrameType.CONSUMER_COMMIT, FrameType.CONSUMER_DELETE}
_CONSUMERS_A_SLICE: Final = 500
HELD_BY_MAX: Final = 100
"""Consumers that a refused append names."""


class Consumer:
    """A stored cursor. `commit` is done when what is here is as safe as the class of the topic says."""

    __slots__ = (
        "commit",
        "committed_ts",
        "created_ts",
        "cursor",
        "expires_ts",
        "filter",
        "hold",
        "hold_max_ms",
        "is_warned",
        "name",
        "nodes",
        "owner",
        "owner_epoch",
        "owner_ttl_ms",
        "selection",
    )

    def __init__(self, record: ConsumerRecord) -> None:
        self.commit: Commit = COMMITTED
        self.selection: Filter | None = None  # `filter`, once it is compiled
        self.is_warned = False  # that it is about to lose records
        self.name = record.name
        self.load(record)

    def load(self, record: ConsumerRecord) -> None:
        """Take over what is stored."""
        self.cursor = record.cursor
        self.hold = record.hold
        self.hold_max_ms = record.hold_max_ms
        self.filter = record.filter
        self.nodes = tuple(record.nodes)
        self.owner = record.owner
        self.owner_epoch = record.owner_epoch
        self.owner_ttl_ms = record.owner_ttl_ms
        self.expires_ts = record.expires_ts
        self.created_ts = record.created_ts
        self.committed_ts = record.committed_ts
        self.selection = None

    def record(self) -> ConsumerRecord:
        """What is stored."""
        return ConsumerRecord(
            self.name,
            self.cursor,
            self.hold,
            self.hold_max_ms,
            self.filter,
            list(self.nodes),
            self.owner,
            self.owner_epoch,
            self.owner_ttl_ms,
            self.expires_ts,
            self.created_ts,
            self.committed_ts,
        )


class ConsumerTable:
    """Consumers by name, in byte order, and those that hold records back by how long they may."""

    __slots__ = ("_holders", "by_name")

    def __init__(self) -> None:
        self.by_name: SortedDict[str, Consumer] = SortedDict()
        self._holders: dict[int, SortedList[tuple[int, str]]] = {}  # by hold_max_ms: cursor and name

    def __len__(self) -> int:
        return len(self.by_name)

    def slices(self) -> Iterator[list[Consumer]]:
        """Yield all consumers by name, some hundred at a time; others may come and go between two."""
        after = ""  # no name is empty
        while names := list(islice(self.by_name.irange(after, inclusive=(False, True)), _CONSUMERS_A_SLICE)):
            yield [self.by_name[name] for name in names]
            after = names[-1]

    def put(self, record: ConsumerRecord) -> Consumer:
        """Create a consumer, or replace all that is stored of it."""
        consumer = self.by_name.get(record.name)
        if consumer is None:
            consumer = self.by_name[record.name] = Consumer(record)
        else:
            self._leave_holders(consumer)
            consumer.load(record)
        self._join_holders(consumer)
        return consumer

    def move(self, consumer: Consumer, cursor: int) -> None:
        """Set the cursor."""
        if consumer.hold:
            self._leave_holders(consumer)
            consumer.cursor = cursor
            self._join_holders(consumer)
        else:
            consumer.cursor = cursor

    def remove(self, name: str) -> None:
        """Forget a consumer, if there is one."""
        consumer = self.by_name.pop(name, None)
        if consumer is not None:
            self._leave_holders(consumer)

    def _join_holders(self, consumer: Consumer) -> None:
        if consumer.hold:
            group = self._holders.setdefault(consumer.hold_max_ms, SortedList())
            group.add((consumer.cursor, consumer.name))

    def _leave_holders(self, consumer: Consumer) -> None:
        group = self._holders.get(consumer.hold_max_ms)
        if consumer.hold and group is not None:
            group.remove((consumer.cursor, consumer.name))
            if not group:
                del self._holders[consumer.hold_max_ms]

    # --- Holds -------------------------------------------------------------------------------------------

    @property
    def has_holders(self) -> bool:
        """Whether any consumer holds records back."""
        return bool(self._holders)

    def held_floor(self, log: TopicLog, since_ms: int) -> int:
        """The first seq that may not be evicted: it is held, and not for too long.

        A hold of `n` ms has let go what is older than `since_ms` - n.
        """
        return min(
            (self._group_floor(log, since_ms, hold_max_ms) for hold_max_ms in self._holders),
            default=log.next_seq,
        )

    def _group_floor(self, log: TopicLog, since_ms: int, hold_max_ms: int) -> int:
        cursor = self._holders[hold_max_ms][0][0]
        return max(cursor + 1, log.find_ts(max(0, since_ms - hold_max_ms), log.next_seq))

    def held_by(self, log: TopicLog, since_ms: int, floor: int) -> list[str]:
        """Some consumers because of which not everything below `floor` may be evicted; sorted."""
        return sorted(self._holding(log, since_ms, floor))[:HELD_BY_MAX]

    def _holding(self, log: TopicLog, since_ms: int, floor: int) -> Iterator[str]:
        for hold_max_ms, group in self._holders.items():
            if self._group_floor(log, since_ms, hold_max_ms) < floor:
                for cursor, name in group[:HELD_BY_MAX]:
                    if cursor + 1 < floor:
                        yield name

    def longest_hold_ms(self, seq: int) -> int:
        """How long the record `seq` is held at most, 0 if it is not."""
        return max((hold_ms for hold_ms, group in self._holders.items() if group[0][0] < seq), default=0)


# --- The log ---------------------------------------------------------------------------------------------


def enlist(core: Core, topic: Topic) -> None:
    """Count the consumers of a topic that is in the table."""
    if topic.consumers is not None:
        core.totals.consumed[topic.topic_id] = topic
        core.totals.consumers += len(topic.consumers)


def delist(core: Core, topic: Topic) -> None:
    """Count them no more."""
    if core.totals.consumed.pop(topic.topic_id, None) is not None and topic.consumers is not None:
        core.totals.consumers -= len(topic.consumers)


def log_consumers(core: Core, topic: Topic, consumers: list[Consumer]) -> Commit:
    """Log consumers of a topic that is about to be logged."""
    now_ms = core.now_ms()
    entries = ((0, now_ms, encode(consumer.record())) for consumer in consumers)
    return core.log_state(topic, FrameType.CONSUMER, entries)


def stored_consumers(topic: Topic) -> Iterator[list[Consumer]]:
    """The consumers of a topic as a snapshot stores them, some at a time.

    Those of an ephemeral one end with the process.
    """
    if topic.consumers is None or (topic.durability is Durability.EPHEMERAL and not topic.storage.changes):
        return iter(())
    return topic.consumers.slices()


def restore_consumers(topic: Topic, records: list[ConsumerRecord]) -> None:
    """Apply the consumers of a snapshot."""
    if records:
        topic.consumers = ConsumerTable()
        for record in records:
            topic.consumers.put(record)


def apply_consumer(topic: Topic, frame: LogFrame) -> None:
    """Replay one entry."""
    table = topic.consumers or ConsumerTable()
    if frame.type == FrameType.CONSUMER:
        table.put(decode(frame.data, ConsumerRecord))
    elif frame.type == FrameType.CONSUMER_DELETE:
        table.remove(decode(frame.data, ConsumerDelete).name)
    else:
        entry = decode(frame.data, ConsumerCommit)
        consumer = table.by_name.get(entry.name)
        if consumer is not None:  # otherwise it was deleted later, and the snapshot knows that already
            table.move(consumer, entry.cursor)
            consumer.committed_ts, consumer.expires_ts = entry.committed_ts, entry.expires_ts
    topic.consumers = table if len(table) else None


def clear_volatile_consumers(topic: Topic) -> None:
    """Forget the consumers of a topic that is ephemeral now."""
    if topic.durability is Durability.EPHEMERAL:
        topic.consumers = None


def finish_consumer_replay(topic: Topic) -> None:
    """End a replay: a cursor is never behind the head, whatever was lost."""
    clear_volatile_consumers(topic)
    if topic.consumers is not None:
        for consumer in topic.consumers.by_name.values():
            if consumer.cursor > topic.visible:
                topic.consumers.move(consumer, topic.visible)
