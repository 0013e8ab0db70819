"""Databento DBN files: MBO to order-by-order events, MBP and BBO to L2 snapshots and trades, trades.

Owns the meaning of the records. How files are built is known to `everlog.market.venues.dbn_records`, which
market a record belongs to `everlog.market.venues.dbn_instruments`, and records that are no order book
`everlog.market.venues.dbn_others`. Records are converted in bulk; prices keep the format's own scale of 9
decimals.

Adds, cancels, modifies and clears change the book. A trade (T) or a fill (F) does not: the change
it causes follows as a cancel or modify of its own. So a trade is an L3 trade that names no order,
and a fill is a heartbeat that carries the order it filled. `exec_type` is the action's letter, and
the record's flags (F_LAST and the others) are the highest byte of the event's flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidSource, Unsupported
from everlog.market.protocol import (
    TRADE,
    TRADE_SIDE_UNKNOWN,
    BookFlags,
    L3EventType,
    L3Flags,
    MessageFlags,
    Side,
    TypeId,
    new_l3_records,
)
from everlog.market.venues.archives import Member
from everlog.market.venues.dbn_instruments import Belonging, Instruments
from everlog.market.venues.dbn_order import F_SNAPSHOT, GOES_BACK, IS_TWICE, RecordOrder
from everlog.market.venues.dbn_others import OTHER_SCHEMAS, other_events
from everlog.market.venues.dbn_records import Mapping, RecordBlock, RecordStream, read_metadata
from everlog.market.venues.interface import EventBlock, ImportContext
from everlog.market.venues.l2_events import Groups, Levels, pack_snapshots

PRICE_SCALE: Final = 9
UNDEFINED_PRICE: Final = np.iinfo(np.int64).max
UNDEFINED_TIME: Final = np.uint64(2**64 - 1)
FLAGS_SHIFT: Final = 24
"""Where the record's flags begin in the event's flags."""
F_MAYBE_BAD_BOOK: Final = 4
F_LAST: Final = 128
NAMED_MAX: Final = 10

_ACTIONS: Final = {
    b"A": L3EventType.ORDER_ADD,
    b"C": L3EventType.ORDER_CANCEL,
    b"M": L3EventType.ORDER_MODIFY,
    b"R": L3EventType.RESET,
    b"T": L3EventType.TRADE,
    b"F": L3EventType.HEARTBEAT,
    b"N": L3EventType.HEARTBEAT,
}
_KINDS: Final = np.zeros(256, dtype=np.uint8)
_SIDES: Final = np.zeros(256, dtype=np.uint8)
for _letter, _kind in _ACTIONS.items():
    _KINDS[_letter[0]] = _kind
_SIDES[ord("B")], _SIDES[ord("A")] = Side.BUY, Side.SELL


class _Schema(NamedTuple):
    """What records of a schema are: the package's class, the record types, the levels a side."""

    layout: str
    record_types: tuple[int, ...]
    depth: int
    stream: str


_SCHEMAS: Final = {
    "mbo": _Schema("MBOMsg", (0xA0,), 0, "book"),
    "mbp-1": _Schema("MBP1Msg", (0x01,), 1, "l2"),
    "mbp-10": _Schema("MBP10Msg", (0x0A,), 10, "l2"),
    "tbbo": _Schema("MBP1Msg", (0x01, 0xC5), 1, "l2"),
    "bbo-1s": _Schema("BBOMsg", (0xC3,), 1, "l2"),
    "bbo-1m": _Schema("BBOMsg", (0xC4,), 1, "l2"),
    "trades": _Schema("TradeMsg", (0x00,), 0, "trades"),
}


class Dbn:
    """Importer of DBN files."""

    name = "dbn"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield the records of the file as events."""
        package = _package()
        for member in members:
            version = member.peek(4)[-1:]
            metadata = read_metadata(package, member)
            other = OTHER_SCHEMAS.get(str(metadata.schema))
            if other is not None:
                yield from other_events(package, member, metadata, other, version, context)
                continue
            schema = _SCHEMAS.get(str(metadata.schema))
            if schema is None:
                held = "records of several schemas" if metadata.schema is None else str(metadata.schema)
                known = ", ".join((*_SCHEMAS, *OTHER_SCHEMAS))
                raise InvalidSource(f"{member.label} holds {held}; imported are {known}", member.label)
            yield from _File(package, member, metadata, schema, context).events()


def _package() -> Any:
    try:
        import databento_dbn
    except ImportError:
        raise Unsupported(
            "importing DBN needs the package databento-dbn; run: pip install 'everlog[market]'"
        ) from None
    return databento_dbn


class _File:
    """One file: its records to events, and what there is to say of them at the end."""

    def __init__(
        self, package: Any, member: Member, metadata: Any, schema: _Schema, context: ImportContext
    ) -> None:
        self._context = context
        self._label = member.label
        self._schema = schema
        self._instruments = Instruments(metadata, member.label, context)
        layout = getattr(package, schema.layout)
        self._stream = RecordStream(
            package, member, layout, schema.record_types, ts_out=bool(metadata.ts_out)
        )
        self._rows = self._left_out = 0
        self._maybe_bad = 0
        self._in_snapshot: dict[int, bool] = {}
        self._order = RecordOrder()

    def events(self) -> Iterator[EventBlock]:
        """Yield the events, and leave the notes."""
        instruments, tally = self._instruments, self._context.tally
        tally.name(
            venue=instruments.venue,
            symbol=instruments.symbol,
            date=instruments.date,
            stream=self._schema.stream,
        )
        for block in self._stream.blocks():
            if isinstance(block, Mapping):
                instruments.rename(*block)
                continue
            yield self._converted(block)
        if self._left_out and not self._rows:
            raise InvalidSource(f"{self._label} holds no record of {instruments.wanted!r}", self._label)
        tally.symbols |= {(instruments.venue, symbol) for symbol in instruments.met}
        tally.notes += [f"{self._label}: {note}" for note in self._notes()]

    def _converted(self, block: RecordBlock) -> EventBlock:
        block = _timed(block)
        belonging = self._instruments.of(block.records)
        if self._instruments.wanted is not None:
            chosen = belonging.symbols == self._instruments.wanted
            self._left_out += int(len(chosen) - chosen.sum())
            block, belonging = block.take(chosen), belonging.take(chosen)
        sound = self._sound(block, belonging)
        if not sound.all():
            block, belonging = block.take(sound), belonging.take(sound)
        self._rows += len(block.records)
        self._context.tally.rows += len(block.records)
        self._maybe_bad += int(((block.records["flags"] & F_MAYBE_BAD_BOOK) != 0).sum())
        if self._schema.stream == "book":
            events = _order_events(block.records, belonging, self._instruments.venue_id)
            starts = self._snapshot_starts(block.records, belonging)
            events.payloads["header"]["flags"] |= starts * np.uint16(BookFlags.RESETS)
            return events
        if self._schema.stream == "trades":
            return _trades(block.records, belonging)
        scale = self._context.options.price_scale
        return _level_events(
            block.records,
            belonging,
            self._schema.depth,
            self._instruments.venue_id,
            PRICE_SCALE if scale is None else scale,
        )

    def _snapshot_starts(self, records: NDArray[np.void], belonging: Belonging) -> NDArray[np.bool_]:
        """Return which records begin a run of snapshot records of their market: no older order is left."""
        parts = (records["flags"] & F_SNAPSHOT) != 0
        starts = np.zeros(len(records), dtype=np.bool_)
        if not parts.any() and not any(self._in_snapshot.values()):
            return starts
        for market in np.unique(belonging.market_ids).tolist():
            places = np.flatnonzero(belonging.market_ids == market)
            own = parts[places]
            before = np.concatenate(([self._in_snapshot.get(market, False)], own[:-1]))
            starts[places] = own & ~before
            self._in_snapshot[market] = bool(own[-1])
        return starts

    # -- what cannot be held -------------------------------------------------------------

    def _sound(self, block: RecordBlock, belonging: Belonging) -> NDArray[np.bool_]:
        """Reject records that the protocol cannot hold; return a mask of the others."""
        records = block.records
        letters = _letters(records)
        reasons: list[tuple[str, NDArray[np.bool_]]] = [
            ("unknown action", _KINDS[letters] == 0),
            ("its market id is another symbol's; import one of them with --symbol", belonging.shared),
        ]
        is_trade = letters == ord("T")
        if self._schema.stream == "book":
            changes_book = np.isin(letters, list(b"ACMR"))
            no_order = (letters == ord("A")) & (records["order_id"] == 0)
            reasons.append(("an add without an order: a quote of the best price, as in mbp-1", no_order))
        else:
            changes_book = np.full(len(records), self._schema.stream == "l2")
            reasons.append(("a trade without a price", is_trade & (records["price"] == UNDEFINED_PRICE)))
        reasons.append(("another publisher's book of the same instrument", belonging.foreign & changes_book))
        unordered = self._order.out_of_order(block)
        if self._context.options.allow_unordered:
            self._context.tally.unordered += int((unordered[0] | unordered[1]).sum())
        else:
            reasons += zip((GOES_BACK, IS_TWICE), unordered, strict=True)
        bad: NDArray[np.bool_] = np.logical_or.reduce([wrong for _, wrong in reasons])
        for row in np.flatnonzero(bad).tolist():
            reason = next(text for text, wrong in reasons if wrong[row])
            self._reject(block, row, reason, belonging.symbols[row])
        return ~bad

    def _reject(self, block: RecordBlock, row: int, reason: str, symbol: str) -> None:
        record = block.records[row]
        if reason == "unknown action":
            reason = f"unknown action {bytes(record['action'])!r}"
        self._context.rejects.reject(self._label, int(block.numbers[row]), reason, f"{symbol} {record}")

    def _notes(self) -> Iterator[str]:
        others = self._stream.others
        if others:
            kinds = ", ".join(f"{count} {name}" for name, count in sorted(others.items()))
            yield f"{others.total()} records of other kinds were not imported: {kinds}"
        if self._left_out:
            yield f"{self._left_out} records of other symbols than {self._instruments.wanted} were left out"
        if unnamed := sorted(self._instruments.unnamed):
            yield f"no symbol is known of {_some(unnamed)}; the number is used instead"
        if self._maybe_bad:
            yield f"{self._maybe_bad} records are marked as of a book that may be wrong (F_MAYBE_BAD_BOOK)"


def _some(names: Any) -> str:
    texts = [str(name) for name in names]
    more = f" and {len(texts) - NAMED_MAX} more" if len(texts) > NAMED_MAX else ""
    return ", ".join(texts[:NAMED_MAX]) + more


def _timed(block: RecordBlock) -> RecordBlock:
    """Use the exchange's time for records without a time of arrival, and the other way round."""
    records = block.records
    for name, other in (("ts_recv", "ts_event"), ("ts_event", "ts_recv")):
        missing = records[name] == UNDEFINED_TIME
        if missing.any():
            records = records.copy()
            records[name][missing] = records[other][missing]
    return RecordBlock(block.numbers, records)


def _has_actions(records: NDArray[np.void]) -> bool:
    """Whether records are changes of the book; those that are not are samples of it."""
    return "action" in (records.dtype.names or ())


def _letters(records: NDArray[np.void]) -> NDArray[np.uint8]:
    if not _has_actions(records):
        return np.full(len(records), ord("M"), dtype=np.uint8)
    letters: NDArray[np.uint8] = np.ascontiguousarray(records["action"]).view(np.uint8)
    return letters


# -- events ------------------------------------------------------------------------------


def _order_events(records: NDArray[np.void], belonging: Belonging, venue: int) -> EventBlock:
    out = new_l3_records(len(records), venue_id=venue)
    header, event = out["header"], out["event"]
    header["market_id"] = belonging.market_ids
    header["stream_id"] = records["channel_id"]
    header["ingest_ts_ns"] = stamps = records["ts_recv"]
    header["exchange_ts_ns"] = records["ts_event"]
    header["native_seq"] = records["sequence"]
    header["flags"] = BookFlags.MARKS_EVENT_ENDS
    letters = _letters(records)
    undefined = records["price"] == UNDEFINED_PRICE
    event["event_type"] = _KINDS[letters]
    event["exec_type"] = letters
    event["side"] = _SIDES[np.ascontiguousarray(records["side"]).view(np.uint8)]
    event["price_scale"] = PRICE_SCALE
    is_market = undefined & (letters == ord("A"))
    event["flags"] = (
        (records["flags"].astype(np.uint32) << np.uint32(FLAGS_SHIFT))
        | undefined * np.uint32(L3Flags.NO_PRICE)
        | is_market * np.uint32(L3Flags.PRICE_IS_MARKET)
    )
    event["order_id"] = np.where(letters == ord("T"), 0, records["order_id"])
    event["price"] = np.where(undefined, 0, records["price"])
    event["qty"] = records["size"]
    return EventBlock(TypeId.BOOK_EVENT, out, np.ascontiguousarray(stamps), flags=_message_flags(records))


def _message_flags(records: NDArray[np.void]) -> NDArray[np.uint16]:
    """Return what the records' own flags say of events and snapshots."""
    given = records["flags"]
    flags: NDArray[np.uint16] = ((given & F_LAST) != 0) * np.uint16(MessageFlags.LAST_OF_EVENT) | (
        (given & F_SNAPSHOT) != 0
    ) * np.uint16(MessageFlags.SNAPSHOT_PART)
    return flags


def _trades(records: NDArray[np.void], belonging: Belonging) -> EventBlock:
    trades = np.zeros(len(records), dtype=TRADE)
    side = _SIDES[np.ascontiguousarray(records["side"]).view(np.uint8)]
    trades["timestamp_ns"] = records["ts_event"]
    trades["price"] = records["price"] / 10.0**PRICE_SCALE
    trades["qty"] = records["size"]
    trades["is_buyer_maker"] = side == Side.SELL  # the side is the taker's
    trades["symbol_hash"] = belonging.symbol_hashes
    flags = (side == Side.UNKNOWN).astype(np.uint16) * np.uint16(TRADE_SIDE_UNKNOWN)
    flags |= _message_flags(records)
    return EventBlock(TypeId.TRADE, trades, np.ascontiguousarray(records["ts_recv"]), flags=flags)


def _level_events(
    records: NDArray[np.void], belonging: Belonging, depth: int, venue: int, price_scale: int
) -> EventBlock:
    """Return the book after each record as a snapshot, and before it a trade for each trade record."""
    books = _snapshots(records, belonging, depth, venue, price_scale)
    is_trade = _letters(records) == ord("T")
    if not is_trade.any():
        return books
    trades = _trades(records[is_trade], belonging.take(is_trade))
    assert books.ends is not None and books.flags is not None and trades.flags is not None
    # The bytes of the trades lie behind those of the books; the order is made by where each event begins.
    book_bytes, trade_bytes = books.payloads.view(np.uint8), trades.payloads.view(np.uint8)
    book_at = np.arange(len(records)) + np.cumsum(is_trade)
    trade_at = book_at[is_trade] - 1
    count = len(records) + len(trades)
    kinds = np.full(count, TypeId.BOOK_EVENT, dtype=np.uint16)
    starts, ends = np.empty(count, dtype=np.uint64), np.empty(count, dtype=np.uint64)
    stamps, flags = np.empty(count, dtype=np.uint64), np.zeros(count, dtype=np.uint16)
    kinds[trade_at] = TypeId.TRADE
    starts[book_at], ends[book_at] = np.concatenate(([0], books.ends[:-1])), books.ends
    trade_starts = np.arange(len(trades), dtype=np.uint64) * np.uint64(TRADE.itemsize) + len(book_bytes)
    starts[trade_at], ends[trade_at] = trade_starts, trade_starts + np.uint64(TRADE.itemsize)
    stamps[book_at], stamps[trade_at] = books.timestamps_ns, trades.timestamps_ns
    # The book after the trade ends the event, if the record does.
    flags[trade_at] = trades.flags & ~np.uint16(MessageFlags.LAST_OF_EVENT)
    flags[book_at] = books.flags
    return EventBlock(kinds, np.concatenate([book_bytes, trade_bytes]), stamps, ends, flags, starts)


def _snapshots(
    records: NDArray[np.void], belonging: Belonging, depth: int, venue: int, price_scale: int
) -> EventBlock:
    prices, sizes = (
        np.stack(
            [records[f"{side}_{what}_{place:02d}"] for side in ("bid", "ask") for place in range(depth)],
            axis=1,
        )
        for what in ("px", "sz")
    )
    used = (prices != UNDEFINED_PRICE) & (sizes > 0)
    counts = used.sum(axis=1)
    sides = np.broadcast_to(np.repeat(np.array([Side.BUY, Side.SELL], dtype=np.uint8), depth), used.shape)
    total = int(counts.sum())
    levels = Levels(
        prices[used].astype(np.int64),
        np.full(total, PRICE_SCALE, dtype=np.uint8),
        sizes[used].astype(np.uint64),
        np.zeros(total, dtype=np.uint8),
        sides[used],
    )
    groups = Groups(
        np.cumsum(counts) - counts,
        np.ascontiguousarray(records["ts_recv"]),
        np.ascontiguousarray(records["ts_event"]),
        np.zeros(len(records), dtype=np.uint64),
        records["sequence"].astype(np.uint64),
        venue,
        belonging.market_ids,
        marks_event_ends=True,
    )
    books = pack_snapshots(levels, groups, price_scale, 0)
    books.scales = None
    books.flags = _message_flags(records)
    if not _has_actions(records):
        books.flags |= np.uint16(MessageFlags.LAST_OF_EVENT)
    return books
