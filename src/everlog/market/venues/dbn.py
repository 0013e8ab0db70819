"""Databento DBN files: MBO to order-by-order events, MBP to L2 snapshots and trades.

Owns the meaning of the records. Metadata and record layouts come from the package `databento-dbn`;
records are converted in bulk. Prices keep the format's own scale of 9 decimals.

Adds, cancels, modifies and clears change the book. A trade (T) or a fill (F) does not: the change
it causes follows as a cancel or modify of its own. So a trade is an L3 trade that names no order,
and a fill is a heartbeat that carries the order it filled. `exec_type` is the action's letter, and
the record's flags (F_LAST and the others) are the highest byte of the event's flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidSource, Unsupported
from everlog.market.protocol import (
    TRADE,
    TRADE_SIDE_UNKNOWN,
    L3EventType,
    L3Flags,
    Side,
    TypeId,
    crypto_market_id,
    symbol_hash,
)
from everlog.market.venues.interface import EventBlock, ImportContext, agree
from everlog.market.venues.l2_events import Groups, Levels, pack_snapshots
from everlog.market.venues.l3_events import l3_records
from everlog.market.venues.opening import Member
from everlog.market.venues.registry import VENUE_IDS, venue_id

PRELUDE_BYTES: Final = 8
METADATA_BYTES_MAX: Final = 256 << 20
LENGTH_UNIT: Final = 4
PRICE_SCALE: Final = 9
UNDEFINED_PRICE: Final = np.iinfo(np.int64).max
FLAGS_SHIFT: Final = 24
"""Where the record's flags begin in the event's flags."""
BLOCK_BYTES: Final = 1 << 20

_VENUES: Final = {"GLBX.MDP3": "cme", "XNAS.ITCH": "nasdaq", "XEUR.EOBI": "eurex", "IFEU.IMPACT": "ice"}
_ACTIONS: Final = {
    b"A": L3EventType.ORDER_ADD,
    b"C": L3EventType.ORDER_CANCEL,
    b"M": L3EventType.ORDER_MODIFY,
    b"R": L3EventType.RESET,
    b"T": L3EventType.TRADE,
    b"F": L3EventType.HEARTBEAT,
    b"N": L3EventType.HEARTBEAT,
}
_MBP_DEPTHS: Final = {"mbp-1": 1, "mbp-10": 10, "tbbo": 1}


class Dbn:
    """Importer of DBN files with MBO or MBP records."""

    name = "dbn"
    merges_files = False

    def events(self, members: Sequence[Member], context: ImportContext) -> Iterator[EventBlock]:
        """Yield the records of the file as events."""
        package = _package()
        for member in members:
            metadata = _metadata(package, member)
            schema = str(metadata.schema)
            layout = {"mbo": package.MBOMsg, "mbp-1": package.MBP1Msg, "mbp-10": package.MBP10Msg}.get(
                "mbp-1" if schema == "tbbo" else schema
            )
            if layout is None:
                raise InvalidSource(
                    f"{member.label} holds {schema}; imported are mbo, mbp-1, mbp-10 and tbbo", member.label
                )
            instruments = _Instruments(metadata, member.label, context)
            blocks = _records(member, layout, bool(metadata.ts_out), context)
            if schema == "mbo":
                context.tally.stream = "book"
                for first, records in blocks:
                    yield _order_events(first, records, instruments, context, member.label)
            else:
                context.tally.stream = "l2"
                for first, records in blocks:
                    yield from _level_events(
                        first, records, _MBP_DEPTHS[schema], instruments, context, member.label
                    )


def _package() -> Any:
    try:
        import databento_dbn
    except ImportError:
        raise Unsupported(
            "importing DBN needs the package databento-dbn; run: pip install 'everlog[market]'"
        ) from None
    return databento_dbn


def _read_exactly(member: Member, size: int) -> bytes:
    parts = []
    while size > 0 and (part := member.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _metadata(package: Any, member: Member) -> Any:
    prelude = _read_exactly(member, PRELUDE_BYTES)
    if len(prelude) < PRELUDE_BYTES or not prelude.startswith(b"DBN"):
        raise InvalidSource(f"{member.label} is no DBN file: it begins with {prelude[:4]!r}", member.label)
    length = int.from_bytes(prelude[4:], "little")
    if length > METADATA_BYTES_MAX:
        raise InvalidSource(f"{member.label} claims {length} bytes of metadata; it is damaged", member.label)
    try:
        return package.Metadata.decode(prelude + _read_exactly(member, length))
    except Exception as error:
        # The package raises its own DBNError, which is no class of the public module in all versions.
        raise InvalidSource(f"{member.label} has unreadable metadata: {error}", member.label) from error


class _Instruments:
    """Which symbol an instrument id means on a day, from the file's own symbology."""

    def __init__(self, metadata: Any, label: str, context: ImportContext) -> None:
        self._label = label
        self._wanted = context.options.symbol
        self._known: dict[tuple[int, date | None], str] = {}
        dataset = str(metadata.dataset)
        name = context.options.venue or _VENUES.get(dataset, dataset.lower())
        self.venue_id = venue_id(name) if name in VENUE_IDS else 0
        context.tally.venue = name
        self._intervals: list[tuple[int, date, date, str]] = []
        for raw_symbol, intervals in metadata.mappings.items():
            for interval in intervals:
                if str(interval["symbol"]).isdigit():
                    number = int(interval["symbol"])
                    self._intervals.append((number, interval["start_date"], interval["end_date"], raw_symbol))
        symbols = sorted({symbol for *_, symbol in self._intervals})
        if self._wanted is not None and symbols:
            agree("symbols", ",".join(symbols), None if self._wanted in symbols else self._wanted, label)
        context.tally.symbol = self._wanted or (symbols[0] if len(symbols) == 1 else "MULTI")
        start_ns = int(metadata.start)
        context.tally.date = context.options.date or _day(start_ns).isoformat()

    def symbol(self, number: int, ts_ns: int) -> str:
        """Return the symbol; an instrument without one is called by its number."""
        day = _day(ts_ns)
        if (number, day) not in self._known:
            names = [
                name
                for mapped, start, end, name in self._intervals
                if mapped == number and start <= day < end
            ]
            self._known[number, day] = names[0] if names else str(number)
        return self._known[number, day]

    def hashes(self, records: NDArray[np.void], hash_of: Any) -> NDArray[np.uint64]:
        """Return the hash of each record's symbol, found once per instrument and day."""
        days = records["ts_recv"] // np.uint64(86_400_000_000_000)
        keys = records["instrument_id"].astype(np.uint64) << np.uint64(32) | days
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        values = np.empty(len(distinct), dtype=np.uint64)
        for place, row in enumerate(first.tolist()):
            number, stamp = int(records["instrument_id"][row]), int(records["ts_recv"][row])
            values[place] = hash_of(self.symbol(number, stamp))
        result: NDArray[np.uint64] = values[inverse]
        return result


def _day(ts_ns: int) -> date:
    return datetime.fromtimestamp(ts_ns // 1_000_000_000, UTC).date()


def _records(
    member: Member, layout: Any, ts_out: bool, context: ImportContext
) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Yield (number of the first record, records) of the file's kind; others are noted."""
    fields = np.dtype(layout._dtypes)
    size = fields.itemsize + (8 if ts_out else 0)
    dtype = np.dtype(
        {
            "names": fields.names,
            "formats": [fields.fields[name][0] for name in fields.names],
            "offsets": [fields.fields[name][1] for name in fields.names],
            "itemsize": size,
        }
    )
    rest, number, others = b"", 1, 0
    for data in member.blocks():
        rest += data
        at = 0
        while at < len(rest):
            count = (len(rest) - at) // size
            records: NDArray[np.void] = np.frombuffer(rest, dtype, count, at)
            odd = np.flatnonzero(records["length"] != size // LENGTH_UNIT)
            if len(odd):
                records = records[: int(odd[0])]
            if len(records):
                yield number, records
                at, number = at + len(records) * size, number + len(records)
            if at == len(rest):
                break
            length = rest[at] * LENGTH_UNIT
            if length == 0:
                raise InvalidSource(f"{member.label}: record {number} has no length; the file is damaged")
            if length == size or at + length > len(rest):
                break
            others, at, number = others + 1, at + length, number + 1
        rest = rest[at:]
    if rest:
        raise InvalidSource(
            f"{member.label} ends in the middle of record {number}; fetch it again", member.label
        )
    if others:
        context.tally.notes.append(f"{member.label}: {others} records of other kinds were not imported")


def _sound(
    first: int, records: NDArray[np.void], price: NDArray[np.int64], context: ImportContext, label: str
) -> NDArray[np.bool_]:
    """Reject records that the protocol cannot hold and tell which are left."""
    action = records["action"]
    known = np.isin(action, list(_ACTIONS))
    negative = (price < 0) & (price != UNDEFINED_PRICE)
    for row in np.flatnonzero(~known | negative).tolist():
        reason = "price is negative" if known[row] else f"unknown action {bytes(action[row])!r}"
        context.rejects.reject(label, first + row, reason, str(records[row]))
    result: NDArray[np.bool_] = known & ~negative
    context.tally.rows += int(result.sum())
    return result


_KINDS: Final = np.zeros(256, dtype=np.uint8)
_SIDES: Final = np.zeros(256, dtype=np.uint8)
for _letter, _kind in _ACTIONS.items():
    _KINDS[_letter[0]] = _kind
_SIDES[ord("B")], _SIDES[ord("A")] = Side.BUY, Side.SELL


def _order_events(
    first: int, records: NDArray[np.void], instruments: _Instruments, context: ImportContext, label: str
) -> EventBlock:
    records = records[_sound(first, records, records["price"], context, label)]
    out = l3_records(len(records), venue_id=instruments.venue_id)
    header, event = out["header"], out["event"]
    header["market_id"] = instruments.hashes(records, crypto_market_id)
    header["stream_id"] = records["channel_id"]
    header["ingest_ts_ns"] = stamps = records["ts_recv"]
    header["exchange_ts_ns"] = records["ts_event"]
    header["native_seq"] = records["sequence"]
    letters = np.ascontiguousarray(records["action"]).view(np.uint8)
    undefined = records["price"] == UNDEFINED_PRICE
    event["event_type"] = _KINDS[letters]
    event["exec_type"] = letters
    event["side"] = _SIDES[np.ascontiguousarray(records["side"]).view(np.uint8)]
    event["price_scale"] = PRICE_SCALE
    event["flags"] = (records["flags"].astype(np.uint32) << np.uint32(FLAGS_SHIFT)) | np.where(
        undefined & (letters == ord("A")), np.uint32(L3Flags.PRICE_IS_MARKET), np.uint32(0)
    )
    event["order_id"] = np.where(letters == ord("T"), 0, records["order_id"])
    event["price"] = np.where(undefined, 0, records["price"])
    event["qty"] = records["size"]
    return EventBlock(TypeId.BOOK_EVENT, out, np.ascontiguousarray(stamps))


def _level_events(
    first: int,
    records: NDArray[np.void],
    depth: int,
    instruments: _Instruments,
    context: ImportContext,
    label: str,
) -> Iterator[EventBlock]:
    """Yield the book after each record as a snapshot, and a trade for each trade record."""
    lowest = records["price"].astype(np.int64)
    for place in range(depth):
        for side in ("bid", "ask"):
            lowest = np.minimum(lowest, records[f"{side}_px_{place:02d}"])
    records = records[_sound(first, records, lowest, context, label)]
    is_trade = np.ascontiguousarray(records["action"]).view(np.uint8) == ord("T")
    borders = np.flatnonzero(np.diff(is_trade, prepend=~is_trade[:1], append=~is_trade[-1:]))
    for start, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        run = records[start:stop]
        if is_trade[start]:
            yield _trades(run, instruments)
        yield from _snapshots(run, depth, instruments, context)


def _trades(records: NDArray[np.void], instruments: _Instruments) -> EventBlock:
    trades = np.zeros(len(records), dtype=TRADE)
    side = _SIDES[np.ascontiguousarray(records["side"]).view(np.uint8)]
    trades["timestamp_ns"] = records["ts_event"]
    trades["price"] = records["price"] / 10.0**PRICE_SCALE
    trades["qty"] = records["size"]
    trades["is_buyer_maker"] = side == Side.SELL  # the side is the taker's
    trades["symbol_hash"] = instruments.hashes(records, symbol_hash)
    flags = (side == Side.UNKNOWN).astype(np.uint16) * np.uint16(TRADE_SIDE_UNKNOWN)
    return EventBlock(TypeId.TRADE, trades, np.ascontiguousarray(records["ts_recv"]), flags=flags)


def _snapshots(
    records: NDArray[np.void], depth: int, instruments: _Instruments, context: ImportContext
) -> Iterator[EventBlock]:
    """Yield one snapshot a record, each instrument's under its own market id."""
    markets = instruments.hashes(records, crypto_market_id)
    borders = np.flatnonzero(np.diff(markets, prepend=~markets[:1], append=~markets[-1:]))
    for start, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        run = records[start:stop]
        prices, sizes = (
            np.stack(
                [run[f"{side}_{what}_{place:02d}"] for side in ("bid", "ask") for place in range(depth)],
                axis=1,
            )
            for what in ("px", "sz")
        )
        used = (prices != UNDEFINED_PRICE) & (sizes > 0)
        counts = used.sum(axis=1)
        sides = np.broadcast_to(np.repeat(np.array([Side.BUY, Side.SELL], dtype=np.uint8), depth), used.shape)
        total = int(counts.sum())
        levels = Levels(
            prices[used].astype(np.uint64),
            np.full(total, PRICE_SCALE, dtype=np.uint8),
            sizes[used].astype(np.uint64),
            np.zeros(total, dtype=np.uint8),
            sides[used],
        )
        groups = Groups(
            np.cumsum(counts) - counts,
            np.ascontiguousarray(run["ts_recv"]),
            np.ascontiguousarray(run["ts_event"]),
            np.zeros(len(run), dtype=np.uint64),
            run["sequence"].astype(np.uint64),
            instruments.venue_id,
            int(markets[start]),
        )
        scale = context.options.price_scale
        yield pack_snapshots(levels, groups, PRICE_SCALE if scale is None else scale, 0)
