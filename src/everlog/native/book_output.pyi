"""Types of the book kernels' output."""

from typing import Any

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
