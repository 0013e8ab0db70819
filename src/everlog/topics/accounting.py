"""What has become of every seq of a topic: alive, deleted, evicted, expired, or a hole.

Owns the rule which of these a seq counts for. It looks at the index only and changes nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from everlog.errors import InvalidRequest
from everlog.topics import holes
from everlog.topics.config import U64_MAX
from everlog.topics.topic import Topic

# As many seqs are counted at a time: a few milliseconds.
ACCOUNT_SEQS_MAX: Final = 1_000_000


class TopicAccount(msgspec.Struct, frozen=True):
    """The seqs behind `from_seq`, up to and with `to_seq`: the counts add up to their number."""

    from_seq: int
    to_seq: int
    live: int
    deleted: int
    evicted: int
    expired: int
    holes: int
    evict_floor: int
    head_seq: int


def account(topic: Topic, from_seq: int, to_seq: int) -> TopicAccount:
    """Account for seqs; `to_seq` is lowered to the head, and to what one answer covers.

    Below the floors nothing is known of a single seq: what caps took is evicted, what age took beyond that
    is expired, and the rest was lost by the source of a router, which leaves holes.
    """
    for name, seq in (("from_seq", from_seq), ("to_seq", to_seq)):
        if not 0 <= seq <= U64_MAX:
            raise InvalidRequest(f"{name} is {seq}; it must be from 0 to {U64_MAX}")
    floor = topic.evict_floor
    end = max(min(to_seq, topic.visible, from_seq + ACCOUNT_SEQS_MAX), from_seq) + 1
    start = from_seq + 1
    evicted = max(0, min(topic.cap_floor, end) - start)
    expired = max(0, min(topic.ttl_floor, end) - start - evicted)
    trimmed = max(0, min(floor, end) - start - evicted - expired)
    behind = max(start, floor)
    live = topic.log.live_in(behind, end)[0] if behind < end else 0
    runs = list(topic.holes)
    for run in topic.trim_holes:
        holes.note(runs, *run)
    empty = holes.count(runs, topic.log, behind, end)
    return TopicAccount(
        from_seq=from_seq,
        to_seq=end - 1,
        live=live,
        deleted=max(0, end - behind) - live - empty,
        evicted=evicted,
        expired=expired,
        holes=trimmed + empty,
        evict_floor=floor,
        head_seq=topic.visible,
    )
