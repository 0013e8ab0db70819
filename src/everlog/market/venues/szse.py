"""SZSE Quant360 files: orders and ticks of a day, merged per channel, to order-by-order events.

Owns the meaning of the columns, the trading phases and the merge. Order and tick files of a symbol
share the sequence numbers of their channel, so the merge restores what the exchange sent. Events of
several channels are merged by the time they were sent. Files that are merged already (one row kind
per `Event`) are read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidSource
from everlog.market.protocol import L3EventType, L3Flags, Side, new_l3_records
from everlog.market.venues.archives import Member
from everlog.market.venues.csv_blocks import (
    CHOICE,
    DECIMAL,
    IDENTIFIER,
    PRICE,
    UNSIGNED,
    Column,
    CsvReader,
    RowBlock,
)
from everlog.market.venues.interface import EventBlock, ImportContext
from everlog.market.venues.merging import KeyedBlock, merge
from everlog.market.venues.registry import venue_id
from everlog.market.venues.szse_events import mark_events

VENUE: Final = "szse"
PRICE_SCALE: Final = 3
MARKET_ORDER: Final = 1
NS_PER_MS: Final = 1_000_000
MS_PER_DAY: Final = 86_400_000
UTC_OFFSET_MS: Final = 8 * 3_600_000
READ_AHEAD_BYTES: Final = 24 << 20
"""Text held in memory for all open files together."""

# Columns that are computed.
EXCHANGE_NS, INGEST_NS, MINUTE = "exchange ns", "ingest ns", "minute"

# The first and the last minute of the day in which each flag is set, the last one included.
OPENING_CALL: Final = (9 * 60 + 15, 9 * 60 + 25)
OPENING_NO_CANCEL: Final = (9 * 60 + 20, 9 * 60 + 25)
CLOSING_CALL: Final = (14 * 60 + 57, 15 * 60)
MORNING: Final = (9 * 60 + 30, 11 * 60 + 29)
AFTERNOON: Final = (13 * 60, 14 * 60 + 56)

_CODES: Final = tuple(
    (letter, int(letter) if letter.isdigit() else ord(letter))
    for letter in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_SIDES: Final = (("1", Side.BUY), ("2", Side.SELL))
_TRADE, _CANCEL = ord("F"), 4
_EXECUTIONS: Final = (("F", _TRADE), ("4", _CANCEL))
_COMMON: Final = (
    Column("ApplSeqNum", UNSIGNED),
    Column("ChannelNo", UNSIGNED),
    Column("TransactTime", UNSIGNED),
)
_ORDER_COLUMNS: Final = (
    *_COMMON,
    Column("Side", CHOICE, choices=_SIDES),
    Column("Price", PRICE),
    Column("OrderQty", DECIMAL),
    Column("OrdType", CHOICE, choices=_CODES),
)
_TICK_COLUMNS: Final = (
    *_COMMON,
    Column("BidApplSeqNum", UNSIGNED),
    Column("OfferApplSeqNum", UNSIGNED),
    Column("Price", PRICE),
    Column("Qty", DECIMAL),
    Column("Amt", DECIMAL),
    Column("ExecType", CHOICE, choices=_EXECUTIONS),
)
_MERGED_COLUMNS: Final = (
    *_COMMON,
    Column("Event", CHOICE, choices=(("ORDER", 1), ("TRADE", 2), ("CANCEL", 3))),
    Column("Symbol", UNSIGNED),
    Column("OrderID", IDENTIFIER),
    Column("BidOrderID", IDENTIFIER),
    Column("OfferOrderID", IDENTIFIER),
    Column("Side", CHOICE, choices=(*_SIDES, ("", 0), ("0", 0))),
    Column("Price", PRICE),
    Column("Qty", DECIMAL),
    Column("Amt", DECIMAL),
    Column("OrdType", CHOICE, choices=(*_CODES, ("", 0))),
    Column("ExecType", CHOICE, choices=(*_CODES, ("", 0))),
)
_SCALES: Final = (("Price", PRICE_SCALE), ("OrderQty", 0), ("Qty", 0), ("Amt", PRICE_SCALE))
_LARGEST: Final = (("ChannelNo", 2**32 - 1), ("Symbol", 999_999))
_SYMBOL: Final = re.compile(r"(?<!\d)(\d{6})(?!\d)")


@dataclass(slots=True)
class LocalTimes:
    """Times of the exchange: nanoseconds since 1970 UTC, minute of the local day, and which are none."""

    utc_ns: NDArray[np.uint64]
    minutes: NDArray[np.int64]
    valid: NDArray[np.bool_]


def local_times(stamps: NDArray[np.uint64]) -> LocalTimes:
    """Convert `YYYYMMDDhhmmssSSS` of UTC+8."""
    days = stamps // np.uint64(10**9)
    # Of 32 bits, and with few divisions: this is done for every row.
    clock = (stamps - days * np.uint64(10**9)).astype(np.uint32)
    minutes = clock // 100_000
    clock_ms = clock - minutes * 100_000
    hours = minutes // 100
    minutes -= hours * 100
    midnights: NDArray[np.int64] | np.int64
    if len(days) and (days == days[0]).all():  # as it is in every file of a day
        midnights = np.int64(_midnight_ms(int(days[0])))
    else:
        distinct, inverse = np.unique(days, return_inverse=True)
        midnights = np.array([_midnight_ms(day) for day in distinct.tolist()], dtype=np.int64)[inverse]
    valid = (hours < 24) & (minutes < 60) & (clock_ms < 60_000) & (midnights >= 0)
    minutes += hours * 60
    total_ms = (minutes * 60_000 + clock_ms).astype(np.int64) + (midnights - UTC_OFFSET_MS)
    utc_ns = np.where(valid, total_ms, 0).astype(np.uint64) * np.uint64(NS_PER_MS)
    return LocalTimes(utc_ns, minutes.astype(np.int64), valid)


def _midnight_ms(day: int) -> int:
    """Return local midnight of YYYYMMDD in milliseconds, -1 if there is no such day."""
    try:
        elapsed = date(day // 10_000, day // 100 % 100, day % 100) - date(1970, 1, 1)
    except (ValueError, OverflowError):
        return -1
    return elapsed.days * MS_PER_DAY if elapsed.days > 0 else -1


def in_continuous_trading(exchange_ts_ns: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which times lie in continuous trading, when snapshots and orders must give the same book."""
    minutes = (exchange_ts_ns // np.uint64(60_000 * NS_PER_MS) + np.uint64(UTC_OFFSET_MS // 60_000)) % 1440
    local = minutes.astype(np.int64)
    return _within(local, MORNING) | _within(local, AFTERNOON)


class Szse:
    """Importer of order and tick files; all files of a command are one import."""

    name = "szse"
    merges_files = True

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield the events of all channels, each channel in the order of its sequence numbers."""
        tally = context.tally
        tally.venue, tally.stream = VENUE, "book"
        block_bytes = max(1 << 13, min(1 << 20, READ_AHEAD_BYTES // max(1, len(members))))
        files = [
            file
            for member in members
            if member.peek(1) and (file := _File(member, context, block_bytes)).symbol_wanted and file.start()
        ]
        if not files and context.options.symbol is None:
            tally.date = context.options.date or ""
            return
        if not files:
            raise InvalidSource(f"the files hold no row of {context.options.symbol!r}")
        _check_one_day(files)
        tally.date = context.options.date or files[0].date
        channels: dict[int, list[_File]] = {}
        for file in files:
            channels.setdefault(file.channel, []).append(file)
        streams = [_by_time(_channel(number, channels[number], context)) for number in sorted(channels)]
        yield from mark_events((block.records for block in merge(streams)), tally.date, context)
        symbols = {symbol for file in files for symbol in file.symbols}
        tally.symbol = symbols.pop() if len(symbols) == 1 else "MULTI"


def _check_one_day(files: Sequence[_File]) -> None:
    """Refuse files of two days: the numbers of a channel begin anew each day and cannot be merged."""
    other = next((file for file in files if file.date != files[0].date), None)
    if other is not None:
        raise InvalidSource(
            f"{files[0].label} is of {files[0].date} and {other.label} of {other.date}; import each day by "
            "itself",
            other.label,
        )


def _channel(number: int, files: Sequence[_File], context: ImportContext) -> Iterator[KeyedBlock]:
    """Yield a channel's events; in a full channel the sequence must rise by one each time, else at all."""
    last: int | None = None
    for block in merge(file.blocks() for file in files):
        keys = block.keys if last is None else np.concatenate(([np.uint64(last)], block.keys))
        steps = np.diff(keys)
        if context.options.full_channel:
            wrong = np.flatnonzero(steps != 1)
            reason = "files are missing, or they hold only some symbols (then leave out --full-channel)"
        else:
            wrong = np.flatnonzero(steps == 0)
            if context.options.allow_unordered:
                context.tally.unordered += len(wrong)
                wrong = wrong[:0]
            reason = "two files hold the same message; name each only once"
        if len(wrong):
            before, after = int(keys[wrong[0]]), int(keys[wrong[0] + 1])
            raise InvalidSource(f"channel {number}: sequence {before} is followed by {after}; {reason}")
        last = int(block.keys[-1])
        yield block


def _by_time(blocks: Iterator[KeyedBlock]) -> Iterator[KeyedBlock]:
    """Give events the latest sending time so far as their key: a channel is never reordered."""
    latest = np.uint64(0)
    for block in blocks:
        keys = np.maximum(np.maximum.accumulate(block.records["header"]["ingest_ts_ns"]), latest)
        latest = keys[-1]
        yield KeyedBlock(keys, block.records)


class _File:
    """One CSV file: of orders, of ticks, or merged."""

    def __init__(self, member: Member, context: ImportContext, block_bytes: int) -> None:
        self._context = context
        self._reader = CsvReader(member, context.rejects, block_bytes=block_bytes)
        names = self._reader.names
        self.kind = "merged" if "Event" in names else "tick" if "ExecType" in names else "order"
        self._columns = {"order": _ORDER_COLUMNS, "tick": _TICK_COLUMNS, "merged": _MERGED_COLUMNS}[self.kind]
        if "SendingTime" in names:
            self._columns = (*self._columns, Column("SendingTime", IDENTIFIER))
        wanted = context.options.symbol
        found = _SYMBOL.search(member.name)
        self._symbol = found.group(1) if found and self.kind != "merged" else wanted or ""
        self.symbol_wanted = wanted is None or self.kind == "merged" or self._symbol == wanted
        if self.kind != "merged" and not re.fullmatch(r"\d{6}", self._symbol):
            raise InvalidSource(
                f"{member.label}: its name holds no code of six digits; pass --symbol", member.label
            )
        self.label = member.label
        self.channel = -1
        self._day = 0
        self._last_seq = 0
        self._rows = self._sound_rows()
        self._first: RowBlock | None = None

    @property
    def symbols(self) -> set[str]:
        """The symbols seen so far."""
        return self._context.tally.channel_symbols.get(self.channel, set())

    def start(self) -> bool:
        """Read the first rows, which name the channel; False if there are none."""
        self._first = next(self._rows, None)
        return self._first is not None

    @property
    def date(self) -> str:
        """The local day of the file."""
        return f"{self._day // 10_000}-{self._day // 100 % 100:02d}-{self._day % 100:02d}"

    def blocks(self) -> Iterator[KeyedBlock]:
        """Yield the file's events, keyed by sequence number."""
        if self._first is not None:
            first, self._first = self._first, None  # thousands of files: none keeps what it has given away
            yield self._events(first)
            del first
        for block in self._rows:
            yield self._events(block)

    def _sound_rows(self) -> Iterator[RowBlock]:
        for rows in self._reader.blocks(self._columns):
            block = self._without_bad(rows)
            if len(block):
                self._context.tally.rows += len(block)
                self._last_seq = int(block.values["ApplSeqNum"][-1])
                yield block

    def _without_bad(self, block: RowBlock) -> RowBlock:
        rejects = self._context.rejects
        for name, largest in _LARGEST:
            if name in block.values:
                block = block.refuse(block.values[name] > largest, f"{name} is above {largest}", rejects)
        if self.channel < 0 and len(block):
            self.channel = int(block.values["ChannelNo"][0])
        block = block.refuse(
            block.values["ChannelNo"] != self.channel,
            f"another channel in a file of channel {self.channel}",
            rejects,
        )
        # A price of -1 is how some files write that there is none.
        prices = block.values["Price"].view(np.int64)
        is_none = (prices == -1) & (block.extras["Price"] == 0)
        prices[is_none] = 0
        block = block.refuse(prices < 0, "Price is negative", rejects)
        for name, scale in _SCALES:
            if name in block.values:
                block = block.at_scale(name, scale, rejects)
        block = block.refuse(self._lacks_quantity(block), "it is of no shares", rejects)
        block = self._with_times(block)
        days = block.values["TransactTime"] // np.uint64(10**9)
        if not self._day and len(days):
            self._day = int(days[0])
        block = block.refuse(days != self._day, f"another day in a file of {self.date}", rejects)
        seqs = block.values["ApplSeqNum"]
        highest = np.maximum.accumulate(np.concatenate(([np.uint64(self._last_seq)], seqs)))[:-1]
        block = block.refuse(seqs < highest, "ApplSeqNum goes back", rejects)
        block = block.refuse(block.values["ApplSeqNum"] == 0, "ApplSeqNum is 0", rejects)
        block = self._without_repeated(block)
        cancels = self._cancels(block)
        if cancels is not None:
            bid, ask = self._order_ids(block)
            wrong = cancels & ((bid == 0) == (ask == 0))
            block = block.refuse(wrong, "a cancel must name one order, a bid or an offer", rejects)
        return block

    def _lacks_quantity(self, block: RowBlock) -> NDArray[np.bool_]:
        """Return which rows have a quantity of 0; that of a cancel may be: all of the order."""
        quantities = block.values["OrderQty" if self.kind == "order" else "Qty"]
        cancels = self._cancels(block)
        lacks: NDArray[np.bool_] = quantities == 0
        return lacks if cancels is None else lacks & ~cancels

    def _without_repeated(self, block: RowBlock) -> RowBlock:
        """Refuse rows whose number was there already, unless they are allowed: the channel counts them."""
        if self._context.options.allow_unordered:
            return block
        seqs = block.values["ApplSeqNum"]
        repeated = seqs == np.concatenate(([np.uint64(self._last_seq)], seqs[:-1]))
        repeated[:1] &= self._last_seq > 0
        return block.refuse(
            repeated, "ApplSeqNum is there twice; --allow-unordered keeps it", self._context.rejects
        )

    def _with_times(self, block: RowBlock) -> RowBlock:
        """The block with the times of its rows beside the texts, and without rows that have none."""
        rejects = self._context.rejects
        transact = block.values["TransactTime"]
        times = local_times(transact)
        block.values[EXCHANGE_NS] = block.values[INGEST_NS] = times.utc_ns
        block.values[MINUTE] = times.minutes.view(np.uint64)
        valid = times.valid
        if "SendingTime" in block.values:
            sent = block.values["SendingTime"]
            sent = np.where(sent == 0, transact, sent)
            if not np.array_equal(sent, transact):
                times = local_times(sent)
                block.values[INGEST_NS] = times.utc_ns
                bad = ~times.valid
                block, valid = block.refuse(bad, "SendingTime is not a time", rejects), valid[~bad]
        return block.refuse(~valid, "TransactTime is not a time", rejects)

    def _cancels(self, block: RowBlock) -> NDArray[np.bool_] | None:
        if self.kind == "order":
            return None
        name, code = ("Event", 3) if self.kind == "merged" else ("ExecType", _CANCEL)
        cancels: NDArray[np.bool_] = block.extras[name] == code
        return cancels

    def _order_ids(self, block: RowBlock) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        names = (
            ("BidOrderID", "OfferOrderID") if self.kind == "merged" else ("BidApplSeqNum", "OfferApplSeqNum")
        )
        return block.values[names[0]], block.values[names[1]]

    def _events(self, block: RowBlock) -> KeyedBlock:
        records = new_l3_records(len(block), venue_id=venue_id(VENUE))
        header, event = records["header"], records["event"]
        header["exchange_ts_ns"] = block.values[EXCHANGE_NS]
        header["ingest_ts_ns"] = block.values[INGEST_NS]
        header["seq"] = header["native_seq"] = block.values["ApplSeqNum"]
        header["stream_id"] = self.channel
        header["market_id"] = block.values["Symbol"] if self.kind == "merged" else int(self._symbol)
        event["price_scale"] = PRICE_SCALE
        event["price"] = block.values["Price"]
        event["event_type"] = L3EventType.ORDER_ADD
        if self.kind != "tick":
            event["order_id"] = block.values["OrderID" if self.kind == "merged" else "ApplSeqNum"]
            event["side"], event["ord_type"] = block.extras["Side"], block.extras["OrdType"]
        if self.kind == "order":
            event["qty"] = block.values["OrderQty"]
        else:
            event["qty"], event["amt"] = block.values["Qty"], block.values["Amt"]
            event["exec_type"] = block.extras["ExecType"]
            self._fill_executions(block, event)
        event["flags"] = _flags(event, block.values[MINUTE].view(np.int64))
        self._note_symbols(header["market_id"] if self.kind == "merged" else header["market_id"][:1])
        return KeyedBlock(block.values["ApplSeqNum"], records)

    def _fill_executions(self, block: RowBlock, event: NDArray[np.void]) -> None:
        """Set what ticks say of trades and cancels; orders of a merged file are left alone."""
        bid, ask = self._order_ids(block)
        cancelled = self._cancels(block)
        assert cancelled is not None
        traded = block.extras["Event"] == 2 if self.kind == "merged" else ~cancelled
        event["bid_order_id"], event["ask_order_id"] = bid, ask
        event["event_type"][traded] = L3EventType.TRADE
        event["event_type"][cancelled] = L3EventType.ORDER_CANCEL
        event["order_id"][cancelled] = np.where(bid == 0, ask, bid)[cancelled]
        event["side"][cancelled] = np.where(bid == 0, Side.SELL, Side.BUY)[cancelled]
        event["order_id"][traded] = 0

    def _note_symbols(self, markets: NDArray[np.uint32]) -> None:
        """Remember which symbols a channel carries; no symbol may be on two."""
        known = self._context.tally.channel_symbols
        mine = known.setdefault(self.channel, set())
        for market in np.unique(markets).tolist():
            symbol = f"{market:06d}"
            others = [channel for channel, symbols in known.items() if symbol in symbols]
            if any(channel != self.channel for channel in others):
                raise InvalidSource(
                    f"{self.label}: symbol {symbol} is on channel {self.channel} and on {others[0]}; "
                    "a symbol has one channel a day",
                    self.label,
                )
            mine.add(symbol)


def _flags(event: NDArray[np.void], minutes: NDArray[np.int64]) -> NDArray[np.uint32]:
    kinds = event["event_type"]
    market = (event["price"] == 0) | (event["ord_type"] == MARKET_ORDER)
    closing = _within(minutes, CLOSING_CALL)
    restricted = (kinds == L3EventType.ORDER_CANCEL) & (_within(minutes, OPENING_NO_CANCEL) | closing)
    flags: NDArray[np.uint32] = np.zeros(len(event), dtype=np.uint32)
    for flag, where in (
        (L3Flags.PRICE_IS_MARKET, market),
        (L3Flags.AUCTION_OPEN, _within(minutes, OPENING_CALL)),
        (L3Flags.AUCTION_CLOSE, closing),
        (L3Flags.CANCEL_RESTRICTED_WINDOW, restricted),
        (L3Flags.RAW_HAS_BID_ID, event["bid_order_id"] != 0),
        (L3Flags.RAW_HAS_ASK_ID, event["ask_order_id"] != 0),
    ):
        flags |= where * np.uint32(flag)
    return flags


def _within(minutes: NDArray[np.int64], window: tuple[int, int]) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = (minutes >= window[0]) & (minutes <= window[1])
    return result
