"""Messages of many queues in the order of time: one merge for symbols, streams and days.

Owns the order and what waits for its turn: of each source at most some thousand messages, or one event. Their
payloads stay in the mapped segments until then. A source is a `Replay`, whose filters hold.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market.packing import PackedRecords, gather_field
from everlog.market.protocol import HEADER_BYTES, TRADE, BookFlags, MessageFlags, TypeId
from everlog.market.replay import Messages, Replay, ReplayStats
from everlog.market.result_memory import ResultMemory
from everlog.native.queue.ring import Mapping, join_payloads
from everlog.queue import Queue

BATCH_MESSAGES: Final = 65536
SOURCE_MESSAGES_MIN: Final = 2048
"""Fewer at a time are not read of a source: the cost of a read is that of some hundred messages."""
ROUND_MESSAGES_MAX: Final = 1 << 18
"""About so many are sorted at a time, so that memory for them is used again."""
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
        columns: Any = (*self[:5], self.key)
        *some, key = (column[chosen] for column in columns)
        return MergedBatch._make((*some, self.packed.take(chosen), key))


def merge(
    replays: Sequence[Replay],
    by: str = TimeOrder.RECEIVE,
    batch_messages: int = BATCH_MESSAGES,
) -> Generator[MergedBatch]:
    """Yield the messages of all replays by rising time; those of one time in the order of the replays.

    `by` is `receive` (the messages' own time) or `exchange` (that of book events, trades and tickers, where
    they have one). Within a replay the order of its queue is kept: a message whose time goes back counts as
    of the latest time before it, but files that were imported into one queue in another order than that of
    time are merged as replays of their own. Messages of one event of the venue stay together; they count as
    of its end.
    """
    if by not in tuple(TimeOrder):
        raise InvalidConfig(f"a merge is by {' or '.join(TimeOrder)} time, not by {by!r}")
    if batch_messages < 1:
        raise InvalidConfig(f"batch_messages is {batch_messages}; at least 1 is needed")
    runs = [(number, run) for number, replay in enumerate(replays) for run in replay.in_order()]
    wanted = max(min(SOURCE_MESSAGES_MIN, batch_messages), batch_messages // max(len(runs), 1))
    sources = [_Source(run, TimeOrder(by), wanted) for _, run in runs]
    replay_of = np.array([number for number, _ in runs], dtype=np.intp)
    try:
        for batch in _merged(sources):
            yield batch if len(runs) == len(replays) else batch._replace(source=replay_of[batch.source])
    finally:
        for source in sources:
            source.close()


def in_time_order(
    replays: Sequence[Replay], stats: ReplayStats | None = None
) -> Iterator[Messages | MergedBatch]:
    """Yield the messages of replays in the order of time, whatever the order of their imports."""
    if len(replays) == 1 and len(replays[0].runs()) == 1:
        yield from replays[0].batches(stats)
        return
    for batch in merge(replays):
        if stats is not None:
            stats.read += len(batch.seq)
        yield batch


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


def _merged(sources: list[_Source]) -> Generator[MergedBatch]:
    first_keys = np.zeros(len(sources), dtype=np.uint64)
    last_keys = np.zeros(len(sources), dtype=np.uint64)
    is_stale = np.ones(len(sources), dtype=np.bool_)
    memory = ResultMemory()
    while True:
        for place in np.flatnonzero(is_stale).tolist():
            sources[place].fill()
            first_keys[place], last_keys[place] = sources[place].key_range()
        if not len(sources) or (first_keys == _NO_KEY).all():
            return
        # Up to the source that is known least far: of it everything, of those behind it what is before it.
        limit = int(last_keys.argmin())
        horizon = last_keys[limit]
        waiting = sum(source.count for source in sources)
        first = int(first_keys.min())
        if waiting > ROUND_MESSAGES_MAX and (span := int(horizon) - first) > 0:
            # All sources are known beyond such a time.
            part = first + span * ROUND_MESSAGES_MAX // waiting
            if part < horizon:
                horizon, limit = np.uint64(part), len(sources)
        chosen = np.flatnonzero((first_keys <= horizon) & (first_keys != _NO_KEY))
        runs: list[_Run] = []
        counts = [sources[place].take(horizon, runs, is_open=place > limit) for place in chosen.tolist()]
        is_stale[:] = False
        is_stale[chosen] = True
        if runs:
            yield _sorted(runs, np.repeat(chosen, counts), memory)


class _Rows(NamedTuple):
    """Messages of one source as columns, with the time by which they are sorted."""

    key: NDArray[np.uint64]
    seq: NDArray[np.uint64]
    timestamp_ns: NDArray[np.uint64]
    type_id: NDArray[np.uint16]
    flags: NDArray[np.uint16]
    length: NDArray[np.uint32]
    offset: NDArray[np.uint64]
    """Where each record is in its segment."""
    segment: Mapping

    def part(self, first: int, end: int) -> _Rows:
        """Return some of the rows, without a copy."""
        columns: Any = self[:-1]
        return _Rows._make((*(column[first:end] for column in columns), self.segment))


class _Run(NamedTuple):
    """Rows that follow each other in a source."""

    rows: _Rows
    first: int
    end: int

    def column(self, number: int) -> NDArray[Any]:
        column: Any = self.rows[number]
        found: NDArray[Any] = column[self.first : self.end]
        return found


def _sorted(runs: list[_Run], source: NDArray[np.intp], memory: ResultMemory) -> MergedBatch:
    """Return the rows of all runs by rising key; those of one key in the order of the runs."""

    def joined(number: int) -> NDArray[Any]:
        parts = [run.column(number) for run in runs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    columns = [joined(number) for number in range(6)]
    lengths = columns.pop().astype(np.uint64)
    ends = np.cumsum(lengths, dtype=np.uint64)
    buffer = memory.array(int(ends[-1]), np.dtype(np.uint8))
    begin = row = 0
    for run in runs:
        row += run.end - run.first
        end = int(ends[row - 1])
        join_payloads(run.rows.segment, run.column(6), run.column(5), buffer[begin:end])
        begin = end
    packed = PackedRecords(buffer, ends - lengths, lengths)
    order = _order(columns[0])
    key, seq, timestamp_ns, type_id, flags = (column[order] for column in columns)
    return MergedBatch(source[order], seq, timestamp_ns, type_id, flags, packed.take(order), key)


def _order(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return what `argsort` does with a stable sort; it sorts numbers of key and place, which is faster."""
    place_bits = len(keys).bit_length()
    first = keys.min()
    if int(keys.max() - first).bit_length() + place_bits > 64:
        return np.argsort(keys, kind="stable")
    both = (keys - first) << np.uint64(place_bits) | np.arange(len(keys), dtype=np.uint64)
    both.sort()
    order: NDArray[np.intp] = (both & np.uint64((1 << place_bits) - 1)).astype(np.intp)
    return order


class _Source:
    """One replay: what was read of it and not yet merged."""

    def __init__(self, replay: Replay, by: TimeOrder, wanted: int) -> None:
        self._batches = replace(replay, batch_messages=wanted).batches()
        self._by = by
        self._wanted = wanted
        self._ready: deque[_Rows] = deque()
        """Rows of events that have ended, with their final keys."""
        self._taken = 0
        """How many rows of the first of them were taken."""
        self.count = 0
        """How many rows are ready."""
        self._open: list[_Rows] = []
        """Rows of the event that has not ended."""
        self._latest = np.uint64(0)
        self._is_read = False

    def close(self) -> None:
        """Close the queue."""
        self._batches.close()

    def key_range(self) -> tuple[np.uint64, np.uint64]:
        """Return the first key, and the key up to which everything is known."""
        first = self._ready[0].key[self._taken] if self._ready else _NO_KEY
        return first, self._ready[-1].key[-1] if self._ready and not self._is_read else _NO_KEY

    def take(self, horizon: np.uint64, runs: list[_Run], *, is_open: bool) -> int:
        """Move rows up to a key to `runs`, return how many; `is_open`: without those of the key itself."""
        before = self.count
        while self._ready:
            rows = self._ready[0]
            end = int(rows.key.searchsorted(horizon, side="left" if is_open else "right"))
            if end > self._taken:
                runs.append(_Run(rows, self._taken, end))
                self.count -= end - self._taken
                self._taken = end
            if end < len(rows.key):
                break
            self._ready.popleft()
            self._taken = 0
        return before - self.count

    def fill(self) -> None:
        """Read until half of what is wanted waits, or the source ends."""
        while not self._is_read and self.count <= self._wanted // 2:
            some = next(self._batches, None)
            if some is None:
                self._is_read = True
                self._end_event()
            else:
                self._add(*self._read(some))

    def _add(self, rows: _Rows, is_end: NDArray[np.bool_]) -> None:
        """Take in rows; those of an event that has not ended wait for its end."""
        if not is_end.all():
            ends = np.flatnonzero(is_end)
            count = int(ends[-1]) + 1 if len(ends) else 0
            # Each message has the key of the end of its event.
            rows.key[:count] = rows.key[ends[np.searchsorted(ends, np.arange(count))]]
            if count < len(is_end):
                rest = rows.part(count, len(is_end))
                if count:
                    self._end_event(rows.key[0])
                    self._append(rows.part(0, count))
                self._open.append(rest)
                if sum(len(one.key) for one in self._open) >= EVENT_MESSAGES_MAX:
                    self._end_event()
                return
        self._end_event(rows.key[0])
        self._append(rows)

    def _end_event(self, key: np.uint64 | None = None) -> None:
        """Let the open event end with a key, by default that of its last message."""
        opened, self._open = self._open, []
        for rows in opened:
            rows.key[:] = opened[-1].key[-1] if key is None else key
            self._append(rows)

    def _append(self, rows: _Rows) -> None:
        self._ready.append(rows)
        self.count += len(rows.key)

    def _read(self, some: Messages) -> tuple[_Rows, NDArray[np.bool_]]:
        """Return the rows of a batch, and which of them end an event."""
        timestamp_ns, type_id, flags = some.timestamp_ns, some.type_id, some.flags
        length, offset = some.length, some.offset
        times, is_end = self._times_and_ends(some, timestamp_ns, type_id, flags)
        keys = np.maximum.accumulate(np.minimum(times, _NO_KEY - np.uint64(1)))
        np.maximum(keys, self._latest, out=keys)
        self._latest = keys[-1]
        columns = (keys, some.seq, timestamp_ns, type_id, flags, length, offset)
        return _Rows(*columns, some.batch.mapping), is_end

    def _times_and_ends(
        self,
        some: Messages,
        timestamp_ns: NDArray[np.uint64],
        type_id: NDArray[np.uint16],
        flags: NDArray[np.uint16],
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        lengths = some.length
        is_book = (type_id == TypeId.BOOK_EVENT) & (lengths >= HEADER_BYTES)
        is_end = np.ones(len(type_id), dtype=np.bool_)
        books = (some if is_book.all() else some.where(is_book)).packed
        if len(books):
            # Only of writers that mark the ends does a message without the mark go on.
            marks = (gather_field(books, "flags") & BookFlags.MARKS_EVENT_ENDS) != 0
            if marks.any():
                is_end[is_book] = ~marks | ((flags[is_book] & MessageFlags.LAST_OF_EVENT) != 0)
        if self._by is TimeOrder.RECEIVE:
            return timestamp_ns, is_end
        times = timestamp_ns.copy()
        if len(books):
            _replace(times, is_book, gather_field(books, "exchange_ts_ns"))
        is_stamped = np.isin(type_id, (TypeId.TRADE, TypeId.BOOK_TICKER)) & (lengths >= _STAMP_BYTES)
        stamped = some.where(is_stamped).packed
        places = stamped.offsets // np.uint64(_STAMP_BYTES)
        _replace(times, is_stamped, stamped.buffer[: len(stamped.buffer) // 8 * 8].view("<u8")[places])
        return times, is_end


_STAMP_BYTES: Final[int] = 8
assert TRADE.fields is not None and TRADE.fields["timestamp_ns"][1] == 0, "a trade begins with its time"


def _replace(times: NDArray[np.uint64], where: NDArray[np.bool_], stamps: NDArray[Any]) -> None:
    """Put the exchange's times in place; what has none keeps the time of the message."""
    times[where] = np.where(stamps == 0, times[where], stamps)
