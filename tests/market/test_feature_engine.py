"""The features of a stream against plain Python over plain books: dictionaries, loops, no arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidConfig
from everlog.market.book_set import BookSettings, Market
from everlog.market.feature_choice import NAMES, parse_features
from everlog.market.feature_engine import FeatureEngine, order_takers
from everlog.market.feature_rows import (
    BestPrices,
    Depth,
    DepthWithin,
    Feature,
    GlobalTime,
    LevelFlowImbalance,
    OrderRates,
    QueuePosition,
    RealisedVolatility,
    Seq,
    TradeFlow,
    book_imbalance,
    microprice,
    mid_price,
    weighted_mid,
)
from everlog.market.merge import MergedBatch
from everlog.market.packing import PackedRecords
from everlog.market.protocol import (
    L3_EVENT,
    TRADE,
    BookEventType,
    L3EventType,
    MessageFlags,
    Side,
    TypeId,
    crypto_market_id,
    symbol_hash,
)
from everlog.market.triggers import Always, EveryMessage, TimeBar, Trigger
from tests.support.book_twins import L2Twin, L3Twin, l2_record, l3_records

MARKET = Market(1, crypto_market_id("BTCUSDT"))
STEP_NS = 100
LEVELS = 3
BPS = 150.0


@dataclass(frozen=True)
class Diff:
    """Levels that change: side, price, size."""

    changes: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Trade:
    """What was traded; the side is the taker's."""

    price: int
    qty: int
    side: int


Step = Diff | Trade


def batch_of(steps: Sequence[Step], first: int = 0, market: Market = MARKET, source: int = 0) -> MergedBatch:
    """Return steps as messages, one every `STEP_NS`."""
    payloads, kinds, flags = [], [], []
    for number, step in enumerate(steps, start=first):
        now_ns = (number + 1) * STEP_NS
        if isinstance(step, Diff):
            sides = [[(price, size) for side, price, size in step.changes if side == one] for one in (1, 2)]
            times = (now_ns, now_ns - 1)
            payloads.append(l2_record(BookEventType.DIFF, *sides, market=market, times_ns=times))
            flags.append(0)
        else:
            trade = np.zeros(1, TRADE)
            trade["timestamp_ns"], trade["price"], trade["qty"] = now_ns - 1, step.price, step.qty
            trade["is_buyer_maker"] = step.side == Side.SELL
            trade["symbol_hash"] = symbol_hash("BTCUSDT")
            payloads.append(trade.tobytes())
            flags.append(MessageFlags.SIDE_UNKNOWN if step.side == Side.UNKNOWN else 0)
        kinds.append(TypeId.BOOK_EVENT if isinstance(step, Diff) else TypeId.TRADE)
    lengths = np.array([len(one) for one in payloads], np.uint64)
    numbers = np.arange(first, first + len(steps), dtype=np.uint64)
    return MergedBatch(
        np.full(len(steps), source, np.intp),
        numbers,
        (numbers + np.uint64(1)) * np.uint64(STEP_NS),
        np.array(kinds, np.uint16),
        np.array(flags, np.uint16),
        PackedRecords(np.frombuffer(b"".join(payloads), np.uint8), np.cumsum(lengths) - lengths, lengths),
        numbers,
    )


def table_of(
    features: Sequence[Feature], batches: Sequence[MergedBatch], trigger: Trigger | None = None
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return all rows of the one market."""
    engine = FeatureEngine(features, BookSettings(gap_policy="ignore"), trigger or Always())
    parts = [one.rows for some in batches for one in engine.rows(some)]
    return np.concatenate(parts) if parts else np.zeros(0, engine.dtype)


@dataclass
class Plain:
    """A book in dictionaries and the features by their formulas, one event after the other."""

    book: L2Twin = field(default_factory=L2Twin)
    traded: dict[int, float] = field(default_factory=lambda: dict.fromkeys((0, 1, 2), 0.0))
    trades: int = 0
    squares: float = 0.0
    last_mid: float | None = None
    flows: list[float] = field(default_factory=lambda: [0.0] * LEVELS)
    before: list[tuple[tuple[float, float], ...]] | None = None

    def apply(self, step: Step) -> None:
        if isinstance(step, Trade):
            self.traded[step.side] += step.qty
            self.trades += 1
        else:
            for change in step.changes:
                self.book.update(*change)
        bids, asks = self.book.levels(1), self.book.levels(2)
        mid = (bids[0][0] + asks[0][0]) / 2 if bids and asks else None
        if mid is not None and mid > 0:
            if self.last_mid is not None:
                self.squares += math.log(mid / self.last_mid) ** 2
            self.last_mid = mid
        now = [
            (
                bids[level] if level < len(bids) else (-math.inf, 0.0),
                asks[level] if level < len(asks) else (math.inf, 0.0),
            )
            for level in range(LEVELS)
        ]
        for level in range(LEVELS):
            if self.before is not None:
                self.flows[level] += _flow(*self.before[level], *now[level])
        self.before = now

    def row(self) -> dict[str, float]:
        """Return what a row shows now, and begin the sums of the next one."""
        bids, asks = self.book.levels(1), self.book.levels(2)
        both = bool(bids and asks)
        mid = (bids[0][0] + asks[0][0]) / 2 if both else 0.0
        held = [sum(size for _, size in side[:LEVELS]) for side in (bids, asks)]
        row = {
            "mid_price": mid,
            "bid_price": bids[0][0] if bids else 0,
            "ask_size": asks[0][1] if asks else 0,
            "book_imbalance": (held[0] - held[1]) / sum(held) if sum(held) else 0.0,
            f"bid_depth_{LEVELS}": held[0],
            f"ask_depth_{LEVELS}": held[1],
            "trades": self.trades,
            "bought": self.traded[Side.BUY],
            "sold": self.traded[Side.SELL],
            "unknown_side": self.traded[Side.UNKNOWN],
            "realised_volatility": math.sqrt(self.squares),
            "microprice": 0.0,
            "weighted_mid": 0.0,
        }
        for name, side in (("bid", bids), ("ask", asks)):
            near = [size for price, size in side[:50] if abs(price - mid) * 10_000 <= abs(mid) * BPS]
            row[f"{name}_depth_{BPS:g}bps"] = sum(near) if both else 0.0
        if both:
            (bid, bid_size), (ask, ask_size) = bids[0], asks[0]
            row["microprice"] = (bid * ask_size + ask * bid_size) / (bid_size + ask_size)
            row["weighted_mid"] = (bid * held[1] + ask * held[0]) / (held[0] + held[1])
        taken = self.traded[Side.BUY] + self.traded[Side.SELL]
        row["trade_imbalance"] = (self.traded[Side.BUY] - self.traded[Side.SELL]) / taken if taken else 0.0
        row |= {f"order_flow_imbalance_{level + 1}": flow for level, flow in enumerate(self.flows)}
        self.traded, self.trades = dict.fromkeys((0, 1, 2), 0.0), 0
        self.squares, self.flows = 0.0, [0.0] * LEVELS
        return row


def _flow(
    bid0: tuple[float, float], ask0: tuple[float, float], bid: tuple[float, float], ask: tuple[float, float]
) -> float:
    return (
        (bid[1] if bid[0] >= bid0[0] else 0)
        - (bid0[1] if bid[0] <= bid0[0] else 0)
        - (ask[1] if ask[0] <= ask0[0] else 0)
        + (ask0[1] if ask[0] >= ask0[0] else 0)
    )


def features() -> list[Feature]:
    return [
        GlobalTime(),
        Seq(),
        mid_price(),
        BestPrices(),
        book_imbalance(LEVELS),
        microprice(),
        weighted_mid(LEVELS),
        Depth(LEVELS),
        DepthWithin(BPS),
        LevelFlowImbalance(LEVELS),
        TradeFlow(),
        RealisedVolatility(),
    ]


# Bids below 100, asks from 100 on: levels come and go, and the sides empty now and then.
CHANGES = st.one_of(
    st.tuples(st.just(1), st.integers(95, 99), st.integers(0, 4)),
    st.tuples(st.just(2), st.integers(100, 104), st.integers(0, 4)),
)
STEPS = st.one_of(
    st.builds(Diff, st.lists(CHANGES, max_size=4, unique_by=lambda one: one[:2]).map(tuple)),
    st.builds(Trade, st.integers(95, 104), st.integers(1, 9), st.integers(0, 2)),
)
STREAMS = st.lists(STEPS, min_size=1, max_size=25)


def expected(steps: Sequence[Step], interval: int) -> list[dict[str, float]]:
    """Return the rows of the plain book: after each `interval`-th message from the first diff on."""
    plain, rows, last_bucket = Plain(), [], -1
    begun = False
    for number, step in enumerate(steps):
        begun |= isinstance(step, Diff)
        if not begun:
            continue
        plain.apply(step)
        bucket = (number + 1) // interval
        if bucket > last_bucket:
            last_bucket = bucket
            rows.append({"seq": number, "ingest_ts_ns": (number + 1) * STEP_NS, **plain.row()})
    return rows


@given(STREAMS, st.integers(1, 5))
def test_every_feature_is_its_formula_over_a_plain_book(steps: list[Step], interval: int) -> None:
    rows = expected(steps, interval)
    table = table_of(features(), [batch_of(steps)], TimeBar(interval * STEP_NS))
    assert len(table) == len(rows)
    for found, row in zip(table, rows, strict=True):
        assert {name: found[name] for name in row} == pytest.approx(row)


@given(STREAMS, st.integers(1, 5), st.lists(st.integers(0, 25), max_size=4))
def test_cutting_a_stream_of_books_and_trades_into_batches_changes_no_bit(
    steps: list[Step], interval: int, cuts: list[int]
) -> None:
    whole = table_of(features(), [batch_of(steps)], TimeBar(interval * STEP_NS))
    ends = sorted({0, len(steps), *(min(cut, len(steps)) for cut in cuts)})
    parts = [batch_of(steps[first:end], first) for first, end in pairwise(ends)]
    assert table_of(features(), parts, TimeBar(interval * STEP_NS)).tobytes() == whole.tobytes()


def test_trades_are_events_only_where_a_feature_reads_them() -> None:
    steps = [Diff(((1, 99, 1), (2, 100, 1))), Trade(100, 5, Side.BUY), Trade(99, 1, Side.SELL)]
    assert len(table_of([mid_price()], [batch_of(steps)])) == 1
    table = table_of([mid_price(), TradeFlow()], [batch_of(steps)])
    assert table["trade_imbalance"].tolist() == [0.0, 1.0, -1.0]
    assert table["mid_price"].tolist() == [99.5] * 3


def test_a_trade_of_two_venues_belongs_to_the_market_of_its_own_queue() -> None:
    quote, other = Diff(((1, 99, 1), (2, 100, 1))), Market(2, MARKET.market_id)
    engine = FeatureEngine([TradeFlow()], BookSettings(), Always())
    engine.rows(batch_of([quote], 0, MARKET, source=0))
    engine.rows(batch_of([quote], 0, other, source=1))
    found = engine.rows(batch_of([Trade(100, 5, Side.BUY)], 1, source=1))
    assert [(one.market, one.rows["bought"].tolist()) for one in found] == [(other, [5.0])]
    engine.rows(batch_of([quote], 2, MARKET, source=1))
    with pytest.raises(InvalidConfig, match="venues 1, 2 is in one queue"):
        engine.rows(batch_of([Trade(100, 5, Side.BUY)], 3, source=1))


# --- Orders ---------------------------------------------------------------------------------------------

ORDER_STEPS = st.lists(
    st.tuples(
        st.sampled_from([L3EventType.ORDER_ADD] * 3 + [L3EventType.ORDER_CANCEL, L3EventType.ORDER_MODIFY]),
        st.integers(1, 2),
        st.integers(1, 6),
        st.integers(100, 102),
        st.integers(1, 9),
        st.integers(0, 400),
    ),
    min_size=1,
    max_size=25,
)


def order_batches(
    rows: list[tuple[int, int, int, int, int, int]], cut: int
) -> tuple[list[MergedBatch], np.ndarray[tuple[int], np.dtype[np.void]], list[int]]:
    """Return order events in one or two batches, as records, and their times."""
    twin, kept, now_ns, times = L3Twin(), [], 1000, []
    for kind, side, order_id, price, qty, wait in rows:
        now_ns += wait
        if kind != L3EventType.ORDER_ADD and order_id not in twin.orders:
            kind = L3EventType.ORDER_ADD  # noqa: PLW2901
        if kind == L3EventType.ORDER_ADD and order_id in twin.orders:
            continue
        kept.append((kind, side, order_id, 0, 0, price, qty, 0))
        times.append(now_ns)
        twin.apply(l3_records(kept[-1:])[0])
    records = l3_records(kept)
    records["header"]["ingest_ts_ns"] = times
    batches = []
    for first, end in ((0, min(cut, len(kept))), (min(cut, len(kept)), len(kept))):
        some = np.ascontiguousarray(records[first:end])
        lengths = np.full(len(some), records.itemsize, np.uint64)
        # An odd byte in front: in a merge, records do not begin at multiples of anything.
        data = np.frombuffer(b"\0" + some.tobytes(), np.uint8)
        batches.append(
            MergedBatch(
                np.zeros(len(some), np.intp),
                np.arange(first, end, dtype=np.uint64),
                some["header"]["ingest_ts_ns"].copy(),
                np.full(len(some), TypeId.BOOK_EVENT, np.uint16),
                np.zeros(len(some), np.uint16),
                PackedRecords(data, np.cumsum(lengths) - lengths + np.uint64(1), lengths),
                some["header"]["ingest_ts_ns"].copy(),
            )
        )
    return batches, records, times


@given(ORDER_STEPS, st.integers(0, 25), st.integers(1, 1500))
def test_queue_positions_and_order_rates_are_those_of_plain_orders(
    rows: list[tuple[int, int, int, int, int, int]], cut: int, window_ns: int
) -> None:
    batches, records, times = order_batches(rows, cut)
    table = table_of([QueuePosition(), OrderRates(window_ns)], batches)
    twin = L3Twin()
    assert len(table) == len(records)
    for number, record in enumerate(records):
        event, before = record["event"], twin.place(int(record["event"]["order_id"]))
        twin.apply(record)
        is_cancel = event["event_type"] == L3EventType.ORDER_CANCEL
        place = (before if is_cancel else twin.place(int(event["order_id"]))) or (-1, -1)
        assert (table["orders_ahead"][number], table["size_ahead"][number]) == place
        for name, kind in (("arrival", L3EventType.ORDER_ADD), ("cancel", L3EventType.ORDER_CANCEL)):
            count = sum(
                records["event"]["event_type"][other] == kind and times[other] > times[number] - window_ns
                for other in range(number + 1)
            )
            assert table[f"order_{name}_rate"][number] == pytest.approx(count / (window_ns / 1e9))


def test_the_taker_is_the_later_order_or_the_one_that_is_not_named() -> None:
    # bid, ask, side, exec_type -> taker
    cases = [
        ((7, 9, 0, 0), Side.SELL),
        ((9, 7, 0, 0), Side.BUY),
        ((7, 0, Side.BUY, 0), Side.SELL),
        ((0, 7, Side.SELL, 0), Side.BUY),
        ((0, 0, Side.BUY, ord("T")), Side.BUY),
        ((0, 0, 0, ord("T")), Side.UNKNOWN),
        ((0, 0, Side.BUY, 5), Side.UNKNOWN),
    ]
    events = np.zeros(len(cases), L3_EVENT)
    names = ("bid_order_id", "ask_order_id", "side", "exec_type")
    for row, (values, _) in enumerate(cases):
        for name, value in zip(names, values, strict=True):
            events[name][row] = value
    assert order_takers(events).tolist() == [taker for _, taker in cases]


def test_a_book_of_orders_tells_its_own_trades() -> None:
    rows = [(1, 1, 1, 0, 0, 100, 5, 0), (1, 2, 2, 0, 0, 101, 5, 0), (4, 2, 0, 0, 2, 101, 3, 0)]
    records = l3_records(rows)  # type: ignore[arg-type]
    lengths = np.full(3, records.itemsize, np.uint64)
    count = np.arange(3, dtype=np.uint64)
    packed = PackedRecords(np.frombuffer(records.tobytes(), np.uint8), np.cumsum(lengths) - lengths, lengths)
    kinds = np.full(3, TypeId.BOOK_EVENT, np.uint16)
    batch = MergedBatch(np.zeros(3, np.intp), count, count, kinds, np.zeros(3, np.uint16), packed, count)
    table = table_of([TradeFlow()], [batch], EveryMessage(Always()))
    assert table["bought"].tolist() == [0.0, 0.0, 3.0]


# --- Names ----------------------------------------------------------------------------------------------


def test_features_are_chosen_by_name_and_each_column_is_there_once() -> None:
    chosen = parse_features("standard:3, mid,depth:10,ofi_levels:2,order_rates:0.5")
    names = [column.name for one in chosen for column in one.columns]
    assert names[:3] == ["ingest_ts_ns", "exchange_ts_ns", "mid_price"]
    assert names[-6:] == [
        "bid_depth_10",
        "ask_depth_10",
        "order_flow_imbalance_1",
        "order_flow_imbalance_2",
        "order_arrival_rate",
        "order_cancel_rate",
    ]
    assert len(set(names)) == len(names)
    assert all(parse_features(name) for name in NAMES)


@pytest.mark.parametrize("text", ["", "depth:0", "depth:x", "depth:1.5", "speed", "mid,,speed:3"])
def test_a_feature_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_features(text)
