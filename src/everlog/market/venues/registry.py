"""Venue ids, and rules of venues that books need. An id is never reused for another venue."""

from __future__ import annotations

from typing import Final

UNKNOWN_VENUE: Final = 0

VENUE_IDS: Final[dict[str, int]] = {
    "unknown": UNKNOWN_VENUE,
    "binance": 1,
    "szse": 2,
    "bybit": 3,
    "nasdaq": 4,
    "cme": 5,
    "simulated": 6,
    "binance-futures": 7,
    "binance-delivery": 8,
    "bybit-spot": 9,
    "bybit-options": 10,
    "bitmex": 11,
    "deribit": 12,
    "coinbase": 13,
    "kraken": 14,
    "okex": 15,
    "okex-futures": 16,
    "okex-swap": 17,
    "bitfinex": 18,
    "bitstamp": 19,
    "huobi": 20,
    "kucoin": 21,
    "gate-io": 22,
    "ftx": 23,
    "dydx": 24,
    "hyperliquid": 25,
    "eurex": 26,
    "ice": 27,
    "nyse": 28,
    "binance-us": 29,
    "cryptofacilities": 30,
    "upbit": 31,
    "gemini": 32,
    "sse": 33,
}

VENUE_NAMES: Final[dict[int, str]] = {number: name for name, number in VENUE_IDS.items()}

NUMERIC_VENUES: Final = frozenset({"szse", "sse"})
"""Venues whose market ids are the codes of their symbols."""

LOSES_ON_INCREASE: Final = frozenset({"cme", "nasdaq", "eurex", "ice", "nyse"})
"""Where an order that becomes larger goes to the back of its queue; elsewhere it keeps its place."""


def venue_id(name: str) -> int:
    """Return the id of a venue, 0 if it has none."""
    return VENUE_IDS.get(name.lower(), UNKNOWN_VENUE)
