"""Types of what both book kernels have."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

class BookOutput:
    def __init__(
        self,
        events: int,
        every: int,
        depth: int = 0,
        tops: Any = None,
        bids: Any = None,
        asks: Any = None,
        bid_orders: Any = None,
        ask_orders: Any = None,
        places: Any = None,
        statuses: Any = None,
        drift: bool = False,
        trades: bool = False,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def gaps(self) -> bytes: ...
    @property
    def drifts(self) -> bytes: ...
    @property
    def scales(self) -> bytes: ...
    @property
    def trades(self) -> bytes: ...

class BookKernel:
    def apply(self, payload: Buffer) -> int: ...
    def apply_and_top(self, payload: Buffer) -> tuple[int, int, int, int]: ...
    def top(self) -> tuple[int, int, int, int]: ...
    def _apply_records(
        self,
        buffer: NDArray[np.uint8],
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        into: BookOutput,
    ) -> int: ...
