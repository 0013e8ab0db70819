"""The order flow of the simulated venue: what happens to which order, and when.

Owns the random model and the orders that rest between two steps. Equal settings give equal flows.
Nothing is drawn in a loop over orders: a step of a few ten thousand changes is computed at once.

The model. Each symbol's mid price walks one tick at a time and is drawn back to where it began.
Orders arrive below (bids) or above (asks) the mid and would be cancelled after an exponential time;
but when the mid reaches an order's price first, the order is executed. So bids always lie below the
mid, asks above it, and the book is never crossed. Some orders are reduced on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from everlog.market.protocol import L3EventType, Side

MID_START: Final = 10_000
LEVELS: Final = 4096
"""Prices are LEVEL_BASE to LEVEL_BASE + LEVELS - 1 ticks."""
LEVEL_BASE: Final = MID_START - LEVELS // 2
PULL: Final = 1 / 400
"""How strongly the mid is drawn back per tick of distance; it stays well within the levels."""
OFFSET_MAX: Final = 200
ADD_SHARE: Final = 0.45
"""Adds among all changes: every order has an end, and some are reduced or filled in two parts."""
MOVE_SHARE: Final = 0.02
REDUCE_SHARE: Final = 0.12
SPLIT_SHARE: Final = 0.3
QUANTITY_MAX: Final = 500

INDEX_BITS: Final = 20
"""Time and place of a change are sorted as one number, so a step has at most 2^20 changes."""
SPAN_NS_MAX: Final = 1 << 40
NEVER: Final = np.iinfo(np.int64).max

_EXECUTED_FIRST, _ENDED_NEXT, _ADDED_LAST = 0, 1, 2

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Orders:
    """Orders as columns."""

    ids: Ints
    symbols: Ints
    sides: Ints
    ticks: Ints
    quantities: Ints
    arrived: Ints
    cancel_at: Ints

    def __len__(self) -> int:
        """Return the number of orders."""
        return len(self.ids)

    def take(self, chosen: Any) -> Orders:
        """Return some of the orders."""
        return Orders(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def followed_by(self, other: Orders) -> Orders:
        """Return these orders and then the others."""
        return Orders(
            *(
                np.concatenate([getattr(self, field.name), getattr(other, field.name)])
                for field in fields(self)
            )
        )

    @staticmethod
    def none() -> Orders:
        """Return no orders."""
        return Orders(*(np.zeros(0, dtype=np.int64) for _ in fields(Orders)))


@dataclass(slots=True)
class Changes:
    """What happens to orders, in the order of time; `orders` are the orders that `rows` point to."""

    orders: Orders
    times: Ints
    kinds: Ints
    rows: Ints
    amounts: Ints
    """What the change adds to the book or takes from it."""
    rests: Ints
    """What is left of the order."""

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.times)


class Moves:
    """The walk of all mids during one step: sorted by symbol, then time."""

    def __init__(self, start: int, span: int, before: Ints, symbols: Ints, times: Ints, ticks: Ints) -> None:
        """`before` are the mids when the step begins."""
        self._start, self._width = start, span + 2
        self._before, self._symbols, self._times, self._ticks = before, symbols, times, ticks
        self._by_time = symbols * self._width + (times - start + 1)
        reached = (symbols * LEVELS + ticks - LEVEL_BASE) * self._width + (times - start + 1)
        self._by_level = np.sort(reached)

    def mids_at(self, symbols: Ints, times: Ints) -> Ints:
        """Return each symbol's mid at a time."""
        if len(self._symbols) == 0:
            return self._before[symbols]
        place = np.searchsorted(self._by_time, symbols * self._width + (times - self._start + 1), "right") - 1
        moved = (place >= 0) & (self._symbols[place] == symbols)
        result: Ints = np.where(moved, self._ticks[place], self._before[symbols])
        return result

    def first_reaching(self, orders: Orders) -> Ints:
        """Return when the mid first stands at each order's price, NEVER if not in this step."""
        if len(self._symbols) == 0:
            return np.full(len(orders), NEVER, dtype=np.int64)
        group = orders.symbols * LEVELS + orders.ticks - LEVEL_BASE
        since = np.maximum(orders.arrived - self._start + 1, 0)
        place = np.searchsorted(self._by_level, group * self._width + since, "right")
        found = self._by_level[np.minimum(place, len(self._by_level) - 1)]
        reached = (place < len(self._by_level)) & (found // self._width == group)
        result: Ints = np.where(reached, found % self._width - 1 + self._start, NEVER)
        return result


class OrderFlow:
    """The orders of all symbols, step by step."""

    def __init__(self, symbols: int, seed: int, rate: float, resting_orders: int) -> None:
        """`rate` is changes per second of all symbols; about `resting_orders` rest per symbol."""
        self.live = Orders.none()
        self._random = np.random.default_rng(seed)
        self._symbols = symbols
        self._rate = rate
        self._resting = symbols * resting_orders
        self._life_ns = max(2.0, self._resting / (rate * ADD_SHARE) * 1e9)
        self._mids = np.full(symbols, MID_START, dtype=np.int64)
        self._next_id = 1

    def open(self, now_ns: int) -> Changes:
        """Fill the books at one instant."""
        still = self._walk(now_ns, 1, 0)
        fresh = self._arrivals(np.full(self._resting, now_ns, dtype=np.int64), still)
        return self._apply(fresh, still, now_ns + 1)

    def advance(self, start_ns: int, stop_ns: int) -> Changes:
        """Let the venue run from `start_ns` until just before `stop_ns`."""
        span = stop_ns - start_ns
        moves = self._walk(start_ns, span, self._random.poisson(self._rate * span / 1e9 * MOVE_SHARE))
        count = self._random.poisson(self._rate * ADD_SHARE * span / 1e9)
        fresh = self._arrivals(np.sort(self._random.integers(start_ns, stop_ns, count)), moves)
        return self._apply(fresh, moves, stop_ns)

    def _walk(self, start: int, span: int, count: int) -> Moves:
        """Let every mid walk: one tick up or down, rather towards where it began."""
        symbols = self._random.integers(0, self._symbols, count)
        order = np.argsort(symbols, kind="stable")
        times = np.sort(self._random.integers(start, start + span, count))
        symbols, times = symbols[order], times[order]
        before, mids = self._mids, self._mids.tolist()
        ticks = np.empty(count, dtype=np.int64)
        for place, (symbol, draw) in enumerate(
            zip(symbols.tolist(), self._random.random(count).tolist(), strict=True)
        ):
            mids[symbol] += 1 if draw < 0.5 - PULL * (mids[symbol] - MID_START) else -1
            ticks[place] = mids[symbol]
        self._mids = np.array(mids, dtype=np.int64)
        return Moves(start, span, before, symbols, times, ticks)

    def _arrivals(self, times: Ints, moves: Moves) -> Orders:
        """Draw one order for each time."""
        count, random = len(times), self._random
        symbols = random.integers(0, self._symbols, count)
        sides = random.integers(int(Side.BUY), int(Side.SELL) + 1, count)
        offsets = np.minimum(random.geometric(0.12, count), OFFSET_MAX)
        ticks = moves.mids_at(symbols, times) + np.where(sides == Side.BUY, -offsets, offsets)
        lives = (random.exponential(self._life_ns, count) + 2).astype(np.int64)
        ids = np.arange(self._next_id, self._next_id + count, dtype=np.int64)
        self._next_id += count
        quantities = random.integers(1, QUANTITY_MAX, count)
        return Orders(ids, symbols, sides, ticks, quantities, times, times + lives)

    def _apply(self, fresh: Orders, moves: Moves, stop: int) -> Changes:
        """Find what happens to each order before `stop`, and keep those that remain."""
        orders = self.live.followed_by(fresh)
        reached = moves.first_reaching(orders)
        ends = np.minimum(reached, orders.cancel_at)
        quantities = orders.quantities.copy()
        fresh_rows = np.arange(len(self.live), len(orders))
        reduced, reduced_at, taken = self._reductions(orders, fresh_rows, ends, stop)
        quantities[reduced] -= taken
        executed = np.flatnonzero(reached <= np.minimum(orders.cancel_at, stop - 1))
        cancelled = np.flatnonzero((orders.cancel_at < reached) & (orders.cancel_at < stop))
        part = self._first_fills(quantities[executed])
        split = part < quantities[executed]
        modified = self._random.random(len(reduced)) < 0.5
        nothing = np.zeros
        pieces = (
            # (times, phase, kind, rows, amounts, rests); fills of one order must follow each other
            (reached[executed], 0, L3EventType.TRADE, executed, part, quantities[executed] - part),
            (
                reached[executed[split]],
                0,
                L3EventType.TRADE,
                executed[split],
                (quantities[executed] - part)[split],
                nothing(int(split.sum()), dtype=np.int64),
            ),
            (
                reduced_at,
                1,
                np.where(modified, L3EventType.ORDER_MODIFY, L3EventType.ORDER_CANCEL),
                reduced,
                taken,
                quantities[reduced],
            ),
            (
                orders.cancel_at[cancelled],
                1,
                L3EventType.ORDER_CANCEL,
                cancelled,
                quantities[cancelled],
                nothing(len(cancelled), dtype=np.int64),
            ),
            (
                fresh.arrived,
                2,
                L3EventType.ORDER_ADD,
                fresh_rows,
                fresh.quantities,
                fresh.quantities,
            ),
        )
        ended = np.zeros(len(orders), dtype=bool)
        ended[executed] = ended[cancelled] = True
        changes = _in_order(orders, pieces)
        left = orders.take(~ended)
        left.quantities = quantities[~ended]
        self.live = left
        return changes

    def _reductions(self, orders: Orders, fresh_rows: Ints, ends: Ints, stop: int) -> tuple[Ints, Ints, Ints]:
        """Return which new orders are reduced within the step, when, and by how much."""
        random = self._random
        drawn = random.random(len(fresh_rows))
        when, share = random.random(len(fresh_rows)), random.random(len(fresh_rows))
        room = ends[fresh_rows] - orders.arrived[fresh_rows] - 1
        at = orders.arrived[fresh_rows] + 1 + (when * np.minimum(room, 1 << 50)).astype(np.int64)
        large = orders.quantities[fresh_rows] > 1
        chosen = (drawn < REDUCE_SHARE) & large & (room > 0) & (at < np.minimum(ends[fresh_rows], stop))
        rows = fresh_rows[chosen]
        taken = 1 + (share[chosen] * (orders.quantities[rows] - 1)).astype(np.int64)
        return rows, at[chosen], taken

    def _first_fills(self, quantities: Ints) -> Ints:
        """Return how much the first fill takes: all, or a part of some orders."""
        split = (self._random.random(len(quantities)) < SPLIT_SHARE) & (quantities > 1)
        part = 1 + (self._random.random(len(quantities)) * (quantities - 1)).astype(np.int64)
        result: Ints = np.where(split, part, quantities)
        return result


def _in_order(orders: Orders, pieces: Any) -> Changes:
    """Sort changes by time; at one time executions come first, then ends, then new orders."""
    times = np.concatenate([piece[0] for piece in pieces])
    phases = np.concatenate([np.full(len(piece[0]), piece[1], dtype=np.int64) for piece in pieces])
    kinds = np.concatenate([np.broadcast_to(piece[2], piece[0].shape) for piece in pieces])
    start = int(times.min(initial=NEVER))
    order = sorted_places((times - start) * 4 + phases)
    rows, amounts, rests = (np.concatenate([piece[field] for piece in pieces])[order] for field in (3, 4, 5))
    return Changes(orders, times[order], kinds[order].astype(np.int64), rows, amounts, rests)


def sorted_places(keys: Ints) -> Ints:
    """Return the places of the keys in ascending order, equal keys as they stand.

    Sorting key and place as one number is several times faster than a stable sort of places.
    """
    packed = np.sort(keys << INDEX_BITS | np.arange(len(keys)))
    result: Ints = packed & ((1 << INDEX_BITS) - 1)
    return result
