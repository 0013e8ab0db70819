"""Ranges of seqs of topics on a server, and reading one of them over HTTP; does not depend on Spark.

Records that were evicted, expired or lost with a recreated topic come as a `Gap` with the server's reason;
deleted records leave no gap, as the data model says. A key from the environment is looked up where the
request is made and is part of no plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from everlog.api_types import RawDiff, TopicState
from everlog.client import ApiFailed, calls
from everlog.client.flows import Call
from everlog.client.retrying import ONCE
from everlog.client.sync_client import Client
from everlog.errors import InvalidConfig, TopicNotFound
from everlog.native.columns.frame_columns import FrameColumns
from everlog.pipeline.columns_from_frames import Columns, RecordFilter, take_columns
from everlog.seq_ranges import Gap, SeqRange

PAGE_RECORDS: Final = 1000
PAGE_BYTES: Final = 8 << 20
BATCH_PAGES: Final = 16
"""Pages in a batch of columns: passing a batch to Spark costs as much as a thousand rows."""

KEY_VARIABLE: Final = "EVERLOG_KEY"
RECREATED: Final = "recreated"


class ServerAddress(NamedTuple):
    """A server, and the key that was given for it, if any."""

    url: str
    key: str | None

    def connect(self) -> Client:
        """Return a client; without a key of its own it uses that of the environment."""
        return Client(self.url, self.key or os.environ.get(KEY_VARIABLE), retry=ONCE)

    def __repr__(self) -> str:
        """Leave out the key: plans and errors print this."""
        return f"ServerAddress(url={self.url!r})"


def match_topics(wanted: Iterable[str], listed: Callable[[str], Iterable[str]], where: str) -> list[str]:
    """Return the wanted names, sorted; one that ends in `*` means all that `listed` has of its prefix."""
    found: set[str] = set()
    for name in wanted:
        found.update(listed(name[:-1]) if name.endswith("*") else (name,))
    if not found:
        raise TopicNotFound(f"no topic in {where} matches {', '.join(wanted)}")
    return sorted(found)


def find_topics(client: Client, wanted: Iterable[str]) -> list[str]:
    """Return the topics of a server that `wanted` names; see `match_topics`."""

    def listed(prefix: str) -> Iterator[str]:
        return (one.topic for one in client.topics(prefix or None))

    return match_topics(wanted, listed, str(client.address))


def bounds(client: Client, topic: str) -> SeqRange:
    """Return the live seqs of a topic, without counting as a reader of it."""
    state = _state(client, topic)
    return SeqRange(state.earliest_seq, state.head_seq + 1)


def average_bytes(client: Client, topics: Iterable[str]) -> int:
    """Return the average bytes of data and meta of a live record of these topics, at least 1."""
    states = [_state(client, topic) for topic in topics]
    count = sum(state.count for state in states)
    return max(1, sum(state.bytes for state in states) // max(1, count))


def _state(client: Client, topic: str) -> TopicState:
    try:
        return client.topic(topic, touch=False)
    except ApiFailed as error:
        if error.code == "topic_not_found":
            raise TopicNotFound(f"there is no topic {topic!r} at {client.address}") from None
        raise


def seq_at_time(client: Client, topic: str, ts_ms: int) -> int:
    """Return the seq of the first live record at or after this time; the next one's if there is none.

    Times do not decrease with seqs, so a binary search needs few requests whatever the topic's size.
    """
    low, high = bounds(client, topic)
    end = high
    while low < high:
        middle = (low + high) // 2
        page = client.call(_page_call(topic, middle - 1, 1))
        if not page.records or page.records[0].seq >= end or page.records[0].ts_ms >= ts_ms:
            high = middle
        else:
            low = page.records[0].seq + 1
    return low


def read(
    client: Client, topic: str, wanted: SeqRange, passing: RecordFilter, names: tuple[str, ...]
) -> Iterator[Columns | Gap]:
    """Yield the columns `names` of the records of a range, and the gaps between them.

    An end beyond the head means that the topic was recreated with fewer records: a gap.
    """
    collected = passing.collector()
    pages = 0
    for gap in _collect(client, topic, wanted, collected):
        pages += gap is None
        if len(collected) and (gap is not None or pages >= BATCH_PAGES):
            yield take_columns(collected, names)
            pages = 0
        if gap is not None:
            yield gap
    if len(collected):
        yield take_columns(collected, names)


def _collect(client: Client, topic: str, wanted: SeqRange, collected: FrameColumns) -> Iterator[Gap | None]:
    """Collect records page by page; yield each gap before what follows it, and None after a page."""
    cursor, end = wanted.first - 1, wanted.end
    while cursor + 1 < end:
        page = _collect_page(client, topic, cursor, end, collected)
        if page.tombstone is not None:
            is_recreated = page.tombstone.reason == RECREATED
            gap_end = end if is_recreated else min(page.tombstone.gap_to + 1, end)
            yield Gap(cursor + 1, gap_end, page.tombstone.reason)
            cursor = gap_end - 1
            if cursor + 1 >= end:
                return
        for record in page.records:
            if cursor < record.seq < end:
                node, tag = (None if name is None else name.encode() for name in (record.node, record.tag))
                meta = bytes(record.meta) or None
                collected.add(record.seq, record.ts_ms, node, tag, meta, bytes(record.data))
        yield None
        if page.caught_up and page.head_seq + 1 < end:
            yield Gap(page.head_seq + 1, end, RECREATED)
            return
        cursor = max(cursor, page.next_from_seq)


def _collect_page(client: Client, topic: str, cursor: int, end: int, collected: FrameColumns) -> RawDiff:
    """Collect a page natively; return it with the records that need the full decoder, usually none."""
    call = _page_call(topic, cursor, min(PAGE_RECORDS, end - 1 - cursor))
    body = client.call(call.reading(bytes))
    before = len(collected)
    rest = collected.pick_page(body, cursor + 1, end, PAGE_RECORDS)
    if rest is not None:
        page = call.decoded(client.address, rest)
        if page.tombstone is None:
            return page
        # A gap comes before the records, and may mean that they are those of another topic.
        collected.keep_first(before)
    return call.decoded(client.address, body)


def _page_call(topic: str, from_seq: int, limit: int) -> Call[RawDiff]:
    wanted = calls.diff(topic, from_seq, limit=limit, include_tags=True, max_batch_bytes=PAGE_BYTES)
    return wanted.reading(RawDiff)


def server_address(url: str, key: str) -> ServerAddress:
    """Return the address for the options `url` and `key`, empty for none; refuse a URL without a scheme."""
    if "://" not in url:
        raise InvalidConfig(f"option 'url' is {url!r}; it must be like http://127.0.0.1:4000")
    return ServerAddress(url, key or None)
