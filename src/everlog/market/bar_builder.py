"""Bars of trades that come in batches: complete bars go out, the open one waits for more.

Owns what is kept between batches, so that cutting a day into batches changes no bar; which trades belong
together and the columns of a bar are in `everlog.market.features`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from everlog.errors import InvalidConfig
from everlog.market import features
from everlog.market.protocol import TRADE, taker_sides

KINDS = ("time", "count", "volume")


class BarBuilder:
    """Bars by time (ns), by count of trades or by volume, of one symbol."""

    def __init__(self, kind: str, size: float) -> None:
        if kind not in KINDS:
            raise InvalidConfig(f"bars by {kind!r} are unknown; known are {', '.join(KINDS)}")
        if not size > 0:
            raise InvalidConfig(f"a bar of size {size} is not possible; it must be more than 0")
        self._kind = kind
        self._size = size
        self._timestamps = np.zeros(0, np.uint64)
        self._trades: npt.NDArray[np.void] = np.zeros(0, TRADE)
        self._sides = np.zeros(0, np.uint8)
        self._volume_before = 0.0

    def add(
        self,
        timestamp_ns: npt.NDArray[np.uint64],
        trades: npt.NDArray[np.void],
        side: npt.NDArray[np.uint8] | None = None,
    ) -> npt.NDArray[np.void]:
        """Take trades (`protocol.TRADE`) with their ingest times; return the bars that they complete.

        `side` is the takers', as `Replay.trades` gives it; None: all are known, from `is_buyer_maker`.
        """
        if not len(trades):
            return np.zeros(0, features.BAR_COLUMNS)
        self._timestamps = np.concatenate((self._timestamps, timestamp_ns))
        self._trades = np.concatenate((self._trades, trades))
        self._sides = np.concatenate(
            (self._sides, taker_sides(trades, np.zeros(len(trades), np.uint16)) if side is None else side)
        )
        starts = self._starts()
        # The last bar may still grow.
        return self._take(starts[:-1], int(starts[-1]))

    def finish(self) -> npt.NDArray[np.void]:
        """Return the bar that is still open, if there is one."""
        return self._take(self._starts(), len(self._trades))

    def _starts(self) -> npt.NDArray[np.int64]:
        if self._kind == "time":
            return features.time_bars(self._timestamps, int(self._size))
        if self._kind == "count":
            return features.count_bars(len(self._trades), int(self._size))
        return features.volume_bars(self._trades["qty"], self._size, self._volume_before)

    def _take(self, starts: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.void]:
        """Return the bars of the first `count` trades and forget these."""
        if not len(starts):
            return np.zeros(0, features.BAR_COLUMNS)
        trades, timestamps = self._trades[:count], self._timestamps[:count]
        sides = self._sides[:count]
        table = features.bars(timestamps, trades["price"], trades["qty"], sides, starts)
        if self._kind == "volume":
            self._volume_before = features.volume_after(trades["qty"], self._volume_before)
        self._trades, self._timestamps = self._trades[count:], self._timestamps[count:]
        self._sides = self._sides[count:]
        return table
