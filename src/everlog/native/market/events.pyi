"""Types of the native module for book events in bulk."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

UNSIGNED: int
SIGNED: int
DECIMAL: int
FIXED: int
CHOICE: int
IDENTIFIER: int
HASH: int
PROBLEMS: tuple[str, ...]

class RowParser:
    def __init__(
        self,
        columns: Sequence[tuple[int, int, int, bool, Sequence[tuple[bytes, int]]]],
        field_count: int,
        delimiter: bytes = b",",
    ) -> None: ...
    def parse(
        self,
        text: Buffer,
        values: Sequence[NDArray[np.uint64]],
        extras: Sequence[NDArray[np.uint8]],
        row_lines: NDArray[np.uint32],
    ) -> tuple[int, int, int, int, int]: ...

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
