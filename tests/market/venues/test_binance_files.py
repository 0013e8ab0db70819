"""Public data files of Binance, against a plain reading of the same rows."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidSource
from everlog.market.protocol import BAR, TRADE, TypeId, crypto_market_id, symbol_hash
from everlog.market.venues.interface import ImportOptions
from everlog.market.venues.sniffing import looks_like
from tests.support.import_runs import import_into, l2_events_of, payloads_of, run_importer

prices = st.decimals(min_value=Decimal("0.01"), max_value=10**5, places=2).map(str)
sizes = st.decimals(min_value=Decimal("0.00001"), max_value=10**4, places=5).map(str)
trades = st.lists(st.tuples(prices, sizes, st.booleans(), st.integers(0, 3)), min_size=1, max_size=20)
DAY_MS = 1_723_075_200_000

KINDS = {
    "binance-trades": ("trades", "id,price,qty,quote_qty,time,is_buyer_maker"),
    "binance-agg-trades": (
        "aggTrades",
        "agg_trade_id,price,quantity,first_trade_id,last_trade_id,transact_time,is_buyer_maker",
    ),
}


def trade_row(name: str, number: int, price: str, size: str, time: int, is_maker: bool) -> str:
    between = f"{number},{number + 2}" if name == "binance-agg-trades" else "1.0"
    return f"{number},{price},{size},{between},{time},{str(is_maker).lower()}"


@pytest.mark.parametrize("name", KINDS)
@given(rows=trades, is_spot=st.booleans(), is_fine=st.booleans())
def test_trades_are_the_rows(
    name: str, rows: list[tuple[str, str, bool, int]], is_spot: bool, is_fine: bool
) -> None:
    kind, header = KINDS[name]
    unit, time = (1000, DAY_MS * 1000) if is_fine else (10**6, DAY_MS)
    lines, wanted = [] if is_spot else [header], []
    for number, (price, size, is_maker, later) in enumerate(rows, 7):
        time += later
        text = trade_row(name, number, price, size, time, is_maker)
        lines.append(text.replace("true", "True").replace("false", "False") + ",True" if is_spot else text)
        wanted.append(
            (time * unit, float(price), float(size), number, 0, 0, int(is_maker), symbol_hash("BTCUSDT"))
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"BTCUSDT-{kind}-2024-08-08.csv"
        path.write_text("\n".join(lines) + "\n")
        assert looks_like(path.read_bytes()) == name
        blocks, tally = run_importer(name, [path])
    found = np.frombuffer(b"".join(p for block in blocks for p in payloads_of(block)), TRADE)
    names = [field for field in TRADE.names or () if not field.startswith("reserved_")]
    assert [tuple(row[field].item() for field in names) for row in found] == wanted
    venue = "binance" if is_spot else "binance-futures"
    assert (tally.venue, tally.symbol, tally.date, tally.stream) == (venue, "BTCUSDT", "2024-08-08", "trades")
    assert (tally.rows, tally.gaps) == (len(rows), 0)


@pytest.mark.parametrize("name", KINDS)
def test_holes_in_the_ids_are_counted_and_repeated_ids_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"BTCUSDT-{KINDS[name][0]}-2024-08-08.csv"

    def write(*numbers: int) -> None:
        rows = [trade_row(name, number, "1.5", "2", DAY_MS + at, True) for at, number in enumerate(numbers)]
        path.write_text("\n".join([KINDS[name][1], *rows]) + "\n")

    write(5, 6, 9, 10)
    _, tally = run_importer(name, [path])
    assert tally.gaps == 1 and any(":4: " in note and "9 follows 6" in note for note in tally.notes)
    for numbers in ((5, 6, 6, 7), (5, 7, 6, 8)):
        write(*numbers)
        with pytest.raises(InvalidSource, match=r":4: .*goes back: rows are out of order or there twice"):
            run_importer(name, [path])
        _, tally = run_importer(name, [path], ImportOptions(allow_unordered=True))
        assert (tally.rows, tally.unordered) == (4, 1)
        _, tally = run_importer(name, [path], quarantine=tmp_path / "aside.csv")
        assert (tally.rows, tally.quarantined) == (3, 1)


@given(
    st.lists(st.tuples(prices, prices, sizes, sizes, st.integers(0, 9)), min_size=1, max_size=8),
    st.booleans(),
)
def test_klines_are_bars_with_the_time_of_their_end(
    rows: list[tuple[str, str, str, str, int]], has_header: bool
) -> None:
    header = (
        "open_time,open,high,low,close,volume,close_time,quote_volume,count,taker_buy_volume,"
        "taker_buy_quote_volume,ignore"
    )
    lines, wanted = [header] if has_header else [], []
    for at, (low, high, volume, taken, count) in enumerate(rows):
        start = DAY_MS + at * 60_000
        lines.append(
            f"{start},{low},{high},{low},{high},{volume},{start + 59_999},{volume},{count},{taken},1,0"
        )
        wanted.append(
            (
                *(start * 10**6, (start + 60_000) * 10**6),
                *(float(low), float(high), float(low), float(high)),
                *(float(volume), float(volume), float(taken), count, symbol_hash("BTCUSDT")),
            )
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "BTCUSDT-1m-2024-08.csv"
        path.write_text("\n".join(lines) + "\n")
        assert looks_like(path.read_bytes()) == "binance-klines"
        blocks, tally = run_importer("binance-klines", [path])
    assert np.frombuffer(b"".join(p for block in blocks for p in payloads_of(block)), BAR).tolist() == wanted
    assert [stamp for block in blocks for stamp in block.timestamps_ns.tolist()] == [row[1] for row in wanted]
    assert all(block.type_id == TypeId.BAR for block in blocks)
    assert (tally.date, tally.venue) == ("2024-08-01", "binance-futures" if has_header else "binance")


@given(
    st.lists(st.lists(st.tuples(sizes, st.integers(1, 500)), min_size=5, max_size=5), min_size=1, max_size=4)
)
def test_the_levels_of_a_book_depth_sum_to_the_depths_of_the_file(bands: list[list[tuple[str, int]]]) -> None:
    lines, wanted = ["timestamp,percentage,depth,notional"], []
    for at, some in enumerate(bands):
        depth = Decimal(0)
        sums: list[tuple[Decimal, int]] = []
        notional = 0
        for percent, (size, value) in enumerate(some, 1):
            depth, notional = depth + Decimal(size), notional + value
            sums.append((depth, notional))
            for sign in ("-", ""):
                lines.append(f"2024-08-08 00:{at:02d}:07,{sign}{percent},{depth},{notional}.00")
        wanted.append(sums)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "BTCUSDT-bookDepth-2024-08-08.csv"
        path.write_text("\n".join(lines) + "\n")
        assert looks_like(path.read_bytes()) == "binance-book-depth"
        blocks, tally = run_importer("binance-book-depth", [path])
    events = l2_events_of(blocks)
    assert tally.rows == 10 * len(bands) and len(events) == len(bands)
    for at, (event, sums) in enumerate(zip(events, wanted, strict=True)):
        assert event.header["exchange_ts_ns"] == (DAY_MS + at * 60_000 + 7_000) * 10**6
        assert event.header["market_id"] == crypto_market_id("BTCUSDT") and event.header["venue_id"] == 7
        scale = 10 ** Decimal(int(event.body["size_scale"]))
        for side in (event.bids, event.asks):
            assert [sum(size for _, size in side[: n + 1]) / scale for n in range(5)] == [d for d, _ in sums]
            for (price, size), (after, before) in zip(
                side, zip(sums, [(0, 0), *sums], strict=False), strict=True
            ):
                average = (after[1] - before[1]) / (size / scale)
                assert abs(price / Decimal(10**8) - average) <= Decimal("0.00000001")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2024-08-08 00:00:07,-1,x,5", "no row of depth"),
        ("2024-08-08 00:00:07,0,1,5", "neither a bid nor an ask"),
        ("2024-08-08,-1,1,5", "no row of depth"),
        ("2024-08-08 00:00:07,-1,-1,5", "not negative"),
        ("2024-08-08 00:00:06,-1,1,5", "goes back or the percentage is there twice"),
        ("2024-08-08 00:00:07,-2,1,5", "goes back or the percentage is there twice"),
    ],
)
def test_a_bad_row_of_depth_is_named(tmp_path: Path, row: str, reason: str) -> None:
    path = tmp_path / "BTCUSDT-bookDepth-2024-08-08.csv"
    path.write_text(f"timestamp,percentage,depth,notional\n2024-08-08 00:00:07,-2,1,5\n{row}\n")
    with pytest.raises(InvalidSource, match=f":3: .*{reason}"):
        run_importer("binance-book-depth", [path])


def test_a_file_whose_name_says_nothing_needs_a_symbol(tmp_path: Path) -> None:
    path = tmp_path / "download.csv"
    path.write_text(f"{KINDS['binance-trades'][1]}\n1,1.5,2,3,{DAY_MS},true\n")
    with pytest.raises(InvalidSource, match="pass --symbol"):
        import_into(tmp_path / "queue", "binance-trades", path)
    (result,) = import_into(
        tmp_path / "queue",
        "binance-trades",
        path,
        options=ImportOptions(symbol="X", venue="binance-delivery"),
    )
    assert (result.entry.symbol, result.entry.venue, result.entry.rows) == ("X", "binance-delivery", 1)
