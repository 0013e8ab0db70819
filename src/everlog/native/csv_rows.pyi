"""Types of the native CSV module."""

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

def count_lines(text: Buffer) -> int: ...
