"""Which market the records of a DBN file belong to.

Owns the symbology of a file: its metadata, the mapping records inside it, and the choice of one symbol. Every
market is one book, so records that would mix two books in one market are separated here. Converts nothing.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.clock import NS_PER_DAY
from everlog.errors import InvalidSource
from everlog.market.protocol import crypto_market_id, symbol_hash
from everlog.market.venues.interface import MULTI, ImportContext
from everlog.market.venues.registry import venue_id

DAY_BITS: Final = np.uint64(16)
_VENUES: Final = {"GLBX.MDP3": "cme", "XNAS.ITCH": "nasdaq", "XEUR.EOBI": "eurex", "IFEU.IMPACT": "ice"}


class _Market(NamedTuple):
    """What an instrument's records of one publisher on one day are."""

    symbol: str
    market_id: int
    symbol_hash: int
    is_foreign: bool
    is_shared: bool


class Belonging(NamedTuple):
    """Which market each record of a block belongs to."""

    market_ids: NDArray[np.uint64]
    symbol_hashes: NDArray[np.uint64]
    foreign: NDArray[np.bool_]
    """Of another publisher than the instrument's first records: its book is another one."""
    shared: NDArray[np.bool_]
    """The market id is another symbol's already."""
    symbols: NDArray[np.object_]

    def take(self, chosen: NDArray[np.bool_]) -> Belonging:
        """Return what is known of the chosen records."""
        return Belonging(
            self.market_ids[chosen],
            self.symbol_hashes[chosen],
            self.foreign[chosen],
            self.shared[chosen],
            self.symbols[chosen],
        )


class Instruments:
    """The instruments of one file."""

    def __init__(self, metadata: Any, label: str, context: ImportContext) -> None:
        """Read the file's own symbology; refuse a wanted symbol that it cannot hold."""
        self._label = label
        self.wanted = context.options.symbol
        self._intervals: dict[int, list[tuple[date, date, str]]] = {}
        self._renamed: dict[int, str] = {}
        self._known: dict[int, _Market] = {}
        self._publishers: dict[int, int] = {}
        self._markets: dict[int, str] = {}
        self.unnamed: set[int] = set()
        dataset = str(metadata.dataset)
        self.venue = context.options.venue or _VENUES.get(dataset, dataset.lower())
        self.venue_id = venue_id(self.venue)
        self._read(metadata)
        symbols = sorted({name for intervals in self._intervals.values() for *_, name in intervals})
        if self.wanted is not None and symbols and self.wanted not in symbols:
            raise InvalidSource(
                f"{label} holds {', '.join(symbols[:10])}{', ...' if len(symbols) > 10 else ''}, "
                f"not {self.wanted!r} as the command says",
                label,
            )
        self.symbol = self.wanted or (symbols[0] if len(symbols) == 1 else MULTI)
        self.date = context.options.date or _day(int(metadata.start) // NS_PER_DAY).isoformat()

    def _read(self, metadata: Any) -> None:
        for asked, intervals in metadata.mappings.items():
            for interval in intervals:
                given = str(interval["symbol"])
                number, name = (given, asked) if given.isdigit() else (asked, given)
                if number.isdigit():
                    span = (interval["start_date"], interval["end_date"], name)
                    self._intervals.setdefault(int(number), []).append(span)

    @property
    def met(self) -> set[str]:
        """The symbols of the records so far; with a wanted one, that alone."""
        return {market.symbol for market in self._known.values()} if self.wanted is None else {self.wanted}

    def rename(self, instrument_id: int, symbol: str) -> None:
        """From here on, the instrument has this name."""
        self._renamed[instrument_id] = symbol
        self._known = {key: market for key, market in self._known.items() if key >> 32 != instrument_id}

    def of(self, records: NDArray[np.void], time: str = "ts_recv") -> Belonging:
        """Return which market each record belongs to, found once per instrument, publisher and day."""
        if not len(records):
            return Belonging(*(np.zeros(0, kind) for kind in (np.uint64, np.uint64, bool, bool, object)))
        days = records[time] // np.uint64(NS_PER_DAY) & np.uint64(0xFFFF)
        keys = (
            records["instrument_id"].astype(np.uint64) << np.uint64(32)
            | records["publisher_id"].astype(np.uint64) << DAY_BITS
            | days
        )
        if (keys == keys[0]).all():
            distinct, places = keys[:1], np.zeros(len(keys), dtype=np.intp)
            in_order = distinct
        else:
            distinct, first, places = np.unique(keys, return_index=True, return_inverse=True)
            in_order = distinct[np.argsort(first)]
        for key in in_order.tolist():
            # In the order of the file: an instrument's first record says whose book it is.
            if key not in self._known:
                self._known[key] = self._market(key)
        markets = [self._known[key] for key in distinct.tolist()]
        symbols, market_ids, hashes, foreign, shared = zip(*markets, strict=True)
        return Belonging(
            np.array(market_ids, dtype=np.uint64)[places],
            np.array(hashes, dtype=np.uint64)[places],
            np.array(foreign)[places],
            np.array(shared)[places],
            np.array(symbols, dtype=object)[places],
        )

    def _market(self, key: int) -> _Market:
        number, publisher, day = key >> 32, key >> 16 & 0xFFFF, key & 0xFFFF
        symbol = self._symbol(number, day)
        market_id = crypto_market_id(symbol)
        return _Market(
            symbol,
            market_id,
            symbol_hash(symbol),
            self._publishers.setdefault(number, publisher) != publisher,
            self._markets.setdefault(market_id, symbol) != symbol,
        )

    def _symbol(self, number: int, day_number: int) -> str:
        """Return the symbol; an instrument without one is called by its number."""
        if number in self._renamed:
            return self._renamed[number]
        day = _day(day_number)
        names = [name for start, end, name in self._intervals.get(number, ()) if start <= day < end]
        if not names:
            self.unnamed.add(number)
            return str(number)
        return self.wanted if self.wanted in names else names[0]


def _day(number: int) -> date:
    return datetime.fromtimestamp(number * 86_400, UTC).date()
