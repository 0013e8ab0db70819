"""The market topic read back from its first record, as columns that can be held against the queue.

Owns nothing on disk. A gap that the server tells of is no record, so the audit finds it missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from everlog import Client
from everlog.client import Record
from examples.demo.bridged import SourceSeqs
from examples.demo.records import MARKET_TOPIC
from examples.demo.tables import Array


@dataclass(frozen=True)
class TopicCopy:
    """Every record by its seq and that of its message; the trades among them with their content."""

    seq: Array
    source_seq: Array
    trade_place: Array
    trade_price: Array
    trade_quantity: Array

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.seq)


def read_market_topic(client: Client) -> TopicCopy:
    """Read all records that the topic holds."""
    sources = SourceSeqs()
    seqs: list[int] = []
    source_seqs: list[int] = []
    trades: list[tuple[int, float, float]] = []
    for record in client.read(MARKET_TOPIC, start=1, gaps="yield"):
        if not isinstance(record, Record):
            continue
        seqs.append(record.seq)
        source_seqs.append(sources.of(record.seq, record.meta))
        if isinstance(record.data, dict) and record.data.get("type") == "trade":
            trades.append((len(seqs) - 1, record.data["price"], record.data["qty"]))
    places, prices, quantities = zip(*trades, strict=True) if trades else ((), (), ())
    return TopicCopy(
        np.array(seqs, dtype=np.uint64),
        np.array(source_seqs, dtype=np.uint64),
        np.array(places, dtype=np.intp),
        np.array(prices, dtype=np.float64),
        np.array(quantities, dtype=np.float64),
    )
