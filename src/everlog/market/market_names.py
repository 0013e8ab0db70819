"""Names of markets: from what a person types to the numbers in a queue, and back.

Owns both directions. A queue holds numbers; names come from the symbol catalogue and from what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.market.book_set import Market
from everlog.market.packing import gather_field
from everlog.market.protocol import (
    BOOK_TICKER,
    TRADE,
    TypeId,
    folded_hash,
    market_ids_of,
)
from everlog.market.symbols import SymbolCatalogue, load_nearby
from everlog.market.venues.registry import VENUE_IDS, VENUE_NAMES

if TYPE_CHECKING:
    from everlog.market.replay import Messages


@dataclass(frozen=True, slots=True)
class MarketChoice:
    """Which market is wanted: its symbol or number, and its venue if that matters."""

    symbol: str
    venue_id: int | None = None

    @classmethod
    def parse(cls, text: str) -> MarketChoice:
        """Return what a text like `BTCUSDT` or `binance:BTCUSDT` chooses."""
        venue, colon, symbol = text.strip().rpartition(":")
        if not symbol or (colon and not venue):
            raise InvalidConfig(f"{text!r} is no symbol; write it like BTCUSDT or binance:BTCUSDT")
        if colon and venue not in VENUE_IDS:
            raise InvalidConfig(
                f"{text!r}: unknown venue {venue!r}; known are {', '.join(sorted(VENUE_IDS))}"
            )
        return cls(symbol, VENUE_IDS[venue] if colon else None)

    @property
    def market_ids(self) -> list[int]:
        """The numbers that the symbol stands for."""
        return sorted(market_ids_of(self.symbol))


class OfSymbols:
    """Passes books, trades and tickers of some markets.

    A trade names no venue. Where a venue was asked for, trades are passed over as soon as the queue has a
    book of their symbol at another venue.
    """

    @dataclass(frozen=True, slots=True)
    class Maker:
        """Makes the filter for one run of a replay."""

        choices: tuple[MarketChoice, ...]

        def __call__(self) -> OfSymbols:
            """Return the filter."""
            return OfSymbols(self.choices)

    def __init__(self, choices: Sequence[MarketChoice]) -> None:
        self._choices = [(np.array(one.market_ids, np.uint64), one.venue_id) for one in choices]
        self._elsewhere: dict[int, int] = {}
        """Markets that are at venues that were not asked for, and the seq of the first event of each."""

    def __call__(self, some: Messages) -> NDArray[np.bool_]:
        """Return which messages pass."""
        keep = np.zeros(len(some.chosen), np.bool_)
        is_book = some.type_id == TypeId.BOOK_EVENT
        keep[is_book] = self._of_books(some.where(is_book))
        for type_id, layout in ((TypeId.TRADE, TRADE), (TypeId.BOOK_TICKER, BOOK_TICKER)):
            is_kind = (some.type_id == type_id) & (some.length == layout.itemsize)
            keep[is_kind] = self._of_hashes(some.where(is_kind), layout)
        return keep

    def _of_books(self, books: Messages) -> NDArray[np.bool_]:
        market_ids = gather_field(books.packed, "market_id")
        venue_ids = gather_field(books.packed, "venue_id")
        keep, named = np.zeros((2, len(market_ids)), np.bool_)
        for numbers, venue_id in self._choices:
            found = np.isin(market_ids, numbers)
            named |= found
            keep |= found if venue_id is None else found & (venue_ids == venue_id)
        others, seqs = np.flatnonzero(named & ~keep), books.seq
        for market, first in zip(*np.unique(market_ids[others], return_index=True), strict=True):
            self._elsewhere.setdefault(int(market), int(seqs[others[first]]))
        return keep

    def _of_hashes(self, some: Messages, layout: np.dtype[np.void]) -> NDArray[np.bool_]:
        data, _ = some.batch.joined(some.chosen)
        folded = folded_hash(data.view(layout)["symbol_hash"])
        keep = np.zeros(len(folded), np.bool_)
        for numbers, _ in self._choices:
            keep |= np.isin(folded, numbers)
        for market, first_seq in self._elsewhere.items():
            keep &= (folded != market) | (some.seq < first_seq)
        return keep


class MarketNames:
    """What the markets of some queues are called, as the catalogues beside and above them know."""

    def __init__(self, queues: Iterable[str] = (), chosen: Sequence[MarketChoice] = ()) -> None:
        """`chosen` are names that were asked for: they name what no catalogue does."""
        self._catalogue = SymbolCatalogue()
        for path in queues:
            self._catalogue = self._catalogue.completed_by(load_nearby(path))
        self._asked = {number: one.symbol for one in chosen for number in one.market_ids}

    def venue(self, market: Market) -> str:
        """Return the name of a market's venue, its number if that is not known."""
        return VENUE_NAMES.get(market.venue_id, str(market.venue_id))

    def symbol(self, market: Market) -> str:
        """Return the symbol of a market, its number if that is not known."""
        known = self._catalogue.symbol_of(market.venue_id, market.market_id)
        return known or self._asked.get(market.market_id) or str(market.market_id)

    def tick_size(self, market: Market) -> float | None:
        """Return the newest tick size of a market, else the finest decimals of its prices, if known."""
        version = self._catalogue.latest(market.venue_id, self.symbol(market))
        return None if version is None else version.tick_size or version.price_increment

    def symbol_of_trades(self, value: int) -> str:
        """Return the symbol that a hash of trades stands for, its digits if that is not known."""
        _, names = self._catalogue.trade_names(np.array([value], np.uint64))
        return names[0] or self._asked.get(value >> 32 ^ value & 0xFFFFFFFF) or f"{value:016x}"
