"""Types of the native split by market."""

import numpy as np
from numpy.typing import NDArray

def split_markets(
    buffer: NDArray[np.uint8], offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
) -> tuple[
    int,
    NDArray[np.uint64],
    NDArray[np.intp],
    NDArray[np.intp],
    NDArray[np.uint64],
    NDArray[np.uint64],
    NDArray[np.uint64],
    NDArray[np.uint64],
    NDArray[np.uint64],
]: ...
