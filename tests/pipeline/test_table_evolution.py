"""Tables of earlier versions: what later versions append to them, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everlog.errors import InvalidConfig
from everlog.market.symbols import SymbolDefinition
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.lake_files import write_files
from everlog.pipeline.symbols import SCHEMA, TABLE, read_dim_symbol, update_dim_symbol
from everlog.pipeline.tables.schemas import TRADES


def commit(table: LakeTable, rows: pa.Table, batch: int, by: Sequence[str] = (), **how: Any) -> None:
    """Commit rows as a job does."""
    (whole,) = rows.combine_chunks().to_batches()
    files = [
        {**row, "partition_values": dict(row["partition_values"] or ())}
        for described in write_files(iter([whole]), table.place, tuple(by))
        for row in described.to_pylist()
    ]
    table.commit(files, rows.schema, "job", batch, by, **how)


def stored(table: LakeTable, version: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    opened = table.open(version)
    assert opened is not None
    rows: list[dict[str, Any]] = opened.to_pyarrow_table().to_pylist()
    return rows


def trades(without: str | None = None) -> pa.Table:
    """Return a trade as a version wrote it that did not have a column yet."""
    fields = [field for field in TRADES.arrow if field.name != without]
    row = {"venue": "binance", "symbol": "BTCUSDT", "price": 1.5, "seq": 7, "tick_size": 0.1}
    return pa.Table.from_pylist([row], schema=pa.schema(fields))


def test_a_column_of_a_later_version_is_null_in_the_rows_of_an_old_table(tmp_path: Path) -> None:
    table = LakeTable(tmp_path, "trades")
    commit(table, trades(without="tick_size"), 1, TRADES.partition_by)
    commit(table, trades(), 2, TRADES.partition_by)
    assert sorted(str(row["tick_size"]) for row in stored(table)) == ["0.1", "None"]
    assert {(row["symbol"], row["price"], row["seq"]) for row in stored(table)} == {("BTCUSDT", 1.5, 7)}
    assert "tick_size" not in stored(table, version=0)[0], "what it was stays readable"


def test_a_column_of_an_old_table_keeps_its_type_and_the_refusal_writes_nothing(tmp_path: Path) -> None:
    table = LakeTable(tmp_path, "quotes")
    commit(table, pa.table({"seq": [1], "bid_price": [9990]}), 1)
    with pytest.raises(InvalidConfig, match="column 'bid_price' of table 'quotes' is int64"):
        table.check_append(pa.schema([("bid_price", pa.float64())]))
    with pytest.raises(InvalidConfig, match="write to another table"):
        commit(table, pa.table({"seq": [1], "bid_price": [99.9]}), 2)
    assert stored(table) == [{"seq": 1, "bid_price": 9990}]


def test_a_table_that_is_replaced_as_a_whole_gets_the_columns_and_partitions_of_its_rows(
    tmp_path: Path,
) -> None:
    table = LakeTable(tmp_path, "quotes")
    commit(table, pa.table({"venue_id": [1], "bid_price": [9990]}), 1, ("venue_id",))
    commit(table, pa.table({"venue": ["binance"], "bid_price": [99.9]}), 2, ("venue",), replace=True)
    assert stored(table) == [{"venue": "binance", "bid_price": 99.9}]
    assert table.partition_columns() == ("venue",) and table.committed_batch("job") == 2
    assert stored(table, version=0) == [{"venue_id": 1, "bid_price": 9990}]


def test_a_run_does_not_replace_rows_that_were_archived_or_imported(tmp_path: Path) -> None:
    kept, computed = LakeTable(tmp_path, "kept"), LakeTable(tmp_path, "computed")
    for table, kind in ((kept, "record"), (computed, "computed")):
        rows = trades().to_pylist()
        commit(table, pa.Table.from_pylist([{**rows[0], "kind": kind}], schema=TRADES.arrow), 1)
    computed.check_replace()
    with pytest.raises(InvalidConfig, match=r"archived or imported.*--table"):
        kept.check_replace()


def test_a_symbol_catalogue_of_an_earlier_version_gets_its_times_as_timestamps(tmp_path: Path) -> None:
    told = SymbolDefinition(exchange="binance", exchange_symbol="BTCUSDT", tick_size=0.1)
    update_dim_symbol(tmp_path / "new", [told], at_ts=1)
    row = stored(LakeTable(tmp_path / "new", TABLE))[0]
    old = pa.schema([field for field in SCHEMA if field.name not in ("valid_from", "valid_until")])
    commit(LakeTable(tmp_path, TABLE), pa.Table.from_pylist([row], schema=old), 1)
    update_dim_symbol(tmp_path, [SymbolDefinition(exchange="bybit", exchange_symbol="X")], at_ts=2)
    rows = stored(LakeTable(tmp_path, TABLE))
    assert sorted((one["exchange"], one["valid_from"].microsecond) for one in rows) == [
        ("binance", 1),
        ("bybit", 2),
    ]
    assert len(read_dim_symbol(tmp_path)) == 2 and {one["valid_until"] for one in rows} == {None}
