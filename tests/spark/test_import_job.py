"""Files to queues and to the lake, one per task: the events of one machine, and each file once."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from everlog.errors import InvalidConfig
from everlog.fs import OsFs
from everlog.market.ledger import Ledger, LedgerEntry
from everlog.market.venues.simulated import SimulatedVenue
from everlog.pipeline.jobs.importing import import_to_lake, import_to_queues
from everlog.pipeline.lake import LakeTable
from everlog.pipeline.symbols import read_dim_symbol
from tests.market.venues.tardis_files import write_tardis_files
from tests.support.import_runs import import_into, messages_of

pytestmark = pytest.mark.timeout(300)

FORMAT = "tardis-book"
Event = tuple[int, int, bytes]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Books of three symbols as vendor files."""
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for number in range(3):
        venue = SimulatedVenue(
            [f"SYM{number}"], seed=number, resting_orders=10, rate=2000.0, kinds=("l2", "trades")
        )
        paths.append(str(write_tardis_files(venue, 200, folder)[0]))
    return paths


def events_of(queue: Path) -> list[Event]:
    """Type, time and payload of every message."""
    return [(one.type_id, one.timestamp_ns, bytes(one.payload)) for one in messages_of(queue)]


@pytest.fixture(scope="module")
def expected(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Event]]:
    """The events of each file, imported without Spark."""
    folder = tmp_path_factory.mktemp("expected")
    found = {}
    for number, path in enumerate(files):
        import_into(folder / str(number), FORMAT, Path(path))
        found[path] = events_of(folder / str(number))
    return found


def test_each_file_becomes_a_queue_with_the_events_of_one_machine(
    spark: SparkSession, files: list[str], expected: dict[str, list[Event]], tmp_path: Path
) -> None:
    report = import_to_queues(spark, FORMAT, files, str(tmp_path))
    assert (report.rows, report.known) == (sum(map(len, expected.values())), 0)
    for path, events in expected.items():
        assert events_of(tmp_path / os.path.basename(path)) == events
    again = import_to_queues(spark, FORMAT, files, str(tmp_path))
    assert (again.rows, again.known, again.entries) == (0, len(files), report.entries)
    assert all(events_of(tmp_path / os.path.basename(path)) == events for path, events in expected.items())


def test_a_table_takes_each_file_once_and_its_ledger_is_made_good(
    spark: SparkSession, files: list[str], expected: dict[str, list[Event]], tmp_path: Path
) -> None:
    lake = str(tmp_path)
    first = import_to_lake(spark, FORMAT, files[:2], lake, "events")
    # The second run finds two files, one of which has no ledger entry: its run was killed after the commit.
    lost = first.entries[0]
    ledger = Ledger(OsFs(), lake)
    ledger.forget(FORMAT, lost.file_hash)
    second = import_to_lake(spark, FORMAT, files, lake, "events")
    assert (first.known, second.known) == (0, 1)
    found = ledger.finished(FORMAT, lost.file_hash)
    assert found is not None
    assert msgspec.structs.replace(found, imported_at_ns=lost.imported_at_ns, options=lost.options) == (
        msgspec.convert(lost, LedgerEntry, from_attributes=True)
    )
    table = LakeTable(lake, "events").read(spark)
    for entry in second.entries:
        rows = table.where(f"file_hash = '{entry.file_hash}'").orderBy("seq").collect()
        assert [(row.type_id, row.ts_ns, bytes(row.payload)) for row in rows] == expected[entry.source_path]
        assert [row.seq for row in rows] == list(range(entry.groups))
        assert {(str(row.date), row.venue) for row in rows} == {("2024-01-02", "simulated")}
    catalogue = read_dim_symbol(lake)
    assert [row.exchange_symbol for row in catalogue.versions] == ["SYM0", "SYM1", "SYM2"]
    assert all(row.exchange == "simulated" and row.price_increment == 0.01 for row in catalogue.versions)
    third = import_to_lake(spark, FORMAT, files, lake, "events")
    assert (third.rows, third.known, third.version) == (0, 3, None)


def test_files_that_cannot_be_imported_are_named(
    spark: SparkSession, files: list[str], tmp_path: Path
) -> None:
    twin = tmp_path / os.path.basename(files[0])
    twin.write_bytes(b"")
    with pytest.raises(InvalidConfig, match="would share the queue"):
        import_to_queues(spark, FORMAT, [files[0], str(twin)], str(tmp_path / "out"))
    with pytest.raises(InvalidConfig, match="there is no file"):
        import_to_lake(spark, FORMAT, [str(tmp_path / "absent")], str(tmp_path), "events")
    with pytest.raises(InvalidConfig, match="valid are tardis-book"):
        import_to_lake(spark, "parchment", files, str(tmp_path), "events")


def test_quotes_and_bars_of_a_vendor_become_rows_with_names_and_prices(
    spark: SparkSession, tmp_path: Path
) -> None:
    quotes, bars = tmp_path / "quotes.csv", tmp_path / "BTCUSDT-1m-2024-01-02.csv"
    quotes.write_text(
        "exchange,symbol,timestamp,local_timestamp,ask_amount,ask_price,bid_price,bid_amount\n"
        "binance,BTCUSDT,1704153600000000,1704153600000100,2,100.5,100.25,3\n"
    )
    bars.write_text(
        "open_time,open,high,low,close,volume,close_time,quote_volume,count,taker_buy_volume,"
        "taker_buy_quote_volume,ignore\n1704153600000,1,4,0.5,2,10,1704153659999,15,7,6,9,0\n"
    )
    lake = str(tmp_path / "lake")
    import_to_lake(spark, "tardis-quotes", [str(quotes)], lake)
    import_to_lake(spark, "binance-klines", [str(bars)], lake)
    names = ("venue", "symbol", "kind", "bid_price", "bid_size", "ask_price", "ask_size")
    (row,) = LakeTable(lake, "quotes").read(spark).select(*names).collect()
    assert tuple(row) == ("binance", "BTCUSDT", "record", 100.25, 3.0, 100.5, 2.0)
    names = ("venue", "symbol", "open", "high", "low", "close", "volume", "trades", "quote_volume")
    (row,) = LakeTable(lake, "bars").read(spark).select(*names).collect()
    assert tuple(row) == ("binance-futures", "BTCUSDT", 1.0, 4.0, 0.5, 2.0, 10.0, 7, 15.0)
