"""The native CSV kernel in plain Python, by the decimal module: slow and obvious."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_DOWN, Context, Decimal

from everlog.market.protocol import symbol_hash
from everlog.native.market.events import DECIMAL, HASH, IDENTIFIER, PRICE, SIGNED, UNSIGNED

OK, FIELD_COUNT, NO_NUMBER, NEGATIVE, TOO_LARGE, UNKNOWN_CHOICE, BAD_QUOTE = range(7)
U64 = 2**64
_UNSIGNED = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"(-?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_EXACT = Context(prec=400)


def convert(text: str, kind: int) -> tuple[int, int, int]:
    """Return (problem, value, decimals) of one field that is neither quoted nor padded."""
    if kind == UNSIGNED:
        return _unsigned(text)
    if kind == SIGNED:
        return _signed(text, _unsigned)
    if kind == PRICE:
        return _signed(text, _decimal)
    if kind == HASH:
        return OK, symbol_hash(text), 0
    if kind == IDENTIFIER:
        problem, value, _ = _unsigned(text)
        return OK, value if problem == OK else symbol_hash(text) if text else 0, 0
    assert kind == DECIMAL
    return _decimal(text)


def _decimal(text: str) -> tuple[int, int, int]:
    match = _NUMBER.fullmatch(text)
    if match is None or not ((match[2] or "") + (match[3] or "")):
        return NO_NUMBER, 0, 0
    if abs(int(match[4] or 0)) > 64:
        # Beyond what any column holds; only 0 stays 0.
        zero = not (match[2] + (match[3] or "")).strip("0")
        negative = int(match[4]) < 0
        problem = OK if zero or negative else TOO_LARGE
        return (NEGATIVE, 0, 0) if match[1] and not zero else (problem, 0, 0)
    value = _EXACT.create_decimal(text)
    if value < 0:
        return NEGATIVE, 0, 0
    kept = value.quantize(Decimal(1).scaleb(-18), ROUND_DOWN, _EXACT).normalize(_EXACT)
    decimals = max(0, -int(kept.as_tuple().exponent))
    number = int(kept.scaleb(decimals, _EXACT))
    return (TOO_LARGE, 0, 0) if number >= U64 else (OK, number, decimals)


def _unsigned(text: str) -> tuple[int, int, int]:
    if not _UNSIGNED.fullmatch(text):
        return (NEGATIVE if text.startswith("-") else NO_NUMBER), 0, 0
    return (TOO_LARGE, 0, 0) if int(text) >= U64 else (OK, int(text), 0)


def _signed(text: str, read: Callable[[str], tuple[int, int, int]]) -> tuple[int, int, int]:
    if text.startswith("--"):
        return NO_NUMBER, 0, 0
    problem, value, decimals = read(text.removeprefix("-"))
    if problem == OK and value >= U64 // 2:
        problem = TOO_LARGE
    if problem != OK:
        return problem, 0, 0
    return OK, (-value) % U64 if text.startswith("-") else value, decimals
