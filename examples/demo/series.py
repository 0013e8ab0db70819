"""The numbers behind the plots, taken from the queues and, if Spark ran, from the lake.

Owns sampling and binning; draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from everlog.market import BookSet, Outputs
from everlog.market.protocol import BookMode, TypeId
from everlog.market.replay import Replay
from examples.demo.audit import Latency
from examples.demo.evidence import Evidence
from examples.demo.rebuilt import book_settings, local_features
from examples.demo.tables import Array

HEAT_COLUMNS = 160
HEAT_LEVELS = 30
HEAT_MARGIN = 14
"""Price steps that are shown beyond the best prices of the session."""

HEAT_SHADES = 7
BUCKET_S = 0.25
BINS_PER_DECADE = 8
NS_PER_S = 1e9


@dataclass(frozen=True)
class Prices:
    """Mid price and spread of one symbol over the time of the session."""

    symbol: str
    source: str
    seconds: Array
    mid: Array
    spread_bps: Array


@dataclass(frozen=True)
class Heat:
    """Sizes around the mid, by time and price; `shades[column, row]` is 0 (nothing) to HEAT_SHADES."""

    seconds: Array
    prices: Array
    shades: Array
    largest: float
    mid_seconds: Array
    mid: Array


@dataclass(frozen=True)
class Histogram:
    """Durations in bins that grow by a constant factor, in microseconds; some are set apart."""

    name: str
    edges_us: Array
    counts: Array
    apart: Array
    latency: Latency | None
    apart_count: int


@dataclass(frozen=True)
class Rates:
    """Messages a second at some places of the chain, over time."""

    seconds: Array
    per_second: dict[str, Array]


def prices(evidence: Evidence) -> Prices:
    """Return mid and spread of the first symbol, from Spark's features if there are any."""
    book = evidence.truth["books"][0]
    if evidence.outcome.lake is not None:
        from examples.demo.lake_checks import feature_columns  # needs what only Spark runs have installed

        rows: Any = feature_columns(evidence.root, book["market_id"])
        source = "features computed by Spark"
    else:
        by_market = local_features(evidence.queue)
        rows = next(rows for market, rows in by_market.items() if market.market_id == book["market_id"])
        source = "features computed on this machine"
    # The venue's clock is a little ahead of the first append.
    seconds = np.maximum(_seconds(rows["ingest_ts_ns"], evidence), 0.0)
    return Prices(book["symbol"], source, seconds, rows["mid_price"], rows["spread_bps"])


def heat(evidence: Evidence) -> Heat:
    """Rebuild the L2 book of the first symbol and look at it in regular steps."""
    truth = evidence.truth
    market_id = truth["books"][0]["market_id"]
    price_unit, size_unit = 10.0 ** truth["price_scale"], 10.0 ** truth["size_scale"]
    times, bids, asks = _depths(evidence, market_id)
    edges = np.linspace(0.0, max(float(times[-1]), 1e-3), HEAT_COLUMNS + 1)
    chosen = np.maximum(np.searchsorted(times, edges[1:], "right") - 1, 0)
    best_bid, best_ask = bids["price"][chosen, 0], asks["price"][chosen, 0]
    low, high = int(best_bid.min()) - HEAT_MARGIN, int(best_ask.max()) + HEAT_MARGIN + 1
    sizes = np.zeros((HEAT_COLUMNS, high - low))
    for side in (bids, asks):
        levels = side[chosen]
        shown = (levels["size"] > 0) & (levels["price"] >= low) & (levels["price"] < high)
        columns, kept = np.nonzero(shown)[0], levels[shown]
        sizes[columns, kept["price"].astype(np.int64) - low] = kept["size"] / size_unit
    largest = float(np.percentile(sizes[sizes > 0], 98)) if (sizes > 0).any() else 1.0
    shades = np.ceil(np.clip(sizes / largest, 0, 1) * HEAT_SHADES).astype(int)
    prices_edges = (np.arange(low, high + 1) - 0.5) / price_unit
    mid = (best_bid.astype(float) + best_ask) / 2 / price_unit
    return Heat(edges, prices_edges, shades, largest, (edges[1:] + edges[:-1]) / 2, mid)


def _depths(evidence: Evidence, market_id: int) -> tuple[Array, Array, Array]:
    """Return time and best levels of one market after each of its L2 events."""
    books = BookSet(book_settings(BookMode.L2))
    times, bids, asks = [], [], []
    for some in Replay(str(evidence.queue)).types(TypeId.BOOK_EVENT).markets(market_id).batches():
        stamps = some.timestamp_ns.copy()
        for events, result in books.apply_packed(some.packed, Outputs(depth=HEAT_LEVELS)).values():
            assert result.bids is not None and result.asks is not None, "both were asked for"
            times.append(stamps[events])
            bids.append(result.bids)
            asks.append(result.asks)
    return _seconds(np.concatenate(times), evidence), np.concatenate(bids), np.concatenate(asks)


def histograms(evidence: Evidence) -> list[Histogram]:
    """Return the latencies of the queue and of server-sent events."""
    orders = [table.rows for table in evidence.orders.values()]
    taken = np.concatenate([_taken(rows["received_ns"], rows["tick_timestamp_ns"]) for rows in orders])
    waited = np.concatenate([rows["catching_up"] != 0 for rows in orders])
    sse_taken, sse_waited = sse_latencies(evidence)
    return [
        _histogram("queue", taken, waited),
        _histogram("SSE", sse_taken, sse_waited),
    ]


def sse_latencies(evidence: Evidence) -> tuple[Array, Array]:
    """Return for each watched record how long it took from the queue, and whether it waited for the bridge.

    The restarted bridge has caught up when a record takes no longer than nearly all did before the kill.
    """
    rows = evidence.seen.rows
    known = rows["source_seq"] < len(evidence.market)
    rows = rows[known]
    sent = evidence.market.timestamp_ns[rows["source_seq"]]
    taken = _taken(rows["received_ns"], sent)
    waited = np.zeros(len(rows), dtype=bool)
    kill = evidence.outcome.kill_of("bridge")
    if kill is not None:
        back = int(np.searchsorted(rows["received_ns"], kill.restarted_ns))
        before = taken[rows["received_ns"] < kill.killed_ns]
        usual_ns = np.percentile(before, 99) if len(before) else 0
        caught_up = np.flatnonzero(taken[back:] <= usual_ns)
        waited[back : back + int(caught_up[0]) if len(caught_up) else len(rows)] = True
    return taken, waited


def rates(evidence: Evidence) -> Rates:
    """Count messages in short intervals at each place of the chain."""
    start = evidence.market.started_ns
    done = np.concatenate([table.rows["done_ns"] for table in evidence.done.values()])
    moments = {
        "appended to the queue": evidence.market.timestamp_ns,
        "received over SSE": evidence.seen.rows["received_ns"],
        "orders of both strategies": np.concatenate([t.timestamp_ns for t in evidence.orders.values()]),
        "fills settled by workers": done,
    }
    last = max((int(values.max()) for values in moments.values() if len(values)), default=start)
    count = int((last - start) / NS_PER_S / BUCKET_S) + 1
    edges = np.arange(count + 1) * BUCKET_S
    per_second = {
        name: np.histogram((values.astype(np.int64) - start) / NS_PER_S, bins=edges)[0] / BUCKET_S
        for name, values in moments.items()
    }
    return Rates((edges[1:] + edges[:-1]) / 2, per_second)


def _taken(received_ns: Array, sent_ns: Array) -> Array:
    taken: Array = received_ns.astype(np.int64) - sent_ns.astype(np.int64)
    return taken


def _histogram(name: str, taken_ns: Array, apart: Array) -> Histogram:
    microseconds = np.maximum(taken_ns / 1000.0, 0.1)
    low = np.floor(np.log10(microseconds.min(initial=1.0)))
    high = np.ceil(np.log10(microseconds.max(initial=10.0)) + 1e-9)
    edges = 10.0 ** np.linspace(low, high, int((high - low) * BINS_PER_DECADE) + 1)
    counts = np.histogram(microseconds[~apart], bins=edges)[0]
    return Histogram(
        name,
        edges,
        counts,
        np.histogram(microseconds[apart], bins=edges)[0],
        Latency.of(taken_ns[~apart]),
        int(apart.sum()),
    )


def _seconds(stamps_ns: Array, evidence: Evidence) -> Array:
    seconds: Array = (stamps_ns.astype(np.int64) - evidence.market.started_ns) / NS_PER_S
    return seconds
