"""The formulas of the features: worked by hand, and against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidConfig
from everlog.market import features
from everlog.market.features import Floats


def floats(*values: float) -> Floats:
    """Return values as an array of floats."""
    return np.array(values, dtype=np.float64)


def test_the_mid_price_is_half_way_between_the_best_prices() -> None:
    assert features.mid_price(floats(10.0), floats(10.001)) == pytest.approx([10.0005])


def test_the_spread_is_in_basis_points_of_the_mid_price() -> None:
    assert features.spread_bps(floats(10.0), floats(10.01)) == pytest.approx([9.995], abs=1e-4)
    assert features.spread_bps(floats(99.0), floats(101.0)) == pytest.approx([200.0])


@given(st.lists(st.tuples(*(st.integers(-3, 3), st.integers(0, 3)) * 2), min_size=1, max_size=20))
def test_prices_of_zero_and_below_are_prices_and_only_a_size_of_zero_is_an_empty_side(
    rows: list[tuple[int, int, int, int]],
) -> None:
    table = np.array(rows, dtype=np.float64)
    bid, bid_size, ask, ask_size = table.T
    both = (bid_size > 0) & (ask_size > 0)
    for row, (b, qb, a, qa) in enumerate(rows):
        mid = (b + a) / 2 if qb and qa else 0.0
        assert features.mid_price(bid, ask, both)[row] == mid
        assert features.spread(bid, ask, both)[row] == (a - b if qb and qa else 0.0)
        bps = (a - b) / mid * 10_000 if mid else 0.0
        assert features.spread_bps(bid, ask, both)[row] == pytest.approx(bps)
        micro = (b * qa + a * qb) / (qb + qa) if qb and qa else 0.0
        assert features.microprice(bid, bid_size, ask, ask_size)[row] == pytest.approx(micro)
        if row:
            before = rows[row - 1]
            flow = _flow(*before, b, qb, a, qa)
            assert features.order_flow_imbalance(bid, bid_size, ask, ask_size)[row] == flow


def _flow(b0: int, qb0: int, a0: int, qa0: int, b: int, qb: int, a: int, qa: int) -> float:
    """The order flow of one event by the definition; an empty side is infinitely far away."""
    bid0, bid = b0 if qb0 else -math.inf, b if qb else -math.inf
    ask0, ask = a0 if qa0 else math.inf, a if qa else math.inf
    return (
        (qb if bid >= bid0 else 0)
        - (qb0 if bid <= bid0 else 0)
        - (qa if ask <= ask0 else 0)
        + (qa0 if ask >= ask0 else 0)
    )


def test_the_slope_of_a_book_around_zero_is_that_of_the_same_book_elsewhere() -> None:
    bids, asks = np.array([[-1.0, -2.0]]), np.array([[0.0, 3.0]])
    bid_sizes, ask_sizes = np.array([[2.0, 4.0]]), np.array([[1.0, 0.0]])
    slopes = [features.depth_slope(bids + by, bid_sizes, asks + by, ask_sizes, 2)[0] for by in (0, 0.5, 100)]
    assert slopes[0] > 0 and slopes == pytest.approx([slopes[0]] * 3)


def test_the_imbalance_compares_the_best_sizes_of_both_sides() -> None:
    bids, asks = np.array([[300.0, 100.0, 999.0]]), np.array([[150.0, 50.0, 1.0]])
    assert features.book_imbalance(bids, asks, 2) == pytest.approx([1 / 3])


def test_the_imbalance_of_a_deeper_book_than_there_is_takes_what_there_is() -> None:
    assert features.book_imbalance(np.array([[3.0]]), np.array([[1.0]]), 10) == pytest.approx([0.5])


def test_an_empty_book_has_only_zeros() -> None:
    nothing, levels = floats(0.0), np.zeros((1, 3))
    assert features.mid_price(nothing, nothing)[0] == 0.0
    assert features.spread_bps(nothing, floats(5.0))[0] == 0.0
    assert features.book_imbalance(levels, levels, 3)[0] == 0.0
    assert features.microprice(nothing, nothing, floats(5.0), floats(1.0))[0] == 0.0
    assert features.depth_slope(levels, levels, levels, levels, 3)[0] == 0.0


def test_the_microprice_is_nearer_to_the_side_that_will_give_way() -> None:
    assert features.microprice(floats(10.0), floats(3.0), floats(11.0), floats(1.0)) == pytest.approx([10.75])


def test_the_order_flow_counts_what_joined_and_what_left_the_best_prices() -> None:
    # Bid size 5 to 8; then the bid falls to 9; then the ask gives way to 12; then the bid improves to 10.
    bid, bid_size = floats(10, 10, 9, 9, 10), floats(5, 8, 4, 4, 6)
    ask, ask_size = floats(11, 11, 11, 12, 12), floats(7, 7, 7, 2, 2)
    flow = features.order_flow_imbalance(bid, bid_size, ask, ask_size)
    assert flow.tolist() == [0.0, 3.0, -8.0, 7.0, 6.0]


def test_the_order_flow_of_a_continued_array_starts_from_the_state_before() -> None:
    bid, bid_size = floats(10, 10, 9, 10), floats(5, 8, 4, 6)
    ask, ask_size = floats(11, 11, 0, 12), floats(7, 7, 0, 2)
    whole = features.order_flow_imbalance(bid, bid_size, ask, ask_size)
    before = (bid[1], bid_size[1], ask[1], ask_size[1])
    rest = features.order_flow_imbalance(bid[2:], bid_size[2:], ask[2:], ask_size[2:], before)
    assert rest.tolist() == whole[2:].tolist()
    assert len(features.order_flow_imbalance(bid[:0], bid[:0], bid[:0], bid[:0])) == 0


def test_the_slope_is_the_line_through_the_origin_of_piled_size_over_distance() -> None:
    # Mid 10; bids at distance 1 and 2 with 2 and 4 piled up to 2 and 6; asks at 1 and 2 with 1 and 1.
    bids, bid_sizes = np.array([[9.0, 8.0]]), np.array([[2.0, 4.0]])
    asks, ask_sizes = np.array([[11.0, 12.0]]), np.array([[1.0, 1.0]])
    bid_slope, ask_slope = (1 * 2 + 2 * 6) / 5, (1 * 1 + 2 * 2) / 5
    slope = features.depth_slope(bids, bid_sizes, asks, ask_sizes, 2)
    assert slope == pytest.approx([(bid_slope + ask_slope) / 2])


def test_bars_by_time_begin_where_the_bucket_changes() -> None:
    assert features.time_bars(np.array([5, 9, 10, 19, 35]), 10).tolist() == [0, 2, 4]


def test_bars_by_count_have_that_many_trades_and_the_last_what_is_left() -> None:
    assert features.count_bars(5, 2).tolist() == [0, 2, 4]


def test_bars_by_volume_do_not_split_a_trade() -> None:
    # Traded before each: 0, 4, 10, 11, 31.
    assert features.volume_bars(floats(4, 6, 1, 20, 1), 10.0).tolist() == [0, 2, 4]


def test_a_bar_tells_its_prices_its_volume_and_who_took() -> None:
    ts = np.array([1, 2, 3, 12], dtype=np.uint64)
    price, quantity = floats(10, 12, 11, 20), floats(1, 2, 1, 5)
    side = np.array([1, 2, 1, 2])
    table = features.bars(ts, price, quantity, side, features.time_bars(ts, 10))
    first, second = table
    assert [first[name] for name in ("start_ts_ns", "end_ts_ns", "trades")] == [1, 3, 3]
    assert [first[name] for name in ("open", "high", "low", "close", "volume")] == [10, 12, 10, 11, 4]
    assert first["vwap"] == pytest.approx((10 + 24 + 11) / 4)
    assert first["trade_imbalance"] == pytest.approx(0.0)
    expected = math.sqrt(math.log(12 / 10) ** 2 + math.log(11 / 12) ** 2)
    assert first["realised_volatility"] == pytest.approx(expected)
    assert [second[name] for name in ("close", "trade_imbalance", "realised_volatility")] == [20, -1.0, 0.0]


def test_no_trades_make_no_bars() -> None:
    nothing = np.zeros(0)
    starts = features.volume_bars(nothing, 1.0)
    assert len(features.bars(nothing, nothing, nothing, nothing > 0, starts)) == 0
    assert len(features.time_bars(nothing, 5)) == len(features.count_bars(0, 5)) == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_bar_without_extent_is_refused(size: int) -> None:
    with pytest.raises(InvalidConfig, match="must be more than 0"):
        features.time_bars(np.array([1]), size)
    with pytest.raises(InvalidConfig, match="must be more than 0"):
        features.count_bars(3, size)
    with pytest.raises(InvalidConfig, match="must be more than 0"):
        features.volume_bars(floats(1.0), size)


def test_a_bar_with_a_price_that_has_no_logarithm_has_no_volatility() -> None:
    found = features.realised_volatility(floats(1.0, 0.0, -3.0, 5.0, 10.0), np.array([0, 2, 3]))
    assert found == pytest.approx([0.0, 0.0, math.log(2)])


def test_a_depth_of_nothing_is_refused() -> None:
    levels = np.zeros((1, 1))
    with pytest.raises(InvalidConfig, match="at least one level"):
        features.book_imbalance(levels, levels, 0)
    with pytest.raises(InvalidConfig, match="at least one level"):
        features.depth_slope(levels, levels, levels, levels, 0)


prices = st.floats(0.01, 1e6)
trades = st.lists(st.tuples(st.integers(0, 50), prices, st.floats(0.001, 1e3), st.booleans()), max_size=40)


@given(trades, st.integers(1, 20))
def test_every_trade_is_in_exactly_one_bar(rows: list[tuple[int, float, float, bool]], interval: int) -> None:
    """Whatever the trades, the bars hold them all once, with the sums of a plain loop."""
    rows.sort(key=lambda row: row[0])
    ts = np.array([row[0] for row in rows], dtype=np.uint64)
    price, quantity = floats(*(row[1] for row in rows)), floats(*(row[2] for row in rows))
    side = np.array([2 if row[3] else 1 for row in rows])
    table = features.bars(ts, price, quantity, side, features.time_bars(ts, interval))
    expected: dict[int, list[tuple[int, float, float, bool]]] = {}
    for row in rows:
        expected.setdefault(row[0] // interval, []).append(row)
    assert table["trades"].tolist() == [len(bar) for bar in expected.values()]
    assert table["volume"] == pytest.approx([sum(row[2] for row in bar) for bar in expected.values()])
    assert table["high"].tolist() == [max(row[1] for row in bar) for bar in expected.values()]
    assert table["close"].tolist() == [bar[-1][1] for bar in expected.values()]


tops = st.lists(st.tuples(*(st.integers(0, 5),) * 4), min_size=1, max_size=30)


@given(tops, st.data())
def test_cutting_the_events_into_batches_changes_no_feature(
    rows: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    """A replay in batches gives the numbers of one pass, bit for bit."""
    table = np.array(rows, dtype=np.float64)
    cut = data.draw(st.integers(1, len(rows)))
    whole = features.order_flow_imbalance(*table.T)
    parts = [features.order_flow_imbalance(*table[:cut].T)]
    parts.append(features.order_flow_imbalance(*table[cut:].T, before=tuple(table[cut - 1])))
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    micro = [features.microprice(*part.T) for part in (table[:cut], table[cut:])]
    assert np.concatenate(micro).tobytes() == features.microprice(*table.T).tobytes()
