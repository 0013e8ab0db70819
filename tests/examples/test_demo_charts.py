"""The plots of the demonstration: numbers end up where the axes say, and text cannot break the page."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.demo.charts import (
    Axis,
    Mark,
    Plot,
    Series,
    duration_text,
    heat_cells,
    legend,
    log_ticks,
    nice_ticks,
    number_text,
)

FINITE = st.floats(-1e9, 1e9, allow_nan=False)
WIDTH = st.floats(1e-6, 1e9, allow_nan=False)


@given(FINITE, WIDTH)
def test_ticks_are_evenly_spaced_round_numbers_within_the_range(low: float, width: float) -> None:
    high = low + width
    if not high > low + abs(low) * 1e-9:
        return  # too narrow for a float to tell the ticks apart
    ticks = nice_ticks(low, high)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else width
    assert 1 <= len(ticks) <= 7
    assert all(low - step * 1e-6 <= tick <= high + step * 1e-6 for tick in ticks)


def test_ticks_of_a_logarithmic_axis_are_powers_of_ten() -> None:
    assert log_ticks(1.0, 1000.0) == [1.0, 10.0, 100.0, 1000.0]
    assert log_ticks(2.0, 50.0) == [10.0]


@pytest.mark.parametrize(
    ("microseconds", "text"), [(0.5, "0.5 µs"), (999.0, "999 µs"), (1500.0, "1.5 ms"), (2e6, "2 s")]
)
def test_a_duration_has_the_unit_that_suits_it(microseconds: float, text: str) -> None:
    assert duration_text(microseconds) == text


def test_numbers_are_written_without_noise() -> None:
    assert [number_text(value) for value in (0.0, 2.5, 100.05, 12345.0)] == ["0", "2.5", "100.05", "12,345"]


def test_a_point_is_drawn_where_the_axes_say() -> None:
    plot = Plot(Axis.linear(0, 10, "seconds"), Axis.linear(0, 100, "messages"), width=184, height=152)
    assert (plot.px(0), plot.px(10)) == (70, 170)
    assert (plot.py(0), plot.py(100)) == (112, 12)
    logarithmic = Plot(Axis.logarithmic(1, 100, "", duration_text), Axis.linear(0, 1, ""), width=184)
    assert logarithmic.px(10) == pytest.approx(120)


def test_a_line_is_interrupted_where_there_is_no_number() -> None:
    plot = Plot(Axis.linear(0, 3, "x"), Axis.linear(0, 1, "y"))
    plot.line(Series("a", "blue", [0, 1, 2, 3], [0.0, math.nan, 1.0, 1.0]))
    [path] = re.findall(r'class="line stroke-blue" d="([^"]*)"', plot.svg("lines"))
    assert re.sub(r"[\d. ]", "", path) == "MML"


def test_bars_without_height_are_left_out_and_the_others_tell_their_numbers() -> None:
    plot = Plot(Axis.linear(0, 3, "x"), Axis.linear(0, 9, "y"))
    plot.bars([0, 1, 2, 3], [0, 4, 9], "blue", "messages")
    assert re.findall(r"<title>(.*?)</title>", plot.svg("bars")) == [
        "1 to 2: 4 messages",
        "2 to 3: 9 messages",
    ]


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=5))
def test_every_cell_of_a_heat_map_is_covered_by_its_shade_and_no_other(steps: list[list[int]]) -> None:
    plot = Plot(Axis(0, len(steps), "x", []), Axis(0, 4, "y", []), width=84 + 10 * len(steps), height=52 + 40)
    heat_cells(plot, list(range(len(steps) + 1)), [0, 1, 2, 3, 4], steps)
    covered: dict[tuple[int, int], list[int]] = {}
    for shade, path in re.findall(r'class="heat-(\d)" d="([^"]*)"', plot.svg("heat")):
        for left, top, right, bottom in re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H[\d.]+Z", path):
            for column in range(round((float(left) - 70) / 10), round((float(right) - 70) / 10)):
                for row in range(round((52 - float(bottom)) / 10), round((52 - float(top)) / 10)):
                    covered.setdefault((column, row), []).append(int(shade))
    wanted = {
        (column, row): [shade] for column, rows in enumerate(steps) for row, shade in enumerate(rows) if shade
    }
    assert covered == wanted


def test_words_cannot_break_the_page() -> None:
    plot = Plot(Axis.linear(0, 1, "<x>"), Axis.linear(0, 1, "y"))
    plot.marks([Mark(0.5, "a<b"), Mark(0.9, "c&d")])
    text = plot.svg('"quoted"') + legend([("<b>", "blue")])
    assert "<x>" not in text and "a<b" not in text and "<b>" not in text
    assert "a&lt;b" in text and "c&amp;d" in text
