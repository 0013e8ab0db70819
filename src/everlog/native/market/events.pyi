"""Types of the native module for book events in bulk."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
Rows = NDArray[np.intp]
Levels = Sequence[Sequence[str]]
Column = tuple[int, int, Sequence[tuple[bytes, int]]]
UNSIGNED: int
SIGNED: int
DECIMAL: int
PRICE: int
CHOICE: int
IDENTIFIER: int
HASH: int
PROBLEMS: tuple[str, ...]

class RowParser:
    def __init__(self, columns: Sequence[Column], field_count: int, delimiter: bytes = b",") -> None: ...
    def parse(
        self, text: Buffer, values: Sequence[U64], extras: Sequence[U8], row_lines: NDArray[np.uint32]
    ) -> tuple[int, int, int, int, int]: ...

def pack_levels(levels: Levels, price_scale: int, size_scale: int) -> tuple[bytes, int, int] | None: ...
def place_levels(
    prices: I64,
    price_decimals: U8,
    sizes: U64,
    size_decimals: U8,
    sides: U8,
    starts: I64,
    price_scale: int,
    size_scale: int,
    placed: U64,
    bids: I64,
    price_scales: U8,
    size_scales: U8,
) -> None: ...
def write_events(headers: U8, bodies: U8, levels: U8, counts: I64, length_at: int, into: U8) -> None: ...
def split_markets(
    buffer: U8, offsets: U64, lengths: U64
) -> tuple[int, U64, Rows, Rows, U64, U64, U64, U64, U64]: ...
