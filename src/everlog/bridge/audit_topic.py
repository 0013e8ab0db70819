"""The audit of a topic: every seq that was ever assigned is accounted for.

It reads the whole topic through the server, as any reader could, asks the server part by part for its counts
of the same seqs, and compares the two. Only counts are kept in memory.

    live         the record was read
    deleted      it was deleted, or it was a job that is done
    evicted      a cap removed it
    expired      its time to live ended
    holes        never held a record that stayed: given up by a crash, a failed write or, class ephemeral, a
                 restart; or lost by the source of a router
    unexplained  the server counts it as live, but it could not be read; or it was evicted or expired without
                 a tombstone
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from everlog.api_types import RawDiff, RawRecord, TopicAccount, TopicState
from everlog.bridge.in_doubt import read_sources
from everlog.client import Client

RUNS_SHOWN_MAX: Final = 20
# The server is asked what became of the seqs each time so many have been read.
ACCOUNT_SEQS: Final = 100_000


class SeqRun(msgspec.Struct, frozen=True):
    """Seqs from `first_seq` to `last_seq`, both included, and what is wrong with them."""

    first_seq: int
    last_seq: int
    problem: str


class Audit(msgspec.Struct, kw_only=True):
    """The base of all audits: the first of the problems that were found."""

    runs: list[SeqRun] = []

    def problem(self, first_seq: int, last_seq: int, problem: str) -> None:
        """Note a problem; only the first ones are kept."""
        if len(self.runs) < RUNS_SHOWN_MAX:
            self.runs.append(SeqRun(first_seq, last_seq, problem))


class TopicAudit(Audit):
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

    @property
    def is_sound(self) -> bool:
        """Whether everything is explained."""
        return self.unexplained == 0 and self.disordered == 0


def pages(client: Client, topic: str, head_seq: int, *, include_meta: bool = False) -> Iterator[RawDiff]:
    """Yield the pages of a topic from its beginning to `head_seq`."""
    cursor = 0
    while cursor < head_seq:
        page = read_sources(client, topic, cursor, include_meta=include_meta)
        yield page
        if page.caught_up:
            return
        cursor = page.next_from_seq


def audit_topic(client: Client, topic: str) -> TopicAudit:
    """Account for every seq of a topic up to its present head."""
    state = client.topic(topic, touch=False)
    account = Account(client, state)
    for page in pages(client, topic, state.head_seq):
        account.add_page(page)
    account.end()
    return account.audit


class Account:
    """Counts the pages of a topic in order, and compares them with the counts of its server."""

    def __init__(self, client: Client, state: TopicState) -> None:
        self.audit = TopicAudit(state.topic, assigned=state.head_seq)
        self._client = client
        self._head_seq = state.head_seq
        self._compared_seq = 0  # the server was asked for its counts up to here
        self._read = 0  # records behind it
        self._in_tombstones = 0  # seqs behind it that a tombstone covers
        self._seen = 0
        self._ts_ms = 0
        # Counts nothing, since it starts at the head: only for the floor as it was before the first page.
        self._floor = client.account(state.topic, state.head_seq).evict_floor

    def add_page(self, page: RawDiff) -> None:
        """Count the next page."""
        gap = page.tombstone
        if gap is not None and gap.reason != "recreated":
            last_seq = min(gap.gap_to, self._head_seq)
            self._in_tombstones += max(0, last_seq - max(gap.gap_from - 1, self._seen))
            self._seen = max(self._seen, last_seq)
        for record in page.records:
            if record.seq > self._head_seq:
                break  # written since the audit began
            self._add_record(record)
        reached = min(page.next_from_seq, self._head_seq)
        if reached - self._compared_seq >= ACCOUNT_SEQS:
            self._compare(reached)

    def end(self) -> None:
        """Compare the last part, up to the head."""
        self._compare(self._head_seq)

    def _add_record(self, record: RawRecord) -> None:
        if record.seq <= self._seen or record.ts_ms < self._ts_ms:
            self.audit.disordered += 1
            self.audit.problem(record.seq, record.seq, "out of order")
            return
        self._read += 1
        self._seen, self._ts_ms = record.seq, record.ts_ms

    def _compare(self, to_seq: int) -> None:
        """Compare what was read with the server's counts of the same seqs."""
        first_seq, size = self._compared_seq + 1, to_seq - self._compared_seq
        parts: list[TopicAccount] = []
        while self._compared_seq < to_seq:
            part = self._client.account(self.audit.topic, self._compared_seq, to_seq)
            if part.to_seq <= self._compared_seq:
                self.audit.unexplained += to_seq - self._compared_seq
                problem = (
                    f"the server has assigned {part.head_seq} seqs only; was the topic recreated meanwhile?"
                )
                self.audit.problem(first_seq, to_seq, problem)
                self._compared_seq = to_seq
                return
            parts.append(part)
            self._compared_seq = part.to_seq
        if parts:
            self._balance(parts, first_seq, size)
        self._read = self._in_tombstones = 0

    def _balance(self, parts: list[TopicAccount], first_seq: int, size: int) -> None:
        audit, last_seq = self.audit, first_seq + size - 1
        live = sum(part.live for part in parts)
        lost = max(0, live - self._read)
        if lost:
            audit.problem(
                first_seq, last_seq, f"the server counts {live} live records, {self._read} can be read"
            )
        evicted, expired = sum(part.evicted for part in parts), sum(part.expired for part in parts)
        # If the floor has moved since these seqs were read, their reader got no tombstone for it.
        is_still = parts[-1].evict_floor == self._floor
        untold = max(0, evicted + expired - self._in_tombstones) if is_still else 0
        self._floor = parts[-1].evict_floor
        if untold:
            audit.problem(first_seq, last_seq, f"{untold} were evicted or expired without a tombstone")
        audit.live += live - lost
        audit.deleted += sum(part.deleted for part in parts)
        audit.evicted += evicted - min(untold, evicted)
        audit.expired += expired - max(0, untold - evicted)
        audit.holes += sum(part.holes for part in parts)
        audit.unexplained += lost + untold
