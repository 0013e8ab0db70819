"""Book events of a queue into books, batch by batch and without a copy.

Owns the choice of messages: book events, of some markets. The reader and the books are the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlog.market.book_results import EventStatus, Outputs
from everlog.market.book_set import BookSet, Market, MarketResult
from everlog.market.books import GapPolicy
from everlog.market.packing import PackedRecords, gather_headers
from everlog.market.protocol import HEADER_BYTES, TypeId
from everlog.market.result_memory import ResultMemory
from everlog.queue import QueueReader
from everlog.queue.layout import HEADER_SIZE

MARKET_ID_AT = 12
EXCHANGE_TS_AT = 32


@dataclass(frozen=True, slots=True)
class FeedStep:
    """One batch: the chosen messages in order, and what they did to each market's book."""

    seq: NDArray[np.uint64]
    timestamp_ns: NDArray[np.uint64]
    exchange_ts_ns: NDArray[np.uint64]
    length: NDArray[np.uint64]
    results: dict[Market, MarketResult]


class BookFeed:
    """Feeds the books of a set from a queue."""

    def __init__(
        self,
        reader: QueueReader,
        books: BookSet,
        market_ids: Collection[int] | None = None,
        *,
        is_whole: bool = False,
    ) -> None:
        """`market_ids` chooses markets; None takes all. `is_whole`: the books know all earlier messages."""
        self._reader = reader
        self.books = books
        self.gaps: Counter[Market] = Counter()
        """Holes in the numbers of each market, or of the channel on which its orders came."""
        self.skipped: Counter[Market] = Counter()
        """Events that were not applied: older than a snapshot, or in quarantine."""
        self._memory = ResultMemory()
        self._begun = is_whole
        self._market_ids = None if market_ids is None else np.array(sorted(market_ids), dtype=np.uint32)
        if market_ids is not None:
            books.take_some_markets()

    def advance(self, max_messages: int = 65536, want: Outputs | None = None) -> FeedStep | None:
        """Apply the next batch; None if nothing is there. Other messages than book events are passed over."""
        with self._reader.read_batch(max_messages) as batch:
            if len(batch) == 0:
                return None
            if not self._begun and batch.seq[0] > 0:
                self.books.begin_in_middle()
            self._begun = True
            lengths = batch.length.astype(np.uint64)
            chosen = np.flatnonzero((batch.type_id == TypeId.BOOK_EVENT) & (lengths >= HEADER_BYTES))
            offsets = batch.offset[chosen] + np.uint64(HEADER_SIZE)
            segment = batch.segment
            if self._market_ids is not None:
                kept = np.isin(_field(segment, offsets, MARKET_ID_AT, np.uint32), self._market_ids)
                chosen, offsets = chosen[kept], offsets[kept]
            packed = PackedRecords(segment, offsets, lengths[chosen])
            results = self.books.apply_packed(packed, self._wanted(want), self._memory)
            self._count(packed, results)
            return FeedStep(
                batch.seq[chosen].copy(),
                batch.timestamp_ns[chosen].copy(),
                _field(segment, offsets, EXCHANGE_TS_AT, np.uint64),
                lengths[chosen],
                results,
            )

    def _wanted(self, want: Outputs | None) -> Outputs:
        """Ask for what became of each event where some may be skipped; elsewhere books are faster without."""
        wanted = want or Outputs()
        is_strict = self.books.settings.gap_policy == GapPolicy.PANIC
        return wanted if is_strict else replace(wanted, statuses=True)

    def _count(self, packed: PackedRecords, results: dict[Market, MarketResult]) -> None:
        for market, (_, result) in results.items():
            self.gaps[market] += len(result.gaps)
            if result.statuses is None:
                continue
            unapplied = (result.statuses == EventStatus.QUARANTINED) | (result.statuses == EventStatus.STALE)
            self.skipped[market] += int(unapplied.sum())
        for gap in self.books.channel_gaps:
            head = gather_headers(packed.take(np.array([gap.event])))[0]
            self.gaps[Market(gap.venue_id, int(head["market_id"]))] += 1


def _field(
    segment: NDArray[np.uint8],
    offsets: NDArray[np.uint64],
    position: int,
    kind: type[np.unsignedinteger[Any]],
) -> NDArray[Any]:
    """Return one field of each payload; payloads in a queue begin at multiples of 64."""
    width = np.dtype(kind).itemsize
    column = segment[: len(segment) // width * width].view(kind)
    values: NDArray[Any] = column[(offsets + np.uint64(position)) // np.uint64(width)]
    return values
