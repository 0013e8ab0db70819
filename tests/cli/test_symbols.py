"""`everlog symbols`, and the names in what other commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.market.protocol import crypto_market_id
from tests.market.venues.tardis_files import BOOK_HEADER
from tests.support.command_lines import run_here

RULES = [{"filterType": "PRICE_FILTER", "tickSize": "0.01"}]
INFO = {"symbols": [{"symbol": "BTCUSDT", "baseAsset": "BTC", "quoteAsset": "USDT", "filters": RULES}]}


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A queue of a bus with one imported symbol."""
    path = tmp_path / "binance_incremental_book_L2_2024-01-02_BTCUSDT.csv"
    lines = ("101,110,true,bid,41000.50,1.250", "102,110,true,ask,41001,2")
    path.write_text("\n".join([BOOK_HEADER, *(f"binance,BTCUSDT,{line}" for line in lines)]) + "\n")
    queue = tmp_path / "bus" / "streams" / "raw" / "binance" / "queue"
    assert run_here("import", "tardis-book", path, "--queue", queue).returncode == 0
    return queue


def test_symbols_are_listed_shown_added_to_and_refreshed(queue: Path, tmp_path: Path) -> None:
    done = run_here("symbols", "ls", queue)
    assert done.returncode == 0 and "BTCUSDT" in done.stdout and "3410467731" in done.stdout
    assert "unknown, prices by 0.1" in done.stdout, "the finest price of a file is not the tick size"
    assert "the sources of 1 symbol say no tick size; 'everlog symbols import' adds" in done.stdout
    info = tmp_path / "exchangeInfo.json"
    info.write_text(json.dumps(INFO))
    done = run_here("symbols", "import", info, "--to", tmp_path / "bus")
    assert done.stdout.startswith("1 version new or changed, 1 version at ")
    listed = run_here("symbols", "ls", queue).stdout
    assert "unknown" not in listed and "say no tick size" not in listed
    done = run_here("symbols", "show", queue, "BTCUSDT", "--json")
    (version,) = json.loads(done.stdout)["versions"]
    assert (version["market_id"], version["tick_size"]) == (crypto_market_id("BTCUSDT"), 0.01)
    done = run_here("symbols", "refresh", tmp_path / "bus", "--json")
    assert json.loads(done.stdout)["changed"] == 0, "the import has told the bus"
    (tmp_path / "bus" / "symbols.jsonl").unlink()
    assert "1 version new or changed" in run_here("symbols", "refresh", tmp_path / "bus").stdout
    run_here("symbols", "import", info, "--to", tmp_path / "bus")
    done = run_here("symbols", "ls", tmp_path / "bus", "--json")
    (version,) = json.loads(done.stdout)["symbols"]
    assert (version["tick_size"], version["base_asset"], version["valid_from_ts"]) == (0.01, "BTC", 110)
    shown = run_here("symbols", "show", queue, "BTCUSDT").stdout
    assert "valid from         1970-01-01 00:00:00.000110" in shown and "valid until        now" in shown
    assert "None" not in shown and "1970-01-01 00:00:00.000110" in run_here("symbols", "ls", queue).stdout
    done = run_here("symbols", "show", queue, "NONE")
    assert done.returncode == 1 and "no symbol 'NONE' is known" in done.stderr


def test_books_are_shown_by_name_and_a_damaged_catalogue_is_an_error(queue: Path) -> None:
    done = run_here("book", "show", queue)
    assert "market BTCUSDT of venue binance" in done.stdout
    done = run_here("book", "top", queue, "--csv", "-")
    assert done.stdout.splitlines()[1].split(",")[3] == "BTCUSDT"
    (queue / "symbols.jsonl").write_bytes(b"nonsense\n")
    done = run_here("book", "show", queue)
    assert done.returncode == 1 and "symbols.jsonl:1 is not a row of a symbol catalogue" in done.stderr


def test_messages_are_printed_as_events_with_their_names(queue: Path, tmp_path: Path) -> None:
    (line,) = run_here("queue", "tail", queue, "--format", "market").stdout.splitlines()
    message = json.loads(line)
    assert (message["seq"], message["event"]["event"]) == (0, "snapshot")
    assert (message["event"]["venue"], message["event"]["symbol"]) == ("binance", "BTCUSDT")
    simulated = tmp_path / "simulated"
    run_here("simulate", "--queue", simulated, "--symbols", "2", "--events", "500")
    lines = run_here("queue", "tail", simulated, "--format", "market").stdout.splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert {event["type"] for event in events} == {"book_event", "trade"}
    assert {(event["venue"], event["symbol"]) for event in events} == {
        ("simulated", "SIM0000"),
        ("simulated", "SIM0001"),
    }


def test_rows_of_a_file_are_taken_over_and_unusable_ones_counted(queue: Path, tmp_path: Path) -> None:
    rows = (queue / "symbols.jsonl").read_text()
    row = json.loads(rows)
    bad = json.dumps({**row, "exchange_id": -1})
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps({**row, 'tick_size': 0.5})}\n{bad}\n")
    done = run_here("symbols", "import", tmp_path / "rows.jsonl", "--to", queue)
    assert "1 version new or changed" in done.stdout and "1 row skipped" in done.stdout
    done = run_here("symbols", "ls", queue, "--json")
    assert json.loads(done.stdout)["symbols"][0]["tick_size"] == 0.5
    (tmp_path / "other.json").write_text('{"symbols": 3}')
    done = run_here("symbols", "import", tmp_path / "other.json", "--to", queue)
    assert done.returncode == 1 and "is not exchangeInfo of Binance" in done.stderr
