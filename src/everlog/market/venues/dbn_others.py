"""DBN records that are no order book: bars (`ohlcv-*`), `status` and `definition`.

Owns their meaning. Bars become bars, status records heartbeats as LOBSTER's halts are, and definitions
versions in the symbol catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.market.protocol import (
    BAR,
    BookFlags,
    L3EventType,
    L3Flags,
    TypeId,
    new_l3_records,
)
from everlog.market.symbols import AssetType, SymbolDefinition
from everlog.market.venues.archives import Member
from everlog.market.venues.dbn_instruments import Instruments
from everlog.market.venues.dbn_order import GOES_BACK
from everlog.market.venues.dbn_records import Mapping, RecordBlock, RecordStream
from everlog.market.venues.interface import EventBlock, ImportContext

UNDEFINED_PRICE: Final = np.iinfo(np.int64).max
UNDEFINED_SIZE: Final = np.iinfo(np.int32).max
NS_PER_S: Final = 10**9
PRICE_UNIT: Final = 10.0**9
_INTERVALS: Final = {0x20: 1, 0x21: 60, 0x22: 3600, 0x23: 86_400}
"""Seconds of a bar by record type."""
_ASSETS: Final = {
    b"F": AssetType.FUTURE,
    b"S": AssetType.FUTURE,
    b"C": AssetType.OPTION,
    b"P": AssetType.OPTION,
    b"T": AssetType.OPTION,
    b"K": AssetType.EQUITY,
    b"X": AssetType.SPOT,
}
# StatusAction of the vendor to the quantity that a halt of LOBSTER has.
HALTED, QUOTING, TRADING = 0, 1, 2
_QUOTING: Final = (1, 2, 3, 4, 5, 6)
_TRADING: Final = 7
_DELETED: Final = b"D"


class OtherSchema(NamedTuple):
    """What records of a schema are: the package's classes by version, the record types, the stream."""

    layouts: tuple[str, ...]
    record_types: tuple[int, ...]
    stream: str


OTHER_SCHEMAS: Final = {
    "ohlcv-1s": OtherSchema(("OHLCVMsg",), (0x20,), "bars"),
    "ohlcv-1m": OtherSchema(("OHLCVMsg",), (0x21,), "bars"),
    "ohlcv-1h": OtherSchema(("OHLCVMsg",), (0x22,), "bars"),
    "ohlcv-1d": OtherSchema(("OHLCVMsg",), (0x23,), "bars"),
    "status": OtherSchema(("StatusMsg",), (0x12,), "status"),
    "definition": OtherSchema(
        ("InstrumentDefMsgV1", "InstrumentDefMsgV2", "InstrumentDefMsg"), (0x13,), "definition"
    ),
}


def other_events(
    package: Any,
    member: Member,
    metadata: Any,
    schema: OtherSchema,
    version: bytes,
    context: ImportContext,
) -> Iterator[EventBlock]:
    """Yield the records of a file as events; definitions are told to the tally alone.

    `version` is the file's own, in one byte: metadata that was decoded is of the newest.
    """
    instruments, tally = Instruments(metadata, member.label, context), context.tally
    layout = getattr(package, schema.layouts[min(version[0], len(schema.layouts)) - 1])
    stream = RecordStream(package, member, layout, schema.record_types, ts_out=bool(metadata.ts_out))
    tally.name(
        venue=instruments.venue, symbol=instruments.symbol, date=instruments.date, stream=schema.stream
    )
    order = _Order(member.label, context)
    defined = 0
    for block in stream.blocks():
        if isinstance(block, Mapping):
            instruments.rename(*block)
            continue
        if schema.stream == "definition":
            found = _definitions(block.records, instruments)
            tally.rows += len(block.records)
            tally.definitions += found
            defined += len(found)
            continue
        yield _events(order.checked(block, is_strict=schema.stream == "bars"), instruments, context)
    if schema.stream != "definition":
        tally.symbols |= {(instruments.venue, symbol) for symbol in instruments.met}
    else:
        tally.notes.append(f"{member.label}: {defined} definitions went to the symbol catalogue")
    if stream.others:
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(stream.others.items()))
        tally.notes.append(f"{member.label}: records of other kinds were not imported: {kinds}")


class _Order:
    """Watches that an instrument's times do not go back, and that no bar is there twice."""

    def __init__(self, label: str, context: ImportContext) -> None:
        self._label = label
        self._context = context
        self._latest: dict[int, int] = {}

    def checked(self, block: RecordBlock, *, is_strict: bool) -> RecordBlock:
        records, bad = block.records, np.zeros(len(block.records), dtype=np.bool_)
        keys = records["publisher_id"].astype(np.int64) << 32 | records["instrument_id"]
        for row, (key, time) in enumerate(zip(keys.tolist(), records["ts_event"].tolist(), strict=True)):
            latest = self._latest.get(key, -1)
            bad[row] = time < latest or (is_strict and time == latest)
            self._latest[key] = max(time, latest)
        if not bad.any():
            return block
        if self._context.options.allow_unordered:
            self._context.tally.unordered += int(bad.sum())
            return block
        for row in np.flatnonzero(bad).tolist():
            reason = GOES_BACK.replace("ts_recv", "ts_event")
            self._context.rejects.reject(self._label, int(block.numbers[row]), reason, str(records[row]))
        return block.take(~bad)


def _events(block: RecordBlock, instruments: Instruments, context: ImportContext) -> EventBlock:
    records = block.records
    belonging = instruments.of(records, "ts_event")
    if instruments.wanted is not None:
        chosen = belonging.symbols == instruments.wanted
        records, belonging = records[chosen], belonging.take(chosen)
    context.tally.rows += len(records)
    if "open" in (records.dtype.names or ()):
        return _bars(records, belonging.symbol_hashes)
    return _statuses(records, belonging.market_ids, instruments.venue_id)


def _bars(records: NDArray[np.void], hashes: NDArray[np.uint64]) -> EventBlock:
    bars = np.zeros(len(records), dtype=BAR)
    seconds = np.array([_INTERVALS.get(kind, 0) for kind in range(256)], dtype=np.uint64)
    bars["start_ns"] = records["ts_event"]
    bars["end_ns"] = ends = records["ts_event"] + seconds[records["rtype"]] * np.uint64(NS_PER_S)
    for name in ("open", "high", "low", "close"):
        prices = records[name]
        bars[name] = np.where(prices == UNDEFINED_PRICE, np.nan, prices / PRICE_UNIT)
    bars["volume"] = records["volume"]
    bars["quote_volume"] = bars["taker_buy_volume"] = np.nan
    bars["symbol_hash"] = hashes
    return EventBlock(TypeId.BAR, bars, ends)


def _statuses(records: NDArray[np.void], markets: NDArray[np.uint64], venue: int) -> EventBlock:
    out = new_l3_records(len(records), venue_id=venue)
    header, event = out["header"], out["event"]
    action = records["action"]
    header["market_id"] = markets
    header["ingest_ts_ns"] = stamps = records["ts_recv"]
    header["exchange_ts_ns"] = records["ts_event"]
    header["flags"] |= np.uint16(BookFlags.SPARSE)
    event["event_type"] = L3EventType.HEARTBEAT
    event["flags"] = L3Flags.NO_PRICE
    event["qty"] = np.select(
        [
            (records["is_trading"] == b"Y") | (action == _TRADING),
            (records["is_quoting"] == b"Y") | np.isin(action, _QUOTING),
        ],
        [TRADING, QUOTING],
        HALTED,
    )
    event["amt"] = action
    event["exec_type"] = np.minimum(records["reason"], 255)
    return EventBlock(TypeId.BOOK_EVENT, out, np.ascontiguousarray(stamps))


def _definitions(records: NDArray[np.void], instruments: Instruments) -> list[SymbolDefinition]:
    """Return what definition records say; those of other symbols than the wanted one are left out."""
    found = []
    for record in records:
        symbol = record["raw_symbol"].decode("utf-8", "replace")
        if not symbol or instruments.wanted not in (None, symbol):
            continue
        tick = _price(record["min_price_increment"])
        multiplier = _size(record["contract_multiplier"])
        lot = _size(record["min_lot_size_round_lot"]) or _size(record["min_lot_size"])
        found.append(
            SymbolDefinition(
                exchange=instruments.venue,
                exchange_symbol=symbol,
                base_asset=record["asset"].decode("utf-8", "replace") or None,
                quote_asset=record["currency"].decode("utf-8", "replace") or None,
                asset_type=_ASSETS.get(record["instrument_class"], AssetType.UNKNOWN),
                tick_size=tick,
                price_increment=tick,
                lot_size=lot,
                amount_increment=lot,
                contract_size=multiplier or _price(record["unit_of_measure_qty"]),
                at_ts=int(record["ts_recv"]) // 1000,
                is_deleted=record["security_update_action"] == _DELETED,
            )
        )
    return found


def _price(value: Any) -> float | None:
    """Return a price or quantity of 9 decimals, None if it is 0 or not told."""
    return None if int(value) in (0, UNDEFINED_PRICE) else int(value) / PRICE_UNIT


def _size(value: Any) -> float | None:
    return None if int(value) in (0, UNDEFINED_SIZE) else float(value)
