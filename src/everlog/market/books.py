"""Order books of one market: `L2Book` (price levels) and `L3Book` (single orders).

Owns the Python faces of the native kernels: conversions, choices and decimal text. Knows no queue and no
file; `everlog.market.book_set` keeps one book per market, `everlog.market.snapshots` saves and loads them.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from everlog.errors import Corrupt, InvalidConfig, Unsupported
from everlog.market.book_results import L2_UPDATE, ORDER_ROW, BookResult, Outputs, ResultArrays
from everlog.market.decimals import render_scaled
from everlog.market.l3_drift import Drift, apply_with_drift, drift_from_snapshot
from everlog.market.packing import PackedRecords
from everlog.market.protocol import (
    HEADER_BYTES,
    L2_SNAPSHOT,
    L3_RECORD,
    LEVEL,
    LEVEL_BYTES,
    SCHEMA_VERSION,
    BookEventType,
    BookMode,
    Side,
    layout,
    new_headers,
)
from everlog.market.result_memory import ResultMemory
from everlog.market.venues.registry import LOSES_ON_INCREASE, VENUE_IDS
from everlog.native.market.books import L2Kernel, L3Kernel

MAX_LEVELS: Final = 1 << 22
MAX_ORDERS: Final = 1 << 24
MAX_WINDOW_TICKS: Final = 1 << 24
BOOK_HASH_BYTES: Final = 16

L3_SNAPSHOT: Final = layout(
    16,
    {"price_scale": ("u1", 0), "size_scale": ("u1", 1), "version": ("<u2", 2), "order_count": ("<u8", 8)},
)
"""Starts the payload of an L3 snapshot; `order_count` rows of ORDER_ROW follow, oldest first per price."""

L3_SNAPSHOT_VERSION: Final = 2
"""In version 1 prices are unsigned, and an order with price 0 has none."""


class GapPolicy(StrEnum):
    """What a book does when numbers show that events are missing."""

    PANIC = "panic"
    QUARANTINE = "quarantine"
    IGNORE = "ignore"


class UnknownOrders(StrEnum):
    """What an L3 book does with an event about an order it does not have (or an id added twice)."""

    FAIL = "fail"
    SKIP = "skip"


class Priority(StrEnum):
    """What a modify does to an order's place in the queue; another price always costs it."""

    VENUE = "venue"
    KEEP = "keep"
    LOSE_ON_INCREASE = "lose_on_increase"


class Level(NamedTuple):
    """A price level."""

    price: int
    size: int


class OrderInfo(NamedTuple):
    """One resting order."""

    side: Side
    price: int
    qty: int


class QueuePlace(NamedTuple):
    """How many orders and how much size are ahead of an order at its price."""

    orders_ahead: int
    size_ahead: int


_GAP_NUMBERS: Final = {policy: number for number, policy in enumerate(GapPolicy)}
_UNKNOWN_NUMBERS: Final = {policy: number for number, policy in enumerate(UnknownOrders)}
_LOSING_VENUES: Final = {
    Priority.VENUE: sum(1 << VENUE_IDS[name] for name in LOSES_ON_INCREASE),
    Priority.KEEP: 0,
    Priority.LOSE_ON_INCREASE: 2**64 - 1,
}
"""A bit for each venue id at which a larger order goes to the back."""
_SIDE_INDEX: Final = {Side.BUY: 0, Side.SELL: 1}


def _check_limits(max_levels: int, max_window_ticks: int) -> None:
    if max_levels < 1 or max_window_ticks < 1:
        raise InvalidConfig(
            f"max_levels is {max_levels}, max_window_ticks {max_window_ticks}; at least 1 each"
        )


def _policy(value: str, kind: type[StrEnum], numbers: dict[Any, int]) -> int:
    try:
        return numbers[kind(value)]
    except ValueError:
        raise InvalidConfig(f"unknown policy {value!r}; valid are {', '.join(kind)}") from None


def _side_index(side: int) -> int:
    try:
        return _SIDE_INDEX[Side(side)]
    except (KeyError, ValueError):
        raise InvalidConfig(f"side is 1 (buy) or 2 (sell), not {side}") from None


class _Kernel(Protocol):
    """What both native kernels have."""

    @property
    def price_scale(self) -> int: ...
    @property
    def size_scale(self) -> int: ...
    def top(self) -> tuple[int, int, int, int]: ...
    def _raise_scales(self, price_scale: int, size_scale: int) -> None: ...


class _Book:
    """What both kinds of book offer on top of their kernels."""

    def __init__(self, **_: Any) -> None:
        """`__new__` has done everything."""

    def set_scales(self: _Kernel, price_scale: int, size_scale: int) -> None:
        """Raise the scales to at least these; what is stored is multiplied.

        A book without scales assumes that its content is at these scales already.
        """
        self._raise_scales(price_scale, size_scale)

    @property
    def best_bid(self: _Kernel) -> Level | None:
        """The highest bid."""
        price, size, _, _ = self.top()
        return Level(price, size) if size else None

    @property
    def best_ask(self: _Kernel) -> Level | None:
        """The lowest ask."""
        _, _, price, size = self.top()
        return Level(price, size) if size else None

    def render_price(self: _Kernel, price: int) -> str:
        """Return a price of this book as decimal text."""
        return render_scaled(price, self.price_scale)

    def render_size(self: _Kernel, size: int) -> str:
        """Return a size of this book as decimal text."""
        return render_scaled(size, self.size_scale)


class L2Book(_Book, L2Kernel):
    """Price levels of one market, best first, at exact integer prices.

    Prices and sizes are integers at `price_scale` and `size_scale` decimals. The scales follow the events
    and never fall; `render_price` and `render_size` give decimal text.
    """

    def __new__(
        cls,
        *,
        gap_policy: str = GapPolicy.PANIC,
        max_levels: int = MAX_LEVELS,
        max_window_ticks: int = MAX_WINDOW_TICKS,
    ) -> Self:
        """Make an empty book.

        `gap_policy` says what a diff does whose update ids do not follow: `panic` raises BookGap,
        `quarantine` skips diffs until the next snapshot, `ignore` applies it. `max_levels` bounds each
        side; `max_window_ticks` bounds the memory for direct access (8 bytes a tick and side).
        """
        _check_limits(max_levels, max_window_ticks)
        number = _policy(gap_policy, GapPolicy, _GAP_NUMBERS)
        return super().__new__(
            cls, max_levels=max_levels, max_window_ticks=max_window_ticks, gap_policy=number
        )

    def apply_array(
        self,
        events: NDArray[np.void] | PackedRecords,
        want: Outputs | None = None,
        memory: ResultMemory | None = None,
    ) -> BookResult:
        """Apply an array of `L2_UPDATE`, or packed book events; other threads run meanwhile.

        On an error the events before it stay applied, and the error names its index. A loop that drops its
        results may pass a `ResultMemory`, whose memory is used again.
        """
        wanted = want or Outputs()
        arrays = ResultArrays(len(events), wanted, orders=False, memory=memory)
        before = (self.price_scale, self.size_scale)
        if isinstance(events, PackedRecords):
            count = self._apply_records(events.buffer, events.offsets, events.lengths, arrays.output)
        else:
            if events.dtype != L2_UPDATE:
                raise Unsupported(f"an L2 book applies arrays of L2_UPDATE, not of {events.dtype}")
            raw = np.ascontiguousarray(events).view(np.uint8).reshape(-1)
            count = self._apply_updates(raw, len(events), arrays.output)
        return arrays.result(count, before, (self.price_scale, self.size_scale))

    def size_at(self, side: int, price: int) -> int:
        """Return the size at a price, 0 if there is none."""
        return self._size_at(_side_index(side), price)

    def depth(self, count: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Return the best `count` bids and asks as arrays of `LEVEL`."""
        return self._side_levels(0, count), self._side_levels(1, count)

    def best_packed(self, count: int) -> tuple[bytes, bytes]:
        """Return the best `count` bids and asks as the bytes of `LEVEL`s: for few, `depth` takes longer."""
        room = bytearray(count * LEVEL_BYTES)
        bids = bytes(room[: self._levels(0, count, room) * LEVEL_BYTES])
        return bids, bytes(room[: self._levels(1, count, room) * LEVEL_BYTES])

    def bids(self) -> NDArray[np.void]:
        """Return all bids, the highest first."""
        return self._side_levels(0, self.bid_count)

    def asks(self) -> NDArray[np.void]:
        """Return all asks, the lowest first."""
        return self._side_levels(1, self.ask_count)

    def _side_levels(self, side: int, wanted: int) -> NDArray[np.void]:
        room = min(wanted, self.bid_count if side == 0 else self.ask_count)
        levels = np.zeros(room, dtype=LEVEL)
        self._levels(side, room, levels.view(np.uint8).reshape(-1))
        return levels

    def snapshot_payload(self) -> bytes:
        """Return the whole book as an L2 snapshot body with its levels."""
        bids, asks = self.bids(), self.asks()
        body = np.zeros((), dtype=L2_SNAPSHOT)
        body["price_scale"], body["size_scale"] = self.price_scale, self.size_scale
        body["bid_count"], body["ask_count"] = len(bids), len(asks)
        return body.tobytes() + bids.tobytes() + asks.tobytes()

    def load_payload(self, payload: Buffer, *, schema_version: int = SCHEMA_VERSION) -> None:
        """Become the book that `snapshot_payload` returned; its prices are those of a schema version."""
        data = bytes(payload)
        header = new_headers(1, BookEventType.SNAPSHOT, BookMode.L2)
        header["schema_version"] = schema_version
        header["record_len"] = HEADER_BYTES + len(data)
        self.apply(header.tobytes() + data)

    def book_hash(self) -> bytes:
        """Return 16 bytes that are equal for equal books: BLAKE2b of the snapshot payload."""
        return hashlib.blake2b(self.snapshot_payload(), digest_size=BOOK_HASH_BYTES).digest()


class L3Book(_Book, L3Kernel):
    """Single orders of one market, by price and in order of arrival.

    Orders without a usable price (market orders, no price, unknown side) are kept but stand on no level,
    so depth is a lower bound. Trades are what the venue says; nothing is matched here.
    """

    def __new__(
        cls,
        *,
        gap_policy: str = GapPolicy.PANIC,
        unknown_orders: str = UnknownOrders.FAIL,
        priority: str = Priority.VENUE,
        max_orders: int = MAX_ORDERS,
        max_levels: int = MAX_LEVELS,
        max_window_ticks: int = MAX_WINDOW_TICKS,
    ) -> Self:
        """Make an empty book.

        `gap_policy` says what happens when `seq` does not rise by one (0 is never checked):
        `panic` raises BookGap, `quarantine` skips events until the next reset, `ignore` goes on.
        `unknown_orders`: `fail` raises, `skip` counts and goes on. `priority`: the rule of the venue that
        an event names, or one for all: with `keep` a larger order keeps its place in the queue, with
        `lose_on_increase` it goes to the back.
        """
        _check_limits(max_levels, max_window_ticks)
        if not 1 <= max_orders < 2**31:
            raise InvalidConfig(f"max_orders is {max_orders}; 1 to 2^31 - 1 are possible")
        return super().__new__(
            cls,
            max_orders=max_orders,
            max_levels=max_levels,
            max_window_ticks=max_window_ticks,
            gap_policy=_policy(gap_policy, GapPolicy, _GAP_NUMBERS),
            unknown_policy=_policy(unknown_orders, UnknownOrders, _UNKNOWN_NUMBERS),
            losing_venues=_policy(priority, Priority, _LOSING_VENUES),
        )

    def apply_array(
        self,
        events: NDArray[np.void] | PackedRecords,
        want: Outputs | None = None,
        memory: ResultMemory | None = None,
    ) -> BookResult:
        """Apply an array of `L3_RECORD` (also strided, as `Batch.view` gives it) or packed book events.

        Other threads run meanwhile. On an error the events before it stay applied, and the error names
        its index. With `drift` packed events may have L2 snapshots among them, with which the book is
        compared; the index of an error is then counted from the snapshot before it. A loop that drops its
        results may pass a `ResultMemory`, whose memory is used again.
        """
        wanted = want or Outputs()
        if wanted.drift and isinstance(events, PackedRecords):
            return apply_with_drift(self, events, wanted, self._apply)
        return self._apply(events, wanted, memory)

    def drift(self, snapshot: Buffer) -> Drift:
        """Compare the book with an L2 snapshot event of its venue, within the snapshot's prices."""
        return drift_from_snapshot(self, np.frombuffer(memoryview(snapshot), dtype=np.uint8))

    def _apply(
        self,
        events: NDArray[np.void] | PackedRecords,
        wanted: Outputs,
        memory: ResultMemory | None = None,
    ) -> BookResult:
        arrays = ResultArrays(len(events), wanted, orders=True, memory=memory)
        before = (self.price_scale, self.size_scale)
        if isinstance(events, PackedRecords):
            count = self._apply_records(events.buffer, events.offsets, events.lengths, arrays.output)
        else:
            if events.dtype != L3_RECORD or events.ndim != 1:
                raise Unsupported(f"an L3 book applies arrays of L3_RECORD, not of {events.dtype}")
            count = self._apply_array(events.ctypes.data, events.strides[0], len(events), arrays.output)
        return arrays.result(count, before, (self.price_scale, self.size_scale))

    def order(self, order_id: int) -> OrderInfo | None:
        """Return an order, None if it is not in the book."""
        found = self._order(order_id)
        return None if found is None else OrderInfo(Side(found[0]), found[1], found[2])

    def queue_place(self, order_id: int) -> QueuePlace | None:
        """Return what is ahead of an order at its price, None if it is on no level."""
        found = self._place(order_id)
        return None if found is None else QueuePlace(*found)

    def queue(self, side: int, price: int) -> list[int]:
        """Return the ids of the orders at a price, oldest first."""
        return self._queue(_side_index(side), price)

    def depth(self, count: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Return the best `count` bids and asks as arrays of `LEVEL`."""
        return self._side_levels(0, count)[0], self._side_levels(1, count)[0]

    def order_counts(self, count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return how many orders the best `count` bids and asks have."""
        return self._side_levels(0, count)[1], self._side_levels(1, count)[1]

    def _side_levels(self, side: int, wanted: int) -> tuple[NDArray[np.void], NDArray[np.uint32]]:
        room = min(wanted, self.bid_count if side == 0 else self.ask_count)
        levels, orders = np.zeros(room, dtype=LEVEL), np.zeros(room, dtype=np.uint32)
        self._levels(side, room, levels.view(np.uint8).reshape(-1), orders)
        return levels, orders

    def orders(self) -> NDArray[np.void]:
        """Return all orders as `ORDER_ROW`: bids and asks from the best, then those on no level."""
        rows = np.zeros(self.order_count, dtype=ORDER_ROW)
        self._rows(rows.view(np.uint8).reshape(-1))
        return rows

    def snapshot_payload(self) -> bytes:
        """Return the whole book: `L3_SNAPSHOT` and the orders, in an order that keeps their places."""
        rows = self.orders()
        head = np.zeros((), dtype=L3_SNAPSHOT)
        head["price_scale"], head["size_scale"] = self.price_scale, self.size_scale
        head["version"], head["order_count"] = L3_SNAPSHOT_VERSION, len(rows)
        return head.tobytes() + rows.tobytes()

    def load_payload(self, payload: Buffer) -> None:
        """Become the book that `snapshot_payload` returned."""
        data = np.frombuffer(bytes(payload), dtype=np.uint8)
        if len(data) < L3_SNAPSHOT.itemsize:
            raise Corrupt(f"an L3 snapshot has at least {L3_SNAPSHOT.itemsize} bytes, this one {len(data)}")
        head = data[: L3_SNAPSHOT.itemsize].view(L3_SNAPSHOT)[0]
        if not 1 <= head["version"] <= L3_SNAPSHOT_VERSION:
            raise Unsupported(f"L3 snapshot version {head['version']} is unknown; known are 1 and 2")
        rows = data[L3_SNAPSHOT.itemsize :]
        count = int(head["order_count"])
        if len(rows) != count * ORDER_ROW.itemsize:
            raise Corrupt(f"the L3 snapshot counts {count} orders and has {len(rows)} bytes for them")
        self.clear()
        self._raise_scales(int(head["price_scale"]), int(head["size_scale"]))
        factors = self.price_scale - int(head["price_scale"]), self.size_scale - int(head["size_scale"])
        if factors != (0, 0):
            raise Unsupported("the book has seen larger scales than the snapshot's; load it into a new book")
        if head["version"] == 1:
            rows = _with_signed_prices(rows)
        self._restore(rows, count)

    def book_hash(self) -> bytes:
        """Return 16 bytes that are equal for equal orders, in whatever order they arrived.

        BLAKE2b over the scales, then over the orders by id: id, side, ord_type, price, qty, flags, last time.
        """
        rows = self.orders()
        rows = rows[np.argsort(rows["order_id"])]
        hashed = np.zeros(len(rows), dtype=_HASHED_ORDER)
        for name in _HASHED_ORDER.names or ():
            hashed[name] = rows[name]
        digest = hashlib.blake2b(bytes([self.price_scale, self.size_scale]), digest_size=BOOK_HASH_BYTES)
        digest.update(hashed.tobytes())
        return digest.digest()


def _with_signed_prices(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the orders of a snapshot of version 1, in which a price of 0 was none."""
    orders = rows.copy().view(ORDER_ROW)
    if (orders["price"] < 0).any():
        raise Unsupported(
            "the L3 snapshot of version 1 has a price above 2^63 - 1; rebuild the book from events"
        )
    orders["no_price"] = orders["price"] == 0
    return orders.view(np.uint8).reshape(-1)


_HASHED_ORDER: Final = np.dtype(
    [
        ("order_id", "<u8"),
        ("side", "u1"),
        ("ord_type", "u1"),
        ("price", "<i8"),
        ("qty", "<u8"),
        ("flags", "<u4"),
        ("last_ts_ns", "<u8"),
    ]
)
