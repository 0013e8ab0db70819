"""Names of markets: from what a person types to the numbers in a queue, and back.

Owns both directions. A queue holds numbers; names come from the imports of the queue, from the venue's own
rule, and from what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidConfig
from everlog.fs import OsFs
from everlog.market.book_set import Market
from everlog.market.ledger import Ledger
from everlog.market.packing import gather_field
from everlog.market.protocol import (
    BOOK_TICKER,
    TRADE,
    TypeId,
    crypto_market_id,
    folded_hash,
    market_ids_of,
    symbol_hash,
)
from everlog.market.venues.registry import VENUE_IDS

if TYPE_CHECKING:
    from everlog.market.replay import Messages

SIMULATED_VENUE: Final = "simulated"
SIMULATED_SYMBOLS: Final = 1000
_VENUES: Final = {number: name for name, number in VENUE_IDS.items()}


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
    """What the markets of some queues are called."""

    def __init__(self, queues: Iterable[str] = (), chosen: Sequence[MarketChoice] = ()) -> None:
        """Look into the imports of the queues; `chosen` are names that are known to be asked for."""
        symbols = [entry.symbol for path in queues for entry in Ledger(OsFs(), path).all_finished()]
        symbols += [one.symbol for one in chosen]
        self._hashes = {
            symbol_hash(symbol, compatible=compatible): symbol
            for symbol in symbols
            for compatible in (True, False)
        }
        self._numbers = {number: one.symbol for one in chosen for number in one.market_ids}
        self._numbers |= {(value >> 32 ^ value & 0xFFFFFFFF): name for value, name in self._hashes.items()}
        self._simulated: dict[int, str] = {}

    def venue(self, market: Market) -> str:
        """Return the name of a market's venue, its number if that is not known."""
        return _VENUES.get(market.venue_id, str(market.venue_id))

    def symbol(self, market: Market) -> str:
        """Return the symbol of a market, its number if that is not known."""
        known = self._numbers.get(market.market_id)
        if known is not None:
            return known
        venue = self.venue(market)
        if venue == SIMULATED_VENUE:
            return self._simulated_names().get(market.market_id, str(market.market_id))
        return f"{market.market_id:06d}" if venue == "szse" else str(market.market_id)

    def symbol_of_trades(self, value: int) -> str:
        """Return the symbol that a hash of trades stands for, its digits if that is not known."""
        number = value >> 32 ^ value & 0xFFFFFFFF
        return self._hashes.get(value) or self._simulated_names().get(number) or f"{value:016x}"

    def _simulated_names(self) -> dict[int, str]:
        if not self._simulated:
            symbols = [f"SIM{number:04d}" for number in range(SIMULATED_SYMBOLS)]
            self._simulated = {crypto_market_id(symbol): symbol for symbol in symbols}
        return self._simulated
