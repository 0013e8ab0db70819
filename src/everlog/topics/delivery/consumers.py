"""Consumers: stored cursors with a name, an owner, a lag and a hold.

Owns what may be done with one and what is reported about it. The state is in `consumer_table`; records are
read as by any reader, and the cursor moves only by `commit` and `reset`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from everlog.api_types import ConsumerAtRisk, ConsumerState, Durability
from everlog.clock import NS_PER_S
from everlog.errors import ConsumerNotFound, CursorBackwards, Fenced, InvalidRequest, LimitReached
from everlog.native.topics.log import next_live
from everlog.topics import catalogue
from everlog.topics.commits import COMMITTED, Commit, together
from everlog.topics.config import TOPIC_NAME, U64_MAX
from everlog.topics.delivery.consumer_table import Consumer, ConsumerTable
from everlog.topics.due_work import schedule
from everlog.topics.filters import Filter, compile_filter
from everlog.topics.retention import floor_commit, sweep
from everlog.topics.storage.control import ConsumerCommit, ConsumerDelete, ConsumerRecord, encode
from everlog.topics.storage.layout import FrameType

if TYPE_CHECKING:
    from everlog.topics.core import Core
    from everlog.topics.topic import Topic

HOLD_MAX_MS: Final = 86_400_000
OWNER_BYTES_MAX: Final = 128
OWNER_TTL_MS: Final = 30_000
OWNER_TTL_RANGE_MS: Final = (1000, 3_600_000)
_AT_RISK_SHARE: Final = 10
_WARN_INTERVAL_NS: Final = NS_PER_S
_WARN_COST_MAX: Final = 5000  # consumers looked at in one step: two milliseconds
_WARN_COST: Final = 20  # a line of the log costs as much as looking at so many consumers
log = logging.getLogger("everlog.topics")


class Start(NamedTuple):
    """Where a cursor is put: at a word, before the record `seq`, or before the first one of a time."""

    word: Literal["earliest", "latest"] = "earliest"
    seq: int | None = None
    time_ms: int | None = None


class ConsumerPut(NamedTuple):
    """Answer of `put`."""

    created: bool
    state: ConsumerState
    commit: Commit


class ConsumerChange(NamedTuple):
    """Answer of `show` and `commit`."""

    state: ConsumerState
    commit: Commit


class ConsumerReset(NamedTuple):
    """Answer of `reset`; `records` is how many live ones lie between the two cursors."""

    cursor_before: int
    cursor: int
    records: int
    commit: Commit


class ConsumerAcquired(NamedTuple):
    """Answer of `acquire`."""

    owner_epoch: int
    expires_ts: int
    commit: Commit


class ConsumerDeleted(NamedTuple):
    """Answer of `delete`."""

    deleted: bool
    commit: Commit


class ConsumerRead(NamedTuple):
    """How a consumer reads next: behind which seq, without which nodes, and which records."""

    cursor: int
    nodes: tuple[str, ...]
    filter: Filter | None


class Consumers:
    """The consumers of all topics of an engine. `forward` copies to a topic what its routers have pending."""

    def __init__(
        self, core: Core, check_open: Callable[[], None], forward: Callable[[Topic], object]
    ) -> None:
        self._core = core
        self._check_open = check_open
        self._forward = forward
        self._warned_ns = core.clock.monotonic_ns() - _WARN_INTERVAL_NS
        self._look: Iterator[bool] | None = None
        self.on_at_risk: Callable[[ConsumerAtRisk], None] | None = None
        """Called when `warn` logs that a consumer is at risk."""

    # --- Create, look, delete ----------------------------------------------------------------------------

    def put(
        self,
        topic_name: str,
        name: str,
        start: Start | None = None,
        *,
        hold: bool = False,
        hold_max_ms: int = HOLD_MAX_MS,
        filter: bytes | str | msgspec.Raw = b"null",
        node: str | Sequence[str] = (),
    ) -> ConsumerPut:
        """Create a consumer at `start`, or replace everything but the cursor and owner of an existing one."""
        topic = self._topic(topic_name)
        _check_range("hold_max_ms", hold_max_ms, 0, U64_MAX)
        selection = compile_filter(filter)
        table = topic.consumers
        known = None if table is None else table.by_name.get(name)
        if known is None:
            self._check_new(name)
        record = ConsumerRecord(
            name=name,
            cursor=self._position(topic, start or Start()) if known is None else known.cursor,
            hold=hold,
            hold_max_ms=hold_max_ms,
            filter="" if selection is None else selection.text,
            nodes=[node] if isinstance(node, str) else list(node),
            owner="" if known is None else known.owner,
            owner_epoch=0 if known is None else known.owner_epoch,
            owner_ttl_ms=0 if known is None else known.owner_ttl_ms,
            expires_ts=0 if known is None else known.expires_ts,
            created_ts=self._core.now_ms() if known is None else known.created_ts,
            committed_ts=None if known is None else known.committed_ts,
        )
        before = None if known is None else known.record()
        commit = self._log(
            topic, FrameType.CONSUMER, encode(record), lambda: self._restore(topic, name, before)
        )
        consumer = self._store(topic, record)
        consumer.commit = commit
        return ConsumerPut(known is None, self._state(topic, consumer), self._shown_when(topic, consumer))

    def show(self, topic_name: str, name: str) -> ConsumerChange:
        """Report a consumer."""
        topic = self._topic(topic_name)
        consumer = _find(topic, name)
        return ConsumerChange(self._state(topic, consumer), self._shown_when(topic, consumer))

    def page(
        self, topic_name: str, after: str | None = None, limit: int = 100
    ) -> tuple[list[ConsumerState], Commit]:
        """Report consumers of a topic in byte order of their names, beginning behind the name `after`."""
        topic = self._topic(topic_name)
        if topic.consumers is None:
            return [], COMMITTED
        by_name = topic.consumers.by_name
        at = 0 if after is None else by_name.bisect_right(after)
        listed = [by_name[name] for name in by_name.islice(at, at + limit)]
        return [self._state(topic, each) for each in listed], together(
            self._shown_when(topic, each) for each in listed
        )

    def delete(self, topic_name: str, name: str) -> ConsumerDeleted:
        """Delete a consumer; an absent one is no error."""
        topic = self._topic(topic_name)
        consumer = None if topic.consumers is None else topic.consumers.by_name.get(name)
        if consumer is None or topic.consumers is None:
            return ConsumerDeleted(False, COMMITTED)
        before = consumer.record()
        commit = self._log(
            topic,
            FrameType.CONSUMER_DELETE,
            encode(ConsumerDelete(name)),
            lambda: self._restore(topic, name, before),
        )
        self._remove(topic, name)
        return ConsumerDeleted(True, commit)

    def has(self, topic_name: str, name: str) -> bool:
        """Whether a topic has a consumer of this name."""
        topic = self._core.topics.get(topic_name)
        return topic is not None and topic.consumers is not None and name in topic.consumers.by_name

    @property
    def count(self) -> int:
        """How many consumers there are."""
        return self._core.totals.consumers

    def everywhere(
        self, after: tuple[int, str] | None, limit: int, is_shown: Callable[[str], bool]
    ) -> tuple[list[ConsumerState], tuple[int, str] | None, Commit]:
        """Report consumers of all topics that are shown: oldest topic first, then by name.

        Begins behind a place, and returns the place of the last one, None if no more follow.
        """
        consumed, now_ms = self._core.totals.consumed, self._core.now_ms()
        first_id, name = (0, None) if after is None else after
        states: list[ConsumerState] = []
        commits: list[Commit] = []
        place: tuple[int, str] | None = None
        for topic_id in sorted(number for number in consumed if number >= first_id):
            topic = consumed[topic_id]
            if topic.consumers is None or not is_shown(topic.name):
                continue
            sweep(self._core, topic, now_ms)
            by_name = topic.consumers.by_name
            at = by_name.bisect_right(name) if topic_id == first_id and name is not None else 0
            for each in by_name.islice(at):
                if len(states) == limit:
                    return states, place, together(commits)
                states.append(self._state(topic, by_name[each]))
                commits.append(self._shown_when(topic, by_name[each]))
                place = (topic_id, each)
        return states, None, together(commits)

    def lags(self, limit: int, is_shown: Callable[[str], bool]) -> tuple[list[ConsumerState], int]:
        """Report up to `limit` consumers of topics that are shown, and how many of all are at risk."""
        states: list[ConsumerState] = []
        at_risk = 0
        now_ms = self._core.now_ms()
        for topic in self._core.totals.consumed.values():
            if topic.consumers is None or not is_shown(topic.name):
                continue
            sweep(self._core, topic, now_ms)
            if topic.evict_floor <= 1 and len(states) >= limit:
                continue  # nothing was evicted
            for consumer in topic.consumers.by_name.values():
                at_risk += _may_lose(topic, consumer.cursor)
                if len(states) < limit:
                    states.append(self._state(topic, consumer))
        return states, at_risk

    def warn(self) -> None:
        """Log which consumers are about to lose records, or have: each once, until it is safe again.

        Only topics that have evicted since the last time are looked at, once a second, and some hundred
        consumers at a time: see `is_looking`.
        """
        if self._look is None:
            now_ns = self._core.clock.monotonic_ns()
            if now_ns < self._warned_ns + _WARN_INTERVAL_NS:
                return
            self._warned_ns = now_ns
            self._look = self._look_for_risks()
        if next(self._look, None) is None:
            self._look = None

    @property
    def is_looking(self) -> bool:
        """Whether `warn` has more to look at."""
        return self._look is not None

    def _look_for_risks(self) -> Iterator[bool]:
        """Look at topics that have evicted; yields between two steps."""
        evicted = self._core.totals.evicted
        topics = list(evicted.values())
        evicted.clear()
        looked_at = 0
        for topic in topics:
            for consumers in () if topic.consumers is None else topic.consumers.slices():
                if topic.deleted:
                    break
                looked_at += sum(self._warn_of(topic, consumer) for consumer in consumers)
                if looked_at >= _WARN_COST_MAX:
                    looked_at = 0
                    yield True

    def _warn_of(self, topic: Topic, consumer: Consumer) -> int:
        """Log that a consumer is about to lose records, unless that was said; returns what it cost."""
        may_lose = _may_lose(topic, consumer.cursor)
        is_new = may_lose and not consumer.is_warned
        consumer.is_warned = may_lose
        if not is_new:
            return 1
        log.warning(
            "consumer %r of topic %r is %s: its cursor is %d, records below %d are evicted, the "
            "head is %d; let it catch up, raise the caps, or give it a hold",
            consumer.name,
            topic.name,
            "losing records" if consumer.cursor + 1 < topic.evict_floor else "about to lose records",
            consumer.cursor,
            topic.evict_floor,
            topic.visible,
        )
        if self.on_at_risk is not None:
            self.on_at_risk(_risk_of(topic, consumer))
        return _WARN_COST

    def risk(self, topic_name: str, name: str) -> ConsumerAtRisk | None:
        """What a consumer is about to lose, or has lost; None if it is safe or absent."""
        topic = self._core.topics.get(topic_name)
        table = None if topic is None else topic.consumers
        consumer = None if table is None else table.by_name.get(name)
        if topic is None or consumer is None or not _may_lose(topic, consumer.cursor):
            return None
        return _risk_of(topic, consumer)

    # --- Move --------------------------------------------------------------------------------------------

    def commit(self, topic_name: str, name: str, seq: int, owner_epoch: int | None = None) -> ConsumerChange:
        """Note that everything up to `seq` is processed."""
        topic = self._topic(topic_name)
        consumer = _find(topic, name)
        self._check_owner(consumer, owner_epoch)
        if not 0 <= seq <= topic.visible:
            raise InvalidRequest(f"a commit of seq {seq}; the head of {topic_name!r} is {topic.visible}")
        if seq < consumer.cursor:
            raise CursorBackwards(
                f"a commit of seq {seq} to consumer {name!r}, which has committed {consumer.cursor}; use a "
                f"reset to go back",
                consumer.cursor,
                seq,
            )
        if seq > consumer.cursor:
            self._move(topic, consumer, seq)
        return ConsumerChange(self._state(topic, consumer), self._shown_when(topic, consumer))

    def _move(self, topic: Topic, consumer: Consumer, cursor: int) -> None:
        name, now_ms = consumer.name, self._core.now_ms()
        before = (consumer.cursor, consumer.committed_ts)

        def undo() -> None:
            table = topic.consumers
            if table is not None and table.by_name.get(name) is consumer:
                table.move(consumer, before[0])
                consumer.committed_ts = before[1]

        entry = ConsumerCommit(name, cursor, now_ms, consumer.expires_ts)
        commit = self._log(topic, FrameType.CONSUMER_COMMIT, encode(entry), undo)
        if topic.consumers is not None:
            topic.consumers.move(consumer, cursor)
        consumer.committed_ts, consumer.commit = now_ms, commit
        if consumer.hold:
            self._released(topic, now_ms)

    def reset(self, topic_name: str, name: str, to: Start, *, dry_run: bool = False) -> ConsumerReset:
        """Put the cursor anywhere; with `dry_run` only say where and over how many records."""
        topic = self._topic(topic_name)
        consumer = _find(topic, name)
        before, cursor = consumer.cursor, self._position(topic, to)
        low, high = min(before, cursor) + 1, max(before, cursor) + 1
        records = _live_in(topic, low, high)
        if dry_run or cursor == before:
            return ConsumerReset(before, cursor, records, self._shown_when(topic, consumer))
        record = consumer.record()
        self._change(topic, consumer, msgspec.structs.replace(record, cursor=cursor))
        if consumer.hold:
            self._released(topic, self._core.now_ms())
        return ConsumerReset(before, cursor, records, self._shown_when(topic, consumer))

    def acquire(self, topic_name: str, name: str, owner: str, ttl_ms: int = OWNER_TTL_MS) -> ConsumerAcquired:
        """Make `owner` the owner: requests with an earlier epoch, or with none, are refused from now on."""
        topic = self._topic(topic_name)
        consumer = _find(topic, name)
        size = len(owner.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= OWNER_BYTES_MAX:
            raise InvalidRequest(f"owner has {size} bytes; it must have 1 to {OWNER_BYTES_MAX}")
        _check_range("ttl_ms", ttl_ms, *OWNER_TTL_RANGE_MS)
        changed = msgspec.structs.replace(
            consumer.record(),
            owner=owner,
            owner_epoch=consumer.owner_epoch + 1,
            owner_ttl_ms=ttl_ms,
            expires_ts=self._core.now_ms() + ttl_ms,
        )
        self._change(topic, consumer, changed)
        return ConsumerAcquired(consumer.owner_epoch, consumer.expires_ts, self._shown_when(topic, consumer))

    def reading(self, topic_name: str, name: str, owner_epoch: int | None = None) -> ConsumerRead:
        """How the consumer reads next, if this owner may; that renews the ownership."""
        self._check_open()
        consumer = _find(catalogue.find(self._core, topic_name), name)
        self._check_owner(consumer, owner_epoch)
        return self.position(topic_name, name)

    def position(self, topic_name: str, name: str) -> ConsumerRead:
        """Where the consumer is; asks for no owner."""
        consumer = _find(catalogue.find(self._core, topic_name), name)
        if consumer.filter and consumer.selection is None:
            consumer.selection = compile_filter(consumer.filter)
        return ConsumerRead(consumer.cursor, consumer.nodes, consumer.selection)

    # --- Rules -------------------------------------------------------------------------------------------

    def _check_new(self, name: str) -> None:
        if TOPIC_NAME.fullmatch(name) is None:
            raise InvalidRequest(
                f"consumer name {name!r} is not allowed: 1 to 255 of A-Z a-z 0-9 . _ : -, a letter or digit "
                f"first"
            )
        limit = self._core.settings.max_consumers
        if limit and self._core.totals.consumers >= limit:
            raise LimitReached(
                f"there are {self._core.totals.consumers} consumers, as many as max_consumers allows; "
                f"delete some",
                "max_consumers",
                limit,
            )

    def _check_owner(self, consumer: Consumer, owner_epoch: int | None) -> None:
        if (owner_epoch or 0) != consumer.owner_epoch:
            given = "no owner_epoch" if owner_epoch is None else f"owner_epoch {owner_epoch}"
            raise Fenced(
                f"{given} for consumer {consumer.name!r}, which has epoch {consumer.owner_epoch}; acquire it "
                f"again, or stop: another owner has it",
                consumer.owner_epoch,
            )
        if consumer.owner_epoch:
            consumer.expires_ts = self._core.now_ms() + consumer.owner_ttl_ms

    @staticmethod
    def _position(topic: Topic, start: Start) -> int:
        """The cursor that a start stands for."""
        if start.seq is not None:
            _check_range("seq", start.seq, 0, topic.visible + 1)
            return max(start.seq - 1, 0)
        if start.time_ms is not None:
            _check_range("time_ms", start.time_ms, 0, U64_MAX)
            return topic.log.find_ts(start.time_ms, topic.visible + 1) - 1
        return topic.visible if start.word == "latest" else topic.earliest_seq - 1

    # --- State -------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        """The topic, brought up to date: lags are exact, and no cursor is put behind what is gone."""
        self._check_open()
        topic = catalogue.find(self._core, name)
        if topic.routes.feeders:
            self._forward(topic)
        sweep(self._core, topic, self._core.now_ms())
        return topic

    def _state(self, topic: Topic, consumer: Consumer) -> ConsumerState:
        now_ms, cursor, head_seq = self._core.now_ms(), consumer.cursor, topic.visible
        oldest = next_live(topic.log, cursor + 1) if cursor < head_seq else head_seq + 1
        is_behind = oldest <= head_seq
        return ConsumerState(
            name=consumer.name,
            topic=topic.name,
            cursor=cursor,
            next_seq=cursor + 1,
            head_seq=head_seq,
            lag_records=_live_in(topic, oldest, head_seq + 1) if is_behind else 0,
            lag_ms=max(0, now_ms - topic.log.timestamp(oldest)) if is_behind else 0,
            at_risk=_is_at_risk(topic, cursor),
            hold=consumer.hold,
            hold_max_ms=consumer.hold_max_ms,
            owner=consumer.owner if consumer.owner_epoch and now_ms <= consumer.expires_ts else None,
            owner_epoch=consumer.owner_epoch,
            created_ts=consumer.created_ts,
            committed_ts=consumer.committed_ts,
            filter=msgspec.json.decode(consumer.filter) if consumer.filter else None,
            node=list(consumer.nodes),
        )

    @staticmethod
    def _shown_when(topic: Topic, consumer: Consumer) -> Commit:
        """What an answer about a consumer waits for."""
        if consumer.commit.done and topic.floors.commit is None:
            return consumer.commit
        return together((consumer.commit, floor_commit(topic)))

    def _log(self, topic: Topic, kind: FrameType, payload: bytes, undo: Callable[[], None]) -> Commit:
        """Log a change as the class of the topic says; the caller makes it, `undo` takes it back."""
        topic.snapshot_record = None
        if not self._core.is_logged(topic) and not (self._core.shards and topic.storage.changes):
            return COMMITTED
        needs_sync = topic.durability is Durability.FSYNC or topic.storage.create_pending
        return self._core.log_change(topic, kind, payload, undo=undo, needs_sync=needs_sync)

    def _change(self, topic: Topic, consumer: Consumer, record: ConsumerRecord) -> None:
        before = consumer.record()
        commit = self._log(
            topic,
            FrameType.CONSUMER,
            encode(record),
            lambda: self._restore(topic, record.name, before),
        )
        self._store(topic, record).commit = commit

    def _store(self, topic: Topic, record: ConsumerRecord) -> Consumer:
        totals = topic.totals
        if topic.consumers is None:
            topic.consumers = ConsumerTable()
            totals.consumed[topic.topic_id] = topic
        before = len(topic.consumers)
        consumer = topic.consumers.put(record)
        totals.consumers += len(topic.consumers) - before
        self._released(topic, self._core.now_ms())
        return consumer

    def _remove(self, topic: Topic, name: str) -> None:
        table, totals = topic.consumers, topic.totals
        if table is None or name not in table.by_name:
            return
        table.remove(name)
        totals.consumers -= 1
        self._released(topic, self._core.now_ms())
        if not len(table):
            topic.consumers = None
            totals.consumed.pop(topic.topic_id, None)

    def _restore(self, topic: Topic, name: str, before: ConsumerRecord | None) -> None:
        """Take a change back that could not be logged."""
        topic.snapshot_record = None
        if topic.deleted:
            return
        if before is None:
            self._remove(topic, name)
        else:
            self._store(topic, before)

    def _released(self, topic: Topic, now_ms: int) -> None:
        """Look soon at a topic of which less may be held than before."""
        if topic.floors.caps_due:
            self._core.totals.due.add(topic, now_ms)
        elif topic.config.ttl_ms:
            schedule(self._core, topic)


def _find(topic: Topic, name: str) -> Consumer:
    consumer = None if topic.consumers is None else topic.consumers.by_name.get(name)
    if consumer is None:
        raise ConsumerNotFound(
            f"topic {topic.name!r} has no consumer {name!r}; create it or check the name", topic.name, name
        )
    return consumer


def _live_in(topic: Topic, first_seq: int, end_seq: int) -> int:
    """Live records from `first_seq` up to before `end_seq`."""
    first_seq = max(first_seq, topic.log.base_seq)
    return topic.log.live_in(first_seq, end_seq)[0] if first_seq < end_seq else 0


def _is_at_risk(topic: Topic, cursor: int) -> bool:
    """Whether eviction has reached the cursor, or is within a tenth of what is left to the head."""
    floor, head_seq = topic.evict_floor, topic.visible
    return floor > 1 and (cursor < floor or (cursor - floor) * _AT_RISK_SHARE < head_seq - floor)


def _may_lose(topic: Topic, cursor: int) -> bool:
    """Whether that is worth a warning: a consumer at the head has lost nothing, whatever is evicted."""
    return cursor < topic.visible and _is_at_risk(topic, cursor)


def _risk_of(topic: Topic, consumer: Consumer) -> ConsumerAtRisk:
    return ConsumerAtRisk(topic.name, consumer.name, consumer.cursor, topic.evict_floor, topic.visible)


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{name} is {value}; it must be from {least} to {most}")
