"""Coinbase Exchange: `level2` (a snapshot, then changes) and `matches`.

Changes have no numbers and no checksum, so a lost one cannot be seen; lost connections can. Matches are
numbered per product.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from everlog.feeds.venue import BadFrame, BookDiff, BookSnapshot, Item, Refusal, TradePrint, Venue

_CHANNELS: Final = {"book": "level2", "trades": "matches", "quotes": "ticker"}


class _Frame(msgspec.Struct, gc=False):
    type: str
    product_id: str = ""
    bids: list[tuple[str, str]] = []
    asks: list[tuple[str, str]] = []
    changes: list[tuple[str, str, str]] = []
    time: str = ""
    trade_id: int = 0
    side: str = ""
    price: str = ""
    size: str = ""
    message: str = ""
    reason: str = ""


_FRAMES: Final = msgspec.json.Decoder(_Frame)


class Coinbase(Venue):
    """Coinbase Exchange."""

    name = "coinbase"
    url = "wss://ws-feed.exchange.coinbase.com"
    symbols_max = 50

    def subscriptions(self, symbols: Sequence[str], channels: Sequence[str]) -> list[str]:
        """One frame for all channels; heartbeats come every second, so a dead connection shows."""
        names = [*(_CHANNELS[channel] for channel in channels), "heartbeat"]
        return [_request("subscribe", symbols, names)]

    def renewals(self, symbol: str) -> list[str]:
        """A new subscription begins with a snapshot."""
        return [_request(kind, [symbol], ["level2"]) for kind in ("unsubscribe", "subscribe")]

    def decode(self, frame: bytes) -> Sequence[Item]:
        """The side of a match is the maker's; `last_match` is one from before the subscription."""
        one = _FRAMES.decode(frame)
        if one.type == "l2update":
            bids = [change[1:] for change in one.changes if change[0] == "buy"]
            asks = [change[1:] for change in one.changes if change[0] == "sell"]
            if len(bids) + len(asks) != len(one.changes):
                raise BadFrame(f"{one.product_id}: a side that is neither buy nor sell")
            return (BookDiff(one.product_id, bids, asks, exchange_ns=time_ns(one.time)),)
        if one.type == "snapshot":
            return (BookSnapshot(one.product_id, one.bids, one.asks),)
        if one.type == "match":
            is_buyer_maker = one.side == "buy"
            trade = (one.product_id, one.price, one.size, one.trade_id, is_buyer_maker, time_ns(one.time))
            return (TradePrint(*trade, is_numbered=True),)
        if one.type == "error":
            return (Refusal(f"{one.message}: {one.reason}"),)
        return ()


def _request(kind: str, symbols: Sequence[str], channels: Sequence[str]) -> str:
    body: dict[str, Any] = {"type": kind, "product_ids": [*symbols], "channels": [*channels]}
    return msgspec.json.encode(body).decode()


def time_ns(text: str) -> int:
    """Return a time such as 2021-04-17T16:43:37.075687Z in nanoseconds; 0 if there is none."""
    if not text:
        return 0
    seconds = int(datetime.fromisoformat(text[:19] + "+00:00").timestamp())
    fraction = text[20:].rstrip("Z")
    return seconds * 10**9 + int(fraction.ljust(9, "0")[:9] or 0)
