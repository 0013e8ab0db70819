"""Order-by-order events of one market as rows of hftbacktest 2 (its L3 feed).

Owns what an event becomes. The book decides: a row says how an order stands after the event, so a reader
needs no rule of a venue. Orders on no level are left out, and so are events about orders that were never
added. Events come in the order of the exchange: one with an earlier time, as orders of a snapshot have it,
counts as of the latest time before it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.market.books import L3Book, UnknownOrders
from everlog.market.feature_engine import order_takers
from everlog.market.hftbacktest_rows import (
    ADD_ORDER_EVENT,
    CANCEL_ORDER_EVENT,
    DEPTH_CLEAR_EVENT,
    EVENT,
    FILL_EVENT,
    MODIFY_ORDER_EVENT,
    SIDE_FLAGS,
    TRADE_EVENT,
)
from everlog.market.packing import PackedRecords, gather_headers, gather_records
from everlog.market.protocol import L3_RECORD, L3_RECORD_BYTES, BookEventType, BookFlags, L3EventType, Side

_FILL_OF_DBN: Final = ord("F")
"""`exec_type` of a heartbeat that says which resting order a trade filled."""
_FIELDS: Final = ("event_type", "side", "exec_type", "order_id", "bid_order_id", "ask_order_id")


class _Shown(NamedTuple):
    """An order as a reader of the rows has it."""

    side: Side
    price: float
    quantity: float


class _Event(NamedTuple):
    """One event; prices and quantities are floats."""

    kind: int
    side: int
    exec_type: int
    order_id: int
    bid_order_id: int
    ask_order_id: int
    price: float
    quantity: float
    taker: int
    resets: bool

    @property
    def order_ids(self) -> tuple[int, ...]:
        """The orders that it may change."""
        return (self.bid_order_id, self.ask_order_id) if self.kind == L3EventType.TRADE else (self.order_id,)


class OrderRows:
    """Remembers the book from batch to batch."""

    def __init__(self) -> None:
        self._book = L3Book(unknown_orders=UnknownOrders.SKIP)
        self._book._leave_numbers_to_the_channel()
        self._shown: dict[int, _Shown] = {}
        self._latest_ns = 0

    def rows(
        self, packed: PackedRecords, exchange_ns: NDArray[np.int64]
    ) -> tuple[list[int], NDArray[np.void]]:
        """Return how many rows each event has, and the rows, without times of receipt."""
        found: list[tuple[Any, ...]] = []
        counts = []
        for payload, event in zip(packed, _events(packed), strict=True):
            before = len(found)
            self._book.apply(payload)
            self._add_rows(event, found)
            counts.append(len(found) - before)
        table = np.zeros(len(found), EVENT)
        for name, column in zip(("ev", "px", "qty", "order_id"), zip(*found, strict=True), strict=False):
            table[name] = column
        if len(packed):
            latest = np.maximum.accumulate(np.maximum(exchange_ns, self._latest_ns))
            self._latest_ns = int(latest[-1])
            table["exch_ts"] = np.repeat(latest, counts)
        return counts, table

    def _add_rows(self, event: _Event, found: list[tuple[Any, ...]]) -> None:
        if event.resets:
            self._shown.clear()
            found.append((DEPTH_CLEAR_EVENT, 0.0, 0.0, 0))
        if event.kind == L3EventType.TRADE:
            found.append((TRADE_EVENT | SIDE_FLAGS[event.taker], event.price, event.quantity, 0))
        is_fill = event.kind == L3EventType.HEARTBEAT and event.exec_type == _FILL_OF_DBN
        for order_id in event.order_ids:
            old = self._shown.get(order_id)
            if old is not None and (is_fill or event.kind == L3EventType.TRADE):
                found.append((FILL_EVENT | SIDE_FLAGS[old.side], event.price, event.quantity, order_id))
            self._add_change(order_id, old, found)

    def _add_change(self, order_id: int, old: _Shown | None, found: list[tuple[Any, ...]]) -> None:
        """Say how an order stands now, if that is another way than before."""
        new = self._order(order_id)
        if new == old:
            return
        if old is not None and (new is None or new.side != old.side):
            del self._shown[order_id]
            found.append((CANCEL_ORDER_EVENT | SIDE_FLAGS[old.side], old.price, old.quantity, order_id))
            old = None
        if new is not None:
            kind = ADD_ORDER_EVENT if old is None else MODIFY_ORDER_EVENT
            self._shown[order_id] = new
            found.append((kind | SIDE_FLAGS[new.side], new.price, new.quantity, order_id))

    def _order(self, order_id: int) -> _Shown | None:
        """Return an order that stands on a level."""
        order = self._book.order(order_id) if order_id else None
        if order is None or not order.qty or (not order.price and self._book.queue_place(order_id) is None):
            return None
        units = 10.0**self._book.price_scale, 10.0**self._book.size_scale
        return _Shown(order.side, order.price / units[0], order.qty / units[1])


def _events(packed: PackedRecords) -> list[_Event]:
    headers = gather_headers(packed)
    is_reset = headers["event_type"] == BookEventType.RESET
    records = np.zeros(len(packed), L3_RECORD)
    # A header alone empties a book, or says nothing.
    records["event"]["event_type"] = np.where(is_reset, L3EventType.RESET, L3EventType.HEARTBEAT)
    whole = packed.lengths == L3_RECORD_BYTES
    records[whole] = gather_records(packed.take(np.flatnonzero(whole)), L3_RECORD)
    events = records["event"]
    resets = (headers["flags"] & BookFlags.RESETS) != 0
    columns = [
        *(events[name] for name in _FIELDS),
        events["price"] / 10.0 ** events["price_scale"],
        events["qty"] / 10.0 ** events["size_scale"],
        order_takers(events),
        resets | (events["event_type"] == L3EventType.RESET),
    ]
    return [_Event(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
