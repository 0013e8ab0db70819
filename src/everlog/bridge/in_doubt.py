"""Finds out whether a batch whose answer was lost is in its topic.

Every record of a bridge carries the bridge's own `$node`, and of all its batches only the one in doubt can
have seqs above the head that its plan noted. So one such record proves that the batch arrived. Without one,
it can only have arrived if all its records are gone again: without a run of missing seqs that is long enough,
it never arrived.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from everlog.api_types import RawDiff
from everlog.bridge.base import NOT_FOUND, READ_BYTES, READ_LIMIT
from everlog.bridge.state import Plan, QueueToTopicState
from everlog.client import Client
from everlog.client.errors import ApiFailed
from everlog.client.flows import Call
from everlog.client.retrying import ONCE
from everlog.client.wire import topic_path


class Verdict(Enum):
    """Whether a batch is in its topic."""

    LANDED = "landed"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True):
    """A verdict, and the head of the topic at that time."""

    verdict: Verdict
    topic_head: int


def read_sources(
    client: Client, topic: str, from_seq: int, *, include_meta: bool = False, retries: bool = True
) -> RawDiff:
    """Read who wrote the records behind a cursor; without `retries`, an outage is raised at once."""
    body = msgspec.json.encode(
        {
            "from_seq": from_seq,
            "limit": READ_LIMIT,
            "max_batch_bytes": READ_BYTES,
            "include_meta": include_meta,
        }
    )
    wanted = Call("POST", topic_path(topic, "/diff"), RawDiff, body)
    return client.call(wanted, retry=None if retries else ONCE)


def resolve_in_doubt(client: Client, state: QueueToTopicState, plan: Plan) -> Finding:
    """Look for a batch in its topic; `UNKNOWN` if it may have arrived and be gone again."""
    cursor = last_seen = plan.topic_head
    longest_run = 0
    while True:
        try:
            found = read_sources(client, state.topic, cursor, retries=False)
        except ApiFailed as error:
            if error.status == NOT_FOUND:
                return Finding(Verdict.ABSENT, 0)  # a topic that is not there holds no batch
            raise
        if found.head_seq < cursor:
            last_seen = 0  # the topic was recreated: the answer begins with the first record of the new one
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
