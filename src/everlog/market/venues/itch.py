"""NASDAQ TotalView-ITCH 5.0: order by order (L3), as the exchange's daily files have it.

Owns the messages' layouts and their meaning. A file is messages one after another, each behind its length in
two bytes, numbers in the order of the network. Times are nanoseconds after midnight in New York, prices have
four decimals.

Executions, cancels and deletes name an order only, so live orders are remembered: their events have side,
price and what was left. A replace is a cancel and an add, which are one event.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from everlog.errors import InvalidSource
from everlog.market.protocol import (
    BookFlags,
    L3EventType,
    L3Flags,
    MessageFlags,
    Side,
    TypeId,
    crypto_market_id,
    new_l3_records,
)
from everlog.market.venues.archives import Member
from everlog.market.venues.interface import MULTI, EventBlock, ImportContext, find_date
from everlog.market.venues.lobster import midnight_ns
from everlog.market.venues.registry import venue_id

VENUE: Final = "nasdaq"
PRICE_SCALE: Final = 4
BLOCK_EVENTS: Final = 1 << 16
HEAD_BYTES: Final = 11
SIZES: Final = {
    **{"S": 12, "R": 39, "H": 25, "Y": 20, "L": 26, "V": 35, "W": 12, "K": 28, "J": 35, "h": 21},
    **{"A": 36, "F": 40, "E": 31, "C": 36, "X": 23, "D": 19, "U": 35, "P": 44, "Q": 40, "B": 19},
    **{"I": 50, "N": 20, "O": 48},
}
"""Bytes of each kind of message."""
_LENGTHS: Final = {kind.encode()[0]: size for kind, size in SIZES.items()}
_STATES: Final = {b"H": 0, b"P": 0, b"Q": 1, b"T": 2}
"""Of a trading action: halted or paused, quoting, trading, as in the halts of LOBSTER."""
_SIDES: Final = {b"B": Side.BUY, b"S": Side.SELL}
_COMPACT_DATE: Final = re.compile(r"(?<!\d)(\d{2})(\d{2})(20\d{2})(?!\d)")
_ADD: Final = struct.Struct(">Qc I8sI")
_EXECUTED: Final = struct.Struct(">QIQ")
_PRICED: Final = struct.Struct(">QIQcI")
_CANCEL: Final = struct.Struct(">QI")
_REFERENCE: Final = struct.Struct(">Q")
_REPLACE: Final = struct.Struct(">QQII")
_HIDDEN: Final = struct.Struct(">Qc I8sIQ")
_CROSS: Final = struct.Struct(">Q8sIQc")
_ADD_TYPE, _CANCEL_TYPE = int(L3EventType.ORDER_ADD), int(L3EventType.ORDER_CANCEL)
_TRADE_TYPE, _HEARTBEAT = int(L3EventType.TRADE), int(L3EventType.HEARTBEAT)
_HAS_ID: Final = (0, int(L3Flags.RAW_HAS_BID_ID), int(L3Flags.RAW_HAS_ASK_ID))
"""By the side of the order that a trade names."""
_SHARES_AT: Final = {ord(kind): at for at, kinds in ((19, "ECX"), (20, "AF"), (27, "U")) for kind in kinds}
"""Where a message says of how many shares it is; one of none would be taken for all of the order."""
LAST: Final = int(MessageFlags.LAST_OF_EVENT)


class _Order(NamedTuple):
    """A live order."""

    side: int
    price: int
    left: int


_COLUMNS: Final = (
    *("stamp_ns", "locate", "kind", "exec_type", "side", "order_id", "price", "qty"),
    *("number", "flags", "message_flags"),
)
"""Of an event that waits for its block; the order of a trade stands on the side on which it rested."""


class Itch:
    """Importer of ITCH 5.0 files."""

    name = "itch"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield the messages that concern books, trades and halts, of all symbols or of `--symbol`."""
        for member in members:
            yield from _File(member, context).events()


class _File:
    """One file: its symbols, its live orders, and what is gathered for the next block."""

    def __init__(self, member: Member, context: ImportContext) -> None:
        self._member = member
        self._context = context
        self._venue = context.options.venue or VENUE
        self._wanted = context.options.symbol
        self._date = _date(member, context)
        self._midnight_ns = midnight_ns(self._date)
        self._symbols: dict[int, str] = {}
        self._markets = np.zeros(1 << 16, dtype=np.uint64)
        self._orders: dict[int, _Order] = {}
        self._begun: set[int] = set()
        self._gathered: list[tuple[int, ...]] = []
        self._others: Counter[str] = Counter()
        self._number = self._latest_ns = self._unknown = 0
        handlers: dict[str, Callable[[bytes, int, int], None]] = {
            **{"A": self._add, "F": self._add, "E": self._executed, "C": self._executed_at},
            **{"X": self._cancel, "D": self._delete, "U": self._replace},
            **{"P": self._hidden, "Q": self._cross, "H": self._halt},
        }
        self._handlers = {kind.encode()[0]: handler for kind, handler in handlers.items()}

    def events(self) -> Iterator[EventBlock]:
        """Yield the events, and leave the notes."""
        tally = self._context.tally
        tally.name(venue=self._venue, symbol=self._wanted or MULTI, date=self._date, stream="book")
        for message in self._messages():
            self._take(message)
            if len(self._gathered) >= BLOCK_EVENTS:
                yield self._block()
        yield self._block()
        if self._wanted is not None and self._wanted not in self._symbols.values():
            raise InvalidSource(f"{self._member.label} holds no symbol {self._wanted!r}", self._member.label)
        tally.symbols |= {(self._venue, self._symbols[locate]) for locate in self._begun}
        if self._others:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._others.items()))
            tally.notes.append(f"{self._member.label}: messages of other kinds were not imported: {kinds}")
        if self._unknown:
            tally.notes.append(
                f"{self._member.label}: {self._unknown} messages name an order that was never added; books "
                'count them as unknown orders, give them unknown_orders="skip"'
            )

    def _messages(self) -> Iterator[bytes]:
        """Yield the messages without their lengths; a damaged file is refused where it stops making sense."""
        label, rest = self._member.label, b""
        for data in self._member.blocks():
            rest, at = rest + data, 0
            while at + 2 <= len(rest):
                length = rest[at] << 8 | rest[at + 1]
                if at + 2 + length > len(rest):
                    break
                self._number += 1
                message = rest[at + 2 : at + 2 + length]
                if length < HEAD_BYTES or _LENGTHS.get(message[0], length) != length:
                    raise InvalidSource(
                        f"{label}: message {self._number} is of kind {message[:1]!r} and has {length} bytes; "
                        "it is not ITCH 5.0, or the file is damaged",
                        label,
                    )
                yield message
                at += 2 + length
            rest = rest[at:]
        if rest:
            raise InvalidSource(
                f"{label} ends in the middle of message {self._number + 1}; fetch it again", label
            )

    def _take(self, message: bytes) -> None:
        kind, locate = message[0], message[1] << 8 | message[2]
        if kind == ord("R"):
            self._symbols[locate] = symbol = message[11:19].decode("ascii", "replace").rstrip()
            self._markets[locate] = crypto_market_id(symbol)
            return
        handler = self._handlers.get(kind)
        if handler is None:
            if kind != ord("S"):
                self._others[chr(kind)] += 1
            return
        if self._wanted is not None and self._symbols.get(locate) != self._wanted:
            return
        if locate not in self._symbols:
            self._reject("its stock locate has no directory message before it", message)
            return
        stamp_ns = self._midnight_ns + int.from_bytes(message[5:11], "big")
        if stamp_ns < self._latest_ns:
            if not self._context.options.allow_unordered:
                self._reject(
                    "the time goes back: out of order or there twice; --allow-unordered keeps it", message
                )
                return
            self._context.tally.unordered += 1
        shares_at = _SHARES_AT.get(kind)
        if shares_at is not None and not any(message[shares_at : shares_at + 4]):
            self._reject("it is of no shares", message)
            return
        self._latest_ns = max(stamp_ns, self._latest_ns)
        self._context.tally.rows += 1
        handler(message, locate, stamp_ns)

    def _reject(self, reason: str, message: bytes) -> None:
        self._context.rejects.reject(self._member.label, self._number, reason, message.hex())

    def _emit(self, *event: int, flags: int = 0, message_flags: int = LAST) -> None:
        """Gather an event, given by its columns up to `qty`."""
        self._gathered.append((*event, self._number, flags, message_flags))

    # -- the messages --------------------------------------------------------------------

    def _add(self, message: bytes, locate: int, stamp_ns: int) -> None:
        number, letter, shares, _, price = _ADD.unpack_from(message, HEAD_BYTES)
        if number in self._orders and not self._context.options.allow_unordered:
            self._context.tally.rows -= 1
            self._reject("the order is added twice; --allow-unordered keeps both", message)
            return
        side = _SIDES.get(letter, Side.UNKNOWN)
        self._orders[number] = _Order(side, price, shares)
        self._emit(stamp_ns, locate, _ADD_TYPE, message[0], side, number, price, shares)

    def _reduced(self, number: int, shares: int | None) -> tuple[_Order, int]:
        """Return the order as it was and how many shares go, all of them if None; forget it at 0."""
        order = self._orders.get(number)
        if order is None:
            self._unknown += 1
            return _Order(Side.UNKNOWN, 0, 0), shares or 0
        gone = order.left if shares is None else min(shares, order.left)
        if gone == order.left:
            del self._orders[number]
        else:
            self._orders[number] = order._replace(left=order.left - gone)
        return order, gone

    def _trade(
        self, message: bytes, locate: int, stamp_ns: int, number: int, shares: int, price: int | None
    ) -> None:
        order, _ = self._reduced(number, shares)
        flags = _HAS_ID[order.side]
        if price is None and not order.side:
            flags |= int(L3Flags.NO_PRICE)
        shown = order.price if price is None else price
        self._emit(stamp_ns, locate, _TRADE_TYPE, message[0], order.side, number, shown, shares, flags=flags)

    def _executed(self, message: bytes, locate: int, stamp_ns: int) -> None:
        number, shares, _ = _EXECUTED.unpack_from(message, HEAD_BYTES)
        self._trade(message, locate, stamp_ns, number, shares, None)

    def _executed_at(self, message: bytes, locate: int, stamp_ns: int) -> None:
        number, shares, _, printable, price = _PRICED.unpack_from(message, HEAD_BYTES)
        if printable == b"Y":
            self._trade(message, locate, stamp_ns, number, shares, price)
        else:  # part of a cross, whose own message has the volume
            self._cancelled(message, locate, stamp_ns, number, shares)

    def _cancelled(
        self,
        message: bytes,
        locate: int,
        stamp_ns: int,
        number: int,
        shares: int | None,
        message_flags: int = LAST,
    ) -> _Order:
        order, gone = self._reduced(number, shares)
        self._emit(
            *(stamp_ns, locate, _CANCEL_TYPE, message[0], order.side, number, order.price, gone),
            flags=0 if order.side else int(L3Flags.NO_PRICE),
            message_flags=message_flags,
        )
        return order

    def _cancel(self, message: bytes, locate: int, stamp_ns: int) -> None:
        number, shares = _CANCEL.unpack_from(message, HEAD_BYTES)
        self._cancelled(message, locate, stamp_ns, number, shares)

    def _delete(self, message: bytes, locate: int, stamp_ns: int) -> None:
        (number,) = _REFERENCE.unpack_from(message, HEAD_BYTES)
        self._cancelled(message, locate, stamp_ns, number, None)

    def _replace(self, message: bytes, locate: int, stamp_ns: int) -> None:
        old, new, shares, price = _REPLACE.unpack_from(message, HEAD_BYTES)
        order = self._cancelled(message, locate, stamp_ns, old, None, 0 if old in self._orders else LAST)
        if order.side:  # without its side the new order cannot stand anywhere
            self._orders[new] = _Order(order.side, price, shares)
            self._emit(stamp_ns, locate, _ADD_TYPE, message[0], order.side, new, price, shares)

    def _hidden(self, message: bytes, locate: int, stamp_ns: int) -> None:
        _, _, shares, _, price, _ = _HIDDEN.unpack_from(message, HEAD_BYTES)
        self._emit(stamp_ns, locate, _TRADE_TYPE, message[0], Side.UNKNOWN, 0, price, shares)

    def _cross(self, message: bytes, locate: int, stamp_ns: int) -> None:
        shares, _, price, _, _ = _CROSS.unpack_from(message, HEAD_BYTES)
        if shares:
            self._emit(stamp_ns, locate, _TRADE_TYPE, message[0], Side.UNKNOWN, 0, price, shares)

    def _halt(self, message: bytes, locate: int, stamp_ns: int) -> None:
        state = _STATES.get(message[19:20], 0)
        self._emit(
            *(stamp_ns, locate, _HEARTBEAT, message[0], Side.UNKNOWN, 0, 0, state),
            flags=int(L3Flags.NO_PRICE),
        )

    # -- the block -----------------------------------------------------------------------

    def _block(self) -> EventBlock:
        events, self._gathered = self._gathered, []
        columns = np.array(events, dtype=np.uint64).reshape(len(events), len(_COLUMNS)).T
        of = dict(zip(_COLUMNS, columns, strict=True))
        records = new_l3_records(len(events), venue_id=venue_id(self._venue))
        header, event = records["header"], records["event"]
        locates, firsts = np.unique(of["locate"], return_index=True)
        header["market_id"] = self._markets[of["locate"]]
        header["ingest_ts_ns"] = header["exchange_ts_ns"] = of["stamp_ns"]
        header["native_seq"] = of["number"]
        header["flags"] |= np.uint16(BookFlags.MARKS_EVENT_ENDS)
        for locate, first in zip(locates.tolist(), firsts.tolist(), strict=True):
            is_new = locate not in self._begun
            if is_new and not self._context.is_continued(self._symbols[locate], self._date):
                header["flags"][first] |= np.uint16(BookFlags.RESETS)
            self._begun.add(locate)
        event["event_type"], event["exec_type"] = of["kind"], of["exec_type"]
        event["side"], event["flags"] = of["side"], of["flags"]
        event["price_scale"] = PRICE_SCALE
        event["price"], event["qty"], event["order_id"] = of["price"], of["qty"], of["order_id"]
        is_trade = of["kind"] == _TRADE_TYPE
        for side, column in ((Side.BUY, "bid_order_id"), (Side.SELL, "ask_order_id")):
            event[column] = np.where(is_trade & (of["side"] == side), of["order_id"], 0)
        flags = of["message_flags"].astype(np.uint16)
        return EventBlock(TypeId.BOOK_EVENT, records, of["stamp_ns"].copy(), flags=flags)


def _date(member: Member, context: ImportContext) -> str:
    """Return the day: from the options, a usual place in the name, or the exchange's `MMDDYYYY`."""
    date = find_date(member.name, context.options) or find_date(member.path, context.options)
    compact = _COMPACT_DATE.search(member.name)
    if date is None and compact is not None:
        date = f"{compact[3]}-{compact[1]}-{compact[2]}"
    if date is None:
        raise InvalidSource(f"{member.label}: its name holds no date; pass --date YYYY-MM-DD", member.label)
    return date
