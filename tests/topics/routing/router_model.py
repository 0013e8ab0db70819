"""Routers over plain lists: the oracle that says which copies there must be, with which seqs.

Slow and obvious on purpose. Everything is settled after each step, so forwarding happens at once here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from everlog.topics.routing.definitions import RouterConfig
from tests.support.topics_model import (
    Match,
    ModelRead,
    ModelRecord,
    ModelTombstone,
    ModelTopic,
    compact,
    is_hit,
)

HOP_LIMIT = 8


@dataclass
class RoutedTopic(ModelTopic):
    """A topic that may be the end of a router: with gaps that its source left, and hops of its copies."""

    trim_floor: int = 1
    trims: list[tuple[int, int]] = field(default_factory=list)
    hops: dict[int, int] = field(default_factory=dict)
    topic_id: int = 0

    def note_trim(self, count: int, now_ms: int) -> None:
        """Leave `count` seqs empty, because the source had lost what they stand for."""
        self.trims.append((self.head + 1, self.head + count))
        self.head += count
        self.last_ts = max(self.last_ts, now_ms)

    def settle_trims(self) -> None:
        """Join gaps that touch; those without a live record before them are told by the floor."""
        joined: list[tuple[int, int]] = []
        for first, last in self.trims:
            touches = bool(joined) and joined[-1][1] + 1 == first
            joined.append((joined.pop()[0] if touches else first, last))
        self.trims = joined
        while self.trims and self.trims[0][1] < self.earliest:
            self.trim_floor = max(self.trim_floor, self.trims.pop(0)[1] + 1)

    @property
    def evict_floor(self) -> int:
        """The first seq that was not lost."""
        self.settle_trims()
        return max(self.cap_floor, self.ttl_floor, self.trim_floor)

    def tombstone(self, from_seq: int) -> ModelTombstone | None:
        """The gap that a reader at `from_seq` must be told of."""
        if self.head >= from_seq and from_seq + 1 < self.evict_floor:
            by_cap, by_age = self.cap_floor > from_seq + 1, self.ttl_floor > from_seq + 1
            reason = "mixed" if by_cap and by_age else "cap" if by_cap else "ttl" if by_age else "source_trim"
            return ModelTombstone(from_seq + 1, self.earliest - 1, reason)
        found = super().tombstone(from_seq)
        if found is not None:
            return found
        for first, last in self.trims:
            if last > from_seq:
                before = [record for record in self.records if from_seq < record.seq < first]
                return None if before else ModelTombstone(max(first, from_seq + 1), last, "source_trim")
        return None

    def resumes_at(self, gap: ModelTombstone) -> int:
        """Where reading goes on behind a gap."""
        is_inside = gap.reason == "source_trim" and any(last == gap.gap_to for _, last in self.trims)
        return gap.gap_to + 1 if is_inside else self.earliest

    def read(
        self, now_ms: int, from_seq: int = 0, limit: int = 0, nodes: tuple[str, ...] = (), max_bytes: int = 0
    ) -> ModelRead:
        """What a reader gets: nothing from behind a gap that it was not told of."""
        self.sweep(now_ms)
        gap = self.tombstone(from_seq)
        start = from_seq if gap is None else self.resumes_at(gap) - 1
        stop = next((first for first, _ in self.trims if first > start), self.head + 1)
        part = RoutedTopic(
            self.config,
            records=[record for record in self.records if start < record.seq < stop],
            head=stop - 1,
        )
        read = ModelTopic.read(part, now_ms, start, limit, nodes, max_bytes)
        return read._replace(tombstone=gap)


@dataclass
class ModelRouter:
    """A router and how far it is."""

    name: str
    config: RouterConfig
    match: Match
    cursor: int
    total: int = 0
    source_id: int = 0

    def key(self, source: RoutedTopic, seq: int) -> str:
        """What an exactly-once copy is known by."""
        return f"router:{self.name}:{source.topic_id}:{source.epoch}:{seq}"

    def copy(self, source: RoutedTopic, record: ModelRecord, seq: int, ts: int) -> ModelRecord:
        """The copy of a record."""
        meta = record.meta
        if self.config.guarantee == "exactly_once":
            fields = {} if meta is None else json.loads(meta)
            fields.pop("_topics_router", None)
            fields["_topics_router"] = {
                "idempotency_key": self.key(source, record.seq),
                "router": self.name,
                "source_topic": self.config.source,
                "source_topic_id": source.topic_id,
                "source_epoch": source.epoch,
                "source_seq": record.seq,
            }
            meta = compact(fields)
        return ModelRecord(
            seq,
            ts,
            record.node if self.config.preserve_node else None,
            record.tag if self.config.preserve_tag else None,
            meta,
            record.data,
        )


@dataclass
class RouterModel:
    """All topics and routers."""

    topics: dict[str, RoutedTopic] = field(default_factory=dict)
    routers: dict[str, ModelRouter] = field(default_factory=dict)

    def forward(self, now_ms: int) -> None:
        """Pass on everything that can be passed on."""
        while sum(self._pass(name, now_ms) for name in self.topics):
            pass

    def _pass(self, name: str, now_ms: int) -> bool:
        source = self.topics[name]
        routers = [
            router
            for router in self.routers.values()
            if router.config.source == name and router.cursor < source.head
        ]
        if routers:
            source.sweep(now_ms)
        visible = source.head
        came_forward = False
        for router in routers:
            before = router.cursor
            self.topics[router.config.dest].sweep(now_ms)
            self._step(router, source, self.topics[router.config.dest], visible, now_ms)
            came_forward |= router.cursor > before
        return came_forward

    def _step(
        self, router: ModelRouter, source: RoutedTopic, dest: RoutedTopic, visible: int, now_ms: int
    ) -> None:
        lost_to, end = source.evict_floor - 1, visible
        for first, last in source.trims:
            if last > router.cursor and first <= router.cursor + 1:
                lost_to = max(lost_to, last)
            elif first > router.cursor + 1:
                end = min(end, first - 1)
        if lost_to > router.cursor:
            lost = range(router.cursor + 1, min(lost_to, visible) + 1)
            hops = source.hops.get(lost[0], 0)
            count = next((i for i, seq in enumerate(lost) if source.hops.get(seq, 0) != hops), len(lost))
            router.cursor += count
            if hops < HOP_LIMIT:
                dest.hops.update((dest.head + 1 + i, hops + 1) for i in range(count))
                dest.note_trim(count, now_ms)
                router.total += count
            return
        batch: list[ModelRecord] = []
        size = 0
        ts = max(dest.last_ts, now_ms)
        for record in source.records:
            if not router.cursor < record.seq <= end or source.hops.get(record.seq, 0) >= HOP_LIMIT:
                continue
            if router.match is not None and not is_hit(record, None, router.match):
                continue
            if dest.config.discard == "reject" and dest.is_over(
                len(dest.records) + len(batch) + 1,
                dest.bytes + size + record.size,
            ):
                end = record.seq - 1
                break
            batch.append(record)
            size += record.size
        copies = [router.copy(source, record, dest.head + 1 + i, ts) for i, record in enumerate(batch)]
        for copy, record in zip(copies, batch, strict=True):
            dest.hops[copy.seq] = source.hops.get(record.seq, 0) + 1
        if copies:
            dest.append(copies, now_ms)
        router.cursor = end
        router.total += len(copies)
