"""The outputs of a book for an array of events: the choice, the arrays and their meaning.

Owns the dtypes of outputs and their assembly from what the kernels wrote. Knows no event format.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market.decimals import POWERS_OF_TEN
from everlog.market.protocol import LEVEL
from everlog.market.result_memory import ResultMemory, aligned_array
from everlog.native.market.books import BookOutput

TOP: Final = np.dtype([("bid_price", "<i8"), ("bid_size", "<u8"), ("ask_price", "<i8"), ("ask_size", "<u8")])
"""Best prices and sizes; a size of 0 means that the side is empty."""

L2_UPDATE: Final = np.dtype(
    {
        "names": ["price", "size", "side"],
        "formats": ["<i8", "<u8", "u1"],
        "offsets": [0, 8, 16],
        "itemsize": 24,
    }
)
"""One level that changes, at the book's own scales; side 1 buy, 2 sell; size 0 removes."""

ORDER_ROW: Final = np.dtype(
    {
        "names": ["order_id", "price", "qty", "last_ts_ns", "flags", "side", "ord_type", "no_price"],
        "formats": ["<u8", "<i8", "<u8", "<u8", "<u4", "u1", "u1", "u1"],
        "offsets": [0, 8, 16, 24, 32, 36, 37, 38],
        "itemsize": 40,
    }
)
"""An order of an L3 book; `no_price`: it has none, and its price of 0 means nothing."""

QUEUE_PLACE: Final = np.dtype([("orders_ahead", "<u8"), ("size_ahead", "<u8")])
"""Where an order stands among those of its price; `NOT_QUEUED` twice if it is in no queue."""

NOT_QUEUED: Final = 2**64 - 1

GAP: Final = np.dtype([("index", "<u8"), ("seen", "<u8"), ("found", "<u8"), ("_", "V16")])
"""Event `index` has number `found` (or begins with it) although `seen` was the last before."""

DRIFT: Final = np.dtype(
    [("index", "<u8"), ("missing", "<u8"), ("extra", "<u8"), ("changed", "<u8"), ("_", "V8")]
)
"""How the book differed from the snapshot that event `index` brought, within the snapshot's prices."""

MATCHED_TRADE: Final = np.dtype(
    [("index", "<u8"), ("bid_taken", "<u8"), ("ask_taken", "<u8"), ("price", "<i8"), ("qty", "<u8")]
)
"""What the trade of event `index` took from the orders it names."""

_ORDER_COUNT: Final = np.dtype(np.uint32)
_STATUS: Final = np.dtype(np.uint8)
_SCALES: Final = np.dtype([("index", "<u8"), ("price", "<u8"), ("size", "<u8"), ("_", "V16")])


class EventStatus(IntEnum):
    """What became of one event."""

    APPLIED = 0
    QUARANTINED = 1
    STALE = 2
    UNKNOWN_ORDER = 3


@dataclass(frozen=True, slots=True)
class Outputs:
    """What to write while an array is applied.

    `top` and `depth` (levels a side) get a row after every `every` events. `statuses`, `places` (queue
    positions) have a row per event. `drift` compares the book with each snapshot (an L3 book with the L2
    snapshots among packed events); `trades` lists what trades took. Gaps are always listed.
    """

    top: bool = True
    every: int = 1
    depth: int = 0
    statuses: bool = False
    places: bool = False
    trades: bool = False
    drift: bool = False


@dataclass(frozen=True, slots=True)
class BookResult:
    """What an array of events did to a book; parts that were not asked for are None.

    Prices and sizes of all rows are at `price_scale` and `size_scale`, even if the scales rose on the way.
    """

    count: int
    price_scale: int
    size_scale: int
    top: NDArray[np.void] | None
    bids: NDArray[np.void] | None
    asks: NDArray[np.void] | None
    bid_orders: NDArray[np.uint32] | None
    ask_orders: NDArray[np.uint32] | None
    statuses: NDArray[np.uint8] | None
    places: NDArray[np.void] | None
    gaps: NDArray[np.void]
    drifts: NDArray[np.void]
    trades: NDArray[np.void]

    def joined(self, later: BookResult) -> BookResult:
        """Return one result for two arrays applied one after the other, at the later one's scales."""
        decimals = later.price_scale - self.price_scale, later.size_scale - self.size_scale
        for array in (self.top, self.bids, self.asks, self.trades):
            if array is not None:
                _raise_rows(array, *decimals)
        if self.places is not None:
            _raise_places(self.places, decimals[1])
        parts: dict[str, Any] = {}
        for field in fields(self):
            before, after = getattr(self, field.name), getattr(later, field.name)
            if isinstance(before, np.ndarray):
                after = after.copy()
                if "index" in (after.dtype.names or ()):
                    after["index"] += np.uint64(self.count)
                after = np.concatenate([before, after])
            parts[field.name] = after
        return BookResult(**{**parts, "count": self.count + later.count})


class ResultArrays:
    """Arrays for one call of a kernel, and the result made of them."""

    def __init__(
        self, events: int, want: Outputs, *, orders: bool, memory: ResultMemory | None = None
    ) -> None:
        """`orders`: the book knows single orders, so levels have a number of orders."""
        if want.every < 1 or want.depth < 0:
            raise InvalidConfig(f"every is {want.every} and depth {want.depth}; at least 1 and 0 are needed")
        rows = events // want.every
        self._every = want.every
        # Every row of these is written whole; of all others only what is there.
        self._memory = memory
        whole = aligned_array if memory is None else memory.array
        self._top = whole(rows, TOP) if want.top else None
        self._places = whole(events, QUEUE_PLACE) if want.places else None
        shape = (rows, want.depth)
        self._bids = self._cleared(shape, LEVEL) if want.depth else None
        self._asks = self._cleared(shape, LEVEL) if want.depth else None
        counted = bool(want.depth and orders)
        self._bid_orders = self._cleared(shape, _ORDER_COUNT) if counted else None
        self._ask_orders = self._cleared(shape, _ORDER_COUNT) if counted else None
        self._statuses = self._cleared(events, _STATUS) if want.statuses else None
        wanted = want.top or want.depth
        self.output = BookOutput(
            events,
            want.every if wanted else 0,
            want.depth,
            self._top,
            self._bids,
            self._asks,
            self._bid_orders,
            self._ask_orders,
            self._places,
            self._statuses,
            want.drift,
            want.trades,
        )

    def _cleared(self, shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if self._memory is None:
            return np.zeros(shape, dtype=dtype)
        array = self._memory.array(shape, dtype)
        array.reshape(-1).view(np.uint8).fill(0)
        return array

    def result(self, count: int, scales_before: tuple[int, int], scales: tuple[int, int]) -> BookResult:
        """Return what `count` events have written, brought to the scales of the last one."""
        gaps, drifts, rescaled, matched = self.output.reports()
        trades = _report(matched, MATCHED_TRADE)
        first, before = 0, scales_before
        for change in _report(rescaled, _SCALES):
            stop = int(change["index"])
            self._raise(trades, first, stop, (scales[0] - before[0], scales[1] - before[1]))
            first, before = stop, (int(change["price"]), int(change["size"]))
        rows = count // self._every
        return BookResult(
            count,
            *scales,
            _first(self._top, rows),
            _first(self._bids, rows),
            _first(self._asks, rows),
            _first(self._bid_orders, rows),
            _first(self._ask_orders, rows),
            _first(self._statuses, count),
            _first(self._places, count),
            _report(gaps, GAP),
            _report(drifts, DRIFT),
            trades,
        )

    def _raise(self, trades: NDArray[np.void], first: int, stop: int, decimals: tuple[int, int]) -> None:
        """Multiply what events `first` to `stop` wrote, so that one scale holds for all rows."""
        rows = slice(first // self._every, stop // self._every)
        for array in (self._top, self._bids, self._asks):
            if array is not None:
                _raise_rows(array[rows], *decimals)
        early = np.searchsorted(trades["index"], [first, stop])
        _raise_rows(trades[early[0] : early[1]], *decimals)
        if self._places is not None:
            _raise_places(self._places[first:stop], decimals[1])


def _first(array: NDArray[Any] | None, rows: int) -> NDArray[Any] | None:
    return array if array is None or len(array) == rows else array[:rows]


def _raise_rows(rows: NDArray[np.void], price_decimals: int, size_decimals: int) -> None:
    for name in rows.dtype.names or ():
        decimals = price_decimals if name.endswith("price") else size_decimals
        if decimals > 0 and name != "index":
            rows[name] *= rows.dtype[name].type(POWERS_OF_TEN[decimals])


def _raise_places(places: NDArray[np.void], size_decimals: int) -> None:
    queued = places["size_ahead"] != NOT_QUEUED
    if size_decimals > 0:
        places["size_ahead"][queued] *= np.uint64(POWERS_OF_TEN[size_decimals])


def _report(written: bytes, layout: np.dtype[Any]) -> NDArray[np.void]:
    if not written:
        return np.empty(0, layout)
    rows: NDArray[np.void] = np.frombuffer(bytearray(written), dtype=layout)
    return rows
