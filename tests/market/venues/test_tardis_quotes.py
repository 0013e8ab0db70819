"""Tardis quotes and book snapshots, against a plain reading of the same rows."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidSource
from everlog.market.protocol import BOOK_TICKER, BookEventType, TypeId, crypto_market_id, symbol_hash
from everlog.market.venues import csv_blocks
from everlog.market.venues.interface import ImportOptions
from tests.support.import_runs import l2_events_of, payloads_of, run_importer

QUOTES = "exchange,symbol,timestamp,local_timestamp,ask_amount,ask_price,bid_price,bid_amount"
LEVELS = ("asks", "bids")

numbers = st.decimals(min_value=Decimal("0.001"), max_value=10**6, places=3).map(
    lambda one: f"{one.normalize():f}"
)
quote = st.tuples(numbers | st.just(""), numbers, numbers | st.just(""), numbers)


def quote_file(folder: Path, rows: list[tuple[str, str, str, str]]) -> Path:
    path = folder / "binance_quotes_2024-01-02_BTCUSDT.csv"
    texts = [QUOTES]
    for at, (ask, ask_size, bid, bid_size) in enumerate(rows):
        fields = (ask_size if ask else "", ask, bid, bid_size if bid else "")
        texts.append(f"binance,BTCUSDT,{100 + at},{200 + at}," + ",".join(fields))
    path.write_text("\n".join(texts))  # without a line feed at the end
    return path


@given(st.lists(quote, min_size=1, max_size=20), st.sampled_from((1 << 20, 150)))
def test_quotes_are_the_rows_and_an_absent_side_is_0(
    rows: list[tuple[str, str, str, str]], block_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_blocks, "BLOCK_BYTES", block_bytes)
        blocks, tally = run_importer("tardis-quotes", [quote_file(Path(folder), rows)])
    data = b"".join(payload for block in blocks for payload in payloads_of(block))
    found = np.frombuffer(data, BOOK_TICKER)
    assert all(block.type_id == TypeId.BOOK_TICKER for block in blocks)
    assert (tally.rows, tally.stream, tally.symbol) == (len(rows), "quotes", "BTCUSDT")
    wanted = [
        (
            (100 + at) * 1000,
            float(bid or 0),
            float(bid_size) if bid else 0.0,
            float(ask or 0),
            float(ask_size) if ask else 0.0,
            symbol_hash("BTCUSDT"),
        )
        for at, (ask, ask_size, bid, bid_size) in enumerate(rows)
    ]
    assert found.tolist() == wanted


def snapshot_file(folder: Path, depth: int, rows: list[list[tuple[str, str]]]) -> Path:
    names = [
        f"{side}[{place}].{what}" for place in range(depth) for side in LEVELS for what in ("price", "amount")
    ]
    path = folder / f"binance_book_snapshot_{depth}_2024-01-02_BTCUSDT.csv"
    texts = [",".join(["exchange,symbol,timestamp,local_timestamp", *names])]
    for at, levels in enumerate(rows):
        fields = [field for level in levels for field in level]
        texts.append(f"binance,BTCUSDT,{100 + at},{200 + at}," + ",".join(fields))
    path.write_text("\n".join(texts) + "\n")
    return path


@given(st.data())
def test_snapshots_are_the_rows_with_as_many_levels_as_are_there(data: st.DataObject) -> None:
    depth = data.draw(st.sampled_from((5, 25)))
    count = data.draw(st.integers(1, 4))
    rows, wanted = [], []
    for _ in range(count):
        bids, asks = data.draw(st.integers(0, depth)), data.draw(st.integers(0, depth))
        sides = {
            "asks": [(f"{1000 + place}.5", f"0.{place + 1}") for place in range(asks)],
            "bids": [(f"{999 - place}.25", f"{place + 1}") for place in range(bids)],
        }
        wanted.append({side: [(Decimal(p), Decimal(q)) for p, q in levels] for side, levels in sides.items()})
        padded = {side: levels + [("", "")] * (depth - len(levels)) for side, levels in sides.items()}
        rows.append([padded[side][place] for place in range(depth) for side in LEVELS])
    with tempfile.TemporaryDirectory() as folder:
        blocks, tally = run_importer("tardis-snapshots", [snapshot_file(Path(folder), depth, rows)])
    events = l2_events_of(blocks)
    assert (tally.rows, tally.groups, tally.stream) == (count, count, "l2")
    for at, (event, levels) in enumerate(zip(events, wanted, strict=True)):
        assert event.header["event_type"] == BookEventType.SNAPSHOT
        assert event.header["market_id"] == crypto_market_id("BTCUSDT") and event.header["venue_id"] == 1
        assert (event.header["exchange_ts_ns"], event.header["ingest_ts_ns"]) == (
            (100 + at) * 1000,
            (200 + at) * 1000,
        )
        scales = 10 ** Decimal(int(event.body["price_scale"])), 10 ** Decimal(int(event.body["size_scale"]))
        for side, found in (("bids", event.bids), ("asks", event.asks)):
            assert [(price / scales[0], size / scales[1]) for price, size in found] == levels[side]


@pytest.mark.parametrize("name", ["tardis-quotes", "tardis-snapshots"])
def test_rows_that_go_back_and_other_symbols_are_refused(tmp_path: Path, name: str) -> None:
    level = [("10", "1"), ("9", "1")] * 5
    path = (
        quote_file(tmp_path, [("10", "1", "9", "1")] * 3)
        if name == "tardis-quotes"
        else snapshot_file(tmp_path, 5, [level] * 3)
    )
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[2], lines[1]]) + "\n")
    with pytest.raises(InvalidSource, match=r":3: local_timestamp goes back"):
        run_importer(name, [path])
    _, tally = run_importer(name, [path], ImportOptions(allow_unordered=True))
    assert (tally.rows, tally.unordered) == (2, 1)
    with pytest.raises(InvalidSource, match="ETHUSDT"):
        run_importer(name, [path], ImportOptions(symbol="ETHUSDT", allow_unordered=True))
