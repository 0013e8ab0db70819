"""Decoded items to payloads of the market protocol, one at a time.

Owns the conversion of the venue's decimal text and the bytes of single events. A symbol's scales are the
decimals of its text, so that one event after another has the same; they rise if a text needs more.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from everlog.feeds.venue import BookDiff, BookSnapshot, Levels, Quote, TradePrint
from everlog.market.decimals import POWERS_OF_TEN
from everlog.market.protocol import (
    LEVEL_BYTES,
    MAX_DIFF_LEVELS,
    SCHEMA_VERSION,
    BookEventType,
    BookFlags,
    TypeId,
    crypto_market_id,
    symbol_hash,
)
from everlog.native.market.events import pack_levels

_HEADER: Final = struct.Struct("<HHIBBHIII4QBBHI")
_DIFF: Final = struct.Struct("<3Q2B3H")
_SNAPSHOT: Final = struct.Struct("<2BHII")
_TRADE: Final = struct.Struct("<QddQQQB7xQ")
_TICKER: Final = struct.Struct("<Q4dQ")
# Plain numbers: members of enumerations are several times slower to combine and pack.
_ABSOLUTE: Final = int(BookFlags.ABSOLUTE)
_MARKS_ENDS: Final = int(BookFlags.MARKS_EVENT_ENDS)
_FLAGS: Final = _ABSOLUTE | _MARKS_ENDS
_DIFF_KIND: Final = int(BookEventType.DIFF)
_RESET_KIND: Final = int(BookEventType.RESET)
_BOOK_EVENT: Final = TypeId.BOOK_EVENT
MAX_SCALE: Final = 18
U64_MAX: Final = 2**64 - 1
I64_MAX: Final = 2**63 - 1

PackedLevels = bytes
"""Levels as the protocol has them: `protocol.LEVEL`."""
PACKED_LEVEL: Final = struct.Struct("<qQ")
Message = tuple[int, bytes]
"""Type id and payload."""


class BadNumber(ValueError):
    """A price or size is not a decimal number that the protocol can hold."""


def scaled(text: str, scale: int, largest: int = U64_MAX) -> int:
    """Return the number at a scale that holds all its digits; only a price (`largest` I64_MAX) has a sign."""
    is_negative = largest == I64_MAX and text.startswith("-")
    whole, _, fraction = text[is_negative:].partition(".")
    digits = whole + fraction
    if not digits.isascii() or not digits.isdigit() or len(fraction) > MAX_SCALE:
        raise BadNumber(f"{text!r} is not a price or size")
    value: int = int(digits) * POWERS_OF_TEN[max(scale - len(fraction), 0)]
    if value > largest:
        raise BadNumber(f"{text!r} at scale {scale} does not fit into 64 bits")
    return -value if is_negative else value


def real(text: str, *, signed: bool = False) -> float:
    """Return the float next to the number of a trade or quote, whose layouts have floats."""
    digits = text.removeprefix("-") if signed else text
    if not digits.isascii() or not digits.replace(".", "", 1).isdigit():
        raise BadNumber(f"{text!r} is not a price or size")
    return float(text)


def _decimals(text: object) -> int:
    if not isinstance(text, str):
        raise BadNumber(f"{text!r} is not a price or size")
    places = len(text.partition(".")[2])
    if places > MAX_SCALE:
        raise BadNumber(f"{text!r} has more than {MAX_SCALE} decimals")
    return places


class SymbolEncoder:
    """Makes payloads of one symbol."""

    def __init__(self, venue_id: int, symbol: str, stream_id: int) -> None:
        self.market_id = crypto_market_id(symbol)
        self.price_scale = self.size_scale = 0
        self._hash = symbol_hash(symbol)
        self._venue_id = venue_id
        self._stream_id = stream_id

    def sides(self, bids: Levels, asks: Levels) -> tuple[PackedLevels, PackedLevels]:
        """Return both sides at the symbol's scales, which rise where needed."""
        while True:
            scales = self.price_scale, self.size_scale
            packed_bids, *of_bids = pack_levels(bids, *scales) or self._plainly(bids)
            packed_asks, *of_asks = pack_levels(asks, *scales) or self._plainly(asks)
            self.price_scale, self.size_scale = map(max, scales, of_bids, of_asks)
            if (self.price_scale, self.size_scale) == scales:
                return packed_bids, packed_asks

    def _plainly(self, levels: Levels) -> tuple[PackedLevels, int, int]:
        """Do the same for levels that have a sign, and refuse what is no number or does not fit."""
        most = [max((_decimals(level[at]) for level in levels), default=0) for at in (0, 1)]
        scales = max(most[0], self.price_scale), max(most[1], self.size_scale)
        packed = [
            PACKED_LEVEL.pack(scaled(level[0], scales[0], I64_MAX), scaled(level[1], scales[1]))
            for level in levels
        ]
        return b"".join(packed), most[0], most[1]

    def snapshot(
        self, one: BookSnapshot, bids: PackedLevels, asks: PackedLevels, received_ns: int
    ) -> Message:
        """Return a snapshot; levels are in the order of the book."""
        body = _SNAPSHOT.pack(
            self.price_scale, self.size_scale, 0, len(bids) // LEVEL_BYTES, len(asks) // LEVEL_BYTES
        )
        body = b"".join((body, bids, asks))
        return self._event(int(BookEventType.SNAPSHOT), body, one.exchange_ns, received_ns, one.update_id)

    def diffs(self, one: BookDiff, bids: PackedLevels, asks: PackedLevels, received_ns: int) -> list[Message]:
        """Return a diff, as several if it has more levels than one can carry."""
        parts = []
        step = LEVEL_BYTES * MAX_DIFF_LEVELS
        for start in range(0, max(len(bids), len(asks), 1), step):
            some_bids, some_asks = bids[start : start + step], asks[start : start + step]
            # Parts after the first follow it: they have its last id as theirs.
            first, previous = (one.last_id, one.last_id) if start else (one.first_id, one.previous_id or 0)
            body = _DIFF.pack(
                first,
                one.last_id,
                previous,
                self.price_scale,
                self.size_scale,
                _ABSOLUTE,
                len(some_bids) // LEVEL_BYTES,
                len(some_asks) // LEVEL_BYTES,
            )
            body = b"".join((body, some_bids, some_asks))
            parts.append(self._event(_DIFF_KIND, body, one.exchange_ns, received_ns, one.last_id))
        return parts

    def reset(self, received_ns: int) -> Message:
        """Return an event that empties the book."""
        return self._event(_RESET_KIND, b"", 0, received_ns, 0)

    def trade(self, one: TradePrint) -> Message:
        """Return a trade."""
        price, size = real(one.price, signed=True), real(one.size)
        return TypeId.TRADE, _TRADE.pack(
            one.exchange_ns, price, size, one.trade_id & U64_MAX, 0, 0, one.is_buyer_maker, self._hash
        )

    def quote(self, one: Quote) -> Message:
        """Return the venue's best bid and ask."""
        bid, ask = real(one.bid, signed=True), real(one.ask, signed=True)
        numbers = (bid, real(one.bid_size), ask, real(one.ask_size))
        return TypeId.BOOK_TICKER, _TICKER.pack(one.exchange_ns, *numbers, self._hash)

    def _event(self, kind: int, body: bytes, exchange_ns: int, received_ns: int, native_seq: int) -> Message:
        header = _HEADER.pack(
            SCHEMA_VERSION,
            0,
            _HEADER.size + len(body),
            0,
            0,
            self._venue_id,
            self.market_id,
            self._stream_id,
            0,
            received_ns,
            exchange_ns,
            0,
            native_seq,
            kind,
            0,
            _FLAGS if kind != _RESET_KIND else _MARKS_ENDS,
            0,
        )
        return _BOOK_EVENT, header + body


class FeedGap(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why and where a stream is broken, as JSON in a message of type FEED_GAP."""

    reason: str
    connection: int
    venue: str
    symbol: str = ""
    seen: int = 0
    found: int = 0
    detail: str = ""


def gap_message(gap: FeedGap) -> Message:
    """Return the message that says that something is missing."""
    return TypeId.FEED_GAP, msgspec.json.encode(gap)
