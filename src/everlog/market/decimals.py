"""Decimal text to scaled integers and back, exactly.

Owns the rules of the protocol's prices and sizes: value = integer / 10^scale, scale 0 to 18.
No floating point is involved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig

U64_MAX: Final = 2**64 - 1
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

    More digits than the scale holds are cut off; a sign or anything but a number is 0;
    a value too large for 64 bits is 2^64 - 1.
    """
    whole, _, fraction = text.strip().partition(".")
    digits = whole + fraction
    if not digits.isascii() or not digits.isdigit():
        return 0
    return min(int(whole + fraction[:scale].ljust(scale, "0") or "0"), U64_MAX)


def render_scaled(value: int, scale: int) -> str:
    """Return the exact decimal text, without trailing zeros: 100050 at scale 4 is `10.005`."""
    if scale == 0:
        return str(value)
    whole, fraction = divmod(value, POWERS_OF_TEN[scale])
    if fraction == 0:
        return str(whole)
    return f"{whole}.{fraction:0{scale}d}".rstrip("0")


def rescale(values: NDArray[Any], from_scale: int, to_scale: int) -> NDArray[np.uint64]:
    """Return the same numbers at another scale; digits that do not fit are cut off, overflow saturates."""
    check_scale(from_scale)
    check_scale(to_scale)
    column = np.asarray(values, dtype=np.uint64)
    if to_scale == from_scale:
        return column.copy()
    factor = np.uint64(POWERS_OF_TEN[abs(to_scale - from_scale)])
    if to_scale < from_scale:
        smaller: NDArray[np.uint64] = column // factor
        return smaller
    limit = np.uint64(U64_MAX) // factor
    larger: NDArray[np.uint64] = np.where(column > limit, np.uint64(U64_MAX), column * factor)
    return larger


def check_scale(scale: int) -> int:
    """Return the scale if it is one of 0 to 18."""
    if not 0 <= scale <= MAX_SCALE:
        raise InvalidConfig(f"a scale is 0 to {MAX_SCALE}, got {scale}")
    return scale
