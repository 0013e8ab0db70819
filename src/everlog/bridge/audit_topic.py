"""The audit of a topic: every seq that was ever given out is accounted for.

Owns the rules. It reads the whole topic through the server, as any reader could, and keeps counts only.

    live         the record can be read
    evicted      a cap took it: the server says so by a tombstone (`cap`, `mixed`)
    expired      it grew too old: a tombstone (`ttl`)
    holes        never held a record: lost by the source of a router (`source_trim`), or given up by a topic
                 of class disk when the machine lost its power, at most 256 in a row
    deleted      somebody deleted it: it lies before the first live record, it was a job, or the caller said
                 that this topic is deleted from
    unexplained  none of these
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from everlog.bridge.requests import send
from everlog.bridge.settling import SourceDiff, SourceRecord, read_sources
from everlog.client import Client, Tombstone, calls
from everlog.client.records import TopicState

HOLES_IN_A_CRASH_MAX: Final = 256
RUNS_SHOWN_MAX: Final = 20


class SeqRun(msgspec.Struct, frozen=True):
    """Seqs that follow each other, inclusive, and what is wrong with them."""

    first_seq: int
    last_seq: int
    problem: str


class TopicAudit(msgspec.Struct):
    """The account of a topic. It balances: `assigned` is the sum of the others."""

    topic: str
    assigned: int = 0
    live: int = 0
    deleted: int = 0
    evicted: int = 0
    expired: int = 0
    holes: int = 0
    unexplained: int = 0
    disordered: int = 0
    runs: list[SeqRun] = []

    @property
    def is_sound(self) -> bool:
        """Whether everything is explained."""
        return self.unexplained == 0 and self.disordered == 0

    def problem(self, first_seq: int, last_seq: int, problem: str) -> None:
        """Note what is wrong, up to a bound."""
        if len(self.runs) < RUNS_SHOWN_MAX:
            self.runs.append(SeqRun(first_seq, last_seq, problem))


def pages(client: Client, topic: str, head_seq: int, *, include_meta: bool = False) -> Iterator[SourceDiff]:
    """A topic from its beginning to `head_seq`, page by page."""
    cursor = 0
    while cursor < head_seq:
        page = read_sources(client, topic, cursor, include_meta=include_meta)
        yield page
        if page.caught_up:
            return
        cursor = page.next_from_seq


def audit_topic(client: Client, topic: str, *, has_deletes: bool = False) -> TopicAudit:
    """Account for every seq of a topic up to its present head."""
    before = send(client, calls.topic(topic, touch=False))
    account = _Account(before, has_deletes)
    for page in pages(client, topic, before.head_seq):
        account.take_page(page)
    account.end()
    after = send(client, calls.topic(topic, touch=False))
    account.compare(after)
    return account.audit


class _Account:
    """Takes in the pages of a topic in order."""

    def __init__(self, state: TopicState, has_deletes: bool) -> None:
        self.audit = TopicAudit(state.topic, assigned=state.head_seq, runs=[])
        self._state = state
        self._has_deletes = has_deletes or state.type == "queue"
        self._seen = 0
        self._ts_ms = 0

    def take_page(self, page: SourceDiff) -> None:
        if page.tombstone is not None:
            self._take_tombstone(page.tombstone)
        for record in page.records:
            if record.seq > self._state.head_seq:
                return  # written since the audit began
            self._take_record(record)

    def end(self) -> None:
        """Everything behind the last record is missing as well."""
        self._miss(self._state.head_seq)

    def compare(self, after: TopicState) -> None:
        """What was read must be what the server counts, if the topic stood still."""
        before, audit = self._state, self.audit
        unchanged = (before.head_seq, before.earliest_seq, before.count) == (
            after.head_seq,
            after.earliest_seq,
            after.count,
        )
        if unchanged and audit.live != after.count:
            audit.unexplained += abs(audit.live - after.count)
            audit.problem(
                before.earliest_seq,
                before.head_seq,
                f"the server counts {after.count} live records, {audit.live} can be read",
            )

    def _take_tombstone(self, gap: Tombstone) -> None:
        if gap.reason == "recreated" or gap.gap_to <= self._seen:
            return
        self._miss(gap.gap_from - 1)
        lost = min(gap.gap_to, self._state.head_seq) - self._seen
        if gap.reason == "ttl":
            self.audit.expired += lost
        elif gap.reason == "source_trim":
            self.audit.holes += lost
        else:
            self.audit.evicted += lost
        self._seen += lost

    def _take_record(self, record: SourceRecord) -> None:
        audit = self.audit
        if record.seq <= self._seen or record.ts_ms < self._ts_ms:
            audit.disordered += 1
            audit.problem(record.seq, record.seq, "out of order")
            return
        self._miss(record.seq - 1)
        audit.live += 1
        self._seen, self._ts_ms = record.seq, record.ts_ms

    def _miss(self, last_seq: int) -> None:
        """Seqs up to here were passed over in silence."""
        first_seq, state, audit = self._seen + 1, self._state, self.audit
        count = last_seq - self._seen
        if count <= 0:
            return
        self._seen = last_seq
        if self._has_deletes or last_seq < state.earliest_seq:
            audit.deleted += count
        elif count <= HOLES_IN_A_CRASH_MAX and state.config.durability == "disk":
            audit.holes += count
        else:
            audit.unexplained += count
            audit.problem(
                first_seq,
                last_seq,
                "neither live, evicted, expired nor a hole; if they were deleted, say --deletes",
            )
