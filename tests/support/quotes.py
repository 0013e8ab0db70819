"""Rows of the table `quotes`, held against books: prices and sizes as the integers that they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

COLUMNS: Final = ("seq", "bid_price", "bid_size", "ask_price", "ask_size", "price_scale", "size_scale")
Top = tuple[int, int, int, int]


def top_of(row: Mapping[str, Any]) -> Top:
    """Return the best levels as a book has them: price and size are 0 on an empty side."""
    price, size = 10 ** row["price_scale"], 10 ** row["size_scale"]
    bid, ask = (round((row[f"{side}_price"] or 0) * price) for side in ("bid", "ask"))
    return bid, round(row["bid_size"] * size), ask, round(row["ask_size"] * size)
