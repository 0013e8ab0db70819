"""What damage in the log means for topics: which seqs may have been assigned in the bytes that are lost.

Owns the rule that no seq of a lost record is ever assigned again. Where a sound frame follows, its seq says
exactly what is missing. Where none does, the topic may have lost as many records as fit into the lost bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from everlog.api_types import Durability
from everlog.errors import Corrupt
from everlog.native.topics.log import TopicLog, next_live
from everlog.topics.storage.control import Damage

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.topic import Topic

_PROMISED: Final = (Durability.DISK, Durability.FSYNC)
HOLES_MAX: Final = 50_000_000
"""Seqs that are skipped in all topics together; each costs some 33 bytes of memory."""
_HOLES_HELD: Final = 8192
"""More in a row cost nothing: a row of holes is at most two blocks of an index."""


class _Loss(NamedTuple):
    """A topic may have lost `records` at this point, where its log went up to before `next_seq`."""

    next_seq: int
    records: int


class LogLosses:
    """The losses of one recovery. `logs` are those that replay fills, by topic id."""

    def __init__(self, core: Core, logs: dict[int, TopicLog]) -> None:
        self._core = core
        self._logs = logs
        self._shard_dirs: set[str] = set()
        self._damages: list[Damage] = []
        self._losses: dict[int, _Loss] = {}
        self._gaps: dict[int, list[tuple[int, int]]] = {}
        self._holes = 0

    def note(self, damage: Damage, shard_dir: str) -> None:
        """Replay has reached lost bytes."""
        core = self._core
        self._shard_dirs.add(shard_dir)
        self._damages.append(damage)
        # The frames of new topics and routers may be among what is lost.
        core.next_topic_id += damage.records
        core.next_epoch += damage.records
        core.routers.next_id += damage.records
        for topic_id, log in self._logs.items():
            if self._is_of_shard(topic_id, damage):
                loss = self._losses.get(topic_id)
                earlier = loss.records if loss is not None and loss.next_seq == log.next_seq else 0
                self._losses[topic_id] = _Loss(log.next_seq, earlier + damage.records)

    def note_gap(self, shard_dir: str | None, topic_id: int, first_seq: int, last_seq: int) -> None:
        """Replay has passed over these seqs of a topic; behind damage that is what is lost.

        Without a shard they are those of copies: the entry that says where they went may be in any.
        """
        if shard_dir in self._shard_dirs or (shard_dir is None and self._damages):
            self._gaps.setdefault(topic_id, []).append((first_seq, last_seq))

    def _is_of_shard(self, topic_id: int, damage: Damage) -> bool:
        return damage.shards == 0 or self._core.shard_of(topic_id, damage.shards) == damage.shard

    def reach(self, topic: Topic) -> bool:
        """Whether records of a topic may be lost."""
        return any(self._is_of_shard(topic.topic_id, damage) for damage in self._damages)

    def reach_promised_topics(self) -> bool:
        """Whether acknowledged records may be lost whose class promises that they stay."""
        topics = self._core.topics.values()
        return not topics or any(topic.durability in _PROMISED and self.reach(topic) for topic in topics)

    def place_tombstones(self, topic: Topic) -> None:
        """Put tombstones where records of a topic are or may be lost, and assign none of their seqs again."""
        for first_seq, last_seq in self._gaps.get(topic.topic_id, ()):
            self._note_missing(topic, first_seq, last_seq)
        loss = self._losses.get(topic.topic_id)
        log = self._logs.get(topic.topic_id, topic.log)
        if loss is not None and loss.next_seq == log.next_seq and topic.durability in _PROMISED:
            self._skip(topic, loss.records)

    def skip_lost_copies(self) -> None:
        """Assign no seq again that copies of a router may have had whose entry in the log is lost."""
        for router in self._core.routers if self._damages else ():
            if self.reach(router.source) and router.dest.durability in _PROMISED:
                self._skip(router.dest, max(0, router.source.visible - router.cursor))
                router.dest.visible = router.dest.log.next_seq - 1

    def _note_missing(self, topic: Topic, first_seq: int, last_seq: int) -> None:
        """Put tombstones where no record is; copies of routers may be there in the meantime."""
        log = topic.log
        at = max(first_seq, log.base_seq)
        while at <= last_seq:
            live = min(next_live(log, at), last_seq + 1)
            if live > at:
                topic.note_corrupt(at, live - 1)
            at = live
            while at <= last_seq and log.is_live(at):
                at += 1

    def _skip(self, topic: Topic, count: int) -> None:
        if not count:
            return
        self._holes += min(count, _HOLES_HELD)
        if self._holes > HOLES_MAX:
            raise Corrupt(
                f"too much of the log is lost: more than {HOLES_MAX} seqs would have to be skipped; restore "
                f"the directory from a backup"
            )
        log = topic.log
        topic.note_corrupt(log.next_seq, log.next_seq + count - 1)
        log.push_holes(count, log.last_ts)
