"""Asking an engine and holding its answers against the model: shared by the model test and the simulation."""

from __future__ import annotations

import json
from typing import NamedTuple

from everlog.errors import TopicNotFound
from everlog.topics import Engine, TopicConfig
from everlog.topics.results import Diff
from everlog.topics.topic import TopicState
from tests.support.topics_model import ModelRecord, ModelTombstone, ModelTopic, compact

PAGE = 1000
LOOKS = 3


class Query(NamedTuple):
    """The arguments of a read."""

    from_seq: int = 0
    limit: int = 256
    node: tuple[str, ...] = ()
    include_tags: bool = True
    include_meta: bool = True
    max_batch_bytes: int = 0


class Seen(NamedTuple):
    """Everything a reader can find out about a topic."""

    config: TopicConfig
    epoch: int
    head: int
    earliest: int
    live: int
    bytes: int
    cap_floor: int
    ttl_floor: int
    records: tuple[ModelRecord, ...]


class Mismatch(AssertionError):
    """The engine said something else than the model."""


def require(condition: bool, message: str) -> None:
    """Raise `Mismatch` unless the condition holds."""
    if not condition:
        raise Mismatch(message)


def require_equal(what: str, found: object, expected: object) -> None:
    """Raise `Mismatch` unless both are the same."""
    require(found == expected, f"{what}: expected {expected!r}, found {found!r}")


def ask_diff(engine: Engine, name: str, query: Query) -> Diff:
    """Read, and wait until the answer may be given."""
    answer = engine.diff(name, **query._asdict())
    engine.wait_for(answer.commit)
    return answer


def ask_state(engine: Engine, name: str) -> TopicState:
    """Report a topic without counting as a reader, and wait until the answer may be given."""
    state = engine.state(name, touch=False)
    engine.wait_for(engine.floor_commit(name))
    return state


def check_diff(topic: ModelTopic, now_ms: int, query: Query, answer: Diff) -> None:
    """Hold a read against the model, byte for byte."""
    wanted = topic.read(now_ms, query.from_seq, query.limit, query.node, query.max_batch_bytes)
    # An engine may stop early, for instance at a segment that is not in memory, if the cursor moves.
    if 0 < answer.delivered <= len(wanted.records):
        wanted = wanted.cut(answer.delivered)
    texts = [record.text(query.include_tags, query.include_meta) for record in wanted.records]
    what = f"diff {query}"
    require_equal(f"{what} records", answer.records, b"[" + b",".join(texts) + b"]")
    require_equal(f"{what} delivered", answer.delivered, len(texts))
    require_equal(f"{what} head_seq", answer.head_seq, topic.head)
    require_equal(f"{what} earliest_seq", answer.earliest_seq, topic.earliest)
    require(
        wanted.next_low <= answer.next_from_seq <= wanted.next_high,
        f"{what} next_from_seq: {answer.next_from_seq}, not {wanted.next_low} to {wanted.next_high}",
    )
    require_equal(f"{what} caught_up", answer.caught_up, answer.next_from_seq == topic.head)
    require_equal(f"{what} lag", answer.lag, topic.head - answer.next_from_seq)
    found = answer.tombstone
    gap = None if found is None else ModelTombstone(found.gap_from, found.gap_to, found.reason)
    require_equal(f"{what} tombstone", gap, wanted.tombstone)
    if found is not None:
        assert gap is not None
        floors = (topic.resumes_at(gap), topic.head)
        require_equal(f"{what} tombstone floors", (found.earliest_seq, found.head_seq), floors)
        require_equal(f"{what} missed", found.missed_estimate, max(0, found.gap_to - found.gap_from + 1))


def check_state(topic: ModelTopic, now_ms: int, state: TopicState) -> None:
    """Hold the state of a topic against the model."""
    topic.sweep(now_ms)
    require_equal("config", state.config, topic.config)
    found = (state.head_seq, state.next_seq, state.earliest_seq, state.count, state.bytes, state.evict_floor)
    wanted = (topic.head, topic.head + 1, topic.earliest, len(topic.records), topic.bytes, topic.evict_floor)
    require_equal("state (head, next, earliest, count, bytes, evict floor)", found, wanted)


def check_account(topic: ModelTopic, engine: Engine, name: str) -> None:
    """Hold what the engine says of every seq against the model."""
    found = engine.account(name)
    parts = (found.live, found.deleted, found.evicted, found.expired, found.holes)
    require_equal("sum of the account", sum(parts), topic.head)
    floors = (topic.cap_floor - 1, max(0, topic.ttl_floor - topic.cap_floor))
    require_equal("account (live, evicted, expired)", parts[:1] + parts[2:4], (len(topic.records), *floors))
    if topic.deleted is not None:
        deleted = {seq for seq in topic.deleted if seq >= topic.evict_floor}
        least, most = len(deleted - topic.unsure), len(deleted)
        require(least <= found.deleted <= most, f"{found.deleted} deleted, not {least} to {most}")


def parse_records(text: bytes) -> list[ModelRecord]:
    """Read the answer of a diff back; all our test data survives the way through Python values."""
    return [
        ModelRecord(
            item["$seq"],
            item["$ts"],
            item.get("$node"),
            item.get("$tag"),
            compact(item["meta"]) if "meta" in item else None,
            compact(item["data"]),
        )
        for item in json.loads(text)
    ]


def read_all(engine: Engine, name: str, records: list[ModelRecord]) -> None:
    """Read a topic from the beginning to its head into `records`, which has what came before an error."""
    cursor = 0
    while True:
        answer = ask_diff(engine, name, Query(cursor, PAGE, max_batch_bytes=8 << 20))
        records += parse_records(answer.records)
        if answer.caught_up:
            return
        require(answer.next_from_seq > cursor, f"topic {name}: a read from {cursor} does not move the cursor")
        cursor = answer.next_from_seq


def all_records(engine: Engine, name: str) -> list[ModelRecord]:
    """Return what a reader of the whole topic gets."""
    records: list[ModelRecord] = []
    read_all(engine, name, records)
    return records


def _reason(engine: Engine, name: str, from_seq: int) -> str | None:
    tombstone = ask_diff(engine, name, Query(from_seq, 1)).tombstone
    return None if tombstone is None else tombstone.reason


def _floor(engine: Engine, name: str, head: int, reasons: tuple[str, ...]) -> int:
    """The first seq below which a reader is told one of `reasons`: found by bisection over the cursor."""
    low, high = 0, head
    while low < high:
        middle = (low + high) // 2
        if _reason(engine, name, middle) in reasons:
            low = middle + 1
        else:
            high = middle
    return low + 1


def look(engine: Engine, name: str) -> Seen | None:
    """Find out everything about a topic, as a reader can; None if there is none."""
    for _ in range(LOOKS):
        records: list[ModelRecord] = []
        try:
            read_all(engine, name, records)
        except TopicNotFound:
            return None
        state = ask_state(engine, name)
        if state.count == len(records):
            break  # else some have expired while their floor was synced
    found = {record.seq for record in records}
    require(len(found) == len(records), f"topic {name}: a seq was delivered twice")
    floors = [1, 1]
    if _reason(engine, name, 0) is not None and state.head_seq > 0:
        floors = [_floor(engine, name, state.head_seq, (reason, "mixed")) for reason in ("cap", "ttl")]
    return Seen(
        state.config,
        state.epoch,
        state.head_seq,
        state.earliest_seq,
        state.count,
        state.bytes,
        floors[0],
        floors[1],
        tuple(records),
    )


def expected(topic: ModelTopic) -> Seen:
    """What `look` must find."""
    return Seen(
        topic.config,
        topic.epoch,
        topic.head,
        topic.earliest,
        len(topic.records),
        topic.bytes,
        topic.cap_floor,
        topic.ttl_floor,
        tuple(topic.records),
    )


def model_of(seen: Seen) -> ModelTopic:
    """A model that goes on from what was seen, without memory of keys."""
    last_ts = seen.records[-1].ts if seen.records else 0
    return ModelTopic(
        seen.config,
        seen.epoch,
        list(seen.records),
        seen.head,
        seen.cap_floor,
        seen.ttl_floor,
        last_ts,
        deleted=None,
    )
