"""One topic as a model of histories: its records are known by a chained hash, so a read proves all of them.

Owns what each operation may do to a topic, what may be answered, and what each class may lose when the
process or the power ends. Knows no server. A crash is an operation too: its answer is what the next
start finds.

What is left open: when exactly a topic with a cap or a time limit evicts. A reader of the gap must be
told of it.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import xxhash

from tests.histories.checker import Illegal, Operation

RESERVATION = 256  # how far the head of a disk topic may be ahead after a crash
WINDOW_MS = 120_000
WEAKEST_FIRST = ("ephemeral", "memory", "disk", "fsync")
KILLED, POWER, CLEAN = "killed", "power", "clean"


def digest(data: bytes) -> int:
    """What stands for the data of a record."""
    return xxhash.xxh3_64_intdigest(data)


class Record(NamedTuple):
    """A record that can be read."""

    seq: int
    digest: int
    tag: str | None = None


class Records:
    """Live records, oldest first. Two of them are equal if their chained hashes are."""

    __slots__ = ("chain", "items")

    def __init__(self, items: tuple[Record, ...] = (), chain: int | None = None) -> None:
        self.items = items
        self.chain = _chained(0, items) if chain is None else chain

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Records) and self.chain == other.chain

    def __hash__(self) -> int:
        return self.chain

    def __len__(self) -> int:
        return len(self.items)

    @property
    def tail(self) -> int:
        """The last seq, 0 if there is none."""
        return self.items[-1].seq if self.items else 0

    def extended(self, batch: tuple[Record, ...]) -> Records:
        """With a batch at the end."""
        return Records(self.items + batch, _chained(self.chain, batch))

    def without(self, seqs: set[int]) -> Records:
        """Without these."""
        return Records(tuple(item for item in self.items if item.seq not in seqs)) if seqs else self

    def above(self, seq: int) -> tuple[Record, ...]:
        """Those with a higher seq."""
        return self.items[bisect_right(self.items, seq, key=_seq_of) :]

    def below(self, seq: int) -> set[int]:
        """The seqs that are lower."""
        return {item.seq for item in self.items[: bisect_left(self.items, seq, key=_seq_of)]}

    def has(self, wanted: Record) -> bool:
        """Whether this record is among them."""
        at = bisect_left(self.items, wanted.seq, key=_seq_of)
        return at < len(self.items) and self.items[at][:2] == wanted[:2]

    def __str__(self) -> str:
        return f"{len(self)} records up to {self.tail} (chain {self.chain:016x})"


def _seq_of(record: Record) -> int:
    return record.seq


def _chained(chain: int, records: Iterable[Record]) -> int:
    for record in records:
        chain = xxhash.xxh3_64_intdigest(struct.pack("<QQQ", chain, record.seq, record.digest))
    return chain


NO_RECORDS = Records()


# --- What clients do -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """Records are appended. Without an answer `first_seq` is None; `durability` counts if a topic is made."""

    digests: tuple[int, ...]
    first_seq: int | None = None
    key: str | None = None
    is_deduped: bool = False
    attempts: int = 1
    tags: tuple[str | None, ...] = ()
    at_ms: int = 0
    durability: str = "disk"
    may_evict: bool = False

    @property
    def is_query(self) -> bool:
        """A repeated key appends nothing."""
        return self.is_deduped

    def batch(self, first_seq: int) -> tuple[Record, ...]:
        """The records, from a seq on."""
        tags = self.tags or (None,) * len(self.digests)
        pairs = zip(self.digests, tags, strict=True)
        return tuple(Record(first_seq + i, value, tag) for i, (value, tag) in enumerate(pairs))

    def __str__(self) -> str:
        where = (
            "?" if self.first_seq is None else f"{self.first_seq}..{self.first_seq + len(self.digests) - 1}"
        )
        key = f" key {self.key!r}{' again' if self.is_deduped else ''}" if self.key else ""
        return f"append{key} -> {where}"


@dataclass(frozen=True, slots=True)
class Read:
    """Everything above `from_seq`, as far as it was delivered. `head_seq` None: there is no topic."""

    from_seq: int
    records: Records = NO_RECORDS
    next_from_seq: int = 0
    head_seq: int | None = None
    earliest_seq: int = 1
    gap: tuple[int, int] | None = None
    is_query: bool = True

    def __str__(self) -> str:
        if self.head_seq is None:
            return "read -> no topic"
        gap = f", gap {self.gap[0]}..{self.gap[1]}" if self.gap else ""
        found = f"{_runs(self.records.items)} to {self.next_from_seq}, head {self.head_seq}"
        return f"read {self.from_seq} -> {found}{gap}"


@dataclass(frozen=True, slots=True)
class Sight:
    """Single records that were delivered some other way, for instance as jobs."""

    records: tuple[Record, ...]
    is_query: bool = True

    def __str__(self) -> str:
        return f"claim -> {_runs(self.records)}"


@dataclass(frozen=True, slots=True)
class Delete:
    """Records are deleted; the answers are None if none came."""

    before_seq: int | None = None
    match: tuple[str, str] | None = None
    deleted: int | None = None
    head_seq: int | None = None
    is_query: bool = False

    def hits(self, record: Record, bound: int) -> bool:
        """Whether this record goes."""
        if record.seq >= (bound if self.before_seq is None else min(self.before_seq, bound)):
            return False
        if self.match is None:
            return True
        operator, pattern = self.match
        if record.tag is None:
            return False
        return record.tag.startswith(pattern[:-1]) if operator == "Glob" else record.tag == pattern

    def __str__(self) -> str:
        return f"delete before {self.before_seq} match {self.match} -> {self.deleted} deleted"


@dataclass(frozen=True, slots=True)
class Remove:
    """These jobs are done."""

    seqs: tuple[int, ...]
    is_query: bool = False

    def __str__(self) -> str:
        return f"ack {list(self.seqs)}"


@dataclass(frozen=True, slots=True)
class Put:
    """The topic is made or changed."""

    durability: str
    may_evict: bool = False
    is_answered: bool = True
    is_query: bool = False

    def __str__(self) -> str:
        return f"put {self.durability}"


@dataclass(frozen=True, slots=True)
class Drop:
    """The topic is deleted."""

    is_query: bool = False

    def __str__(self) -> str:
        return "delete topic"


@dataclass(frozen=True, slots=True)
class Crash:
    """The server ended, and the next one has found this; `durability` None: there is no topic."""

    how: str
    records: Records = NO_RECORDS
    head_seq: int = 0
    floor: int = 1
    durability: str | None = None
    is_query: bool = False

    def __str__(self) -> str:
        if self.durability is None:
            return f"{self.how} -> no topic"
        return f"{self.how} -> {self.durability} topic, {_runs(self.records.items)}, head {self.head_seq}"


def _runs(records: Sequence[Record]) -> str:
    """Seqs as runs: 1..3,5..9."""
    runs: list[list[int]] = []
    for record in records:
        if runs and record.seq == runs[-1][1] + 1:
            runs[-1][1] = record.seq
        else:
            runs.append([record.seq, record.seq])
    return ",".join(f"{first}..{last}" for first, last in runs) or "nothing"


# --- What a topic is -------------------------------------------------------------------------------------


class Key(NamedTuple):
    """An idempotency key; not `is_sure` if a crash may have taken it."""

    name: str
    first_seq: int
    at_ms: int
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class Topic:
    """A state. `promised` is the weakest class that an unanswered change leaves in doubt."""

    records: Records
    head: int
    durability: str
    promised: str
    may_evict: bool = False
    was_disk: bool = False
    floor: int = 1
    holes: int = 0
    past: tuple[Records, ...] = ()  # what a power cut may bring back instead
    keys: frozenset[Key] = frozenset()

    def __str__(self) -> str:
        return f"{self.durability} topic, {self.records}, head {self.head}"


def new_topic(durability: str, may_evict: bool) -> Topic:
    """A topic without records."""
    return Topic(Records(), 0, durability, durability, may_evict, durability == "disk")


State = Topic | None


class LogModel:
    """One topic name. It knows the whole history: later reads tell what unanswered appends did."""

    def __init__(self, operations: Sequence[Operation], window_ms: int = WINDOW_MS) -> None:
        self._window_ms = window_ms
        resolved = _resolve(operations)
        self._first_seqs, self._lost = resolved.first_seqs, resolved.unseen
        self._starts = [o.end for o in operations if isinstance(o.action, Crash) and o.end is not None]
        self._loses_power = any(isinstance(o.action, Crash) and o.action.how == POWER for o in operations)
        keys = Counter(o.action.key for o in operations if isinstance(o.action, Append) and o.action.key)
        self._shared_keys = {key for key, count in keys.items() if count > 1}
        appends = [o.action for o in operations if isinstance(o.action, Append)]
        self._sent = {value for append in appends for value in append.digests}

    def initial(self) -> State:
        """No topic."""
        return None

    def step(self, state: State, operation: Operation) -> State:
        """What an operation leaves."""
        action = operation.action
        if isinstance(action, Read):
            return self._read(state, operation, action)
        if isinstance(action, Append):
            return self._append(state, operation, action)
        if isinstance(action, Crash):
            return self._crash(state, operation, action)
        if isinstance(action, Put):
            return _put(state, action)
        if state is None:
            raise Illegal("there is no topic")
        if isinstance(action, Drop):
            return None
        if isinstance(action, Delete):
            return self._delete(state, operation, action)
        if isinstance(action, Remove):
            _require_live(state, action.seqs)
            return self._changed(state, state.records.without(set(action.seqs)))
        assert isinstance(action, Sight)
        for record in action.records:
            if not state.records.has(record):
                raise Illegal(f"record {record.seq} is not there, or is another one")
        return state

    def _doubt(self, operation: Operation) -> int:
        """How many seqs may have been used by appends that were never answered nor seen."""
        if not self._lost:
            return 0
        started = max((start for start in self._starts if start <= operation.call), default=-1)
        return sum(
            len(lost.action.digests)
            for lost in self._lost
            if (operation.end is None or lost.call <= operation.end)
            and (lost.lapse is None or lost.lapse > started)  # else it ended with an earlier server
        )

    def _changed(self, topic: Topic, records: Records, head: int | None = None) -> Topic:
        """The topic with other records; as long as they are not synced, a power cut may bring back these."""
        is_at_risk = self._loses_power and topic.promised == "disk"
        past = (*topic.past, topic.records) if is_at_risk else topic.past
        return replace(topic, records=records, head=topic.head if head is None else head, past=past)

    def _with_head(self, state: Topic, head: int, operation: Operation) -> Topic:
        """The head as it was answered: holes must come from appends that failed or were not answered."""
        holes = head - state.head
        if holes < 0:
            raise Illegal(f"the head is {state.head}, not {head}")
        if state.holes + holes > self._doubt(operation):
            raise Illegal(f"nothing explains the seqs from {state.head + 1} to {head}")
        return replace(state, head=head, holes=state.holes + holes) if holes else state

    # --- Appends -----------------------------------------------------------------------------------------

    def _append(self, state: State, operation: Operation, action: Append) -> State:
        topic = state or new_topic(action.durability, action.may_evict)
        known = [key for key in topic.keys if key.name == action.key]
        if known:
            has_lapsed = action.at_ms - known[0].at_ms > self._window_ms or not known[0].is_sure
            if action.is_deduped and action.first_seq == known[0].first_seq:
                return topic
            if not has_lapsed:
                raise Illegal(f"key {action.key!r} stands for {known[0].first_seq}")
            topic = replace(topic, keys=topic.keys - set(known))
        elif action.is_deduped and action.attempts == 1:
            raise Illegal(f"key {action.key!r} was never used")
        first = action.first_seq or self._first_seqs.get(operation.number) or topic.head + 1
        if first <= topic.head:
            raise Illegal(f"seq {first} is given out again, the head is {topic.head}")
        topic = self._with_head(topic, first - 1, operation)
        batch = action.batch(first)
        topic = self._changed(topic, topic.records.extended(batch), batch[-1].seq)
        if action.key in self._shared_keys:
            topic = replace(topic, keys=topic.keys | {Key(action.key or "", first, action.at_ms)})
        return topic

    # --- Reads -------------------------------------------------------------------------------------------

    def _read(self, state: State, operation: Operation, action: Read) -> State:
        if action.head_seq is None or state is None:
            if action.head_seq is None and state is None:
                return None
            raise Illegal("there is no topic" if state is None else "there is a topic")
        topic = self._with_head(state, action.head_seq, operation)
        if action.from_seq > topic.head:
            return topic  # the reader knows another instance, and starts again
        topic = _evicted(topic, action)
        _compare(topic, action, self._doubt(operation) > 0)
        return topic

    def _delete(self, state: Topic, operation: Operation, action: Delete) -> Topic:
        if action.head_seq is not None:
            state = self._with_head(state, action.head_seq, operation)
        gone = {record.seq for record in state.records.items if action.hits(record, state.head + 1)}
        if action.deleted is not None:
            low = 0 if state.may_evict else len(gone)
            high = len(gone) + self._doubt(operation)
            if not low <= action.deleted <= high:
                raise Illegal(f"{len(gone)} records are to be deleted, not {action.deleted}")
        return self._changed(state, state.records.without(gone)) if gone else state

    # --- Ends --------------------------------------------------------------------------------------------

    def _crash(self, state: State, operation: Operation, action: Crash) -> State:
        if state is None:
            if action.durability is None:
                return None
            if len(action.records) or not self._doubt(operation):
                raise Illegal("a topic came from nowhere")
            return new_topic(action.durability, may_evict=False)  # made for an append that failed
        if action.durability is None:
            raise Illegal("the topic is gone")
        if action.durability != state.durability:
            raise Illegal(f"the class is {action.durability}, was {state.durability}")
        self._check_head(state, operation, action)
        self._check_kept(state, action)
        has_keys = action.durability in ("disk", "fsync")
        is_sure = action.how != POWER or state.promised == "fsync"
        return Topic(
            records=action.records,
            head=action.head_seq,
            durability=state.durability,
            promised=state.durability,
            may_evict=state.may_evict,
            was_disk=state.was_disk,
            floor=action.floor,
            keys=frozenset(k._replace(is_sure=k.is_sure and is_sure) for k in state.keys if has_keys),
        )

    def _check_head(self, state: Topic, operation: Operation, action: Crash) -> None:
        low = state.head if state.promised in ("disk", "fsync") else 0
        high = state.head + self._doubt(operation) - state.holes + (RESERVATION if state.was_disk else 0)
        if not low <= action.head_seq <= high:
            raise Illegal(f"the head is {action.head_seq}, not {low} to {high}")

    def _check_kept(self, state: Topic, action: Crash) -> None:
        """What each class keeps: a kill takes nothing that was written, a power cut what was not synced."""
        found = action.records
        if state.durability == "ephemeral":
            if len(found):
                raise Illegal("an ephemeral topic has records")
            return
        if state.promised == "ephemeral" or (state.promised == "memory" and action.how == POWER):
            invented = [record.seq for record in found.items if record.digest not in self._sent]
            if invented:
                raise Illegal(f"records {invented} were never sent")
            return
        allowed = [state.records, *(state.past if action.how == POWER else ())]
        for records in allowed:
            lost = records.below(action.floor) if state.may_evict else set()
            if records.without(lost) == found:
                return
        missing = [record.seq for record in state.records.items if not found.has(record)][:10]
        extra = [record.seq for record in found.items if not state.records.has(record)][:10]
        raise Illegal(f"missing {missing}, unexpected {extra}")


class Resolved(NamedTuple):
    """What is known of the appends without an answer."""

    first_seqs: dict[int, int]
    unseen: list[Operation]
    without_effect: set[int]


def _resolve(operations: Sequence[Operation]) -> Resolved:
    """Find the seqs of unanswered appends: a later read shows them, or a repetition of their key.

    An append that never showed can have used seqs, no more; it takes no part in the search.
    """
    opened = [o for o in operations if o.end is None and isinstance(o.action, Append)]
    seen: dict[int, set[int]] = {value: set() for o in opened for value in o.action.digests}
    for operation in operations:
        records = getattr(operation.action, "records", ())
        for record in records.items if isinstance(records, Records) else records:
            if record.digest in seen:
                seen[record.digest].add(record.seq)
    repeats = [o for o in operations if isinstance(o.action, Append) and o.action.is_deduped]
    ends = sorted(o.call for o in operations if isinstance(o.action, Crash))
    resolved = Resolved({}, [], set())
    for operation in opened:
        places = {seq - i for i, value in enumerate(operation.action.digests) for seq in seen[value]}
        if not places:
            resolved.unseen.append(operation)
            of_key = [o for o in repeats if o.action.key == operation.action.key and o.end > operation.call]
            life_end = next((end for end in ends if end > operation.call), 2**63)
            places = {o.action.first_seq for o in of_key if o.call < life_end}
            if not of_key:
                resolved.without_effect.add(operation.number)
        if len(places) == 1:
            resolved.first_seqs[operation.number] = min(places)
    return resolved


def without_lost(operations: Sequence[Operation]) -> list[Operation]:
    """The operations that take part in the search."""
    without_effect = _resolve(operations).without_effect
    return [operation for operation in operations if operation.number not in without_effect]


def _put(state: State, action: Put) -> Topic:
    if state is None:
        return new_topic(action.durability, action.may_evict)
    promised = action.durability
    if not action.is_answered:
        promised = min(state.promised, action.durability, key=WEAKEST_FIRST.index)
    return replace(
        state,
        durability=action.durability,
        promised=promised,
        may_evict=state.may_evict or action.may_evict,
        was_disk=state.was_disk or action.durability == "disk",
        past=() if action.is_answered else state.past,
        keys=frozenset(key._replace(is_sure=False) for key in state.keys),
    )


def _require_live(state: Topic, seqs: Iterable[int]) -> None:
    live = {record.seq for record in state.records.items}
    missing = [seq for seq in seqs if seq not in live]
    if missing:
        raise Illegal(f"jobs {missing} are not there")


def _evicted(topic: Topic, action: Read) -> Topic:
    """Let go what the topic evicted meanwhile; a reader that was below must have been told."""
    lost = topic.records.below(action.earliest_seq)
    if not lost:
        return topic
    if not topic.may_evict:
        raise Illegal(f"records {sorted(lost)[:10]} are gone, and nothing deleted them")
    floor = max(lost) + 1
    return replace(topic, records=topic.records.without(lost), floor=max(topic.floor, floor))


def _compare(topic: Topic, action: Read, has_doubt: bool) -> None:
    if action.from_seq + 1 < topic.floor and action.gap is None:
        raise Illegal(f"nothing tells the reader that everything below {topic.floor} was evicted")
    first = topic.records.items[0].seq if topic.records.items else topic.head + 1
    # The first record may be one of an unanswered append that no reader has got so far.
    if action.earliest_seq != first and not (has_doubt and action.earliest_seq < first):
        raise Illegal(f"the first record is {first}, not {action.earliest_seq}")
    wanted = topic.records.above(action.from_seq)
    if action.gap is not None:
        hidden = [record.seq for record in wanted if action.gap[0] <= record.seq <= action.gap[1]]
        if hidden:
            raise Illegal(f"records {hidden[:10]} are there, the reader was told that they are lost")
    wanted = tuple(record for record in wanted if record.seq <= action.next_from_seq)
    # A read of all there is needs one comparison: the chained hash stands for every record.
    is_whole = len(wanted) == len(topic.records)
    if action.records != (topic.records if is_whole else Records(wanted)):
        raise Illegal(f"the records up to {action.next_from_seq} are {_runs(wanted)}, or have other hashes")
