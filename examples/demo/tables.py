"""Whole queues as NumPy columns, for those who judge and those who plot. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlog.market.packing import gather_field
from everlog.market.protocol import TRADE, BookMode, TypeId
from everlog.market.replay import Replay
from everlog.queue import Queue
from examples.demo.records import SESSION_END, SESSION_END_TYPE_ID, TRADE_TYPE_ID, Record

Array = NDArray[Any]

L2, L3, TRADES, END, FOREIGN = range(5)
"""What a message of the market queue is."""


@dataclass(frozen=True)
class Table:
    """All messages of one queue whose payloads have one layout."""

    seq: Array
    timestamp_ns: Array
    type_id: Array
    rows: Array
    segments: int

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.seq)


def read_table(path: Path, record: Record) -> Table:
    """Return all messages of a queue, each with its checksum verified."""
    batches = []
    segments = set()
    with Queue.open_subscriber(path, None, "earliest") as reader:
        while len(batch := reader.read_batch()):
            segments.add(batch.segment_id)
            batches.append((batch.seq, batch.timestamp_ns, batch.type_id, batch.view(record.dtype)))
    if not batches:
        empty = np.empty(0, dtype=np.uint64)
        return Table(empty, empty, np.empty(0, dtype=np.uint16), np.empty(0, dtype=record.dtype), 0)
    seq, timestamp_ns, type_id, rows = (np.concatenate(column) for column in zip(*batches, strict=True))
    return Table(seq, timestamp_ns, type_id, rows, len(segments))


@dataclass(frozen=True)
class MarketTable:
    """The market queue: every message by seq, time and kind, and the trades as rows."""

    seq: Array
    timestamp_ns: Array
    kind: Array
    trades: Table
    ends: Array
    segments: int

    def __len__(self) -> int:
        """Return the number of messages, the feed's good-bye included."""
        return len(self.seq)

    def count(self, kind: int) -> int:
        """Return how many messages are of one kind."""
        return int(np.count_nonzero(self.kind == kind))

    @cached_property
    def started_ns(self) -> int:
        """When the first message was appended; 0 if there is none."""
        return int(self.timestamp_ns[0]) if len(self.seq) else 0


def read_market(path: Path) -> MarketTable:
    """Read the market queue, checksums and all."""
    columns: list[tuple[Array, Array, Array]] = []
    trades: list[Array] = []
    ends: list[Array] = []
    segments = set()
    for some in Replay(str(path)).batches():
        types = some.type_id
        kind = np.full(len(types), FOREIGN, dtype=np.uint8)
        is_book = types == TypeId.BOOK_EVENT
        modes = gather_field(some.where(is_book).packed, "book_mode")
        kind[is_book] = np.where(modes == BookMode.L3, L3, L2)
        for type_id, number, layout, rows in (
            (TRADE_TYPE_ID, TRADES, TRADE, trades),
            (SESSION_END_TYPE_ID, END, SESSION_END.dtype, ends),
        ):
            chosen = types == type_id
            kind[chosen] = number
            rows.append(some.batch.joined(some.chosen[chosen])[0].view(layout))
        segments.add(some.batch.segment_id)
        columns.append((some.seq.copy(), some.timestamp_ns.copy(), kind))
    if not columns:
        empty = np.empty(0, dtype=np.uint64)
        none = Table(empty, empty, np.empty(0, dtype=np.uint16), np.empty(0, dtype=TRADE), 0)
        return MarketTable(empty, empty, np.empty(0, np.uint8), none, np.empty(0, SESSION_END.dtype), 0)
    seq, timestamp_ns, kind = (np.concatenate(column) for column in zip(*columns, strict=True))
    chosen = kind == TRADES
    types = np.full(int(chosen.sum()), TRADE_TYPE_ID, dtype=np.uint16)
    found = Table(seq[chosen], timestamp_ns[chosen], types, np.concatenate(trades), len(segments))
    return MarketTable(seq, timestamp_ns, kind, found, np.concatenate(ends), len(segments))
