"""Merged messages of a time range that begin with the books of its start.

Owns how opening events stand in a merge. Which events these are says `everlog.market.openings`, which books
`everlog.market.warm_start`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

import numpy as np

from everlog.errors import SnapshotGap
from everlog.market.book_set import BookSet, BookSettings, OtherModes
from everlog.market.books import GapPolicy, UnknownOrders
from everlog.market.merge import MergedBatch, merge
from everlog.market.openings import OpeningEvent, opening_events
from everlog.market.packing import PackedRecords
from everlog.market.protocol import TypeId
from everlog.market.replay import Replay
from everlog.market.warm_start import books_at

_SETTINGS: Final = BookSettings(
    gap_policy=GapPolicy.IGNORE, unknown_orders=UnknownOrders.SKIP, other_modes=OtherModes.SKIP
)


def known_books(replays: Sequence[Replay], timestamp_ns: int, advice: str = "begin earlier") -> BookSet:
    """Return the books of replays at a time. Raises SnapshotGap, with advice, if one is unknown."""
    books = books_at(replays, timestamp_ns, _SETTINGS) if timestamp_ns else BookSet()
    if books is None:
        paths = ", ".join(dict.fromkeys(one.path for one in replays))
        raise SnapshotGap(
            f"the books of {paths} at {timestamp_ns} are unknown: the first messages are gone, and there are "
            f"no snapshots of that time; {advice}"
        )
    return books


def from_books(replays: Sequence[Replay]) -> Generator[MergedBatch]:
    """Yield what `merge` yields, and before a time range events that bring books to its start."""
    parts = [one.from_the_start() for one in replays]
    start_ns = max((start_ns for _, start_ns in parts), default=0)
    events = opening_events(known_books([one for one, _ in parts], start_ns), (), start_ns)
    batches = merge(replays)
    yield from chained(as_batch(events, start_ns), batches) if events else batches


def chained(first: MergedBatch, others: Generator[MergedBatch]) -> Generator[MergedBatch]:
    """Yield a batch before others."""
    try:
        yield first
        yield from others
    finally:
        others.close()


def as_batch(events: list[OpeningEvent], timestamp_ns: int) -> MergedBatch:
    """Return events as messages of one time, which belong to the first source."""
    count = len(events)
    data = np.frombuffer(b"".join(one.payload for one in events), np.uint8)
    lengths = np.array([len(one.payload) for one in events], np.uint64)
    return MergedBatch(
        np.zeros(count, np.intp),
        np.zeros(count, np.uint64),
        np.full(count, timestamp_ns, np.uint64),
        np.full(count, TypeId.BOOK_EVENT, np.uint16),
        np.array([one.flags for one in events], np.uint16),
        PackedRecords(data, np.cumsum(lengths, dtype=np.uint64) - lengths, lengths),
        np.full(count, timestamp_ns, np.uint64),
    )
