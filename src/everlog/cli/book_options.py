"""Options of commands that build books, and what they mean: gaps, modes, features, bars, durations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from everlog.clock import NS_PER_S
from everlog.errors import InvalidConfig

if TYPE_CHECKING:
    from everlog.market import BookSettings

Gaps = Annotated[
    str, typer.Option("--gaps", metavar="panic|quarantine|ignore", help="What a gap in the numbers does.")
]
UnknownOrders = Annotated[
    str, typer.Option("--unknown-orders", metavar="fail|skip", help="What an unknown order id does.")
]
Mode = Annotated[
    str | None,
    typer.Option("--mode", metavar="l2|l3", help="Only price levels, or only orders. Default: both."),
]
ChosenFeatures = Annotated[
    str | None,
    typer.Option(
        "--features",
        metavar="NAME[:N],...",
        help="standard, best, mid, spread, spread_bps, microprice, weighted_mid:N, imbalance:N, slope:N, "
        "depth:N, depth_bps:N, ofi, ofi_levels:N, trades, volatility, queue_position, order_rates:S.",
    ),
]
BAR_KINDS: Final = "time:MS, count:N (tick bars), volume:V or dollar:V"
_NS_PER_MS: Final = 1_000_000
_UNITS_NS: Final = {
    "ns": 1,
    "us": 1000,
    "ms": _NS_PER_MS,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}


def book_settings(gaps: str, unknown_orders: str, mode: str | None) -> BookSettings:
    """Return how books are made; events of a mode that is not wanted are passed over."""
    from everlog.market import BookSettings
    from everlog.market.protocol import BookMode

    if mode is None:
        return BookSettings(gap_policy=gaps, unknown_orders=unknown_orders)
    if mode not in ("l2", "l3"):
        raise InvalidConfig(f"--mode is {mode!r}; it must be l2 or l3")
    wanted = BookMode.L2 if mode == "l2" else BookMode.L3
    return BookSettings(gap_policy=gaps, unknown_orders=unknown_orders, mode=wanted, other_modes="skip")


def parse_bars(text: str) -> tuple[str, float]:
    """Return kind and size of bars such as `time:1000`."""
    kind, _, size = text.partition(":")
    try:
        number = float(size)
    except ValueError:
        number = 0.0
    if kind not in ("time", "count", "volume", "dollar") or not number > 0:
        raise InvalidConfig(f"--bars is {text!r}; it must be {BAR_KINDS}")
    return kind, number * _NS_PER_MS if kind == "time" else number


def parse_duration_ns(text: str) -> int:
    """Return a duration such as `100ms` or `1.5s`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text)
    if found is None or found[2] not in _UNITS_NS or not float(found[1]) > 0:
        raise InvalidConfig(f"{text!r} is no duration; write it like 100ms, 1s or 5m")
    return max(1, round(float(found[1]) * _UNITS_NS[found[2]]))
