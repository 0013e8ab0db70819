"""Ranges of seqs of topics on a server, and reading one of them over HTTP; does not depend on Spark.

Records that were evicted, expired or lost with a recreated topic come as a `Gap` with the server's reason;
deleted records leave no gap, as the data model says. A key from the environment is looked up where the
request is made and is part of no plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeVar

from everlog.api_types import RawDiff
from everlog.client import calls
from everlog.client.flows import Call
from everlog.client.retrying import CONNECT_S, RetryPolicy
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
Answer = TypeVar("Answer")


class ServerAddress(NamedTuple):
    """A server, and the key that was given for it, if any."""

    url: str
    key: str | None

    def connect(self, timeout_s: float = 0, *, is_tried: bool = True) -> Client:
        """Return a client; without a key of its own it uses that of the environment.

        Each request is tried for `timeout_s`. An address that is not `is_tried`, so may be wrong, is given
        up sooner.
        """
        policy = RetryPolicy(timeout_s, connect_s=max(timeout_s, CONNECT_S) if is_tried else CONNECT_S)
        return Client(self.url, self.key or os.environ.get(KEY_VARIABLE), retry=policy)

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


def live_span(client: Client, topic: str) -> tuple[SeqRange, str | None]:
    """Return the seqs of a topic that are not lost, and its instance, without counting as a reader of it.

    The instance is the epoch, which no other topic of the same name has; an old server has none.
    """
    account = _found(client, topic, lambda: client.account(topic, 0, 0))
    end = account.head_seq + 1
    return SeqRange(min(max(1, account.evict_floor), end), end), str(account.epoch) if account.epoch else None


def average_bytes(client: Client, topics: Iterable[str]) -> int:
    """Return the average bytes of data and meta of a live record of these topics, at least 1."""
    states = [_found(client, topic, partial(client.topic, topic, touch=False)) for topic in topics]
    count = sum(state.count for state in states)
    return max(1, sum(state.bytes for state in states) // max(1, count))


def _found(client: Client, topic: str, call: Callable[[], Answer]) -> Answer:
    try:
        return call()
    except TopicNotFound:
        raise TopicNotFound(f"there is no topic {topic!r} at {client.address}") from None


def seq_at_time(client: Client, topic: str, ts_ms: int) -> int:
    """Return the seq of the first live record at or after this time; the next one's if there is none.

    Times do not decrease with seqs, so a binary search needs few requests whatever the topic's size.
    """
    low, high = live_span(client, topic)[0]
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
    client: Client,
    topic: str,
    wanted: SeqRange,
    passing: RecordFilter,
    names: tuple[str, ...],
    instance: str | None = None,
) -> Iterator[Columns | Gap]:
    """Yield the columns `names` of the records of a range, and the gaps between them.

    What is left of the range when the topic is no longer that `instance` is a gap. Without an instance, an
    end beyond the head means that the topic was recreated with fewer records: a gap too.
    """
    collected = passing.collector()
    done = wanted.first
    for gap, cursor in _parts(client, topic, wanted, collected):
        # Records count only if the topic is still the same after they were read: no instance returns.
        if instance is not None and live_span(client, topic)[1] not in (instance, None):
            yield Gap(done, wanted.end, RECREATED)
            return
        if len(collected):
            yield take_columns(collected, names)
        if gap is not None:
            yield gap
        done = cursor + 1


def _parts(
    client: Client, topic: str, wanted: SeqRange, collected: FrameColumns
) -> Iterator[tuple[Gap | None, int]]:
    """Collect records; yield before each gap, after some pages and at the end, with the last seq so far."""
    pages, cursor = 0, wanted.first - 1
    for gap, cursor in _collect(client, topic, wanted, collected):
        pages += gap is None
        if gap is not None or pages >= BATCH_PAGES:
            yield gap, cursor
            pages = 0
    if pages:
        yield None, cursor


def _collect(
    client: Client, topic: str, wanted: SeqRange, collected: FrameColumns
) -> Iterator[tuple[Gap | None, int]]:
    """Collect records page by page; yield each gap before what follows it, and None after a page.

    With each comes the last seq that is accounted for.
    """
    cursor, end = wanted.first - 1, wanted.end
    while cursor + 1 < end:
        page = _collect_page(client, topic, cursor, end, collected)
        if page.tombstone is not None:
            is_recreated = page.tombstone.reason == RECREATED
            gap_end = end if is_recreated else min(page.tombstone.gap_to + 1, end)
            yield Gap(cursor + 1, gap_end, page.tombstone.reason), gap_end - 1
            cursor = gap_end - 1
            if cursor + 1 >= end:
                return
        for record in page.records:
            if cursor < record.seq < end:
                node, tag = (None if name is None else name.encode() for name in (record.node, record.tag))
                meta = bytes(record.meta) or None
                collected.add(record.seq, record.ts_ms, node, tag, meta, bytes(record.data))
        cursor = max(cursor, min(page.next_from_seq, end - 1))
        yield None, cursor
        if page.caught_up and page.head_seq + 1 < end:
            yield Gap(page.head_seq + 1, end, RECREATED), end - 1
            return


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
