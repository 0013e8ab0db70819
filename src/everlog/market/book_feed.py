"""Book events of a queue into books, batch by batch and without a copy.

Owns the choice of messages (book events, of some markets) and the short way of orders that follow each other;
the reader and the books are the caller's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.market.book_results import Outputs, ResultArrays
from everlog.market.book_set import BookSet, Market, MarketResult
from everlog.market.packing import PackedRecords
from everlog.market.protocol import HEADER_BYTES, TypeId
from everlog.market.result_memory import ResultMemory
from everlog.native.market import books as native
from everlog.queue import Batch, QueueReader
from everlog.queue.layout import HEADER_SIZE

MARKET_ID_AT = 12
EXCHANGE_TS_AT = 32


@dataclass(frozen=True, slots=True)
class FeedStep:
    """One batch: the chosen messages in order, and what they did to each market's book."""

    seq: NDArray[np.uint64]
    timestamp_ns: NDArray[np.uint64]
    exchange_ts_ns: NDArray[np.uint64]
    results: dict[Market, MarketResult]


class OrdersTaken(NamedTuple):
    """Messages that were taken straight into a book, and what they did to it."""

    batch: Batch
    results: dict[Market, MarketResult]


def take_orders(
    reader: QueueReader,
    books: BookSet,
    max_messages: int,
    want: Outputs | None = None,
    memory: ResultMemory | None = None,
) -> OrdersTaken | None:
    """Take the next messages of a queue straight into the book of the last run of orders.

    None, with nothing taken, if there was no such run, or if they do not go on with it: other messages,
    another market, a gap in the numbers, damage, the end of the segment or of the queue. To read a batch and
    apply it is right in each of these cases. Where a queue was written market by market this saves most of
    the work that is not the book's.
    """
    run = books.last_run
    if run is None:
        return None
    book, wanted = run.book, want or Outputs()
    arrays = ResultArrays(max_messages, wanted, orders=True, memory=memory)
    before = (book.price_scale, book.size_scale)
    number = (run.stream.numbers.last or 0) + 1
    keys = (run.market_key, run.channel_key, number)
    batch = Batch(
        *native.take_orders(
            reader, book, arrays.output, TypeId.BOOK_EVENT, *keys, max_messages, reader.verifies
        )
    )
    if len(batch) == 0:
        return None
    books.went_on(run, len(batch))
    result = arrays.result(len(batch), before, (book.price_scale, book.size_scale))
    events = _first_numbers(max_messages)[: len(batch)]
    return OrdersTaken(batch, {run.market: MarketResult(events, result)})


@lru_cache(maxsize=4)
def _first_numbers(count: int) -> NDArray[np.intp]:
    """Return the numbers below `count`, read-only, because all batches share them."""
    numbers = np.arange(count)
    numbers.flags.writeable = False
    return numbers


class BookFeed:
    """Feeds the books of a set from a queue."""

    def __init__(
        self, reader: QueueReader, books: BookSet, market_ids: Collection[int] | None = None
    ) -> None:
        """`market_ids` chooses markets; None takes all."""
        self._reader = reader
        self.books = books
        self._memory = ResultMemory()
        self._market_ids = None if market_ids is None else np.array(sorted(market_ids), dtype=np.uint32)

    def advance(self, max_messages: int = 65536, want: Outputs | None = None) -> FeedStep | None:
        """Apply the next batch; None if nothing is there. Other messages than book events are passed over."""
        with self._reader.read_batch(max_messages) as batch:
            if len(batch) == 0:
                return None
            lengths = batch.length.astype(np.uint64)
            chosen = np.flatnonzero((batch.type_id == TypeId.BOOK_EVENT) & (lengths >= HEADER_BYTES))
            offsets = batch.offset[chosen] + np.uint64(HEADER_SIZE)
            segment = batch.segment
            if self._market_ids is not None:
                kept = np.isin(_field(segment, offsets, MARKET_ID_AT, np.uint32), self._market_ids)
                chosen, offsets = chosen[kept], offsets[kept]
            packed = PackedRecords(segment, offsets, lengths[chosen])
            results = self.books.apply_packed(packed, want, self._memory)
            return FeedStep(
                batch.seq[chosen].copy(),
                batch.timestamp_ns[chosen].copy(),
                _field(segment, offsets, EXCHANGE_TS_AT, np.uint64),
                results,
            )


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
