"""`everlog features`: one table of all symbols, files by day, bars and plots, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from everlog.cli.book_options import parse_duration_ns
from everlog.errors import InvalidConfig
from everlog.market.bar_builder import SymbolBars, trades_of
from everlog.market.feature_choice import parse_features
from everlog.market.replay import Replay
from everlog.market.triggers import TimeBar
from everlog.market.venues.simulated import START_NS, SimulatedVenue
from everlog.queue import Queue
from tests.support.command_lines import run_here

SYMBOLS = ("AAA", "BBB", "CCC")
FIRST = ["seq", "symbol", "venue", "tick_size", "ingest_time", "exchange_time", "ingest_ts_ns"]


def write_venue(path: Path, symbols: tuple[str, ...], *, seed: int = 0, kinds: tuple[str, ...] = ()) -> None:
    """Write half a second of books and trades."""
    with Queue.open_publisher(path, segment_size=1 << 20) as writer:
        venue = SimulatedVenue(
            symbols,
            seed=seed,
            rate=4000.0,
            kinds=kinds or ("l2", "trades"),
            resting_orders=20,
            block_events=500,
        )
        for block in venue.blocks(1500):
            block.append_to(writer)


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two queues: one of two symbols, one of a third."""
    folder = tmp_path_factory.mktemp("features")
    write_venue(folder / "one", SYMBOLS[:2])
    write_venue(folder / "two", SYMBOLS[2:], seed=5)
    return folder / "one", folder / "two"


def made(*arguments: object) -> dict[str, object]:
    """Run the command and return what it says."""
    done = run_here("features", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def test_one_table_has_books_and_trades_of_all_symbols_in_the_order_of_time(
    queues: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "features.parquet"
    names = ",".join(SYMBOLS)
    said = made(*queues, "--features", "best,mid,trades", "--symbols", names, "--out", out)
    table = pq.read_table(out)
    assert table.column_names[: len(FIRST)] == FIRST
    assert said["columns"] == table.column_names and said["rows"] == table.num_rows > 1000
    assert table.schema.field("ingest_time").type == pa.timestamp("ns", "UTC")
    times = table["ingest_ts_ns"].to_numpy()
    assert (np.diff(times.astype(np.int64)) >= 0).all()
    assert (table["ingest_time"].cast(pa.int64()).to_numpy() == times).all()
    rows = table.to_pandas()
    assert set(rows["symbol"]) == set(SYMBOLS) and set(rows["venue"]) == {"simulated"}
    for symbol, of_symbol in rows.groupby("symbol"):
        queue = queues[symbol == SYMBOLS[2]]
        chosen = Replay(str(queue)).symbols(str(symbol))
        alone = np.concatenate(
            [one.rows for one in chosen.features(parse_features("seq,mid,trades")).tables()]
        )
        for name in ("seq", "mid_price", "trades", "bought", "trade_imbalance"):
            assert (of_symbol[name].to_numpy() == alone[name]).all()
        trades = sum(len(batch.trades) for batch in chosen.trades())
        assert of_symbol["trades"].sum() == trades > 0


@pytest.mark.parametrize("kind", ["csv", "arrow"])
def test_other_formats_hold_the_same_rows(queues: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    chosen = ("--every", "100ms", "--features", "best,imbalance:3")
    made(queues[0], *chosen, "--out", tmp_path / "rows.parquet")
    made(queues[0], *chosen, "--out", tmp_path / f"rows.{kind}")
    table = pq.read_table(tmp_path / "rows.parquet")
    path = tmp_path / f"rows.{kind}"
    if kind == "arrow":
        assert ipc.open_file(path).read_all().equals(table)
    else:
        read = pacsv.read_csv(path)
        assert read.column_names == table.column_names
        for name in ("bid_price", "book_imbalance", "ingest_ts_ns"):
            assert read[name].to_pylist() == table[name].to_pylist()


def test_a_folder_gets_the_files_of_a_replay(queues: tuple[Path, Path], tmp_path: Path) -> None:
    made(queues[0], "--symbols", "AAA,BBB", "--every", "50ms", "--out", tmp_path / "lake")
    files = sorted(
        str(path.relative_to(tmp_path / "lake")) for path in (tmp_path / "lake").rglob("*.parquet")
    )
    assert files == [f"date=2024-01-02/symbol={name}/features.parquet" for name in ("AAA", "BBB")]
    table = pq.read_table(tmp_path / "lake" / files[0], partitioning=None)
    replay = Replay(str(queues[0])).symbols("AAA").features(parse_features("seq,time,best,standard"))
    rows = np.concatenate([one.rows for one in replay.trigger(TimeBar(50_000_000)).tables()])
    for name in table.column_names:
        assert (table[name].to_numpy() == rows[name]).all()


def test_a_time_range_ends_before_its_end_and_its_books_are_those_of_the_whole(
    queues: tuple[Path, Path], tmp_path: Path
) -> None:
    made(queues[0], "--features", "best", "--out", tmp_path / "all.parquet")
    rows = pq.read_table(tmp_path / "all.parquet").to_pandas()
    first, last = int(rows["ingest_ts_ns"].iloc[400]), int(rows["ingest_ts_ns"].iloc[-50])
    chosen = rows[(rows["ingest_ts_ns"] >= first) & (rows["ingest_ts_ns"] <= last)].reset_index(drop=True)
    made(
        *(
            queues[0],
            "--features",
            "best",
            "--start",
            first,
            "--end",
            last + 1,
            "--out",
            tmp_path / "part.parquet",
        )
    )
    assert pq.read_table(tmp_path / "part.parquet").to_pandas().equals(chosen)
    day = datetime.fromtimestamp(START_NS / 1e9, UTC).date().isoformat()
    said = made(queues[0], "--start", f"{day}T10:00", "--out", tmp_path / "none.parquet")
    assert said["rows"] == 0


@pytest.mark.parametrize("bars", ["time:50", "count:7", "volume:3.5", "dollar:300"])
def test_bars_are_those_of_the_library(queues: tuple[Path, Path], tmp_path: Path, bars: str) -> None:
    out = tmp_path / "bars.parquet"
    made(*queues, "--symbols", ",".join(SYMBOLS), "--bars", bars, "--out", out)
    table = pq.read_table(out).to_pandas()
    assert set(table["symbol"]) == set(SYMBOLS)
    kind, size = bars.split(":")
    building = SymbolBars(kind, float(size) * (1e6 if kind == "time" else 1))
    expected = [
        bar for batch in trades_of([Replay(str(one)) for one in queues]) for bar in building.add(*batch)
    ]
    rows = np.concatenate([one for _, one in [*expected, *building.finish()]])
    found = table.sort_values(["start_ts_ns", "symbol"])["vwap"].to_numpy()
    assert sorted(found) == sorted(rows["vwap"]) and len(found) > 6
    assert table["trades"].sum() == rows["trades"].sum()
    if kind == "dollar":
        value = table["vwap"] * table["volume"]
        assert (value[table["trades"] > 1] < 3 * 300).all()


def test_a_plot_has_a_line_for_each_symbol_and_column(queues: tuple[Path, Path], tmp_path: Path) -> None:
    plot = tmp_path / "features.svg"
    made(queues[0], "--symbols", "AAA,BBB", "--every", "10ms", "--features", "mid,imbalance", "--plot", plot)
    text = plot.read_text()
    for symbol in ("AAA", "BBB"):
        assert f'id="{symbol} mid_price"' in text and f'id="{symbol} book_imbalance"' in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say where to"),
        (["--out", "x.txt"], "tables end with .parquet"),
        (["--out", "x.csv", "--every", "soon"], "write it like 100ms"),
        (["--out", "x.csv", "--features", "speed"], "unknown feature 'speed'"),
        (["--out", "x.csv", "--bars", "weight:1"], "it must be time:MS"),
        (["--bars", "count:5", "--plot", "x.svg"], "--bars needs --out"),
        (["--out", "x.csv", "--symbols", "nowhere:AAA"], "unknown venue 'nowhere'"),
        (["--out", "x.csv", "--start", "2024-01-03", "--end", "2024-01-02"], "is empty or negative"),
        (["--plot", "x.gif"], "ends with .svg or .png"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_written(
    queues: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_here("features", queues[0], *arguments)
    assert done.returncode == 1 and said in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_replay_that_fails_leaves_no_table(tmp_path: Path) -> None:
    write_venue(tmp_path / "both", ("AAA",), kinds=("l3", "l2"))
    done = run_here("features", tmp_path / "both", "--out", tmp_path / "x.parquet")
    assert done.returncode == 1 and done.stderr.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["both"]


def test_durations() -> None:
    assert [parse_duration_ns(text) for text in ("1s", "1.5ms", "2h")] == [10**9, 1_500_000, 7200 * 10**9]
    for text in ("", "1", "0s", "1 s", "-1s", "1d"):
        with pytest.raises(InvalidConfig):
            parse_duration_ns(text)


def bybit_file(path: Path, *updates: tuple[int, str, str, str]) -> Path:
    """A book with bid 1.0 and ask 2.0, then updates of one level each: id, side, price, size."""
    opening = {"s": "AUSDT", "u": 1, "b": [["1.0", "1"]], "a": [["2.0", "1"]]}
    messages = [{"type": "snapshot", "ts": 1_700_000_000_000, "data": opening}]
    for number, side, price, size in updates:
        data = {"s": "AUSDT", "u": number, "b": [], "a": [], side: [[price, size]]}
        messages.append({"type": "delta", "ts": 1_700_000_000_000 + number, "data": data})
    path.write_text("".join(json.dumps({"topic": "orderbook.50.AUSDT", **one}) + "\n" for one in messages))
    return path


def test_what_is_behind_the_rows_is_said(tmp_path: Path) -> None:
    # The ask of 2.0 went with the update that is missing.
    path = bybit_file(
        tmp_path / "book.data", (2, "b", "1.5", "1"), (4, "b", "2.5", "1"), (5, "a", "3.0", "1")
    )
    assert run_here("import", "bybit", path, "--queue", tmp_path / "queue").returncode == 0
    out = tmp_path / "features.csv"
    assert made(tmp_path / "queue", "--gaps", "ignore", "--out", out)["faults"] == {"crossed": 2, "gaps": 1}
    said = run_here("features", tmp_path / "queue", "--gaps", "ignore", "--out", out)
    assert "behind the rows are 2 events with a crossed book" in said.stderr and "1 gaps" in said.stderr
    assert made(tmp_path / "queue", "--gaps", "quarantine", "--out", out)["faults"] == {
        "gaps": 1,
        "skipped": 2,
    }
    shown = run_here("book", "show", tmp_path / "queue")
    assert "1 gaps" in shown.stderr and "the book is crossed" in shown.stderr
    (document,) = json.loads(run_here("book", "show", tmp_path / "queue", "--json").stdout)
    assert (document["gaps"], document["is_crossed"]) == (1, True)
    sound = bybit_file(tmp_path / "sound.data", (2, "b", "1.5", "1"))
    assert run_here("import", "bybit", sound, "--queue", tmp_path / "other").returncode == 0
    assert made(tmp_path / "other", "--out", out)["faults"] == {}
    assert not run_here("book", "show", tmp_path / "other").stderr
    assert "no book events of NOPE" in run_here("book", "show", tmp_path / "other", "--symbol", "NOPE").stderr
    nothing = run_here("export", tmp_path / "other", "--kind", "trade", "--to", tmp_path / "trades.csv")
    assert "nothing of kind trade" in nothing.stderr and nothing.returncode == 0
