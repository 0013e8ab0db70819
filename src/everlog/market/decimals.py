"""Decimal text to scaled integers and back, exactly.

Owns the rules of the protocol's prices and sizes: value = integer / 10^scale, scale 0 to 18. Prices may be
negative. No floating point is involved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

U64_MAX: Final = 2**64 - 1
I64_MIN: Final = -(2**63)
MAX_SCALE: Final = 18
POWERS_OF_TEN: Final = tuple(10**exponent for exponent in range(20))


def decimals_of(text: str) -> int:
    """Return how many decimals the text needs: those after the point, without trailing zeros, at most 18."""
    _, _, fraction = text.strip().partition(".")
    fraction = fraction.rstrip("0")
    if not fraction.isascii() or not fraction.isdigit():
        return 0
    return min(len(fraction), MAX_SCALE)


def scale_of(texts: Iterable[str]) -> int:
    """Return the scale of one event: the largest number of decimals any of its numbers needs."""
    return max(map(decimals_of, texts), default=0)


def parse_scaled(text: str, scale: int) -> int:
    """Return the number as an integer at this scale.

    More digits than the scale holds are cut off; anything but a number is 0; a value too large for 64 bits is
    2^64 - 1, one with a minus -2^63.
    """
    whole, _, fraction = text.strip().removeprefix("-").partition(".")
    digits = whole + fraction
    if not digits.isascii() or not digits.isdigit():
        return 0
    value = int(whole + fraction[:scale].ljust(scale, "0") or "0")
    return max(-value, I64_MIN) if text.strip().startswith("-") else min(value, U64_MAX)


def render_scaled(value: int, scale: int) -> str:
    """Return the exact decimal text, without trailing zeros: 100050 at scale 4 is `10.005`."""
    if scale == 0:
        return str(value)
    whole, fraction = divmod(abs(value), POWERS_OF_TEN[scale])
    sign = "-" if value < 0 else ""
    if fraction == 0:
        return f"{sign}{whole}"
    return f"{sign}{whole}.{fraction:0{scale}d}".rstrip("0")
