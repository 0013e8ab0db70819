"""The rows of hftbacktest 2: layout, kinds of events and flags.

Owns these numbers only; `everlog.market.hftbacktest` says what becomes a row.
"""

from __future__ import annotations

from typing import Final

import numpy as np

EVENT: Final = np.dtype(
    [
        ("ev", "<u8"),
        ("exch_ts", "<i8"),
        ("local_ts", "<i8"),
        ("px", "<f8"),
        ("qty", "<f8"),
        ("order_id", "<u8"),
        ("ival", "<i8"),
        ("fval", "<f8"),
    ]
)
DEPTH_EVENT: Final = 1
TRADE_EVENT: Final = 2
DEPTH_CLEAR_EVENT: Final = 3
DEPTH_SNAPSHOT_EVENT: Final = 4
ADD_ORDER_EVENT: Final = 10
CANCEL_ORDER_EVENT: Final = 11
MODIFY_ORDER_EVENT: Final = 12
FILL_EVENT: Final = 13
EXCH_EVENT: Final = 1 << 31
LOCAL_EVENT: Final = 1 << 30
BUY_EVENT: Final = 1 << 29
SELL_EVENT: Final = 1 << 28
SIDE_FLAGS: Final = (0, BUY_EVENT, SELL_EVENT)
"""By `protocol.Side`."""
