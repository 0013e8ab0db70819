"""Messages of many queues in the order of time: one merge for symbols, streams and days.

Owns the order and what waits for its turn: of each source at most some thousand messages, or one event. A
source is a `Replay`, whose filters hold.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market.packing import PackedRecords, gather_field
from everlog.market.protocol import HEADER_BYTES, TRADE, BookFlags, MessageFlags, TypeId
from everlog.market.replay import Messages, Replay, ReplayStats
from everlog.queue import Queue

BATCH_MESSAGES: Final = 65536
SOURCE_MESSAGES_MIN: Final = 1024
"""Fewer at a time are not read of a source: the cost of a read is that of some hundred messages."""
EVENT_MESSAGES_MAX: Final = 65536
"""An event that has not ended by then is cut, so that no source waits for an end that never comes."""
_NO_KEY: Final = np.uint64(2**64 - 1)


class TimeOrder(StrEnum):
    """Which time decides: that of the message, or that of the exchange."""

    RECEIVE = "receive"
    EXCHANGE = "exchange"


class MergedBatch(NamedTuple):
    """Messages in the order of time; the arrays have one value per message."""

    source: NDArray[np.intp]
    """The place of the message's replay among those that are merged."""
    seq: NDArray[np.uint64]
    """The number of the message in its own queue."""
    timestamp_ns: NDArray[np.uint64]
    type_id: NDArray[np.uint16]
    flags: NDArray[np.uint16]
    packed: PackedRecords
    key: NDArray[np.uint64]
    """The time by which the message stands in the order."""

    def part(self, chosen: slice) -> MergedBatch:
        """Return some of the messages, without a copy."""
        return MergedBatch(
            self.source[chosen],
            self.seq[chosen],
            self.timestamp_ns[chosen],
            self.type_id[chosen],
            self.flags[chosen],
            self.packed.take(chosen),
            self.key[chosen],
        )


def merge(
    replays: Sequence[Replay],
    by: str = TimeOrder.RECEIVE,
    batch_messages: int = BATCH_MESSAGES,
) -> Generator[MergedBatch]:
    """Yield the messages of all replays by rising time; those of one time in the order of the replays.

    `by` is `receive` (the messages' own time) or `exchange` (that of book events, trades and tickers, where
    they have one). Within a replay the order of its queue is kept: a message whose time goes back counts as
    of the latest time before it. Messages of one event of the venue stay together; they count as of its end.
    """
    if by not in tuple(TimeOrder):
        raise InvalidConfig(f"a merge is by {' or '.join(TimeOrder)} time, not by {by!r}")
    if batch_messages < 1:
        raise InvalidConfig(f"batch_messages is {batch_messages}; at least 1 is needed")
    wanted = max(min(SOURCE_MESSAGES_MIN, batch_messages), batch_messages // max(len(replays), 1))
    sources = [_Source(replay, TimeOrder(by), wanted) for replay in replays]
    try:
        yield from _merged(sources)
    finally:
        for source in sources:
            source.close()


def merge_into(
    replays: Sequence[Replay], path: str, by: str = TimeOrder.RECEIVE, **config: Any
) -> ReplayStats:
    """Write the merged messages to a new queue; they keep their times, types and flags."""
    if os.path.isdir(path) and os.listdir(path):
        raise InvalidConfig(f"{path} is not empty; a merge makes a new queue")
    stats, started_s = ReplayStats(), time.monotonic()
    batches = merge(replays, by)
    first = next(batches, None)  # so that no queue is made if a source cannot be read
    with Queue.open_publisher(path, **config) as writer:
        for one in itertools.chain([] if first is None else [first], batches):
            packed = one.packed
            writer.append_packed(
                one.type_id, packed.buffer, packed.ends, one.timestamp_ns, one.flags, packed.offsets
            )
            stats.written += len(packed)
    stats.read, stats.seconds = stats.written, time.monotonic() - started_s
    return stats


def _merged(sources: list[_Source]) -> Iterator[MergedBatch]:
    first_keys = np.zeros(len(sources), dtype=np.uint64)
    last_keys = np.zeros(len(sources), dtype=np.uint64)
    is_stale = np.ones(len(sources), dtype=np.bool_)
    while True:
        for place in np.flatnonzero(is_stale).tolist():
            sources[place].fill()
            first_keys[place], last_keys[place] = sources[place].key_range()
        if not len(sources) or (first_keys == _NO_KEY).all():
            return
        # Up to the source that is known least far: of it everything, of those behind it what is before it.
        limit = int(last_keys.argmin())
        horizon = last_keys[limit]
        chosen = np.flatnonzero((first_keys <= horizon) & (first_keys != _NO_KEY))
        parts = [sources[place].take(horizon, is_open=place > limit) for place in chosen.tolist()]
        is_stale[:] = False
        is_stale[chosen] = True
        counts = np.array([len(part.key) for part in parts])
        if counts.any():
            yield _sorted(parts, np.repeat(chosen, counts))


@dataclass(slots=True)
class _Rows:
    """Messages of one source as columns, with the time by which they are sorted."""

    key: NDArray[np.uint64]
    seq: NDArray[np.uint64]
    timestamp_ns: NDArray[np.uint64]
    type_id: NDArray[np.uint16]
    flags: NDArray[np.uint16]
    length: NDArray[np.int64]
    data: NDArray[np.uint8]

    def split(self, count: int) -> tuple[_Rows, _Rows]:
        """Return the first rows and the others."""
        begin = int(self.length[:count].sum())
        names = [field.name for field in fields(self)]
        cuts = [begin if name == "data" else count for name in names]
        columns = [(getattr(self, name), cut) for name, cut in zip(names, cuts, strict=True)]
        return _Rows(*(column[:cut] for column, cut in columns)), _Rows(
            *(column[cut:] for column, cut in columns)
        )


def _joined(parts: Sequence[_Rows]) -> _Rows:
    names = [field.name for field in fields(_Rows)]
    return _Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _sorted(parts: Sequence[_Rows], source: NDArray[np.intp]) -> MergedBatch:
    rows = parts[0] if len(parts) == 1 else _joined(parts)
    order = np.argsort(rows.key, kind="stable")
    begins = np.cumsum(rows.length) - rows.length
    return MergedBatch(
        source[order],
        rows.seq[order],
        rows.timestamp_ns[order],
        rows.type_id[order],
        rows.flags[order],
        PackedRecords(rows.data, begins[order].astype(np.uint64), rows.length[order].astype(np.uint64)),
        rows.key[order],
    )


class _Source:
    """One replay: what was read of it and not yet merged."""

    def __init__(self, replay: Replay, by: TimeOrder, wanted: int) -> None:
        self._batches = replace(replay, batch_messages=wanted).batches()
        self._by = by
        self._wanted = wanted
        self._ready: _Rows | None = None
        """Rows of events that have ended, with their final keys."""
        self._open: _Rows | None = None
        """Rows of the event that has not."""
        self._latest = np.uint64(0)
        self._is_read = False

    def close(self) -> None:
        """Close the queue."""
        self._batches.close()  # type: ignore[attr-defined]

    def key_range(self) -> tuple[np.uint64, np.uint64]:
        """Return the first key, and the key up to which everything is known."""
        ready = self._ready
        first = _NO_KEY if ready is None else ready.key[0]
        return first, _NO_KEY if self._is_read or ready is None else ready.key[-1]

    def take(self, horizon: np.uint64, *, is_open: bool) -> _Rows:
        """Return and forget the rows up to a key; `is_open`: without those of the key itself."""
        assert self._ready is not None
        count = int(np.searchsorted(self._ready.key, horizon, side="left" if is_open else "right"))
        taken, rest = self._ready.split(count)
        self._ready = rest if len(rest.key) else None
        return taken

    def fill(self) -> None:
        """Read until half of what is wanted waits, or the source ends."""
        parts = [] if self._ready is None else [self._ready]
        while not self._is_read and sum(len(part.key) for part in parts) <= self._wanted // 2:
            some = next(self._batches, None)
            self._is_read = some is None
            ended = self._ended(None if some is None else self._read(some))
            if ended is not None and len(ended.key):
                parts.append(ended)
        self._ready = None if not parts else parts[0] if len(parts) == 1 else _joined(parts)

    def _read(self, some: Messages) -> tuple[_Rows, NDArray[np.bool_]]:
        """Return the rows of a batch, and which of them end an event."""
        data, begins = some.batch.joined(some.chosen)
        times, is_end = self._times_and_ends(some)
        times = np.minimum(times, _NO_KEY - np.uint64(1))
        keys = np.maximum.accumulate(np.concatenate(([self._latest], times)))[1:]
        self._latest = keys[-1]
        length = np.diff(begins).astype(np.int64)
        return _Rows(keys, some.seq, some.timestamp_ns, some.type_id, some.flags, length, data), is_end

    def _times_and_ends(self, some: Messages) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        flags, times = some.flags, some.timestamp_ns.astype(np.uint64)
        is_book = (some.type_id == TypeId.BOOK_EVENT) & (some.length >= HEADER_BYTES)
        is_end = np.ones(len(times), dtype=np.bool_)
        books = some.where(is_book).packed
        if len(books):
            # Only of writers that mark the ends does a message without the mark go on.
            marks = (gather_field(books, "flags") & BookFlags.MARKS_EVENT_ENDS) != 0
            is_end[is_book] = ~marks | ((flags[is_book] & MessageFlags.LAST_OF_EVENT) != 0)
        if self._by is TimeOrder.EXCHANGE:
            if len(books):
                _replace(times, is_book, gather_field(books, "exchange_ts_ns"))
            is_stamped = np.isin(some.type_id, (TypeId.TRADE, TypeId.BOOK_TICKER)) & (
                some.length >= _STAMP_BYTES
            )
            stamped = some.where(is_stamped).packed
            places = stamped.offsets // np.uint64(_STAMP_BYTES)
            _replace(times, is_stamped, stamped.buffer[: len(stamped.buffer) // 8 * 8].view("<u8")[places])
        return times, is_end

    def _ended(self, read: tuple[_Rows, NDArray[np.bool_]] | None) -> _Rows | None:
        """Return the rows of events that have ended by now; the others wait."""
        waiting = self._open
        if read is None:
            self._open = None
            return waiting if waiting is None else _of_one_key(waiting)
        rows, is_end = read
        ends = np.flatnonzero(is_end)
        if not len(ends):
            self._open = rows if waiting is None else _joined([waiting, rows])
            if len(self._open.key) < EVENT_MESSAGES_MAX:
                return None
            rows, self._open = self._open, None
            return _of_one_key(rows)
        count = int(ends[-1]) + 1
        # Each message has the key of the end of its event.
        rows.key[:count] = rows.key[ends[np.searchsorted(ends, np.arange(count))]]
        front, back = rows.split(count)
        self._open = back if len(back.key) else None
        if waiting is None:
            return front
        waiting.key[:] = front.key[0]
        return _joined([waiting, front])


_STAMP_BYTES: Final[int] = 8
assert TRADE.fields is not None and TRADE.fields["timestamp_ns"][1] == 0, "a trade begins with its time"


def _replace(times: NDArray[np.uint64], where: NDArray[np.bool_], stamps: NDArray[Any]) -> None:
    """Put the exchange's times in place; what has none keeps the time of the message."""
    times[where] = np.where(stamps == 0, times[where], stamps)


def _of_one_key(rows: _Rows) -> _Rows:
    rows.key[:] = rows.key[-1]
    return rows
