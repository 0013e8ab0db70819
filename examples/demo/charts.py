"""Plots as SVG text: axes, lines, bars and heat maps, for a page that needs nothing from outside.

Owns the geometry. Colours are classes whose meaning the page's style sheet gives, so that one picture
is right on light and on dark ground. Knows nothing of everlog.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

LEFT, RIGHT, TOP, BOTTOM = 70, 14, 12, 40
TICK_LENGTH = 4


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers between two values, about so many."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between two values."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]


def number_text(value: float) -> str:
    """Return a number as short as it can be said."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.6g}"


def duration_text(microseconds: float) -> str:
    """Return a duration with the unit that suits it."""
    for limit, divisor, unit in ((1e3, 1.0, "µs"), (1e6, 1e3, "ms"), (math.inf, 1e6, "s")):
        if microseconds < limit:
            return f"{microseconds / divisor:.3g} {unit}"
    raise AssertionError("every number is below infinity")


@dataclass(frozen=True)
class Axis:
    """A range of values, its label with the unit, and how its numbers are written."""

    low: float
    high: float
    label: str
    ticks: Sequence[float]
    text: Callable[[float], str] = number_text
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high one."""
        if self.is_log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)

    @staticmethod
    def linear(low: float, high: float, label: str, text: Callable[[float], str] = number_text) -> Axis:
        """Return an axis with round numbers; an empty range is widened."""
        if not high > low:
            high = low + 1.0
        return Axis(low, high, label, nice_ticks(low, high), text)

    @staticmethod
    def logarithmic(low: float, high: float, label: str, text: Callable[[float], str]) -> Axis:
        """Return an axis on which every power of ten has the same length."""
        return Axis(low, high, label, log_ticks(low, high), text, True)


@dataclass(frozen=True)
class Series:
    """A line: its name, its colour's class, and its points."""

    name: str
    colour: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Mark:
    """An instant on the x axis worth a dashed line."""

    x: float
    text: str


class Plot:
    """One panel with two axes; draw into it, then take its text."""

    def __init__(self, x: Axis, y: Axis, *, width: int = 1000, height: int = 260) -> None:
        self.x, self.y = x, y
        self.width, self.height = width, height
        self._parts: list[str] = []

    def px(self, value: float) -> float:
        """Return the horizontal place of a value."""
        return LEFT + self.x.share(value) * (self.width - LEFT - RIGHT)

    def py(self, value: float) -> float:
        """Return the vertical place of a value."""
        return self.height - BOTTOM - self.y.share(value) * (self.height - TOP - BOTTOM)

    def add(self, part: str) -> None:
        """Draw something of one's own."""
        self._parts.append(part)

    def line(self, series: Series, *, css: str = "line") -> None:
        """Draw a line through points; values that are no numbers interrupt it."""
        commands, is_down = [], False
        for x, y in zip(series.xs, series.ys, strict=True):
            if not math.isfinite(y):
                is_down = False
                continue
            commands.append(f"{'L' if is_down else 'M'}{self.px(x):.1f} {self.py(y):.1f}")
            is_down = True
        title = f"<title>{escape(series.name)}</title>"
        self.add(f'<path class="{css} stroke-{series.colour}" d="{"".join(commands)}">{title}</path>')

    def bars(self, edges: Sequence[float], heights: Sequence[float], colour: str, unit: str) -> None:
        """Draw a bar from zero over each interval; each tells its numbers when pointed at."""
        bottom = self.py(self.y.low)
        for low, high, value in zip(edges[:-1], edges[1:], heights, strict=True):
            if value <= 0:
                continue
            left, right, top = self.px(low), self.px(high), self.py(value)
            told = f"{self.x.text(low)} to {self.x.text(high)}: {number_text(value)} {unit}"
            self.add(
                f'<rect class="fill-{colour}" x="{left + 0.5:.1f}" y="{top:.1f}" '
                f'width="{max(0.5, right - left - 1):.1f}" height="{max(0.5, bottom - top):.1f}">'
                f"<title>{escape(told)}</title></rect>"
            )

    def marks(self, marks: Iterable[Mark]) -> None:
        """Draw dashed lines with their words at the top, each in a row of its own."""
        for row, mark in enumerate(marks):
            x = self.px(mark.x)
            at_end = x > self.width * 0.8
            place = f'x="{x - 5:.1f}" text-anchor="end"' if at_end else f'x="{x + 5:.1f}"'
            self.add(f'<path class="mark" d="M{x:.1f} {TOP}V{self.height - BOTTOM}"/>')
            self.add(f'<text class="mark-text" {place} y="{TOP + 11 + 14 * row}">{escape(mark.text)}</text>')

    def svg(self, description: str) -> str:
        """Return the panel with its axes."""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(description)}">'
            f"{self._axes()}{''.join(self._parts)}</svg>"
        )

    def _axes(self) -> str:
        bottom, right = self.height - BOTTOM, self.width - RIGHT
        parts = []
        for value in self.y.ticks:
            y = self.py(value)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
            parts.append(
                f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
                f"{escape(self.y.text(value))}</text>"
            )
        for value in self.x.ticks:
            x = self.px(value)
            parts.append(f'<path class="axis" d="M{x:.1f} {bottom}v{TICK_LENGTH}"/>')
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">'
                f"{escape(self.x.text(value))}</text>"
            )
        parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
        middle = (TOP + bottom) / 2
        parts.append(
            f'<text class="label" x="{(LEFT + right) / 2:.0f}" y="{self.height - 6}" text-anchor="middle">'
            f"{escape(self.x.label)}</text>"
        )
        parts.append(
            f'<text class="label" transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y.label)}</text>"
        )
        return "".join(parts)


def heat_cells(plot: Plot, xs: Sequence[float], ys: Sequence[float], steps: Sequence[Sequence[int]]) -> None:
    """Draw a grid of cells: `steps[column][row]` is a shade, 0 draws nothing. `xs`, `ys` are the edges.

    Cells of one shade are one path, and neighbours below each other one rectangle: the page stays small.
    """
    paths: dict[int, list[str]] = {}
    for column, shades in enumerate(steps):
        left, right = plot.px(xs[column]), plot.px(xs[column + 1])
        row = 0
        while row < len(shades):
            end = row
            while end < len(shades) and shades[end] == shades[row]:
                end += 1
            if shades[row] > 0:
                low, high = plot.py(ys[row]), plot.py(ys[end])
                rectangle = f"M{left:.1f} {high:.1f}H{right:.1f}V{low:.1f}H{left:.1f}Z"
                paths.setdefault(shades[row], []).append(rectangle)
            row = end
    for shade, rectangles in sorted(paths.items()):
        plot.add(f'<path class="heat-{shade}" d="{"".join(rectangles)}"/>')


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Return a line of HTML that says which colour is what."""
    keys = "".join(
        f'<span class="key"><i class="swatch back-{colour}"></i>{escape(name)}</span>'
        for name, colour in entries
    )
    return f'<p class="legend">{keys}</p>'
