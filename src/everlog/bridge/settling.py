"""Finds out whether a batch that was perhaps sent is in its topic.

Owns the proof. Every record of a bridge carries the bridge's own `$node`, and of all its batches only the one
in doubt can have seqs above the head that its plan noted. So one such record proves that the batch is there.
If there is none, the batch can only be there if all its records are gone again: without a run of missing seqs
that is long enough it never came.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from everlog.bridge.state import Plan, QueueToTopicState
from everlog.client import Client, Tombstone
from everlog.client.errors import ApiFailed
from everlog.client.flows import Call
from everlog.client.retrying import ONCE
from everlog.client.wire import topic_path

NOT_FOUND: Final = 404
READ_LIMIT: Final = 1000
READ_BYTES: Final = 8 << 20


class Verdict(Enum):
    """What became of a batch."""

    LANDED = "landed"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True):
    """A verdict, and the head of the topic when it was found."""

    verdict: Verdict
    topic_head: int


class SourceRecord(msgspec.Struct, frozen=True, rename={"seq": "$seq", "ts_ms": "$ts", "node": "$node"}):
    """The parts of a record that tell where it comes from; its data is not even decoded."""

    seq: int
    ts_ms: int
    node: str = ""
    meta: msgspec.Raw = msgspec.Raw(b"")


class SourceDiff(msgspec.Struct, frozen=True):
    """What is behind a cursor, without the data."""

    records: list[SourceRecord]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None = None


def read_sources(
    client: Client, topic: str, from_seq: int, *, include_meta: bool = False, is_patient: bool = True
) -> SourceDiff:
    """Read who wrote what is behind a cursor; who is not patient hears of an outage at once."""
    body = msgspec.json.encode(
        {
            "from_seq": from_seq,
            "limit": READ_LIMIT,
            "max_batch_bytes": READ_BYTES,
            "include_meta": include_meta,
        }
    )
    wanted = Call("POST", topic_path(topic, "/diff"), SourceDiff, body)
    return client.call(wanted, retry=None if is_patient else ONCE)


def settle(client: Client, state: QueueToTopicState, plan: Plan) -> Finding:
    """Look for a batch; `UNKNOWN` if it may have come and be gone again."""
    cursor = last_seen = plan.topic_head
    longest_run = 0
    while True:
        try:
            found = read_sources(client, state.topic, cursor, is_patient=False)
        except ApiFailed as error:
            if error.status == NOT_FOUND:
                return Finding(Verdict.ABSENT, 0)  # a topic that is not there holds no batch
            raise
        if found.head_seq < cursor:
            last_seen = 0  # deleted and created again: the answer begins with the first record of the new one
        for record in found.records:
            if record.node == state.node:
                return Finding(Verdict.LANDED, found.head_seq)
            longest_run = max(longest_run, record.seq - last_seen - 1)
            last_seen = record.seq
        cursor = found.next_from_seq
        if found.caught_up:
            longest_run = max(longest_run, found.head_seq - last_seen)
            verdict = Verdict.UNKNOWN if longest_run >= plan.count else Verdict.ABSENT
            return Finding(verdict, found.head_seq)
