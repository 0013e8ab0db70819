"""Features by name, as the command line and files of settings say them.

Owns the names. A text is names separated by commas; a number behind a colon is the feature's parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from everlog.clock import NS_PER_S
from everlog.errors import InvalidConfig
from everlog.market import feature_rows as rows
from everlog.market.feature_rows import Feature

LEVELS: Final = 5
"""Levels a side, where none are named."""
STANDARD: Final = "standard"

_BY_NAME: Final[dict[str, tuple[str, Callable[[float | None], Feature]]]] = {
    "time": ("times of the event", lambda _: rows.GlobalTime()),
    "seq": ("number of the message", lambda _: rows.Seq()),
    "best": ("best prices and sizes", lambda _: rows.BestPrices()),
    "mid": ("mid price", lambda _: rows.mid_price()),
    "spread": ("spread in units of the price", lambda _: rows.spread()),
    "spread_bps": ("spread in basis points", lambda _: rows.spread_bps()),
    "microprice": ("mid weighted by the best sizes", lambda _: rows.microprice()),
    "weighted_mid": ("mid weighted by N levels", lambda n: rows.weighted_mid(_levels(n))),
    "imbalance": ("book imbalance of N levels", lambda n: rows.book_imbalance(_levels(n))),
    "slope": ("depth slope of N levels", lambda n: rows.depth_slope(_levels(n))),
    "depth": ("size of N levels", lambda n: rows.Depth(_levels(n))),
    "depth_bps": ("size within N basis points", lambda n: rows.DepthWithin(10.0 if n is None else n)),
    "ofi": ("order flow imbalance", lambda _: rows.OrderFlowImbalance()),
    "ofi_levels": ("order flow imbalance of N levels", lambda n: rows.LevelFlowImbalance(_levels(n))),
    "trades": ("traded sizes by side, trade imbalance", lambda _: rows.TradeFlow()),
    "volatility": ("realised volatility of the mid", lambda _: rows.RealisedVolatility()),
    "queue_position": ("orders and size ahead (L3)", lambda _: rows.QueuePosition()),
    "order_rates": ("orders and cancels a second, over N s (L3)", lambda n: rows.OrderRates(_window_ns(n))),
}
NAMES: Final = {
    STANDARD: "the usual set, over N levels",
    **{name: what for name, (what, _) in _BY_NAME.items()},
}
"""What can be chosen, and what it is."""


def parse_features(text: str) -> list[Feature]:
    """Return the features that a text like `standard,depth:10,trades` names; each column is there once."""
    chosen: list[Feature] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, number = part.partition(":")
        if name not in NAMES:
            raise InvalidConfig(f"unknown feature {name!r}; known are {', '.join(NAMES)}")
        value = _number(part, number) if colon else None
        if name == STANDARD:
            _add(chosen, rows.standard_features(_levels(value)))
        else:
            _add(chosen, [_BY_NAME[name][1](value)])
    if not chosen:
        raise InvalidConfig(f"{text!r} names no feature; known are {', '.join(NAMES)}")
    return chosen


def _add(chosen: list[Feature], more: Sequence[Feature]) -> None:
    """Add features whose columns are not there yet."""
    for feature in more:
        there = {column.name for one in chosen for column in one.columns}
        if not there.issuperset(column.name for column in feature.columns):
            chosen.append(feature)


def _number(part: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InvalidConfig(f"{part!r}: {text!r} is no number above 0")
    return value


def _levels(value: float | None) -> int:
    if value is None:
        return LEVELS
    if value != int(value):
        raise InvalidConfig(f"{value:g} levels are not possible; name a whole number")
    return int(value)


def _window_ns(value: float | None) -> int:
    return NS_PER_S if value is None else max(1, round(value * NS_PER_S))
