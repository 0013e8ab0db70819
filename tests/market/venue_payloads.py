"""Real market data as payloads of the protocol, for tests of books.

Read with `json`, `csv` and `databento_dbn` directly, so that books are tested without the importers.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from everlog.market.decimals import parse_scaled, scale_of
from everlog.market.protocol import BookEventType, L3EventType, new_l3_records
from tests.support.book_twins import l2_record

ROOT = Path(__file__).parents[2]


def venue_file(name: str) -> Path:
    """Return a file of the data folder; the test is skipped where the folder is absent."""
    folder = Path(os.environ.get("EVERLOG_TEST_DATA", ROOT / "../shared/data"))
    path = folder / name
    if not path.exists():
        pytest.skip(f"no market data at {path}; set EVERLOG_TEST_DATA to the folder that holds it")
    return path


def bybit_messages(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the messages of a Bybit order book archive."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.infolist()[0]) as lines:
        yield from map(json.loads, lines)


def bybit_record(message: dict[str, Any]) -> bytes:
    """Return a message as a book event at the scales its own numbers need."""
    data = message["data"]
    sides = data["b"], data["a"]
    price_scale, size_scale = (scale_of(level[place] for side in sides for level in side) for place in (0, 1))
    bids, asks = (
        [(parse_scaled(price, price_scale), parse_scaled(size, size_scale)) for price, size in side]
        for side in sides
    )
    number, scales = int(data["u"]), (price_scale, size_scale)
    if message["type"] == "snapshot":
        return l2_record(BookEventType.SNAPSHOT, bids, asks, scales=scales, native_seq=number)
    return l2_record(BookEventType.DIFF, bids, asks, scales=scales, ids=(number, number, number - 1))


MBO_EVENTS = {
    "A": L3EventType.ORDER_ADD,
    "C": L3EventType.ORDER_CANCEL,
    "M": L3EventType.ORDER_MODIFY,
    "R": L3EventType.RESET,
    # The cancel or modify that follows a trade or fill changes the book, they themselves do not.
    "T": L3EventType.HEARTBEAT,
    "F": L3EventType.HEARTBEAT,
    "N": L3EventType.HEARTBEAT,
}


def mbo_records(path: Path) -> NDArray[np.void]:
    """Return the messages of a DBN MBO file as payloads, prices at 9 decimals."""
    import databento_dbn

    decoder = databento_dbn.DBNDecoder(compression=databento_dbn.Compression.ZSTD)
    decoder.write(path.read_bytes())
    messages = [message for message in decoder.decode() if hasattr(message, "order_id")]
    records = new_l3_records(len(messages), market_id=1)
    event = records["event"]
    event["event_type"] = [MBO_EVENTS[str(message.action)] for message in messages]
    event["side"] = [{"B": 1, "A": 2}.get(str(message.side), 0) for message in messages]
    event["order_id"] = [message.order_id for message in messages]
    event["price"] = [message.price if message.price < 2**63 - 1 else 0 for message in messages]
    event["qty"] = [message.size for message in messages]
    event["price_scale"] = 9
    return records


LOBSTER_EVENTS = {
    1: L3EventType.ORDER_ADD,
    2: L3EventType.ORDER_CANCEL,
    3: L3EventType.ORDER_CANCEL,
    4: L3EventType.TRADE,
}


def lobster_records(path: Path) -> NDArray[np.void]:
    """Return the events of a LOBSTER message file as payloads, prices at 4 decimals."""
    with gzip.open(path, "rt", newline="") as text:
        rows = [row for row in csv.reader(text) if int(row[1]) in LOBSTER_EVENTS]
    records = new_l3_records(len(rows), market_id=1)
    event = records["event"]
    kinds = [int(row[1]) for row in rows]
    event["event_type"] = [LOBSTER_EVENTS[kind] for kind in kinds]
    event["order_id"] = [int(row[2]) for row in rows]
    event["qty"] = [0 if kind == 3 else int(row[3]) for kind, row in zip(kinds, rows, strict=True)]
    event["price"] = [int(row[4]) if kind == 1 else 0 for kind, row in zip(kinds, rows, strict=True)]
    event["side"] = [1 if row[5] == "1" else 2 for row in rows]
    event["price_scale"] = 4
    return records
