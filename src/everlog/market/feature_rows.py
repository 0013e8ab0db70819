"""Which features a replay computes: their columns, and the steps from book results to arrays.

Owns the choice of columns and what a feature remembers between batches; the formulas are in
`everlog.market.features`. A feature sees every event of one market, whatever trigger decides about rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from everlog.errors import InvalidConfig
from everlog.market import features
from everlog.market.book_results import BookResult
from everlog.market.features import Floats
from everlog.market.triggers import Events


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
    """Something that is computed after every event of a market."""

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
