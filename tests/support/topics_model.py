"""A topic as plain lists: the oracle that says what an engine must answer. Knows no file and no log.

Slow and obvious on purpose: every rule of a topic is one loop over the list of its live records.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everlog.errors import RecordTooLarge, TopicFull
from everlog.topics import NewRecord, TopicConfig

READ_LIMIT = (256, 1000)  # default, maximum
READ_BYTES = (1 << 20, 8 << 20)
Match = tuple[str, str] | None  # ("Eq", tag) or ("Glob", "prefix*")


def compact(value: object) -> bytes:
    """JSON as it is stored: no blanks between tokens."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Draft(NamedTuple):
    """A record as a writer means it; `spaced` sends it with blanks and line breaks between tokens."""

    value: object
    meta: dict[str, Any] | None = None
    tag: str | None = None
    node: str | None = None
    spaced: bool = False

    def sent(self) -> NewRecord:
        """The record as it is handed to the engine."""
        text = (
            (lambda value: json.dumps(value, indent=2, ensure_ascii=False).encode())
            if self.spaced
            else compact
        )
        return NewRecord(
            text(self.value), self.tag, self.node, None if self.meta is None else text(self.meta)
        )


class ModelRecord(NamedTuple):
    """A stored record."""

    seq: int
    ts: int
    node: str | None
    tag: str | None
    meta: bytes | None
    data: bytes

    @property
    def size(self) -> int:
        """The bytes that count against caps and batch budgets."""
        return len(self.data) + len(self.meta or b"")

    def text(self, include_tags: bool, include_meta: bool) -> bytes:
        """The record as a reader gets it."""
        parts = [f'"$seq":{self.seq},"$ts":{self.ts}'.encode()]
        if self.node:
            parts.append(b'"$node":' + compact(self.node))
        if self.tag and include_tags:
            parts.append(b'"$tag":' + compact(self.tag))
        if self.meta is not None and include_meta:
            parts.append(b'"meta":' + self.meta)
        return b"{" + b",".join([*parts, b'"data":' + self.data]) + b"}"


class ModelKey(NamedTuple):
    """What an idempotency key stands for."""

    first_seq: int
    length: int
    ts: int


class ModelTombstone(NamedTuple):
    """The gap that a reader is told of."""

    gap_from: int
    gap_to: int
    reason: str


class ModelRead(NamedTuple):
    """What a read must give: these records, this gap, and a cursor within these two bounds."""

    records: list[ModelRecord]
    tombstone: ModelTombstone | None
    next_low: int
    next_high: int

    def cut(self, delivered: int) -> ModelRead:
        """The same read, stopped behind so many records."""
        records, rest = self.records[:delivered], self.records[delivered:]
        next_high = rest[0].seq - 1 if rest else self.next_high
        return ModelRead(records, self.tombstone, records[-1].seq, next_high)


@dataclass
class ModelTopic:
    """One topic from its creation to its deletion. `records` are the live ones, in the order of seq."""

    config: TopicConfig
    epoch: int = 0  # 0: not known yet
    records: list[ModelRecord] = field(default_factory=list)
    head: int = 0
    cap_floor: int = 1  # floors: the first seq that was not lost
    ttl_floor: int = 1
    last_ts: int = 0
    keys: dict[str, ModelKey] = field(default_factory=dict)
    deleted: set[int] | None = field(default_factory=set)  # None: not known
    unsure: set[int] = field(default_factory=set)  # of the deleted: perhaps a crash took them before that

    def clone(self) -> ModelTopic:
        """A copy that can be changed on its own."""
        return ModelTopic(
            self.config,
            self.epoch,
            list(self.records),
            self.head,
            self.cap_floor,
            self.ttl_floor,
            self.last_ts,
            dict(self.keys),
            None if self.deleted is None else set(self.deleted),
            set(self.unsure),
        )

    @property
    def durability(self) -> str:
        """The resolved class."""
        return str(self.config.durability)

    @property
    def earliest(self) -> int:
        """The first live seq, one past the head if there is none."""
        return self.records[0].seq if self.records else self.head + 1

    @property
    def evict_floor(self) -> int:
        """The only trigger of tombstones."""
        return max(self.cap_floor, self.ttl_floor)

    @property
    def bytes(self) -> int:
        """Bytes of the live records."""
        return sum(record.size for record in self.records)

    def sweep(self, now_ms: int) -> bool:
        """Lose what is older than the topic allows; True if that was anything."""
        before = self.ttl_floor
        while self.config.ttl_ms and self.records and now_ms - self.records[0].ts > self.config.ttl_ms:
            self.ttl_floor = self.records.pop(0).seq + 1
        return self.ttl_floor != before

    def is_over(self, count: int, size: int) -> bool:
        """Whether this much passes a cap."""
        caps = self.config
        return bool(
            (caps.cap_records and count > caps.cap_records) or (caps.cap_bytes and size > caps.cap_bytes)
        )

    def evict(self) -> None:
        """Lose the oldest records until the caps hold; a topic that refuses evicts nothing."""
        while self.config.discard == "old" and self.is_over(len(self.records), self.bytes):
            self.cap_floor = self.records.pop(0).seq + 1

    def evict_below(self, floor: int) -> None:
        """Lose everything below `floor` to the cap."""
        self.records = [record for record in self.records if record.seq >= floor]
        self.cap_floor = max(self.cap_floor, floor)

    def configure(self, config: TopicConfig, logged_ms: int, now_ms: int) -> None:
        """Replace the configuration; the old one holds until the change is logged."""
        self.sweep(logged_ms)
        self.config = config
        self.sweep(now_ms)
        self.evict()

    def remembered(self, key: str | None, now_ms: int) -> ModelKey | None:
        """The batch of a repeated key; keys whose window is over are forgotten for good."""
        window_ms = self.config.idempotency_window_ms
        self.keys = {name: known for name, known in self.keys.items() if now_ms - known.ts <= window_ms}
        return None if key is None else self.keys.get(key)

    def stored(self, drafts: list[Draft], first_seq: int, now_ms: int, node: str | None) -> list[ModelRecord]:
        """The records that a batch becomes."""
        ts = max(self.last_ts, now_ms)
        return [
            ModelRecord(
                first_seq + i,
                ts,
                (node if draft.node is None else draft.node) or None,
                draft.tag or None,
                None if draft.meta is None else compact(draft.meta),
                compact(draft.value),
            )
            for i, draft in enumerate(drafts)
        ]

    def check_room(self, batch: list[ModelRecord]) -> None:
        """Raise what a topic that refuses must raise."""
        if self.config.discard == "reject":
            size = sum(record.size for record in batch)
            if self.is_over(len(batch), size):
                raise RecordTooLarge("the batch is larger than the whole cap")
            if self.is_over(len(self.records) + len(batch), self.bytes + size):
                raise TopicFull("no room")

    def append(self, batch: list[ModelRecord], now_ms: int, key: str | None = None) -> None:
        """Store a batch; seqs between the head and it are holes."""
        self.sweep(now_ms)
        self.records += batch
        self.head = batch[-1].seq
        self.last_ts = batch[-1].ts
        if key is not None:
            self.keys[key] = ModelKey(batch[0].seq, len(batch), batch[0].ts)
        self.evict()

    def delete(self, before_seq: int | None, match: Match, now_ms: int) -> int:
        """Remove for good; returns how many."""
        self.sweep(now_ms)
        return self.remove({record.seq for record in self.records if is_hit(record, before_seq, match)})

    def remove(self, seqs: set[int]) -> int:
        """Remove these records, as far as they are alive; returns how many were."""
        removed = {record.seq for record in self.records if record.seq in seqs}
        self.records = [record for record in self.records if record.seq not in removed]
        if self.deleted is not None:
            self.deleted |= removed
        return len(removed)

    def tombstone(self, from_seq: int) -> ModelTombstone | None:
        """The gap that a reader at `from_seq` must be told of."""
        if from_seq > self.head:
            return ModelTombstone(1, self.head, "recreated")
        if from_seq + 1 >= self.evict_floor:
            return None
        reasons = [
            reason
            for reason, floor in (("cap", self.cap_floor), ("ttl", self.ttl_floor))
            if from_seq + 1 < floor
        ]
        return ModelTombstone(from_seq + 1, self.earliest - 1, reasons[0] if len(reasons) == 1 else "mixed")

    def resumes_at(self, gap: ModelTombstone) -> int:
        """Where reading goes on behind a gap."""
        return self.earliest

    def read(
        self, now_ms: int, from_seq: int = 0, limit: int = 0, nodes: tuple[str, ...] = (), max_bytes: int = 0
    ) -> ModelRead:
        """What a reader at `from_seq` must get."""
        self.sweep(now_ms)
        limit = min(limit or READ_LIMIT[0], READ_LIMIT[1])
        max_bytes = min(max_bytes or READ_BYTES[0], READ_BYTES[1])
        tombstone = self.tombstone(from_seq)
        cursor = self.earliest - 1 if tombstone else from_seq
        hidden = nodes if self.config.dedupe_node else ()
        wanted = [r for r in self.records if r.seq > cursor and (r.node is None or r.node not in hidden)]
        records: list[ModelRecord] = []
        for record in wanted:
            is_too_much = sum(r.size for r in records) + record.size > max_bytes
            if len(records) == limit or (records and is_too_much):
                break
            records.append(record)
        rest = wanted[len(records) :]
        stopped = bool(rest) or len(records) == limit
        return ModelRead(
            records,
            tombstone,
            records[-1].seq if stopped else self.head,
            rest[0].seq - 1 if rest else self.head,
        )


def is_hit(record: ModelRecord, before_seq: int | None, match: Match) -> bool:
    """Whether a delete removes this record."""
    if before_seq is not None and record.seq >= before_seq:
        return False
    if match is None:
        return True
    operator, pattern = match
    if record.tag is None:
        return False
    return record.tag.startswith(pattern[:-1]) if operator == "Glob" else record.tag == pattern
