"""Messages of the market protocol as JSON text, for programs that do not read the binary protocol.

Prices and sizes of books are exact decimals in strings; floating-point fields of the protocol are numbers.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from everlog.bridge.layouts import GAP_TYPE_ID, decode_gap
from everlog.errors import EverlogError
from everlog.market.decimals import MAX_SCALE, render_scaled
from everlog.market.event_json import HEADER_FIELDS
from everlog.market.protocol import (
    BAR,
    BOOK_TICKER,
    HEADER_BYTES,
    L2_DIFF_BYTES,
    L2_SNAPSHOT_BYTES,
    LEVEL,
    LEVEL_BYTES,
    OLDEST_VERSION,
    TRADE,
    TRADE_SIDE_UNKNOWN,
    BookEventType,
    BookMode,
    L3EventType,
    Side,
    TypeId,
)
from everlog.market.views import (
    BookEventView,
    BookTickerView,
    L2DiffView,
    L2SnapshotView,
    L3EventView,
    TradeView,
)

_encode: Final = msgspec.json.Encoder().encode
_L3_KINDS: Final = {kind.value: kind.name.lower() for kind in L3EventType}
_BOOK_KINDS: Final = {kind.value: kind.name.lower() for kind in BookEventType}
_SIDES: Final = {side.value: side.name.lower() for side in Side}

KNOWN_TYPE_IDS: Final = frozenset(
    {TypeId.BOOK_EVENT, TypeId.BOOK_TICKER, TypeId.TRADE, TypeId.BAR, GAP_TYPE_ID}
)
"""Type ids whose payloads can be rendered."""


def render(type_id: int, flags: int, payload: bytes) -> bytes | None:
    """Return a message as JSON text; None if it breaks the protocol of its type id."""
    try:
        if type_id == TypeId.TRADE and len(payload) == TRADE.itemsize:
            return _encode(_trade(payload, flags))
        if type_id == TypeId.BOOK_TICKER and len(payload) == BOOK_TICKER.itemsize:
            view = BookTickerView(payload)
            return _encode({"type": "book_ticker"} | {name: getattr(view, name) for name in view.FIELDS})
        if type_id == TypeId.BOOK_EVENT:
            document = _book_event(payload)
            return None if document is None else _encode(document)
        if type_id == TypeId.BAR and len(payload) == BAR.itemsize:
            bar = np.frombuffer(payload, BAR, 1)[0]
            return _encode({"type": "bar"} | {name: bar[name].item() for name in BAR.names or ()})
        if type_id == GAP_TYPE_ID:
            gap = decode_gap(payload)._asdict()
            return _encode({"type": "gap"} | gap | {"reason": gap["reason"].name.lower()})
    except EverlogError:
        return None
    return None


def _trade(payload: bytes, flags: int) -> dict[str, Any]:
    view = TradeView(payload)
    document: dict[str, Any] = {"type": "trade"} | {name: getattr(view, name) for name in view.FIELDS}
    document["is_buyer_maker"] = None if flags & TRADE_SIDE_UNKNOWN else bool(view.is_buyer_maker)
    return document


def _book_event(payload: bytes) -> dict[str, Any] | None:
    header = BookEventView(payload).check()
    kind = _BOOK_KINDS.get(header.event_type)
    if kind is None:
        return None
    mode = "l3" if header.book_mode == BookMode.L3 else "l2"
    document: dict[str, Any] = {"type": "book_event", "event": kind, "mode": mode}
    document |= {name: getattr(header, name) for name in HEADER_FIELDS}
    body = header.body
    if isinstance(body, L3EventView):
        return _with_order(document, body, header.schema_version)
    if isinstance(body, L2DiffView):
        for name in ("first_update_id", "last_update_id", "previous_update_id"):
            document[name] = getattr(body, name)
        return _with_levels(document, body, payload, HEADER_BYTES + L2_DIFF_BYTES)
    if isinstance(body, L2SnapshotView):
        return _with_levels(document, body, payload, HEADER_BYTES + L2_SNAPSHOT_BYTES)
    return document


def _price(price: int, scale: int, version: int) -> str:
    return render_scaled(price % 2**64 if version == OLDEST_VERSION else price, scale)


def _with_order(document: dict[str, Any], body: L3EventView, version: int) -> dict[str, Any] | None:
    kind = _L3_KINDS.get(body.event_type)
    if kind is None or body.price_scale > MAX_SCALE or body.size_scale > MAX_SCALE:
        return None
    return document | {
        "order_event": kind,
        "side": _SIDES.get(body.side, body.side),
        "ord_type": body.ord_type,
        "exec_type": body.exec_type,
        "order_flags": body.flags,
        "order_id": body.order_id,
        "bid_order_id": body.bid_order_id,
        "ask_order_id": body.ask_order_id,
        "price": _price(body.price, body.price_scale, version),
        "qty": render_scaled(body.qty, body.size_scale),
        "amt": body.amt,
    }


def _with_levels(
    document: dict[str, Any], body: L2DiffView | L2SnapshotView, payload: bytes, start: int
) -> dict[str, Any] | None:
    bids, asks = body.bid_count, body.ask_count
    if len(payload) != start + (bids + asks) * LEVEL_BYTES:
        return None
    if body.price_scale > MAX_SCALE or body.size_scale > MAX_SCALE:
        return None
    version = BookEventView(payload).schema_version
    levels = np.frombuffer(payload, dtype=LEVEL, offset=start)
    texts = [
        (_price(price, body.price_scale, version), render_scaled(size, body.size_scale))
        for price, size in zip(levels["price"].tolist(), levels["size"].tolist(), strict=True)
    ]
    return document | {"bids": texts[:bids], "asks": texts[bids:]}
