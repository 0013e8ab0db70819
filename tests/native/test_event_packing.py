"""The native packer: levels in their places, events one behind the other, nothing outside of the arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from everlog.native.market.events import place_levels, write_events

U64_MAX = 2**64 - 1
I64_MIN, I64_MAX = -(2**63), 2**63 - 1
NUMBERS = st.integers(0, 10**6) | st.integers(0, U64_MAX)
DECIMALS = st.integers(0, 18)
PRICES = st.integers(-(10**6), 10**6) | st.integers(I64_MIN, I64_MAX)
LEVEL = st.tuples(PRICES, DECIMALS, NUMBERS, DECIMALS, st.integers(1, 2))
GROUPS = st.lists(st.lists(LEVEL, max_size=5), max_size=6)
SCALES = st.integers(-1, 18)
Level = tuple[int, int, int, int, int]


def scaled(value: int, decimals: int, scale: int, lowest: int, largest: int) -> int:
    """A number at another scale, in plain Python: digits beyond it are cut off, towards 0."""
    if decimals > scale:
        return int(abs(value) // 10 ** (decimals - scale)) * (-1 if value < 0 else 1)
    return max(lowest, min(value * 10 ** (scale - decimals), largest))


def placed_plainly(group: list[Level], price_scale: int, size_scale: int) -> tuple[int, int, list[list[int]]]:
    """Scales and levels of one group, in plain Python."""
    prices = price_scale if price_scale >= 0 else max((level[1] for level in group), default=0)
    sizes = size_scale if size_scale >= 0 else max((level[3] for level in group), default=0)
    ordered = [level for side in (1, 2) for level in group if level[4] == side]
    return (
        prices,
        sizes,
        [
            [scaled(p, pd, prices, I64_MIN, I64_MAX) % 2**64, scaled(s, sd, sizes, 0, U64_MAX)]
            for p, pd, s, sd, _ in ordered
        ],
    )


def columns(groups: list[list[Level]]) -> tuple[Any, Any]:
    """What the native function takes: the columns with the starts, and the arrays that it fills."""
    levels = [level for group in groups for level in group]
    kinds = (np.int64, np.uint8, np.uint64, np.uint8, np.uint8)
    taken: list[NDArray[Any]] = [
        np.array([level[place] for level in levels], dtype=kind) for place, kind in enumerate(kinds)
    ]
    counts = [len(group) for group in groups]
    taken.append(np.cumsum([0, *counts], dtype=np.int64)[: len(groups)])
    filled: list[NDArray[Any]] = [
        np.full((len(levels), 2), 7, np.uint64),
        np.full(len(groups), 7, np.int64),
        np.full(len(groups), 7, np.uint8),
        np.full(len(groups), 7, np.uint8),
    ]
    return taken, filled


@given(groups=GROUPS, price_scale=SCALES, size_scale=SCALES)
def test_levels_stand_as_a_plain_program_puts_them(
    groups: list[list[Level]], price_scale: int, size_scale: int
) -> None:
    taken, (placed, bids, price_scales, size_scales) = columns(groups)
    place_levels(*taken, price_scale, size_scale, placed, bids, price_scales, size_scales)
    wanted = [placed_plainly(group, price_scale, size_scale) for group in groups]
    assert placed.tolist() == [level for _, _, levels in wanted for level in levels]
    assert bids.tolist() == [sum(level[4] == 1 for level in group) for group in groups]
    assert price_scales.tolist() == [prices for prices, _, _ in wanted]
    assert size_scales.tolist() == [sizes for _, sizes, _ in wanted]


@pytest.mark.parametrize(
    ("place", "value"),
    [(1, [19]), (3, [19]), (4, []), (5, [-1]), (5, [2]), (0, [1, 2])],
)
def test_columns_that_do_not_fit_together_are_refused(place: int, value: list[int]) -> None:
    taken, filled = columns([[(1, 0, 1, 0, 1)]])
    taken[place] = np.array(value, dtype=taken[place].dtype)
    with pytest.raises(ValueError, match=r"must|starts|decimals"):
        place_levels(*taken, -1, -1, *filled)


@pytest.mark.parametrize("scales", [(19, 0), (0, 19), (-2, 0)])
def test_a_scale_that_cannot_be_is_refused(scales: tuple[int, int]) -> None:
    taken, filled = columns([[(1, 0, 1, 0, 1)]])
    with pytest.raises(ValueError, match="scales are -1 to 18"):
        place_levels(*taken, *scales, *filled)


@given(
    counts=st.lists(st.integers(0, 3), max_size=6), sizes=st.tuples(*[st.integers(1, 9)] * 2), data=st.data()
)
def test_events_lie_one_behind_the_other_with_their_lengths(
    counts: list[int], sizes: tuple[int, int], data: st.DataObject
) -> None:
    body_bytes, level_bytes = sizes
    shapes = [(len(counts), 8), (len(counts), body_bytes), (sum(counts), level_bytes)]
    parts = [
        np.frombuffer(data.draw(st.binary(min_size=rows * width, max_size=rows * width)), np.uint8).reshape(
            rows, width
        )
        for rows, width in shapes
    ]
    headers, bodies, levels = parts
    wanted, at = b"", 0
    for event, count in enumerate(counts):
        length = 8 + body_bytes + count * level_bytes
        wanted += bytes(headers[event, :2]) + length.to_bytes(4, "little") + bytes(headers[event, 6:])
        wanted += bytes(bodies[event]) + levels[at : at + count].tobytes()
        at += count
    into = np.zeros(len(wanted), np.uint8)
    write_events(headers, bodies, levels, np.array(counts, np.int64), 2, into)
    assert into.tobytes() == wanted


@pytest.mark.parametrize(
    ("counts", "length_at", "room"),
    [([2], 0, 14), ([0], 0, 13), ([-1], 0, 13), ([1], 5, 13), ([1], -1, 13), ([1], 0, 14), ([1, 0], 0, 13)],
)
def test_counts_and_room_that_do_not_add_up_are_refused(counts: list[int], length_at: int, room: int) -> None:
    header, body, level = (np.zeros((1, width), np.uint8) for width in (8, 4, 1))
    write_events(header, body, level, np.array([1]), 0, np.zeros(13, np.uint8))
    with pytest.raises(ValueError, match=r"must|add up"):
        write_events(header, body, level, np.array(counts), length_at, np.zeros(room, np.uint8))
