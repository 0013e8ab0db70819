"""Plain-Python order books, the oracles of the native ones: dictionaries, sorting, no tricks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from everlog.market.protocol import (
    L3_RECORD,
    BookEventType,
    BookMode,
    L3EventType,
    L3Flags,
    new_headers,
    new_l3_records,
)

Top = tuple[int, int, int, int]


@dataclass
class L2Twin:
    """Levels of both sides; index 0 bids, 1 asks."""

    sides: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))

    def update(self, side: int, price: int, size: int) -> None:
        levels = self.sides[side - 1]
        if size:
            levels[price] = size
        else:
            levels.pop(price, None)

    def clear(self) -> None:
        for levels in self.sides:
            levels.clear()

    def levels(self, side: int) -> list[tuple[int, int]]:
        return sorted(self.sides[side - 1].items(), reverse=side == 1)

    def top(self) -> Top:
        bids, asks = self.sides
        bid = max(bids) if bids else 0
        ask = min(asks) if asks else 0
        return bid, bids.get(bid, 0), ask, asks.get(ask, 0)


@dataclass
class TwinOrder:
    side: int
    price: int
    qty: int
    flags: int
    arrival: int
    has_price: bool

    def is_on_ladder(self) -> bool:
        is_market = bool(self.flags & L3Flags.PRICE_IS_MARKET)
        return self.has_price and self.qty > 0 and self.side in (1, 2) and not is_market


@dataclass
class L3Twin:
    """Orders by id; levels and queues are worked out anew each time they are asked for."""

    orders: dict[int, TwinOrder] = field(default_factory=dict)
    arrivals: int = 0
    unknown: int = 0
    loses_on_increase: bool = False
    has_price: bool = True
    """Whether the event at hand has one."""

    def apply(self, record: np.void) -> None:
        event = record["event"]
        # Up to version 3 a price of 0 was none; since then an event says so.
        is_old = record["header"]["schema_version"] <= 3
        self.has_price = bool(event["price"]) if is_old else not event["flags"] & L3Flags.NO_PRICE
        kind, order_id = int(event["event_type"]), int(event["order_id"])
        qty = int(event["qty"])
        if kind == L3EventType.ORDER_ADD:
            self._add(event)
        elif kind == L3EventType.ORDER_CANCEL and order_id:
            self._reduce(order_id, qty)
        elif kind == L3EventType.ORDER_MODIFY:
            self._modify(event)
        elif kind == L3EventType.TRADE:
            named = [int(event["bid_order_id"]), int(event["ask_order_id"])]
            for one in [name for name in named if name] or [order_id]:
                if one:
                    self._reduce(one, qty)
        elif kind == L3EventType.RESET:
            self.orders.clear()

    def _add(self, event: np.void) -> None:
        self.arrivals += 1
        self.orders.pop(int(event["order_id"]), None)
        self.orders[int(event["order_id"])] = TwinOrder(
            int(event["side"]),
            int(event["price"]),
            int(event["qty"]),
            int(event["flags"]),
            self.arrivals,
            self.has_price,
        )

    def _reduce(self, order_id: int, qty: int) -> None:
        order = self.orders.get(order_id)
        if order is None:
            self.unknown += 1
            return
        order.qty -= min(qty, order.qty) if qty else order.qty
        if order.qty == 0:
            del self.orders[order_id]

    def _modify(self, event: np.void) -> None:
        order = self.orders.get(int(event["order_id"]))
        if order is None:
            self.unknown += 1
            return
        before = (order.is_on_ladder(), order.price)
        is_larger = self.loses_on_increase and int(event["qty"]) > order.qty
        order.qty = int(event["qty"]) or order.qty
        if self.has_price:
            order.price, order.has_price = int(event["price"]), True
        order.side = order.side or int(event["side"])
        order.flags = int(event["flags"])
        if is_larger or before != (order.is_on_ladder(), order.price):
            self.arrivals += 1
            order.arrival = self.arrivals

    def queue(self, side: int, price: int) -> list[int]:
        found = [
            (order.arrival, order_id)
            for order_id, order in self.orders.items()
            if order.is_on_ladder() and (order.side, order.price) == (side, price)
        ]
        return [order_id for _, order_id in sorted(found)]

    def levels(self, side: int) -> list[tuple[int, int, int]]:
        totals: dict[int, list[int]] = {}
        for order in self.orders.values():
            if order.is_on_ladder() and order.side == side:
                level = totals.setdefault(order.price, [0, 0])
                level[0] += order.qty
                level[1] += 1
        rows = [(price, total, count) for price, (total, count) in totals.items()]
        return sorted(rows, reverse=side == 1)

    def place(self, order_id: int) -> tuple[int, int] | None:
        order = self.orders.get(order_id)
        if order is None or not order.is_on_ladder():
            return None
        ids = self.queue(order.side, order.price)
        ahead = ids[: ids.index(order_id)]
        return len(ahead), sum(self.orders[one].qty for one in ahead)

    def top(self) -> Top:
        bids, asks = self.levels(1), self.levels(2)
        return *(bids[0][:2] if bids else (0, 0)), *(asks[0][:2] if asks else (0, 0))


L3Row = tuple[int, int, int, int, int, int, int, int]
"""event_type, side, order_id, bid_order_id, ask_order_id, price, qty, flags."""


def l3_records(rows: list[L3Row], first_seq: int = 1) -> NDArray[np.void]:
    """Return payloads with these events and rising numbers."""
    records = new_l3_records(len(rows), venue_id=2, market_id=1)
    names = ("event_type", "side", "order_id", "bid_order_id", "ask_order_id", "price", "qty", "flags")
    for name, column in zip(names, zip(*rows, strict=True), strict=False):
        records["event"][name] = column
    records["header"]["seq"] = np.arange(first_seq, first_seq + len(rows))
    records["header"]["exchange_ts_ns"] = np.arange(len(rows)) + 1000
    assert records.dtype == L3_RECORD
    return records


def l2_record(
    kind: BookEventType,
    bids: list[tuple[int, int]],
    asks: list[tuple[int, int]],
    *,
    scales: tuple[int, int] = (0, 0),
    ids: tuple[int, int, int] = (0, 0, 0),
    native_seq: int = 0,
    flags: int = 1,
    market: tuple[int, int] = (1, 7),
    times_ns: tuple[int, int] = (0, 0),
    version: int = 4,
) -> bytes:
    """Return one L2 snapshot or diff payload, built without any code of the product but its header."""
    header = new_headers(1, kind, BookMode.L2, venue_id=market[0], market_id=market[1])
    header["native_seq"], header["flags"], header["schema_version"] = native_seq, flags, version
    header["ingest_ts_ns"], header["exchange_ts_ns"] = times_ns
    body = b""
    if kind is BookEventType.DIFF:
        body = b"".join(number.to_bytes(8, "little") for number in ids)
        body += bytes(scales) + flags.to_bytes(2, "little")
        body += len(bids).to_bytes(2, "little") + len(asks).to_bytes(2, "little")
    elif kind is BookEventType.SNAPSHOT:
        body = bytes(scales) + bytes(2) + len(bids).to_bytes(4, "little") + len(asks).to_bytes(4, "little")
    for price, size in [*bids, *asks]:
        body += price.to_bytes(8, "little", signed=version > 3) + size.to_bytes(8, "little")
    header["record_len"] = 64 + len(body)
    return header.tobytes() + body
