"""LOBSTER message files to order-by-order events.

Owns the meaning of the six columns. The file names neither day nor symbol: both come from its name
(`AAPL_2012-06-21_..._message_50.csv`) or from the options. Times are seconds after midnight in New
York. Orders that rested before the file begins are unknown, unless the order-book file beside it tells the
opening book (`everlog.market.venues.lobster_books`); what to do with unknown orders is the book's policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from everlog.clock import NS_PER_DAY
from everlog.errors import InvalidSource, Unsupported
from everlog.market.protocol import (
    BookFlags,
    L3EventType,
    L3Flags,
    Side,
    TypeId,
    crypto_market_id,
    new_l3_records,
)
from everlog.market.venues.archives import Member
from everlog.market.venues.csv_blocks import CHOICE, DECIMAL, SIGNED, UNSIGNED, Column, CsvReader, RowBlock
from everlog.market.venues.interface import EventBlock, ImportContext, TimeOrder, find_date
from everlog.market.venues.lobster_books import (
    CROSS,
    DELETE,
    EXECUTION,
    HALT,
    HIDDEN_EXECUTION,
    NEW,
    PARTIAL_CANCEL,
    PRICE_SCALE,
    OpeningBook,
    paired,
    with_order_books,
)
from everlog.market.venues.registry import venue_id

__all__ = [
    "CROSS",
    "DELETE",
    "EXECUTION",
    "HALT",
    "HIDDEN_EXECUTION",
    "NEW",
    "PARTIAL_CANCEL",
    "Lobster",
]

VENUE: Final = "nasdaq"
TIME_ZONE: Final = "America/New_York"
TIME_SCALE: Final = 9
NAMES: Final = ("time", "type", "order_id", "size", "price", "direction")

_KINDS: Final = np.array(
    [
        0,
        L3EventType.ORDER_ADD,
        L3EventType.ORDER_CANCEL,
        L3EventType.ORDER_CANCEL,
        L3EventType.TRADE,
        L3EventType.TRADE,
        L3EventType.TRADE,
        L3EventType.HEARTBEAT,
    ],
    dtype=np.uint8,
)
_COLUMNS: Final = (
    Column("time", DECIMAL),
    Column("type", CHOICE, choices=tuple((str(kind), kind) for kind in range(1, 8))),
    Column("order_id", SIGNED),  # crosses have -1
    Column("size", UNSIGNED),
    Column("price", SIGNED),
    Column("direction", CHOICE, choices=(("1", Side.BUY), ("-1", Side.SELL), ("0", Side.UNKNOWN))),
)
_SYMBOL: Final = re.compile(r"([A-Za-z0-9.\-]+)_\d{4}-\d{2}-\d{2}_")


class Lobster:
    """Importer of LOBSTER message files, with the opening books of order-book files."""

    name = "lobster"
    merges_files = False

    def groups(self, paths: Sequence[str]) -> list[list[str]]:
        """Return each file of messages with its order book."""
        return with_order_books(paths)

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield one order-by-order event a row, after those of the opening book if there is one."""
        for member, book_member in paired(members, context):
            yield from _file_events(member, book_member, context)
        if context.tally.quarantined:
            context.tally.notes.append(
                f"books go on behind the bad rows that were set aside ({context.tally.quarantined}); orders "
                "that one of these added are unknown to them (--unknown-orders skip)"
            )
        if context.tally.beyond_rows:
            context.tally.notes.append(
                f"{context.tally.beyond_rows} rows are about orders beyond the levels of the order book, "
                'which books count as unknown orders; give them unknown_orders="skip"'
            )


def _file_events(member: Member, book_member: Member | None, context: ImportContext) -> Iterator[EventBlock]:
    venue = context.options.venue or VENUE
    symbol, date = _symbol(member, context), _date(member, context)
    begins_ns, market = np.uint64(midnight_ns(date)), crypto_market_id(symbol)
    context.tally.name(venue=venue, symbol=symbol, date=date, stream="book")
    reader = CsvReader(member, context.rejects, NAMES)
    begins, order = not context.is_continued(symbol, date), TimeOrder("time", context)
    book: OpeningBook | None = None
    last_line = np.zeros(1, dtype=np.int64)
    for block in reader.blocks(_COLUMNS):
        kept = order.checked(_sound(block, context))
        # Hidden executions of one time may be alike: they name no order.
        columns = [kept.values[name] for name in ("order_id", "size", "price")]
        kept = order.once(
            kept, kept.extras["type"] <= EXECUTION, [*columns, kept.extras["type"].astype(np.uint64)]
        )
        if not len(kept):
            continue
        context.tally.rows += len(kept)
        if book_member is not None:
            if book is None:
                book = OpeningBook(book_member, kept, context)
                begins = not len(book)
                yield book.opening(kept.values["time"][0] + begins_ns, venue_id(venue), market)
            book.assign(kept)
        events = _events(kept, begins_ns, venue_id(venue), market)
        # Rows that were set aside leave a hole in the numbers, which is no reason to stop.
        follows = kept.lines == np.concatenate((last_line, kept.lines[:-1])) + 1
        events.payloads["header"]["flags"] |= ~follows * np.uint16(BookFlags.SPARSE)
        last_line = kept.lines[-1:]
        if book is not None:
            events.payloads["header"]["seq"] += np.uint64(len(book))
        if begins:
            events.payloads["header"]["flags"][0] |= BookFlags.RESETS
            begins = False
        yield events


def _sound(block: RowBlock, context: ImportContext) -> RowBlock:
    """Return the rows that can be, after the others were rejected."""

    def signed(name: str) -> NDArray[np.int64]:
        column: NDArray[np.int64] = block.values[name].view(np.int64)
        return column

    rejects = context.rejects
    block = block.at_scale("time", TIME_SCALE, rejects)
    block = block.refuse((signed("price") < 0) & (block.extras["type"] != HALT), "price is negative", rejects)
    block = block.refuse(
        (np.abs(signed("price")) > 1) & (block.extras["type"] == HALT),
        "a halt has price -1, 0 or 1",
        rejects,
    )
    of_book = block.extras["type"] <= EXECUTION
    block = block.refuse(of_book & (signed("order_id") < 1), "it names no order", rejects)
    of_book = block.extras["type"] <= EXECUTION
    block = block.refuse(of_book & (block.values["size"] == 0), "it is of no shares", rejects)
    of_book = block.extras["type"] <= EXECUTION
    block = block.refuse(of_book & (block.extras["direction"] == Side.UNKNOWN), "it has no side", rejects)
    return block.refuse(
        block.values["time"] >= np.uint64(NS_PER_DAY), "the time is later than the end of the day", rejects
    )


def _events(block: RowBlock, begins_ns: np.uint64, venue: int, market: int) -> EventBlock:
    records = new_l3_records(len(block), venue_id=venue, market_id=market)
    kind, direction = block.extras["type"], block.extras["direction"]
    order_id, size, price = block.values["order_id"], block.values["size"], block.values["price"]
    stamps = block.values["time"] + begins_ns
    header, event = records["header"], records["event"]
    header["ingest_ts_ns"] = header["exchange_ts_ns"] = stamps
    header["seq"] = header["native_seq"] = block.lines
    # The lines are counted in each file anew: every symbol is a feed of its own.
    header["stream_id"] = market
    event["event_type"] = _KINDS[kind]
    event["exec_type"] = kind
    event["side"] = direction
    event["price_scale"] = PRICE_SCALE
    # Hidden and crossed executions have no order in the visible book that they could reduce.
    visible = kind <= EXECUTION
    event["order_id"] = np.where(visible, order_id, 0)
    bought, sold = (
        (kind == EXECUTION) & (direction == Side.BUY),
        (kind == EXECUTION) & (direction == Side.SELL),
    )
    event["bid_order_id"] = np.where(bought, order_id, 0)
    event["ask_order_id"] = np.where(sold, order_id, 0)
    # A halt has no price: -1 halted, 0 quoting, 1 trading again, kept as 0, 1, 2 in the quantity.
    halted = kind == HALT
    for flag, where in (
        (L3Flags.RAW_HAS_BID_ID, bought),
        (L3Flags.RAW_HAS_ASK_ID, sold),
        (L3Flags.NO_PRICE, halted),
    ):
        event["flags"] |= where * np.uint32(flag)
    event["price"] = np.where(halted, 0, price)
    event["qty"] = np.where(halted, price + np.uint64(1), size)
    return EventBlock(TypeId.BOOK_EVENT, records, stamps)


def _symbol(member: Member, context: ImportContext) -> str:
    if context.options.symbol is not None:
        return context.options.symbol
    found = _SYMBOL.match(member.name)
    if found is None:
        raise InvalidSource(
            f"{member.label}: its name does not begin with a symbol; pass --symbol", member.label
        )
    return found.group(1)


def _date(member: Member, context: ImportContext) -> str:
    date = find_date(member.name, context.options) or find_date(member.path, context.options)
    if date is None:
        raise InvalidSource(f"{member.label}: its name holds no date; pass --date YYYY-MM-DD", member.label)
    return date


def midnight_ns(date: str) -> int:
    """Return when a day begins in New York."""
    try:
        zone = ZoneInfo(TIME_ZONE)
    except ZoneInfoNotFoundError:
        raise Unsupported(
            f"this system does not know the time zone {TIME_ZONE}; run: pip install 'everlog[market]'"
        ) from None
    try:
        day = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=zone)
    except ValueError:
        raise InvalidSource(f"{date} is not a day of the calendar; pass --date YYYY-MM-DD") from None
    since_epoch = day.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000_000
