"""DBN files made record by record, and made-up days of several instruments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray

package = pytest.importorskip("databento_dbn")

START_NS = 1_703_376_000_000_000_000  # 2023-12-24 UTC
DAY = date(2023, 12, 24)
NEXT_DAY = date(2023, 12, 25)
F_LAST, F_SNAPSHOT, F_MAYBE_BAD_BOOK = 128, 32, 4
MBP0_RTYPE, MBP1_RTYPE, MBP10_RTYPE, MBO_RTYPE = 0x00, 0x01, 0x0A, 0xA0
OHLCV_RTYPE, MAPPING_RTYPE, SYSTEM_RTYPE, STATISTICS_RTYPE = 0x20, 0x16, 0x17, 0x18
UNDEFINED = 2**63 - 1
INSTRUMENTS = {"ESH4": 17077, "NQH4": 42}
TICK = 250_000_000


def dbn_file(
    folder: Path,
    schema: str | None,
    body: bytes,
    *,
    ts_out: bool = False,
    version: int = 3,
    mappings: Sequence[tuple[str, str]] | None = None,
    suffix: str = ".dbn",
) -> Path:
    """A file of two instruments, 17077 = ESH4 and 42 = NQH4, or of (asked, answered) pairs of names."""
    pairs = [(name, str(number)) for name, number in INSTRUMENTS.items()] if mappings is None else mappings
    metadata = package.Metadata(
        dataset="GLBX.MDP3",
        start=START_NS,
        stype_out=package.SType.INSTRUMENT_ID,
        symbols=[asked for asked, _ in pairs],
        partial=[],
        not_found=[],
        mappings=[
            SimpleNamespace(
                raw_symbol=asked,
                intervals=[SimpleNamespace(start_date=DAY, end_date=NEXT_DAY, symbol=answered)],
            )
            for asked, answered in pairs
        ],
        schema=None if schema is None else package.Schema.from_str(schema),
        stype_in=package.SType.RAW_SYMBOL,
        end=START_NS + 86_400 * 10**9,
        ts_out=ts_out,
        version=version,
    )
    path = folder / f"{schema}-{version}{suffix}"
    data = metadata.encode() + body
    path.write_bytes(zstandard.ZstdCompressor().compress(data) if suffix.endswith(".zst") else data)
    return path


def records(layout: Any, rtype: int, rows: Sequence[dict[str, Any]], extra_bytes: int = 0) -> bytes:
    """Records of one kind; every row starts as instrument 17077 of publisher 1 at the start of the day."""
    dtype = np.dtype(layout._dtypes)
    table: NDArray[np.void] = np.zeros(len(rows), dtype=dtype)
    table["length"] = (dtype.itemsize + extra_bytes) // 4
    table["rtype"] = rtype
    table["instrument_id"] = 17077
    table["publisher_id"] = 1
    table["ts_event"] = START_NS
    if "ts_recv" in (dtype.names or ()):
        table["ts_recv"] = START_NS + 5
    for row, values in zip(table, rows, strict=True):
        for name, value in values.items():
            row[name] = value
    return b"".join(row.tobytes() + bytes(extra_bytes) for row in table)


def mbo(rows: Sequence[dict[str, Any]]) -> bytes:
    """Order-by-order records."""
    return records(package.MBOMsg, MBO_RTYPE, rows)


def order(
    action: bytes, number: int = 0, side: bytes = b"B", price: int = 0, size: int = 0, **more: Any
) -> dict[str, Any]:
    """One order-by-order record."""
    return {"action": action, "order_id": number, "side": side, "price": price, "size": size, **more}


def made_up_day(seed: int, count: int) -> list[dict[str, Any]]:
    """Orders of two instruments that use the same order ids: adds, cancels in whole and in part, modifies of
    price and size, trades with their fills, and now and then a clear, after which everything begins anew."""
    choose = random.Random(seed)
    live: dict[int, dict[int, tuple[bytes, int, int]]] = {number: {} for number in INSTRUMENTS.values()}
    rows: list[dict[str, Any]] = []
    next_id = dict.fromkeys(live, 1)
    while len(rows) < count:
        instrument = choose.choice(list(live))
        orders = live[instrument]
        where = {"instrument_id": instrument, "sequence": len(rows) + 1}
        action = choose.choices("ACMTR", (8, 4, 4, 1, 0.02))[0] if len(orders) > 20 else "A"
        if action == "R":
            orders.clear()
            rows.append(order(b"R", side=b"N", price=UNDEFINED, flags=F_LAST, **where))
            continue
        if action == "A":
            number, next_id[instrument] = next_id[instrument], next_id[instrument] + 1
            orders[number] = _placed(choose)
            rows.append(order(b"A", number, *orders[number], **where))
            continue
        number = choose.choice(list(orders))
        side, price, size = orders[number]
        if action == "M":
            _, price, size = _placed(choose, side)
            orders[number] = (side, price, size)
            rows.append(order(b"M", number, side, price, size, **where))
            continue
        if action == "T":
            taker = b"A" if side == b"B" else b"B"
            rows.append(order(b"T", 0, taker, price, 1, **where))
            rows.append(order(b"F", number, side, price, 1, **where))
        gone = choose.randint(1, size)
        orders[number] = (side, price, size - gone)
        if gone == size:
            del orders[number]
        rows.append(order(b"C", number, side, price, gone, **where))
    return rows


def _placed(choose: random.Random, side: bytes | None = None) -> tuple[bytes, int, int]:
    side = side or choose.choice((b"B", b"A"))
    distance = choose.randint(1, 30)
    return side, (4800 * 4 + (-distance if side == b"B" else distance)) * TICK, choose.randint(1, 90)
