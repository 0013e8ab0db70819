"""Bars of trades that come in batches: complete bars go out, the open one waits for more.

Owns what is kept between batches, so that cutting a day into batches changes no bar; which trades belong
together and the columns of a bar are in `everlog.market.features`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from everlog.errors import InvalidConfig
from everlog.market import features
from everlog.market.merge import merge
from everlog.market.packing import by_key, gather_records
from everlog.market.protocol import TRADE, TypeId, taker_sides
from everlog.market.replay import Replay, TradeBatch

KINDS = ("time", "count", "volume", "dollar")


class BarBuilder:
    """Bars of one symbol: by time (ns), count of trades (tick bars), volume, or value (dollar bars)."""

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
        return features.volume_bars(self._amounts(self._trades), self._size, self._volume_before)

    def _amounts(self, trades: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
        """Return what each trade adds to the bar: its quantity, or its value."""
        if self._kind == "dollar":
            return features.traded_value(trades["price"], trades["qty"])
        amounts: npt.NDArray[np.float64] = trades["qty"]
        return amounts

    def _take(self, starts: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.void]:
        """Return the bars of the first `count` trades and forget these."""
        if not len(starts):
            return np.zeros(0, features.BAR_COLUMNS)
        trades, timestamps = self._trades[:count], self._timestamps[:count]
        sides = self._sides[:count]
        table = features.bars(timestamps, trades["price"], trades["qty"], sides, starts)
        if self._kind in ("volume", "dollar"):
            self._volume_before = features.volume_after(self._amounts(trades), self._volume_before)
        self._trades, self._timestamps = self._trades[count:], self._timestamps[count:]
        self._sides = self._sides[count:]
        return table


def trades_of(replays: Sequence[Replay]) -> Iterator[TradeBatch]:
    """Yield the trades of replays in the order of their receive times, with the takers' sides."""
    if len(replays) == 1 and len(replays[0].runs()) == 1:
        yield from replays[0].trades()
        return
    for batch in merge([one.types(TypeId.TRADE) for one in replays]):
        trades = gather_records(batch.packed, TRADE)
        yield TradeBatch(batch.timestamp_ns, trades, taker_sides(trades, batch.flags))


class SymbolBars:
    """Bars of many symbols, which are known by the hash that trades carry."""

    def __init__(self, kind: str, size: float) -> None:
        BarBuilder(kind, size)  # what is not possible is refused here
        self._made_by = (kind, size)
        self._builders: dict[int, BarBuilder] = {}

    def add(
        self,
        timestamp_ns: npt.NDArray[np.uint64],
        trades: npt.NDArray[np.void],
        side: npt.NDArray[np.uint8],
    ) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        """Take trades as `BarBuilder.add` does; yield symbols with the bars that are complete."""
        for symbol, mine in by_key(trades["symbol_hash"]):
            builder = self._builders.setdefault(symbol, BarBuilder(*self._made_by))
            yield symbol, builder.add(timestamp_ns[mine], trades[mine], side[mine])

    def finish(self) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        """Yield the bars that are still open."""
        for symbol, builder in self._builders.items():
            yield symbol, builder.finish()
