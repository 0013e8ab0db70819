"""Numbers out of samples: percentiles of one round, medians over rounds. Owns no measuring."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

NS_PER_US = 1_000
NS_PER_S = 1_000_000_000
MIB = 1 << 20

__all__ = ["MIB", "NS_PER_S", "NS_PER_US", "median", "percentile_us", "rate_per_s", "spread"]


def percentile_us(samples_ns: NDArray[np.int64], percent: float) -> float:
    """The sample below which `percent` of the samples lie, in microseconds; never interpolated."""
    return float(np.percentile(samples_ns, percent, method="higher")) / NS_PER_US


def rate_per_s(count: int, elapsed_ns: int) -> float:
    """How many a second, when `count` took `elapsed_ns`."""
    return count * NS_PER_S / elapsed_ns


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Lowest, median and highest value over the rounds."""
    return min(values), median(values), max(values)
