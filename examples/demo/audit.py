"""The audit of the order flow: reads every queue from its first record, follows each trade to the books.

Judges by what lies in the queues alone; no process's counters are used. Each queue becomes NumPy
columns, so a million messages take a second. Changes nothing. The rest of the chain, topics and
lake, is judged by `accounts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from everlog.bus import FILL_TYPE_ID, ORDER_TYPE_ID, IpcLayout
from examples.demo.plan import Kill
from examples.demo.records import (
    BOOKED,
    BOOKED_TYPE_ID,
    BUY,
    FILL,
    ORDER,
    Record,
    books_dir,
    ticks_dir,
)
from examples.demo.tables import FOREIGN, L2, L3, TRADES, Array, MarketTable, Table, read_market, read_table


@dataclass(frozen=True)
class Latency:
    """Percentiles of a number of measured messages."""

    samples: int
    p50_us: float
    p99_us: float
    p999_us: float

    @staticmethod
    def of(taken_ns: Array) -> Latency | None:
        """Return the percentiles of some durations, None if there are none."""
        if not len(taken_ns):
            return None
        p50, p99, p999 = (float(value) / 1000 for value in np.percentile(taken_ns, [50, 99, 99.9]))
        return Latency(len(taken_ns), p50, p99, p999)


@dataclass(frozen=True)
class Link:
    """One sender and one receiver.

    `lost` counts messages that had no effect, `duplicated` those that had it twice, and
    `redelivered` those that arrived once more after the kill and were recognised.
    """

    name: str
    messages: int
    segments: int
    rate_per_s: float
    latency: Latency | None
    lost: int
    duplicated: int
    redelivered: int


@dataclass(frozen=True)
class Resumption:
    """How the killed strategy went on, as its orders tell."""

    strategy: str
    pid: int
    last_seq_before: int
    committed_seq: int
    first_seq_after: int
    silent_ms: float


@dataclass(frozen=True)
class Findings:
    """All that the audit has to say; `problems` is empty if everything is as it must be."""

    links: list[Link]
    tick_to_books: dict[str, Latency | None]
    left_out: int
    resumption: Resumption | None
    problems: list[str]

    @property
    def zero_loss(self) -> bool:
        """True if nothing is missing, nothing counted twice, and no check failed."""
        return not self.problems and not any(link.lost or link.duplicated for link in self.links)


class Auditor:
    """Collects links and problems while it goes from queue to queue."""

    def __init__(self, layout: IpcLayout) -> None:
        self._layout = layout
        self._links: list[Link] = []
        self._tick_to_books: dict[str, Latency | None] = {}
        self._left_out = 0
        self._resumption: Resumption | None = None
        self._problems: list[str] = []
        self.market: MarketTable = read_market(ticks_dir(layout))
        self._ticks = self.market.trades
        self._check_market()

    def findings(self) -> Findings:
        """Return what was found so far."""
        return Findings(self._links, self._tick_to_books, self._left_out, self._resumption, self._problems)

    def follow(self, strategy: str, kill: Kill | None) -> None:
        """Follow every tick through one strategy: order, fill, books."""
        endpoints = self._layout.orders().strategy_endpoints(strategy)
        orders = self._read(endpoints.orders_out, ORDER, f"orders of {strategy}", [ORDER_TYPE_ID])
        fills = self._read(endpoints.orders_in, FILL, f"fills of {strategy}", [FILL_TYPE_ID])
        booked = self._read(
            books_dir(self._layout, strategy), BOOKED, f"books of {strategy}", [BOOKED_TYPE_ID]
        )
        self._links += [
            self._tick_link(strategy, orders),
            self._order_link(strategy, orders, fills),
            self._fill_link(strategy, fills, booked),
        ]
        self._measure_whole_way(strategy, booked)
        self._check_position(strategy, fills, booked)
        self._left_out += int(np.count_nonzero(orders.rows["catching_up"]))
        if kill is not None:
            self._check_resumption(kill, orders)

    # -- the queues ----------------------------------------------------------------------

    def _check_market(self) -> None:
        """The market queue has no hole, and the feed's good-bye says what is before it."""
        market = self.market
        self._check_all(
            "market data", "gaps in the seq", market.seq == np.arange(len(market), dtype=np.uint64)
        )
        self._check_all("market data", "messages of a foreign type", market.kind != FOREIGN)
        counted = (market.count(L3), market.count(L2), market.count(TRADES))
        told = [(int(end["l3_events"]), int(end["l2_events"]), int(end["trades"])) for end in market.ends]
        self._check(
            told == [counted],
            f"the session should end once, after {counted} L3 events, L2 events and trades; ends: {told}",
        )
        ids = market.trades.rows["trade_id"]
        self._check_all("trades", "ids that do not count up", np.diff(ids.astype(np.int64)) == 1)

    def _read(self, path: Path, record: Record, what: str, type_ids: list[int]) -> Table:
        """Read a queue from its first message, checksums and all."""
        table = read_table(path, record)
        self._check_all(what, "gaps in the seq", table.seq == np.arange(len(table), dtype=np.uint64))
        self._check_all(what, "messages of a foreign type", np.isin(table.type_id, type_ids))
        return table

    # -- the links -----------------------------------------------------------------------

    def _tick_link(self, strategy: str, orders: Table) -> Link:
        ticks, rows = self._ticks, orders.rows
        known = np.isin(rows["order_id"], ticks.seq)
        self._check_all(f"orders of {strategy}", "ids that no trade has", known)
        causes = np.searchsorted(ticks.seq, rows["order_id"][known])
        same_time = rows["tick_timestamp_ns"][known] == ticks.timestamp_ns[causes]
        same_price = rows["price"][known] == ticks.rows["price"][causes]
        same_quantity = rows["quantity"][known] == ticks.rows["qty"][causes]
        self._check_all(
            f"orders of {strategy}",
            "contents that differ from the trade",
            same_time & same_price & same_quantity,
        )
        orders_by_run = len(np.unique(rows[["order_id", "run"]]))
        return Link(
            name=f"feed -> {strategy}",
            messages=len(ticks),
            segments=ticks.segments,
            rate_per_s=_rate_per_s(ticks),
            latency=_latency(rows["received_ns"], rows["tick_timestamp_ns"], rows["catching_up"]),
            lost=_missing(ticks.seq, rows["order_id"]),
            duplicated=len(rows) - orders_by_run,
            redelivered=orders_by_run - len(np.unique(rows["order_id"])),
        )

    def _order_link(self, strategy: str, orders: Table, fills: Table) -> Link:
        rows = fills.rows
        known = rows["order_seq"] < len(orders)
        answered = rows["order_seq"][known]
        known[known] = orders.rows["order_id"][answered] == rows["order_id"][known]
        answered = rows["order_seq"][known]
        self._check_all(f"fills of {strategy}", "orders that were never sent", known)
        same = rows["order_timestamp_ns"][known] == orders.timestamp_ns[answered]
        for field in ("side", "price", "quantity"):
            same &= rows[field][known] == orders.rows[field][answered]
        self._check_all(f"fills of {strategy}", "contents that differ from the order", same)
        distinct = len(np.unique(orders.rows["order_id"]))
        return Link(
            name=f"{strategy} -> router",
            messages=len(orders),
            segments=orders.segments,
            rate_per_s=_rate_per_s(orders),
            latency=_latency(rows["received_ns"], rows["order_timestamp_ns"], rows["catching_up"]),
            lost=_missing(orders.rows["order_id"], rows["order_id"]),
            duplicated=len(rows) - len(np.unique(rows["order_id"])),
            redelivered=len(orders) - distinct,
        )

    def _fill_link(self, strategy: str, fills: Table, booked: Table) -> Link:
        rows = booked.rows
        known = rows["fill_seq"] < len(fills)
        known[known] = fills.rows["order_id"][rows["fill_seq"][known]] == rows["order_id"][known]
        self._check_all(f"books of {strategy}", "fills that were never sent", known)
        applied = rows[rows["applied"] == 1]
        return Link(
            name=f"router -> {strategy}",
            messages=len(fills),
            segments=fills.segments,
            rate_per_s=_rate_per_s(fills),
            latency=_latency(rows["received_ns"], rows["fill_timestamp_ns"], rows["catching_up"]),
            lost=_missing(fills.seq, applied["fill_seq"]),
            duplicated=len(applied) - len(np.unique(applied["fill_seq"])),
            redelivered=len(rows) - len(applied),
        )

    # -- the whole way -------------------------------------------------------------------

    def _measure_whole_way(self, strategy: str, booked: Table) -> None:
        rows = booked.rows[booked.rows["applied"] == 1]
        rows = rows[np.isin(rows["order_id"], self._ticks.seq)]
        ticked_ns = self._ticks.timestamp_ns[np.searchsorted(self._ticks.seq, rows["order_id"])]
        self._tick_to_books[strategy] = _latency(rows["received_ns"], ticked_ns, rows["catching_up"])

    def _check_position(self, strategy: str, fills: Table, booked: Table) -> None:
        """What the strategy believes to hold must be what its fills add up to."""
        sign = np.where(fills.rows["side"] == BUY, 1.0, -1.0)
        # Added up one by one, as the strategy does it: another order would round differently.
        held = float(np.cumsum(sign * fills.rows["quantity"])[-1]) if len(fills) else 0.0
        believed = float(booked.rows["position"][-1]) if len(booked) else 0.0
        self._check(believed == held, f"{strategy} believes to hold {believed}, its fills add up to {held}")

    def _check_resumption(self, kill: Kill, orders: Table) -> None:
        """The first trade after the restart must be the first one at or after the committed position."""
        last_run = orders.rows["run"].max(initial=0)
        before = np.flatnonzero(orders.rows["run"] < last_run)
        after = np.flatnonzero(orders.rows["run"] == last_run)
        if not len(before) or not len(after) or kill.committed_seq is None:
            self._problems.append(f"{kill.who} sent no orders before its kill, or none after it")
            return
        resumption = Resumption(
            strategy=kill.who,
            pid=kill.pid,
            last_seq_before=int(orders.rows["order_id"][before[-1]]),
            committed_seq=kill.committed_seq,
            first_seq_after=int(orders.rows["order_id"][after[0]]),
            silent_ms=float(orders.timestamp_ns[after[0]] - orders.timestamp_ns[before[-1]]) / 1e6,
        )
        self._resumption = resumption
        waiting = self._ticks.seq[np.searchsorted(self._ticks.seq, kill.committed_seq) :]
        self._check(
            len(waiting) > 0 and resumption.first_seq_after == int(waiting[0]),
            f"{kill.who} had committed up to message {kill.committed_seq} but resumed with the trade "
            f"{resumption.first_seq_after}",
        )

    def _check(self, condition: bool, problem: str) -> None:
        if not condition:
            self._problems.append(problem)

    def _check_all(self, what: str, problem: str, good: Array) -> None:
        bad = np.flatnonzero(~good)
        self._check(not len(bad), f"{what}: {len(bad)} {problem}, the first at message {bad[:1]}")


def audit(root: Path, strategies: Iterable[str], kill: Kill | None) -> Findings:
    """Read all queues of the order flow below `root` and say what became of every trade."""
    auditor = Auditor(IpcLayout(root))
    for strategy in strategies:
        auditor.follow(strategy, kill if kill is not None and kill.who == strategy else None)
    return auditor.findings()


def _missing(wanted: Array, present: Array) -> int:
    return len(np.setdiff1d(wanted, present))


def _rate_per_s(table: Table) -> float:
    if len(table) < 2:
        return 0.0
    elapsed_ns = int(table.timestamp_ns[-1]) - int(table.timestamp_ns[0])
    return len(table) / max(elapsed_ns, 1) * 1e9


def _latency(received_ns: Array, sent_ns: Array, catching_up: Array) -> Latency | None:
    """Percentiles without what waited for a strategy to come back; None if nothing is left."""
    chosen = catching_up == 0
    # Signed: on a clock that was set back a message may seem to arrive before it was sent.
    return Latency.of(received_ns[chosen].astype(np.int64) - sent_ns[chosen].astype(np.int64))
