"""The table `dim_symbol`: the same rows as the catalogue, changed in one transaction or not at all."""

from __future__ import annotations

import signal
from pathlib import Path

import deltalake
import pytest

from everlog.errors import CorruptMetadata
from everlog.fs import OsFs, replace_file
from everlog.market.symbols import FOREVER, SymbolDefinition, record_symbols
from everlog.pipeline.symbols import (
    SCHEMA,
    read_dim_symbol,
    refresh_dim_symbol,
    refreshed_dim_symbol,
    update_dim_symbol,
)
from tests.support.command_lines import run_here, started


def defined(symbol: str, tick: float, at_ts: int) -> SymbolDefinition:
    return SymbolDefinition(exchange="binance", exchange_symbol=symbol, tick_size=tick, at_ts=at_ts)


def test_the_table_has_the_specified_columns_and_a_changed_symbol_closes_its_version(tmp_path: Path) -> None:
    assert len(read_dim_symbol(tmp_path)) == 0
    assert update_dim_symbol(tmp_path, [defined("BTCUSDT", 0.1, 10), defined("ETHUSDT", 0.1, 10)]) == 2
    assert update_dim_symbol(tmp_path, [defined("BTCUSDT", 0.1, 15)]) == 0
    assert update_dim_symbol(tmp_path, [defined("BTCUSDT", 0.01, 20)]) == 2
    table = deltalake.DeltaTable(str(tmp_path / "dim_symbol"))
    assert table.version() == 1, "nothing to change is no commit"
    found = table.to_pyarrow_table().sort_by(
        [("exchange_symbol", "ascending"), ("valid_from_ts", "ascending")]
    )
    assert found.schema.names == SCHEMA.names and found.schema.types == SCHEMA.types
    assert [
        (row["exchange_symbol"], row["tick_size"], row["valid_from_ts"], row["valid_until_ts"])
        for row in found.to_pylist()
    ] == [("BTCUSDT", 0.1, 10, 20), ("BTCUSDT", 0.01, 20, FOREVER), ("ETHUSDT", 0.1, 10, FOREVER)]
    assert len(read_dim_symbol(tmp_path, version=0)) == 2
    assert len(read_dim_symbol(tmp_path)) == 3


def test_the_table_is_read_across_a_checkpoint_of_its_log(tmp_path: Path) -> None:
    for number in range(3):
        update_dim_symbol(tmp_path, [defined("BTCUSDT", 0.5**number, 10 * number)])
    deltalake.DeltaTable(str(tmp_path / "dim_symbol")).create_checkpoint()
    update_dim_symbol(tmp_path, [defined("BTCUSDT", 7.0, 40)])
    assert [row.tick_size for row in read_dim_symbol(tmp_path).versions] == [1.0, 0.5, 0.25, 7.0]


def test_a_source_that_cannot_be_read_leaves_the_table_and_a_held_copy_as_they_are(tmp_path: Path) -> None:
    lake, bus = tmp_path / "lake", tmp_path / "bus"
    record_symbols(bus, [defined("BTCUSDT", 0.1, 10)])
    assert refresh_dim_symbol(lake, [str(bus)]) == 1
    held = refreshed_dim_symbol(lake, 5, 0)
    (bus / "symbols.jsonl").write_bytes(b"nonsense\n")
    with pytest.raises(CorruptMetadata):
        refresh_dim_symbol(lake, [str(bus)])
    failed: list[str] = []
    assert refresh_dim_symbol(lake, [str(bus)], on_failure=lambda source, _: failed.append(source)) == 0
    assert failed == [str(bus)] and len(read_dim_symbol(lake)) == 1
    for path in (lake / "dim_symbol" / "_delta_log").iterdir():
        path.write_text("{")
    assert not held.refresh(5) and held.failures == 1
    assert held.catalogue.versions[0].tick_size == 0.1


def test_the_command_takes_symbols_from_a_bus(tmp_path: Path) -> None:
    record_symbols(tmp_path / "bus", [defined("BTCUSDT", 0.1, 10)])
    arguments = ("pipeline", "symbols", "--lake", tmp_path / "lake", "--from", tmp_path / "bus")
    assert run_here(*arguments, "--json").stdout.split() == [
        "{",
        '"changed":',
        "1,",
        '"versions":',
        "1",
        "}",
    ]
    assert '"changed": 0' in run_here(*arguments, "--json").stdout


def test_a_repeated_refresh_reports_what_fails_and_goes_on(tmp_path: Path) -> None:
    bus = tmp_path / "bus"
    record_symbols(bus, [defined("BTCUSDT", 0.1, 10)])
    good = (bus / "symbols.jsonl").read_bytes()
    arguments = ("--lake", tmp_path / "lake", "--from", bus, "--every", "0.05")
    with started("everlog", "pipeline", "symbols", *arguments) as command:
        assert command.line().split() == ["new", "or", "changed", "1"]
        replace_file(OsFs(), str(bus / "symbols.jsonl"), b"nonsense\n")
        assert "is not a row of a symbol catalogue" in command.line("stderr")
        replace_file(OsFs(), str(bus / "symbols.jsonl"), good)
        record_symbols(bus, [defined("ETHUSDT", 0.1, 10)])
        while command.line().split()[-1] != "2":
            pass
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(60) == 0
    assert len(read_dim_symbol(tmp_path / "lake")) == 2
