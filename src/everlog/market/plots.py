"""Plots of features and books as SVG or PNG files.

Owns how they look. matplotlib is loaded when a plot is drawn, without a window and without global state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig, Unsupported
from everlog.market.features import Floats

FORMATS: Final = ("svg", "png")
PANELS_MAX: Final = 8
PRICE_BINS: Final = 160
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # labels stay text
    "svg.hashsalt": "everlog",  # equal plots are equal files
    "path.simplify": False,  # every point is in the file
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
_WIDTH_IN: Final = 11.0
_PANEL_IN: Final = 2.2
_DPI: Final = 110


class Series(NamedTuple):
    """A line of a plot: its name, and a value at each time."""

    name: str
    times_ns: NDArray[np.uint64]
    values: Floats


class Panel(NamedTuple):
    """Lines over one axis."""

    label: str
    series: Sequence[Series]


class DepthMap(NamedTuple):
    """Levels of a book at some times: one row per time, one column per level; a size of 0 is no level."""

    times_ns: NDArray[np.uint64]
    prices: Floats
    sizes: Floats


def plot_format(path: str) -> str:
    """Return the format that a file's name ends with."""
    kind = os.path.splitext(path)[1].lstrip(".").lower()
    if kind not in FORMATS:
        raise InvalidConfig(f"{path}: a plot is a file that ends with .{' or .'.join(FORMATS)}")
    return kind


def check_plots(path: str) -> None:
    """Refuse a file name that is no plot's, and say what to install if nothing can be drawn."""
    plot_format(path)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise Unsupported(
            f"plots need matplotlib, which is not installed ({error}): pip install 'everlog[plot]'"
        ) from None


def draw(path: str, title: str, panels: Sequence[Panel], depth: DepthMap | None = None) -> None:
    """Write a plot of panels one below the other; a depth map lies behind the lines of the first."""
    check_plots(path)
    from matplotlib import rc_context
    from matplotlib.dates import ConciseDateFormatter
    from matplotlib.figure import Figure

    panels = panels[:PANELS_MAX]
    if not panels or not any(len(one.times_ns) for panel in panels for one in panel.series):
        raise InvalidConfig("there is nothing to plot: no row is in the range that was chosen")
    heights = [2.0 if depth is not None and place == 0 else 1.0 for place in range(len(panels))]
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_IN, 1.2 + _PANEL_IN * sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        figure.suptitle(title)
        if depth is not None:
            _draw_depth(figure, axes[0], depth)
        for axis, panel in zip(axes, panels, strict=True):
            axis.set_ylabel(panel.label)
            for one in panel.series:
                times = one.times_ns.astype("datetime64[ns]")
                axis.plot(times, one.values, label=one.name, linewidth=0.9, gid=one.name)
            if len(panel.series) > 1:
                axis.legend(loc="upper left", fontsize="small", ncols=4)
        dates: Any = ConciseDateFormatter  # which has no types
        axes[-1].xaxis.set_major_formatter(dates(axes[-1].xaxis.get_major_locator()))
        _write(figure, path)


def _draw_depth(figure: Any, axis: Any, depth: DepthMap) -> None:
    """Colour what rests at each price and time; the middle nine tenths of the prices are shown."""
    is_level = depth.sizes > 0
    prices = depth.prices[is_level]
    low, high = np.quantile(prices, (0.05, 0.95))
    steps = np.diff(np.unique(prices))
    # No finer than the prices are, or there would be stripes of nothing between them.
    tick = max(float(steps.min()) if len(steps) else 1.0, float(high - low) / PRICE_BINS)
    low, high = low - tick / 2, high + tick / 2
    count = max(1, round((high - low) / tick))
    edges = np.linspace(low, high, count + 1)
    rows, _ = np.nonzero(is_level)
    places = np.floor((prices - low) / (high - low) * count).astype(np.int64)
    is_shown = (places >= 0) & (places < count)
    image = np.zeros((count, len(depth.times_ns)))
    np.add.at(image, (places[is_shown], rows[is_shown]), depth.sizes[is_level][is_shown])
    shown = np.ma.masked_equal(np.log10(1 + image), 0)
    times = depth.times_ns.astype("datetime64[ns]")
    step = times[-1] - times[-2] if len(times) > 1 else np.timedelta64(1, "s")
    mesh = axis.pcolormesh(
        np.append(times, times[-1] + step), edges, shown, cmap="viridis", alpha=0.85, rasterized=True
    )
    axis.set_ylim(low, high)
    figure.colorbar(mesh, ax=axis, label="log10(1 + size)", pad=0.01)


def _write(figure: Any, path: str) -> None:
    """Write the file; it appears when it is complete."""
    kind, temporary = plot_format(path), path + ".tmp"
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    try:
        figure.savefig(temporary, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
