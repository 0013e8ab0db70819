"""Ranges of seqs of topics on a server, and reading one of them over HTTP; knows nothing of Spark.

Owns the planning of a bounded read and the accounting of what is gone: records that were evicted, expired or
lost with a recreated topic come as a `Lost` range with the server's reason; deleted ones are silent, as the
data model says. The key is looked up where the request is made and is part of no plan.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from everlog.client.http_api import ApiFailed, HttpApi, topic_path
from everlog.errors import InvalidConfig, TopicNotFound
from everlog.native.columns.frame_columns import FrameColumns

PAGE_RECORDS: Final = 1000
PAGE_BYTES: Final = 8 << 20
PAGE_TOPICS: Final = 1000
KEY_VARIABLE: Final = "EVERLOG_KEY"
RECREATED: Final = "recreated"


class Place(NamedTuple):
    """A server, and the key that was given for it, if any."""

    url: str
    key: str | None

    def connect(self) -> HttpApi:
        """Return a client; without a key of its own it takes the environment's."""
        return HttpApi(self.url, self.key or os.environ.get(KEY_VARIABLE))

    def __repr__(self) -> str:
        """Leave out the key, whoever prints this."""
        return f"Place(url={self.url!r})"


class Bounds(NamedTuple):
    """The live seqs of a topic: from `first` up to, but not including, `end`."""

    first: int
    end: int


class Lost(NamedTuple):
    """Records from `first` up to, but not including, `end` are gone, and why."""

    first: int
    end: int
    reason: str


class Record(msgspec.Struct, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}):
    """One record, its payload as the server's JSON text; no text at all if it has no meta."""

    seq: int
    ts: int
    data: msgspec.Raw
    node: str | None = None
    tag: str | None = None
    # Not `Raw | None`: msgspec then takes nothing but null.
    meta: msgspec.Raw = msgspec.Raw(b"")


class _Tombstone(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str


class _Page(msgspec.Struct):
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: _Tombstone | None = None


class _Listed(msgspec.Struct):
    topic: str


class _TopicList(msgspec.Struct):
    topics: list[_Listed]
    next_cursor: str | None = None


class _State(msgspec.Struct):
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int


def find_topics(place: Place, wanted: tuple[str, ...]) -> list[str]:
    """Return the names that are meant: each as it is, one that ends in `*` as a prefix; sorted."""
    found: set[str] = set()
    with place.connect() as api:
        for name in wanted:
            if not name.endswith("*"):
                found.add(name)
                continue
            query = {"prefix": name[:-1], "page_size": str(PAGE_TOPICS)}
            while True:
                page = api.get("/topics", _TopicList, query)
                found.update(one.topic for one in page.topics)
                if page.next_cursor is None:
                    break
                query["cursor"] = page.next_cursor
    if not found:
        raise TopicNotFound(f"no topic of {place.url} matches {', '.join(wanted)}")
    return sorted(found)


def bounds(api: HttpApi, topic: str) -> Bounds:
    """Return what a topic holds now, without counting as a reader of it."""
    state = _state(api, topic)
    return Bounds(state.earliest_seq, state.head_seq + 1)


def average_bytes(place: Place, topics: list[str]) -> int:
    """Return how many bytes of data and meta a live record of these topics has on average, 1 at least."""
    with place.connect() as api:
        states = [_state(api, topic) for topic in topics]
    count = sum(state.count for state in states)
    return max(1, sum(state.bytes for state in states) // max(1, count))


def _state(api: HttpApi, topic: str) -> _State:
    try:
        return api.get(topic_path(topic), _State, {"touch": "false"})
    except ApiFailed as error:
        if error.code == "topic_not_found":
            raise TopicNotFound(f"there is no topic {topic!r} at {api.address}") from None
        raise


def seq_at_time(api: HttpApi, topic: str, ts_ms: int) -> int:
    """Return the seq of the first live record at or after this time; the next one's if there is none.

    Times do not decrease with seqs, so a search by halves needs few requests whatever the topic's size.
    """
    low, high = bounds(api, topic)
    end = high
    while low < high:
        middle = (low + high) // 2
        page = _page(api, topic, middle - 1, 1)
        if not page.records or page.records[0].seq >= end or page.records[0].ts >= ts_ms:
            high = middle
        else:
            low = page.records[0].seq + 1
    return low


def read(api: HttpApi, topic: str, first: int, end: int, picked: FrameColumns) -> Iterator[Lost | None]:
    """Pick the records from `first` up to, but not including, `end`; yield what is lost, None after a page.

    Whoever calls takes what was picked when it likes. An `end` beyond the head means that the topic was
    recreated with fewer records: reported as lost.
    """
    cursor = first - 1
    while cursor + 1 < end:
        page = _picked_page(api, topic, cursor, end, picked)
        if page.tombstone is not None:
            lost = _clip(page.tombstone, cursor + 1, end)
            yield lost
            cursor = lost.end - 1
            if lost.reason == RECREATED or cursor + 1 >= end:
                return
            # What came with the tombstone lies behind the gap.
        for record in page.records:
            if cursor < record.seq < end:
                _add(picked, record)
        yield None
        if page.caught_up and page.head_seq + 1 < end:
            yield Lost(page.head_seq + 1, end, RECREATED)
            return
        cursor = max(cursor, page.next_from_seq)


def _picked_page(api: HttpApi, topic: str, cursor: int, end: int, picked: FrameColumns) -> _Page:
    """Return a page without the records that could be picked already, which is all of them as a rule."""
    body = _page_body(api, topic, cursor, min(PAGE_RECORDS, end - 1 - cursor))
    before = len(picked)
    rest = picked.pick_page(body, cursor + 1, end, PAGE_RECORDS)
    if rest is not None:
        page = api.decode(rest, _Page, f"a page of {topic}")
        if page.tombstone is None:
            return page
        # A gap comes before the records, and may mean that they are those of another topic.
        picked.keep_first(before)
    return api.decode(body, _Page, f"a page of {topic}")


def _add(picked: FrameColumns, record: Record) -> None:
    """Pick a record of a page that is not plain."""
    node, tag = (None if name is None else name.encode() for name in (record.node, record.tag))
    picked.add(record.seq, record.ts, node, tag, bytes(record.meta) or None, bytes(record.data))


def _clip(tombstone: _Tombstone, first: int, end: int) -> Lost:
    """Return the part of a gap that lies in the range that is read."""
    if tombstone.reason == RECREATED:
        return Lost(first, end, RECREATED)
    return Lost(first, min(tombstone.gap_to + 1, end), tombstone.reason)


def _page(api: HttpApi, topic: str, from_seq: int, limit: int) -> _Page:
    return api.decode(_page_body(api, topic, from_seq, limit), _Page, f"a page of {topic}")


def _page_body(api: HttpApi, topic: str, from_seq: int, limit: int) -> bytes:
    body = {"from_seq": from_seq, "limit": limit, "max_batch_bytes": PAGE_BYTES, "include_tags": True}
    return api.fetch("POST", topic_path(topic, "/diff"), body=body, repeatable=True)


def check_url(url: str) -> None:
    """Refuse a URL that is none, before anything is planned with it."""
    if "://" not in url:
        raise InvalidConfig(f"option 'url' is {url!r}; it must be like http://127.0.0.1:4000")
