"""What plots of one market's book show, taken from a replay: prices, imbalance, depth, an order's place.

Owns the choice of times and numbers; `everlog.market.plots` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market.book_results import Outputs
from everlog.market.book_set import BookSet, BookSettings, Market
from everlog.market.books import L3Book
from everlog.market.feature_rows import (
    BestPrices,
    BookRows,
    Column,
    Feature,
    GlobalTime,
    Step,
    book_imbalance,
    mid_price,
    spread,
)
from everlog.market.merge import in_time_order
from everlog.market.plots import DepthMap, Panel, Series
from everlog.market.protocol import L3EventType, TypeId
from everlog.market.replay import Replay
from everlog.market.triggers import Always, EveryMessage, TimeBar

KINDS: Final = ("depth", "mid", "imbalance", "queue-position")
Rows = NDArray[np.void]


class Picture(NamedTuple):
    """What a plot shows, and of which market."""

    market: Market
    what: str
    panels: list[Panel]
    depth: DepthMap | None = None


class _Levels:
    """The best levels of both sides as they are."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        names = ("bid_prices", "bid_sizes", "ask_prices", "ask_sizes")
        self.columns = tuple(Column(name, np.dtype((np.float64, (depth,)))) for name in names)

    def begin(self) -> Step:
        return lambda rows: (rows.bid_prices, rows.bid_sizes, rows.ask_prices, rows.ask_sizes)


class _OrderEvents:
    """Which order each event is about, what happens to it, and what is ahead of it."""

    depth = 1
    reads_orders = True
    columns = (Column("kind", np.uint8), Column("order_id", np.uint64), Column("size_ahead", np.float64))

    def begin(self) -> Step:
        def step(rows: BookRows) -> Sequence[NDArray[Any]]:
            assert rows.orders is not None, "it reads orders"
            return rows.orders.kind, rows.orders.order_id, rows.orders.size_ahead

        return step


def picture(
    kind: str,
    replay: Replay,
    settings: BookSettings,
    step_ns: int,
    levels: int,
    order_id: int | None = None,
    name_of: Callable[[Market], str] = str,
) -> Picture:
    """Return what a plot of one market shows, with a value every `step_ns` at most."""
    if kind not in KINDS:
        raise InvalidConfig(f"a plot of {kind!r} is unknown; known are {', '.join(KINDS)}")
    if kind == "queue-position":
        return _queue_position(replay, settings, step_ns, order_id, name_of)
    chosen: list[Feature] = [GlobalTime(), BestPrices(), mid_price(), spread()]
    chosen += [_Levels(levels)] if kind == "depth" else [book_imbalance(levels)]
    trigger = TimeBar(step_ns)
    market, rows = _of_one_market(
        [(one.market, one.rows) for one in replay.features(chosen, settings).trigger(trigger).tables()],
        name_of,
    )
    # A side that is empty has no price to draw.
    rows = rows[(rows["bid_size"] > 0) & (rows["ask_size"] > 0)]
    prices = [_series(rows, name) for name in ("ask_price", "mid_price", "bid_price")]
    if kind == "mid":
        return Picture(market, kind, [Panel("price", prices), Panel("spread", [_series(rows, "spread")])])
    if kind == "imbalance":
        imbalance = Panel(f"imbalance of {levels} levels", [_series(rows, "book_imbalance")])
        return Picture(market, kind, [imbalance, Panel("price", prices[1:2])])
    depth = DepthMap(
        rows["ingest_ts_ns"],
        np.concatenate((rows["bid_prices"], rows["ask_prices"]), axis=1),
        np.concatenate((rows["bid_sizes"], rows["ask_sizes"]), axis=1),
    )
    return Picture(market, kind, [Panel("price", [prices[0], prices[2]])], depth if len(rows) else None)


def _of_one_market(
    tables: list[tuple[Market, Rows]], name_of: Callable[[Market], str]
) -> tuple[Market, Rows]:
    """Return the rows of the only market; several are refused."""
    markets = sorted({market for market, _ in tables})
    if not markets:
        raise InvalidConfig("there is nothing to plot: no book event is in the range that was chosen")
    if len(markets) > 1:
        names = ", ".join(map(name_of, markets[:20]))
        raise InvalidConfig(f"there are {len(markets)} markets; choose one with --symbol: {names}")
    return markets[0], np.concatenate([rows for _, rows in tables])


def _series(rows: Rows, name: str) -> Series:
    return Series(name, rows["ingest_ts_ns"], rows[name])


def _queue_position(
    replay: Replay,
    settings: BookSettings,
    step_ns: int,
    order_id: int | None,
    name_of: Callable[[Market], str],
) -> Picture:
    chosen: list[Feature] = [GlobalTime(), _OrderEvents()]
    # In the middle of the venue's events too: most orders come and go there.
    whole = replay.features(chosen, settings).trigger(EveryMessage(Always()))
    market, rows = _of_one_market([(one.market, one.rows) for one in whole.tables()], name_of)
    order_id = _patient_order(rows) if order_id is None else order_id
    places = _places_of(replay, settings, market, order_id, step_ns)
    if not len(places):
        raise InvalidConfig(f"order {order_id} of market {name_of(market)} stands in no queue in this range")
    times, orders_ahead, size_ahead = places.T
    panels = [
        Panel(name.replace("_", " "), [Series(name, times.astype(np.uint64), values.astype(np.float64))])
        for name, values in (("size_ahead", size_ahead), ("orders_ahead", orders_ahead))
    ]
    return Picture(market, f"queue position of order {order_id}", panels)


def _patient_order(rows: Rows) -> int:
    """Return the order that stood the longest after it had come behind others."""
    came = rows[(rows["kind"] == L3EventType.ORDER_ADD) & (rows["size_ahead"] > 0)]
    ids, first = np.unique(came["order_id"], return_index=True)
    if not len(ids):
        raise InvalidConfig(
            "no order came behind another in this range; a queue position needs a book of orders"
        )
    ends = rows[np.isin(rows["order_id"], ids)]
    last_ns = np.zeros(len(ids), np.uint64)
    np.maximum.at(last_ns, np.searchsorted(ids, ends["order_id"]), ends["ingest_ts_ns"])
    return int(ids[np.argmax(last_ns - came["ingest_ts_ns"][first])])


def _places_of(
    replay: Replay, settings: BookSettings, market: Market, order_id: int, step_ns: int
) -> NDArray[np.object_]:
    """Return time, orders and size ahead of an order, once a step while it is in a queue."""
    books = BookSet(settings)
    books.take_some_markets()
    replay, start_ns = replay.from_the_start()
    places: list[tuple[int, int, float]] = []
    for some in in_time_order([replay.types(TypeId.BOOK_EVENT)]):
        steps = some.timestamp_ns // np.uint64(step_ns)
        cuts = [*(np.flatnonzero(steps[1:] != steps[:-1]) + 1).tolist(), len(steps)]
        packed, times, begin = some.packed, some.timestamp_ns, 0
        for end in cuts:
            books.apply_packed(packed.take(slice(begin, end)), Outputs(top=False))
            begin = end
            book = books.books.get(market)
            place = book.queue_place(order_id) if isinstance(book, L3Book) else None
            if place is None or book is None:
                if places:
                    return np.array(places, dtype=object)
            elif times[end - 1] >= start_ns:
                size = place.size_ahead / 10.0**book.size_scale
                places.append((int(times[end - 1]), place.orders_ahead, size))
    return np.array(places, dtype=object)
