"""Binance `exchangeInfo`: what the exchange says of its symbols, as definitions for the symbol catalogue."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from everlog.market.symbols import AssetType, SymbolDefinition

_TYPES: Final = {"": AssetType.SPOT, "PERPETUAL": AssetType.PERPETUAL}


class _Filter(msgspec.Struct):
    filterType: str
    tickSize: str | None = None
    stepSize: str | None = None


class _Symbol(msgspec.Struct):
    symbol: str
    baseAsset: str
    quoteAsset: str
    filters: list[_Filter]
    contractType: str = ""
    contractSize: float | None = None


class _Info(msgspec.Struct):
    symbols: list[_Symbol]


_INFO: Final = msgspec.json.Decoder(_Info)


def exchange_info(
    body: bytes, venue: str, wanted: Collection[str] | None = None, at_ts: int | None = None
) -> list[SymbolDefinition]:
    """Return the definitions in an answer, of the wanted symbols only; raises msgspec's errors.

    The exchange says how it is now, so `at_ts` is when it was asked, in microseconds.
    """
    return [
        _definition(one, venue, at_ts)
        for one in _INFO.decode(body).symbols
        if wanted is None or one.symbol in wanted
    ]


def _definition(one: _Symbol, venue: str, at_ts: int | None) -> SymbolDefinition:
    filters = {some.filterType: some for some in one.filters}
    price, lot = filters.get("PRICE_FILTER"), filters.get("LOT_SIZE")
    tick = _number(price.tickSize) if price is not None else None
    step = _number(lot.stepSize) if lot is not None else None
    return SymbolDefinition(
        exchange=venue,
        exchange_symbol=one.symbol,
        base_asset=one.baseAsset,
        quote_asset=one.quoteAsset,
        asset_type=_TYPES.get(one.contractType, AssetType.FUTURE),
        tick_size=tick,
        price_increment=tick,
        lot_size=step,
        amount_increment=step,
        contract_size=one.contractSize,
        at_ts=at_ts,
    )


def _number(text: str | None) -> float | None:
    """Return a size, None if there is none or it is 0, which means that there is no such rule."""
    return (float(text) or None) if text else None
