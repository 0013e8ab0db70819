"""Types of the native packer of events."""

import numpy as np
from numpy.typing import NDArray

def place_levels(
    prices: NDArray[np.uint64],
    price_decimals: NDArray[np.uint8],
    sizes: NDArray[np.uint64],
    size_decimals: NDArray[np.uint8],
    sides: NDArray[np.uint8],
    starts: NDArray[np.int64],
    price_scale: int,
    size_scale: int,
    placed: NDArray[np.uint64],
    bids: NDArray[np.int64],
    price_scales: NDArray[np.uint8],
    size_scales: NDArray[np.uint8],
) -> None: ...
def write_events(
    headers: NDArray[np.uint8],
    bodies: NDArray[np.uint8],
    levels: NDArray[np.uint8],
    counts: NDArray[np.int64],
    length_at: int,
    into: NDArray[np.uint8],
) -> None: ...
