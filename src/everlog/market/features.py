"""Features of order books and trades: pure functions over arrays, one formula each.

Owns the formulas and nothing else: no book, no file, no clock. The replay on one machine and the Spark jobs
call these same functions, so their numbers agree bit for bit. Prices and sizes are float64 (integer divided
by ten to its scale). Prices may be 0 or negative: a side is empty where its size is 0. What has no value,
such as the mid price of a book with an empty side, is 0.0.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from everlog.errors import InvalidConfig

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[Any]
Booleans = npt.NDArray[np.bool_]

BASIS_POINTS: Final = 10_000.0


def mid_price(bid: Floats, ask: Floats, has_both: Booleans | None = None) -> Floats:
    """The middle between the best prices: `(bid + ask) / 2`; 0 where a side is empty.

    `has_both` says where both sides have orders; by default where neither price is 0.
    """
    return np.where(_both(bid, ask, has_both), (bid + ask) / 2, 0.0)


def spread(bid: Floats, ask: Floats, has_both: Booleans | None = None) -> Floats:
    """The spread in units of the price: `ask - bid`; 0 where a side is empty. `has_both`: see `mid_price`."""
    return np.where(_both(bid, ask, has_both), ask - bid, 0.0)


def spread_bps(bid: Floats, ask: Floats, has_both: Booleans | None = None) -> Floats:
    """The spread in basis points of the mid price: `(ask - bid) / mid * 10000`; 0 where a side is empty.

    It has the sign of the mid price, and is 0 where that is 0: for prices around 0 there is `spread`.
    `has_both`: see `mid_price`.
    """
    return _ratio(ask - bid, mid_price(bid, ask, has_both)) * BASIS_POINTS


def book_imbalance(bid_sizes: Floats, ask_sizes: Floats, depth: int) -> Floats:
    """How far the best `depth` levels lean to the bids: `(B - A) / (B + A)`, B and A the summed sizes.

    `bid_sizes` and `ask_sizes` have one row per event and one column per level, the best first. From -1 (only
    asks) to 1 (only bids).
    """
    if depth < 1:
        raise InvalidConfig(f"depth is {depth}; at least one level is needed")
    bids = _leading(bid_sizes, depth)
    asks = _leading(ask_sizes, depth)
    return _ratio(bids - asks, bids + asks)


def microprice(bid: Floats, bid_size: Floats, ask: Floats, ask_size: Floats) -> Floats:
    """The mid price weighted by the opposite sizes, nearer to the ask where more is bid.

    `(bid * ask_size + ask * bid_size) / (bid_size + ask_size)`; 0 where a side is empty.
    """
    both = (bid_size > 0) & (ask_size > 0)
    return np.where(both, _ratio(bid * ask_size + ask * bid_size, bid_size + ask_size), 0.0)


def weighted_mid(bid: Floats, bid_sizes: Floats, ask: Floats, ask_sizes: Floats, depth: int) -> Floats:
    """The best prices weighted by what the best `depth` levels of the other side hold.

    `(bid * A + ask * B) / (A + B)`, B and A the summed sizes; with one level it is the microprice. 0 where a
    side is empty.
    """
    bids, asks = size_of_levels(bid_sizes, depth), size_of_levels(ask_sizes, depth)
    return microprice(bid, bids, ask, asks)


def size_of_levels(sizes: Floats, depth: int) -> Floats:
    """What the best `depth` levels of a side hold together."""
    if depth < 1:
        raise InvalidConfig(f"depth is {depth}; at least one level is needed")
    return _leading(sizes, depth)


def size_within(prices: Floats, sizes: Floats, mid: Floats, bps: float) -> Floats:
    """What the levels of a side hold that are at most `bps` basis points away from the mid price.

    A level counts if `|price - mid| * 10000 <= |mid| * bps`; only the levels that are given can.
    """
    _check_positive("bps", bps)
    reach = np.abs(mid) * bps
    is_near = np.abs(prices - mid[:, None]) * BASIS_POINTS <= reach[:, None]
    return _leading(np.where(is_near, sizes, 0.0), sizes.shape[1])


def squared_returns(price: Floats, is_price: Booleans, last: float | None) -> tuple[Floats, float | None]:
    """The squared log return of each price since the one before, and the last price.

    `ln(p[i] / p[i-1])^2`; what is no price, or not positive, is passed over and has 0. `last` is the price
    before the first one when the arrays continue earlier ones; without it the first price has 0.
    """
    squares = np.zeros(len(price))
    there = np.flatnonzero(is_price & (price > 0))
    if not len(there):
        return squares, last
    prices = price[there]
    logs = np.log(np.concatenate(([prices[0] if last is None else last], prices)))
    squares[there] = np.diff(logs) ** 2
    return squares, float(prices[-1])


def order_flow_imbalance(
    bid: Floats, bid_size: Floats, ask: Floats, ask_size: Floats, before: tuple[float, ...] | None = None
) -> Floats:
    """What each event added to the best bid minus what it added to the best ask.

    With `b`, `qb`, `a`, `qa` after an event and `b'`, `qb'`, `a'`, `qa'` before it:
    `[b >= b'] qb - [b <= b'] qb' - [a <= a'] qa + [a >= a'] qa'`, where `[c]` is 1 if c holds, else 0. An
    empty side counts as infinitely far away. `before` is the state before the first event (bid, bid size,
    ask, ask size) when the arrays continue earlier ones; without it the first value is 0.
    """
    if not len(bid):
        return np.zeros(0)
    first = before if before is not None else (bid[0], bid_size[0], ask[0], ask_size[0])
    bid, ask = np.where(bid_size > 0, bid, -np.inf), np.where(ask_size > 0, ask, np.inf)
    bid_before = _shifted(bid, first[0] if first[1] > 0 else -np.inf)
    bid_size_before = _shifted(bid_size, first[1])
    ask_before = _shifted(ask, first[2] if first[3] > 0 else np.inf)
    ask_size_before = _shifted(ask_size, first[3])
    flow = np.where(bid >= bid_before, bid_size, 0.0) - np.where(bid <= bid_before, bid_size_before, 0.0)
    flow -= np.where(ask <= ask_before, ask_size, 0.0)
    flow += np.where(ask >= ask_before, ask_size_before, 0.0)
    return flow


def depth_slope(
    bid_prices: Floats, bid_sizes: Floats, ask_prices: Floats, ask_sizes: Floats, depth: int
) -> Floats:
    """How fast size piles up away from the mid price: the mean of the slopes of both sides.

    The slope of a side is the least-squares line through the origin over its best `depth` levels,
    `sum(x * y) / sum(x * x)`, where `x` is a level's distance from the mid price and `y` the size from the
    best level to this one. Empty levels (size 0) are left out; 0 where a side is empty.
    """
    if depth < 1:
        raise InvalidConfig(f"depth is {depth}; at least one level is needed")
    has_both = (bid_sizes[:, 0] > 0) & (ask_sizes[:, 0] > 0)
    mid = mid_price(bid_prices[:, 0], ask_prices[:, 0], has_both)
    bids = _side_slope(bid_prices[:, :depth], bid_sizes[:, :depth], mid)
    asks = _side_slope(ask_prices[:, :depth], ask_sizes[:, :depth], mid)
    return np.where(has_both, (bids + asks) / 2, 0.0)


def trade_imbalance(quantity: Floats, side: Integers, starts: Integers) -> Floats:
    """Per bar, how far takers leaned to buying: `(B - S) / (B + S)` of the taken quantities.

    `side` is the taker's: 1 bought, 2 sold, 0 unknown (left out). `starts` are the first trades of the bars.
    """
    side = np.asarray(side)
    if side.dtype == np.bool_:
        raise InvalidConfig("side is 0 (unknown), 1 (buy) or 2 (sell) of the taker, not a boolean")
    bought, sold = np.where(side == 1, quantity, 0.0), np.where(side == 2, quantity, 0.0)
    return _ratio(_sums(bought - sold, starts), _sums(bought + sold, starts))


def taker_imbalance(bought: Floats, sold: Floats) -> Floats:
    """How far takers leaned to buying: `(B - S) / (B + S)`; 0 where neither bought nor sold is known."""
    return _ratio(bought - sold, bought + sold)


def vwap(price: Floats, quantity: Floats, starts: Integers) -> Floats:
    """Per bar, the mean price weighted by quantity: `sum(price * quantity) / sum(quantity)`."""
    return _ratio(_sums(price * quantity, starts), _sums(quantity, starts))


def realised_volatility(price: Floats, starts: Integers) -> Floats:
    """Per bar, the root of the summed squared log returns: `sqrt(sum(ln(p[i] / p[i-1])^2))`.

    Returns are taken inside a bar only, so a bar with one price has 0. So has a bar with a price that is not
    positive: it has no logarithm.
    """
    if not len(starts):
        return np.zeros(0)
    returns = np.zeros(len(price))
    returns[1:] = np.diff(np.log(np.where(price > 0, price, 1.0)))
    returns[starts] = 0.0
    has_returns = np.minimum.reduceat(price, starts) > 0
    return np.where(has_returns, np.sqrt(_sums(returns * returns, starts)), 0.0)


# --- Bars: which trades belong together --------------------------------------------------------------------


def time_bars(timestamp_ns: Integers, interval_ns: int) -> Integers:
    """The first trade of each bar of `interval_ns`: a bar begins where `floor(ts / interval)` changes."""
    _check_positive("interval_ns", interval_ns)
    return _changes(np.asarray(timestamp_ns) // interval_ns)


def count_bars(trades: int, count: int) -> Integers:
    """The first trade of each bar of `count` trades; the last bar may be shorter."""
    _check_positive("count", count)
    return np.arange(0, trades, count, dtype=np.int64)


def volume_bars(quantity: Floats, volume: float, traded_before: float = 0.0) -> Integers:
    """The first trade of each bar of `volume`: a bar begins where `floor(sum before / volume)` changes.

    A trade is not split: it belongs to the bar in which the quantity traded before it ends. `traded_before`
    is the sum of the trades before these, when the arrays continue earlier ones. With `traded_value` in place
    of the quantity these are bars by value (dollar bars).
    """
    _check_positive("volume", volume)
    sums = np.cumsum(np.concatenate(([traded_before], quantity)))
    return _changes(np.floor(sums[:-1] / volume))


def traded_value(price: Floats, quantity: Floats) -> Floats:
    """What each trade is worth, for bars by value (dollar bars): `|price| * quantity`."""
    return np.abs(price) * quantity


def volume_after(quantity: Floats, traded_before: float) -> float:
    """The sum of all quantities so far, added in the order of the trades."""
    return float(np.cumsum(np.concatenate(([traded_before], quantity)))[-1])


BAR_COLUMNS: Final = np.dtype(
    [
        ("start_ts_ns", np.uint64),
        ("end_ts_ns", np.uint64),
        ("open", np.float64),
        ("high", np.float64),
        ("low", np.float64),
        ("close", np.float64),
        ("volume", np.float64),
        ("vwap", np.float64),
        ("trade_imbalance", np.float64),
        ("realised_volatility", np.float64),
        ("trades", np.uint64),
    ]
)


def bars(
    timestamp_ns: Integers, price: Floats, quantity: Floats, side: Integers, starts: Integers
) -> npt.NDArray[np.void]:
    """One row of `BAR_COLUMNS` per bar; `starts` comes from `time_bars`, `count_bars` or `volume_bars`.

    `side` is the taker's, as in `trade_imbalance`.
    """
    table = np.zeros(len(starts), BAR_COLUMNS)
    if not len(starts):
        return table
    ends = np.concatenate((starts[1:], [len(price)])) - 1
    table["start_ts_ns"] = timestamp_ns[starts]
    table["end_ts_ns"] = timestamp_ns[ends]
    table["open"] = price[starts]
    table["high"] = np.maximum.reduceat(price, starts)
    table["low"] = np.minimum.reduceat(price, starts)
    table["close"] = price[ends]
    table["volume"] = _sums(quantity, starts)
    table["vwap"] = vwap(price, quantity, starts)
    table["trade_imbalance"] = trade_imbalance(quantity, side, starts)
    table["realised_volatility"] = realised_volatility(price, starts)
    table["trades"] = ends - starts + 1
    return table


# --- Steps that several formulas share ----------------------------------------------------------------------


def _both(bid: Floats, ask: Floats, has_both: Booleans | None) -> Booleans:
    return (bid != 0) & (ask != 0) if has_both is None else has_both


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """`numerator / denominator`, 0 where there is nothing to divide by."""
    result = np.zeros(np.broadcast(numerator, denominator).shape)
    np.divide(numerator, denominator, out=result, where=denominator != 0)
    return result


def _leading(sizes: Floats, depth: int) -> Floats:
    """The sums of the best `depth` columns, added level by level: the same order in every batch."""
    total = np.zeros(len(sizes))
    for level in range(min(depth, sizes.shape[1])):
        total += sizes[:, level]
    return total


def _side_slope(prices: Floats, sizes: Floats, mid: Floats) -> Floats:
    distance = np.where(sizes > 0, np.abs(prices - mid[:, None]), 0.0)
    piled = np.cumsum(sizes, axis=1)
    return _ratio(np.sum(distance * piled, axis=1), np.sum(distance * distance, axis=1))


def _shifted(values: Floats, first: float) -> Floats:
    """The values one event earlier, beginning with `first`."""
    before = np.empty_like(values)
    before[0] = first
    before[1:] = values[:-1]
    return before


def _sums(values: Floats, starts: Integers) -> Floats:
    return np.add.reduceat(values, starts) if len(starts) else np.zeros(0)


def _changes(groups: npt.NDArray[Any]) -> Integers:
    """Where a new group begins."""
    if not len(groups):
        return np.zeros(0, dtype=np.int64)
    return np.concatenate(([0], np.flatnonzero(groups[1:] != groups[:-1]) + 1))


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidConfig(f"{name} is {value}; it must be more than 0")
