"""Types of the native module that turns frames into columns."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

class TextColumn(NamedTuple):
    bytes: NDArray[np.uint8]
    ends: NDArray[np.int32]
    valid: NDArray[np.uint8] | None
    absent: int

class FrameColumns:
    def __init__(self, from_ts: int, to_ts: int, tag: bytes | None, is_prefix: bool) -> None: ...
    def __len__(self) -> int: ...
    @property
    def largest_bytes(self) -> int: ...
    def pick(
        self, buffer: Buffer, offsets: NDArray[np.uint64], seqs: NDArray[np.uint64], in_log: bool
    ) -> int: ...
    def numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
    def text(self, name: str) -> TextColumn: ...
    def clear(self) -> None: ...
