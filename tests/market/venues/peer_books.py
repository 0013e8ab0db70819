"""Order books by another library, fed with the rows of a DBN file directly: nothing of ours is in between."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest

needs_peer = pytest.mark.skipif(
    importlib.util.find_spec("nautilus_trader") is None,
    reason="nautilus_trader is in the bench extra: make bench-books",
)
Side = list[tuple[int, int]]


class PeerBook:
    """One instrument's book: price levels as (ticks, size), best first, after every row."""

    def __init__(self, tick: int) -> None:
        from nautilus_trader.model.book import OrderBook
        from nautilus_trader.model.enums import BookType
        from nautilus_trader.model.identifiers import InstrumentId

        self._tick = tick
        self._instrument = InstrumentId.from_str("ES.GLBX")
        self._book = OrderBook(self._instrument, BookType.L3_MBO)
        self._sizes: dict[int, int] = {}

    def apply(self, row: dict[str, Any]) -> None:
        """Take one row; trades and fills change nothing, a cancel in part is a smaller order."""
        action, number = row["action"], row["order_id"]
        if action == b"R":
            self._sizes.clear()
            self._book.clear(0, 0)
        elif action in (b"A", b"M"):
            self._sizes[number] = row["size"]
            self._delta("ADD" if action == b"A" else "UPDATE", row, row["size"])
        elif action == b"C":
            self._sizes[number] -= row["size"]
            self._delta("UPDATE" if self._sizes[number] else "DELETE", row, self._sizes[number])

    def _delta(self, action: str, row: dict[str, Any], size: int) -> None:
        from nautilus_trader.model.data import BookOrder, OrderBookDelta
        from nautilus_trader.model.enums import BookAction, OrderSide
        from nautilus_trader.model.objects import Price, Quantity

        order = BookOrder(
            OrderSide.BUY if row["side"] == b"B" else OrderSide.SELL,
            Price(row["price"] // self._tick, 0),
            Quantity(size, 0),
            row["order_id"],
        )
        kind = getattr(BookAction, action)
        self._book.apply_delta(OrderBookDelta(self._instrument, kind, order, 0, 0, 0, 0))

    def levels(self) -> tuple[Side, Side]:
        """Bids and asks."""
        return _levels(self._book.bids()), _levels(self._book.asks())

    def queues(self) -> list[list[int]]:
        """The order ids at each price, oldest first: bids, then asks."""
        return [
            [order.order_id for order in level.orders()] for level in [*self._book.bids(), *self._book.asks()]
        ]


def _levels(levels: Sequence[Any]) -> Side:
    return [(int(level.price.as_decimal()), int(level.size())) for level in levels]
