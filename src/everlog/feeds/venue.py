"""What a venue is: how to connect, what to send, and what its frames mean.

Owns the interface and the items that frames are decoded to. A venue holds no state and does no I/O;
`everlog.feeds.session` applies the rules to many symbols.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from everlog.market.books import L2Book
from everlog.market.symbols import SymbolDefinition

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
DAY_S: Final = 86_400.0

Levels = Sequence[Sequence[str]]
"""Price and size as the exchange's own text; further fields are ignored. Size 0 removes a level."""


class BookSnapshot(msgspec.Struct, gc=False):
    """The whole book of a symbol."""

    symbol: str
    bids: Levels
    asks: Levels
    update_id: int = 0
    exchange_ns: int = 0
    checksum: int | None = None


class BookDiff(msgspec.Struct, gc=False):
    """Levels that changed; ids are 0 where the venue has none, `previous_id` None where it names none."""

    symbol: str
    bids: Levels
    asks: Levels
    first_id: int = 0
    last_id: int = 0
    previous_id: int | None = None
    exchange_ns: int = 0
    checksum: int | None = None


class TradePrint(msgspec.Struct, gc=False):
    """One trade."""

    symbol: str
    price: str
    size: str
    trade_id: int
    is_buyer_maker: bool
    exchange_ns: int
    is_numbered: bool = False
    """Whether trade ids of a symbol rise by one, so that a missing one shows."""


class Quote(msgspec.Struct, gc=False):
    """The venue's own best bid and ask."""

    symbol: str
    bid: str
    bid_size: str
    ask: str
    ask_size: str
    exchange_ns: int = 0


class Refusal(msgspec.Struct, gc=False):
    """The venue refused something that was asked of it."""

    text: str


Item = BookSnapshot | BookDiff | TradePrint | Quote | Refusal


class BadFrame(ValueError):
    """A frame does not match the venue's format."""


UNREADABLE: Final = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError),
    *(struct.error, msgspec.DecodeError),
)
"""What decoding and encoding raise for a frame that holds something else than the venue's format."""


class Venue:
    """How to talk to one exchange. Subclasses override what differs."""

    name: ClassVar[str]
    """As in `everlog.market.venues.registry`."""
    url: ClassVar[str]
    rest_url: ClassVar[str] = ""
    symbols_max: ClassVar[int] = 100
    """Symbols per connection, as many as the venue's own limits on streams allow."""
    frames_per_s: ClassVar[float] = 5.0
    """How fast frames may be sent to the venue."""
    ping_text: ClassVar[str | None] = None
    """What the venue wants to see now and then besides WebSocket pings."""
    ping_s: ClassVar[float] = 20.0
    stale_s: ClassVar[float] = 30.0
    """Without a frame for this long the connection counts as dead."""
    max_age_s: ClassVar[float] = DAY_S - 600.0
    """The connection is replaced after this long: venues end those of 24 hours."""
    depth: ClassVar[int | None] = None
    """Levels a side that the venue keeps up to date; what falls out of them is removed here."""
    time_target: ClassVar[str | None] = None
    """Path of the venue's clock on REST."""

    def path(self, symbols: Sequence[str], channels: Sequence[str]) -> str:
        """Return what is added to the URL of the WebSocket."""
        return ""

    def subscriptions(self, symbols: Sequence[str], channels: Sequence[str]) -> list[str]:
        """Return the frames to send after connecting."""
        return []

    def renewals(self, symbol: str) -> list[str]:
        """Return the frames that make the venue send the book of a symbol anew; none: REST has it."""
        return []

    def snapshot_target(self, symbol: str) -> str | None:
        """Return the path on REST of the book of a symbol; None if the stream has it."""
        return None

    def decode(self, frame: bytes) -> Sequence[Item]:
        """Return what a frame holds; frames of no interest are empty. Raises errors of `UNREADABLE`."""
        raise NotImplementedError

    def decode_snapshot(self, symbol: str, body: bytes) -> BookSnapshot:
        """Return the book in an answer of REST."""
        raise NotImplementedError

    def info_target(self, symbols: Sequence[str]) -> str | None:
        """Return the path on REST of what the venue says of its symbols; None if it is not asked."""
        return None

    def decode_info(self, symbols: Sequence[str], body: bytes, at_ts: int) -> list[SymbolDefinition]:
        """Return what an answer to `info_target` says; `at_ts` is the time in microseconds."""
        raise NotImplementedError

    def server_time_ns(self, body: bytes) -> int:
        """Return the venue's time in an answer to `time_target`."""
        raise NotImplementedError

    def checksum(self, book: L2Book) -> int:
        """Return the venue's checksum of a book whose prices have the decimals of the venue's text."""
        raise NotImplementedError
