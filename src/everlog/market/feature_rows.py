"""Which features a replay computes: their columns, and the steps from book results to arrays.

Owns the choice of columns and what a feature remembers between batches; the formulas are in
`everlog.market.features`. A feature sees every event of one market, whatever trigger decides about rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from everlog.clock import NS_PER_S
from everlog.errors import InvalidConfig
from everlog.market import features
from everlog.market.book_results import BookResult
from everlog.market.features import Floats
from everlog.market.protocol import L3EventType, Side
from everlog.market.triggers import Events


class Trades(NamedTuple):
    """What was traded at each event; the quantity is 0 where the event is no trade."""

    price: Floats
    quantity: Floats
    side: npt.NDArray[np.uint8]
    """The taker's, as `protocol.Side`."""


class Orders(NamedTuple):
    """What each event says of an order; all is 0 and nothing ahead (-1) where it is about none."""

    kind: npt.NDArray[np.uint8]
    """As `protocol.L3EventType`."""
    order_id: npt.NDArray[np.uint64]
    orders_ahead: Floats
    """Of the event's order, among those of its price; -1 if it is in no queue."""
    size_ahead: Floats


class BookRows(NamedTuple):
    """The book of one market after each event of a batch, as numbers that formulas take."""

    events: Events
    bid: Floats
    bid_size: Floats
    ask: Floats
    ask_size: Floats
    bid_prices: Floats
    bid_sizes: Floats
    ask_prices: Floats
    ask_sizes: Floats
    trades: Trades | None = None
    """There if a feature says that it `reads_trades`; trades outside the book are events as well then."""
    orders: Orders | None = None
    """There if a feature says that it `reads_orders`."""

    @property
    def has_both(self) -> npt.NDArray[np.bool_]:
        """After which events neither side is empty."""
        both: npt.NDArray[np.bool_] = (self.bid_size > 0) & (self.ask_size > 0)
        return both


class Column(NamedTuple):
    """One column of the result."""

    name: str
    dtype: npt.DTypeLike
    is_summed: bool = False
    """A row has the sum over all messages since the row before it, not the value of the last one."""


Step = Callable[[BookRows], Sequence[npt.NDArray[Any]]]


class Feature(Protocol):
    """Something that is computed after every event of a market.

    It may have more than is required here: `reads_trades = True` or `reads_orders = True`, so that rows have
    `trades` or `orders`, and `complete(table)`, which fills columns of finished rows that follow from others.
    """

    depth: int
    """How many levels a side it looks at."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that it adds."""
        ...

    def begin(self) -> Step:
        """Return the step for one market: batch after batch, in order."""
        ...


class _Plain:
    """A feature of one column that remembers nothing."""

    def __init__(self, name: str, formula: Callable[[BookRows], Floats], depth: int = 1) -> None:
        self.depth = depth
        self.columns = (Column(name, np.float64),)
        self._formula = formula

    def begin(self) -> Step:
        """Nothing is kept between batches."""
        return lambda rows: (self._formula(rows),)


class GlobalTime:
    """The times of the event: `ingest_ts_ns` and `exchange_ts_ns`."""

    depth = 1
    columns = (Column("ingest_ts_ns", np.uint64), Column("exchange_ts_ns", np.uint64))

    def begin(self) -> Step:
        """Nothing is kept between batches."""
        return lambda rows: (rows.events.ingest_ts_ns, rows.events.exchange_ts_ns)


class OrderFlowImbalance:
    """`order_flow_imbalance`: what was added to the best bid minus what was added to the best ask.

    Summed over the messages since the row before; `is_summed=False` has each row show its last message alone.
    """

    depth = 1

    def __init__(self, *, is_summed: bool = True) -> None:
        self.columns = (Column("order_flow_imbalance", np.float64, is_summed),)

    def begin(self) -> Step:
        """The best prices before the batch are kept."""
        before: tuple[float, ...] | None = None

        def step(rows: BookRows) -> Sequence[npt.NDArray[Any]]:
            nonlocal before
            tops = (rows.bid, rows.bid_size, rows.ask, rows.ask_size)
            flow = features.order_flow_imbalance(*tops, before)
            if len(rows.bid):
                before = tuple(float(column[-1]) for column in tops)
            return (flow,)

        return step


class Seq:
    """`seq`: the number of the event's message in its queue."""

    depth = 1
    columns = (Column("seq", np.uint64),)

    def begin(self) -> Step:
        """Nothing is kept between batches."""
        return lambda rows: (rows.events.seq,)  # type: ignore[return-value]


class BestPrices:
    """`bid_price`, `bid_size`, `ask_price`, `ask_size`: the best levels; 0 on an empty side."""

    depth = 1
    columns = tuple(Column(name, np.float64) for name in ("bid_price", "bid_size", "ask_price", "ask_size"))

    def begin(self) -> Step:
        """Nothing is kept between batches."""
        return lambda rows: (rows.bid, rows.bid_size, rows.ask, rows.ask_size)


class LevelFlowImbalance:
    """`order_flow_imbalance_1` to `_n`: the order flow imbalance of each of the best levels, counted from 1.

    The formula is that of `features.order_flow_imbalance`, with the price and size of the level in place of
    the best ones. Summed over the messages since the row before.
    """

    def __init__(self, depth: int) -> None:
        _check_depth(depth)
        self.depth = depth
        self.columns = tuple(
            Column(f"order_flow_imbalance_{level}", np.float64, is_summed=True)
            for level in range(1, depth + 1)
        )

    def begin(self) -> Step:
        """The levels before the batch are kept."""
        before: list[tuple[float, ...] | None] = [None] * self.depth

        def step(rows: BookRows) -> Sequence[npt.NDArray[Any]]:
            flows = []
            for level in range(self.depth):
                bids = rows.bid_prices[:, level], rows.bid_sizes[:, level]
                asks = rows.ask_prices[:, level], rows.ask_sizes[:, level]
                flows.append(features.order_flow_imbalance(*bids, *asks, before[level]))
                if len(rows.bid):
                    before[level] = tuple(float(column[-1]) for column in (*bids, *asks))
            return flows

        return step


class TradeFlow:
    """`trades`, `bought`, `sold`, `unknown_side`, `trade_imbalance`: what was traded since the row before.

    The number of trades, and the quantities by the taker's side. The imbalance is
    `(bought - sold) / (bought + sold)`: trades of an unknown side are left out.
    """

    depth = 1
    reads_trades = True
    columns = (
        Column("trades", np.float64, is_summed=True),
        Column("bought", np.float64, is_summed=True),
        Column("sold", np.float64, is_summed=True),
        Column("unknown_side", np.float64, is_summed=True),
        Column("trade_imbalance", np.float64),
    )

    def begin(self) -> Step:
        """Nothing is kept between batches but the sums."""

        def step(rows: BookRows) -> Sequence[npt.NDArray[Any]]:
            assert rows.trades is not None, "it reads trades"
            _, quantity, side = rows.trades
            sides = (Side.BUY, Side.SELL, Side.UNKNOWN)
            by_side = [np.where(side == one, quantity, 0.0) for one in sides]
            return ((quantity > 0).astype(np.float64), *by_side, np.zeros(len(quantity)))

        return step

    def complete(self, table: npt.NDArray[np.void]) -> None:
        """Fill the imbalance from the sums of each row."""
        table["trade_imbalance"] = features.taker_imbalance(table["bought"], table["sold"])


class RealisedVolatility:
    """`realised_volatility`: that of the mid price since the row before.

    `sqrt(sum(ln(m[i] / m[i-1])^2))` over the mid prices at the ends of events; those without both sides, or
    not above 0, are passed over.
    """

    depth = 1
    columns = (Column("realised_volatility", np.float64, is_summed=True),)

    def begin(self) -> Step:
        """The last mid price is kept."""
        last: float | None = None

        def step(rows: BookRows) -> Sequence[npt.NDArray[Any]]:
            nonlocal last
            mid = features.mid_price(rows.bid, rows.ask, rows.has_both)
            squares, last = features.squared_returns(mid, rows.has_both & rows.events.is_last, last)
            return (squares,)

        return step

    def complete(self, table: npt.NDArray[np.void]) -> None:
        """Take the root of the sum of each row."""
        table["realised_volatility"] = np.sqrt(table["realised_volatility"])


class QueuePosition:
    """`orders_ahead`, `size_ahead`: of the order that the event is about, in the queue of its price.

    Where it stands after it came or was modified, and where it stood when it was cancelled or traded. -1
    where the event is about no order, or its order is in no queue. Needs books of orders.
    """

    depth = 1
    reads_orders = True
    columns = (Column("orders_ahead", np.float64), Column("size_ahead", np.float64))

    def begin(self) -> Step:
        """Nothing is kept between batches."""

        def step(rows: BookRows) -> Sequence[npt.NDArray[Any]]:
            assert rows.orders is not None, "it reads orders"
            return rows.orders.orders_ahead, rows.orders.size_ahead

        return step


class OrderRates:
    """`order_arrival_rate`, `order_cancel_rate`: orders a second that came, and that were cancelled.

    The number of such events with an ingest time in `(t - window, t]`, divided by the window. Needs books of
    orders; part of an order that is cancelled counts like the whole.
    """

    depth = 1
    reads_orders = True
    columns = (Column("order_arrival_rate", np.float64), Column("order_cancel_rate", np.float64))

    def __init__(self, window_ns: int = NS_PER_S) -> None:
        if window_ns <= 0:
            raise InvalidConfig(f"the window is {window_ns} ns; it must be more than 0")
        self.window_ns = window_ns

    def begin(self) -> Step:
        """The events of the last window are kept."""
        times, is_counted = np.zeros(0, np.uint64), np.zeros((0, 2), np.int64)
        window, kinds = np.uint64(self.window_ns), (L3EventType.ORDER_ADD, L3EventType.ORDER_CANCEL)

        def step(rows: BookRows) -> Sequence[npt.NDArray[Any]]:
            nonlocal times, is_counted
            assert rows.orders is not None, "it reads orders"
            fresh = np.stack([rows.orders.kind == kind for kind in kinds], axis=1)
            # A clock that was set back does not bring back what has left the window.
            times = np.maximum.accumulate(np.concatenate((times, rows.events.ingest_ts_ns)))
            is_counted = np.concatenate((is_counted, fresh))
            sums = np.concatenate((np.zeros((1, 2), np.int64), np.cumsum(is_counted, axis=0)))
            now = times[len(times) - len(fresh) :]
            first = np.searchsorted(times, now - np.minimum(window, now), side="right")
            counts = sums[len(times) - len(fresh) + 1 :] - sums[first]
            kept = int(first[-1]) if len(first) else 0
            times, is_counted = times[kept:], is_counted[kept:]
            return tuple((counts / (self.window_ns / NS_PER_S)).T)

        return step


def weighted_mid(depth: int) -> Feature:
    """`weighted_mid` over the best `depth` levels: see `features.weighted_mid`."""
    _check_depth(depth)
    return _Plain(
        "weighted_mid",
        lambda rows: features.weighted_mid(rows.bid, rows.bid_sizes, rows.ask, rows.ask_sizes, depth),
        depth,
    )


class Depth:
    """`bid_depth_5`, `ask_depth_5`: what the best levels of each side hold; the name has their number."""

    def __init__(self, depth: int) -> None:
        _check_depth(depth)
        self.depth = depth
        self.columns = tuple(Column(f"{side}_depth_{depth}", np.float64) for side in ("bid", "ask"))

    def begin(self) -> Step:
        """Nothing is kept between batches."""
        return lambda rows: [
            features.size_of_levels(sizes, self.depth) for sizes in (rows.bid_sizes, rows.ask_sizes)
        ]


class DepthWithin:
    """`bid_depth_10bps`, `ask_depth_10bps`: what lies within so many basis points of the mid price.

    Levels beyond the best `depth` are not looked at. 0 where a side is empty. See `features.size_within`.
    """

    def __init__(self, bps: float, depth: int = 50) -> None:
        _check_depth(depth)
        if not bps > 0:
            raise InvalidConfig(f"bps is {bps}; it must be more than 0")
        self.depth = depth
        self.bps = bps
        self.columns = tuple(Column(f"{side}_depth_{bps:g}bps", np.float64) for side in ("bid", "ask"))

    def begin(self) -> Step:
        """Nothing is kept between batches."""

        def step(rows: BookRows) -> Sequence[npt.NDArray[Any]]:
            mid = features.mid_price(rows.bid, rows.ask, rows.has_both)
            sides = ((rows.bid_prices, rows.bid_sizes), (rows.ask_prices, rows.ask_sizes))
            return [
                np.where(
                    rows.has_both,
                    features.size_within(prices[:, : self.depth], sizes[:, : self.depth], mid, self.bps),
                    0.0,
                )
                for prices, sizes in sides
            ]

        return step


def mid_price() -> Feature:
    """`mid_price`: see `features.mid_price`."""
    return _Plain("mid_price", lambda rows: features.mid_price(rows.bid, rows.ask, rows.has_both))


def spread() -> Feature:
    """`spread`: see `features.spread`."""
    return _Plain("spread", lambda rows: features.spread(rows.bid, rows.ask, rows.has_both))


def spread_bps() -> Feature:
    """`spread_bps`: see `features.spread_bps`."""
    return _Plain("spread_bps", lambda rows: features.spread_bps(rows.bid, rows.ask, rows.has_both))


def microprice() -> Feature:
    """`microprice`: see `features.microprice`."""
    return _Plain(
        "microprice", lambda rows: features.microprice(rows.bid, rows.bid_size, rows.ask, rows.ask_size)
    )


def book_imbalance(depth: int) -> Feature:
    """`book_imbalance` over the best `depth` levels: see `features.book_imbalance`."""
    _check_depth(depth)
    return _Plain(
        "book_imbalance",
        lambda rows: features.book_imbalance(rows.bid_sizes, rows.ask_sizes, depth),
        depth,
    )


def depth_slope(depth: int) -> Feature:
    """`depth_slope` over the best `depth` levels: see `features.depth_slope`."""
    _check_depth(depth)
    return _Plain(
        "depth_slope",
        lambda rows: features.depth_slope(
            rows.bid_prices, rows.bid_sizes, rows.ask_prices, rows.ask_sizes, depth
        ),
        depth,
    )


def standard_features(depth: int = 5) -> list[Feature]:
    """The usual set: times, mid price, spread, imbalance, microprice, order flow, slope."""
    return [
        GlobalTime(),
        mid_price(),
        spread_bps(),
        book_imbalance(depth),
        microprice(),
        OrderFlowImbalance(),
        depth_slope(depth),
    ]


def row_dtype(chosen: Sequence[Feature]) -> np.dtype[np.void]:
    """Return the layout of a row; no feature, or a column twice, is an error."""
    columns = [column for feature in chosen for column in feature.columns]
    if not columns:
        raise InvalidConfig("a replay needs at least one feature; without columns there are no rows")
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidConfig(f"column {', '.join(twice)} would be there twice; choose each feature once")
    return np.dtype([(column.name, column.dtype) for column in columns])


def book_rows(result: BookResult, events: Events) -> BookRows:
    """Turn the integers of a result into numbers: price or size divided by ten to its scale."""
    assert result.top is not None and result.bids is not None and result.asks is not None, "all are asked for"
    price_unit, size_unit = 10.0**result.price_scale, 10.0**result.size_scale
    return BookRows(
        events,
        result.top["bid_price"] / price_unit,
        result.top["bid_size"] / size_unit,
        result.top["ask_price"] / price_unit,
        result.top["ask_size"] / size_unit,
        result.bids["price"] / price_unit,
        result.bids["size"] / size_unit,
        result.asks["price"] / price_unit,
        result.asks["size"] / size_unit,
    )


def _check_depth(depth: int) -> None:
    if depth < 1:
        raise InvalidConfig(f"depth is {depth}; at least one level is needed")
