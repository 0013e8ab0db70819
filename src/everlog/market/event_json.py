"""Records of a topic that a bridge made of market messages, as these messages again.

Owns the way back from `everlog.bridge.market_json` (JSON text) and from base64. What a record does not say is
0: books and trades are those of the queue, other bytes of the messages may differ.
"""

from __future__ import annotations

import math
import struct
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from everlog.market.decimals import parse_scaled, scale_of
from everlog.market.protocol import (
    HEADER_BYTES,
    LITTLE_ENDIAN,
    SCHEMA_VERSION,
    TRADE_SIDE_UNKNOWN,
    BookEventType,
    BookFlags,
    BookMode,
    L3EventType,
    Side,
    TypeId,
)
from everlog.market.views import BookEventView, L2DiffView, L2SnapshotView, L3EventView, TradeView, View

_NS_PER_MS: Final = 1_000_000
_KINDS: Final = {kind.name.lower(): kind for kind in BookEventType}
_L3_KINDS: Final = {kind.name.lower(): kind for kind in L3EventType}
_SIDES: Final = {side.name.lower(): side for side in Side}
HEADER_FIELDS: Final = (
    "venue_id",
    "market_id",
    "stream_id",
    "ingest_ts_ns",
    "exchange_ts_ns",
    "seq",
    "native_seq",
    "flags",
)
"""What the JSON of an event has of its header."""

_ORDER_FIELDS: Final = ("ord_type", "exec_type", "order_id", "bid_order_id", "ask_order_id", "amt")


class EventMessage(NamedTuple):
    """One message, as `QueueWriter.append` takes it."""

    timestamp_ns: int
    type_id: int
    flags: int
    payload: bytes


class _Meta(msgspec.Struct, frozen=True):
    ts_ns: int | None = None
    type: int | None = None
    flags: int = 0
    encoding: str | None = None


class _Record(msgspec.Struct, frozen=True, rename={"ts_ms": "$ts"}):
    ts_ms: int
    data: Any = None
    meta: Any = None


_decode: Final = msgspec.json.Decoder(list[_Record]).decode


class EventReader:
    """Reads records; the scales of a market only rise, so that one event after another has the same."""

    def __init__(self) -> None:
        self._scales: dict[tuple[int, int], tuple[int, int]] = {}

    def read(self, records: bytes) -> list[EventMessage]:
        """Return the messages in a JSON array of records; what is no book event and no trade is left out."""
        found = (self._message(record) for record in _decode(records))
        return [message for message in found if message is not None]

    def _message(self, record: _Record) -> EventMessage | None:
        try:
            meta = msgspec.convert(record.meta or {}, _Meta)
            type_id, flags, payload = self._payload(record.data, meta)
        except (
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            AttributeError,
            struct.error,
            msgspec.MsgspecError,
        ):
            return None  # a record of another program, or of another version
        time_ns = record.ts_ms * _NS_PER_MS if meta.ts_ns is None else meta.ts_ns
        return EventMessage(time_ns, type_id, flags, payload)

    def _payload(self, data: Any, meta: _Meta) -> tuple[int, int, bytes]:
        if meta.encoding == "base64":
            if meta.type not in (TypeId.BOOK_EVENT, TypeId.TRADE):
                raise ValueError(meta.type)
            return meta.type, meta.flags, b64decode(data, validate=True)
        if data["type"] == "trade":
            unknown = TRADE_SIDE_UNKNOWN if data["is_buyer_maker"] is None else 0
            return TypeId.TRADE, meta.flags | unknown, _trade(data)
        if data["type"] != "book_event":
            raise ValueError(data["type"])
        return TypeId.BOOK_EVENT, meta.flags, self._book_event(data)

    def _book_event(self, data: dict[str, Any]) -> bytes:
        kind = _KINDS[data["event"]]
        if data["mode"] == "l3":
            body = self._order(data) if "order_event" in data else b""
        elif kind is BookEventType.DIFF:
            body = self._levels(data, _diff(data))
        elif kind is BookEventType.SNAPSHOT:
            body = self._levels(data, L2SnapshotView.new())
        else:
            body = b""
        header = _filled(
            BookEventView.new(),
            schema_version=SCHEMA_VERSION,
            endianness=LITTLE_ENDIAN,
            record_len=HEADER_BYTES + len(body),
            event_type=kind,
            book_mode=BookMode.L3 if data["mode"] == "l3" else BookMode.L2,
            **{name: data[name] for name in HEADER_FIELDS},
        )
        return bytes(header) + body

    def _risen(self, data: dict[str, Any], prices: Sequence[str], sizes: Sequence[str]) -> tuple[int, int]:
        market = data["venue_id"], data["market_id"]
        known = self._scales.get(market, (0, 0))
        scales = max(known[0], scale_of(prices)), max(known[1], scale_of(sizes))
        self._scales[market] = scales
        return scales

    def _levels(self, data: dict[str, Any], body: View) -> bytes:
        bids, asks = data["bids"], data["asks"]
        levels = [*bids, *asks]
        scales = self._risen(data, [price for price, _ in levels], [size for _, size in levels])
        _filled(body, price_scale=scales[0], size_scale=scales[1], bid_count=len(bids), ask_count=len(asks))
        pairs = (
            parse_scaled(price, scales[0]).to_bytes(8, "little", signed=True)
            + parse_scaled(size, scales[1]).to_bytes(8, "little")
            for price, size in levels
        )
        return bytes(body) + b"".join(pairs)

    def _order(self, data: dict[str, Any]) -> bytes:
        price_scale, size_scale = self._risen(data, [data["price"]], [data["qty"]])
        body = _filled(
            L3EventView.new(),
            event_type=_L3_KINDS[data["order_event"]],
            side=_SIDES.get(data["side"], data["side"]),
            flags=data["order_flags"],
            price_scale=price_scale,
            size_scale=size_scale,
            price=parse_scaled(data["price"], price_scale),
            qty=parse_scaled(data["qty"], size_scale),
            **{name: data[name] for name in _ORDER_FIELDS},
        )
        return bytes(body)


def _filled(view: View, **fields: Any) -> View:
    for name, value in fields.items():
        setattr(view, name, value)
    return view


def _diff(data: dict[str, Any]) -> View:
    names = ("first_update_id", "last_update_id", "previous_update_id")
    flags = data["flags"] & BookFlags.DELTA or BookFlags.ABSOLUTE
    return _filled(L2DiffView.new(), flags=flags, **{name: data[name] for name in names})


def _trade(data: dict[str, Any]) -> bytes:
    fields = {name: data[name] or 0 for name in TradeView.FIELDS}
    fields |= {name: math.nan for name in ("price", "qty") if data[name] is None}
    return bytes(_filled(TradeView.new(), **fields))
