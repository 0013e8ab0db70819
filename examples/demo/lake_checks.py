"""The lake against its sources: what Spark wrote, read back without Spark.

Owns the comparison. Reads the Delta tables with `deltalake`, the queue with everlog.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everlog.market.replay import Replay
from everlog.pipeline.lake import LakeTable
from examples.demo.accounts import Account, account_of_counts, account_of_seqs, stream_accounts
from examples.demo.lake_files import (
    FEATURES_TABLE,
    L2_TABLE,
    L3_TABLE,
    MESSAGES_TABLE,
    lake_dir,
)
from examples.demo.rebuilt import local_features
from examples.demo.tables import L2, L3, Array, MarketTable


def lake_accounts(
    root: Path,
    queue: Path,
    market: MarketTable,
    topic_records: int,
    truth: Mapping[str, Any],
    results: Mapping[str, Any],
) -> list[Account]:
    """Return an account of each table."""
    queue_streams = results["audit of the queue's archive"]["streams"]
    topic_streams = results["audit of the topic's archive"]["streams"]
    return [
        *stream_accounts("queue to lake", queue_streams, len(market)),
        _payload_account(root, queue),
        *stream_accounts("topic to lake", topic_streams, topic_records),
        _replay_account(root, L2_TABLE, "L2 replay on Spark", market.seq[market.kind == L2], truth),
        _replay_account(root, L3_TABLE, "L3 replay on Spark", market.seq[market.kind == L3], truth),
        _feature_account(root, queue),
    ]


def _columns(root: Path, table: str, columns: list[str]) -> dict[str, Array]:
    opened = LakeTable(str(lake_dir(root)), table).open()
    if opened is None:
        return {name: np.empty(0, dtype=np.int64) for name in columns}
    found = opened.to_pyarrow_table(columns=columns)
    return {name: found.column(name).to_numpy() for name in columns}


def feature_columns(root: Path, market_id: int) -> dict[str, Array]:
    """Return Spark's features of one market in the order of time."""
    rows = _columns(root, FEATURES_TABLE, ["market_id", "ingest_ts_ns", "mid_price", "spread_bps"])
    chosen = np.flatnonzero(rows["market_id"] == market_id)
    chosen = chosen[np.argsort(rows["ingest_ts_ns"][chosen], kind="stable")]
    return {name: column[chosen] for name, column in rows.items()}


def _payload_account(root: Path, queue: Path) -> Account:
    """Every archived payload has the bytes of the message in the queue."""
    archived = _columns(root, MESSAGES_TABLE, ["seq", "payload"])
    digests = {
        seq: _digest(payload)
        for seq, payload in zip(archived["seq"].tolist(), archived["payload"], strict=True)
    }
    expected = equal = 0
    for some in Replay(str(queue)).batches():
        data, begins = some.batch.joined(some.chosen)
        raw, ends = data.tobytes(), begins.tolist()
        for seq, start, end in zip(some.seq.tolist(), ends, ends[1:], strict=False):
            expected += 1
            equal += digests.get(seq) == _digest(raw[start:end])
    how = "the bytes of each payload"
    return Account("lake", "payloads in the lake", expected, equal, 0, 0, 0, expected - equal, how)


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=16).digest()


def _replay_account(root: Path, table: str, step: str, seqs: Array, truth: Mapping[str, Any]) -> Account:
    """A row for each event, and the last row of each market is the venue's best bid and ask."""
    names = ["seq", "market_id", "bid_price", "bid_size", "ask_price", "ask_size"]
    rows = _columns(root, table, names)
    different = 0
    for told in truth["books"]:
        of_market = rows["market_id"] == told["market_id"]
        best = [*told["bids"][0], *told["asks"][0]]
        if not of_market.any():
            different += 1
            continue
        last = np.flatnonzero(of_market)[np.argmax(rows["seq"][of_market])]
        units = [10 ** truth[f"{kind}_scale"] for kind in ("price", "size")] * 2
        numbers = [rows[name][last] for name in names[2:]]
        different += [round(number * unit) for number, unit in zip(numbers, units, strict=True)] != best
    how = "a row per event; the last best bid and ask"
    arrived = rows["seq"].astype(np.uint64)
    return account_of_seqs("lake", step, seqs, arrived, how, different=different)


def _feature_account(root: Path, queue: Path) -> Account:
    """Spark's features are those that one machine computes, bit for bit."""
    expected = local_features(queue)
    names = list(next(iter(expected.values())).dtype.names or ()) if expected else []
    rows = _columns(root, FEATURES_TABLE, ["market_id", *names])
    wanted = sum(map(len, expected.values()))
    different = 0
    for market, local in expected.items():
        chosen = np.flatnonzero(rows["market_id"] == market.market_id)
        chosen = chosen[np.argsort(rows["ingest_ts_ns"][chosen], kind="stable")]
        if len(chosen) != len(local):
            continue  # counted as lost or duplicated below
        same = np.ones(len(local), dtype=bool)
        for name in names:
            same &= rows[name][chosen].astype(local[name].dtype).view(np.uint64) == local[name].view(
                np.uint64
            )
        different += int(np.count_nonzero(~same))
    counted = account_of_counts("lake", "features on Spark", wanted, len(rows["market_id"]), "")
    how = "bit for bit what one machine computes"
    return Account(
        "lake", counted.step, wanted, counted.arrived, 0, counted.lost, counted.duplicated, different, how
    )
