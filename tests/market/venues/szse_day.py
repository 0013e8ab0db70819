"""A day of the Shenzhen exchange, made up but whole: Quant360 files with known truth.

Owns a small matching engine with the exchange's phases: opening call with uncross, continuous
trading, closing call with uncross; limit orders, market orders, own-side-best orders and cancels,
also in the windows in which the exchange takes none. Messages of a channel share one sequence.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

TICK: Final = 10
"""Price step in thousandths."""
LOT: Final = 100
ORDER_FIELDS: Final = (
    "ApplSeqNum",
    "ChannelNo",
    "MDStreamID",
    "Side",
    "Price",
    "OrderQty",
    "OrdType",
    "TransactTime",
    "SendingTime",
)
TICK_FIELDS: Final = (
    "ApplSeqNum",
    "ChannelNo",
    "MDStreamID",
    "BidApplSeqNum",
    "OfferApplSeqNum",
    "Price",
    "Qty",
    "Amt",
    "ExecType",
    "TransactTime",
    "SendingTime",
)
# Phases as (first second, last second, weight of orders, continuous trading).
_PHASES: Final = (
    (9 * 3600 + 15 * 60, 9 * 3600 + 25 * 60, 0.15, False),
    (9 * 3600 + 30 * 60, 11 * 3600 + 30 * 60, 0.4, True),
    (13 * 3600, 14 * 3600 + 57 * 60, 0.4, True),
    (14 * 3600 + 57 * 60, 15 * 3600, 0.05, False),
)
_BUY, _SELL = 1, 2
_MARKET, _LIMIT, _OWN_BEST = "1", "2", "U"


@dataclass(slots=True)
class SzseOrder:
    """An order as the exchange knows it; prices in thousandths."""

    number: int
    side: int
    price: int
    rest: int
    kind: str
    at: int
    """The price it really rests at; for own-side-best orders the file does not tell."""


@dataclass(slots=True)
class SymbolTruth:
    """What a correct replay must find at the end of the day."""

    orders: dict[int, SzseOrder] = field(default_factory=dict)
    traded: int = 0
    trades: int = 0
    cancels: int = 0
    restricted_cancels: int = 0
    market_orders: int = 0

    def levels(self, side: int) -> dict[int, int]:
        """Return the ladder that can be known from the files: orders with a price of their own."""
        ladder: dict[int, int] = {}
        for order in self.orders.values():
            if order.side == side and order.kind == _LIMIT:
                ladder[order.price] = ladder.get(order.price, 0) + order.rest
        return ladder


class SzseDay:
    """One simulated day; `truth` and `rows` are complete after construction."""

    def __init__(
        self,
        channels: Mapping[int, Sequence[str]],
        *,
        seed: int = 0,
        orders_per_symbol: int = 1000,
        date: str = "20240102",
    ) -> None:
        """`channels` says which symbols each channel carries."""
        self.date = date
        self.truth: dict[str, SymbolTruth] = {}
        self.order_rows: dict[str, list[tuple[str, ...]]] = {}
        self.tick_rows: dict[str, list[tuple[str, ...]]] = {}
        self.last_seq: dict[int, int] = {}
        source = random.Random(seed)
        for channel, symbols in channels.items():
            books = {symbol: _Engine(self, channel, symbol) for symbol in symbols}
            self.last_seq[channel] = 0
            for phase, (start, stop, weight, continuous) in enumerate(_PHASES):
                count = int(orders_per_symbol * len(symbols) * weight)
                times = sorted(source.randrange(start * 1000, stop * 1000) for _ in range(count))
                for at_ms in times:
                    books[source.choice(list(symbols))].act(source, at_ms, continuous=continuous)
                if not continuous:
                    for engine in books.values():
                        engine.uncross(stop * 1000 + 10 * phase)

    def write(self, directory: str, drop: Mapping[int, set[int]] | None = None) -> list[str]:
        """Write one order and one tick file a symbol; leave out the sequence numbers in `drop`."""
        paths = []
        for kind, names, tables in (
            ("order", ORDER_FIELDS, self.order_rows),
            ("tick", TICK_FIELDS, self.tick_rows),
        ):
            folder = os.path.join(directory, f"{kind}_new_STK_SZ_{self.date}")
            os.makedirs(folder, exist_ok=True)
            for symbol, rows in tables.items():
                path = os.path.join(folder, f"{symbol}.csv")
                with open(path, "w", encoding="ascii", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(names)
                    writer.writerows(row for row in rows if not _dropped(row, drop))
                paths.append(path)
        return paths

    def next_seq(self, channel: int) -> int:
        """Give out the next sequence number of a channel."""
        self.last_seq[channel] += 1
        return self.last_seq[channel]


def _dropped(row: tuple[str, ...], drop: Mapping[int, set[int]] | None) -> bool:
    return drop is not None and int(row[0]) in drop.get(int(row[1]), set())


class _Engine:
    """Price-time matching of one symbol."""

    def __init__(self, day: SzseDay, channel: int, symbol: str) -> None:
        self._day, self._channel = day, channel
        self.truth = day.truth[symbol] = SymbolTruth()
        self._order_rows = day.order_rows[symbol] = []
        self._tick_rows = day.tick_rows[symbol] = []
        self._mid = 10_000

    def act(self, source: random.Random, at_ms: int, *, continuous: bool) -> None:
        """Do what a trader does: mostly a new order, sometimes a cancel."""
        orders = self.truth.orders
        if orders and source.random() < 0.25:
            self._cancel(source.choice(sorted(orders)), at_ms)
            return
        self._mid = max(2000, self._mid + source.choice((-TICK, 0, TICK)))
        side = source.choice((_BUY, _SELL))
        quantity = LOT * source.randint(1, 20)
        draw = source.random()
        if continuous and draw < 0.05:
            self._market(side, quantity, at_ms)
        elif continuous and draw < 0.08 and self._resting(side):
            self._enter(SzseOrder(0, side, 0, quantity, _OWN_BEST, self._resting(side)[0].at), at_ms)
        else:
            away = TICK * source.randint(-3, 15)
            price = max(TICK, self._mid - away if side == _BUY else self._mid + away)
            order = self._enter(SzseOrder(0, side, price, quantity, _LIMIT, price), at_ms)
            if continuous:
                self._match(order, at_ms)

    def uncross(self, at_ms: int) -> None:
        """Trade at the one price that trades most; of equal ones the lowest."""
        bids, asks = self._resting(_BUY), self._resting(_SELL)
        prices = sorted({order.at for order in bids + asks})
        volume, price = max(
            (
                (
                    min(
                        sum(order.rest for order in bids if order.at >= price),
                        sum(order.rest for order in asks if order.at <= price),
                    ),
                    -price,
                )
                for price in prices
            ),
            default=(0, 0),
        )
        while volume > 0:
            bid, ask = self._resting(_BUY)[0], self._resting(_SELL)[0]
            quantity = min(bid.rest, ask.rest, volume)
            self._trade(bid, ask, -price, quantity, at_ms)
            volume -= quantity

    def _resting(self, side: int) -> list[SzseOrder]:
        """Return the orders of a side, best first, oldest first at one price."""
        sign = -1 if side == _BUY else 1
        found = [order for order in self.truth.orders.values() if order.side == side]
        return sorted(found, key=lambda order: (sign * order.at, order.number))

    def _enter(self, order: SzseOrder, at_ms: int) -> SzseOrder:
        order.number = self._day.next_seq(self._channel)
        self.truth.orders[order.number] = order
        self._order_rows.append(
            (
                str(order.number),
                str(self._channel),
                "011",
                str(order.side),
                _decimal(order.price),
                str(order.rest),
                order.kind,
                self._time(at_ms),
                self._time(at_ms + 3),
            )
        )
        return order

    def _market(self, side: int, quantity: int, at_ms: int) -> None:
        self.truth.market_orders += 1
        order = self._enter(SzseOrder(0, side, 0, quantity, _MARKET, 0), at_ms)
        order.at = 1 << 40 if side == _BUY else 0
        self._match(order, at_ms)
        if order.rest > 0:
            self._cancel(order.number, at_ms)

    def _match(self, order: SzseOrder, at_ms: int) -> None:
        while order.rest > 0:
            others = self._resting(_SELL if order.side == _BUY else _BUY)
            if not others:
                return
            best = others[0]
            bid, ask = (order, best) if order.side == _BUY else (best, order)
            if bid.at < ask.at:
                return
            self._trade(bid, ask, best.at, min(bid.rest, ask.rest), at_ms)

    def _trade(self, bid: SzseOrder, ask: SzseOrder, price: int, quantity: int, at_ms: int) -> None:
        self.truth.traded += quantity
        self.truth.trades += 1
        self._tick(bid.number, ask.number, price, quantity, "F", at_ms)
        for order in (bid, ask):
            order.rest -= quantity
            if order.rest == 0:
                del self.truth.orders[order.number]

    def _cancel(self, number: int, at_ms: int) -> None:
        order = self.truth.orders.pop(number)
        minute = at_ms // 60_000
        self.truth.cancels += 1
        self.truth.restricted_cancels += 560 <= minute <= 565 or 897 <= minute <= 900
        bid, ask = (number, 0) if order.side == _BUY else (0, number)
        self._tick(bid, ask, 0, order.rest, "4", at_ms)

    def _tick(self, bid: int, ask: int, price: int, quantity: int, kind: str, at_ms: int) -> None:
        self._tick_rows.append(
            (
                str(self._day.next_seq(self._channel)),
                str(self._channel),
                "011",
                str(bid),
                str(ask),
                _decimal(price),
                str(quantity),
                _decimal(price * quantity),
                kind,
                self._time(at_ms),
                self._time(at_ms + 3),
            )
        )

    def _time(self, at_ms: int) -> str:
        seconds, ms = divmod(at_ms, 1000)
        hours, minutes = divmod(seconds // 60, 60)
        return f"{self._day.date}{hours:02d}{minutes:02d}{seconds % 60:02d}{ms:03d}"


def _decimal(thousandths: int) -> str:
    return f"{thousandths // 1000}.{thousandths % 1000:03d}"
