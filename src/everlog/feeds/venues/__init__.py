"""The exchanges that can be captured, by the names they have in `feeds.toml`."""

from typing import Final

from everlog.feeds.venue import Venue
from everlog.feeds.venues.binance import BinanceSpot, BinanceUsdm
from everlog.feeds.venues.coinbase import Coinbase
from everlog.feeds.venues.kraken import Kraken
from everlog.feeds.venues.okx import Okx

VENUES: Final[dict[str, type[Venue]]] = {
    venue.name: venue for venue in (BinanceSpot, BinanceUsdm, Coinbase, Kraken, Okx)
}
